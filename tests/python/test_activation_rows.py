# SPDX-License-Identifier: Apache-2.0
"""Activations of rows with gaps between them, which the CPU takes together or one by one: by their length."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import normact
from activation_cases import GatedProblem, Kind, Problem, expected
from activation_checks import Output, arrays, backward, check, forward, gated_backward, gated_check, gated_forward
from activation_checks import gated_arrays as gated
from checks import compare
from devices import Device
from layouts import LAYOUTS, every_second_column
from test_activation_calls import positive_bits
from test_determinism import assert_same_bits

dtypes = pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])

# Shorter and longer than a vector and a group of vectors of any instruction set, than the shortest row that is taken by
# itself (384 bytes; 256 elements of an array), than the longest that goes beside another, and than a piece.
COLUMNS = (11, 12, 15, 16, 17, 31, 32, 33, 47, 48, 50, 65, 95, 96, 97, 127, 128)
COLUMNS += (191, 192, 200, 255, 256, 257, 300, 301, 511, 700, 1023, 1025)
BOTH = (True, True)


@dtypes
@pytest.mark.parametrize("layout", ["row_strided_odd", "contiguous", "every_second_column"])
def test_every_length(device: Device, dtype: str, layout: str) -> None:
    for cols in COLUMNS:
        for name in ("relu", "silu"):
            for bias in (None, dtype, "float64" if dtype == "float64" else "float32"):
                problem = Problem(Kind(name), (37, cols), dtype, bias)
                check(device, problem, layout, "row_strided_odd")
        check(device, Problem(Kind("gelu"), (5, 9, cols), dtype, dtype, 1), layout, "row_strided_odd")
        check(device, Problem(Kind("leaky_relu"), (5, 9, cols), dtype, dtype, 0), layout, layout)


def box_of_more(device: Device, values: np.ndarray, dtype: str) -> Any:
    """Part of a larger array in the last two axes, from an odd element on."""
    storage = np.full((*values.shape[:-2], values.shape[-2] + 1, values.shape[-1] + 4), np.nan)
    box = (..., slice(0, values.shape[-2]), slice(1, values.shape[-1] + 1))
    storage[box] = values
    return device.array(storage, dtype)[box]


@dtypes
@pytest.mark.parametrize("name", ["relu", "squared_relu", "hardswish", "silu", "gelu", "mish"])
def test_lines_in_two_dimensions(device: Device, dtype: str, name: str) -> None:
    """Few lines, then a gap of another size: an even and an odd number of them."""
    for cols, lines in itertools.product(COLUMNS, (2, 3)):
        check(device, Problem(Kind(name), (5, lines, cols), dtype), box_of_more, "row_strided_odd")


@dtypes
def test_long_lines(device: Device, dtype: str) -> None:
    """As long as the longest that short loops take where they are, and longer; more lines than one piece has."""
    for shape in ((3, 8191), (3, 8192), (3, 8193), (700, 24), (131, 129)):
        check(device, Problem(Kind("relu"), shape, dtype), "row_strided_odd", "row_strided_odd")


@dtypes
@pytest.mark.parametrize("layout", ["separate", "split", "interleaved"])
def test_gates_of_every_length(device: Device, dtype: str, layout: str) -> None:
    """Gates and ups in turn are moved at once, line by line."""
    for cols in COLUMNS:
        problem = GatedProblem(Kind("silu"), (19, cols), dtype, layout)
        gated_check(device, problem, "row_strided_odd", "row_strided_odd")
        gated_check(device, replace(problem, biases=BOTH), "row_strided_odd", "contiguous")
        gated_check(device, replace(problem, shape=(3, 2, cols), axis=1, biases=BOTH), "row_strided_odd", "contiguous")


@dtypes
def test_masks_of_every_length(device: Device, dtype: str) -> None:
    """Rows whose bits end within a byte and rows whose bits do not."""
    for cols in COLUMNS:
        for bias in (None, dtype):
            problem = Problem(Kind("relu"), (21, cols), dtype, bias)
            given, want = arrays(device, problem, "row_strided_odd", "row_strided_odd"), expected(problem)
            found = forward(problem, given, return_mask=True)
            np.testing.assert_array_equal(device.values(found.mask), positive_bits(problem), str(problem))
            compare(device, Output(found.y), want, str(problem))
            compare(device, backward(problem, given, mask=found.mask), want, f"{problem} from the mask")


@dtypes
def test_in_place(device: Device, dtype: str) -> None:
    """The last elements of a row are computed again, from what they were before."""
    for cols, name, bias in itertools.product(COLUMNS, ("relu", "sigmoid"), (None, dtype)):
        problem = Problem(Kind(name), (13, cols), dtype, bias)
        for layout in ("row_strided_odd", "contiguous"):
            given = arrays(device, problem, layout, layout)
            y, grads = forward(problem, given), backward(problem, given)
            forward(problem, given, out=given.x)
            np.testing.assert_array_equal(device.bits(given.x), device.bits(y), f"{problem}, {layout}")
            for over in ("x", "dy"):
                again = arrays(device, problem, layout, layout)
                assert_same_bits(device, backward(problem, again, out=getattr(again, over)), grads, f"dx over {over}")


@dtypes
def test_gates_in_place(device: Device, dtype: str) -> None:
    for cols in COLUMNS:
        problem = GatedProblem(Kind("gelu"), (13, cols), dtype, biases=BOTH)
        given = gated(device, problem, "row_strided_odd", "row_strided_odd")
        y, grads = gated_forward(problem, given), gated_backward(problem, given)
        gated_forward(problem, given, out=given.up)
        np.testing.assert_array_equal(device.bits(given.up), device.bits(y), str(problem))
        for first, second in (("gate", "up"), ("up", "dy"), ("dy", "gate")):
            again = gated(device, problem, "row_strided_odd", "row_strided_odd")
            found = gated_backward(problem, again, out=(getattr(again, first), getattr(again, second)))
            assert_same_bits(device, found, grads, f"dgate over {first}, dup over {second}")


@dtypes
def test_nothing_is_written_between_rows(device: Device, dtype: str) -> None:
    for cols, name in itertools.product(COLUMNS, ("relu", "tanh")):
        problem = Problem(Kind(name), (9, cols), dtype)
        given = arrays(device, problem)
        for padding in (1, 7):
            storage = device.array(np.full((9, cols + padding), 5.0), dtype)
            forward(problem, given, out=storage[:, :cols])
            backward(problem, given, out=storage[:, :cols])
            assert (device.values(storage)[:, cols:] == 5).all(), problem


@dtypes
@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "tanh"])
def test_rows_do_not_depend_on_their_neighbours(device: Device, dtype: str, name: str) -> None:
    """Nor on what these hold."""
    for cols, bias in itertools.product(COLUMNS, (None, dtype)):
        problem = Problem(Kind(name), (70, cols), dtype, bias)
        given = arrays(device, problem, "row_strided_odd", "row_strided_odd")
        y, dx = device.bits(forward(problem, given)), device.bits(backward(problem, given).dx)
        for rows in (slice(0, 1), slice(33, 50), slice(69, 70)):
            some = given._replace(x=given.x[rows], dy=given.dy[rows])
            np.testing.assert_array_equal(device.bits(forward(problem, some)), y[rows], str(problem))
            np.testing.assert_array_equal(device.bits(backward(problem, some).dx), dx[rows], str(problem))


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_thread_count(device: Device, dtype: str) -> None:
    before = normact.get_num_threads()
    try:
        for cols, name, bias in itertools.product((33, 50, 120, 200, 300), ("relu", "silu"), (None, dtype)):
            for layout in (LAYOUTS["row_strided_odd"], LAYOUTS["contiguous"], every_second_column):
                problem = Problem(Kind(name), (3000, cols), dtype, bias)
                given = arrays(device, problem, layout, layout)
                normact.set_num_threads(1)
                y, grads = forward(problem, given), backward(problem, given)
                for threads in (2, 5):
                    normact.set_num_threads(threads)
                    np.testing.assert_array_equal(device.bits(forward(problem, given)), device.bits(y))
                    assert_same_bits(device, backward(problem, given), grads, f"{problem} on {threads} threads")
    finally:
        normact.set_num_threads(before)
