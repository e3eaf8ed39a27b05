# SPDX-License-Identifier: Apache-2.0
"""Batch norm of small planes that are not whole packs, of which the least that are lie in the memory of few blocks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import normact
from activation_cases import Kind
from channel_cases import Problem, fused_problem
from channel_checks import arrays, backward, check, forward
from devices import Device

pytestmark = pytest.mark.cuda

SHAPES = [
    (32, 48, 14, 14),  # two channels in 16 bits
    (21, 40, 7, 7),  # eight
    (8, 16, 3, 3),  # nine places: a pack lies in two channels nearly always
    (70, 16, 6, 6),
    (9, 24, 5, 9),
    (11, 16, 11, 11),  # two rows of threads
    (10, 16, 13, 13),  # one
    (12, 8, 15, 15),
    (200, 16, 14, 14),  # clusters
    (301, 24, 7, 7),  # whose last block has fewer samples
    (900, 8, 3, 5),
    (24, 1200, 7, 7),  # more bands than run at once
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_bands(device: Device, dtype: str, shape: tuple[int, ...]) -> None:
    plain = Problem("batch_norm", shape, dtype, "float32", running=True, mean=30.0)
    fused = fused_problem("batch_norm", shape, dtype)  # an addend, relu, a mask
    for problem in (
        plain,
        dataclasses.replace(plain, weight=False, bias=False, activation=Kind("gelu")),
        dataclasses.replace(plain, parameter_dtype=dtype, mean=1000.0, activation=Kind("silu")),
        dataclasses.replace(plain, activation=Kind("relu"), slope_from="mask"),
        fused,
        dataclasses.replace(fused, slope_from="y"),
        dataclasses.replace(fused, slope_from="x", activation=Kind("silu")),
    ):
        check(device, problem)


@pytest.mark.parametrize("outlier", [0.0, 1e6, np.inf, np.nan])
@pytest.mark.parametrize("outliers", [1, 4])
@pytest.mark.parametrize("shape", [(32, 16, 7, 7), (400, 16, 7, 7)], ids=str)
def test_elements_far_from_the_mean(device: Device, shape: tuple[int, ...], outliers: int, outlier: float) -> None:
    """A block and a cluster sum about some of the elements, whatever these are; a channel has no part in another's."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape) + 1e4
    x[:: shape[0] // 4, 3, 0, 0][:outliers] = outlier
    got = normact.batch_norm(device.array(x, "float32"), training=True, return_stats=True)
    x = x.astype(np.float32).astype(np.float64).swapaxes(0, 1).reshape(16, -1)
    finite = np.isfinite(x).all(axis=1)
    mean, rstd = (device.values(of).ravel() for of in (got.mean, got.rstd))
    want, std = x[finite].mean(axis=1), np.sqrt(x[finite].var(axis=1) + 1e-5)
    assert np.all(np.abs(mean[finite] - want) < 1e-6 * (np.abs(want) + std))
    assert np.all(np.abs(rstd[finite] * std - 1) < 5e-6)
    y = device.values(got.y).swapaxes(0, 1).reshape(16, -1)
    assert np.isfinite(y[finite]).all()
    assert np.isnan(rstd[~finite]).all() and np.isnan(y[~finite]).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(32, 64, 7, 7), (400, 16, 14, 14)], ids=str)
def test_in_place(device: Device, dtype: str, shape: tuple[int, ...]) -> None:
    problem = fused_problem("batch_norm", shape, dtype)
    found = []
    for in_place in (False, True):
        given = arrays(device, problem)
        y = forward(problem, given, **({"out": given.x} if in_place else {}))
        assert not in_place or y is given.x
        given = arrays(device, problem)
        result = backward(problem, given, **({"out": given.dy} if in_place else {}))
        found.append([device.bits(of) for of in (y, result.dx, result.dweight, result.dbias)])
    for of, other in zip(*found, strict=True):
        np.testing.assert_array_equal(of, other)
