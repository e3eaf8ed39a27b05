# SPDX-License-Identifier: Apache-2.0
"""What the layers call with JAX."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
from keras import ops

from normact import jax as kernels
from normact.jax import activation, gated, group_norm, layer_norm, rms_norm

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
    """Running statistics of zero with a momentum of 1 become those of the batch, which has two values a channel."""
    zeros = jnp.zeros(x.shape[channel_axis], jnp.float64 if x.dtype == jnp.float64 else jnp.float32)
    count = math.prod(x.shape) // max(x.shape[channel_axis], 1)
    options: Any = {"channel_axis": channel_axis, "eps": eps, "activation": activation, "training": True}
    y, mean, variance = kernels.batch_norm(
        x, weight, bias, running_mean=zeros, running_var=zeros, momentum=1.0, **options
    )
    return y, mean, variance * ((count - 1) / max(count, 1))
