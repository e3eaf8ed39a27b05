# SPDX-License-Identifier: Apache-2.0
"""Group norm and instance norm, forward and backward, with an activation or without, on any framework's arrays."""

from __future__ import annotations

from typing import Any

from normact.channel_calls import (
    BatchInputs,
    GroupNormOutput,
    batch_backward,
    batch_forward,
    group_backward,
    group_forward,
    instance_groups,
    refuse_immutable,
)
from normact.norm_calls import NormGrads, activation_argument


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
    return_stats: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Normalise groups of the channels of every sample, then scale, shift and activate.

    Axis 0 counts samples. With E over the channels of a group and all axes but axis 0::

        mean = E[x]
        rstd = 1 / sqrt(E[(x - mean)**2] + eps)
        y    = act((x - mean) * rstd * weight + bias)

    Parameters
    ----------
    x : array
        As in `batch_norm`.
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
        The kind of an activation that y passes through before it is rounded, as for `activation`: "silu", ...
    alpha : float, optional
        The activation's number, where it has one; default is that of its own function.
    return_stats : bool
        Return `mean` and `rstd` too, as the backward needs them.
    out : array or tuple, optional
        Where to write: y, or ``(y, mean, rstd)`` with None for what the function shall make itself. y may be x.
    stream : int or stream object, optional
        As in `layer_norm`.

    Returns
    -------
    y : array
        Like x: same framework, device, shape, dtype and, where x is dense, memory layout.
    GroupNormOutput
        ``(y, mean, rstd)`` instead, if `return_stats` is given. The statistics are float32 (float64 for float64), of
        shape ``(x.shape[0], num_groups)``.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `layer_norm`.

    References
    ----------
    Wu, He, "Group Normalization", 2018, arXiv:1803.08494.

    Examples
    --------
    >>> import numpy as np
    >>> group_norm(np.array([[1.0, 3.0, 10.0, 30.0]]), 2, eps=0.0).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """
    act = activation_argument("group_norm", activation, alpha)
    arrays = (x, weight, bias, None, None)
    return group_forward("group_norm", arrays, num_groups, channel_axis, eps, 0.0, act, return_stats, out, stream)


def group_norm_backward(
    dy: Any,
    x: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    *,
    mean: Any,
    rstd: Any,
    channel_axis: int = 1,
    activation: str | None = None,
    alpha: float | None = None,
    out: Any = None,
    stream: Any = None,
) -> NormGrads:
    """Gradients of `group_norm`.

    With ``xhat = (x - mean) * rstd``, ``dh = dy * act'(h)``, where ``y = act(h)``, ``g = dh * weight``, and E over the
    group::

        dx      = rstd * (g - E[g] - xhat * E[g * xhat])
        dweight = sum of dh * xhat over all axes but the channels'
        dbias   = sum of dh, the same

    Parameters
    ----------
    dy : array
        The gradient of y; shape and dtype of x.
    x, num_groups, channel_axis, activation, alpha
        Those of the forward. With an activation h is computed again.
    weight, bias : array, optional
        Those of the forward. `bias` asks for `dbias` and gives its shape and dtype; without an activation its values
        do not matter.
    mean, rstd : array
        The forward's statistics.
    out : array or tuple, optional
        Where to write: dx, or ``(dx, dweight, dbias)`` with None for what the function shall make itself. dx may be dy
        or x.
    stream : int or stream object, optional
        As in `layer_norm`.

    Returns
    -------
    NormGrads
        ``(dx, dweight, dbias, daddend)``. dweight is None without a weight, dbias without a bias; daddend is None. The
        sums are made in a fixed order: the same inputs give the same bits.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `layer_norm`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0, 3.0, 5.0, 5.0, 8.0]])
    >>> y, mean, rstd = group_norm(x, 2, eps=0.0, return_stats=True)
    >>> dy = np.array([[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    >>> group_norm_backward(dy, x, 2, mean=mean, rstd=rstd).dx[0, :3].round(4).tolist()
    [0.2041, -0.4082, 0.2041]
    """
    act = activation_argument("group_norm_backward", activation, alpha)
    arrays = (dy, x, weight, bias, mean, rstd)
    return group_backward("group_norm_backward", arrays, num_groups, channel_axis, act, out, stream)


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
    return_stats: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Normalise every channel of every sample, then scale, shift and activate.

    It is `group_norm` with as many groups as channels, and may keep running statistics. Over the samples these learn
    the means of mean and of ``var * n / (n - 1)``, n elements a channel of a sample::

        running_mean = (1 - momentum) * running_mean + momentum * mean of mean
        running_var  = (1 - momentum) * running_var + momentum * mean of var * n / (n - 1)

    Parameters
    ----------
    x, weight, bias, channel_axis, eps, activation, alpha, return_stats, stream
        As in `group_norm`.
    running_mean, running_var : array, optional
        Of shape ``(x.shape[channel_axis],)``; float32 (float64 for float64). Both or none. With `use_input_stats` they
        are updated in place, which those of JAX and TensorFlow cannot be.
    use_input_stats : bool
        Whether the statistics are those of x, or the running ones: False is `batch_norm` in inference.
    momentum : float
        The weight of this batch in the running statistics.
    out : array or tuple, optional
        Where to write: y, or ``(y, mean, rstd)`` with None for what the function shall make itself. y may be x.

    Returns
    -------
    y : array
        As in `group_norm`.
    GroupNormOutput
        ``(y, mean, rstd)`` instead, if `return_stats` is given. The statistics are of shape
        ``(x.shape[0], x.shape[channel_axis])``; without `use_input_stats` of shape ``(x.shape[channel_axis],)``.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `batch_norm`.

    References
    ----------
    Ulyanov, Vedaldi, Lempitsky, "Instance Normalization: The Missing Ingredient for Fast Stylization", 2016,
    arXiv:1607.08022.

    Examples
    --------
    >>> import numpy as np
    >>> instance_norm(np.array([[[1.0, 3.0], [10.0, 30.0]]]), eps=0.0).tolist()
    [[[-1.0, 1.0], [-1.0, 1.0]]]
    """
    function = "instance_norm"
    act = activation_argument(function, activation, alpha)
    if use_input_stats:
        running = (running_mean, running_var)
        arrays = (x, weight, bias, *running)
        groups = instance_groups(x, channel_axis, function)
        options = (groups, channel_axis, eps, momentum, act, return_stats, out, stream)
        try:
            return group_forward(function, arrays, *options)
        except TypeError:
            refuse_immutable(function, running)
            raise
    arrays = (x, weight, bias, None, running_mean, running_var, None)
    found = batch_forward(function, arrays, False, channel_axis, eps, momentum, act, return_stats, False, out, stream)
    return GroupNormOutput(*found[:3]) if return_stats else found


def instance_norm_backward(
    dy: Any,
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    mean: Any,
    rstd: Any,
    use_input_stats: bool = True,
    channel_axis: int = 1,
    activation: str | None = None,
    alpha: float | None = None,
    out: Any = None,
    stream: Any = None,
) -> NormGrads:
    """Gradients of `instance_norm`.

    Parameters, results and errors are those of `group_norm_backward` with as many groups as channels. Without
    `use_input_stats`, which is the forward's, mean and rstd are constants of shape ``(x.shape[channel_axis],)``.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[[1.0, 2.0, 3.0]]])
    >>> y, mean, rstd = instance_norm(x, eps=0.0, return_stats=True)
    >>> dy = np.array([[[1.0, 0.0, 0.0]]])
    >>> instance_norm_backward(dy, x, mean=mean, rstd=rstd).dx.round(4).tolist()
    [[[0.2041, -0.4082, 0.2041]]]
    """
    function = "instance_norm_backward"
    act = activation_argument(function, activation, alpha)
    if use_input_stats:
        arrays = (dy, x, weight, bias, mean, rstd)
        groups = instance_groups(x, channel_axis, function)
        return group_backward(function, arrays, groups, channel_axis, act, out, stream)
    constant = BatchInputs(dy, x, weight, bias, None, mean, rstd, None, None)
    return batch_backward(function, constant, False, channel_axis, act, False, out, stream)
