# SPDX-License-Identifier: Apache-2.0
"""Group norm of planes that are not whole packs, whose groups are and fit the shared memory of few blocks, on a GPU.

tests/cpp/plan_channel_cut_slabs_test.cpp holds which of these shapes go so, in which type and direction.
"""

from __future__ import annotations

import numpy as np
import pytest

import normact
from activation_cases import Kind
from channel_cases import Problem, grouped_problem
from channel_checks import arrays, backward, check, check_repeats
from devices import Device

pytestmark = pytest.mark.cuda

# A bundle of eight planes and of two, of which threads have one each, or share it; a warp a set, several; clusters, of
# which the last block has fewer planes or not; planes of little more than a pack; whole ones, backward. More sets than
# there is room for at once, in clusters of two and more, of which a multiprocessor has several blocks, or one.
GROUPS = (
    ((40, 256, 7, 7), 2),
    ((9, 96, 7, 7), 4),
    ((70, 64, 14, 14), 4),
    ((5, 48, 17, 19), 2),
    ((33, 320, 9, 1), 5),
    ((3, 16, 105, 105), 1),
    ((3, 24, 49, 49), 1),
    ((1, 144, 90, 91), 3),
    ((120, 64, 28, 28), 4),
    ((4, 60, 14, 10), 3),
    ((600, 8, 61, 3), 1),
    ((140, 64, 31, 31), 1),
    ((20, 1024, 14, 14), 1),
)


@pytest.mark.parametrize("shape, groups", GROUPS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["plain", "bare", "silu", "relu", "far"])
def test_group_norm(device: Device, dtype: str, shape: tuple[int, ...], groups: int, kind: str) -> None:
    problem = grouped_problem(kind, shape, dtype, groups)
    check(device, problem)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("places", [(7, 7), (13, 9), (14, 14)], ids=str)
def test_channels_do_not_leak(device: Device, dtype: str, places: tuple[int, int]) -> None:
    """What a plane has beyond its end, in the same words and packs, is another channel's and another group's."""
    problem = Problem("group_norm", (6, 64, *places), dtype, "float32", num_groups=4)
    given = arrays(device, problem)
    want = backward(problem, given)
    for bad in (np.nan, np.inf):
        dy = device.values(given.dy).copy()
        dy[2, 20] = bad
        found = backward(problem, given._replace(dy=device.array(dy, dtype)))
        for name in ("dweight", "dbias"):
            of = device.values(getattr(found, name))
            assert not np.isfinite(of[20])
            others = np.arange(64) != 20
            np.testing.assert_array_equal(of[others], device.values(getattr(want, name))[others])
        dx, plain = device.values(found.dx), device.values(want.dx)
        assert np.isnan(dx[2, 16:32]).all()
        dx[2, 16:32] = plain[2, 16:32]
        np.testing.assert_array_equal(dx, plain)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_place_and_again(device: Device, dtype: str) -> None:
    """Over x and over dy, with the same bits each time."""
    check_repeats(
        device, Problem("group_norm", (60, 128, 7, 7), dtype, "float32", num_groups=4, activation=Kind("gelu"))
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_far_from_zero(device: Device, dtype: str) -> None:
    """Digits of x - mean are there at any mean."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((12, 64, 7, 7)) + (1e4 if dtype == "float32" else 100)
    given = device.array(x, dtype)
    got = normact.group_norm(given, 4, return_stats=True)
    rows = device.values(given).astype(np.float64).reshape(48, -1)
    np.testing.assert_allclose(device.values(got.mean).ravel(), rows.mean(axis=1), rtol=1e-6)
    np.testing.assert_allclose(device.values(got.rstd).ravel(), 1 / np.sqrt(rows.var(axis=1) + 1e-5), rtol=1e-5)
