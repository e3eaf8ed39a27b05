# SPDX-License-Identifier: Apache-2.0
"""The modules of normact.torch beside PyTorch's, and what puts the former in the place of the latter."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import normact.torch as nt

# Name, arguments of both constructors, shape of the input.
PAIRS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("LayerNorm", {"normalized_shape": (4, 5), "bias": False}, (3, 4, 5)),
    ("LayerNorm", {"normalized_shape": 5, "elementwise_affine": False}, (3, 4, 5)),
    ("RMSNorm", {"normalized_shape": 5}, (3, 5)),
    ("GELU", {"approximate": "tanh"}, (3, 5)),
    ("SiLU", {}, (3, 5)),
    ("SiLU", {"inplace": True}, (3, 5)),
    ("GroupNorm", {"num_groups": 2, "num_channels": 4}, (3, 4, 5)),
    ("BatchNorm1d", {"num_features": 4}, (6, 4)),
    ("BatchNorm1d", {"num_features": 4, "momentum": None}, (6, 4, 5)),
    ("BatchNorm2d", {"num_features": 4, "track_running_stats": False}, (3, 4, 5, 2)),
    ("BatchNorm2d", {"num_features": 4, "affine": False, "momentum": 0.3}, (3, 4, 5, 2)),
    ("BatchNorm3d", {"num_features": 4}, (3, 4, 2, 2, 2)),
    ("InstanceNorm1d", {"num_features": 4, "affine": True, "track_running_stats": True}, (3, 4, 5)),
    ("InstanceNorm2d", {"num_features": 4}, (4, 5, 2)),  # a single sample
    ("InstanceNorm3d", {"num_features": 4, "affine": True}, (3, 4, 2, 2, 2)),
    ("SyncBatchNorm", {"num_features": 4}, (3, 4, 5)),
]


def training_step(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The gradient of the input; those of parameters are left in them."""
    given = x.clone().requires_grad_()
    (module(given * 1) * torch.linspace(-1, 2, x.numel(), dtype=x.dtype).reshape(x.shape)).sum().backward()
    assert given.grad is not None
    return given.grad


@pytest.mark.parametrize(("name", "arguments", "shape"), PAIRS, ids=[f"{i}-{p[0]}" for i, p in enumerate(PAIRS)])
def test_drop_in(name: str, arguments: dict[str, Any], shape: tuple[int, ...]) -> None:
    """Same constructor, same state_dict both ways, same training and evaluation."""
    extra = {} if name in ("GELU", "SiLU") else {"dtype": torch.float64}
    theirs, ours = getattr(nn, name)(**arguments, **extra), getattr(nt, name)(**arguments, **extra)
    base = nn.modules.batchnorm._BatchNorm if name == "SyncBatchNorm" else getattr(nn, name)
    assert isinstance(ours, base)
    assert repr(ours) == repr(theirs)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter)
    assert str(ours.load_state_dict(theirs.state_dict())) == "<All keys matched successfully>"
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    for _ in range(2):
        torch.testing.assert_close(training_step(ours, x), training_step(theirs, x), rtol=1e-10, atol=1e-11)
    for found, want in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found.grad, want.grad, rtol=1e-10, atol=1e-11)
    theirs.load_state_dict(ours.state_dict())
    for module in (ours, theirs):
        module.eval()
    torch.testing.assert_close(ours(x.clone()), theirs(x.clone()), rtol=1e-11, atol=1e-12)
    for (key, found), (_, want) in zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-11, atol=1e-12, msg=key)


def test_running_statistics_follow_torch() -> None:
    theirs, ours = nn.BatchNorm2d(4, momentum=None), nt.BatchNorm2d(4, momentum=None)
    for i in range(3):
        x = torch.randn(3, 4, 5, 2, generator=torch.Generator().manual_seed(i))
        for module in (ours, theirs):
            module(x)
    for (key, found), (_, want) in zip(ours.state_dict().items(), theirs.state_dict().items(), strict=True):
        torch.testing.assert_close(found, want, msg=key)


def test_half_precision_model() -> None:
    """A model that was converted as a whole has running statistics of low precision too."""
    theirs, ours = nn.BatchNorm2d(4).bfloat16(), nt.BatchNorm2d(4).bfloat16()
    x = torch.randn(3, 4, 5, 2, generator=torch.Generator().manual_seed(5)).bfloat16()
    for module in (theirs, ours):
        module(x)
        module.eval()
    assert ours.running_mean.dtype == torch.bfloat16
    torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.running_var, theirs.running_var)


FUSED: list[tuple[str, Callable[[], nn.Module], Callable[[Any, Any, Any], Any], int]] = [
    ("AddLayerNorm", lambda: nt.AddLayerNorm(6), lambda m, x, r: (nn.LayerNorm.forward(m, x + r), x + r), 2),
    ("AddRMSNorm", lambda: nt.AddRMSNorm(6), lambda m, x, r: (nn.RMSNorm.forward(m, x + r), x + r), 2),
    ("BiasGELU", lambda: nt.BiasGELU(6), lambda m, x, _: nn.functional.gelu(x + m.bias), 1),
    ("BiasGELU-dim", lambda: nt.BiasGELU(4, "tanh", 1), lambda m, x, _: _gelu(x + m.bias[:, None, None]), 1),
    ("SwiGLU", lambda: nt.SwiGLU(), lambda m, x, r: nn.functional.silu(x) * r, 2),
    ("GEGLU", lambda: nt.GEGLU("tanh"), lambda m, x, _: _gelu(x[..., :3]) * x[..., 3:], 1),
    ("GroupNormSiLU", lambda: nt.GroupNormSiLU(2, 4), lambda m, x, _: nn.SiLU()(nn.GroupNorm.forward(m, x)), 1),
    ("BatchNormReLU2d", lambda: nt.BatchNormReLU2d(4), lambda m, x, _: nn.BatchNorm2d.forward(m, x).relu(), 1),
    ("BatchNormAddReLU2d", lambda: nt.BatchNormAddReLU2d(4), lambda m, x, r: (_batch(m, x) + r).relu(), 2),
]


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(x, approximate="tanh")


def _batch(module: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.BatchNorm2d.forward(module, x)


@pytest.mark.parametrize(("name", "make", "plain", "count"), FUSED, ids=[each[0] for each in FUSED])
def test_fused(name: str, make: Any, plain: Any, count: int) -> None:
    """One pass gives what PyTorch's steps give one after the other, gradients of parameters too."""
    ours = make().double()
    for parameter in ours.parameters():
        nn.init.normal_(parameter)
    theirs = copy.deepcopy(ours)
    inputs = [torch.randn(3, 4, 5, 6, dtype=torch.float64).requires_grad_() for _ in range(2)][:count]
    found, want = ours(*inputs), plain(theirs, inputs[0], inputs[-1])
    torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-11)
    for grads in zip(
        torch.autograd.grad(_total(found), [*inputs, *ours.parameters()]),
        torch.autograd.grad(_total(want), [*inputs, *theirs.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-10)
    for state in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(*state)
    assert name.split("-")[0] in repr(ours)


def _total(result: Any) -> torch.Tensor:
    return sum((y.square().sum() for y in (result if isinstance(result, tuple) else (result,))), torch.zeros(()))


# ---- replace ----


class Special(nn.LayerNorm):
    pass


class TheirRMSNorm(nn.Module):
    pass


def test_replace() -> None:
    """The objects stay, so all that hangs on them does."""
    norm = nn.LayerNorm(6)
    model = nn.Sequential(nn.Linear(6, 6), norm, nn.ModuleDict({"act": nn.GELU(), "again": norm}), nn.ReLU())
    model[1].eval()
    seen = []
    model[1].register_forward_hook(lambda *_: seen.append(1))
    parameters, state = list(model.parameters()), copy.deepcopy(model.state_dict())
    report = nt.replace(model)
    assert report.replaced == [("1", "LayerNorm"), ("2.act", "GELU")]
    assert report.left == []
    assert str(report) == "replaced 2 modules:\n  1: LayerNorm\n  2.act: GELU"
    assert type(model[1]) is nt.LayerNorm
    assert model[1] is norm
    assert not norm.training
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert list(state) == list(model.state_dict())
    norm(torch.ones(2, 6))
    assert seen == [1]
    assert str(nt.replace(model)) == "replaced 0 modules"


def test_replace_says_what_it_leaves() -> None:
    patched, low = nn.LayerNorm(6), nn.LayerNorm(6).to(torch.float8_e5m2)
    patched.forward = lambda input: input  # type: ignore[method-assign]
    modules = [Special(6), TheirRMSNorm(), nn.LocalResponseNorm(2), nn.LazyBatchNorm2d(), patched, low]
    report = nt.replace(nn.Sequential(*modules))
    assert str(report).splitlines() == [
        "replaced 0 modules",
        "left 6 modules:",
        "  0: Special (a subclass of torch.nn.LayerNorm, whose forward may be another)",
        "  1: TheirRMSNorm (not a class of PyTorch)",
        "  2: LocalResponseNorm (normact has no such module)",
        "  3: LazyBatchNorm2d (its size is not known before its first forward)",
        "  4: LayerNorm (its forward was replaced on the instance)",
        "  5: LayerNorm (its weight is float8_e5m2)",
    ]


def test_replace_of_a_norm_itself_and_of_no_module() -> None:
    norm = nn.GroupNorm(2, 4)
    assert str(nt.replace(norm)) == "replaced 1 module:\n  (the model): GroupNorm"
    assert type(norm) is nt.GroupNorm
    with pytest.raises(TypeError, match=r"^replace: model is of type dict; expected a torch.nn.Module$"):
        nt.replace({})  # type: ignore[arg-type]


def test_a_replaced_model_trains_the_same() -> None:
    torch.manual_seed(2)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.GELU()]
    theirs = nn.Sequential(*layers, nn.Flatten(), nn.LayerNorm(8 * 16), nn.Linear(8 * 16, 4)).double()
    ours = copy.deepcopy(theirs)
    assert len(nt.replace(ours).replaced) == 5
    losses = []
    for model in (ours, theirs):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        generator = torch.Generator().manual_seed(3)
        for _ in range(3):
            x = torch.randn(4, 3, 8, 8, dtype=torch.float64, generator=generator).to(memory_format=torch.channels_last)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:3] == pytest.approx(losses[3:], rel=1e-9)
