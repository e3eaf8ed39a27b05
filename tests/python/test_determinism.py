# SPDX-License-Identifier: Apache-2.0
"""Bits: the same from run to run, for a row alone or in a batch, and for every number of CPU threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import normact
from cases import Problem, inputs
from checks import Arrays, arrays, backward, forward
from devices import Device

dtypes = pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])


def all_bits(device: Device, result: Any) -> dict[str, np.ndarray]:
    return {name: device.bits(found) for name, found in result._asdict().items() if found is not None}


def assert_same_bits(device: Device, found: Any, want: Any, where: str) -> None:
    found_bits, want_bits = all_bits(device, found), all_bits(device, want)
    assert found_bits.keys() == want_bits.keys()
    for name, bits in want_bits.items():
        different = int((found_bits[name] != bits).sum())
        assert different == 0, f"{name}: {different} of {bits.size} elements differ; {where}"


@dtypes
@pytest.mark.parametrize(
    "shape", [(997, 257), (300, 12289), (3, 65536), (15, 262144), (20_000, 16), (64, 4096)], ids=str
)
def test_repeated_runs(device: Device, kind: str, dtype: str, shape: tuple[int, int]) -> None:
    problem = Problem(kind, shape, dtype, residual=True)
    given = arrays(device, problem)
    y, grads = forward(problem, given, return_stats=True), backward(problem, given)
    for run in range(4):
        assert_same_bits(device, forward(problem, given, return_stats=True), y, f"run {run}")
        assert_same_bits(device, backward(problem, given), grads, f"run {run}")


def rows_of(device: Device, problem: Problem, given: Arrays, rows: slice, copy: bool) -> Arrays:
    """The same problem with some of its rows: views into the batch, or copies at fresh addresses."""

    def take(array: Any, dtype: str) -> Any:
        if array is None:
            return None
        return device.array(device.values(array)[rows], dtype) if copy else array[rows]

    wide = {name: take(getattr(given, name), problem.dtype) for name in ("x", "residual", "s", "dy", "dresidual")}
    narrow = {name: take(getattr(given, name), problem.statistics) for name in ("mean", "rstd")}
    return Arrays(weight=given.weight, bias=given.bias, **wide, **narrow)


@dtypes
@pytest.mark.parametrize("cols", [1, 7, 33, 64, 257, 768, 1000, 4096, 4097, 12289, 16384, 65536, 100_003, 262144])
@pytest.mark.parametrize("copy", [False, True], ids=["view", "copy"])
def test_a_row_does_not_depend_on_its_batch(device: Device, kind: str, dtype: str, cols: int, copy: bool) -> None:
    """y, mean, rstd, dx of rows alone, of x[:-1], of x[1:] are those of the batch, bit for bit."""
    rows = 300 if cols <= 1000 else 9
    problem = Problem(kind, (rows, cols), dtype, residual=True)
    given = arrays(device, problem)
    whole = forward(problem, given, return_stats=True)
    whole_dx = device.bits(backward(problem, given).dx)
    parts = [slice(0, -1), slice(1, None), *(slice(row, row + 1) for row in (0, 1, 2, rows // 2, rows - 1))]
    for part in parts:
        some = rows_of(device, problem, given, part, copy)
        for name, bits in all_bits(device, forward(problem, some, return_stats=True)).items():
            np.testing.assert_array_equal(bits, device.bits(getattr(whole, name))[part], f"{name} of rows {part}")
        np.testing.assert_array_equal(device.bits(backward(problem, some).dx), whole_dx[part], f"dx of rows {part}")


def test_neighbours_do_not_leak(device: Device, kind: str) -> None:
    """A row between NaN rows is the row between ordinary ones."""
    problem = Problem(kind, (64, 129), "float32")
    given = arrays(device, problem)
    values = inputs(problem).x.copy()
    values[::2] = np.nan
    poisoned = Arrays(**{**vars(given), "x": device.array(values, "float32"), "s": device.array(values, "float32")})
    np.testing.assert_array_equal(
        device.bits(forward(problem, poisoned))[1::2], device.bits(forward(problem, given))[1::2]
    )
    np.testing.assert_array_equal(
        device.bits(backward(problem, poisoned).dx)[1::2], device.bits(backward(problem, given).dx)[1::2]
    )


@pytest.fixture
def restore_threads() -> Iterator[None]:
    before = normact.get_num_threads()
    yield
    normact.set_num_threads(before)


@pytest.mark.cpu
@pytest.mark.usefixtures("restore_threads")
@dtypes
@pytest.mark.parametrize("shape", [(1, 100_003), (5, 4096), (997, 257), (40_000, 24)], ids=str)
def test_thread_count(device: Device, kind: str, dtype: str, shape: tuple[int, int]) -> None:
    """Forward and every gradient are the same bits for 1, 2, 3, 7 and 16 threads."""
    problem = Problem(kind, shape, dtype, residual=True)
    given = arrays(device, problem)
    normact.set_num_threads(1)
    y, grads = forward(problem, given, return_stats=True), backward(problem, given)
    for threads in (2, 3, 7, 16):
        normact.set_num_threads(threads)
        assert normact.get_num_threads() == threads
        assert_same_bits(device, forward(problem, given, return_stats=True), y, f"{threads} threads")
        assert_same_bits(device, backward(problem, given), grads, f"{threads} threads")


@pytest.mark.cpu
def test_all_threads_flush_subnormal_numbers_or_none(device: Device) -> None:
    """The pool's threads compute in the caller's mode, not in that of the thread that first started them."""
    torch = pytest.importorskip("torch")
    x = np.full(1 << 20, 1e-40, np.float32)
    for flush in (True, False, True, False):
        torch.set_flush_denormal(flush)
        try:
            y = normact.relu(device.array(x, "float32"))
        finally:
            torch.set_flush_denormal(False)
        kept = np.count_nonzero(device.bits(y))
        assert kept == (0 if flush else x.size), f"{kept} of {x.size} kept, flush is {flush}"
