# SPDX-License-Identifier: Apache-2.0
"""normact.torch inside what PyTorch builds on autograd: torch.func, autocast, checkpointing, hooks, layouts."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import normact
import normact.torch as nt
from torch_cases import FEW, Case, outputs

few_cases = pytest.mark.parametrize("case", FEW, ids=lambda case: case.name)


def _total(result: Any) -> torch.Tensor:
    return sum((y.square().sum() for y in outputs(result)), torch.zeros((), dtype=torch.float64))


@few_cases
def test_func_grad(case: Case) -> None:
    tensors = [tensor.detach() for tensor in case.tensors()]
    every = tuple(range(len(tensors)))
    found = torch.func.grad(lambda *args: _total(case.ours(*args)), argnums=every)(*tensors)
    want = torch.func.grad(lambda *args: _total(case.theirs(*args)), argnums=every)(*tensors)
    for grads in zip(found, want, strict=True):
        torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-11)


@few_cases
@pytest.mark.parametrize("batched", ["first", "all"])
def test_func_vmap_of_grad(case: Case, batched: str) -> None:
    """Gradients per sample: with the input alone batched, along its last dimension, and with every tensor."""
    if "batch_norm-train" in case.name:
        pytest.skip("PyTorch itself refuses to update running statistics under vmap")
    tensors = [tensor.detach() for tensor in case.tensors()]
    all_of_them = batched == "all"
    dims = tuple(-1 if i == 0 else 0 if all_of_them else None for i in range(len(tensors)))
    given = [
        tensor if dim is None else torch.stack([tensor, -tensor, 2 * tensor], dim) for tensor, dim in zip(tensors, dims)
    ]
    every = tuple(range(len(tensors)))
    found = torch.func.vmap(torch.func.grad(lambda *a: _total(case.ours(*a)), argnums=every), dims)(*given)
    for i in range(3):
        member = [arg if dim is None else arg.select(dim, i) for arg, dim in zip(given, dims)]
        want = torch.func.grad(lambda *a: _total(case.theirs(*a)), argnums=every)(*member)
        for grads in zip([g[i] for g in found], want, strict=True):
            torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-11)


def test_func_vmap_is_one_call() -> None:
    """Of a norm whose weight is not batched."""
    x, w = torch.randn(5, 3, 4), torch.randn(4)
    torch.testing.assert_close(torch.vmap(lambda x: nt.layer_norm(x, 4, w))(x), nt.layer_norm(x, 4, w), rtol=0, atol=0)
    y, total = torch.vmap(lambda x, r: nt.rms_norm(x, 4, w, residual=r), (0, None))(x, x[0])
    assert torch.equal(total, x + x[0])
    assert torch.equal(y, nt.rms_norm(total, 4, w, eps=None))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    ("ours", "shapes"),
    [
        (nt.gelu, [(3, 4)]),
        (lambda x, w: nt.layer_norm(x, 4, w), [(3, 4), (4,)]),
        (lambda x, r, w: nt.rms_norm(x, 4, w, residual=r), [(3, 4), (3, 4), (4,)]),
        (lambda x: nt.group_norm(x, 2), [(3, 4)]),
        (lambda x, mean, var: nt.batch_norm(x, mean, var, training=True), [(3, 4), (4,), (4,)]),
    ],
    ids=["gelu", "layer_norm", "rms_norm", "group_norm", "batch_norm"],
)
def test_func_vmap_over_none(ours: Any, shapes: list[tuple[int, ...]], dim: int) -> None:
    """The results of an empty batch have the shapes and dtypes of those of others."""
    one = [torch.ones(shape).bfloat16() if shape == (3, 4) else torch.ones(shape) for shape in shapes]
    want = outputs(ours(*one))
    none = [tensor.new_empty((*tensor.shape[:dim], 0, *tensor.shape[dim:])) for tensor in one]
    found = outputs(torch.vmap(ours, in_dims=dim)(*none))
    assert [(y.shape, y.dtype) for y in found] == [((0, *y.shape), y.dtype) for y in want]


def test_func_gradients_of_none() -> None:
    x, w = torch.randn(3, 4), torch.randn(4)
    assert torch.func.jacrev(lambda x: nt.gelu(x)[:0])(x).shape == (0, 4, 3, 4)
    each = torch.vmap(torch.func.grad(lambda w, x: nt.layer_norm(x, 4, w).sum()), (None, 0))
    assert each(w, x.new_empty(0, 3, 4)).shape == (0, 4)


@pytest.mark.parametrize("make_graph", [False, True])
@few_cases
def test_gradients_that_negate_lazily(case: Case, make_graph: bool) -> None:
    """As that of an imaginary part under a conjugate does."""
    tensors = case.tensors()
    found = outputs(case.ours(*tensors))
    seeds = [torch.randn_like(y) for y in found]
    lazy = [torch.complex(torch.zeros_like(seed), -seed).conj().imag for seed in seeds]
    assert all(seed.is_neg() for seed in lazy)
    want = torch.autograd.grad(found, tensors, seeds, retain_graph=True)
    for grads in zip(torch.autograd.grad(found, tensors, lazy, create_graph=make_graph), want, strict=True):
        assert torch.equal(*grads)


@few_cases
def test_differentiated_twice(case: Case) -> None:
    """Create_graph itself is right; a gradient of the gradient is refused with a sentence."""
    tensors = case.tensors()
    message = r"^normact.torch: \w+ was differentiated twice, and its backward has no gradient of its own; expected "
    plain = torch.autograd.grad(_total(case.ours(*tensors)), tensors)
    first = torch.autograd.grad(_total(case.ours(*tensors)), tensors, create_graph=True)
    for grads in zip(first, plain, strict=True):
        assert torch.equal(*grads)
    with pytest.raises(NotImplementedError, match=message):
        torch.autograd.grad(_total(first), tensors)
    if "batch_norm-train" not in case.name:
        inner = torch.func.grad(lambda *a: _total(case.ours(*a)))
        with pytest.raises(NotImplementedError, match=message):
            torch.func.grad(lambda *a: inner(*a).sum())(*[t.detach() for t in tensors])


@few_cases
@pytest.mark.filterwarnings("ignore")
def test_batched_gradients_are_refused(case: Case) -> None:
    """The batches that torch.autograd makes itself, unlike torch.func, are known to PyTorch's own operations alone."""
    tensors = case.tensors()
    first = outputs(case.ours(*tensors))[0]
    with pytest.raises(NotImplementedError, match=r"^normact.torch: \w+ was given a batch of gradients .*; expected "):
        torch.autograd.grad(first, tensors, torch.ones(2, *first.shape, dtype=first.dtype), is_grads_batched=True)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "gelu"])
def test_saved_tensors_are_unpacked_once(name: str) -> None:
    """Also where the backward fails: what unpacks them, such as a checkpoint, may refuse to do so twice."""
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    function = getattr(nt, name)
    shape = () if name == "gelu" else ((8,),)
    unpacked: list[torch.Tensor] = []

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        unpacked.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        y = function(x, *shape)
    with pytest.raises(NotImplementedError, match="batch of gradients"):
        torch.autograd.grad(y, x, torch.ones(2, *y.shape, dtype=y.dtype), is_grads_batched=True, retain_graph=True)
    count = len(unpacked)
    torch.autograd.grad(y, x, torch.ones_like(y))
    assert len(unpacked) == 2 * count > 0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_are_refused(layout: torch.layout) -> None:
    x = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=layout)
    w = torch.ones(4)
    calls: list[Any] = [
        lambda x: nt.layer_norm(x, 4),
        lambda x: nt.gelu(x, bias=w),
        nt.swiglu,
        lambda x: nt.geglu(x, x),
        lambda x: nt.group_norm(x, 2),
        nt.instance_norm,
        lambda x: nt.batch_norm(x, w, w),
    ]
    for call, grad in itertools.product(calls, (False, True)):
        with pytest.raises(TypeError, match=r"^\w+: (input|x|gate) is a nested tensor; expected a dense one"):
            call(x.detach().requires_grad_(grad))


def test_forward_mode_is_refused() -> None:
    x = torch.randn(3, 4)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="forward AD|forward mode|jvp"):
        nt.layer_norm(torch.autograd.forward_ad.make_dual(x, x), 4)


# ---- Autocast ----


def test_autocast_keeps_dtypes() -> None:
    """Float32 arithmetic, the dtype of the input: that of the matmul before it."""
    linear, norm = torch.nn.Linear(6, 6), nt.LayerNorm(6)
    x = torch.randn(3, 6, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        low = linear(x)
        assert low.dtype == torch.bfloat16
        y = norm(low)
        assert nt.silu(low, False, bias=linear.bias).dtype == torch.bfloat16
        assert norm(x).dtype == torch.float32
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert norm.weight.grad.dtype == torch.float32
    with torch.no_grad():
        want = torch.nn.functional.layer_norm(low.float(), (6,), norm.weight, norm.bias).bfloat16()
    torch.testing.assert_close(y.detach(), want, rtol=2**-8, atol=1e-5)


def test_autocast_of_a_mixture() -> None:
    """A residual stream of float32 is added to, not rounded, and the norm is for the next matmul; outside of autocast
    other mixtures are an error.
    """
    low, high = torch.randn(3, 6).bfloat16().requires_grad_(), torch.randn(3, 6).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y, total = nt.rms_norm(low, 6, torch.ones(6).bfloat16(), residual=high)
        assert nt.swiglu(low, high).dtype == torch.float32
    assert torch.equal(total, low + high)
    assert y.dtype == torch.bfloat16
    (y.sum() + total.sum()).backward()
    assert (low.grad.dtype, high.grad.dtype) == (torch.bfloat16, torch.float32)
    with pytest.raises(ValueError, match=r"^rms_norm: residual .*expected"):
        nt.rms_norm(high, 6, residual=low)


# ---- Memory layouts, modes, checkpointing ----


@pytest.mark.parametrize("requires_grad", [False, True])
def test_layouts_are_kept(requires_grad: bool) -> None:
    """Channels_last, transposed and row-strided inputs without a copy; gradients lie as the input does."""
    image = torch.randn(2, 4, 5, 3).to(memory_format=torch.channels_last).requires_grad_(requires_grad)
    for y in (nt.group_norm(image, 2), nt.batch_norm(image, None, None, training=True), nt.gelu(image)):
        assert y.is_contiguous(memory_format=torch.channels_last)
        if requires_grad:
            assert torch.autograd.grad(y.sum(), image)[0].is_contiguous(memory_format=torch.channels_last)
    turned = torch.randn(6, 4).t().requires_grad_(requires_grad)
    assert nt.silu(turned).stride() == turned.stride()
    strided = torch.randn(4, 12)[:, ::2].requires_grad_(requires_grad)
    want = torch.nn.functional.layer_norm(strided, (6,))
    found = nt.layer_norm(strided, 6)
    torch.testing.assert_close(found, want)
    if requires_grad:  # a sum's gradient is one number, expanded
        grads = [torch.autograd.grad((y * y).sum() + y.sum(), strided)[0] for y in (found, want)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@few_cases
def test_checkpointing(case: Case) -> None:
    if "batch_norm-train" in case.name:
        pytest.skip("a recomputed forward would update running statistics twice, in PyTorch too")
    tensors = case.tensors()
    want = torch.autograd.grad(_total(case.ours(*tensors)), tensors)
    for reentrant in (False, True):
        for tensor in tensors:
            tensor.grad = None
        _total(checkpoint(case.ours, *tensors, use_reentrant=reentrant)).backward()
        for tensor, gradient in zip(tensors, want, strict=True):
            torch.testing.assert_close(tensor.grad, gradient, rtol=0, atol=0)


def test_inference_mode_and_frozen_inputs() -> None:
    """No graph without need, and gradients for those tensors alone that want one."""
    x, w = torch.randn(3, 4), torch.randn(4, requires_grad=True)
    with torch.inference_mode():
        assert nt.layer_norm(x, 4, w).is_inference()
    assert not nt.layer_norm(x, 4, w.detach()).requires_grad
    y, total = nt.layer_norm(x, 4, w, residual=x)
    y.sum().backward()
    assert w.grad is not None
    assert x.grad is None
    x.requires_grad_()
    for output in nt.layer_norm(x, 4, w, residual=torch.ones(3, 4)):  # each alone
        want = torch.nn.functional.layer_norm(x + 1, (4,), w) if output is not total else x + 1
        assert want.shape == output.shape
    _, total = nt.layer_norm(x, 4, w, residual=torch.ones(3, 4))
    (only,) = torch.autograd.grad(total.sum(), x)
    torch.testing.assert_close(only, torch.ones(3, 4))


def test_in_place_activation() -> None:
    """As PyTorch: the input is written, its gradient is that of the value before."""
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    for ours, theirs in ((nt.silu, torch.nn.functional.silu), (nt.relu, torch.nn.functional.relu)):
        found = []
        for function in (ours, theirs):
            given = x * 1
            y = function(given, True)
            assert y is given
            found.append(torch.autograd.grad(y.square().sum(), x)[0])
        torch.testing.assert_close(*found)
    with torch.no_grad():
        given = x.clone()
        assert nt.mish(given, True) is given
        torch.testing.assert_close(given, torch.nn.functional.mish(x))


OVERWRITING: dict[str, Any] = {
    "one": lambda y: normact.layer_norm(y, out=y),
    "several": lambda y: normact.layer_norm(y, out=(y, None, torch.empty(3), None), return_stats=True),
    "activation": lambda y: normact.gelu(y, out=y),
    "gate": lambda y: normact.swiglu(y, torch.ones(3, 4), out=y),
    "group": lambda y: normact.group_norm(y, 2, out=y),
    "gradient": lambda y: normact.rms_norm_backward(torch.ones(3, 4), y, rstd=torch.ones(3), out=y),
    "statistics": lambda y: normact.batch_norm_statistics(torch.ones(3, 4), out=y),
    "merged": lambda y: normact.batch_norm_merge(torch.ones(2, 3, 12), out=(y.view(12), None)),
    "sums": lambda y: normact.batch_norm_reduce(
        torch.ones(3, 6), torch.ones(3, 6), mean=torch.ones(6), rstd=torch.ones(6), out=y.view(2, 6)
    ),
}


@pytest.mark.parametrize("call", OVERWRITING.values(), ids=OVERWRITING)
def test_what_out_has_overwritten_is_not_gone_back_from(call: Any) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    y = x.exp()  # whose backward reads y
    with torch.no_grad():
        call(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_running_statistics_are_updated_once() -> None:
    """In place, by every way there is."""
    x, w = torch.randn(3, 4, 5), torch.ones(4)
    ways: dict[str, Any] = {
        "direct": lambda f: f(x, w),
        "autograd": lambda f: f(x, w.clone().requires_grad_()),
        "compiled": lambda f: torch.compile(f, backend="aot_eager", fullgraph=True)(x, w),
    }
    want = [torch.zeros(4), torch.ones(4)]
    torch.nn.functional.batch_norm(x, want[0], want[1], training=True)
    for name, run in ways.items():
        running, batches = [torch.zeros(4), torch.ones(4)], torch.tensor(2)
        options: dict[str, Any] = {"training": True, "num_batches_tracked": batches}
        run(lambda x, w, r=running, o=options: nt.batch_norm(x, r[0], r[1], w, **o))
        assert batches.item() == 3, name
        for pair in zip(running, want, strict=True):
            torch.testing.assert_close(*pair, msg=name)


def test_a_copied_and_pickled_module_works(tmp_path: Any) -> None:
    model = torch.nn.Sequential(nt.LayerNorm(4), nt.SwiGLU())
    torch.save(model, tmp_path / "model.pt")
    again = torch.load(tmp_path / "model.pt", weights_only=False)
    x = torch.randn(2, 4)
    assert torch.equal(again(x), model(x))
    assert torch.equal(copy.deepcopy(model)(x), model(x))


# ---- Wrong use ----

_sync: Any = nt.sync_batch_norm

WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda x: nt.layer_norm(x.tolist(), 4), TypeError, r"layer_norm: input is of type builtins.list; expected"),
    (lambda x: nt.gelu(x.numpy()), TypeError, r"gelu: input is of type numpy.ndarray; expected a torch.Tensor"),
    (
        lambda x: nt.layer_norm(x, 4, x[0].tolist()),
        TypeError,
        r"layer_norm: weight is of type builtins.list; expected",
    ),
    (lambda x: nt.layer_norm(x, (3, 5)), ValueError, r"layer_norm: normalized_shape is \[3, 5\] and input of shape"),
    (lambda x: nt.rms_norm(x, 4, x[0, :3]), ValueError, r"rms_norm: weight .*expected"),
    (lambda x: nt.layer_norm(x, 4, eps=-1.0), ValueError, r"layer_norm: eps .*expected"),
    (lambda x: nt.layer_norm(x, 4, activation="swish"), ValueError, r"layer_norm: activation is 'swish'; expected "),
    (lambda x: nt.activation(x, "swish"), ValueError, r"activation: kind is 'swish'; expected one of"),
    (lambda x: nt.gelu(x, "erf"), ValueError, r"gelu: approximate is 'erf'; expected 'none' or 'tanh'"),
    (lambda x: nt.silu(x, bias=x[0], dim=2), ValueError, r"silu: dim is 2 and input is 2-D; expected one of -2 to 1"),
    (lambda x: nt.gated(x, bias=(x, x)), TypeError, r"gated: bias is a tuple; expected one array, packed like gate"),
    (lambda x: nt.swiglu(x, x, bias=x), TypeError, r"swiglu: bias is of type Tensor; expected a pair"),
    (lambda x: nt.gelu(x, bias=x[0], dim="1"), TypeError, r"gelu: dim is of type str; expected an int"),
    (lambda x: nt.swiglu(x, dim=None), TypeError, r"swiglu: dim is of type NoneType; expected an int"),  # pyright: ignore[reportArgumentType]
    (lambda x: nt.geglu(x, dim=[1]), TypeError, r"geglu: dim is of type list; expected an int"),  # pyright: ignore[reportArgumentType]
    (lambda x: nt.activation(x, ["relu"]), ValueError, r"activation: kind is \['relu'\]; expected one of"),  # pyright: ignore[reportArgumentType]
    (lambda x: nt.layer_norm(x, None), TypeError, r"layer_norm: normalized_shape is of type NoneType; expected an int"),  # pyright: ignore[reportArgumentType]
    (lambda x: nt.layer_norm(x, x[0], x[0]), TypeError, r"layer_norm: normalized_shape is of type Tensor; expected an"),  # pyright: ignore[reportArgumentType]
    (lambda x: nt.rms_norm(x, 4.0), TypeError, r"rms_norm: normalized_shape is of type float; expected an int or a"),  # pyright: ignore[reportArgumentType]
    (lambda x: nt.silu(x.int()), TypeError, r"silu: x .*int32.*expected"),
    (lambda x: nt.silu(x.to(torch.float8_e4m3fn)), TypeError, r"silu: x .*expected"),
    (lambda x: nt.group_norm(x, 3), ValueError, r"group_norm: num_groups is 3.*expected"),
    (lambda x: nt.group_norm(x, 10**13), ValueError, r"group_norm: num_groups is 10000000000000; expected a divisor"),
    (lambda x: nt.group_norm(x, 10**30), ValueError, r"group_norm: num_groups is 10+; expected one of 64 bits"),
    (
        lambda x: nt.batch_norm(x, np.zeros(4, "f4"), x[0].detach()),  # pyright: ignore[reportArgumentType]
        TypeError,
        r"batch_norm: running_mean is of type numpy\.ndarray; expected a torch\.Tensor",
    ),
    (
        lambda x: nt.instance_norm(x[..., None], x[0].detach(), [1.0] * 4),  # pyright: ignore[reportArgumentType]
        TypeError,
        r"instance_norm: running_var is of type builtins\.list; expected a torch\.Tensor",
    ),
    (lambda x: nt.batch_norm(x[:1], None, None, training=True), ValueError, r"batch_norm: .*expected"),
    (lambda x: nt.batch_norm(x, None, None), ValueError, r"batch_norm: running_mean .*expected"),
    (lambda x: _sync(x, None, None), RuntimeError, r"sync_batch_norm: torch.distributed is not init"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG, ids=[each[2][:34] for each in WRONG])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_wrong_use(wrong: Any, error: type[Exception], message: str, requires_grad: bool) -> None:
    x = torch.randn(3, 4)
    if requires_grad and "numpy" not in message and "list; expected" not in message:
        x.requires_grad_()
    with pytest.raises(error, match="^" + message) as raised:
        wrong(x)
    assert "\n" not in str(raised.value)
