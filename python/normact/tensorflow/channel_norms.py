# SPDX-License-Identifier: Apache-2.0
"""Batch, group and instance norm on TensorFlow tensors, differentiable."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from normact.tensorflow.call import call
from normact.tensorflow.channel_ops import (
    BATCH_NORM,
    BATCH_NORM_UPDATE,
    GROUP_NORM,
    INSTANCE_NORM,
    INSTANCE_NORM_UPDATE,
)
from normact.tensorflow.inputs import flag, optional, public, state, tensor
from normact.tensorflow.op import statistic_dtype


@public
def group_norm(
    x: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    *,
    channel_axis: int = 1,
    eps: float = 1e-5,
    activation: str | None = None,
    alpha: float | None = None,
) -> Any:
    """`normact.group_norm` with gradients: normalise groups of the channels of every sample.

    Axis 0 counts samples. With mean and var over the channels of a group and all axes but axis 0::

        y = act((x - mean) / sqrt(var + eps) * weight + bias)

    Parameters
    ----------
    x : tf.Tensor
        float64, float32, float16 or bfloat16, of at least two axes.
    num_groups : int
        Divides the number of channels.
    weight, bias : tf.Tensor, optional
        Of shape ``(x.shape[channel_axis],)``; the dtype of x, or float32 beside 16 bits.
    channel_axis : int
        The axis of the channels, not 0: 1 for images in NCHW, -1 for those in NHWC.
    eps : float
        Added to the variance.
    activation, alpha
        As in `layer_norm`.

    Returns
    -------
    y : tf.Tensor
        Shape, dtype and device of x.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `layer_norm`.

    Examples
    --------
    >>> import tensorflow as tf
    >>> group_norm(tf.constant([[1.0, 3.0, 10.0, 30.0]]), 2, eps=0.0).numpy().tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """
    name = "group_norm"
    tensors = (tensor(name, "x", x), optional(name, "weight", weight), optional(name, "bias", bias))
    return call(GROUP_NORM, tensors, (num_groups, channel_axis, eps, activation, alpha, 0.0))


@public
def instance_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    *,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    channel_axis: int = 1,
    activation: str | None = None,
    alpha: float | None = None,
) -> Any:
    """`normact.instance_norm` with gradients: normalise every channel of every sample.

    It is `group_norm` with as many groups as channels. With `use_input_stats`, running statistics are variables that
    learn the means over the samples; without, they are what is normalised by.

    Parameters, results and errors are those of `batch_norm`.

    Examples
    --------
    >>> import tensorflow as tf
    >>> instance_norm(tf.constant([[[1.0, 3.0], [10.0, 30.0]]]), eps=0.0).numpy().tolist()
    [[[-1.0, 1.0], [-1.0, 1.0]]]
    """
    name = "instance_norm"
    tensors = (tensor(name, "x", x), optional(name, "weight", weight), optional(name, "bias", bias))
    running = {"running_mean": running_mean, "running_var": running_var}
    if not flag(name, "use_input_stats", use_input_stats):
        states = _States(name, tensors[0], running, updates=False)
        options = (name, False, channel_axis, eps, activation, alpha, 0.0)
        return call(BATCH_NORM, (*tensors, None, *states.values), options)
    options = (None, channel_axis, eps, activation, alpha, momentum)
    if running_mean is None and running_var is None:
        return call(INSTANCE_NORM, tensors, options)
    states = _States(name, tensors[0], running, updates=True)
    return states.assigned(call(INSTANCE_NORM_UPDATE, (*tensors, *states.values), options))


@public
def batch_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    running_mean: Any = None,
    running_var: Any = None,
    *,
    num_batches_tracked: Any = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    channel_axis: int = 1,
    addend: Any = None,
    activation: str | None = None,
    alpha: float | None = None,
) -> Any:
    """`normact.batch_norm` with gradients: normalise every channel over all other axes.

    With the statistics of the batch in training, the running ones else::

        y = act((x - mean) / sqrt(var + eps) * weight + bias + addend)

    Parameters
    ----------
    x : tf.Tensor
        float64, float32, float16 or bfloat16, of at least two axes.
    weight, bias : tf.Tensor, optional
        Of shape ``(x.shape[channel_axis],)``; the dtype of x, or float32 beside 16 bits.
    running_mean, running_var : tf.Variable, optional
        Of the same shape; float32 (float64 for float64), others are converted. Both or none. Assigned to in training,
        the variance times ``n / (n - 1)``, n elements a channel; in inference tensors will do.
    num_batches_tracked : tf.Variable, optional
        An integer of shape ``()``; counted up in training.
    training : bool
        Whether the statistics are those of x.
    momentum : float, optional
        The weight of this batch in the running statistics; None for ``1 / num_batches_tracked``.
    eps : float
        Added to the variance.
    channel_axis : int
        The axis of the channels: 1 for images in NCHW, -1 for those in NHWC.
    addend : tf.Tensor, optional
        Shape and dtype of x; added before the activation. With "relu" the end of a ResNet's block.
    activation, alpha
        As in `layer_norm`.

    Returns
    -------
    y : tf.Tensor
        Shape, dtype and device of x.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `layer_norm`; ValueError also for one value a channel in training.

    Examples
    --------
    >>> import tensorflow as tf
    >>> mean, var = tf.Variable([0.0]), tf.Variable([1.0])
    >>> x = tf.constant([[1.0], [3.0]])
    >>> y = batch_norm(x, None, None, mean, var, training=True, momentum=0.5, eps=0.0, activation="relu")
    >>> y.numpy().tolist(), mean.numpy().tolist()
    ([[0.0], [1.0]], [1.0])
    """
    name = "batch_norm"
    tensors = (
        tensor(name, "x", x),
        optional(name, "weight", weight),
        optional(name, "bias", bias),
        optional(name, "addend", addend),
    )
    running = {"running_mean": running_mean, "running_var": running_var}
    training = flag(name, "training", training)
    options = (name, training, channel_axis, eps, activation, alpha, momentum)
    if not training or (running_mean is None and running_var is None and num_batches_tracked is None):
        states = _States(name, tensors[0], running, updates=False)
        return call(BATCH_NORM, tensors + states.values, options)
    states = _States(name, tensors[0], running | {"num_batches_tracked": num_batches_tracked}, updates=True)
    return states.assigned(call(BATCH_NORM_UPDATE, tensors + states.values, options))


_COUNT, _COUNTS = tf.int64, ("num_batches_tracked",)


class _States:
    """Running statistics: their values in the dtypes that the library keeps them in, and the way back."""

    def __init__(self, function: str, x: Any, given: dict[str, Any], updates: bool) -> None:
        dtype = statistic_dtype(x.dtype)
        self._given = [
            state(function, name, value, counts=name in _COUNTS) if updates else optional(function, name, value)
            for name, value in given.items()
        ]
        self.values = tuple(
            None if value is None else tf.cast(tf.convert_to_tensor(value), _COUNT if name in _COUNTS else dtype)
            for name, value in zip(given, self._given)
        )

    def assigned(self, outputs: tuple[Any, ...]) -> Any:
        """Takes the new values, which are behind y, into the variables; returns y."""
        there = [variable for variable in self._given if variable is not None]
        for variable, new in zip(there, outputs[1:], strict=True):
            variable.assign(tf.cast(new, variable.dtype))
        return outputs[0]
