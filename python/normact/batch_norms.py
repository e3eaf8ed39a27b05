# SPDX-License-Identifier: Apache-2.0
"""Batch norm, forward and backward, with an addend and an activation or without, on any framework's arrays."""

from __future__ import annotations

from typing import Any

from normact.channel_calls import BatchInputs, batch_backward, batch_forward, refuse_immutable
from normact.norm_calls import NormGrads, activation_argument


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
    return_stats: bool = False,
    return_mask: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Normalise every channel over all other axes, then scale, shift, add and activate.

    With E over all axes but the channels', n elements each::

        training    mean, var = E[x], E[(x - mean)**2]
        inference   mean, var = running_mean, running_var

        rstd = 1 / sqrt(var + eps)
        y    = act((x - mean) * rstd * weight + bias + addend)

    Training also updates, in place, what is given of::

        running_mean        = (1 - momentum) * running_mean + momentum * mean
        running_var         = (1 - momentum) * running_var + momentum * var * n / (n - 1)
        num_batches_tracked = num_batches_tracked + 1

    An x without elements updates nothing.

    Parameters
    ----------
    x : array
        float64, float32, float16 or bfloat16, of any shape with at least two axes and any strides. An array of NumPy,
        PyTorch, JAX, TensorFlow or CuPy, or any other with ``__dlpack__`` (then give `out`). It is not copied.
    weight, bias : array, optional
        Of shape ``(x.shape[channel_axis],)``; the dtype of x, or float32 beside 16 bits.
    running_mean, running_var : array, optional
        Of the same shape; float32 (float64 for float64). Both or none; inference needs them. In training they must be
        arrays that can be updated: for those of JAX and TensorFlow there are `batch_norm_statistics`,
        `batch_norm_merge`, which returns new ones, and `batch_norm_apply`.
    num_batches_tracked : array, optional
        int64, of shape ``()`` or ``(1,)``. Not looked at in inference.
    training : bool
        Whether the statistics are those of x, or the running ones.
    momentum : float, optional
        The weight of this batch in the running statistics; None for ``1 / num_batches_tracked``, which makes them the
        plain means over all batches.
    eps : float
        Added to the variance; finite and not negative.
    channel_axis : int
        The axis of the channels: 1 for images in NCHW, -1 for those in NHWC. A channels_last tensor of PyTorch has its
        channels at axis 1, and is as fast.
    addend : array, optional
        Added before the activation; shape and dtype of x. With ``activation="relu"`` the end of a ResNet's block.
    activation : str, optional
        The kind of an activation that y passes through before it is rounded, as for `activation`: "relu", "silu", ...
    alpha : float, optional
        The activation's number, where it has one; default is that of its own function.
    return_stats : bool
        Return `mean` and `rstd` too, as the backward needs them.
    return_mask : bool
        Return which elements relu lets through, one bit each, as the backward may read them in place of bias and
        addend.
    out : array or tuple, optional
        Where to write: y, or ``(y, mean, rstd, mask)`` with None for what the function shall make itself. y may be the
        very array that is x or addend (on a GPU beside a mask only where that is written in the same pass; else
        NotImplementedError).
    stream : int or stream object, optional
        As in `layer_norm`.

    Returns
    -------
    y : array
        Like x: same framework, device, shape, dtype and, where x is dense, memory layout.
    BatchNormOutput
        ``(y, mean, rstd, mask)`` instead, if `return_stats` or `return_mask` is given. The statistics are float32
        (float64 for float64), of shape ``(x.shape[channel_axis],)``. mask is uint8 of shape ``(ceil(x.size / 8),)``:
        bit ``i % 8`` of byte ``i // 8`` belongs to element i in row-major order of the indices; or, where the channels
        lie side by side in memory but are not x's last axis (channels_last), of shape ``(ceil(x.size / 8), 1)``: there
        elements are counted as if they were. A mask of either shape serves any x.

    Raises
    ------
    ValueError
        A shape, device or value is wrong, there is one value a channel in training, an output is read-only or
        overlaps, running statistics are immutable, or a tensor requires grad (this function records no gradient).
    TypeError
        An argument is no array or has a dtype that is not supported.
    NotImplementedError
        The arguments are right, but this build cannot do that.

    References
    ----------
    Ioffe, Szegedy, "Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift",
    2015, arXiv:1502.03167.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 10.0], [2.0, 10.0], [3.0, 40.0]])
    >>> running_mean, running_var = np.zeros(2), np.ones(2)
    >>> batch_norm(x, None, None, running_mean, running_var, training=True, eps=0.0).round(4).tolist()
    [[-1.2247, -0.7071], [0.0, -0.7071], [1.2247, 1.4142]]
    >>> running_mean.round(4).tolist(), running_var.round(4).tolist()
    ([0.2, 2.0], [1.0, 30.9])
    """
    function = "batch_norm"
    act = activation_argument(function, activation, alpha)
    running = (running_mean, running_var, num_batches_tracked if training else None)
    arrays = (x, weight, bias, addend, *running)
    options = (bool(training), channel_axis, eps, momentum, act, return_stats, return_mask, out, stream)
    try:
        return batch_forward(function, arrays, *options)
    except TypeError:
        if training:
            refuse_immutable(function, running)
        raise


def batch_norm_backward(
    dy: Any,
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    mean: Any,
    rstd: Any,
    training: bool = True,
    channel_axis: int = 1,
    addend: Any = None,
    y: Any = None,
    mask: Any = None,
    activation: str | None = None,
    alpha: float | None = None,
    return_daddend: bool = False,
    out: Any = None,
    stream: Any = None,
) -> NormGrads:
    """Gradients of `batch_norm`.

    With ``xhat = (x - mean) * rstd``, ``dh = dy * act'(h)``, where ``y = act(h)``, and E over all axes but the
    channels'::

        dx      = rstd * weight * (dh - E[dh] - xhat * E[dh * xhat])    in training
        dx      = rstd * weight * dh                                    in inference
        dweight = sum of dh * xhat over all axes but the channels'
        dbias   = sum of dh, the same
        daddend = dh

    Parameters
    ----------
    dy : array
        The gradient of y; shape and dtype of x.
    x : array
        The forward's.
    weight, bias : array, optional
        Those of the forward. `bias` asks for `dbias` and gives its shape and dtype; its values matter only where h is
        computed again.
    mean, rstd : array
        The forward's statistics.
    training : bool
        The forward's: in inference mean and rstd are constants.
    channel_axis, activation, alpha
        Those of the forward.
    addend : array, optional
        The forward's. It asks for `daddend`; its values matter only where h is computed again.
    y, mask : array, optional
        The forward's result, for kinds whose slope follows from it, or relu's mask: with one of them h is not computed
        again.
    return_daddend : bool
        Return daddend also without an `addend`, which y or mask makes unnecessary.
    out : array or tuple, optional
        Where to write: dx, or ``(dx, dweight, dbias, daddend)`` with None for what the function shall make itself. dx
        may be dy or x; daddend may be dy or addend.
    stream : int or stream object, optional
        As in `layer_norm`.

    Returns
    -------
    NormGrads
        ``(dx, dweight, dbias, daddend)``. dweight is None without a weight, dbias without a bias, daddend where it is
        not asked for. The sums are made in a fixed order: the same inputs give the same bits.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `batch_norm`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0], [2.0], [3.0]])
    >>> y, mean, rstd, _ = batch_norm(x, training=True, eps=0.0, activation="relu", return_stats=True)
    >>> dy = np.ones((3, 1))
    >>> batch_norm_backward(dy, x, mean=mean, rstd=rstd, activation="relu").dx.round(4).tolist()
    [[0.2041], [-0.4082], [0.2041]]
    """
    function = "batch_norm_backward"
    act = activation_argument(function, activation, alpha)
    arrays = BatchInputs(dy, x, weight, bias, addend, mean, rstd, y, mask)
    return batch_backward(function, arrays, bool(training), channel_axis, act, return_daddend, out, stream)
