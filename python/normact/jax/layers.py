# SPDX-License-Identifier: Apache-2.0
"""What the layers of Flax, of both kinds, and of Keras on JAX share: their arguments in the words of the functions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
from jax import lax

from normact.jax.channel_norms import batch_norm, group_norm
from normact.jax.inputs import integer
from normact.jax.norms import layer_norm, rms_norm
from normact.jax.op import statistic_dtype


def refuse_unused(function: str, **arguments: Any) -> None:
    """Raises ValueError for an argument of Flax's layer that is not supported here."""
    for name, value in arguments.items():
        if value is not None:
            found = f"of shape {value.shape}" if hasattr(value, "shape") else repr(value)
            raise ValueError(f"{function}: {name} is {found}; expected None, as the kernels have no such option")


def matched(x: Any, scale: Any, bias: Any, dtype: Any) -> tuple[Any, Any, Any]:
    """x, scale and bias in dtypes that go together, none of them narrower than the result.

    Flax computes in float32 and gives the result in `dtype`. The kernels do the same for 16-bit arrays, whose result
    is 16-bit too; only where x is wider than `dtype` the result has to be narrowed after.
    """
    wide = jnp.promote_types(x.dtype, dtype)
    x = x.astype(wide)
    fits = (wide, statistic_dtype(x.dtype))
    scale, bias = (None if p is None else p if p.dtype in fits else p.astype(fits[1]) for p in (scale, bias))
    return x, scale, bias


def refuse_dimensions(function: str, x: Any, least: int) -> None:
    """Raises ValueError for an input of fewer dimensions."""
    if x.ndim < least:
        raise ValueError(f"{function}: x has {x.ndim} dimensions; expected at least {least}")


def sorted_axes(function: str, name: str, axes: Any, ndim: int) -> tuple[int, ...]:
    """Distinct axes, positive and in order."""
    found = sorted({axis + ndim if axis < 0 else axis for axis in (axes if isinstance(axes, Iterable) else (axes,))})
    if not found or found[0] < 0 or found[-1] >= ndim:
        raise ValueError(f"{function}: {name} is {axes} and the input has {ndim} dimensions; expected axes of it")
    return tuple(found)


def single_axis(function: str, name: str, axes: Any, ndim: int) -> int:
    """The only one of these axes."""
    found = sorted_axes(function, name, axes, ndim)
    if len(found) != 1:
        raise ValueError(f"{function}: {name} is {axes}; expected one axis")
    return found[0]


def number_of_groups(x: Any, num_groups: Any, group_size: Any) -> Any:
    """That of a group norm which is told the number of groups or how many channels one has."""
    refuse_dimensions("GroupNorm", x, 1)
    if (num_groups is None) == (group_size is None):
        raise ValueError(
            f"GroupNorm: num_groups is {num_groups} and group_size is {group_size}; expected exactly one of them "
            "(num_groups is 32 unless it is given as None)"
        )
    if group_size is None:
        return num_groups
    channels, size = x.shape[-1], integer("GroupNorm", "group_size", group_size)
    if size < 1 or channels % size:
        raise ValueError(f"GroupNorm: group_size is {size}; expected a divisor of {channels}")
    return channels // size


def instance_axis(x: Any, feature_axes: Any) -> int:
    """The axis of the channels of an instance norm."""
    refuse_dimensions("InstanceNorm", x, 2)
    axis = single_axis("InstanceNorm", "feature_axes", feature_axes, x.ndim)
    if axis == 0:
        raise ValueError(f"InstanceNorm: feature_axes is {feature_axes}, which counts samples; expected another axis")
    return axis


def row(
    norm: str,
    x: Any,
    scale: Any,
    bias: Any,
    reduction_axes: Any,
    feature_axes: Any,
    epsilon: float,
    dtype: Any,
    activation: str | None,
    alpha: float | None,
) -> Any:
    """A layer norm or RMS norm, whose parameters may lie along some of the normalised axes only."""
    reduced = sorted_axes(norm, "reduction_axes", reduction_axes, x.ndim)
    features = sorted_axes(norm, "feature_axes", feature_axes, x.ndim)
    if not set(features) <= set(reduced):
        raise ValueError(
            f"{norm}: feature_axes is {feature_axes} and reduction_axes is {reduction_axes}; expected features among "
            "the axes that are normalised over (GroupNorm and InstanceNorm have them otherwise)"
        )
    shape = tuple(x.shape[axis] for axis in reduced)
    along = tuple(x.shape[axis] if axis in features else 1 for axis in reduced)
    x, scale, bias = matched(x, scale, bias, dtype)
    scale, bias = (None if p is None else jnp.broadcast_to(p.reshape(along), shape) for p in (scale, bias))
    function = rms_norm if norm == "RMSNorm" else layer_norm
    y = function(x, scale, bias, axis=reduced, eps=epsilon, activation=activation, alpha=alpha)
    return y.astype(dtype)


def group(
    x: Any,
    scale: Any,
    bias: Any,
    num_groups: int,
    channel_axis: int,
    reduction_axes: Any,
    epsilon: float,
    dtype: Any,
    activation: str | None,
    alpha: float | None,
) -> Any:
    """A group norm, over all axes but the first, or over the last ones of those that are given."""
    shape = x.shape
    first = 1
    if reduction_axes is not None:
        reduced = sorted_axes("GroupNorm", "reduction_axes", reduction_axes, x.ndim)
        first = reduced[0]
        if reduced != tuple(range(first, x.ndim)):
            raise ValueError(f"GroupNorm: reduction_axes is {reduction_axes}; expected the last axes of the input")
    x, scale, bias = matched(x, scale, bias, dtype)
    x = x.reshape(math.prod(shape[:first]), *shape[first:]) if first != 1 else x
    axis = channel_axis if channel_axis < 0 else channel_axis - len(shape)
    y = group_norm(x, num_groups, scale, bias, channel_axis=axis, eps=epsilon, activation=activation, alpha=alpha)
    return y.reshape(shape).astype(dtype)


def batch_inference(
    x: Any,
    scale: Any,
    bias: Any,
    statistics: tuple[Any, Any],
    axis: int,
    epsilon: float,
    dtype: Any,
    activation: str | None,
    alpha: float | None,
) -> Any:
    """A batch norm by running statistics."""
    if x.ndim == 1:
        return batch_inference(x[None], scale, bias, statistics, -1, epsilon, dtype, activation, alpha)[0]
    x, scale, bias = matched(x, scale, bias, dtype)
    mean, variance = (array.astype(statistic_dtype(x.dtype)) for array in statistics)
    options = {"channel_axis": axis, "eps": epsilon, "activation": activation, "alpha": alpha}
    return batch_norm(x, scale, bias, mean, variance, **options).astype(dtype)


def batch_training(
    x: Any,
    scale: Any,
    bias: Any,
    axis: int,
    epsilon: float,
    dtype: Any,
    activation: str | None,
    alpha: float | None,
    axis_name: Any,
) -> tuple[Any, Any, Any]:
    """A batch norm, and the mean and variance of the batch: Flax's, which is divided by n."""
    if x.ndim == 1:  # a member of a batch that is mapped over
        y, mean, variance = batch_training(x[None], scale, bias, -1, epsilon, dtype, activation, alpha, axis_name)
        return y[0], mean, variance
    count = x.size // max(x.shape[axis], 1) * (1 if axis_name is None else lax.psum(1, axis_name))
    if count == 1:  # as of a batch that only shows the shapes: x is its own mean, and has no gradient
        kept = lax.stop_gradient(x)
        mean = kept.reshape(-1).astype(statistic_dtype(matched(x, None, None, dtype)[0].dtype))
        zeros = jnp.zeros_like(mean)
        return batch_inference(kept, scale, bias, (mean, zeros), axis, epsilon, dtype, activation, alpha), mean, zeros
    x, scale, bias = matched(x, scale, bias, dtype)
    empty = jnp.zeros(x.shape[axis], statistic_dtype(x.dtype))
    # With a momentum of 1 the new running statistics are those of the batch.
    options = {"channel_axis": axis, "eps": epsilon, "activation": activation, "alpha": alpha, "momentum": 1.0}
    y, mean, variance = batch_norm(x, scale, bias, empty, empty, training=True, axis_name=axis_name, **options)
    return y.astype(dtype), mean, variance * ((count - 1) / max(count, 1))


def moving_average(state: Any, new: Any, momentum: float, x: Any) -> Any:
    """The new value of a running statistic. A batch without a value, which has no statistics, leaves it as it is."""
    return state if x.size == 0 else momentum * state + (1 - momentum) * new
