# SPDX-License-Identifier: Apache-2.0
"""Batch, group and instance norm of planes that are whole packs of 16 bytes, on a GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from activation_cases import Kind
from channel_cases import OPERATIONS, Problem, fused_problem
from channel_checks import arrays, check, forward
from devices import Device

pytestmark = pytest.mark.cuda

every_op = pytest.mark.parametrize("op", OPERATIONS)


def every_second_channel(where: Device, values: np.ndarray, dtype: str) -> Any:
    storage = np.full((values.shape[0], 2 * values.shape[1], *values.shape[2:]), np.nan)
    storage[:, ::2] = values
    return where.array(storage, dtype)[:, ::2]


@every_op
@pytest.mark.parametrize(
    "shape",
    [
        (3, 8, 8),
        (2, 40, 16, 16),
        (300, 4, 8, 8),
        (70, 8, 28, 28),
        (2, 12, 64, 64),
        (1, 4, 512, 512),
        (5, 1000, 8),
        (2, 800, 16),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_planes_of_whole_packs(device: Device, op: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Sets of a few threads, of a block and of many; parts that hold many channels or lie in one."""
    plain = Problem(op, shape, dtype, "float32", num_groups=4, running=op != "group_norm", mean=30.0)
    fused = fused_problem(op, shape, dtype)
    problems = [
        plain,
        dataclasses.replace(plain, weight=False, bias=False, activation=Kind("gelu")),
        fused,
        dataclasses.replace(fused, parameter_dtype=dtype, mean=1000.0, activation=Kind("tanh")),
    ]
    if op == "batch_norm":
        problems += [dataclasses.replace(fused, slope_from=of) for of in ("y", "mask")]
    if op != "group_norm":
        problems.append(dataclasses.replace(fused, training=False))
    for problem in problems:
        check(device, problem)
        check(device, problem, every_second_channel, every_second_channel)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_of_many_channels(device: Device, dtype: str) -> None:
    """Of a group that is too large for all but launches."""
    check(device, Problem("group_norm", (1, 4400, 32, 32), dtype, "float32", num_groups=4, activation=Kind("silu")))


@every_op
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_planes_of_whole_packs(device: Device, op: str, dtype: str) -> None:
    """Such as blocks keep in shared memory between the passes."""
    shape = (9, 208 if dtype == "bfloat16" else 104, 104, 104)
    plain = Problem(op, shape, dtype, "float32", num_groups=4, running=op != "group_norm", mean=30.0)
    check(device, plain)
    check(device, dataclasses.replace(plain, activation=Kind("silu"), running=False))


@pytest.mark.parametrize("shape", [(35, 70, 20, 20), (35, 70, 56, 56), (5, 60, 208, 208)], ids=str)
def test_running_statistics_change_no_output(device: Device, shape: tuple[int, ...]) -> None:
    """What running statistics are made of is not what others of the set still read: launches, slabs, rings."""
    problem = Problem("instance_norm", shape, "float32", "float32", running=True, mean=30.0)
    given = arrays(device, problem)
    plain = device.bits(forward(problem, given._replace(running_mean=None, running_var=None)))
    for _ in range(4):
        np.testing.assert_array_equal(device.bits(forward(problem, given)), plain)
