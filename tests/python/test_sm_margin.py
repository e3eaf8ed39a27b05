# SPDX-License-Identifier: Apache-2.0
"""Calls leave multiprocessors free where they are told to: they run beside work that holds so many, and for long."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import normact
from activation_cases import Kind
from cases import Problem as RowProblem
from channel_cases import Problem, fused_problem
from channel_checks import arrays, check
from channel_checks import backward as channel_backward
from channel_checks import forward as channel_forward
from checks import arrays as row_arrays
from checks import backward as row_backward
from checks import check as check_rows
from checks import forward as row_forward
from devices import Device
from layouts import channels_last, contiguous

pytestmark = pytest.mark.cuda

MARGINS = (1, 16, 100, 131, 1000)
HELD = 24

# The kernel of others: a block for each multiprocessor, which takes all of its shared memory until it is let go, or
# some seconds have passed.
HOLD = r"""
extern "C" __global__ void hold(const volatile int* let_go) {
  for (int i = 0; i < 1000000 && *let_go == 0; ++i) __nanosleep(10000);
}
"""


@pytest.fixture
def margin() -> Iterator[Callable[[int], None]]:
    yield normact.set_sm_margin
    normact.set_sm_margin(0)


ROWS = ((3000, 768), (70, 4096), (9, 70_000))
CHANNELS = {
    "slabs": (Problem("group_norm", (4, 320, 32, 32), "bfloat16", num_groups=32, activation=Kind("silu")), True),
    "teams of slabs": (Problem("group_norm", (8, 320, 64, 64), "bfloat16", num_groups=32), True),
    "rings": (fused_problem("batch_norm", (20, 140, 56, 56), "bfloat16"), False),
    "teams of rings": (Problem("group_norm", (1, 30, 1024, 800), "bfloat16", num_groups=10), False),
    "bands": (fused_problem("batch_norm", (64, 104, 14, 14), "bfloat16"), False),
    "kept": (fused_problem("batch_norm", (16, 64, 28, 28), "float32"), True),
    "launches": (fused_problem("batch_norm", (10, 72, 120, 120), "bfloat16"), True),
}
each_channel_norm = pytest.mark.parametrize("case", CHANNELS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_rows(device: Device, margin: Callable[[int], None], kind: str, shape: tuple[int, int], dtype: str) -> None:
    for count in MARGINS:
        margin(count)
        check_rows(device, RowProblem(kind, shape, dtype))


@each_channel_norm
def test_channels(device: Device, margin: Callable[[int], None], case: str) -> None:
    problem, last = CHANNELS[case]
    layout = channels_last if last else contiguous
    for count in MARGINS:
        margin(count)
        check(device, problem, layout, layout)


@contextlib.contextmanager
def multiprocessors_held() -> Iterator[None]:
    cupy, pinned = pytest.importorskip("cupy"), pytest.importorskip("cupyx")
    let_go = pinned.zeros_pinned(1, np.int32)
    kernel = cupy.RawKernel(HOLD, "hold")
    kernel.max_dynamic_shared_size_bytes = room = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    stream = cupy.cuda.Stream(non_blocking=True)
    kernel((HELD,), (32,), (np.uint64(let_go.ctypes.data),), shared_mem=room, stream=stream)
    try:
        yield
        assert not stream.done, "the others did not stay: this shows nothing"
    finally:
        let_go[0] = 1
        stream.synchronize()


def finishes(call: Callable[[], Any], seconds: float) -> bool:
    """Whether a call is done so soon while others hold multiprocessors; all that it needs is loaded before."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        call()
        torch.cuda.synchronize()
        with multiprocessors_held():
            call()
            end = time.monotonic() + seconds
            while not stream.query() and time.monotonic() < end:
                time.sleep(0.001)
            return stream.query()


def calls_of(device: Device, case: str) -> Callable[[], Any]:
    problem, last = CHANNELS[case]
    layout = channels_last if last else contiguous
    given = arrays(device, problem, layout, layout)
    return lambda: (channel_forward(problem, given), channel_backward(problem, given))


@each_channel_norm
def test_channels_beside_others(device: Device, margin: Callable[[int], None], case: str) -> None:
    margin(HELD)
    assert finishes(calls_of(device, case), 2.0)


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_rows_beside_others(device: Device, margin: Callable[[int], None], kind: str, shape: tuple[int, int]) -> None:
    margin(HELD)
    given = row_arrays(device, problem := RowProblem(kind, shape, "bfloat16"))
    assert finishes(lambda: (row_forward(problem, given), row_backward(problem, given)), 2.0)


@pytest.mark.parametrize("case", ["teams of slabs", "teams of rings"])
def test_without_a_margin_all_have_to_wait(device: Device, case: str) -> None:
    """What the margin is for: blocks that hand each other sums start together, or not at all."""
    assert not finishes(calls_of(device, case), 0.3)
