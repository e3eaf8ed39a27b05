# SPDX-License-Identifier: Apache-2.0
"""Batch, group and instance norm of planes whose sets are too large for a cluster, on a GPU: blocks hand each other
their sums through the workspace.

tests/cpp/plan_channel_orders_test.cpp holds that these shapes go so, forward and backward without options.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import normact
from activation_cases import Kind
from channel_cases import Problem, fused_problem
from channel_checks import check, check_repeats
from devices import Device

pytestmark = pytest.mark.cuda

# Some teams, or one; groups of three channels; and sets of which two are summed before the sums of one are asked for:
# backward, of one channel, and of seven, of which blocks have less at the end; and forward.
BATCH, INSTANCE, GROUP = (7, 14, 512, 512), (2, 6, 1400, 1600), (1, 30, 1024, 800)
SMALLER, SMALLER_GROUP, LEAD = (7, 22, 288, 384), (37, 7, 256, 257), (2, 16, 1280, 640)
PROBLEMS = {
    "batch": Problem("batch_norm", BATCH, "float32", "float32", running=True, mean=30.0),
    "add": fused_problem("batch_norm", BATCH, "float32"),
    "mask": dataclasses.replace(fused_problem("batch_norm", BATCH, "float32"), slope_from="mask"),
    "instance": Problem("instance_norm", INSTANCE, "float32", "float32", running=True, mean=1000.0),
    "group": Problem("group_norm", GROUP, "float32", "float32", num_groups=10, mean=30.0),
    "silu": Problem("group_norm", GROUP, "float32", "float32", num_groups=10, activation=Kind("silu")),
    "smaller": fused_problem("batch_norm", SMALLER, "float32"),
    "lead": Problem("group_norm", LEAD, "float32", "float32", num_groups=8, activation=Kind("silu")),
    "smaller group": Problem("group_norm", SMALLER_GROUP, "float32", "float32", num_groups=1, activation=Kind("silu")),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_large_sets(device: Device, dtype: str, kind: str) -> None:
    check(device, dataclasses.replace(PROBLEMS[kind], dtype=dtype))


@pytest.mark.parametrize("kind", ["batch", "silu", "smaller", "smaller group", "lead"])
def test_the_same_bits_again(device: Device, kind: str) -> None:
    """In place or not, whatever the workspace held, and whoever came first."""
    problem = dataclasses.replace(PROBLEMS[kind], dtype="bfloat16")
    check_repeats(device, problem)


@pytest.mark.parametrize("outlier", [np.inf, np.nan])
def test_no_set_meets_anothers_numbers(device: Device, outlier: float) -> None:
    """What is not a number is none of those that mean absence: nobody waits for ever, and other sets have their own."""
    x = np.random.default_rng(3).standard_normal(INSTANCE).astype(np.float32)
    x[1, 2, 7, :5] = outlier
    x[0, 4] = np.frombuffer(b"\xff\xff\xff\xff", np.float32)[0]  # a NaN of all bits
    got = normact.instance_norm(device.array(x, "float32"), return_stats=True)
    broken = np.zeros(INSTANCE[:2], bool)
    broken[1, 2] = broken[0, 4] = True
    np.testing.assert_array_equal(np.isnan(device.values(got.rstd).reshape(INSTANCE[:2])), broken)
    y = device.values(got.y)
    assert np.isnan(y[broken]).all() and np.isfinite(y[~broken]).all()
