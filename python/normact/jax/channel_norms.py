# SPDX-License-Identifier: Apache-2.0
"""Batch, group and instance norm on JAX arrays, differentiable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jax import lax

from normact.jax import batch_ops, group_ops, inputs

if TYPE_CHECKING:
    from jax.typing import ArrayLike


def batch_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    *,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    channel_axis: int = 1,
    addend: ArrayLike | None = None,
    activation: str | None = None,
    alpha: float | None = None,
    axis_name: str | tuple[str, ...] | None = None,
) -> Any:
    """Normalise every channel over all other axes, then scale, shift, add and activate.

    With E over all axes but the channels', n elements each::

        training    mean, var = E[x], E[(x - mean)**2]
        inference   mean, var = running_mean, running_var

        y = act((x - mean) / sqrt(var + eps) * weight + bias + addend)

    Training also gives the new values of what is given of::

        running_mean = (1 - momentum) * running_mean + momentum * mean
        running_var  = (1 - momentum) * running_var + momentum * var * n / (n - 1)

    Parameters
    ----------
    x : array
        float64, float32, float16 or bfloat16, of any shape with at least two axes.
    weight, bias : array, optional
        Of shape ``(x.shape[channel_axis],)``; the dtype of x, or float32 beside 16 bits.
    running_mean, running_var : array, optional
        Of the same shape; float32 (float64 for float64). Both or none; inference needs them. They get no gradient.
    training : bool
        Whether the statistics are those of x, or the running ones.
    momentum : float
        The weight of this batch in the running statistics. (Flax calls ``1 - momentum`` the momentum.)
    eps : float
        Added to the variance; finite and not negative.
    channel_axis : int
        The axis of the channels: 1 for images in NCHW, -1 for those in NHWC.
    addend : array, optional
        Added before the activation; shape and dtype of x.
    activation : str, optional
        The kind of an activation that y passes through before it is rounded: "relu", "silu", ...
    alpha : float, optional
        The activation's number, where it has one.
    axis_name : str or tuple of str, optional
        Mapped axes (of shard_map, pmap or vmap) along which the batch is divided: training takes the statistics over
        all of it. An array that is sharded under plain jit is one batch in any case, and needs none.

    Returns
    -------
    y : jax.Array
        Shape and dtype of x.
    (y, running_mean, running_var) : tuple of jax.Array
        In training with running statistics: their new values too.

    Raises
    ------
    ValueError, TypeError, NotImplementedError, jax.errors.JaxRuntimeError
        As in `layer_norm`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> x = jnp.array([[1.0], [3.0]])
    >>> y, mean, var = batch_norm(x, None, None, jnp.zeros(1), jnp.ones(1), training=True, momentum=0.5, eps=0.0)
    >>> y.tolist(), mean.tolist(), var.tolist()
    ([[-1.0], [1.0]], [1.0], [1.5])
    """
    function = "batch_norm"
    x, axis = _data(function, x, channel_axis)
    arrays = _channel_arrays(function, x, axis, weight, bias, running_mean, running_var)
    training = inputs.flag(function, "training", training)
    if not training and running_mean is None:
        raise ValueError(f"{function}: running_mean is None; expected an array, as training is False")
    options = batch_ops.Options(
        function,
        training,
        axis,
        inputs.number(function, "eps", eps),
        inputs.number(function, "momentum", momentum),
        inputs.activation(function, activation, alpha),
        axes=_axes(function, axis_name, x, axis) if training else (),
    )
    addend = inputs.twin(function, "addend", addend, x)
    return _with_statistics(batch_ops.BATCH_NORM(options, x, *arrays[:2], addend, *arrays[2:]))


def group_norm(
    x: ArrayLike,
    num_groups: int,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    channel_axis: int = 1,
    eps: float = 1e-5,
    activation: str | None = None,
    alpha: float | None = None,
) -> Any:
    """Normalise groups of the channels of every sample, then scale, shift and activate.

    Axis 0 counts samples. With E over the channels of a group and all axes but axis 0::

        y = act((x - E[x]) / sqrt(E[(x - E[x])**2] + eps) * weight + bias)

    Parameters
    ----------
    x : array
        As in `batch_norm`. Sharded samples are worked on where they are.
    num_groups : int
        Divides the number of channels: a group has ``x.shape[channel_axis] / num_groups`` channels that follow each
        other.
    weight, bias : array, optional
        Of shape ``(x.shape[channel_axis],)``; the dtype of x, or float32 beside 16 bits.
    channel_axis : int
        The axis of the channels, not 0: 1 for images in NCHW, -1 for those in NHWC.
    eps : float
        Added to the variance; finite and not negative.
    activation : str, optional
        The kind of an activation that y passes through before it is rounded: "silu", ...
    alpha : float, optional
        The activation's number, where it has one.

    Returns
    -------
    y : jax.Array
        Shape and dtype of x.

    Raises
    ------
    ValueError, TypeError, NotImplementedError, jax.errors.JaxRuntimeError
        As in `layer_norm`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> group_norm(jnp.array([[1.0, 3.0, 10.0, 30.0]]), 2, eps=0.0).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """
    function = "group_norm"
    x, axis = _data(function, x, channel_axis)
    groups = inputs.integer(function, "num_groups", num_groups)
    if groups >= 2**63:  # it divides the channels of an x without any
        raise ValueError(f"{function}: num_groups is {groups}; expected one of 64 bits")
    return _grouped(function, x, axis, groups, (weight, bias, None, None), eps, 0.0, activation, alpha)


def instance_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    *,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    channel_axis: int = 1,
    activation: str | None = None,
    alpha: float | None = None,
) -> Any:
    """Normalise every channel of every sample, then scale, shift and activate.

    It is `group_norm` with as many groups as channels, and may keep running statistics, into which the means over the
    samples of mean and of ``var * n / (n - 1)`` enter, n elements a channel of a sample.

    Parameters
    ----------
    x, weight, bias, channel_axis, eps, activation, alpha
        As in `group_norm`.
    running_mean, running_var : array, optional
        As in `batch_norm`.
    use_input_stats : bool
        Whether the statistics are those of x, or the running ones: False is `batch_norm` in inference.
    momentum : float
        The weight of this batch in the running statistics.

    Returns
    -------
    y : jax.Array
        Shape and dtype of x.
    (y, running_mean, running_var) : tuple of jax.Array
        With `use_input_stats` and running statistics: their new values too.

    Raises
    ------
    ValueError, TypeError, NotImplementedError, jax.errors.JaxRuntimeError
        As in `layer_norm`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> instance_norm(jnp.array([[[1.0, 3.0], [10.0, 30.0]]]), eps=0.0).tolist()
    [[[-1.0, 1.0], [-1.0, 1.0]]]
    """
    function = "instance_norm"
    data, axis = _data(function, x, channel_axis)
    arrays = (weight, bias, running_mean, running_var)
    if inputs.flag(function, "use_input_stats", use_input_stats):
        groups = max(data.shape[axis], 1)
        return _grouped(function, data, axis, groups, arrays, eps, momentum, activation, alpha)
    if running_mean is None:
        raise ValueError(f"{function}: running_mean is None; expected an array, as use_input_stats is False")
    return batch_norm(
        data, *arrays, training=False, eps=eps, channel_axis=channel_axis, activation=activation, alpha=alpha
    )


def _data(function: str, x: Any, channel_axis: int) -> tuple[Any, int]:
    """x, and the axis of its channels counted from the last."""
    x = inputs.array(function, "x", x)
    if x.ndim < 2:
        raise ValueError(f"{function}: x has {x.ndim} dimensions; expected at least 2")
    return x, inputs.negative(function, "channel_axis", channel_axis, x)


def _channel_arrays(
    function: str, x: Any, axis: int, weight: Any, bias: Any, running_mean: Any, running_var: Any
) -> tuple[Any, ...]:
    if (running_mean is None) != (running_var is None):
        name = "running_mean" if running_mean is None else "running_var"
        raise ValueError(f"{function}: {name} is None; expected both running statistics or none")
    shape = (x.shape[axis],)
    return (
        inputs.parameter(function, "weight", weight, shape, x),
        inputs.parameter(function, "bias", bias, shape, x),
        inputs.statistic(function, "running_mean", running_mean, shape, x),
        inputs.statistic(function, "running_var", running_var, shape, x),
    )


def _grouped(
    function: str,
    x: Any,
    axis: int,
    num_groups: int,
    arrays: tuple[Any, ...],
    eps: float,
    momentum: float,
    activation: str | None,
    alpha: float | None,
) -> Any:
    if axis == -x.ndim:
        raise ValueError(f"{function}: channel_axis is 0, which counts samples; expected another axis")
    channels = x.shape[axis]
    if num_groups < 1 or channels % num_groups:
        raise ValueError(f"{function}: num_groups is {num_groups}; expected a divisor of the {channels} channels of x")
    arrays = _channel_arrays(function, x, axis, *arrays)
    options = group_ops.Options(
        function,
        num_groups,
        axis,
        inputs.number(function, "eps", eps),
        inputs.number(function, "momentum", momentum),
        inputs.activation(function, activation, alpha),
    )
    return _with_statistics(group_ops.GROUP_NORM(options, x, *arrays))


def _with_statistics(found: tuple[Any, ...]) -> Any:
    """y alone, or with new running statistics, which are constants for the gradient."""
    y, mean, variance = found
    return y if mean is None else (y, lax.stop_gradient(mean), lax.stop_gradient(variance))


def _axes(function: str, axis_name: Any, x: Any, channel_axis: int) -> tuple[str, ...]:
    """The mapped axes along which the batch is divided, where there is more than one value a channel over all of it."""
    if axis_name is None:
        return ()
    try:
        names = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
        distinct = len(set(names)) == len(names)
    except TypeError:
        kind = type(axis_name).__name__
        raise TypeError(f"{function}: axis_name is of type {kind}; expected a str or a tuple of them") from None
    if not distinct:
        raise ValueError(f"{function}: axis_name is {axis_name!r}; expected distinct axes")
    try:
        parts = lax.psum(1, names)
    except NameError:
        raise ValueError(
            f"{function}: axis_name is {axis_name!r}, and no such axis is mapped here; expected an axis of the "
            "shard_map, pmap or vmap around this call"
        ) from None
    if x.size // max(x.shape[channel_axis], 1) * parts == 1:  # as the library has it of a batch in one piece
        expected = "more than one value a channel in training"
        raise ValueError(f"{function}: x has shape {x.shape}, one value a channel; expected {expected}")
    return names
