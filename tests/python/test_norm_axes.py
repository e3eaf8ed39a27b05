# SPDX-License-Identifier: Apache-2.0
"""layer_norm and rms_norm over axes that are not the last: any set of them, in any memory layout, without a copy."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import normact
from activation_cases import Kind
from cases import DTYPES, Problem, inputs
from checks import arrays, backward, check, forward
from devices import Device
from layouts import LAYOUTS, supported

both_dtypes = pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES, ids=["-".join(pair) for pair in DTYPES])

# Rows that lie side by side, columns far apart: lines of whole packs, of halves of these, of others, of less than a
# pack or a vector; lines and columns in two dimensions.
SIDE_BY_SIDE = (
    ((2, 12, 8, 8), (1,)),
    ((3, 50, 14, 14), (1,)),
    ((3, 5, 7, 7), (1,)),
    ((2, 33, 3), (1,)),
    ((2, 100, 1, 65), (1,)),
    ((70, 24), (0,)),
    ((9, 33), (0,)),
    ((7, 35, 2), (1,)),
    ((11, 20, 3), (1,)),
    ((9, 33, 4), (1,)),
    ((300, 3), (0,)),
    ((2100, 7), (0,)),
    ((50, 15), (0,)),
    ((4, 6, 3, 16), (0, 2)),
    ((2, 3, 4, 5, 24), (1, 2)),
    ((2, 12, 3, 8, 16), (1, 3)),
    ((2, 12, 3, 8, 5), (1, 3)),
)
OTHERS = (((2, 12, 3, 2), (1, 3)), ((2, 12, 3, 2), (0, 3)), ((3, 4, 5), (0, 2)), ((2, 3, 4, 5), (0, 2, 3)))
OTHERS += (
    ((2, 50, 3, 70), (1, 3)),
    ((2, 50, 3, 72), (1, 3)),
    ((9, 2, 15, 2, 24), (0, 2, 4)),
    ((3, 2, 5, 2, 7, 2, 9), (0, 2, 4, 6)),
)


def channels_last(device: Device, values: np.ndarray, dtype: str) -> Any:
    """Axis 1 is the fastest in memory."""
    array = device.array(np.moveaxis(values, 1, -1), dtype)
    back = (0, values.ndim - 1, *range(1, values.ndim - 1))
    return array.transpose(back) if device.negative_strides else array.permute(back)


@both_dtypes
@pytest.mark.parametrize(("shape", "axes"), SIDE_BY_SIDE + OTHERS, ids=str)
def test_any_axes(
    device: Device, kind: str, dtype: str, parameter_dtype: str, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    """Weight and bias have x's shape over the normalised axes, mean and rstd over the others, in x's order."""
    for residual, weight_offset in ((False, 0.0), (True, 1.0)):
        check(
            device,
            Problem(kind, shape, dtype, parameter_dtype, residual=residual, weight_offset=weight_offset, axes=axes),
        )
    check(device, Problem(kind, shape, dtype, parameter_dtype, weight=False, axes=axes))
    check(device, Problem(kind, shape, dtype, parameter_dtype, bias=False, axes=axes))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("cols", [1, 2, 15, 16, 17, 31, 64, 96, 257, 1000, 3000])
def test_every_number_of_columns(device: Device, kind: str, dtype: str, cols: int) -> None:
    """Few and many columns, lines of one tile and of several, whole packs and others."""
    for line in (1, 8, 31, 64, 200):
        if cols * line <= 200_000:
            check(device, Problem(kind, (2, cols, line), dtype, "float32" if dtype == "bfloat16" else None, axes=(1,)))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_long_columns(device: Device, kind: str, dtype: str) -> None:
    """As many as a tile of one lane takes on chip, and more than any does."""
    for cols in (2600, 4600, 9000, 20_000):
        check(device, Problem(kind, (cols, 24), dtype, axes=(0,)))


# Columns that no tile holds, of few and of many rows beside each other: a part of a warp, one, and more; a cluster of
# GPU blocks, parts of rows, and columns of a thread, whole or not.
LONG = (
    ((1_400, 37), (0,)),
    ((9_001, 3), (0,)),
    ((20_000, 20), (0,)),
    ((131_101, 3), (0,)),
    ((2, 9_300, 3, 5), (1,)),
    ((130, 3, 71, 2, 9), (0, 2)),
)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("shape", "axes"), LONG, ids=str)
def test_long_columns_beside_each_other(
    device: Device, kind: str, dtype: str, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    parameters = "float32" if dtype == "bfloat16" else None
    check(device, Problem(kind, shape, dtype, parameters, axes=axes))
    check(device, Problem(kind, shape, dtype, parameters, residual=True, weight_offset=1.0, axes=axes))
    check(device, Problem(kind, shape, dtype, parameters, axes=axes, activation=Kind("silu")))
    check(device, Problem(kind, shape, dtype, weight=False, axes=axes), "transposed", "transposed")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_long_columns_beside_a_wider_residual(device: Device, kind: str, dtype: str) -> None:
    for shape in ((9_001, 3), (1_400, 37)):
        check(device, Problem(kind, shape, dtype, "float32", residual=True, stream="float32", axes=(0,)))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("cols", [300, 1_100, 15_000])
def test_rows_do_not_depend_on_those_beside_them(device: Device, kind: str, dtype: str, cols: int) -> None:
    """Nor on how many there are: the same columns of a matrix, some or all."""
    problem = Problem(
        kind, (cols, 9_000 if cols < 1_000 else 1_100) if device.is_cuda else (cols, 70), dtype, axes=(0,)
    )
    given = arrays(device, problem)
    with normact.row_variant("stream") if device.is_cuda else nullcontext():
        y, dx = device.bits(forward(problem, given)), device.bits(backward(problem, given).dx)
        for rows in (slice(0, 2), slice(3, 7), slice(30, 69), slice(0, 300), slice(50, 700)):
            some = replace(
                given,
                **{name: getattr(given, name)[:, rows] for name in ("x", "s", "dy")},
                mean=None if given.mean is None else given.mean[rows],
                rstd=given.rstd[rows],
            )
            np.testing.assert_array_equal(device.bits(forward(problem, some)), y[:, rows], f"y of {rows}")
            np.testing.assert_array_equal(device.bits(backward(problem, some).dx), dx[:, rows], f"dx of {rows}")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("activation", ["relu", "silu", "gelu"])
def test_activations(device: Device, kind: str, dtype: str, activation: str) -> None:
    for shape in ((2, 12, 8, 8), (3, 40, 7, 7)):
        for residual in (False, True):
            check(device, Problem(kind, shape, dtype, residual=residual, axes=(1,), activation=Kind(activation)))
            check(device, Problem(kind, shape, dtype, weight=False, axes=(1,), activation=Kind(activation)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_layout(device: Device, kind: str, dtype: str) -> None:
    for name in LAYOUTS:
        if name == "expanded" or not supported(name, device):
            continue
        for shape in ((2, 24, 4, 16), (3, 10, 5, 5)):
            problem = Problem(kind, shape, dtype, residual=True, axes=(1,))
            check(device, problem, name, name)
            check(device, problem, name, "contiguous")
            check(device, problem, "contiguous", name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_channels_last(device: Device, kind: str, dtype: str) -> None:
    """Axis 1 of such a tensor is contiguous: the bits are those of the same rows over the last axis."""
    problem = Problem(kind, (2, 64, 5, 6), dtype, residual=True, axes=(1,))
    check(device, problem, channels_last, channels_last)
    check(device, problem, channels_last, "contiguous")
    given = arrays(device, problem, channels_last, channels_last)
    want = arrays(device, Problem(kind, (2, 5, 6, 64), dtype, residual=True))
    moved = np.moveaxis(inputs(problem).x, 1, -1)
    rows = getattr(normact, kind)(device.array(moved, dtype), given.weight, given.bias)
    y = getattr(normact, kind)(given.x, given.weight, given.bias, axis=1)
    assert want.x.shape == rows.shape
    np.testing.assert_array_equal(np.moveaxis(device.values(y), 1, -1), device.values(rows))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_outputs_keep_the_layout(device: Device, kind: str, dtype: str) -> None:
    problem = Problem(kind, (2, 24, 3, 8), dtype, axes=(1,))
    for layout in ("contiguous", channels_last):
        given = arrays(device, problem, layout, layout)
        want = device.strides(device.empty_like(given.x))
        assert device.strides(forward(problem, given)) == want
        assert device.strides(backward(problem, given).dx) == want


@pytest.mark.parametrize("axes", [(3,), (2,), (1, 3), (2, 3)], ids=str)
def test_statistics_lie_as_x(device: Device, axes: tuple[int, ...]) -> None:
    """So that what is beside each other in x is in them, and rows are found by the same steps."""
    problem = Problem("layer_norm", (3, 24, 5, 8), axes=axes)
    for layout in ("contiguous", channels_last):
        check(device, problem, layout, layout)
        given = arrays(device, problem, layout, layout)
        found = normact.layer_norm(given.x, axis=axes, return_stats=True)
        of_x, shape = device.strides(given.x), given.x.shape
        stays = [axis for axis in range(4) if axis not in axes]
        order = sorted(range(len(stays)), key=lambda place: -of_x[stays[place]])
        for statistic in (found.mean, found.rstd):
            strides, step = device.strides(statistic), 1
            assert tuple(statistic.shape) == tuple(shape[axis] for axis in stays)
            for place in reversed(order):
                assert strides[place] == step
                step *= shape[stays[place]]


def test_every_set_of_axes_in_any_order(device: Device, kind: str) -> None:
    """The order in which axes are named does not matter."""
    shape = (2, 3, 4, 5)
    x = device.array(inputs(Problem(kind, shape)).x, "float32")
    function = getattr(normact, kind)
    for count in range(1, len(shape) + 1):
        for axes in itertools.combinations(range(len(shape)), count):
            want = function(x, axis=axes, return_stats=True)
            assert tuple(want.rstd.shape) == tuple(n for d, n in enumerate(shape) if d not in axes)
            named = tuple(axis - len(shape) for axis in reversed(axes))
            np.testing.assert_array_equal(device.bits(function(x, axis=named)), device.bits(want.y))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("line", [64, 49])
def test_rows_do_not_depend_on_their_neighbours(device: Device, kind: str, dtype: str, line: int) -> None:
    """A row has the same bits in any batch and beside any other rows."""
    problem = Problem(kind, (5, 40, line), dtype, axes=(1,))
    values = inputs(problem).x
    function = getattr(normact, kind)
    given = arrays(device, problem)
    whole = device.bits(function(given.x, given.weight, given.bias, axis=1))
    one = device.bits(function(device.array(values[2:3], dtype), given.weight, given.bias, axis=1))
    np.testing.assert_array_equal(one, whole[2:3])
    swapped = device.bits(function(device.array(values[:, :, ::-1].copy(), dtype), given.weight, given.bias, axis=1))
    np.testing.assert_array_equal(swapped, whole[:, :, ::-1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("line", "axes"), [(8, (1,)), (8, (1, 3)), (7, (1, 3))])
def test_in_place(device: Device, kind: str, dtype: str, line: int, axes: tuple[int, ...]) -> None:
    problem = Problem(kind, (3, 24, 4, line), dtype, axes=axes)
    given = arrays(device, problem)
    want = device.bits(forward(problem, given))
    forward(problem, given, out=given.x)
    np.testing.assert_array_equal(device.bits(given.x), want)
    fresh = arrays(device, problem)
    dx = device.bits(backward(problem, fresh).dx)
    backward(problem, fresh, out=fresh.dy)
    np.testing.assert_array_equal(device.bits(fresh.dy), dx)


def test_large_means_do_not_cancel(device: Device) -> None:
    """mean/std = 1e4, where E[x^2] - E[x]^2 has no digit left in float32."""
    for shape in ((2, 768, 64), (2, 300, 49), (5000, 24)):
        check(device, Problem("layer_norm", shape, mean=1e4, axes=(len(shape) - 2,)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nan_stays_in_its_row(device: Device, kind: str, dtype: str) -> None:
    for line in (16, 7):
        values = inputs(Problem(kind, (3, 20, line), dtype, axes=(1,))).x.copy()
        clean = device.values(getattr(normact, kind)(device.array(values, dtype), axis=1))
        values[1, 4, 2] = np.nan
        y = device.values(getattr(normact, kind)(device.array(values, dtype), axis=1))
        assert np.isnan(y[1, :, 2]).all()
        clean[1, :, 2] = y[1, :, 2]
        np.testing.assert_array_equal(y, clean)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parameter_gradients_of_many_rows(device: Device, kind: str, dtype: str) -> None:
    check(device, Problem(kind, (40, 8, 56, 24), dtype, axes=(1,)))


def test_constant_rows(device: Device) -> None:
    """A constant row has variance 0: y is the bias, up to what the rounding of the mean leaves."""
    for line, cols in ((64, 7), (64, 100), (5, 1000)):
        for value in (0.0, 1.0, 0.1, 1000.0):
            x = device.array(np.full((2, cols, line), np.float32(value)), "float32")
            y = device.values(normact.layer_norm(x, axis=1, eps=1e-12))
            assert np.abs(y).max() <= 1 + 8 * 2.0**-24
