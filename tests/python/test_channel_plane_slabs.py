# SPDX-License-Identifier: Apache-2.0
"""Batch, group and instance norm of planes whose sets fit the shared memory of few blocks, on a GPU.

tests/cpp/plan_channel_orders_test.cpp holds which of these shapes go so, in which type and direction.
"""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import normact
from activation_cases import Kind
from channel_cases import Problem, fused_problem, grouped_problem
from channel_checks import check, check_repeats
from devices import Device
from test_channel_planes import every_second_channel

pytestmark = pytest.mark.cuda

# A warp a set; several; clusters; uneven ones; more sets than blocks at a time.
INSTANCES = ((70, 64, 32, 32), (20, 61, 40, 104), (2, 30, 200, 400), (8, 8, 200, 360), (40, 70, 64, 64))
BATCHES = ((33, 20, 16, 16), (17, 130, 24, 40), (32, 16, 56, 56), (9, 3, 100, 104), (64, 600, 16, 16))
# Channels that are less than a warp's packs, or no multiple of them (the forward alone goes so), or many packs; several
# a block, or a few of each block of a cluster, of which the last may have less.
GROUPS = (
    ((5, 48, 8, 8), 2),
    ((40, 96, 24, 24), 8),
    ((60, 320, 16, 16), 16),
    ((30, 90, 64, 32), 9),
    ((1, 120, 192, 192), 8),
    ((2, 200, 96, 128), 10),
    ((2, 512, 64, 64), 32),
    ((2, 256, 64, 64), 32),
    ((2, 60, 96, 96), 12),
    ((2, 56, 96, 128), 8),
)


@pytest.mark.parametrize("shape", INSTANCES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_instance_norm(device: Device, dtype: str, shape: tuple[int, ...]) -> None:
    check(device, Problem("instance_norm", shape, dtype, "float32", running=True, mean=30.0))
    check(device, fused_problem("instance_norm", shape, dtype), *(every_second_channel,) * 2)


@pytest.mark.parametrize("shape", BATCHES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_batch_norm(device: Device, dtype: str, shape: tuple[int, ...]) -> None:
    plain = Problem("batch_norm", shape, dtype, "float32", running=True, mean=30.0)
    check(device, plain)
    check(device, dataclasses.replace(plain, activation=Kind("relu"), mean=0.0), *(every_second_channel,) * 2)
    check(device, dataclasses.replace(plain, activation=Kind("silu"), training=False))


@pytest.mark.parametrize("shape, groups", GROUPS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["plain", "bare", "silu", "relu", "far"])
def test_group_norm(device: Device, dtype: str, shape: tuple[int, ...], groups: int, kind: str) -> None:
    problem = grouped_problem(kind, shape, dtype, groups)
    check(device, problem, *((every_second_channel,) * 2 if kind == "silu" else ()))


@pytest.mark.parametrize(
    ("outliers", "outlier"), [*itertools.product((1, 4), (0.0, 1e6, np.inf, np.nan)), (1, 1e19)], ids=str
)
@pytest.mark.parametrize("shape", [(40, 8, 32, 32), (2, 8, 256, 256)], ids=str)
def test_elements_far_from_the_mean(device: Device, shape: tuple[int, ...], outliers: int, outlier: float) -> None:
    """Sums are about what lies in the middle of four elements, whatever these are, and however large one of them."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape) + 1e4
    x[0, 3, :: shape[2] // 4, 0][:outliers] = outlier
    got = normact.instance_norm(device.array(x, "float32"), return_stats=True)
    x = x.astype(np.float32).astype(np.float64).reshape(shape[0] * shape[1], -1)
    finite = np.isfinite(x).all(axis=1)
    mean, rstd = (device.values(of).ravel() for of in (got.mean, got.rstd))
    want, std = x[finite].mean(axis=1), np.sqrt(x[finite].var(axis=1) + 1e-5)
    assert np.all(np.abs(mean[finite] - want) < 1e-6 * (np.abs(want) + std))
    assert np.all(np.abs(rstd[finite] * std - 1) < 5e-6)
    y = device.values(got.y).reshape(shape[0] * shape[1], -1)
    assert np.isfinite(y[finite]).all()
    assert np.isnan(rstd[~finite]).all() and np.isnan(y[~finite]).all()


@pytest.mark.parametrize("op", ["batch_norm", "group_norm", "instance_norm"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_place_and_again(device: Device, op: str, dtype: str) -> None:
    """Over x and over dy, with the same bits each time."""
    check_repeats(device, dataclasses.replace(fused_problem(op, (60, 64, 32, 32), dtype), addend=False))
