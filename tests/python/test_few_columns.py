# SPDX-License-Identifier: Apache-2.0
"""Norms of many rows of few columns, which the CPU takes many at a time, a row a lane, in any layout."""

from __future__ import annotations

import numpy as np
import pytest

import normact
from activation_cases import Kind
from cases import DTYPES, Problem, inputs
from checks import arrays, backward, check, forward
from devices import Device
from layouts import LAYOUTS, channels_last, supported
from test_determinism import assert_same_bits

both_dtypes = pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES, ids=["-".join(pair) for pair in DTYPES])
COLUMNS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 23, 24, 25)


@both_dtypes
@pytest.mark.parametrize("activation", [None, "gelu", "relu"])
def test_every_number_of_columns(
    device: Device, kind: str, dtype: str, parameter_dtype: str, activation: str | None
) -> None:
    """In tiles that are whole and in the last one, with and without a residual."""
    act = None if activation is None else Kind(activation)
    for cols in COLUMNS:
        for rows in (1, 15, 1100):
            for residual in (False, True):
                check(device, Problem(kind, (rows, cols), dtype, parameter_dtype, residual=residual, activation=act))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "expanded"])
def test_every_layout(device: Device, kind: str, dtype: str, layout: str) -> None:
    if not supported(layout, device):
        return
    for shape in ((700, 3), (130, 2, 8), (9, 4, 21, 4)):
        for activation in (None, Kind("silu")):
            problem = Problem(kind, shape, dtype, residual=True, activation=activation)
            check(device, problem, layout, layout)
            check(device, problem, layout, "contiguous")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_lines_of_any_length(device: Device, kind: str, dtype: str) -> None:
    """Axis 1: its rows lie side by side, few of them or many."""
    for shape in ((900, 4, 1), (300, 3, 7), (40, 8, 64), (30, 3, 3, 50)):
        for activation in (None, Kind("gelu")):
            problem = Problem(kind, shape, dtype, axes=(1,), activation=activation)
            check(device, problem, "contiguous", "contiguous")
            check(device, problem, channels_last, "contiguous")
    check(device, Problem(kind, (500, 3, 5, 2), dtype, axes=(1, 3)), "contiguous", "contiguous")


@pytest.mark.parametrize("mean", [0.0, 300.0, 1e4])
def test_means_far_from_zero(device: Device, mean: float) -> None:
    for cols in (1, 3, 8):
        check(device, Problem("layer_norm", (2000, cols), mean=mean))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_rows_do_not_depend_on_their_neighbours(device: Device, kind: str, dtype: str, activation: str | None) -> None:
    """Alone, among others, at any place of a tile: a row has the same bits."""
    act = None if activation is None else Kind(activation)
    for cols in (1, 3, 4, 8, 20):
        problem = Problem(kind, (1300, cols), dtype, residual=True, activation=act)
        values = inputs(problem)
        given = arrays(device, problem)
        y = device.bits(forward(problem, given).y)
        dx = device.bits(backward(problem, given).dx)
        for first, count in ((0, 1), (5, 1), (700, 33), (1200, 100)):
            some = slice(first, first + count)
            part = type(given)(
                **{
                    name: array[some] if getattr(array, "shape", (0,))[0] == values.x.shape[0] else array
                    for name, array in vars(given).items()
                }
            )
            assert (device.bits(forward(problem, part).y) == y[some]).all()
            assert (device.bits(backward(problem, part).dx) == dx[some]).all()


@pytest.mark.cpu
@pytest.mark.parametrize("cols", [4, 12, 40, 100])
@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rows_do_not_depend_on_how_many_lie_side_by_side(
    device: Device, kind: str, dtype: str, activation: str | None, cols: int
) -> None:
    """From two on. Where in memory a single row has neighbours cannot be seen."""
    values = np.random.default_rng(0).standard_normal((100, cols))
    x, dy = (LAYOUTS["transposed"](device, of, dtype) for of in (values, values[::-1].copy()))
    function, back = getattr(normact, kind), getattr(normact, f"{kind}_backward")

    def run(count: int) -> list[np.ndarray]:
        part = x[:count]
        found = function(part, return_stats=True, activation=activation)
        mean = {} if found.mean is None else {"mean": found.mean}
        dx = back(dy[:count], part, **mean, rstd=found.rstd, activation=activation).dx
        return [device.bits(of) for of in (found.y, found.rstd, dx)]

    whole = run(100)
    for count in (2, 5, 7, 8, 33, 64):
        for part, of_all in zip(run(count), whole, strict=True):
            np.testing.assert_array_equal(part, of_all[:count], f"{count} rows")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_place(device: Device, kind: str, dtype: str) -> None:
    for cols in (2, 5):
        problem = Problem(kind, (1100, cols), dtype)
        given, fresh = arrays(device, problem), arrays(device, problem)
        want, grads = device.bits(forward(problem, given)), backward(problem, given)
        again = backward(problem, fresh, out=fresh.dy)
        assert_same_bits(device, again, grads, "dx over dy")
        forward(problem, given, out=given.x)
        assert (device.bits(given.x) == want).all()
