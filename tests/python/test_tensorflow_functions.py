# SPDX-License-Identifier: Apache-2.0
"""The functions of normact.tensorflow on eager tensors, against TensorFlow's own and the float64 reference."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import normact
import reference
import reference_activation
import reference_channel
from normact import _core
from tensorflow_cases import CASES, FEW, Case, gradients, nt, outputs, tf

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
few_cases = pytest.mark.parametrize("case", FEW, ids=lambda case: case.name)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape)


@every_case
def test_agrees_with_tensorflow(case: Case) -> None:
    """In float64, where both are off by rounding alone."""
    tensors = case.tensors()
    for found, want in zip(outputs(case.ours(*tensors)), outputs(case.theirs(*tensors)), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-11, atol=1e-12)
    for found, want in zip(gradients(case.ours, tensors), gradients(case.theirs, tensors), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-10)


@few_cases
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_other_dtypes(case: Case, dtype: str) -> None:
    """Results and gradients have the dtypes of the inputs; the numbers are off by their rounding."""
    tensors = case.tensors(dtype)
    wide = [tf.cast(tensor, "float64") for tensor in tensors]
    tolerance = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    found = [*outputs(case.ours(*tensors)), *gradients(case.ours, tensors)]
    want = [*outputs(case.theirs(*wide)), *gradients(case.theirs, wide)]
    for mine, exact in zip(found, want, strict=True):
        assert mine.dtype.name == dtype
        scale = float(tf.reduce_max(tf.abs(exact)))
        np.testing.assert_allclose(tf.cast(mine, "float64"), exact, rtol=4 * tolerance, atol=tolerance * scale)


@few_cases
def test_with_a_tape_is_the_same(case: Case) -> None:
    """Bit for bit: the direct call, and the one that keeps what the backward reads."""
    tensors = case.tensors("float32")
    plain = outputs(case.ours(*tensors))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(tensors)
        recorded = outputs(case.ours(*tensors))
    for found, want in zip(recorded, plain, strict=True):
        np.testing.assert_array_equal(found, want)
    first, second = (tape.gradient(recorded[0], tensors[0]) for _ in range(2))
    np.testing.assert_array_equal(first, second)


# ---- The float64 reference ----


def test_row_norms_against_the_reference() -> None:
    x, weight, bias, dy = random(6, 7), random(7), random(7), random(6, 7)
    for kind in ("layer_norm", "rms_norm"):
        want = getattr(reference, kind)(x, weight, bias, eps=1e-3)
        statistics = {"mean": want.mean} if kind == "layer_norm" else {}
        slopes = getattr(reference, f"{kind}_backward")(dy, x, weight, rstd=want.rstd, **statistics)
        tensors = [tf.constant(each) for each in (x, weight, bias)]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = getattr(nt, kind)(*tensors, eps=1e-3)
        np.testing.assert_allclose(y, want.y, rtol=1e-12, atol=1e-13)
        for found, slope in zip(tape.gradient(y, tensors, tf.constant(dy)), slopes, strict=True):
            np.testing.assert_allclose(found, slope, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("kind", _core.ACTIVATIONS)
def test_activations_against_the_reference(kind: str) -> None:
    """Every kind, by its name and by its function."""
    x = 3 * random(40)
    numbers = ({"leaky_relu": 0.01, "elu": 1.0}.get(kind, 0.0), 1.0, 20.0)
    tensor = tf.constant(x)
    for function in (lambda t: nt.activation(t, kind), getattr(nt, kind)):
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            y = function(tensor)
        np.testing.assert_allclose(y, getattr(reference_activation, kind)(x, *numbers), rtol=1e-12, atol=1e-13)
        slope = getattr(reference_activation, f"{kind}_slope")(x, *numbers)
        np.testing.assert_allclose(tape.gradient(y, tensor), slope, rtol=1e-10, atol=1e-12)


def test_numbers_of_the_kinds() -> None:
    x = tf.constant(3 * random(40))
    kinds: Any = (("leaky_relu", {"alpha": 0.3}), ("elu", {"alpha": 2.0}), ("softplus", {"beta": 0.5}))
    for name, numbers in kinds:
        want = getattr(normact, name)(x.numpy(), **numbers)
        np.testing.assert_array_equal(getattr(nt, name)(x, **numbers), want)
        np.testing.assert_array_equal(nt.activation(x, name, **numbers), want)
    np.testing.assert_array_equal(nt.gelu(x, approximate="tanh"), nt.gelu_tanh(x))


def test_gates_by_their_names() -> None:
    x = tf.constant(random(5, 8))
    for name, kind in (("glu", "sigmoid"), ("swiglu", "silu"), ("geglu", "gelu"), ("reglu", "relu")):
        np.testing.assert_array_equal(getattr(nt, name)(x), nt.gated(x, None, kind))
    np.testing.assert_array_equal(nt.geglu(x, approximate="tanh"), nt.gated(x, None, "gelu_tanh"))
    np.testing.assert_array_equal(nt.reglu(x, layout="interleaved", axis=1), nt.reglu(x[:, ::2], x[:, 1::2]))
    gpt = nt.gated(x, None, "quick_gelu", layout="interleaved", limit=0.7, up_offset=1.0)
    want = normact.gated(x.numpy(), None, "quick_gelu", layout="interleaved", limit=0.7, up_offset=1.0)
    np.testing.assert_array_equal(gpt, want)
    np.testing.assert_array_equal(
        nt.swiglu(x, limit=0.7, up_offset=1.0), normact.swiglu(x.numpy(), limit=0.7, up_offset=1.0)
    )


# ---- Running statistics ----


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_running_statistics_are_assigned(dtype: str) -> None:
    """Two batches, with the plain mean over batches and with a momentum; the variables keep their dtype."""
    for momentum in (None, 0.25):
        mean, var = tf.Variable(tf.zeros(3, dtype)), tf.Variable(tf.ones(3, dtype))
        count = tf.Variable(0)
        want_mean, want_var = np.zeros(3), np.ones(3)
        for batch in (random(4, 3, 2), 2 * random(5, 3, 2) + 1):
            x = tf.cast(tf.constant(batch), dtype)
            nt.batch_norm(x, None, None, mean, var, num_batches_tracked=count, training=True, momentum=momentum)
            factor = 1 / int(count) if momentum is None else momentum
            values = tf.cast(x, "float64").numpy()
            found = reference_channel.batch_norm_statistics(values)
            unbiased = reference_channel.unbiased(found[1], values.size // 3)
            want_mean = reference_channel.running(want_mean, found[0], factor)
            want_var = reference_channel.running(want_var, unbiased, factor)
        assert int(count) == 2
        tolerance = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3}[dtype]
        np.testing.assert_allclose(tf.cast(mean, "float64"), want_mean, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(tf.cast(var, "float64"), want_var, rtol=tolerance, atol=tolerance)
        assert mean.dtype.name == var.dtype.name == dtype


def test_running_statistics_of_instance_norm() -> None:
    x = random(4, 3, 5)
    mean, var = tf.Variable(tf.zeros(3, "float64")), tf.Variable(tf.ones(3, "float64"))
    want = [np.zeros(3), np.ones(3)]
    y = nt.instance_norm(tf.constant(x), None, None, mean, var, momentum=0.3)
    np.testing.assert_array_equal(y, normact.instance_norm(x, None, None, *want, momentum=0.3))
    np.testing.assert_array_equal(mean, want[0])
    np.testing.assert_array_equal(var, want[1])
    given = nt.instance_norm(tf.constant(x), None, None, mean, var, use_input_stats=False)
    np.testing.assert_array_equal(given, nt.batch_norm(tf.constant(x), None, None, mean, var))


def test_running_statistics_that_somebody_holds_stay() -> None:
    """The value that was read before a step is not written to."""
    mean, var = tf.Variable(tf.zeros(3)), tf.Variable(tf.ones(3))
    held = mean.read_value(), var.read_value(), tf.convert_to_tensor(mean)
    nt.batch_norm(tf.constant(random(4, 3), tf.float32), None, None, mean, var, training=True)
    for old, want in zip(held, (0, 1, 0)):
        assert (old.numpy() == want).all()
    assert (mean.numpy() != 0).all()


# ---- Variables, NumPy, alignment, devices ----


def test_variables_and_arrays_are_taken() -> None:
    x, weight, bias = random(4, 6), random(6), random(6)
    want = normact.layer_norm(x, weight, bias)
    variables = [tf.Variable(each) for each in (x, weight, bias)]
    with tf.GradientTape() as tape:
        y = nt.layer_norm(*variables)
    np.testing.assert_array_equal(y, want)
    assert [tuple(each.shape) for each in tape.gradient(y, variables)] == [(4, 6), (6,), (6,)]
    np.testing.assert_array_equal(nt.layer_norm(x, weight, bias), want)
    np.testing.assert_array_equal(nt.rms_norm([[3.0, 4.0]]), nt.rms_norm(tf.constant([[3.0, 4.0]])))


def test_what_is_not_watched_has_no_gradient() -> None:
    x, weight = tf.constant(random(4, 6)), tf.Variable(random(6), trainable=False)
    bias = tf.Variable(random(6))
    with tf.GradientTape() as tape:
        y = nt.layer_norm(x, weight, bias)
    none, nothing, dbias = tape.gradient(y, [x, weight, bias])
    assert none is None and nothing is None
    np.testing.assert_allclose(dbias, np.full(6, 4.0))


@few_cases
@pytest.mark.parametrize("last", [True, False])
def test_some_gradients_are_those_of_all(case: Case, last: bool) -> None:
    """Of the last tensor alone, or of all but the last."""
    tensors = case.tensors()
    everything = gradients(case.ours, tensors)
    cut = slice(-1, None) if last else slice(None, -1)

    def of_some(*some: Any) -> Any:
        return case.ours(*tensors[:-1], *some) if last else case.ours(*some, tensors[-1])

    for found, want in zip(gradients(of_some, tensors[cut]), everything[cut], strict=True):
        np.testing.assert_array_equal(found, want)


@few_cases
def test_what_nobody_wants_costs_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward is called without the gradient of a parameter or an addend that is not watched."""
    counts: list[int] = []

    def counting(function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any) -> Any:
            found = function(*args)
            made = sum(array is not None for array in found or ())
            counts.append(made + sum(hasattr(arg, "__dlpack__") for arg in args))
            return found

        return count

    for name in ("norm", "activation", "gated", "group_norm", "batch_norm"):
        monkeypatch.setattr(_core, f"{name}_backward", counting(getattr(_core, f"{name}_backward")))
    tensors = case.tensors()
    want = gradients(case.ours, tensors)
    left = [i for i, shape in enumerate(case.shapes) if len(shape) == 1 or (i and case.name.startswith("batch_norm"))]
    for i in left:
        before, kept, after = tensors[:i], tensors[i], tensors[i + 1 :]
        found = gradients(lambda *some, i=i, kept=kept: case.ours(*some[:i], kept, *some[i:]), before + after)
        for mine, other in zip(found, want[:i] + want[i + 1 :], strict=True):
            np.testing.assert_array_equal(mine, other)
    assert counts == [counts[0]] + [counts[0] - 1] * len(left)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_memory_at_any_offset(dtype: str) -> None:
    """TensorFlow aborts on memory that is not aligned to 64 bytes, so that nothing unaligned may come out of here."""
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    values = random(6, 16)
    for offset in range(0, 64, kind.itemsize):
        memory = np.empty(values.nbytes + 128, np.uint8)
        start = -memory.ctypes.data % 64 + offset
        x: Any = memory[start : start + values.size * kind.itemsize].view(kind).reshape(6, 16)
        x[...] = values
        assert x.ctypes.data % 64 == offset
        want = normact.layer_norm(x, x[0])
        with tf.GradientTape() as tape:
            variable = tf.Variable(x)
            y = nt.layer_norm(variable, x[0])
            total = tf.reduce_sum(y * y)  # one of TensorFlow's kernels that need alignment
        np.testing.assert_array_equal(y.numpy().view(f"u{kind.itemsize}"), want.view(f"u{kind.itemsize}"))
        assert tape.gradient(total, variable).shape == (6, 16)
        if dtype != "bfloat16":  # which NumPy does not hand out: unaligned memory that TensorFlow took without a look
            lent = tf.experimental.dlpack.from_dlpack(x.__dlpack__())
            found = nt.layer_norm(lent, tf.constant(x[0]))
            assert _address(found) % 64 == 0
            np.testing.assert_array_equal(found + 0, want)


def _address(tensor: Any) -> int:
    return _core.describe(tensor)[0]


def test_slices_and_reshapes_of_tensors() -> None:
    """Views of TensorFlow's own, at whatever address they begin."""
    x = tf.constant(random(9, 5), tf.float32)
    for view in (x[1:], x[3:7], tf.reshape(x, (5, 9)), tf.transpose(x), tf.split(x, 3)[1]):
        y = nt.rms_norm(view)
        assert _address(y) % 64 == 0
        np.testing.assert_array_equal(2.0 * y, 2.0 * normact.rms_norm(view.numpy()))


def test_empty_tensors() -> None:
    x = tf.Variable(tf.zeros((0, 4)))
    with tf.GradientTape() as tape:
        y = nt.swiglu(nt.layer_norm(x, tf.ones(4)))
    assert tuple(y.shape) == (0, 2)
    assert tuple(tape.gradient(y, x).shape) == (0, 4)


def test_sparse_gradients() -> None:
    """The gradient of a gather is no tensor."""
    x = tf.Variable(random(4, 6))
    with tf.GradientTape() as tape:
        rows = tf.gather(nt.gelu(x), [0, 2])
    found = tape.gradient(rows, x).numpy()
    assert (found[[1, 3]] == 0).all() and (found[[0, 2]] != 0).all()


def test_jacobian() -> None:
    """TensorFlow traces the gradient of an eager call there."""
    x = tf.constant(random(2, 3))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y, want = nt.layer_norm(x), tf.nn.silu(x)
        found = nt.silu(x)
    assert tape.jacobian(y, x).shape == (2, 3, 2, 3)
    np.testing.assert_allclose(tape.jacobian(found, x), tape.jacobian(want, x), rtol=1e-5, atol=1e-6)


def test_one_of_two_outputs() -> None:
    """The other has no gradient; the sum of both is that of both."""
    x, residual = tf.constant(random(4, 6)), tf.constant(random(4, 6))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, residual])
        y, total = nt.rms_norm(x, residual=residual)
        both = tf.reduce_sum(y) + tf.reduce_sum(total)
    parts = [tape.gradient(each, [x, residual]) for each in (y, total, both)]
    np.testing.assert_array_equal(parts[1][0], np.ones((4, 6)))
    for first, second, whole in zip(*parts, strict=True):
        np.testing.assert_allclose(first + second, whole, rtol=1e-12)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("graph", [False, True])
def test_a_float32_stream(kind: str, dtype: Any, graph: bool) -> None:
    """The residual is float32 beside an x in 16 bits: eager and in a graph the results of the raw functions."""
    norm, back = getattr(normact, kind), getattr(normact, f"{kind}_backward")
    x, stream, weight = tf.cast(random(4, 6), dtype), tf.cast(random(4, 6), tf.float32), tf.cast(random(6), dtype)
    dy, dsum = tf.cast(random(4, 6), dtype), tf.cast(random(4, 6), tf.float32)

    def step(x: Any, stream: Any, weight: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, stream, weight])
            found = getattr(nt, kind)(x, weight, residual=stream)
        return found, tape.gradient(found, [x, stream, weight], [dy, dsum])

    (y, total), grads = (tf.function(step) if graph else step)(x, stream, weight)
    assert (y.dtype, total.dtype) == (dtype, tf.float32)
    want = norm(x, weight, residual=stream, return_stats=True)
    statistics = {"rstd": want.rstd} if want.mean is None else {"mean": want.mean, "rstd": want.rstd}
    expected = back(dy, want.residual, weight, **statistics, dresidual=dsum)
    pairs = zip(
        (y, total, *grads), (want.y, want.residual, expected.dx, expected.daddend, expected.dweight), strict=True
    )
    for found, other in pairs:
        assert found.dtype == other.dtype
        np.testing.assert_array_equal(found.numpy(), other.numpy())
    with tf.GradientTape() as tape:  # of the sum alone, by the residual alone
        tape.watch(stream)
        total = getattr(nt, kind)(x, weight, residual=stream)[1]
    np.testing.assert_array_equal(tape.gradient(total, stream), np.ones((4, 6)))


# ---- The interface ----


def test_arguments_are_those_of_normact() -> None:
    """Less those that a differentiable function has no use for."""
    gone = {"out", "stream", "return_stats", "return_mask"}
    for name in nt.__all__:
        raw = inspect.signature(getattr(normact, name)).parameters
        mine = inspect.signature(getattr(nt, name)).parameters
        want = {key: (each.default, each.kind) for key, each in raw.items() if key not in gone}
        assert {key: (each.default, each.kind) for key, each in mine.items()} == want, name
    forwards = {name for name in normact.__all__ if hasattr(normact, f"{name}_backward")}
    assert set(nt.__all__) == forwards
