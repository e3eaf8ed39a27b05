# SPDX-License-Identifier: Apache-2.0
"""normact.tensorflow inside tf.function, what it refuses anywhere, and its documents."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import normact
from tensorflow_cases import FEW, Case, gradients, loss, nt, outputs, tf

few_cases = pytest.mark.parametrize("case", FEW, ids=lambda case: case.name)
X = tf.constant(np.random.default_rng(5).standard_normal((4, 6)), tf.float32)


# ---- The same as eager ----


@pytest.mark.parametrize(
    ("case", "known"),
    [(case, "all but the batch") for case in FEW] + [(case, "nothing") for case in FEW[::3]],
    ids=lambda each: getattr(each, "name", each),
)
def test_is_the_same_as_eager(case: Case, known: str) -> None:
    """Bit for bit, results and gradients, whatever the graph knows of shapes; a tape inside, and one around it."""
    tensors = case.tensors("float32")
    shapes: dict[str, Any] = {
        "all but the batch": lambda shape: [None, *shape[1:]] if len(shape) > 1 else shape,
        "nothing": lambda shape: None,
    }
    signature = [tf.TensorSpec(shapes[known](tensor.shape), tensor.dtype) for tensor in tensors]
    forward = tf.function(case.ours, input_signature=signature)
    both = tf.function(lambda *given: gradients(case.ours, list(given)), input_signature=signature)
    for found, want in zip(outputs(forward(*tensors)), outputs(case.ours(*tensors)), strict=True):
        np.testing.assert_array_equal(found, want)
    want = gradients(case.ours, tensors)
    for found in (both(*tensors), gradients(forward, tensors)):
        for mine, eager in zip(found, want, strict=True):
            np.testing.assert_array_equal(mine, eager)


@few_cases
def test_shapes_are_known(case: Case) -> None:
    """As far as those of the inputs are, at the time of tracing."""
    tensors = case.tensors()
    want = [each.shape for each in outputs(case.ours(*tensors))]
    found: list[Any] = []
    tf.function(lambda *given: found.extend(each.shape for each in outputs(case.ours(*given)))).get_concrete_function(
        *tensors
    )
    assert [each.as_list() for each in found] == want
    gradient: list[Any] = []
    tf.function(lambda *given: gradient.extend(gradients(case.ours, list(given)))).get_concrete_function(*tensors)
    assert [each.shape for each in gradient] == [each.shape for each in tensors]


def test_one_graph_for_many_batches() -> None:
    traces = []

    @tf.function(input_signature=[tf.TensorSpec([None, 6])])
    def run(x: Any) -> Any:
        traces.append(x.shape)
        return nt.swiglu(nt.rms_norm(x))

    for rows in (1, 3, 0, 7):
        x = tf.random.normal((rows, 6))
        np.testing.assert_array_equal(run(x), nt.swiglu(nt.rms_norm(x)))
    assert len(traces) == 1


def test_control_flow_and_datasets() -> None:
    @tf.function
    def loop(x: Any) -> Any:
        for _ in tf.range(3):
            x = nt.layer_norm(x) + 1.0
        return x

    want = X
    for _ in range(3):
        want = nt.layer_norm(want) + 1.0
    np.testing.assert_array_equal(loop(X), want)
    rows = tf.data.Dataset.from_tensor_slices(X).map(nt.gelu, num_parallel_calls=2)
    np.testing.assert_array_equal(np.stack(list(rows.as_numpy_iterator())), nt.gelu(X))
    slopes = tf.function(lambda x: gradients(loop, [x]))(X)
    np.testing.assert_allclose(slopes[0], gradients(loop, [X])[0], rtol=1e-6)


BRANCHES: dict[str, Any] = {
    "cond": lambda step, x: tf.cond(tf.size(x) > 0, lambda: step(x), lambda: x),
    "switch_case": lambda step, x: tf.switch_case(tf.size(x) // 25, [lambda: step(x), lambda: x]),
    "while_loop": lambda step, x: tf.while_loop(lambda i, _: i < 1, lambda i, x: (i + 1, step(x)), (0, x))[1],
    "map_fn": lambda step, x: tf.map_fn(step, x),
    "scan": lambda step, x: tf.scan(lambda _, row: step(row), x, initializer=tf.zeros(6)),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_gradients_through_branches_and_loops(name: str) -> None:
    """Of tensors that are eager and only closed over, in the place of x and of the others."""
    weight, bias = tf.range(1.0, 7.0), tf.range(6.0)
    by_row = name in ("map_fn", "scan")
    for step in (
        lambda x: nt.layer_norm(x, weight, bias, activation="silu"),
        lambda x: nt.swiglu(bias if by_row else X, x),
    ):
        run = tf.function(lambda x, step=step: BRANCHES[name](step, x), autograph=False)

        def plain(x: Any, step: Any = step) -> Any:
            return tf.stack([step(row) for row in tf.unstack(x)]) if by_row else step(x)

        np.testing.assert_array_equal(run(X), plain(X))
        np.testing.assert_allclose(gradients(run, [X])[0], gradients(plain, [X])[0], rtol=1e-6)


def test_variables_train_in_a_graph() -> None:
    """A step of gradient descent and running statistics, both as eager."""
    results = []
    for wrap in (tf.function, lambda function: function):
        weight, bias = tf.Variable(tf.ones(6)), tf.Variable(tf.zeros(6))
        mean, var, count = tf.Variable(tf.zeros(6)), tf.Variable(tf.ones(6)), tf.Variable(0, dtype=tf.int64)

        @wrap
        def step(x: Any, parameters: Any = (weight, bias), states: Any = (mean, var), count: Any = count) -> Any:
            with tf.GradientTape() as tape:
                y = nt.batch_norm(x, *parameters, *states, num_batches_tracked=count, training=True, activation="relu")
                total = loss(y)
            for variable, slope in zip(parameters, tape.gradient(total, parameters)):
                variable.assign_sub(0.1 * slope)
            return total

        totals = [step(X), step(2.0 * X)]
        results.append([*totals, weight.value(), bias.value(), mean.value(), var.value(), count.value()])
    for graph, eager in zip(*results, strict=True):
        np.testing.assert_allclose(graph, eager, rtol=1e-6)
    assert int(results[0][-1]) == 2


def test_persistent_tapes_around_a_graph() -> None:
    run = tf.function(lambda x: nt.layer_norm(x, activation="silu"))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(X)
        y = run(X)
        total, square = tf.reduce_sum(y[:, :2]), tf.reduce_sum(y * y)
    for each, ours in ((total, lambda y: tf.reduce_sum(y[:, :2])), (square, lambda y: tf.reduce_sum(y * y))):
        with tf.GradientTape() as plain:
            plain.watch(X)
            want = ours(nt.layer_norm(X, activation="silu"))
        np.testing.assert_array_equal(tape.gradient(each, X), plain.gradient(want, X))


# ---- What is refused, with one sentence ----


@pytest.mark.parametrize("case", FEW[::2], ids=lambda case: case.name)
def test_second_derivatives_are_refused(case: Case) -> None:
    def twice(*given: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(given)
            slope = loss(gradients(case.ours, list(given)))
        return outer.gradient(slope, given)

    tensors = case.tensors("float32")
    for function in (twice, tf.function(twice)):
        with pytest.raises(NotImplementedError, match=r"normact\.tensorflow: \w+ was differentiated twice"):
            function(*tensors)


@pytest.mark.parametrize("wrap", [lambda function: function, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize(
    ("ours", "count"),
    [
        (lambda x: nt.sigmoid(x), 1),
        (lambda x, bias: nt.tanh(x, bias=bias), 2),
        (lambda x, bias: nt.relu(x, bias=bias), 2),
        (lambda x, residual: nt.rms_norm(x, residual=residual), 2),
        (lambda x, residual: nt.layer_norm(x, residual=residual), 2),
        (lambda x, addend: nt.batch_norm(x, addend=addend, training=True, activation="relu"), 2),
    ],
    ids=["sigmoid", "tanh", "relu", "rms_norm", "layer_norm", "batch_norm"],
)
def test_second_derivatives_are_refused_where_an_output_is_kept(wrap: Any, ours: Any, count: int) -> None:
    """Of each input alone: only by way of the output is it known that the gradient depends on it."""
    tensors = [tf.constant([[0.5, -1.0], [2.0, 1.0]]), tf.constant([[1.5, 0.5], [-2.0, 1.0]])][:count]
    if count == 2 and "bias" in ours.__code__.co_varnames:
        tensors[1] = tensors[1][0]

    @wrap
    def twice(place: int, *given: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(given[place])
            with tf.GradientTape() as inner:
                inner.watch(given)
                total = loss(ours(*given))
            slope = tf.reduce_sum(inner.gradient(total, given[0]) ** 2)
        return outer.gradient(slope, given[place])

    for place in range(count):
        with pytest.raises(NotImplementedError, match=r"normact\.tensorflow: \w+ was differentiated twice"):
            twice(place, *tensors)


def test_forward_mode_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="differentiated twice"):
        with tf.autodiff.ForwardAccumulator(X, tf.ones_like(X)) as accumulator:
            accumulator.jvp(nt.rms_norm(X))


@pytest.mark.parametrize("wrap", [lambda function: function, tf.function], ids=["eager", "graph"])
def test_wrong_tensors(wrap: Any) -> None:
    """Found before anything runs, and so in a graph when it is made."""
    known = "expected float64, float32, float16 or bfloat16"
    float8 = tf.cast(X, tf.dtypes.experimental.float8_e4m3fn)
    for value, what in ((tf.ones((3, 4), tf.int32), "int32"), (float8, "float8_e4m3fn"), (tf.constant("a"), "string")):
        with pytest.raises(TypeError, match=f"layer_norm: x has dtype {what}; {known}"):
            wrap(lambda value=value: nt.layer_norm(value))()
        with pytest.raises(TypeError, match=f"gated: up has dtype {what}; {known}"):
            wrap(lambda value=value: nt.gated(X, value))()
    ragged = tf.ragged.constant([[1.0], [1.0, 2.0]])
    with pytest.raises(TypeError, match=r"gelu: x is of type \S+RaggedTensor; expected a tf\.Tensor, a tf\.Variable"):
        wrap(lambda: nt.gelu(ragged))()
    with pytest.raises(TypeError, match=r"rms_norm: weight is of type builtins\.object; expected a tf\.Tensor"):
        wrap(lambda: nt.rms_norm(X, object()))()
    for name in ("running_mean", "running_var"):
        given: Any = {"running_mean": tf.Variable(tf.ones(6)), "running_var": tf.Variable(tf.ones(6)), name: X[0]}
        for function in (lambda **g: nt.batch_norm(X, training=True, **g), lambda **g: nt.instance_norm(X, **g)):
            with pytest.raises(ValueError, match=rf"_norm: {name} is of type \S+Tensor, which cannot be updated"):
                wrap(lambda function=function, given=given: function(**given))()


wrong: Any = nt  # no type is checked

WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "weight": (
        lambda: nt.layer_norm(X, tf.ones(5)),
        ValueError,
        r"layer_norm: weight has shape \(5,\); expected \(6,\)",
    ),
    "dtype": (
        lambda: nt.rms_norm(X, tf.ones(6, "float64")),
        ValueError,
        "rms_norm: weight has dtype float64; expected",
    ),
    "kind": (lambda: nt.activation(X, "gulu"), ValueError, "activation: kind is 'gulu'; expected one of"),
    "axis": (lambda: nt.swiglu(X, axis=2), ValueError, "swiglu: axis is 2; expected an axis of gate"),
    "groups": (lambda: nt.group_norm(X, 4), ValueError, "group_norm: num_groups is 4"),
    "many groups": (lambda: nt.group_norm(X, 10**13), ValueError, "group_norm: num_groups is 10000000000000; expected"),
    "too many groups": (lambda: nt.group_norm(X, 10**30), ValueError, "group_norm: num_groups is 10+; expected"),
    "no groups": (lambda: wrong.group_norm(X, None), TypeError, "group_norm: num_groups is of type NoneType; expected"),
    "axis of no number": (lambda: wrong.swiglu(X, axis="a"), TypeError, "swiglu: axis is of type str; expected an int"),
    "no axis": (lambda: wrong.swiglu(X, axis=None), TypeError, "swiglu: axis is of type NoneType; expected an int"),
    "float axis": (lambda: wrong.swiglu(X, axis=1.0), TypeError, "swiglu: axis is of type float; expected an int"),
    "kinds": (lambda: wrong.activation(X, ["relu"]), ValueError, r"activation: kind is \['relu'\]; expected one of"),
    "activations": (
        lambda: wrong.batch_norm(X, addend=X, training=True, activation=["relu"]),
        ValueError,
        r"batch_norm: activation is \['relu'\]; expected one of",
    ),
    "alone": (lambda: nt.batch_norm(X[:1], training=True), ValueError, "batch_norm: "),
    "bias": (lambda: nt.gated(X, X, bias=X[0]), TypeError, r"gated: bias is of type \S+; expected a pair"),
    "running": (lambda: nt.batch_norm(X, running_mean=X[0]), ValueError, "batch_norm: running_"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str) -> None:
    """Found by the library; when a graph runs, TensorFlow makes an error of its own of that, which says the same."""
    function, error, match = WRONG[name]
    with pytest.raises(error, match=match):
        function()
    with tf.GradientTape() as tape, pytest.raises(error, match=match):
        tape.watch(X)
        function()
    with pytest.raises((error, tf.errors.InvalidArgumentError), match=match):
        tf.function(function)()


@pytest.mark.parametrize("wrap", [lambda function: function, tf.function], ids=["eager", "graph"])
def test_statistics_of_wrong_dtypes(wrap: Any) -> None:
    """Nothing is truncated to them."""
    mean, var, whole = tf.Variable(tf.zeros(6)), tf.Variable(tf.ones(6)), tf.Variable(tf.zeros(6, tf.int32))
    half, given = tf.Variable(0.5), {"training": True}
    for states, sentence in (
        ((whole, var), "running_mean has dtype int32; expected float64, float32, float16 or bfloat16"),
        ((mean, whole), "running_var has dtype int32; expected float64, float32, float16 or bfloat16"),
        ((mean, var, half), "num_batches_tracked has dtype float32; expected an integer one"),
    ):
        options: Any = given | ({"num_batches_tracked": states[2]} if len(states) == 3 else {})
        with pytest.raises(TypeError, match=f"batch_norm: {sentence}"):
            wrap(lambda states=states, options=options: nt.batch_norm(X, None, None, *states[:2], **options))()
    assert not np.any(mean) and not np.any(whole) and float(half) == 0.5


def test_a_flag_is_no_value_of_a_graph() -> None:
    """An eager tensor is taken."""
    yes = tf.constant(True)
    np.testing.assert_array_equal(wrong.batch_norm(X, training=yes), nt.batch_norm(X, training=True))
    with pytest.raises(TypeError, match=r"batch_norm: training is of type \S+Tensor; expected a bool that is no value"):
        tf.function(lambda flag: wrong.batch_norm(X, training=flag))(yes)
    with pytest.raises(TypeError, match=r"instance_norm: use_input_stats is of type \S+Tensor; expected a bool"):
        tf.function(lambda flag: wrong.instance_norm(X, use_input_stats=flag))(yes)


def test_models_that_are_being_built() -> None:
    import keras

    with pytest.raises(TypeError, match=r"gelu: x is of type \S+KerasTensor, .* or a layer of normact\.keras here"):
        nt.gelu(keras.Input((4,)))


def test_xla_is_refused_by_tensorflow() -> None:
    """With its own words, as the documents say."""
    with pytest.raises(tf.errors.InvalidArgumentError, match="EagerPyFunc"):
        tf.function(nt.gelu, jit_compile=True)(X)


def test_raw_functions_say_where_graphs_work() -> None:
    with pytest.raises(
        TypeError, match=r"x is of type \S+SymbolicTensor; expected an eager tensor.*normact\.tensorflow"
    ):
        tf.function(normact.gelu, autograph=False)(X)


# ---- Logical devices ----


def test_devices_are_kept() -> None:
    """On the second of two CPU devices; a fresh process, as TensorFlow counts its devices once."""
    program = """
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import normact.tensorflow as nt
with tf.device("CPU:1"):
    x = tf.random.normal((3, 4))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = nt.layer_norm(x)
    assert y.device == tape.gradient(y, x).device == x.device and x.device.endswith("CPU:1"), (x.device, y.device)
    z = tf.function(nt.layer_norm)(x)
    assert bool(tf.reduce_all(y == z))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- Documents ----

MODULES = [
    "normact.tensorflow",
    *(
        f"normact.tensorflow.{each.name}"
        for each in pkgutil.iter_modules(importlib.import_module(nt.__name__).__path__)
    ),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_public_names_are_documented() -> None:
    for name in nt.__all__:
        assert inspect.getdoc(getattr(nt, name)), name
