# SPDX-License-Identifier: Apache-2.0
"""Rows of equal elements: nothing is left of them but what their mean is rounded by, however large they are."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import normact
from cases import ROW_VARIANTS
from checks import accepts
from devices import Device

COLS = (3, 33, 100, 264, 1001, 1032, 4097, 4104, 9001, 12296, 20008, 40008)
HUGE = 2.0**125  # of which the distance to 0, times the rstd of a variance of 0, overflows


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cols", [7, 33, 255, 1001, 4097, 9001])
def test_forward(device: Device, dtype: str, cols: int) -> None:
    """Nothing is left of them in runs, whatever the mean is rounded by."""
    for value in (1000.1, -0.3, 77.7):
        x = device.array(np.full((5, cols), value), dtype)
        y, _, mean, _ = normact.layer_norm(x, return_stats=True)
        assert np.abs(device.values(y)).max() <= 1e-6
        np.testing.assert_allclose(device.values(mean), device.values(x)[:, 0], rtol=2.0**-23)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("cols", [1, 11, 21, 33, 65, 101, 251, 287, 1001, 9001])
def test_forward_beside_others(device: Device, dtype: str, cols: int) -> None:
    """Each row is what it is alone, also where a warp has several, and where rows have gaps.

    Odd columns, as rows of whole packs alone may lie as packs do.
    """
    for gap in (0, 3):
        values = np.random.default_rng(5).standard_normal((64, cols + gap))
        values[::5] = 1.5
        x = device.array(values, dtype)[:, :cols]
        y, _, mean, rstd = normact.layer_norm(x, return_stats=True)
        for row in range(0, 64, 3):
            alone = normact.layer_norm(x[row : row + 1], return_stats=True)
            for found, want in ((y, alone.y), (mean, alone.mean), (rstd, alone.rstd)):
                np.testing.assert_array_equal(device.bits(found[row : row + 1]), device.bits(want))


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("gap", [0, 3])
def test_backward_of_huge_elements(device: Device, dtype: str, gap: int, activation: str | None) -> None:
    """xhat is 0, and what threads have beside a row adds nothing to its sums."""
    generator = np.random.default_rng(3)
    eps, rows = 1e-5, 5
    for cols in COLS:
        dy = device.array(generator.standard_normal((rows, cols + gap)), dtype)[:, :cols]
        x = device.array(np.full((rows, cols + gap), HUGE), dtype)[:, :cols]
        weight, bias = (device.array(generator.standard_normal(cols), dtype) for _ in range(2))
        mean, rstd = (device.array(np.full(rows, value), "float32") for value in (HUGE, eps**-0.5))
        slope = 1.0
        if activation:
            sigmoid = 1 / (1 + np.exp(-device.values(bias)))
            slope = sigmoid * (1 + device.values(bias) * (1 - sigmoid))
        terms = device.values(dy) * slope
        g = terms * device.values(weight)
        dx = (g - g.mean(-1, keepdims=True)) * eps**-0.5
        options = {"mean": mean, "rstd": rstd, "activation": activation}
        run = functools.partial(normact.layer_norm_backward, dy, x, weight, bias, **options)
        rounding = 2.0**-7 if dtype == "bfloat16" else 2.0**-18
        for variant in ROW_VARIANTS if device.is_cuda else ("auto",):
            with normact.row_variant(variant):
                if not accepts(run):
                    continue
                found = run()
            np.testing.assert_allclose(device.values(found.dx), dx, rtol=rounding, atol=rounding * np.abs(dx).max())
            np.testing.assert_array_equal(device.values(found.dweight), 0.0)
            np.testing.assert_allclose(device.values(found.dbias), terms.sum(0), rtol=rounding, atol=8 * rounding)
