# SPDX-License-Identifier: Apache-2.0
"""Row norms of rows that several blocks walk over in slices, on a GPU (cuda/row_stream_*.cuh)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normact
from activation_cases import Kind
from cases import Problem
from checks import arrays, backward, check, forward
from devices import Device
from test_determinism import rows_of

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"]),
]

# One slice and four, backward; one and eight, forward; whole packs and not; more slices than a warp has threads, of
# which the last has less than the rest.
COLS = (65_528, 65_536, 131_071, 131_072, 300_008, 1_100_001)


@pytest.mark.parametrize("cols", COLS)
def test_long_rows(device: Device, kind: str, dtype: str, cols: int) -> None:
    options: list[dict[str, Any]] = [
        {"mean": 3.0},
        {"residual": True, "weight": False, "bias": False},
        {"weight_offset": 1.0, "activation": Kind("silu")},
    ]
    for each in options:
        with normact.row_variant("stream"):
            check(device, Problem(kind, (3, cols), dtype, **each))


@pytest.mark.parametrize("layout", ["every_second_row", "every_second_column"])
def test_long_rows_with_gaps(device: Device, kind: str, dtype: str, layout: str) -> None:
    shape = (2, 2, 140_000) if layout == "every_second_row" else (3, 140_000)
    with normact.row_variant("stream"):
        check(device, Problem(kind, shape, dtype, residual=True), layout)


@pytest.mark.parametrize("cols", [140_000, 140_001])
def test_a_long_row_does_not_depend_on_its_batch(device: Device, kind: str, dtype: str, cols: int) -> None:
    problem = Problem(kind, (40, cols), dtype)
    given = arrays(device, problem)
    with normact.row_variant("stream"):
        y, dx = device.bits(forward(problem, given)), device.bits(backward(problem, given).dx)
        for rows in (slice(0, 1), slice(7, 9), slice(1, None)):
            some = rows_of(device, problem, given, rows, copy=False)
            np.testing.assert_array_equal(device.bits(forward(problem, some)), y[rows], f"y of rows {rows}")
            np.testing.assert_array_equal(device.bits(backward(problem, some).dx), dx[rows], f"dx of rows {rows}")
        np.testing.assert_array_equal(device.bits(forward(problem, given, out=given.x)), y)  # in place


def test_long_rows_beside_a_wide_sum(device: Device, kind: str, dtype: str) -> None:
    """A residual in fp32 of x in 16 bits."""
    if dtype not in ("float16", "bfloat16"):
        pytest.skip("only 16 bits have one")
    with normact.row_variant("stream"):
        check(device, Problem(kind, (3, 140_000), dtype, residual=True, stream="float32"))


@pytest.mark.parametrize("cols", [1_000_008, 400_003])
def test_what_is_planned_so(device: Device, kind: str, dtype: str, cols: int) -> None:
    """Where no variant is named; and columns that are copied first."""
    check(device, Problem(kind, (2, cols), dtype, residual=True))
    check(device, Problem(kind, (2, cols), dtype), "every_second_column")
