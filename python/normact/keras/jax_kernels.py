# SPDX-License-Identifier: Apache-2.0
"""What the layers call with JAX."""

from __future__ import annotations

from typing import Any

from keras import ops

from normact import jax as kernels
from normact.jax import activation, gated, group_norm, layer_norm, layers, rms_norm

__all__ = ["activation", "batch_norm", "batch_norm_training", "gated", "group_norm", "layer_norm", "rms_norm", "value"]

value = ops.convert_to_tensor  # of a variable


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
    options: Any = {"channel_axis": channel_axis, "eps": eps, "activation": activation, "training": False}
    return kernels.batch_norm(x, weight, bias, running_mean=running_mean, running_var=running_var, **options)


def batch_norm_training(
    x: Any, weight: Any, bias: Any, *, channel_axis: int, eps: float, activation: str | None
) -> tuple[Any, Any, Any]:
    """What Flax's layers do: they want the same variance."""
    return layers.batch_training(x, weight, bias, channel_axis, eps, x.dtype, activation, None, None)
