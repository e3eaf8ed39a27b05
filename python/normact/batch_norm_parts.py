# SPDX-License-Identifier: Apache-2.0
"""Batch norm in parts, for statistics over several processes: the communication between them is the caller's.

Forward: `batch_norm_statistics` on every process, gather the moments of all, `batch_norm_merge`, `batch_norm_apply`.
Backward: `batch_norm_reduce` on every process, add up the sums of all, `batch_norm_input_gradient`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from normact import _core
from normact.arrays import family_of, handed_over
from normact.channel_calls import (
    BATCH_OUTPUTS,
    BatchInputs,
    BatchNormOutput,
    batch_outputs,
    on_stream,
    size_along,
)
from normact.norm_calls import GRADIENTS, NormGrads, activation_argument


class BatchNormMerged(NamedTuple):
    """What `batch_norm_merge` gives; None for what is not kept."""

    mean: Any
    rstd: Any
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any


def _writable(array: Any, name: str) -> Any:
    """The array, or of an immutable one a copy to write to."""
    return None if array is None else family_of(array, "batch_norm_merge", name).writable(array)


def batch_norm_statistics(x: Any, *, channel_axis: int = 1, out: Any = None, stream: Any = None) -> Any:
    """The statistics of one process: what `batch_norm_merge` makes the statistics of all of.

    Parameters
    ----------
    x : array
        As in `batch_norm`. It may have no elements: the moments are then 0.
    channel_axis : int
        The axis of the channels.
    out : array, optional
        Where to write.
    stream : int or stream object, optional
        As in `layer_norm`.

    Returns
    -------
    moments : array
        float32 (float64 for float64), of shape ``(3, x.shape[channel_axis])``: the rows mean, sum of
        ``(x - mean)**2``, and number of elements of each channel.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `batch_norm`.

    References
    ----------
    Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.

    Examples
    --------
    >>> import numpy as np
    >>> batch_norm_statistics(np.array([[1.0, 5.0], [3.0, 5.0]])).tolist()
    [[2.0, 5.0], [2.0, 0.0], [2.0, 2.0]]
    """
    function = "batch_norm_statistics"
    (moments,) = given = _core.unpack(function, out, (("moments", "x"),))
    with on_stream(x, stream, function) as handle:
        if moments is None:
            moments = family_of(x, function).empty_stats(x, (3, size_along(x, channel_axis)))
        _core.batch_norm_statistics(x, moments, channel_axis, handle)
        return handed_over((moments,), given, (x,), function)[0]


def batch_norm_merge(
    moments: Any,
    running_mean: Any = None,
    running_var: Any = None,
    *,
    num_batches_tracked: Any = None,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    out: Any = None,
    stream: Any = None,
) -> BatchNormMerged:
    """The statistics of all processes, and the running ones updated by them.

    The K parts are merged in their order (Chan, Golub, LeVeque 1979), each with its own number of elements. Running
    statistics are updated as `batch_norm` does in training, and stay as they are where no part has elements. Arrays
    that can be updated are updated in place; of JAX's and TensorFlow's, which cannot, the result holds new ones.

    Parameters
    ----------
    moments : array
        Of shape ``(K, 3, C)``: those of `batch_norm_statistics` of every process.
    running_mean, running_var : array, optional
        Of shape ``(C,)``, the dtype of moments. Both or none.
    num_batches_tracked : array, optional
        int64, of shape ``()`` or ``(1,)``. (JAX has int64 if ``jax_enable_x64`` is set; NumPy's will do.)
    momentum, eps
        As in `batch_norm`.
    out : array or tuple, optional
        Where to write: mean, or ``(mean, rstd)`` with None for what the function shall make itself.
    stream : int or stream object, optional
        As in `layer_norm`.

    Returns
    -------
    BatchNormMerged
        ``(mean, rstd, running_mean, running_var, num_batches_tracked)``: mean and rstd of shape ``(C,)`` in the dtype
        of moments, and the running statistics, None where they were not given. Where no part has elements mean is 0
        and rstd ``1 / sqrt(eps)``.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `batch_norm`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0], [2.0], [3.0], [6.0]])
    >>> moments = np.stack([batch_norm_statistics(part) for part in (x[:1], x[1:])])
    >>> mean, rstd, *_ = batch_norm_merge(moments, eps=0.0)
    >>> mean.tolist(), (rstd**-2).round(4).tolist()
    ([3.0], [3.5])
    """
    function = "batch_norm_merge"
    mean, rstd = _core.unpack(function, out, (("mean", "moments"), ("rstd", "moments")))
    given = (mean, rstd, running_mean, running_var, num_batches_tracked)
    likes = (moments, moments, running_mean, running_var, num_batches_tracked)
    with on_stream(moments, stream, function, "moments") as handle:
        family, shape = family_of(moments, function, "moments"), (size_along(moments, -1),)
        mean, rstd = family.moments(moments, shape, mean, rstd)
        running_mean = _writable(running_mean, "running_mean")
        running_var = _writable(running_var, "running_var")
        count = _writable(num_batches_tracked, "num_batches_tracked")
        _core.batch_norm_merge(moments, running_mean, running_var, count, mean, rstd, eps, momentum, handle)
        done = (mean, rstd, running_mean, running_var, count)
        return BatchNormMerged(*handed_over(done, given, likes, function))


def batch_norm_apply(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    mean: Any,
    rstd: Any,
    channel_axis: int = 1,
    addend: Any = None,
    activation: str | None = None,
    alpha: float | None = None,
    return_mask: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """`batch_norm` with given statistics: ``y = act((x - mean) * rstd * weight + bias + addend)``.

    Parameters
    ----------
    mean, rstd : array
        Of shape ``(x.shape[channel_axis],)``; float32 (float64 for float64).
    x, weight, bias, channel_axis, addend, activation, alpha, return_mask, stream
        As in `batch_norm`.
    out : array or tuple, optional
        Where to write: y, or ``(y, None, None, mask)``.

    Returns
    -------
    y : array
        As in `batch_norm`; with `return_mask` a BatchNormOutput, whose mean and rstd are None.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `batch_norm`.

    Examples
    --------
    >>> import numpy as np
    >>> batch_norm_apply(np.array([[1.0], [7.0]]), mean=np.array([3.0]), rstd=np.array([0.5])).tolist()
    [[-1.0], [2.0]]
    """
    function = "batch_norm_apply"
    act = activation_argument(function, activation, alpha)
    with on_stream(x, stream, function) as handle:
        likes, done = batch_outputs(function, out, x, None, None, return_mask, channel_axis)
        y, _, _, mask = done
        _core.batch_norm_apply(x, weight, bias, addend, mean, rstd, y, mask, channel_axis, act, handle)
        found = _core.finish(BatchNormOutput, done, out, BATCH_OUTPUTS, likes, function)
    return found if return_mask else found[0]


def batch_norm_reduce(
    dy: Any,
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    mean: Any,
    rstd: Any,
    channel_axis: int = 1,
    addend: Any = None,
    y: Any = None,
    mask: Any = None,
    activation: str | None = None,
    alpha: float | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """The sums of one process that a backward needs over all.

    Parameters
    ----------
    dy, x, weight, bias, mean, rstd, channel_axis, addend, y, mask, activation, alpha, stream
        As in `batch_norm_backward`; mean and rstd are those of all processes.
    out : array, optional
        Where to write.

    Returns
    -------
    sums : array
        float32 (float64 for float64), of shape ``(2, x.shape[channel_axis])``: the sum of ``dh * xhat``, which is this
        process's dweight, and that of ``dh``, its dbias. 0 for an x without elements.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `batch_norm`.

    Examples
    --------
    >>> import numpy as np
    >>> x, dy = np.array([[1.0], [3.0]]), np.array([[1.0], [4.0]])
    >>> batch_norm_reduce(dy, x, mean=np.array([2.0]), rstd=np.array([1.0])).tolist()
    [[3.0], [5.0]]
    """
    function = "batch_norm_reduce"
    act = activation_argument(function, activation, alpha)
    arrays = BatchInputs(dy, x, weight, bias, addend, mean, rstd, y, mask)
    (sums,) = given = _core.unpack(function, out, (("sums", "x"),))
    with on_stream(x, stream, function) as handle:
        if sums is None:
            sums = family_of(x, function).empty_stats(x, (2, size_along(x, channel_axis)))
        _core.batch_norm_reduce(*arrays, sums, channel_axis, act, handle)
        return handed_over((sums,), given, (x,), function)[0]


def batch_norm_input_gradient(
    dy: Any,
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    mean: Any,
    rstd: Any,
    sums: Any,
    count: Any,
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
    """`batch_norm_backward` in training with the sums of all processes: dx, and daddend if it is asked for.

    Parameters
    ----------
    sums : array
        Of shape ``(2, x.shape[channel_axis])``: those of `batch_norm_reduce`, added up over the processes.
    count : array
        The number of elements of a channel over all processes, in the dtype of sums, of shape ``()``, ``(1,)`` or
        ``(x.shape[channel_axis],)``: ``moments[:, 2].sum(0)``.
    dy, x, weight, bias, mean, rstd, channel_axis, addend, y, mask, activation, alpha, return_daddend, stream
        As in `batch_norm_backward`; mean and rstd are those of all processes.
    out : array or tuple, optional
        Where to write: dx, or ``(dx, None, None, daddend)``.

    Returns
    -------
    NormGrads
        ``(dx, None, None, daddend)``: dweight and dbias are the rows of the sums.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `batch_norm`.

    Examples
    --------
    >>> import numpy as np
    >>> x, dy = np.array([[1.0], [2.0], [3.0]]), np.array([[1.0], [0.0], [0.0]])
    >>> mean, rstd, count = np.array([2.0]), np.array([1.2247]), np.array([3.0])
    >>> sums = batch_norm_reduce(dy, x, mean=mean, rstd=rstd)
    >>> batch_norm_input_gradient(dy, x, mean=mean, rstd=rstd, sums=sums, count=count).dx.round(3).tolist()
    [[0.204], [-0.408], [0.204]]
    """
    function = "batch_norm_input_gradient"
    act = activation_argument(function, activation, alpha)
    arrays = BatchInputs(dy, x, weight, bias, addend, mean, rstd, y, mask)
    likes = x, None, None, x if return_daddend or addend is not None else None
    with on_stream(x, stream, function) as handle:
        done = dx, _, _, daddend = _core.outputs(function, out, GRADIENTS, likes, None)
        _core.batch_norm_input_gradient(*arrays, sums, count, dx, daddend, channel_axis, act, handle)
        return _core.finish(NormGrads, done, out, GRADIENTS, likes, function)
