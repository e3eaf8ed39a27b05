# SPDX-License-Identifier: Apache-2.0
"""normact.torch under torch.compile and torch.export: one operator a call, no graph break, any sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import normact.torch as nt
from torch_cases import FEW, Case, gradients, outputs

few_cases = pytest.mark.parametrize("case", FEW, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch.compiler.reset()


@few_cases
def test_aot_eager(case: Case) -> None:
    """Whole graph, any batch size, same bits as eager forward and backward."""
    compiled = torch.compile(case.ours, fullgraph=True, backend="aot_eager", dynamic=True)
    for repeat in (1, 3):
        tensors = case.tensors(torch.float32)
        tensors = [t.detach().repeat(repeat, *[1] * (t.ndim - 1)) if t.ndim > 1 else t.detach() for t in tensors]
        tensors = [t.requires_grad_() for t in tensors]
        for found, want in zip(outputs(compiled(*tensors)), outputs(case.ours(*tensors)), strict=True):
            torch.testing.assert_close(found, want, rtol=0, atol=0)
        for found, want in zip(gradients(compiled, tensors), gradients(case.ours, tensors), strict=True):
            torch.testing.assert_close(found, want, rtol=0, atol=0)


def test_inductor() -> None:
    """The default backend, with PyTorch's operations before and behind ours, in channels_last."""
    norm = nt.BatchNormAddReLU2d(4)
    eager = nt.BatchNormAddReLU2d(4)
    linear = torch.nn.Linear(6, 6)

    def model(module: Any, x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        y = module(linear(x) * 2, r)
        return nt.layer_norm(nt.gelu(y, bias=linear.bias), 6, linear.bias) + 1

    compiled = torch.compile(lambda x, r: model(norm, x, r), fullgraph=True)
    made = [torch.randn(2, 4, 3, 6).to(memory_format=torch.channels_last).requires_grad_() for _ in range(2)]
    found, want = compiled(*made), model(eager, *made)
    torch.testing.assert_close(found, want)
    for grads in zip(
        torch.autograd.grad(found.square().sum(), [*made, *linear.parameters()]),
        torch.autograd.grad(want.square().sum(), [*made, *linear.parameters()]),
        strict=True,
    ):
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
    for state in zip(norm.state_dict().values(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(*state)
    assert norm.num_batches_tracked.item() == 1


def test_compiled_modules_in_evaluation() -> None:
    """Without gradients too, and under autocast, whose state is part of the graph."""
    model = torch.nn.Sequential(nt.LayerNorm(6), nt.GELU(), nt.RMSNorm(6), nt.SwiGLU()).eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 3, 6)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(compiled(x), model(x))
    with torch.inference_mode():
        assert torch.equal(compiled(x), model(x))


def test_export() -> None:
    """An exported program holds one operator for each of our layers."""
    layers = [torch.nn.Conv2d(3, 4, 1), nt.BatchNorm2d(4), nt.GroupNormSiLU(2, 4), nt.LayerNorm(5), nt.GELU()]
    model = torch.nn.Sequential(*layers).eval()
    x = torch.randn(2, 3, 5, 5)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},))
    names = [str(node.target) for node in program.graph.nodes if "normact" in str(node.target)]
    assert names == [f"normact.{name}.default" for name in ("batch_norm", "group_norm", "layer_norm", "activation")]
    x = torch.randn(7, 3, 5, 5)
    torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.parametrize("module", [nt.SiLU(), nt.LayerNorm(5), nt.BatchNorm2d(4).eval()])
def test_jit_trace(module: torch.nn.Module) -> None:
    """A trace records the operator, not the memory that it wrote to."""
    first, second = torch.randn(2, 4, 5, 5), torch.randn(3, 4, 5, 5)
    with torch.no_grad():
        traced: Any = torch.jit.trace(module, first)
        torch.testing.assert_close(traced(second), module(second))


def test_shapes_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert nt.layer_norm(torch.empty(2, 8, device="meta"), 8).shape == (2, 8)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: nt.layer_norm(x, 4, x[0, :3]), ValueError, r"layer_norm: weight has shape \(3,\); expected \(4,\)"),
        (lambda x: nt.rms_norm(x, 4, residual=x[:2]), ValueError, r"residual has shape \(2, 4\); expected \(6, 4\)"),
        (lambda x: nt.layer_norm(x, 4, x[0].half()), ValueError, "weight has dtype float16; expected float32"),
        (
            lambda x: nt.layer_norm(x, 4, activation="gulu"),
            ValueError,
            "layer_norm: activation is 'gulu'; expected one",
        ),
        (lambda x: nt.gelu(x.int()), TypeError, "gelu: x has dtype int32; expected one of float64, float32"),
        (lambda x: nt.gelu(x, bias=x[0, :3]), ValueError, r"gelu: bias has shape \(3,\); expected \(4,\)"),
        (lambda x: nt.activation(x, "gulu"), ValueError, "activation: kind is 'gulu'; expected one of"),
        (lambda x: nt.swiglu(x[:, :3]), ValueError, "gated: gate has size 3 along axis -1; expected an even size"),
        (lambda x: nt.swiglu(x, x[:2]), ValueError, r"gated: up has shape \(2, 4\); expected \(6, 4\)"),
        (lambda x: nt.swiglu(x, x.half()), ValueError, "gated: up has dtype float16; expected float32"),
        (lambda x: nt.group_norm(x, 3), ValueError, "group_norm: x has size 4 along axis 1; expected a multiple of"),
        (lambda x: nt.group_norm(x[0], 2), ValueError, r"group_norm: x has shape \(4,\); expected at least 2 axes"),
        (lambda x: nt.batch_norm(x, None, None, x[0, :2], training=True), ValueError, r"weight has shape \(2,\)"),
        (lambda x: nt.batch_norm(x, x[0, :3], x[0]), ValueError, r"running_mean has shape \(3,\); expected \(4,\)"),
        (lambda x: nt.batch_norm(x, None, None, training=True, addend=x.T), ValueError, r"addend has shape \(4, 6\)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_tensors_without_memory(call: Any, error: type[Exception], match: str) -> None:
    """What `torch.export` would else find out when its program runs."""
    with pytest.raises(error, match=match):
        call(torch.empty(6, 4, device="meta"))


def test_make_fx_and_fake_tensors_see_operators() -> None:
    """Modes that watch operations: the direct ways past the dispatcher stand back."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda x: nt.silu(x))(torch.randn(3))
    assert "normact.activation" in graph.code
    with FakeTensorMode():
        fake = nt.layer_norm(torch.empty(3, 4), 4)
    assert fake.shape == (3, 4)
    assert nt.layer_norm(torch.empty(3, 4, device="meta"), 4).is_meta


# ---- opcheck: schemas, fakes, registrations and autograd of every operator ----


def _samples() -> dict[str, tuple[Any, ...]]:
    x, r, image = torch.randn(3, 4, 6), torch.randn(3, 4, 6), torch.randn(2, 4, 3, 2)
    w, c = torch.randn(6), torch.randn(4)
    image = image.to(memory_format=torch.channels_last)
    for tensor in (x, r, image, w, c):
        tensor.requires_grad_()
    running = (torch.zeros(4), torch.ones(4))
    row = ([-1], 1e-5, 0.0, "gelu", None)
    channel = (1e-5, "silu", None)
    return {
        "layer_norm": (x, w, w, *row),
        "rms_norm": (x, x.detach()[0].clone(), None, [-2, -1], *row[1:]),
        "add_layer_norm": (x, r, None, None, *row),
        "add_rms_norm": (x, r, w, w, *row),
        "mixed_add_layer_norm": (x.detach().bfloat16().requires_grad_(), r, w, None, *row),
        "mixed_add_rms_norm": (x.detach().half().requires_grad_(), r, None, w, *row),
        "activation": (x, c, "relu", -2, None, None, None),
        "gated": (x, None, w, None, "silu", "interleaved", -1, None, None, None, 1.0, 0.0),
        "group_norm": (image, c, c, 2, *channel),
        "instance_norm_update": (image, c, None, *running, 4, *channel, 0.1),
        "batch_norm": (image, c, c, *running, False, *channel),
        "batch_norm_add": (image, image, c, c, None, None, True, 1e-5, "relu", None),
        "batch_norm_update": (image, c, c, *running, torch.tensor(1), True, *channel, None),
        "batch_norm_add_update": (image, image, c, c, *running, None, True, *channel, 0.1),
    }


@pytest.mark.parametrize("name", sorted(_samples()))
def test_opcheck(name: str) -> None:
    torch.library.opcheck(getattr(torch.ops.normact, name).default, _samples()[name])


def test_every_operator_is_checked() -> None:
    from torch._C import _dispatch_get_all_op_names

    registered = {name.removeprefix("normact::") for name in _dispatch_get_all_op_names() if "normact::" in name}
    assert {name for name in registered if not name.endswith("_backward")} == set(_samples())
    assert registered - set(_samples()) == {f"{name}_backward" for name in _samples()}


@pytest.mark.parametrize("layout", ["split", "interleaved"])
@pytest.mark.parametrize("axis", [1, 3])
def test_opcheck_of_packed_images(layout: str, axis: int) -> None:
    """y lies as x does, in the operator and in its fake."""
    dense = torch.randn(2, 4, 3, 6)
    for x in (dense, dense.to(memory_format=torch.channels_last), dense.transpose(0, 3).clone().transpose(0, 3)):
        rest = (None, None, None, "silu", layout, axis, None, None, None, None, 0.0)
        torch.library.opcheck(torch.ops.normact.gated.default, (x.requires_grad_(), *rest))
        with torch._subclasses.FakeTensorMode() as mode:
            fake = torch.ops.normact.gated.default(mode.from_tensor(x), *rest)
        assert fake.stride() == torch.ops.normact.gated.default(x, *rest).stride()


def test_opcheck_of_rows_in_another_order() -> None:
    """Statistics are row-major in the operator, as in its fake, whatever x's layout."""
    x = torch.randn(2, 4, 3, 6).to(memory_format=torch.channels_last).requires_grad_()
    for op in (torch.ops.normact.layer_norm, torch.ops.normact.rms_norm):
        torch.library.opcheck(op.default, (x, None, None, [-1], 1e-5, 0.0, None, None))
