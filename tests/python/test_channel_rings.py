# SPDX-License-Identifier: Apache-2.0
"""Batch, group and instance norm of planes whose sets go one after the other through shared memory, on a GPU.

tests/cpp/plan_channel_orders_test.cpp holds that these shapes do.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import normact
from activation_cases import Kind
from channel_cases import Problem, fused_problem, grouped_problem
from channel_checks import arrays, check, check_repeats, forward
from devices import Device
from test_channel_planes import every_second_channel

pytestmark = pytest.mark.cuda

OPERATIONS = ("batch_norm", "instance_norm")
every_op = pytest.mark.parametrize("op", OPERATIONS)
# Clusters of some sizes; sets of which one fits; fewer than clusters.
SHAPES = (
    ("batch_norm", (52, 290, 28, 28)),
    ("batch_norm", (20, 140, 56, 56)),
    ("batch_norm", (17, 70, 80, 104)),
    ("batch_norm", (12, 6, 280, 280)),
    ("instance_norm", (5, 60, 208, 208)),
    ("instance_norm", (3, 5, 1024, 1024)),
)


@pytest.mark.parametrize("op, shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sets_of_planes(device: Device, op: str, dtype: str, shape: tuple[int, ...]) -> None:
    check(device, Problem(op, shape, dtype, "float32", running=True, mean=30.0))
    check(device, fused_problem(op, shape, dtype))


# Group norm: groups in clusters; with channels in several blocks of wider ones.
GROUPED = (((9, 320, 64, 64), 32), ((54, 25, 96, 96), 5), ((22, 24, 128, 256), 6))


@pytest.mark.parametrize("shape, groups", GROUPED, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["plain", "bare", "silu", "relu", "far", "strided"])
def test_groups_of_planes(device: Device, dtype: str, shape: tuple[int, ...], groups: int, kind: str) -> None:
    problem = grouped_problem(kind, shape, dtype, groups)
    check(device, problem, *((every_second_channel,) * 2 if kind == "strided" else ()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_groups_whose_forward_alone_goes_so(device: Device, dtype: str) -> None:
    """A warp's packs are of two channels, whose sums the backward would have to tell apart."""
    check(device, Problem("group_norm", (18, 96, 50, 100), dtype, num_groups=8, activation=Kind("silu")))


@every_op
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["plain", "bare", "far", "strided", "frozen", "y", "mask", "leaky", "one"])
def test_options(device: Device, op: str, dtype: str, kind: str) -> None:
    """Of shapes that have as few elements as the way takes."""
    alone = {"batch_norm": (40, 8, 160, 160), "instance_norm": (34, 8, 200, 200)}[op]
    shape = {"one": (1, 7, 1000, 1000), "plain": alone, "bare": alone}.get(kind, (40, 8, 120, 120))
    if op == "instance_norm" and kind != "one":
        shape = alone
    plain = Problem(op, shape, dtype, "float32", mean=30.0)
    fused = fused_problem(op, shape, dtype)
    if op != "batch_norm" and kind in ("frozen", "y", "mask", "leaky"):
        pytest.skip("batch norm only")
    problem = {
        "plain": plain,
        "bare": dataclasses.replace(plain, weight=False, bias=False, activation=Kind("silu")),
        "far": dataclasses.replace(fused, parameter_dtype=dtype, mean=1000.0, activation=Kind("tanh")),
        "strided": fused,
        "frozen": dataclasses.replace(fused, training=False),
        "y": dataclasses.replace(fused, slope_from="y"),
        "mask": dataclasses.replace(fused, slope_from="mask"),
        "leaky": dataclasses.replace(fused, slope_from="y", activation=Kind("leaky_relu")),
        "one": dataclasses.replace(plain, running=op == "batch_norm"),
    }[kind]
    layouts = (every_second_channel,) * 2 if kind == "strided" else ()
    check(device, problem, *layouts)


@pytest.mark.parametrize("adds", [False, True])
def test_masks_of_the_forward(device: Device, adds: bool) -> None:
    problem = fused_problem("batch_norm", (40, 8, 120, 120), "bfloat16")
    given = arrays(device, dataclasses.replace(problem, addend=adds))
    done = forward(dataclasses.replace(problem, addend=adds), given, return_mask=True)
    bits = np.unpackbits(device.values(done.mask).astype(np.uint8), bitorder="little")
    np.testing.assert_array_equal(bits, device.values(done.y).ravel() > 0)


@pytest.mark.parametrize("outlier", [0.0, 1e6, np.inf, np.nan])
@pytest.mark.parametrize("shape", [(5, 60, 140, 140), (20, 4, 256, 256)], ids=str)
def test_elements_far_from_the_mean(device: Device, shape: tuple[int, ...], outlier: float) -> None:
    """A thread sums about its first elements, whatever these are, and no set meets another's."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape) + 1e4
    x[0, 3, 0, :7] = outlier
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


@pytest.mark.parametrize("op", [*OPERATIONS, "group_norm"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_place_and_again(device: Device, op: str, dtype: str) -> None:
    """Over x and over dy, with the same bits each time."""
    shape = {"batch_norm": (35, 70, 56, 56), "instance_norm": (5, 60, 208, 208), "group_norm": (68, 20, 96, 96)}[op]
    problem = fused_problem(op, shape, dtype)
    check_repeats(device, problem)
