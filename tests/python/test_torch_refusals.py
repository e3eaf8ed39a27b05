# SPDX-License-Identifier: Apache-2.0
"""What `normact.torch` refuses, and with what sentence: nothing is silently left out or written."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import normact.torch as nt

COLS = 6


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (4, COLS)))


class Subclass(torch.Tensor):
    """Adds nothing to a tensor."""


class SpecialParameter(nn.Parameter):
    """Adds nothing to a parameter."""


# ---- Forward mode ----


def dual(watched: bool) -> Any:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(values(), values())
        if not watched:
            return nt.layer_norm(x, COLS)
        with FlopCounterMode(display=False):
            return nt.layer_norm(x, COLS)


def dual_gradient(function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    x = values().requires_grad_()
    y = function(x)
    with forward_ad.dual_level():
        return torch.autograd.grad(y, x, forward_ad.make_dual(values(), values()))


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.func.linearize(nt.gelu, values()),
        lambda: torch.func.jvp(nt.gelu, (values(),), (values(),)),
        lambda: torch.func.jacfwd(nt.silu)(values()),
        lambda: torch.func.hessian(lambda x: nt.silu(x).sum())(values()),
        lambda: torch.compile(lambda x: torch.func.jvp(nt.gelu, (x,), (x,)), backend="aot_eager")(values()),
        lambda: dual(watched=False),
        lambda: dual(watched=True),
        lambda: dual_gradient(nt.silu),
        lambda: dual_gradient(lambda x: nt.layer_norm(x, COLS)),
    ],
    ids=["linearize", "jvp", "jacfwd", "hessian", "compiled", "dual", "watched dual", "gradient", "gradient of a norm"],
)
def test_forward_mode(call: Callable[[], Any]) -> None:
    """PyTorch would take a missing tangent for zero."""
    with pytest.raises(NotImplementedError, match="was called in forward mode .*; expected reverse mode"):
        call()


def test_forward_mode_of_others() -> None:
    """What has no tangent is computed beside what has."""
    x = values()
    with forward_ad.dual_level():
        forward_ad.make_dual(values(), values())
        torch.testing.assert_close(nt.layer_norm(x, COLS), nn.functional.layer_norm(x, (COLS,)))
    found: Any = torch.func.jvp(lambda w: nt.layer_norm(x, COLS) * w, (torch.ones(COLS),), (torch.ones(COLS),))
    torch.testing.assert_close(found[1], nn.functional.layer_norm(x, (COLS,)))
    found = torch.func.hessian(lambda w: (nt.silu(x) * w).square().sum())(torch.ones(COLS))
    torch.testing.assert_close(found, torch.diag(2 * nn.functional.silu(x).square().sum(0)))


# ---- Subclasses, traces ----


def test_subclasses_that_add_nothing() -> None:
    """As PyTorch's functions do, they give such a tensor back; a parameter and a gradient of such a class are taken."""
    x = values()
    assert type(nt.gelu(x.as_subclass(Subclass))) is Subclass
    norm, theirs = nt.LayerNorm(COLS), nn.LayerNorm(COLS)
    norm.weight = SpecialParameter(torch.ones(COLS))
    torch.testing.assert_close(norm(x), theirs(x))
    for function in (norm, nt.gelu):
        one, other = (x.clone().requires_grad_() for _ in range(2))
        function(one).backward(torch.ones_like(x).as_subclass(Subclass))
        function(other).backward(torch.ones_like(x))
        torch.testing.assert_close(one.grad, other.grad)


@pytest.mark.parametrize("export", [False, True], ids=["trace", "export"])
def test_traced_in_place_activations_have_gradients(export: bool) -> None:
    """Also where they were traced without any."""

    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nt.silu(x * 2, True)

    x = values().requires_grad_()
    with torch.no_grad():
        traced: Any = torch.export.export(Doubled(), (x,)).module() if export else torch.jit.trace(Doubled(), x)
    (found,) = torch.autograd.grad(traced(x).sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(nn.functional.silu(x * 2).sum(), x)[0])


@pytest.mark.parametrize("make", [nt.BatchNorm1d, lambda size: nt.InstanceNorm1d(size, track_running_stats=True)])
def test_exports_in_training_can_be_saved(make: Callable[[int], nn.Module]) -> None:
    module, x = make(5), values(3, 5, 6)
    file = io.BytesIO()
    torch.export.save(torch.export.export(module, (x,)), file)
    file.seek(0)
    again = torch.export.load(file).module()
    torch.testing.assert_close(again(x), module(x))
    torch.testing.assert_close(dict(again.named_buffers()), dict(module.named_buffers()))


# ---- Arguments ----


def test_running_statistics_have_no_gradient() -> None:
    x, variance = values(), torch.ones(COLS)
    with pytest.raises(ValueError, match=r"^batch_norm: running_mean requires a gradient, .*; expected a tensor that"):
        nt.batch_norm(x, torch.zeros(COLS, requires_grad=True), variance)
    with pytest.raises(TypeError, match="^batch_norm: running_var has dtype int64; expected a floating-point one"):
        nt.batch_norm(x, torch.zeros(COLS), variance.long(), training=True)


@pytest.mark.parametrize("value", [3, np.ones(COLS, np.float32)], ids=["int", "numpy"])
def test_what_is_no_tensor_under_autocast(value: Any) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(TypeError, match=r"^layer_norm: weight is of type \S+; expected a torch.Tensor"):
            nt.layer_norm(values(), COLS, value)
        with pytest.raises(TypeError, match=r"^gelu: bias is of type \S+; expected a torch.Tensor"):
            nt.gelu(values(), bias=value)


def test_a_wide_addend_under_autocast() -> None:
    """Statistics are those of what is computed."""
    with torch.autocast("cpu", torch.bfloat16):
        mean, variance = torch.zeros(COLS), torch.ones(COLS)
        y = nt.batch_norm(values(), mean, variance, training=True, addend=values().double())
    assert y.dtype is torch.float64 and mean.any()


def test_only_plain_modules_are_made_synchronous() -> None:
    """A forward of their own, or a size that is not known yet, would be lost."""

    class Frozen(nn.BatchNorm2d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return input

    class Own(nn.modules.batchnorm._BatchNorm):
        pass

    model: Any = nn.Sequential(Frozen(3), nn.LazyBatchNorm1d(), nn.BatchNorm1d(3), nt.BatchNormReLU2d(3))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        nt.SyncBatchNorm.convert_sync_batchnorm(model)
        nt.SyncBatchNorm.convert_sync_batchnorm(Own(3))
    assert [type(each) for each in model[2:]] == [nt.SyncBatchNorm] * 2
    assert [type(each).__name__ for each in model[:2]] == ["Frozen", "LazyBatchNorm1d"]
    assert [str(each.message).partition(":")[0] for each in found] == ["convert_sync_batchnorm"] * 3
    assert str(found[-1].message).endswith("left the module itself, a Own: not a class of PyTorch")


def test_complex_modules_are_left() -> None:
    report = nt.replace(nn.Sequential(nn.RMSNorm(COLS, dtype=torch.complex64)))
    assert "RMSNorm (its weight is complex64)" in str(report)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"weight": torch.ones(5)}, r"sync_batch_norm: weight has shape \(5,\); expected \(6,\)"),
        ({"weight": 3}, "sync_batch_norm: weight is of type builtins.int; expected a torch.Tensor"),
        ({"activation": "gulu"}, "activation is 'gulu'; expected one of"),
        ({"addend": torch.ones(4, 5)}, r"sync_batch_norm: addend has shape \(4, 5\); expected \(4, 6\)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_synchronous_batch_norm_writes_nothing(options: dict[str, Any], match: str) -> None:
    """It refuses before it meets the other processes."""
    distributed: Any = torch.distributed
    function: Any = nt.sync_batch_norm  # whose type is lost in its decorator
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mean, variance, batches = torch.zeros(COLS), torch.ones(COLS), torch.tensor(0)
        with pytest.raises((ValueError, TypeError), match=match):
            function(values(), mean, variance, num_batches_tracked=batches, **options)
        assert not mean.any() and not batches and bool((variance == 1).all())
    finally:
        distributed.destroy_process_group()
