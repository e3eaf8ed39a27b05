# SPDX-License-Identifier: Apache-2.0
"""Channels-last tensors of few channels, whose rows the CPU takes some at a time: as many as are whole vectors of them,
and what is left; of one sample, of part of one, or of a whole batch.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import normact
from activation_cases import Kind
from channel_cases import Problem, fused_problem
from channel_checks import arrays, backward, check, forward
from devices import Device
from layouts import channels_last, contiguous

DTYPES = ("float64", "float32", "float16", "bfloat16")
# Just too few rows, and just enough; rows left over; channels that fill vectors, or nearly; the last that is folded.
SHAPES = (
    (2, 3, 127),
    (2, 3, 128),
    (3, 1, 700),
    (3, 2, 700),
    (2, 2, 23, 31),
    (1, 3, 100, 90),
    (5, 5, 12, 13),
    (2, 16, 16, 16),
)
SHAPES += ((3, 17, 15, 10), (2, 31, 12, 16), (2, 32, 12, 16))

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def problems_of(shape: tuple[int, ...], dtype: str) -> list[Problem]:
    batch = fused_problem("batch_norm", shape, dtype)
    found = [batch, dataclasses.replace(batch, slope_from="y"), dataclasses.replace(batch, slope_from="mask")]
    found += [Problem("batch_norm", shape, dtype, "float64" if dtype == "float64" else "float32", mean=30.0)]
    found += [dataclasses.replace(batch, training=False), dataclasses.replace(batch, activation=Kind("silu"))]
    found += [fused_problem("instance_norm", shape, dtype), Problem("instance_norm", shape, dtype, mean=1000.0)]
    found += [Problem("group_norm", shape, dtype, num_groups=g, activation=Kind("gelu")) for g in {1, shape[1]}]
    return found


@every_shape
@pytest.mark.parametrize("dtype", DTYPES)
def test_few_channels(device: Device, dtype: str, shape: tuple[int, ...]) -> None:
    for problem in problems_of(shape, dtype):
        check(device, problem, channels_last, channels_last)


@pytest.mark.parametrize("op", ["batch_norm", "group_norm", "instance_norm"])
def test_one_tensor_has_its_rows_elsewhere(device: Device, op: str) -> None:
    """Then none is folded."""
    problem = dataclasses.replace(fused_problem(op, (2, 3, 20, 25), "float32"), num_groups=1)
    check(device, problem, channels_last, contiguous)
    check(device, problem, contiguous, channels_last)


@pytest.mark.cpu
@pytest.mark.parametrize("op", ["batch_norm", "group_norm", "instance_norm"])
@pytest.mark.parametrize("channels", [1, 2, 3, 24])
def test_any_number_of_threads(device: Device, op: str, channels: int) -> None:
    """Threads that share a sample, or rows, fold what they have got: the same bits."""
    fused = fused_problem(op, (3, channels, 250, 250), "float32")
    problem = dataclasses.replace(fused, num_groups=1, activation=Kind("silu"))
    given = arrays(device, problem, channels_last, channels_last)
    before, found = normact.get_num_threads(), []
    try:
        for count in (1, 2, 3, 8):
            normact.set_num_threads(count)
            outputs = [*forward(problem, given, return_stats=True), *backward(problem, given)]
            found.append([None if array is None else device.bits(array) for array in outputs])
    finally:
        normact.set_num_threads(before)
    for outputs in found[1:]:
        for one, other in zip(outputs, found[0], strict=True):
            np.testing.assert_array_equal(one, other)
