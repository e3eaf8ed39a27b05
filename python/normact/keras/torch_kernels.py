# SPDX-License-Identifier: Apache-2.0
"""What the layers call with PyTorch, whose functions have the channels at 1 and normalise the last dimensions.

Others are moved there, which changes strides and copies nothing; results come back in the layout of the input.
"""

from __future__ import annotations

from typing import Any

import torch
from keras import ops

import normact.torch as kernels
from normact.torch import activation
from normact.torch.op import statistic_dtype

__all__ = ["activation", "batch_norm", "batch_norm_training", "gated", "group_norm", "layer_norm", "rms_norm", "value"]

value = ops.convert_to_tensor  # of a variable


def _row_norm(function: Any, x: Any, weight: Any, bias: Any, axis: tuple[int, ...], residual: Any, options: Any) -> Any:
    last = tuple(range(x.ndim - len(axis), x.ndim))
    shape = [x.shape[each] for each in axis]
    moved, added = (None if each is None else each.movedim(axis, last) for each in (x, residual))
    found = function(moved, shape, weight, bias=bias, residual=added, **options)
    return found.movedim(last, axis) if residual is None else tuple(each.movedim(last, axis) for each in found)


def layer_norm(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    axis: tuple[int, ...],
    eps: float,
    residual: Any = None,
    activation: str | None = None,
) -> Any:
    """`axis` in rising order, from 0."""
    return _row_norm(kernels.layer_norm, x, weight, bias, axis, residual, {"eps": eps, "activation": activation})


def rms_norm(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    axis: tuple[int, ...],
    eps: float,
    residual: Any = None,
    activation: str | None = None,
) -> Any:
    """`axis` in rising order, from 0."""
    return _row_norm(kernels.rms_norm, x, weight, bias, axis, residual, {"eps": eps, "activation": activation})


def group_norm(
    x: Any, num_groups: int, weight: Any, bias: Any, *, channel_axis: int, eps: float, activation: str | None = None
) -> Any:
    """As `normact.group_norm`."""
    moved = x.movedim(channel_axis, 1)
    return kernels.group_norm(moved, num_groups, weight, bias, eps, activation=activation).movedim(1, channel_axis)


def batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    *,
    channel_axis: int,
    eps: float,
    activation: str | None = None,
) -> Any:
    """As `normact.batch_norm` in inference."""
    moved, options = x.movedim(channel_axis, 1), {"training": False, "eps": eps, "activation": activation}
    y = kernels.batch_norm(moved, running_mean, running_var, weight, bias, **options)
    return y.movedim(1, channel_axis)


def batch_norm_training(
    x: Any, weight: Any, bias: Any, *, channel_axis: int, eps: float, activation: str | None
) -> tuple[Any, Any, Any]:
    """Running statistics of zero with a momentum of 1 become those of the batch, which has two values a channel."""
    channels, count = x.shape[channel_axis], x.numel() // max(x.shape[channel_axis], 1)
    mean, variance = (torch.zeros(channels, dtype=statistic_dtype(x.dtype), device=x.device) for _ in range(2))
    options: Any = {"training": True, "momentum": 1.0, "eps": eps, "activation": activation}
    y = kernels.batch_norm(x.movedim(channel_axis, 1), mean, variance, weight, bias, **options)
    return y.movedim(1, channel_axis), mean, variance * ((count - 1) / max(count, 1))


def gated(gate: Any, up: Any, kind: str, *, layout: str, axis: int, limit: float | None, up_offset: float) -> Any:
    """As `normact.gated`."""
    return kernels.gated(gate, up, kind, layout=layout, dim=axis, limit=limit, up_offset=up_offset)
