# SPDX-License-Identifier: Apache-2.0
"""How far from the exact result an output may be: an error model made of roundings, no magic numbers.

u is half a unit in the last place of the arithmetic (2^-24 for float32, 2^-53 for float64). A sum of n terms t_i is
off by at most ``sum_units(n) * u * sum|t_i|``: a few roundings of the terms themselves, plus a random walk of the
partial sums. The bounds below follow each formula with that rule, first order in u, and add half a unit in the last
place of the output's dtype for the one rounding that the contract allows.
"""

from __future__ import annotations

import math

import numpy as np

MANTISSA_BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}
SMALLEST_EXPONENT = {"float64": -1022, "float32": -126, "float16": -14, "bfloat16": -126}
LARGEST = {
    "float64": np.finfo(np.float64).max,
    "float32": float(np.finfo(np.float32).max),
    "float16": 65504.0,
    "bfloat16": (2 - 2**-7) * 2.0**127,
}


def accumulator(dtype: str) -> str:
    """The dtype of arithmetic and statistics."""
    return "float64" if dtype == "float64" else "float32"


def unit(dtype: str) -> float:
    """The u of the arithmetic that works on tensors of this dtype."""
    return 2.0 ** -(MANTISSA_BITS[accumulator(dtype)] + 1)


def ulp(values: np.ndarray, dtype: str) -> np.ndarray:
    """Distance between neighbours of the dtype at each value."""
    _, exponent = np.frexp(values)
    exponent = np.maximum(np.where(values == 0, SMALLEST_EXPONENT[dtype], exponent - 1), SMALLEST_EXPONENT[dtype])
    return np.ldexp(np.ones_like(values), exponent - MANTISSA_BITS[dtype])


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """The nearest value of the dtype, ties to even, as float64: right for every dtype, with a single rounding."""
    values = np.asarray(values)
    spacing = ulp(np.where(np.isfinite(values), values, 0), dtype)
    rounded = np.rint(values / spacing) * spacing
    rounded = np.where(np.abs(rounded) > LARGEST[dtype], np.copysign(np.inf, values), rounded)
    return rounded.astype(np.float64)


def sum_units(count: int) -> float:
    """Roundings that a sum of so many terms may show, in units of u times the sum of the magnitudes."""
    return 4.0 + math.sqrt(count) / 8


def with_output_rounding(bound: np.ndarray, expected: np.ndarray, dtype: str) -> np.ndarray:
    """The bound of an output that is rounded once more, to its dtype."""
    return bound + 0.5 * ulp(np.abs(expected) + bound, dtype)


def statistics_bounds(
    x: np.ndarray, mean: np.ndarray, rstd: np.ndarray, dtype: str, *, merged: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds on mean and rstd of the rows of x [rows, cols]. merged: whose means are made from those of small parts."""
    relative = sum_units(x.shape[1]) * unit(dtype)
    mean_bound = relative * np.mean(np.abs(x), axis=1)
    if merged:
        # A merge rounds three times in units of the difference of the parts' means, which for parts of m is std /
        # sqrt(m): over m = 1, 2, 4 ... that is at most 3 / 2 u std * (1 + 1 / sqrt(2) + 1 / 2 + ...) < 6 u std.
        mean_bound = mean_bound + 6 * unit(dtype) * np.std(x, axis=1)
        # Parts sum squares about one of their elements, some std from the mean, and on a GPU tell their means from the
        # set's first element: a mean rounds in units of its distance from that.
        relative = relative + (6 + 4 * np.abs(x[:, 0] - mean) * rstd) * unit(dtype)
    # An error d of the mean raises the sum of squares by n d^2. Where sums of parts are merged (Chan, Golub, LeVeque
    # 1979), the parts' means differ by std / sqrt(n) and are off by some u |mean|. All else is relative.
    merging = 4 * unit(dtype) * np.abs(mean) * rstd / math.sqrt(max(x.shape[1], 1))
    rstd_bound = rstd * (relative + merging + 0.5 * np.square(mean_bound * rstd))
    return mean_bound, rstd_bound


def forward_bound(x, weight, bias, weight_offset, mean, rstd, mean_bound, rstd_bound, dtype) -> np.ndarray:
    """Bound on y before its output rounding."""
    u = unit(dtype)
    centred = np.abs(x - mean[:, None])
    xhat = centred * rstd[:, None]
    xhat_bound = rstd[:, None] * mean_bound[:, None] + centred * rstd_bound[:, None] + 2 * u * xhat
    scale = 1.0 if weight is None else np.abs(weight + weight_offset)
    scale_bound = 0.0 if weight is None else u * scale
    product = xhat * scale
    bias_size = 0.0 if bias is None else np.abs(bias)
    return xhat_bound * scale + xhat * scale_bound + 2 * u * (product + bias_size)


def gradient_bounds_of_dy(dy_bound, x, weight, weight_offset, mean, rstd) -> tuple[np.ndarray, ...]:
    """What a dy that is off by dy_bound adds to the bounds on dx, dweight and dbias."""
    scale = 1.0 if weight is None else np.abs(weight + weight_offset)
    g = dy_bound * scale
    xhat = np.abs(x - mean[:, None]) * rstd[:, None]
    c1 = np.mean(g, axis=1, keepdims=True)
    c2 = np.mean(g * xhat, axis=1, keepdims=True)
    dx = rstd[:, None] * (g + c1 + xhat * c2)
    return dx, np.sum(dy_bound * xhat, axis=0), np.sum(dy_bound, axis=0)


def backward_bounds(dy, x, weight, weight_offset, mean, rstd, dresidual, dtype) -> tuple[np.ndarray, ...]:
    """Bounds on dx, dweight and dbias before their output rounding; mean and rstd are inputs, hence exact."""
    u = unit(dtype)
    rows, cols = x.shape
    scale = 1.0 if weight is None else np.abs(weight + weight_offset)
    g = np.abs(dy) * scale
    xhat = np.abs(x - mean[:, None]) * rstd[:, None]
    c1 = np.mean(g, axis=1, keepdims=True)
    c2 = np.mean(g * xhat, axis=1, keepdims=True)
    # Each term is a product of at most six rounded factors; the means carry the error of a sum.
    terms = 6 * (g + c1 + xhat * c2) + sum_units(cols) * (c1 + xhat * c2)
    dx = u * rstd[:, None] * terms
    if dresidual is not None:
        dx = dx + u * (np.abs(dresidual) + rstd[:, None] * (g + c1 + xhat * c2))
    per_sum = sum_units(rows) * u
    return dx, per_sum * np.sum(np.abs(dy) * xhat, axis=0), per_sum * np.sum(np.abs(dy), axis=0)
