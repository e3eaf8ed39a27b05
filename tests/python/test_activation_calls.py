# SPDX-License-Identifier: Apache-2.0
"""Activations as they are called: layouts, bias axes and their gradients, masks, outputs, shapes, bits."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import normact
import reference_activation
from activation_cases import FROM_OUTPUT, KINDS, Kind, Problem, expected, inputs, positive_bits
from activation_checks import Arrays, Output, arrays, backward, check, forward
from cases import DTYPES
from checks import compare
from devices import Device
from layouts import LAYOUTS, supported
from test_determinism import assert_same_bits

both_dtypes = pytest.mark.parametrize(("dtype", "bias_dtype"), DTYPES, ids=["-".join(pair) for pair in DTYPES])
dtypes = pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])


def channels_last(device: Device, values: np.ndarray, dtype: str) -> Any:
    """NCHW in shape, NHWC in memory."""
    array = device.array(np.moveaxis(values, 1, -1), dtype)
    return array.transpose(0, 3, 1, 2) if device.negative_strides else array.permute(0, 3, 1, 2)


# ---- Every kind, layout and bias ----


@both_dtypes
def test_every_kind(device: Device, dtype: str, bias_dtype: str) -> None:
    """Both directions, with and without a bias, over sizes around every vector width."""
    for name in KINDS:
        kind = Kind(name)
        for shape in ((1,), (7,), (3, 65), (5, 256), (2, 3, 33), (1, 4099)):
            check(device, Problem(kind, shape, dtype))
            check(device, Problem(kind, shape, dtype, bias_dtype))


@dtypes
def test_every_layout(device: Device, dtype: str) -> None:
    """x and dy each in every layout, alone and together, with a bias along the last and another axis."""
    for name, layout in [("gelu", name) for name in LAYOUTS] + [("relu", "row_strided"), ("tanh", "transposed")]:
        if not supported(layout, device):
            continue
        for shape, axis in (((5, 33), -1), ((6, 64), 0), ((3, 4, 70), 1), ((2, 3, 5, 17), 2)):
            for bias in (None, dtype):
                problem = Problem(Kind(name), shape, dtype, bias, axis, equal_rows=layout == "expanded")
                if layout == "expanded" and axis % len(shape) == 0:
                    problem = replace(problem, axis=-1)
                check(device, problem, layout, layout)
                check(device, problem, layout, "contiguous")
                check(device, problem, "contiguous", layout)


@both_dtypes
def test_every_bias_axis(device: Device, dtype: str, bias_dtype: str) -> None:
    """The last axis, images, a middle one; one channel, few rows and many; in NCHW, NHWC and strided memory."""
    shapes = (
        ((7, 130), (0, 1, -1, -2)),
        ((2, 6, 5, 9), (0, 1, 2, 3, -3)),
        ((3, 1, 40), (1,)),
        ((40, 1), (1, 0)),
        ((1, 70), (0, 1)),
        ((1, 3, 4096), (1, 2)),
        ((2, 300, 33), (1,)),
    )
    for kind in (Kind("silu"), Kind("relu")):
        for shape, axes in shapes:
            for axis in axes:
                check(device, Problem(kind, shape, dtype, bias_dtype, axis))
        check(device, Problem(kind, (2, 6, 5, 9), dtype, bias_dtype, 1), channels_last, channels_last)
        check(device, Problem(kind, (2, 6, 5, 9), dtype, bias_dtype, 1), channels_last, "contiguous")
        check(device, Problem(kind, (2, 6, 5, 9), dtype, bias_dtype, 2), "row_strided_odd", channels_last)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_over_many_elements(device: Device, dtype: str) -> None:
    """Where a running sum in the output's dtype would stall."""
    for shape, axis in (((50_000, 8), 1), ((8, 30_000), 0), ((64, 3, 1000), 1), ((100_000, 1), 1)):
        check(device, Problem(Kind("silu"), shape, dtype, dtype, axis))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_bias_is_added_in_float32(device: Device, dtype: str) -> None:
    """A sum that 16 bits could not hold reaches the activation whole."""
    x = device.array(np.full((2, 9), 1.0), dtype)
    small = device.array(np.full(9, 2.0**-12), "float32")
    want = device.array(np.full((2, 9), 1 + 2.0**-12), "float32")
    found = normact.squared_relu(
        device.array(np.full((2, 9), -1.0), dtype), bias=device.array(np.full(9, 1 + 2.0**-12), "float32")
    )
    np.testing.assert_array_equal(device.values(found), 2.0**-24)
    dx = normact.squared_relu_backward(device.array(np.full((2, 9), 2.0**9), dtype), x, bias=small).dx
    exact = normact.squared_relu_backward(device.array(np.full((2, 9), 2.0**9), "float32"), want).dx
    np.testing.assert_array_equal(device.values(dx), device.values(device.array(device.values(exact), dtype)))


def test_bias_is_needed_in_the_backward(device: Device) -> None:
    """The slope is that at x + bias, and dbias has the dtype of the bias."""
    problem = Problem(Kind("silu"), (4, 20), "bfloat16", "float32")
    given = arrays(device, problem)
    grads = backward(problem, given)
    assert device.dtype_name(grads.dbias) == "float32"
    assert (device.values(grads.dx) != device.values(backward(problem, given._replace(bias=None)).dx)).any()


# ---- From the output, from the mask ----


@both_dtypes
@pytest.mark.parametrize("name", FROM_OUTPUT)
def test_backward_from_the_output(device: Device, name: str, dtype: str, bias_dtype: str) -> None:
    """dx and dbias from y are those that the y at hand tells; the values of the bias are not looked at."""
    problem = Problem(Kind(name), (6, 4, 33), dtype, bias_dtype, 1)
    given = arrays(device, problem)
    y = forward(problem, given)
    slope = problem.kind.slope_from_output(device.values(y))
    dx = inputs(problem).dy * slope
    unit = 4 * 2.0 ** -(52 if dtype == "float64" else 23)
    poisoned = given._replace(bias=device.array(np.full(4, np.nan), bias_dtype))
    for options in ({"y": y}, {"y": y, "out": y}):
        grads = backward(problem, poisoned, **options)
        accuracy = unit if dtype in ("float64", "float32") else 2.0**-8
        np.testing.assert_allclose(device.values(grads.dx), dx, rtol=accuracy, atol=accuracy)
        np.testing.assert_allclose(device.values(grads.dbias), dx.sum((0, 2)), rtol=accuracy, atol=200 * accuracy)
        if "out" not in options:
            np.testing.assert_array_equal(
                device.values(backward(problem, given._replace(bias=None), y=y).dx), device.values(grads.dx)
            )


@dtypes
def test_masks(device: Device, dtype: str) -> None:
    """The bits are those of x + bias > 0 in row-major order, whatever the memory; what they give back is the slope."""
    for shape, axis in (((1,), -1), ((8,), 0), ((3, 5), 0), ((7, 129), 1), ((2, 3, 4, 5), 1), ((4, 1000), -1)):
        for bias in (None, dtype):
            problem = Problem(Kind("relu"), shape, dtype, bias, axis)
            want = expected(problem)
            for layout in ("contiguous", "transposed", "row_strided_odd", "offset_by_one"):
                given = arrays(device, problem, layout, "every_second_column")
                found = forward(problem, given, return_mask=True)
                assert isinstance(found, normact.ActivationOutput)
                assert device.dtype_name(found.mask) == "uint8"
                np.testing.assert_array_equal(device.values(found.mask), positive_bits(problem), f"{problem}, {layout}")
                np.testing.assert_array_equal(device.bits(found.y), device.bits(forward(problem, given)))
                grads = backward(problem, given, mask=found.mask)
                compare(device, grads, want, f"{problem} from the mask, {layout}")
                assert_same_bits(device, grads, backward(problem, given), f"{problem}, {layout}")


def test_masks_of_special_values(device: Device) -> None:
    """Neither zero nor NaN is positive, and a mask in memory of its own is used as it is."""
    x = device.array(np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1.0, 2.0]), "float32")
    y, mask = normact.relu(x, return_mask=True)
    np.testing.assert_array_equal(device.values(mask), [0b10101000, 1])
    again = device.empty_like(mask)
    output = normact.relu(x, return_mask=True, out=(device.empty_like(y), again))
    assert output.mask is again
    np.testing.assert_array_equal(device.values(again), device.values(mask))
    dy = device.array(np.arange(1.0, 10.0), "float32")
    np.testing.assert_array_equal(device.values(normact.relu_backward(dy, mask=mask).dx), [0, 0, 0, 4, 0, 6, 0, 8, 9])


@pytest.mark.parametrize("layout", ["contiguous", "every_second_column"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("cols", [40, 41, 48])
def test_without_a_bias_zeros_keep_their_sign(device: Device, dtype: str, layout: str, cols: int) -> None:
    """However they lie in memory, also in gates."""
    x = LAYOUTS[layout](device, np.full((3, cols), -0.0), dtype)
    assert np.signbit(device.values(normact.activation(x, "identity"))).all()
    one = device.array(np.ones((3, cols)), dtype)
    assert np.signbit(device.values(normact.gated(x, one, "identity"))).all()
    assert np.signbit(device.values(normact.gated(one, x, "identity"))).all()
    if cols % 2:
        return
    pairs = LAYOUTS[layout](device, np.tile([-0.0, 1.0], (3, cols // 2)), dtype)
    assert np.signbit(device.values(normact.gated(pairs, kind="identity", layout="interleaved"))).all()


# ---- Outputs ----


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "row_strided", "every_second_column"])
def test_outputs_have_the_layout_of_x(device: Device, layout: str) -> None:
    problem = Problem(Kind("gelu"), (6, 5, 8))
    given = arrays(device, problem, layout, "contiguous")
    want = device.strides(device.empty_like(given.x))
    assert device.strides(forward(problem, given)) == want
    assert device.strides(backward(problem, given).dx) == want


@dtypes
def test_given_outputs(device: Device, dtype: str) -> None:
    """`out` is written and returned, also as a strided view; what is beside the view stays."""
    problem = Problem(Kind("mish"), (6, 37), dtype, dtype)
    given, want = arrays(device, problem), expected(problem)
    storage = device.array(np.zeros((6, 40)), dtype)
    y = storage[:, :37]
    for out in (y, (y,), (y, None)):
        assert forward(problem, given, out=out) is y
    compare(device, Output(y), want, "into a view")
    assert (device.values(storage)[:, 37:] == 0).all(), "written past the end of the rows"
    dx, dbias = device.empty_like(given.x), device.empty_like(given.bias)
    grads = backward(problem, given, out=(dx, dbias))
    assert grads.dx is dx
    assert grads.dbias is dbias
    compare(device, grads, want, "into out")
    assert backward(problem, given, out=dx).dbias is not dbias


@both_dtypes
def test_in_place(device: Device, dtype: str, bias_dtype: str) -> None:
    """y = x, dx = dy, x or y: the bits of the call out of place."""
    for shape in ((1,), (3, 33), (4, 1000), (2, 40_000)):
        problem = Problem(Kind("sigmoid"), shape, dtype, bias_dtype)
        given = arrays(device, problem)
        y, grads = forward(problem, given), backward(problem, given)
        assert forward(problem, given, out=given.x) is given.x
        np.testing.assert_array_equal(device.bits(given.x), device.bits(y))
        for name in ("x", "dy"):
            again = arrays(device, problem)
            assert_same_bits(device, backward(problem, again, out=getattr(again, name)), grads, f"dx over {name}")
        from_output = backward(problem, arrays(device, problem), y=y)
        assert_same_bits(device, backward(problem, arrays(device, problem), y=y, out=y), from_output, "dx over y")


def test_inputs_are_left_alone(device: Device) -> None:
    problem = Problem(Kind("relu"), (17, 130), "bfloat16", "float32")
    given = arrays(device, problem)
    before = [device.values(array).copy() for array in given]
    forward(problem, given, return_mask=True)
    backward(problem, given)
    for array, values in zip(given, before, strict=True):
        np.testing.assert_array_equal(device.values(array), values)


# ---- Shapes ----


@both_dtypes
def test_no_elements(device: Device, dtype: str, bias_dtype: str) -> None:
    """Outputs are empty; dbias is zero, not garbage."""
    for shape, axis in (((0,), 0), ((0, 7), 1), ((2, 0, 64), 2), ((5, 0), 0), ((3, 0), 1)):
        problem = Problem(Kind("relu"), shape, dtype, bias_dtype, axis)
        given = arrays(device, problem)
        y, mask = forward(problem, given, return_mask=True)
        assert tuple(y.shape) == shape
        assert tuple(mask.shape) == (0,)
        grads = backward(problem, given)
        assert tuple(grads.dx.shape) == shape
        assert tuple(grads.dbias.shape) == (shape[axis],)
        assert (device.values(grads.dbias) == 0).all()


def test_scalars_and_dimensions_of_one(device: Device) -> None:
    """An activation needs no axis as long as there is no bias; dimensions of size 1 may carry any stride."""
    for name in KINDS:
        kind = Kind(name)
        x = device.array(np.array(0.5), "float32")
        y = normact.activation(x, name, **kind.numbers)
        assert tuple(y.shape) == ()
        np.testing.assert_allclose(device.values(y), kind.value(np.array(0.5)), rtol=1e-6)
        assert tuple(normact.activation_backward(x, x, name).dx.shape) == ()
    for shape, axis in (((1, 5, 1, 8), 3), ((4, 1, 1), 0), ((1, 1), 1)):
        check(device, Problem(Kind("elu"), shape, bias="float32", axis=axis), "row_strided_odd", "transposed")


def test_many_dimensions(device: Device) -> None:
    problem = Problem(Kind("silu"), (2, 1, 3, 2, 2, 3, 1, 5), bias="float32", axis=2)
    for layout in ("contiguous", "transposed", "every_second_column"):
        check(device, problem, layout, "contiguous")


# ---- Functions ----


def test_every_kind_has_its_functions(device: Device) -> None:
    """`name(x)` is `activation(x, "name")`, in both directions and bit for bit, with the defaults of its numbers."""
    for name in KINDS:
        x = device.array(np.linspace(-5, 5, 41), "float32")
        function, gradient = getattr(normact, name), getattr(normact, f"{name}_backward")
        assert function.__name__ == function.__qualname__ == name
        assert gradient.__name__ == gradient.__qualname__ == f"{name}_backward"
        bias = device.array(np.linspace(-1, 1, 41), "float32")
        np.testing.assert_array_equal(
            device.bits(function(x, bias=bias)), device.bits(normact.activation(x, name, bias=bias))
        )
        grads, want = gradient(x, x, bias=bias, axis=0), normact.activation_backward(x, x, name, bias=bias)
        assert_same_bits(device, grads, want, name)
        assert ("y" in inspect.signature(gradient).parameters) == (name in FROM_OUTPUT)
        assert hasattr(reference_activation, name)


def test_defaults_are_those_of_the_papers(device: Device) -> None:
    x = device.array(np.array([-2.0, 1.0, 30.0]), "float64")
    for function, want in (
        (normact.leaky_relu, [-0.02, 1.0, 30.0]),
        (normact.elu, [np.expm1(-2.0), 1.0, 30.0]),
        (normact.softplus, [np.log1p(np.exp(-2.0)), np.log1p(np.exp(1.0)), 30.0]),
    ):
        np.testing.assert_allclose(device.values(function(x)), want, rtol=1e-15)
    np.testing.assert_array_equal(device.bits(normact.gelu(x, approximate="tanh")), device.bits(normact.gelu_tanh(x)))
    np.testing.assert_array_equal(
        device.bits(normact.gelu_backward(x, x, approximate="tanh").dx),
        device.bits(normact.gelu_tanh_backward(x, x).dx),
    )


# ---- Bits ----


@dtypes
def test_repeated_runs(device: Device, dtype: str) -> None:
    for shape, axis in (((997, 257), 1), ((3, 65536), 1), ((20_000, 16), 1), ((16, 8, 999), 1)):
        problem = Problem(Kind("gelu"), shape, dtype, "float64" if dtype == "float64" else "float32", axis)
        given = arrays(device, problem)
        y, grads = Output(forward(problem, given)), backward(problem, given)
        for run in range(3):
            assert_same_bits(device, Output(forward(problem, given)), y, f"run {run}")
            assert_same_bits(device, backward(problem, given), grads, f"run {run}")


@dtypes
def test_an_element_does_not_depend_on_its_place(device: Device, dtype: str) -> None:
    """Alone, in a slice at any offset or in any layout: the same bits."""
    problem = Problem(Kind("gelu_tanh"), (4, 1003), dtype)
    given = arrays(device, problem)
    y, dx = device.bits(forward(problem, given)), device.bits(backward(problem, given).dx)
    for start, stop in ((0, 1), (1, 1003), (3, 20), (5, 6), (500, 1002)):
        some = Arrays(given.x[:, start:stop], None, given.dy[:, start:stop])
        np.testing.assert_array_equal(device.bits(forward(problem, some)), y[:, start:stop])
        np.testing.assert_array_equal(device.bits(backward(problem, some).dx), dx[:, start:stop])
    for layout in ("transposed", "every_second_column", "offset_by_one"):
        np.testing.assert_array_equal(device.bits(forward(problem, arrays(device, problem, layout))), y)


@pytest.fixture
def restore_threads() -> Iterator[None]:
    before = normact.get_num_threads()
    yield
    normact.set_num_threads(before)


@pytest.mark.cpu
@pytest.mark.usefixtures("restore_threads")
@dtypes
def test_thread_count(device: Device, dtype: str) -> None:
    for shape, axis in (((1, 100_003), 1), ((997, 257), 1), ((40_000, 24), 1), ((6, 40, 1000), 1), ((40, 20_000), 0)):
        problem = Problem(Kind("relu"), shape, dtype, dtype, axis)
        given = arrays(device, problem)
        normact.set_num_threads(1)
        y, grads = forward(problem, given, return_mask=True), backward(problem, given)
        for threads in (2, 4, 7):
            normact.set_num_threads(threads)
            assert_same_bits(device, backward(problem, given), grads, f"{threads} threads")
            again = forward(problem, given, return_mask=True)
            np.testing.assert_array_equal(device.bits(again.y), device.bits(y.y))
            np.testing.assert_array_equal(device.values(again.mask), device.values(y.mask))
