# SPDX-License-Identifier: Apache-2.0
"""Batch, group and instance norm of rows of channels, of which some fit the shared memory of few blocks, on a GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import normact
from activation_cases import Kind
from channel_cases import OPERATIONS, Problem, fused_problem
from channel_checks import arrays, backward, check, forward
from devices import Device
from layouts import channels_last

pytestmark = pytest.mark.cuda

every_op = pytest.mark.parametrize("op", OPERATIONS)


@every_op
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((33, 16, 2), 4),  # some rows
        ((5, 24, 3, 3), 8),  # groups of three channels
        ((3, 80, 16, 16), 4),  # of twenty
        ((2, 640, 5, 5), 16),  # of forty: a thread has channels of one
        ((300, 32, 4, 4), 1),  # more slabs than multiprocessors
        ((2, 16, 33, 31), 16),  # clusters, whose last block has fewer rows
        ((1, 32, 64, 64), 2),
        ((1, 8, 160, 160), 1),
        ((5, 40, 64, 64), 4),  # teams, of groups of ten channels
        ((16, 128, 28, 28), 8),  # of channels
        ((1, 64, 128, 128), 4),  # of as many blocks as there may be
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_of_channels(device: Device, op: str, dtype: str, shape: tuple[int, ...], groups: int) -> None:
    plain = Problem(op, shape, dtype, "float32", num_groups=groups, running=op != "group_norm", mean=30.0)
    fused = dataclasses.replace(fused_problem(op, shape, dtype), num_groups=groups)
    problems = [
        plain,
        dataclasses.replace(plain, weight=False, bias=False, activation=Kind("gelu")),
        fused,
        dataclasses.replace(fused, parameter_dtype=dtype, mean=1000.0, activation=Kind("tanh")),
    ]
    if op == "batch_norm":
        problems.append(dataclasses.replace(fused, slope_from="y"))
    for problem in problems:
        check(device, problem, channels_last, channels_last)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_small_planes_side_by_side(device: Device, dtype: str) -> None:
    """Which go as rows of columns, several to a channel."""
    for shape in ((32, 64, 7, 7), (9, 40, 3, 5), (64, 16, 14, 14)):
        plain = Problem("batch_norm", shape, dtype, "float32", running=True, mean=30.0)
        check(device, plain)
        check(device, dataclasses.replace(plain, addend=True, activation=Kind("relu"), running=False))


@pytest.mark.parametrize(("shape", "groups"), [((1, 192, 84, 84), 3), ((19, 656, 16, 17), 1)], ids=str)
def test_what_other_calls_left_in_the_workspace(device: Device, shape: tuple[int, ...], groups: int) -> None:
    """Teams whose blocks (of 132 multiprocessors) hand each other an odd number of pairs one way. In calls with another
    x between, a pair of that call was once taken for one of this, where a block came late.
    """
    rng = np.random.default_rng(17)
    xs = [channels_last(device, rng.standard_normal(shape) * scale, "bfloat16") for scale in (1, 1, 5)]

    def run(x: Any) -> list[np.ndarray]:
        y, mean, rstd = normact.group_norm(x, groups, return_stats=True)
        dx = normact.group_norm_backward(xs[0], x, groups, mean=mean, rstd=rstd).dx
        return [device.bits(mean), device.bits(rstd), device.bits(y), device.bits(dx)]

    first = [run(x) for x in xs]
    for turn in range(60):
        again = run(xs[turn % 3])
        for found, want in zip(again, first[turn % 3], strict=True):
            np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("outlier", [0.0, 1e6, np.inf, np.nan])
@pytest.mark.parametrize("outliers", [1, 4])
@pytest.mark.parametrize("shape", [(64, 16, 8, 8), (2, 16, 32, 32), (400, 16, 32, 32)], ids=str)
def test_elements_far_from_the_mean(device: Device, shape: tuple[int, ...], outliers: int, outlier: float) -> None:
    """A block, a cluster, and blocks that keep items sum about some of the elements, whatever these are."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape) + 1e4
    x[0, 3, :: shape[2] // 4, 0][:outliers] = outlier
    got = normact.instance_norm(channels_last(device, x, "float32"), return_stats=True)
    x = x.astype(np.float32).astype(np.float64).reshape(shape[0] * 16, -1)
    finite = np.isfinite(x).all(axis=1)
    mean, rstd = (device.values(of).ravel() for of in (got.mean, got.rstd))
    want, std = x[finite].mean(axis=1), np.sqrt(x[finite].var(axis=1) + 1e-5)
    assert np.all(np.abs(mean[finite] - want) < 1e-6 * (np.abs(want) + std))
    assert np.all(np.abs(rstd[finite] * std - 1) < 5e-6)
    y = device.values(got.y).reshape(shape[0] * 16, -1)
    assert np.isfinite(y[finite]).all()
    assert np.isnan(rstd[~finite]).all() and np.isnan(y[~finite]).all()


@every_op
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_place(device: Device, op: str, dtype: str) -> None:
    problem = fused_problem(op, (2, 32, 40, 40), dtype)
    found = []
    for in_place in (False, True):
        given = arrays(device, problem, channels_last, channels_last)
        y = forward(problem, given, **({"out": given.x} if in_place else {}))
        assert not in_place or y is given.x
        given = arrays(device, problem, channels_last, channels_last)
        result = backward(problem, given, **({"out": given.dy} if in_place else {}))
        found.append([device.bits(of) for of in (y, result.dx, result.dweight, result.dbias)])
    for of, other in zip(*found, strict=True):
        np.testing.assert_array_equal(of, other)
