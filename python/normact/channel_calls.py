# SPDX-License-Identifier: Apache-2.0
"""From the public functions of batch, group and instance norm to the library: makes the outputs that are not given."""

from __future__ import annotations

import contextlib
import math
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

from normact import _core
from normact.arrays import family_of, mask_bytes
from normact.norm_calls import GRADIENTS, NormGrads
from normact.outputs import ALL, JOINED, Joined, Wanted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class BatchNormOutput(NamedTuple):
    """What a batch norm gives when more than y is asked for; None where nothing applies."""

    y: Any
    mean: Any
    rstd: Any
    mask: Any


class GroupNormOutput(NamedTuple):
    """What a group or instance norm gives when its statistics are asked for."""

    y: Any
    mean: Any
    rstd: Any


# Of each output its name and that of the array which it is like.
BATCH_OUTPUTS = (("y", "x"), ("mean", "x"), ("rstd", "x"), ("mask", "x"))
_GROUP_OUTPUTS = BATCH_OUTPUTS[:3]
_CURRENT = contextlib.nullcontext()


def on_stream(like: Any, stream: Any, function: str, name: str = "x") -> AbstractContextManager[int | None]:
    """Yields the handle to work on; None means the current stream of the library of `like`."""
    return _CURRENT if stream is None else family_of(like, function, name).on_stream(like, stream, function)


def statistics(shape: tuple[int, ...], wanted: bool | Joined) -> tuple[Any, Any]:
    """What mean and rstd of this shape are like, for `_core.outputs`."""
    if wanted is JOINED:
        return (2, *shape), None
    return (shape, shape) if wanted else (None, None)


def size_along(x: Any, axis: Any) -> int:
    """x.shape[axis]; of a wrong axis, or of what has no shape, 0, as the library refuses it or makes nothing for it."""
    try:
        return x.shape[axis]
    except (AttributeError, IndexError, TypeError):
        return 0


def _count(number: Any, channels: int) -> int:
    """The number of groups; of a wrong one 0, as the library refuses it: no statistics are made for it before."""
    try:
        groups = operator.index(number)
    except TypeError:
        return 0
    return groups if groups > 0 and channels % groups == 0 else 0


_INSTEAD = {
    "batch_norm": ", or a call of batch_norm_statistics, batch_norm_merge (which returns new running statistics) and "
    "batch_norm_apply"
}


def refuse_immutable(function: str, running: tuple[Any, ...]) -> None:
    """Raises ValueError for running statistics (mean, variance, batches) that cannot be updated in place.

    For when the library has refused the arguments, with a sentence that knows no way out: others do not pay for it.
    """
    for name, array in zip(("running_mean", "running_var", "num_batches_tracked"), running):
        if array is not None and family_of(array, function, name).hands_over:
            raise ValueError(
                f"{function}: {name} is of type {type(array).__module__}.{type(array).__qualname__}, which is "
                f"immutable; expected an array that can be updated in place{_INSTEAD.get(function, '')}"
            ) from None


# ---- Batch norm ----

# x, weight, bias, addend, running_mean, running_var, num_batches_tracked
BatchArrays = tuple[Any, Any, Any, Any, Any, Any, Any]


def batch_outputs(
    function: str, out: Any, x: Any, mean_like: Any, rstd_like: Any, return_mask: bool, channel_axis: int
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What y, mean, rstd and mask are made like, and these: the caller's, or new ones."""
    likes = x, mean_like, rstd_like, mask_bytes(x) if return_mask else None
    y, mean, rstd, mask = _core.outputs(function, out, BATCH_OUTPUTS, likes, None)
    given = isinstance(out, tuple) and any(array is mask for array in out)
    if return_mask and not given and is_channels_last(x, channel_axis):
        mask = mask.reshape(-1, 1)  # bits in x's order
    return likes, (y, mean, rstd, mask)


def is_channels_last(x: Any, channel_axis: int) -> bool:
    """Whether x has its channels side by side in memory, though its axes have places behind them."""
    axes = len(x.shape)
    if not -axes <= channel_axis < axes or x.shape[channel_axis] == 1:
        return False
    places = math.prod(x.shape[channel_axis % axes + 1 :])
    return places > 1 and family_of(x, "batch_norm").stride(x, channel_axis) == 1


def batch_forward(
    function: str,
    arrays: BatchArrays,
    training: bool,
    channel_axis: int,
    eps: float,
    momentum: float | None,
    act: tuple[Any, ...] | None,
    return_stats: bool | Joined,
    return_mask: bool,
    out: Any,
    stream: Any,
    handle: int | None = None,
) -> Any:
    """A forward; `handle` is the stream that `stream` has become."""
    x = arrays[0]
    options = (training, channel_axis, eps, momentum, act)
    if stream is not None:
        with family_of(x, function).on_stream(x, stream, function) as found:
            return batch_forward(function, arrays, *options, return_stats, return_mask, out, None, found)
    more = return_stats or return_mask
    if not more and not isinstance(out, tuple):  # y alone, by the shortest way
        family = None if out is not None else family_of(x, function)
        y = out if family is None else family.empty_like(x)
        _core.batch_norm_forward(function, *arrays, y, None, None, None, *options, handle, out is None)
        return y if family is None or not family.hands_over else family.hand_over(y, x)
    mean_like, rstd_like = statistics((size_along(x, channel_axis),) if return_stats else (), return_stats)
    likes, done = batch_outputs(function, out, x, mean_like, rstd_like, return_mask, channel_axis)
    y, mean, rstd, mask = done
    rstd = JOINED if return_stats is JOINED else rstd
    _core.batch_norm_forward(function, *arrays, y, mean, rstd, mask, *options, handle, out is None)
    found = _core.finish(BatchNormOutput, done, out, BATCH_OUTPUTS, likes, function)
    return found if more else found[0]


class BatchInputs(NamedTuple):
    """What a backward of batch norm, and each of its parts, reads."""

    dy: Any
    x: Any
    weight: Any
    bias: Any
    addend: Any
    mean: Any
    rstd: Any
    y: Any
    mask: Any


def batch_backward(
    function: str,
    arrays: BatchInputs,
    training: bool,
    channel_axis: int,
    act: tuple[Any, ...] | None,
    return_daddend: bool,
    out: Any,
    stream: Any,
    wanted: Wanted = ALL,
    handle: int | None = None,
) -> NormGrads:
    """A backward, whose daddend is made if there is an addend or it is asked for, and it is `wanted`."""
    _, x, weight, bias, *_ = arrays
    if stream is not None:
        options = (training, channel_axis, act, return_daddend, out)
        with family_of(x, function).on_stream(x, stream, function) as found:
            return batch_backward(function, arrays, *options, None, wanted, found)
    wants_daddend = (return_daddend or arrays.addend is not None) and wanted[3]
    likes = x, weight, bias, x if wants_daddend else None
    done = dx, dweight, dbias, daddend = _core.outputs(function, out, GRADIENTS, likes, wanted)
    last = training, channel_axis, act, handle, out is None
    _core.batch_norm_backward(function, *arrays, dx, dweight, dbias, daddend, *last)
    return _core.finish(NormGrads, done, out, GRADIENTS, likes, function)


# ---- Group and instance norm ----


def group_forward(
    function: str,
    arrays: tuple[Any, Any, Any, Any, Any],
    num_groups: int,
    channel_axis: int,
    eps: float,
    momentum: float,
    act: tuple[Any, ...] | None,
    return_stats: bool | Joined,
    out: Any,
    stream: Any,
    handle: int | None = None,
) -> Any:
    """A forward. `arrays` are x, weight, bias, running_mean and running_var."""
    x = arrays[0]
    options = (num_groups, channel_axis, eps, momentum, act)
    if stream is not None:
        with family_of(x, function).on_stream(x, stream, function) as found:
            return group_forward(function, arrays, *options, return_stats, out, None, found)
    if not return_stats and not isinstance(out, tuple):  # y alone, by the shortest way
        family = None if out is not None else family_of(x, function)
        y = out if family is None else family.empty_like(x)
        _core.group_norm_forward(function, *arrays, y, None, None, *options, handle, out is None)
        return y if family is None or not family.hands_over else family.hand_over(y, x)
    shape = (size_along(x, 0), _count(num_groups, size_along(x, channel_axis))) if return_stats else ()
    likes = x, *statistics(shape, return_stats)
    done = y, mean, rstd = _core.outputs(function, out, _GROUP_OUTPUTS, likes, None)
    rstd = JOINED if return_stats is JOINED else rstd
    _core.group_norm_forward(function, *arrays, y, mean, rstd, *options, handle, out is None)
    found = _core.finish(GroupNormOutput, done, out, _GROUP_OUTPUTS, likes, function)
    return found if return_stats else found[0]


def group_backward(
    function: str,
    arrays: tuple[Any, Any, Any, Any, Any, Any],
    num_groups: int,
    channel_axis: int,
    act: tuple[Any, ...] | None,
    out: Any,
    stream: Any,
    wanted: Wanted = ALL,
    handle: int | None = None,
) -> NormGrads:
    """A backward. `arrays` are dy, x, weight, bias, mean and rstd."""
    _, x, weight, bias, _, _ = arrays
    if stream is not None:
        with family_of(x, function).on_stream(x, stream, function) as found:
            return group_backward(function, arrays, num_groups, channel_axis, act, out, None, wanted, found)
    likes = x, weight, bias, None
    done = dx, dweight, dbias, _ = _core.outputs(function, out, GRADIENTS, likes, wanted)
    last = num_groups, channel_axis, act, handle, out is None
    _core.group_norm_backward(function, *arrays, dx, dweight, dbias, *last)
    return _core.finish(NormGrads, done, out, GRADIENTS, likes, function)


def instance_groups(x: Any, channel_axis: int, function: str) -> int:
    """The number of groups that makes a group norm an instance norm: that of the channels, or 1 where there is none."""
    family_of(x, function)  # of what is no array, the sentence that says so
    if not hasattr(x, "shape"):
        kind = f"{type(x).__module__}.{type(x).__qualname__}"
        raise TypeError(
            f"{function}: x is of type {kind}, which has no shape; expected an array whose channels can be counted"
        )
    return size_along(x, channel_axis) or 1
