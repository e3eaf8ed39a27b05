# SPDX-License-Identifier: Apache-2.0
"""normact.torch on a residual stream of float32 beside tensors in 16 bits, beside PyTorch's own words in float32."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import functional

import normact.torch as nt

dtypes = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
kinds = pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
COLS = 48


def ours(kind: str, x: Any, residual: Any, weight: Any = None, bias: Any = None, activation: Any = None) -> Any:
    norm = nt.layer_norm if kind == "layer_norm" else nt.rms_norm
    return norm(x, COLS, weight, eps=1e-3, bias=bias, residual=residual, activation=activation)


def theirs(kind: str, x: Any, residual: Any, weight: Any = None, bias: Any = None, activation: Any = None) -> Any:
    """The same in float32, rounded where the contract says so."""
    total = x.float() + residual
    scale, shift = (None if each is None else each.float() for each in (weight, bias))
    if kind == "layer_norm":
        y = functional.layer_norm(total, (COLS,), scale, shift, 1e-3)
    else:
        y = functional.rms_norm(total, (COLS,), scale, 1e-3) + (0 if shift is None else shift)
    y = y if activation is None else functional.silu(y)
    return y.to(x.dtype), total


def tensors(dtype: torch.dtype, parameters: torch.dtype | None, requires_grad: bool = True) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(5, 4, COLS), (5, 4, COLS), *([] if parameters is None else [(COLS,), (COLS,)])]
    made = [torch.randn(shape, generator=generator) for shape in shapes]
    low = [made[0].to(dtype), made[1], *(each.to(parameters) for each in made[2:])]
    return [each.requires_grad_(requires_grad) for each in low]


def seeds(found: Any) -> list[torch.Tensor]:
    return [torch.linspace(-1, 2, y.numel()).reshape(y.shape).to(y.dtype) for y in found]


def close(found: torch.Tensor, want: torch.Tensor) -> None:
    """Equal but for the arithmetic of float32, and in 16 bits for a value that it takes over a midpoint: one unit."""
    assert found.dtype == want.dtype
    bound = 2e-5 if found.dtype == torch.float32 else 1.01 * torch.finfo(found.dtype).eps
    torch.testing.assert_close(found, want, rtol=bound, atol=2e-5)


@dtypes
@kinds
@pytest.mark.parametrize("parameters", [None, "low", torch.float32], ids=str)
@pytest.mark.parametrize("activation", [None, "silu"])
def test_values_and_gradients(kind: str, dtype: torch.dtype, parameters: Any, activation: Any) -> None:
    given = tensors(dtype, dtype if parameters == "low" else parameters)
    found, want = ours(kind, *given, activation=activation), theirs(kind, *given, activation=activation)
    assert (found[0].dtype, found[1].dtype) == (dtype, torch.float32)
    assert torch.equal(found[1], want[1])
    close(found[0], want[0])
    grads, expected = (torch.autograd.grad(each, given, seeds(each)) for each in (found, want))
    for name, grad, other in zip(("dx", "dresidual", "dweight", "dbias"), grads, expected, strict=False):
        assert grad.dtype == other.dtype, name
        close(grad, other)
    assert torch.equal(grads[0], grads[1].to(dtype)), "dx is the residual's gradient, rounded once"


@dtypes
@kinds
def test_a_loss_of_one_output(kind: str, dtype: torch.dtype) -> None:
    """The gradient of the other is missing, not zeros of its dtype."""
    for used in (0, 1):
        given = tensors(dtype, torch.float32)
        found, want = ours(kind, *given)[used], theirs(kind, *given)[used]
        seed = seeds([found])
        for grad, other in zip(
            torch.autograd.grad(found, given, seed, allow_unused=True),
            torch.autograd.grad(want, given, seed, allow_unused=True),
            strict=True,
        ):
            if other is None:
                assert grad is None or not grad.any()
            else:
                assert grad.dtype == other.dtype
                close(grad, other)


@kinds
def test_frozen_tensors(kind: str) -> None:
    for wanted in range(4):
        given = tensors(torch.bfloat16, torch.bfloat16, requires_grad=False)
        given[wanted].requires_grad_()
        found, want = ours(kind, *given), theirs(kind, *given)
        # The sum hangs on x and the residual alone.
        used = slice(0, 2 if wanted < 2 else 1)
        seed = seeds(found)[used]
        grad, other = (torch.autograd.grad(each[used], given[wanted], seed)[0] for each in (found, want))
        close(grad, other)


@dtypes
@kinds
def test_compiled(kind: str, dtype: torch.dtype) -> None:
    """One operator, no graph break, any batch size, the bits of eager."""
    torch.compiler.reset()

    def run(x: Any, residual: Any, weight: Any, bias: Any) -> Any:
        return ours(kind, x, residual, weight, bias)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (5, 3):
        given = [each.detach()[:rows].requires_grad_() if each.ndim > 1 else each for each in tensors(dtype, dtype)]
        found, want = compiled(*given), ours(kind, *given)
        assert [y.dtype for y in found] == [dtype, torch.float32]
        for pair in zip(found, want, strict=True):
            assert torch.equal(*pair)
        grads = [torch.autograd.grad(each, given, seeds(each)) for each in (found, want)]
        for pair in zip(*grads, strict=True):
            assert torch.equal(*pair)
        only = [torch.autograd.grad(each[1].sum(), given[1])[0] for each in (compiled(*given), ours(kind, *given))]
        assert torch.equal(only[0], only[1])


@kinds
def test_func(kind: str) -> None:
    """torch.func's gradients, alone and for each sample, where only the inputs are batched and where all are."""
    given = tensors(torch.bfloat16, torch.float32, requires_grad=False)

    def total(function: Any) -> Any:
        def run(*args: Any) -> torch.Tensor:
            y, stream = function(kind, *args)
            return y.float().square().sum() + stream.square().sum()

        return torch.func.grad(run, argnums=(0, 1, 2, 3))

    for pair in zip(total(ours)(*given), total(theirs)(*given), strict=True):
        close(*pair)
    for dims in ((0, 0, None, None), (0, None, None, None), (0, 0, 0, 0)):
        args = [
            each if dim is None else each if i < 2 else torch.stack([each * k for k in (1, -1, 2, 3, 0.5)])
            for i, (each, dim) in enumerate(zip(given, dims, strict=True))
        ]
        args = [each[0] if i == 1 and dims[1] is None else each for i, each in enumerate(args)]
        found, want = (torch.func.vmap(total(function), dims)(*args) for function in (ours, theirs))
        for pair in zip(found, want, strict=True):
            close(*pair)


def test_vmap_is_one_call() -> None:
    x, residual = torch.randn(5, 3, COLS).bfloat16(), torch.randn(5, 3, COLS)
    found = torch.vmap(lambda x, r: ours("rms_norm", x, r))(x, residual)
    for pair in zip(found, ours("rms_norm", x, residual), strict=True):
        assert torch.equal(*pair)


@kinds
@pytest.mark.parametrize("compiled", [False, True])
def test_a_transformer_under_autocast(kind: str, compiled: bool) -> None:
    """The stream stays float32, each norm gives the matmul behind it its dtype, and nothing is cast on the way."""
    norm_type = nt.AddLayerNorm if kind == "layer_norm" else nt.AddRMSNorm
    torch.manual_seed(7)
    norm, linear = norm_type(COLS), torch.nn.Linear(COLS, COLS)

    def step(norm: Any, linear: Any, x: torch.Tensor, stream: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            low = linear(x)
            y, total = norm(low, stream)
            again, total = norm(linear(y), total)
            return y, again, total

    def plain(norm: Any, linear: Any, x: torch.Tensor, stream: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            total = linear(x) + stream
            y = torch.nn.Module.__call__(norm, total).bfloat16()
            total = linear(y) + total
            return y, norm(total).bfloat16(), total

    other = (torch.nn.LayerNorm if kind == "layer_norm" else torch.nn.RMSNorm)(COLS)
    their_linear = copy.deepcopy(linear)
    x, stream = torch.randn(6, COLS), torch.randn(6, COLS).requires_grad_()
    torch.compiler.reset()
    run = torch.compile(step, fullgraph=True, backend="aot_eager") if compiled else step
    found, want = run(norm, linear, x, stream), plain(other, their_linear, x, stream)
    assert [each.dtype for each in found] == [torch.bfloat16, torch.bfloat16, torch.float32]
    for pair in zip(found, want, strict=True):
        torch.testing.assert_close(*pair, rtol=2**-7, atol=2**-6)
    total = [torch.stack([each.float().square().sum() for each in result]).sum() for result in (found, want)]
    grads = [
        torch.autograd.grad(each, [stream, *of_norm.parameters(), *of_linear.parameters()])
        for each, of_norm, of_linear in zip(total, (norm, other), (linear, their_linear), strict=True)
    ]
    for mine, other_grad in zip(*grads, strict=True):
        assert mine.dtype == torch.float32
        assert (mine - other_grad).norm() <= 2**-6 * other_grad.norm()


def test_modules_without_autocast() -> None:
    """A model in bfloat16 with its stream in float32, and what is not mixed."""
    norm = nt.AddRMSNorm(COLS).bfloat16()
    x, stream, _, _ = tensors(torch.bfloat16, torch.float32)
    y, total = norm(x, stream)
    assert (y.dtype, total.dtype) == (torch.bfloat16, torch.float32)
    y, total = norm(x, x)
    assert (y.dtype, total.dtype) == (torch.bfloat16, torch.bfloat16)
    y, total = nt.AddLayerNorm(COLS)(stream, stream)
    assert (y.dtype, total.dtype) == (torch.float32, torch.float32)


def test_fakes_and_meta_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        y, total = ours("layer_norm", torch.empty(3, COLS, dtype=torch.bfloat16), torch.empty(3, COLS))
    assert (y.dtype, total.dtype, total.shape) == (torch.bfloat16, torch.float32, (3, COLS))
    y, total = ours(
        "rms_norm",
        torch.empty(3, COLS, dtype=torch.float16, device="meta"),
        torch.empty(3, COLS, device="meta"),
    )
    assert (y.dtype, total.dtype) == (torch.float16, torch.float32)


def test_wrong_dtypes() -> None:
    x, stream, weight, _ = tensors(torch.bfloat16, torch.float16)
    with pytest.raises(ValueError, match="^layer_norm: residual has dtype float64; expected bfloat16 or float32"):
        ours("layer_norm", x, stream.double())
    with pytest.raises(ValueError, match="^rms_norm: weight has dtype float16; expected bfloat16 or float32"):
        ours("rms_norm", x, stream, weight)
    with pytest.raises(TypeError, match=r"^layer_norm: residual is of type \S+; expected a torch.Tensor"):
        ours("layer_norm", x, stream.tolist())
