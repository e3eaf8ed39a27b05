# SPDX-License-Identifier: Apache-2.0
"""What batch, group and instance norm mean: float64 NumPy, written from the papers and not from the library's formulas.

Arrays are [samples, channels, places]: axis 0, the channels' axis, and all others in one. The arithmetic has the dtype
of the arguments, so a caller who wants more digits than float64 passes longdouble arrays. There is no activation here:
`h` is what one is applied to, `dh` the gradient that comes back through it.

Batch norm: Ioffe, Szegedy 2015, algorithm 1 and the gradients below it. Group norm: Wu, He 2018, eq. 1, 2 and 6 and the
program in figure 3. Instance norm: Ulyanov, Vedaldi, Lempitsky 2016, eq. 2, a group norm with a group for each channel.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Array = np.ndarray


class Backward(NamedTuple):
    dx: Array  # [samples, channels, places]
    dweight: Array  # [channels]
    dbias: Array  # [channels]


def _channels(values: Array | None, otherwise: float) -> Array | float:
    """A parameter, to be combined with [samples, channels, places]."""
    return otherwise if values is None else values[None, :, None]


def affine(xhat: Array, weight: Array | None, bias: Array | None, addend: Array | None = None) -> Array:
    h = xhat * _channels(weight, 1.0) + _channels(bias, 0.0)
    return h if addend is None else h + addend


# ---- Batch norm ----


def batch_norm_statistics(x: Array) -> tuple[Array, Array]:
    """Mean and (biased) variance of every channel; 0 without elements."""
    samples, channels, places = x.shape
    if samples * places == 0:
        return np.zeros(channels, x.dtype), np.zeros(channels, x.dtype)
    mean = x.sum(axis=(0, 2)) / (samples * places)
    return mean, np.square(x - mean[None, :, None]).sum(axis=(0, 2)) / (samples * places)


def batch_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    addend: Array | None,
    *,
    mean: Array,
    variance: Array,
    eps: float,
) -> Array:
    sigma = np.sqrt(variance + eps)
    return affine((x - mean[None, :, None]) / sigma[None, :, None], weight, bias, addend)


def batch_norm_backward(
    dh: Array, x: Array, weight: Array | None, *, mean: Array, rstd: Array, training: bool
) -> Backward:
    """The chain of the paper, from the gradient of xhat through those of the variance and of the mean."""
    count = max(x.shape[0] * x.shape[2], 1)
    centred, rstd = x - mean[None, :, None], rstd[None, :, None]
    dxhat = dh * _channels(weight, 1.0)
    dx = dxhat * rstd
    if training:
        dvariance = np.sum(dxhat * centred * -(rstd**3) / 2, axis=(0, 2), keepdims=True)
        # The centred values add up to 0, so that the variance adds nothing to the gradient of the mean.
        dmean = np.sum(dxhat * -rstd, axis=(0, 2), keepdims=True)
        dx = dx + dvariance * 2 * centred / count + dmean / count
    return Backward(dx, np.sum(dh * centred * rstd, axis=(0, 2)), np.sum(dh, axis=(0, 2)))


def running(old: Array, new: Array, factor: float) -> Array:
    """A running statistic after a batch."""
    return old + (new - old) * factor


def unbiased(variance: Array, count: int) -> Array:
    return variance * count / (count - 1)


# ---- Group and instance norm ----


def group_norm_statistics(x: Array, groups: int) -> tuple[Array, Array]:
    """Mean and variance, each [samples, groups]."""
    members = x.reshape(x.shape[0], groups, -1)
    return members.mean(axis=2), members.var(axis=2)


def group_norm(x: Array, weight: Array | None, bias: Array | None, *, groups: int, eps: float) -> Array:
    mean, variance = group_norm_statistics(x, groups)
    members = x.reshape(x.shape[0], groups, -1)
    xhat = (members - mean[:, :, None]) / np.sqrt(variance[:, :, None] + eps)
    return affine(xhat.reshape(x.shape), weight, bias)


def group_norm_backward(
    dh: Array, x: Array, weight: Array | None, *, groups: int, mean: Array, rstd: Array
) -> Backward:
    """Every group of every sample is a batch norm's channel of its own."""
    samples, channels, _ = x.shape
    each = (1, samples * groups, -1)
    dxhat = (dh * _channels(weight, 1.0)).reshape(each)
    dx = batch_norm_backward(
        dxhat, x.reshape(each), None, mean=mean.reshape(-1), rstd=rstd.reshape(-1), training=True
    ).dx
    per_channel = (samples, groups, channels // groups)
    centred = x - np.broadcast_to(mean[:, :, None], per_channel).reshape(samples, channels, 1)
    xhat = centred * np.broadcast_to(rstd[:, :, None], per_channel).reshape(samples, channels, 1)
    return Backward(dx.reshape(x.shape), np.sum(dh * xhat, axis=(0, 2)), np.sum(dh, axis=(0, 2)))
