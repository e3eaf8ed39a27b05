# SPDX-License-Identifier: Apache-2.0
"""Shapes at the ends of the range, and outputs written where the caller says: `out=`, in place."""

from __future__ import annotations

import numpy as np
import pytest

import normact
from cases import DTYPES, Problem, expected_backward, expected_forward, inputs
from checks import Arrays, arrays, assert_within, backward, check, compare, forward
from devices import Device

both_dtypes = pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES, ids=["-".join(pair) for pair in DTYPES])


@both_dtypes
def test_no_rows(device: Device, kind: str, dtype: str, parameter_dtype: str) -> None:
    """Outputs of x's shape are empty; the gradients of weight and bias are zero, not garbage."""
    for shape in ((0, 7), (2, 0, 64), (0, 0, 1000)):
        for residual in (False, True):
            problem = Problem(kind, shape, dtype, parameter_dtype, residual=residual)
            check(device, problem)
            grads = backward(problem, arrays(device, problem))
            assert (device.values(grads.dweight) == 0).all()
            assert (device.values(grads.dbias) == 0).all()


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_no_columns(device: Device, kind: str, dtype: str) -> None:
    """Rows without elements: everything of x's or the weight's shape is empty."""
    x = device.array(np.empty((3, 0)), dtype)
    weight = device.array(np.empty(0), dtype)
    y = getattr(normact, kind)(x, weight, weight)
    assert tuple(y.shape) == (3, 0)
    statistic = device.array(np.ones(3), "float64" if dtype == "float64" else "float32")
    statistics = {"rstd": statistic} if kind == "rms_norm" else {"mean": statistic, "rstd": statistic}
    grads = getattr(normact, f"{kind}_backward")(x, x, weight, weight, **statistics)
    assert tuple(grads.dx.shape) == (3, 0)
    assert tuple(grads.dweight.shape) == (0,)
    assert tuple(grads.dbias.shape) == (0,)


@both_dtypes
def test_one_dimension(device: Device, kind: str, dtype: str, parameter_dtype: str) -> None:
    """A single row; mean and rstd have no dimensions."""
    for cols in (1, 4, 33, 1000, 40_000):
        check(device, Problem(kind, (cols,), dtype, parameter_dtype, residual=True))
    check(device, Problem(kind, (2, 3, 4), dtype, parameter_dtype, norm_ndim=3))


@pytest.mark.parametrize("rows", [65535, 65536, 65537])
def test_rows_around_the_grid_limit(device: Device, kind: str, rows: int) -> None:
    """2^16 is the limit of a grid's y and z dimensions."""
    check(device, Problem(kind, (rows, 3), "float32"))


def test_many_rows_of_one_column(device: Device, kind: str) -> None:
    check(device, Problem(kind, (300_001, 1), "float32"))


def test_size_one_dimensions(device: Device, kind: str) -> None:
    """Dimensions of size 1 may carry any stride."""
    for shape, norm_ndim in (((1, 5, 1, 8), 1), ((4, 1, 1), 2), ((1, 1), 1)):
        problem = Problem(kind, shape, norm_ndim=norm_ndim)
        check(device, problem)
        check(device, problem, "row_strided_odd", "transposed")


def test_scalars_are_refused(device: Device, kind: str) -> None:
    with pytest.raises(ValueError, match="axis|axes|rank|dimension"):
        getattr(normact, kind)(device.array(np.array(1.0), "float32"))


# ---- out= ----


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("cols", [7, 64, 1000, 4096])
def test_given_outputs(device: Device, kind: str, dtype: str, cols: int) -> None:
    """`out` is written and returned: a bare y, a named tuple, also into a strided view."""
    problem = Problem(kind, (6, cols), dtype, residual=True)
    given = arrays(device, problem)
    want = forward(problem, given, return_stats=True)
    outputs = normact.NormOutput(*(None if field is None else device.empty_like(field) for field in want))
    result = forward(problem, given, return_stats=True, out=outputs)
    for found, output in zip(result, outputs, strict=True):
        assert found is output
    compare(device, result, expected_forward(problem), f"{problem} into out")

    plain = Problem(kind, (6, cols), dtype)
    given = arrays(device, plain)
    wide = device.array(np.zeros((6, cols + 3)), dtype)
    result = forward(plain, given, out=wide[:, :cols])
    assert_within(device.values(wide[:, :cols]), expected_forward(plain)["y"], f"{plain} into a strided view")
    np.testing.assert_array_equal(device.bits(result), device.bits(wide[:, :cols]))
    assert (device.values(wide[:, cols:]) == 0).all(), "written past the end of the rows"


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_given_gradients(device: Device, kind: str, dtype: str) -> None:
    problem = Problem(kind, (50, 130), dtype, residual=True)
    given = arrays(device, problem)
    want = backward(problem, given)
    outputs = normact.NormGrads(*(None if field is None else device.empty_like(field) for field in want))
    result = backward(problem, given, out=outputs)
    assert result.dx is outputs.dx
    assert result.dweight is outputs.dweight
    assert result.dbias is outputs.dbias
    compare(device, result, expected_backward(problem), f"{problem} into out")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("cols", [7, 64, 1000, 4097, 12_289, 40_000])
def test_in_place(device: Device, kind: str, dtype: str, cols: int) -> None:
    """y = x, residual = residual or x, dx = dy, x or dresidual: the bits of the call out of place."""
    plain = Problem(kind, (5, cols), dtype)
    want = device.bits(forward(plain, arrays(device, plain)))
    given = arrays(device, plain)
    assert forward(plain, given, out=given.x) is given.x
    np.testing.assert_array_equal(device.bits(given.x), want)

    fused = Problem(kind, (5, cols), dtype, residual=True)
    separate = forward(fused, arrays(device, fused))
    for y_name, residual_name in (("x", "residual"), (None, "x"), (None, "residual"), ("x", None)):
        given = arrays(device, fused)
        y, summed = (name and getattr(given, name) for name in (y_name, residual_name))
        result = forward(fused, given, out=normact.NormOutput(y, summed, None, None))
        assert y is None or result.y is y
        assert summed is None or result.residual is summed
        np.testing.assert_array_equal(device.bits(result.y), device.bits(separate.y))
        np.testing.assert_array_equal(device.bits(result.residual), device.bits(separate.residual))

    want_grads = backward(fused, arrays(device, fused))
    for name in ("dy", "s", "dresidual"):
        given = arrays(device, fused)
        grads = backward(fused, given, out=getattr(given, name))
        assert grads.dx is getattr(given, name)
        for field in ("dx", "dweight", "dbias"):
            np.testing.assert_array_equal(
                device.bits(getattr(grads, field)), device.bits(getattr(want_grads, field)), f"{field} over {name}"
            )


def test_inputs_are_left_alone(device: Device, kind: str) -> None:
    """Out of place by default: nothing that was passed in has changed afterwards."""
    problem = Problem(kind, (17, 130), "bfloat16", residual=True)
    given = arrays(device, problem)
    before = {name: device.values(array).copy() for name, array in vars(given).items() if array is not None}
    forward(problem, given, return_stats=True)
    backward(problem, given)
    for name, values in before.items():
        np.testing.assert_array_equal(device.values(getattr(given, name)), values, name)


def test_x_as_its_own_residual(device: Device, kind: str) -> None:
    """The same array may be passed twice: s = x + x."""
    problem = Problem(kind, (4, 65), "float32")
    given = arrays(device, problem)
    twice = Arrays(**{**vars(given), "residual": given.x})
    result = forward(problem, twice)
    np.testing.assert_array_equal(device.values(result.residual), 2 * inputs(problem).x)
