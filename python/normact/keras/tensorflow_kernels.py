# SPDX-License-Identifier: Apache-2.0
"""What the layers call with TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import tensorflow as tf

from normact.tensorflow import activation, batch_norm, gated, group_norm, layer_norm, rms_norm
from normact.tensorflow.call import call
from normact.tensorflow.channel_ops import BATCH_NORM, BATCH_NORM_UPDATE
from normact.tensorflow.op import Options, Tensors, statistic_dtype

__all__ = ["activation", "batch_norm", "batch_norm_training", "gated", "group_norm", "layer_norm", "rms_norm", "value"]

value = tf.convert_to_tensor  # of a variable; what Keras has of this name returns the variable itself


def batch_norm_training(
    x: Any, weight: Any, bias: Any, *, channel_axis: int, eps: float, activation: str | None
) -> tuple[Any, Any, Any]:
    """Running statistics of zero with a momentum of 1 become those of the batch."""
    channels = x.shape[channel_axis]
    zeros = tf.zeros(tf.shape(x)[channel_axis] if channels is None else channels, statistic_dtype(x.dtype))
    options = ("batch_norm", True, channel_axis, eps, activation, None, 1.0)
    return call(_TRAINING, (x, weight, bias, None, zeros, zeros, None), options)


def _forward(tensors: Tensors, options: Options, keep: bool) -> Tensors:
    """`batch_norm` refuses one value a channel, which has no unbiased variance; its own it has, 0."""
    x, weight, bias, _, zeros = tensors[:5]
    count = math.prod(x.shape) // max(zeros.shape[0], 1)
    if count == 1:
        mean = tf.cast(tf.reshape(x, (-1,)), zeros.dtype)
        options = (options[0], False, *options[2:])
        return (*BATCH_NORM.forward((x, weight, bias, None, mean, zeros), options, keep), mean, zeros)
    *outputs, mean, variance = BATCH_NORM_UPDATE.forward(tensors, options, keep)
    return (*outputs, mean, variance * ((count - 1) / max(count, 1)))


_TRAINING = dataclasses.replace(BATCH_NORM_UPDATE, forward=_forward)
