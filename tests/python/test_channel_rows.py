# SPDX-License-Identifier: Apache-2.0
"""Norms of channels-last tensors, and of small planes side by side, that are read twice, by launches, on a GPU.

tests/cpp/plan_channel_test.cpp holds that these shapes go so, the widest and the small planes backward.
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
from layouts import channels_last, contiguous

pytestmark = pytest.mark.cuda

# Rows of which some make up a block's line, with threads left over; of five tiles; groups of a sample in all blocks;
# channels of two samples.
BATCH, WIDE, GROUP, INSTANCE = (10, 72, 120, 120), (3, 1032, 95, 95), (1, 40, 600, 600), (2, 24, 600, 700)
PLAIN = Problem("batch_norm", BATCH, "float32", "float32", running=True, mean=30.0)
FUSED = fused_problem("batch_norm", BATCH, "float32")
GROUPED = Problem("group_norm", GROUP, "float32", "float32", num_groups=5, mean=30.0)
PROBLEMS = {
    "batch": PLAIN,
    "bare": dataclasses.replace(PLAIN, weight=False, bias=False, running=False, activation=Kind("silu")),
    "far": dataclasses.replace(FUSED, mean=1000.0, activation=Kind("tanh")),
    "add": FUSED,
    "mask": dataclasses.replace(FUSED, slope_from="mask"),
    "y": dataclasses.replace(FUSED, slope_from="y"),
    "frozen": dataclasses.replace(FUSED, training=False),
    "wide": fused_problem("batch_norm", WIDE, "float32"),
    "instance": Problem("instance_norm", INSTANCE, "float32", "float32", running=True, mean=1000.0),
    "group": GROUPED,
    "group silu": dataclasses.replace(GROUPED, activation=Kind("silu")),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", PROBLEMS)
def test_channels_last(device: Device, dtype: str, kind: str) -> None:
    check(device, dataclasses.replace(PROBLEMS[kind], dtype=dtype), channels_last, channels_last)


# Planes of 225 places, of which no tile begins and ends where a channel does.
SMALL = fused_problem("batch_norm", (300, 104, 15, 15), "float32")
SMALL_PLANES = {
    "batch": dataclasses.replace(PLAIN, shape=SMALL.shape),
    "far": dataclasses.replace(SMALL, mean=1000.0, activation=Kind("silu")),
    "add": SMALL,
    "mask": dataclasses.replace(SMALL, slope_from="mask"),
    "y": dataclasses.replace(SMALL, slope_from="y"),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", SMALL_PLANES)
def test_small_planes(device: Device, dtype: str, kind: str) -> None:
    check(device, dataclasses.replace(SMALL_PLANES[kind], dtype=dtype), contiguous, contiguous)


@pytest.mark.parametrize("kind", ["batch", "add", "group silu"])
def test_the_same_bits_again(device: Device, kind: str) -> None:
    """In place or not, and whatever the workspace held: the second pass begins before the sums are there."""
    check_repeats(device, dataclasses.replace(PROBLEMS[kind], dtype="bfloat16"), channels_last)


def test_calls_one_after_the_other(device: Device) -> None:
    """Each launch may start while the one before it ends, also that of another call which reads what it wrote."""
    x = np.random.default_rng(11).standard_normal(BATCH)
    first = device.array(np.moveaxis(x, 1, -1), "float32").permute(0, 3, 1, 2)
    given = first
    for _ in range(4):
        given = normact.batch_norm(given, training=True, eps=0.0)
    once = normact.batch_norm(first, training=True, eps=0.0)
    np.testing.assert_allclose(device.values(given), device.values(once), rtol=0, atol=2e-6 * np.abs(x).max())
