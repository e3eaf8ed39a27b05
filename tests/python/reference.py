# SPDX-License-Identifier: Apache-2.0
"""What every operation means: float64 NumPy, written from the papers and not from the library's formulas.

Arrays are [rows, cols]; the norm is over the columns. The arithmetic has the dtype of the arguments, so a caller who
wants more digits than float64 (the tests of float64 kernels do) passes longdouble arrays.

Layer norm: Ba, Kiros, Hinton 2016, eq. 3 and 4. RMS norm: Zhang, Sennrich 2019, eq. 4. The gradients are the chain
rule through the statistics, as Ioffe, Szegedy 2015 write it for batch norm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Array = np.ndarray


class Forward(NamedTuple):
    y: Array  # [rows, cols]
    mean: Array  # [rows]
    rstd: Array  # [rows]


class Backward(NamedTuple):
    dx: Array  # [rows, cols]
    dweight: Array  # [cols]
    dbias: Array  # [cols]


def _scale(weight: Array | None, weight_offset: float, like: Array) -> Array:
    return np.ones(like.shape[-1], like.dtype) if weight is None else weight + weight_offset


def layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-5, weight_offset: float = 0.0
) -> Forward:
    mean = x.mean(axis=1)
    centred = x - mean[:, None]
    sigma = np.sqrt(np.mean(np.square(centred), axis=1) + eps)
    y = centred / sigma[:, None] * _scale(weight, weight_offset, x)
    return Forward(y if bias is None else y + bias, mean, 1 / sigma)


def rms_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float = 1e-6, weight_offset: float = 0.0
) -> Forward:
    rms = np.sqrt(np.mean(np.square(x), axis=1) + eps)
    y = x / rms[:, None] * _scale(weight, weight_offset, x)
    return Forward(y if bias is None else y + bias, np.zeros_like(rms), 1 / rms)


def layer_norm_backward(
    dy: Array, x: Array, weight: Array | None = None, *, mean: Array, rstd: Array, weight_offset: float = 0.0
) -> Backward:
    cols = x.shape[1]
    centred = x - mean[:, None]
    dxhat = dy * _scale(weight, weight_offset, x)
    dvariance = -0.5 * rstd**3 * np.sum(dxhat * centred, axis=1)
    dmean = -rstd * np.sum(dxhat, axis=1)  # the variance adds nothing here: its derivative sums the centred values
    dx = dxhat * rstd[:, None] + dvariance[:, None] * 2 * centred / cols + dmean[:, None] / cols
    return Backward(dx, np.sum(dy * centred * rstd[:, None], axis=0), np.sum(dy, axis=0))


def rms_norm_backward(
    dy: Array, x: Array, weight: Array | None = None, *, rstd: Array, weight_offset: float = 0.0
) -> Backward:
    cols = x.shape[1]
    dxhat = dy * _scale(weight, weight_offset, x)
    dsquare = -0.5 * rstd**3 * np.sum(dxhat * x, axis=1)
    dx = dxhat * rstd[:, None] + dsquare[:, None] * 2 * x / cols
    return Backward(dx, np.sum(dy * x * rstd[:, None], axis=0), np.sum(dy, axis=0))
