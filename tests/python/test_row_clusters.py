# SPDX-License-Identifier: Apache-2.0
"""Wide rows that the blocks of a cluster share, on a GPU from compute capability 9.0 on."""

from __future__ import annotations

from typing import Any

import pytest

import normact
from activation_cases import Kind
from cases import DTYPES, Problem
from checks import accepts, check_backward, check_forward
from devices import Device, capability

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize(("rows", "cols"), [(1000, 5120), (500, 12296), (1000, 4097), (500, 12289), (150, 40_001)])
@pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES, ids=["-".join(pair) for pair in DTYPES])
def test_rows_of_a_cluster_follow_each_other(
    device: Device, kind: str, dtype: str, parameter_dtype: str, rows: int, cols: int
) -> None:
    """More rows for a cluster than are in flight: each slot of its ring is filled again and again."""
    whole_packs = cols % 8 == 0
    for residual in (False, True):
        problem = Problem(kind, (rows, cols), dtype, parameter_dtype, residual=residual)
        with normact.row_variant("cluster"):
            if capability() < (9, 0) or (dtype == "float64" and not whole_packs):
                assert not accepts(lambda problem=problem: check_forward(device, problem))
            else:
                check_forward(device, problem)
                check_backward(device, problem)


@pytest.mark.parametrize("cols", [9001, 12289, 17_283, 33_001, 70_007, 129_001])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["contiguous", "offset_by_one", "row_strided_odd", "every_second_row"])
def test_slices_of_wide_rows(device: Device, kind: str, dtype: str, layout: str, cols: int) -> None:
    """Rows that begin anywhere, whose last slice is shorter: each tensor at a phase of its own, a row for some clusters
    and several.
    """
    options: tuple[tuple[int, dict[str, Any]], ...] = (
        (3, {"residual": True}),
        (37, {"activation": Kind("gelu"), "weight_offset": 1.0}),
    )
    for rows, each in options:
        shape = (rows // 3, 3, cols) if layout == "every_second_row" else (rows, cols)  # rows in two dimensions
        problem = Problem(kind, shape, dtype, "float32", **each)
        assert accepts(lambda problem=problem: check_forward(device, problem, layout))
        check_backward(device, problem, layout)
        with normact.row_variant("cluster"):
            done = accepts(lambda problem=problem: check_backward(device, problem, layout))
        assert done or capability()[0] != 9 or (dtype == "float32" and cols > 100_000)


@pytest.mark.parametrize(("rows", "cols"), [(1, 262144), (15, 262144), (15, 131208), (8, 245768)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_widest_rows_of_a_cluster(device: Device, kind: str, dtype: str, rows: int, cols: int) -> None:
    """Fewer rows than clusters, and several for one, in one slot of its ring or in two; full warps, and empty ones."""
    options: list[dict[str, Any]] = [
        {},
        {"residual": True, "weight": False, "bias": False},
        {"residual": True, "weight_offset": 1.0, "activation": Kind("mish")},
    ]
    for each in options:
        problem = Problem(kind, (rows, cols), dtype, "float32", **each)
        with normact.row_variant("cluster"):
            done = accepts(lambda problem=problem: check_backward(device, problem))
        assert done or capability()[0] != 9
