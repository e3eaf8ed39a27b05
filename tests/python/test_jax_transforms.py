# SPDX-License-Identifier: Apache-2.0
"""grad, vmap with any operand batched, scan, remat and their like, against formulas of jax.numpy in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import normact
import normact.jax as nj
from jax_cases import CASES, Case, loss
from jax_checks import enable_x64, quick_compilation

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with enable_x64(True), quick_compilation():
        yield


def assert_close(found: Any, want: Any) -> None:
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-9, atol=1e-10)


def gradient(function: Callable[..., Any], case: Case) -> Callable[..., Any]:
    return jax.grad(loss(function), argnums=tuple(range(len(case.shapes))))


def results(function: Callable[..., Any], case: Case) -> Callable[..., Any]:
    """The function's results and all gradients, as one function."""
    return lambda *arrays: (function(*arrays), gradient(function, case)(*arrays))


@functools.cache
def formula(case: Case) -> Callable[..., Any]:
    """Compiled once for all tests of a case."""
    return jax.jit(results(case.theirs, case))


@every_case
def test_agrees_with_the_formula(case: Case) -> None:
    arrays = case.arrays()
    assert_close(jax.jit(results(case.ours, case))(*arrays), formula(case)(*arrays))


@pytest.mark.parametrize("case", [CASES[0], CASES[-1]], ids=lambda case: case.name)
def test_without_jit(case: Case) -> None:
    arrays = case.arrays()
    assert_close(results(case.ours, case)(*arrays), formula(case)(*arrays))


@every_case
def test_vmap_of_every_operand(case: Case) -> None:
    """Each alone, all together, and of the gradient, which is one for each member of the batch."""
    plain, batched = case.arrays(), case.arrays((2,))
    count = len(case.shapes)
    choices = {(i,) for i in range(count)} | {tuple(range(count))}
    for chosen in sorted(choices):
        axes = [0 if i in chosen else None for i in range(count)]
        arrays = [batched[i] if i in chosen else plain[i] for i in range(count)]
        members = [[array[m] if i in chosen else array for i, array in enumerate(arrays)] for m in range(2)]
        want = jax.tree.map(lambda *parts: np.stack(parts), *(formula(case)(*member) for member in members))
        assert_close(jax.jit(jax.vmap(results(case.ours, case), in_axes=axes))(*arrays), want)


def test_vmap_of_vmap_and_other_axes() -> None:
    case = CASES[0]
    x, weight, bias = case.arrays()
    many = jnp.stack([x, 2 * x, 3 * x], axis=2)[:, None] + jnp.zeros((1, 2, 1, 1, 1))  # [3, 2, 4, 3, 6]
    weights = jnp.stack([weight, -weight])
    ours, theirs = (
        jax.vmap(jax.vmap(function, in_axes=(2, None, None)), in_axes=(1, 0, None))
        for function in (case.ours, case.theirs)
    )
    assert_close(jax.jit(ours)(many, weights, bias), theirs(many, weights, bias))


def test_one_call_where_one_is_enough() -> None:
    """A vmap over the rows of a norm makes no loop; one over its weights does."""
    x, weight = jnp.ones((5, 3, 8)), jnp.ones(8)
    rows = jax.make_jaxpr(jax.vmap(nj.layer_norm, in_axes=(0, None)))(x, weight)
    assert "scan" not in str(rows)
    assert "scan" in str(jax.make_jaxpr(jax.vmap(nj.layer_norm))(x, jnp.ones((5, 8))))
    assert "scan" not in str(jax.make_jaxpr(jax.vmap(jax.grad(lambda x: nj.gelu(x).sum())))(x))


@pytest.mark.parametrize("outer", [False, True], ids=["vmap of grad", "grad of vmap"])
def test_a_second_call_compiles_nothing(outer: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Outside of jit, where JAX knows a function again by its identity; here of a loop over the weights."""
    weight = jnp.ones(7)

    def batch(x: Any) -> Any:
        return jax.vmap(lambda x, weight: nj.layer_norm(x, weight), in_axes=(0, None))(x, weight).sum()

    def each(x: Any) -> Any:
        return jax.vmap(jax.grad(lambda x, weight: nj.layer_norm(x, weight).sum()), in_axes=(0, None))(x, weight)

    def compilations() -> int:
        caplog.clear()
        with jax.log_compiles(), caplog.at_level("WARNING"):
            jax.block_until_ready((jax.grad(batch) if outer else each)(jnp.ones((3 + outer, 2, 7))))
        return sum("Compiling" in record.getMessage() for record in caplog.records)

    assert compilations() > 0
    assert compilations() == 0


def test_no_tracer_is_kept() -> None:
    x, weight = jnp.ones((3, 2, 9)), jnp.ones(9)
    with jax.checking_leaks():
        jax.jit(jax.grad(lambda x: nj.layer_norm(x, weight).sum()))(x)
        jax.jit(jax.vmap(lambda x: nj.batch_norm(x, training=True)))(x)


@pytest.mark.parametrize("case", [CASES[0], CASES[4], CASES[8]], ids=lambda case: case.name)
def test_under_remat_and_scan(case: Case) -> None:
    arrays = case.arrays()

    def model(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Any, *rest: Any) -> Any:
            layer = jax.checkpoint(lambda carry, _: (carry + function(carry, *rest), None))
            return jax.lax.scan(layer, x, None, length=2)[0]

        return run

    ours, theirs = (jax.jit(gradient(model(function), case))(*arrays) for function in (case.ours, case.theirs))
    assert_close(ours, theirs)


def test_running_statistics_are_constants() -> None:
    def total(x: Any, mean: Any, variance: Any) -> Any:
        y, *new = nj.batch_norm(x, None, None, mean, variance, training=True)
        return y[0, 0, 0] + sum(state.sum() for state in new)

    x, state = jnp.asarray(np.random.default_rng(0).standard_normal((3, 4, 2))), jnp.ones(4)
    found = jax.grad(total, argnums=(0, 1, 2))(x, state, state)
    want = jax.grad(lambda x: nj.batch_norm(x, training=True)[0, 0, 0])(x)
    assert_close(found, (want, jnp.zeros(4), jnp.zeros(4)))


@pytest.mark.parametrize(("twice", "error"), [(jax.grad, NotImplementedError), (jax.jacfwd, TypeError)])
def test_a_second_derivative_is_refused(twice: Any, error: Any) -> None:
    x = jnp.ones((2, 4))
    once = jax.grad(lambda x: jnp.sin(nj.layer_norm(x)).sum())
    with pytest.raises(error, match="layer_norm was differentiated twice|forward-mode"):
        twice(lambda x: once(x).sum())(x)


def test_a_gradient_that_is_a_constant_of_another() -> None:
    x = jnp.asarray([[0.5, -1.0, 2.0]])
    slope = jax.grad(lambda x: nj.gelu(x).sum())
    found = jax.grad(lambda x: (jax.lax.stop_gradient(slope(x)) * x).sum())(x)
    assert_close(found, slope(x))


def test_an_undefined_gradient_is_nan() -> None:
    x = jnp.asarray([[1.0, jnp.nan, 2.0], [1.0, 2.0, 3.0]])
    found = jax.grad(lambda x: nj.rms_norm(x).sum())(x)
    assert np.isnan(np.asarray(found[0])).all()
    assert np.isfinite(np.asarray(found[1])).all()


# ---- Synchronous batch norm over a mapped axis ----


@pytest.mark.parametrize("activation", [None, "silu"])
def test_batch_norm_over_a_vmapped_axis(activation: str | None) -> None:
    """Statistics and gradients over a divided batch are those of the whole one."""
    rng = np.random.default_rng(5)
    x, addend, weights = (jnp.asarray(rng.standard_normal(shape)) for shape in ((6, 4, 3), (6, 4, 3), (2, 4)))
    states = jnp.zeros(4), jnp.ones(4)

    def norm(x: Any, addend: Any, weights: Any, axis_name: str | None = None) -> Any:
        options: dict[str, Any] = {"training": True, "addend": addend, "activation": activation, "axis_name": axis_name}
        return nj.batch_norm(x, weights[0], weights[1], *states, **options)

    def divided(x: Any, addend: Any, weights: Any) -> Any:
        parts = (array.reshape(2, 3, 4, 3) for array in (x, addend))
        mapped = jax.vmap(lambda x, addend: norm(x, addend, weights, "part"), axis_name="part")
        y, mean, variance = mapped(*parts)
        assert_close((mean[0], variance[0]), (mean[1], variance[1]))
        return y.reshape(6, 4, 3), mean[0], variance[0]

    assert_close(divided(x, addend, weights), norm(x, addend, weights))
    grads = [jax.grad(lambda *a, f=f: jnp.sin(f(*a)[0]).sum(), argnums=(0, 1, 2)) for f in (divided, norm)]
    assert_close(grads[0](x, addend, weights), grads[1](x, addend, weights))


def test_an_axis_that_is_not_mapped_is_refused() -> None:
    with pytest.raises(ValueError, match=r"batch_norm: axis_name is 'part', and no such axis is mapped here"):
        nj.batch_norm(jnp.ones((3, 2)), training=True, axis_name="part")


def test_one_value_a_channel_over_a_mapped_axis() -> None:
    """Is refused where it is all of the batch, and not where it is a part."""

    def norm(x: Any) -> Any:
        return nj.batch_norm(x, training=True, axis_name="part")

    x = jnp.asarray([[[1.0, 2.0]], [[3.0, 6.0]]])
    assert_close(jax.vmap(norm, axis_name="part")(x)[:, 0], nj.batch_norm(x[:, 0], training=True))
    with pytest.raises(ValueError, match=r"^batch_norm: x has shape \(1, 2\), one value a channel; expected more than"):
        jax.vmap(norm, axis_name="part")(x[:1])


@pytest.mark.parametrize("axes", [(0, 0, None), (0, None, None), (0, 0, 0)], ids=str)
def test_vmap_of_a_float32_stream(axes: tuple[int | None, ...]) -> None:
    """Beside an x in 16 bits: results and gradients are those of each member, bit for bit."""
    keys = jax.random.split(jax.random.key(3), 3)
    x, stream, weight = (
        jax.random.normal(key, (3, *shape) if axis == 0 else shape, jnp.float32)
        for key, shape, axis in zip(keys, ((2, 8), (2, 8), (8,)), axes, strict=True)
    )
    x = x.astype(jnp.bfloat16)

    def both(x: Any, stream: Any, weight: Any) -> Any:
        def loss(*arrays: Any) -> Any:
            y, total = nj.layer_norm(arrays[0], arrays[2], residual=arrays[1])
            return jnp.square(y.astype(jnp.float32)).sum() + jnp.sin(total).sum()

        return nj.layer_norm(x, weight, residual=stream), jax.grad(loss, argnums=(0, 1, 2))(x, stream, weight)

    found = jax.jit(jax.vmap(both, in_axes=axes))(x, stream, weight)
    arrays = (x, stream, weight)
    for member in range(3):
        want = jax.jit(both)(*(a if axis is None else a[member] for a, axis in zip(arrays, axes, strict=True)))
        for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(np.asarray(ours[member]), np.asarray(theirs))


# ---- Wrong input ----

wrong: Any = nj  # no type is checked

X = np.ones((2, 3, 4), np.float32)
W = np.ones(4, np.float32)

WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: wrong.layer_norm([1.0]), TypeError, r"^layer_norm: x is of type builtins\.list; expected a jax\.Array"),
    (lambda: wrong.layer_norm(X.astype(int)), TypeError, r"^layer_norm: x has dtype int64; expected float64, float32"),
    (lambda: wrong.layer_norm(X.astype(str)), TypeError, r"^layer_norm: x has dtype <U32; expected float64, float32"),
    (lambda: wrong.gelu(X, bias=W.astype(object)), TypeError, r"^gelu: bias has dtype object; expected float64"),
    (
        lambda: wrong.batch_norm(X, training=True, axis_name=1),
        TypeError,
        r"^batch_norm: axis_name is of type int; expected a str or a tuple of them",
    ),
    (
        lambda: jax.vmap(lambda x: wrong.batch_norm(x, training=True, axis_name=("i", "i")), axis_name="i")(X),
        ValueError,
        r"^batch_norm: axis_name is \('i', 'i'\); expected distinct axes",
    ),
    (
        lambda: wrong.layer_norm(np.ma.masked_array(X)),
        TypeError,
        r"^layer_norm: x is of type numpy\.ma\.\S*MaskedArray; expected a jax\.Array or a numpy\.ndarray",
    ),
    (lambda: wrong.layer_norm(X[0, 0, 0]), ValueError, r"^layer_norm: x has 0 dimensions; expected at least 1"),
    (lambda: wrong.layer_norm(X, W[:2]), ValueError, r"^layer_norm: weight has shape \(2,\); expected \(4,\)"),
    (lambda: wrong.layer_norm(X, bias=W.astype("f2")), TypeError, r"bias has dtype float16; expected float32"),
    (lambda: wrong.rms_norm(X, axis=3), ValueError, r"^rms_norm: axis is 3 and x has 3 dimensions; expected one of -3"),
    (lambda: wrong.rms_norm(X, axis=(1, -2)), ValueError, r"^rms_norm: axis is \(1, -2\); expected distinct axes"),
    (lambda: wrong.rms_norm(X, axis=1.5), TypeError, r"^rms_norm: axis is of type float; expected an int"),
    (
        lambda: wrong.rms_norm(X, residual=X[0]),
        ValueError,
        r"residual has shape \(3, 4\); expected \(2, 3, 4\), as x has",
    ),
    (
        lambda: wrong.rms_norm(X.astype("f2"), residual=X.astype("f8")),
        TypeError,
        r"residual has dtype float64; expected float16, as x has, or float32",
    ),
    (
        lambda: wrong.rms_norm(X, residual=X.astype("f2")),
        TypeError,
        r"residual has dtype float16; expected float32, as x has$",
    ),
    (lambda: wrong.rms_norm(X, weight_offset=1.0), ValueError, r"weight_offset is 1\.0 and weight is None"),
    (lambda: wrong.layer_norm(X, activation="gelo"), ValueError, r"^layer_norm: activation is 'gelo'; expected one of"),
    (lambda: wrong.gelu(X, bias=W, axis=0), ValueError, r"^gelu: bias has shape \(4,\); expected \(2,\)"),
    (lambda: wrong.gelu(X, approximate="erf"), ValueError, r"^gelu: approximate is 'erf'"),
    (lambda: wrong.activation(X, None), ValueError, r"^activation: kind is None; expected one of identity"),
    (lambda: wrong.activation(X, "cube"), ValueError, r"^activation: kind is 'cube'; expected one of identity"),
    (lambda: wrong.swiglu(X[..., :3]), ValueError, r"^swiglu: gate has size 3 along axis -1; expected an even one"),
    (lambda: wrong.swiglu(X, bias=(W, W)), TypeError, r"^swiglu: bias is a tuple; expected one array"),
    (lambda: wrong.swiglu(X, X, bias=W), TypeError, r"expected a pair \(gate_bias, up_bias\)"),
    (lambda: wrong.swiglu(X, X[0]), ValueError, r"^swiglu: up has shape \(3, 4\); expected \(2, 3, 4\), as gate has"),
    (lambda: wrong.glu(X, layout="mixed"), ValueError, r"^glu: layout is 'mixed'; expected one of split, interleaved"),
    (lambda: wrong.group_norm(X, 2), ValueError, r"^group_norm: num_groups is 2; expected a divisor of the 3 channels"),
    (
        lambda: wrong.group_norm(X, 1, channel_axis=0),
        ValueError,
        r"^group_norm: channel_axis is 0, which counts",
    ),
    (
        lambda: wrong.group_norm(X[:, :0], 10**30),
        ValueError,
        r"^group_norm: num_groups is 10+; expected one of 64 bits",
    ),
    (lambda: wrong.group_norm(X, 1.0), TypeError, r"^group_norm: num_groups is of type float; expected an int"),
    (lambda: wrong.batch_norm(X), ValueError, r"^batch_norm: running_mean is None; expected an array, as training"),
    (lambda: wrong.batch_norm(X, None, None, W[:3]), ValueError, r"^batch_norm: running_var is None; expected both"),
    (lambda: wrong.batch_norm(W), ValueError, r"^batch_norm: x has 1 dimensions; expected at least 2"),
    (lambda: wrong.instance_norm(X, use_input_stats=False), ValueError, r"^instance_norm: running_mean is None"),
    (lambda: wrong.layer_norm(X, eps=10**400), ValueError, r"^layer_norm: eps is an int that no float holds; expected"),
    (
        lambda: jax.jit(lambda training: wrong.batch_norm(X, training=training))(True),
        TypeError,
        r"^batch_norm: training is of type .*Tracer; expected a bool that is no traced value",
    ),
    (
        lambda: jax.jit(lambda flag: wrong.instance_norm(X, use_input_stats=flag))(True),
        TypeError,
        r"^instance_norm: use_input_stats is of type .*Tracer; expected a bool that is no traced value",
    ),
    (
        lambda: jax.jit(lambda eps: wrong.layer_norm(X, eps=eps))(1e-5),
        TypeError,
        r"^layer_norm: eps is of type .*Tracer; expected a number that is no traced value",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "sentence"), WRONG, ids=lambda value: value if isinstance(value, str) else ""
)
def test_wrong_input(call: Callable[[], Any], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        call()


def test_what_the_library_refuses() -> None:
    """Only seen when the call runs: XLA's error has the library's sentence."""
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT: layer_norm: eps is -1; expected a finite number"):
        jax.block_until_ready(wrong.layer_norm(X, eps=-1.0))
    with pytest.raises(Exception, match=r"INVALID_ARGUMENT: batch_norm: .*one value"):
        jax.block_until_ready(wrong.batch_norm(X[:1, :, 0], training=True))


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())])
def test_raw_functions_point_here(transform: Any) -> None:
    with pytest.raises(TypeError, match=r"inside of jit, grad and vmap the function of the same name in normact\.jax"):
        transform(normact.layer_norm)(jnp.asarray(X))
