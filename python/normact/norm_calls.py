# SPDX-License-Identifier: Apache-2.0
"""From a public function of `normact.norm` to the library: makes the outputs that are not given."""

from __future__ import annotations

from typing import Any, NamedTuple

from normact import _core
from normact.activation_calls import kind_number, numbers
from normact.arrays import family_of, handed_over, workspace
from normact.outputs import ALL, Wanted, check_unwanted, named, unpack

_NAMES = {_core.LAYER: "layer_norm", _core.RMS: "rms_norm"}
_BACKWARD_NAMES = {kind: f"{name}_backward" for kind, name in _NAMES.items()}
_NOTHING = (None, None, None, None)


class NormOutput(NamedTuple):
    """What a forward gives when more than y is asked for; None where nothing applies."""

    y: Any
    residual: Any
    mean: Any
    rstd: Any


class NormGrads(NamedTuple):
    """What a backward gives; None where nothing applies."""

    dx: Any
    dweight: Any
    dbias: Any
    daddend: Any


def activation_argument(function: str, name: str | None, alpha: float | None) -> tuple[Any, ...] | None:
    """What the library is told of an activation: its number, alpha, beta and threshold."""
    if name is None:
        return None
    return kind_number(function, name, "activation"), *numbers(name, alpha, None, None)


def forward(
    kind: int,
    x: Any,
    weight: Any,
    bias: Any,
    axis: int | tuple[int, ...],
    eps: float,
    residual: Any,
    weight_offset: float,
    activation: str | None,
    alpha: float | None,
    return_stats: bool,
    out: Any,
    stream: Any,
    handle: int | None = None,
) -> Any:
    """A forward of the kind LAYER or RMS.

    The arguments are those of `normact.layer_norm`, and the handle of the stream that `stream` has become.
    """
    if stream is not None:
        options = (axis, eps, residual, weight_offset, activation, alpha, return_stats, out)
        with family_of(x, _NAMES[kind]).on_stream(x, stream) as found:
            return forward(kind, x, weight, bias, *options, None, found)
    act = None if activation is None else activation_argument(_NAMES[kind], activation, alpha)
    more = return_stats or residual is not None
    if (
        out is not None and not more and not isinstance(out, tuple)
    ):  # the shortest way, for those who count microseconds
        _core.norm_forward(
            kind, x, weight, bias, None, out, None, None, None, axis, eps, weight_offset, act, handle, workspace, False
        )
        return out
    name, layer = _NAMES[kind], kind == _core.LAYER
    given = y, s, mean, rstd = _NOTHING if out is None else unpack(name, out, NormOutput._fields)
    if out is not None:
        wanted = (True, residual is not None, return_stats and layer, return_stats)
        check_unwanted(name, given, NormOutput._fields, wanted)
    family = family_of(x, name)
    if y is None:
        y = family.empty_like(x)
    if residual is not None and s is None:
        s = family.empty_like(x)
    if return_stats and layer and (mean is None or rstd is None):
        mean, rstd = family.moments(x, _outer_shape(x, axis), mean, rstd)
    elif return_stats and rstd is None:
        rstd = family.empty_stats(x, _outer_shape(x, axis))
    fresh = out is None
    _core.norm_forward(
        kind, x, weight, bias, residual, y, s, mean, rstd, axis, eps, weight_offset, act, handle, workspace, fresh
    )
    if family.hands_over:
        y, s, mean, rstd = handed_over((y, s, mean, rstd), given, (x, x, x, x), name)
    return named(NormOutput, (y, s, mean, rstd)) if more else y


def backward(
    kind: int,
    dy: Any,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    rstd: Any,
    axis: int | tuple[int, ...],
    dresidual: Any,
    weight_offset: float,
    activation: str | None,
    alpha: float | None,
    out: Any,
    stream: Any,
    wanted: Wanted = ALL,
    handle: int | None = None,
) -> NormGrads:
    """A backward of the kind LAYER or RMS.

    The arguments are those of `normact.layer_norm_backward`, and the handle of the stream that `stream` has become. Of
    what is not `wanted` nothing is computed, but for dx.
    """
    name = _BACKWARD_NAMES[kind]
    if stream is not None:
        options = (axis, dresidual, weight_offset, activation, alpha, out)
        with family_of(x, name).on_stream(x, stream) as found:
            return backward(kind, dy, x, weight, bias, mean, rstd, *options, None, wanted, found)
    act = None if activation is None else activation_argument(name, activation, alpha)
    given = dx, dweight, dbias, _ = _NOTHING if out is None else unpack(name, out, NormGrads._fields)
    if out is not None:
        check_unwanted(name, given, NormGrads._fields, (True, weight is not None, bias is not None, False))
    if dx is None:
        dx = family_of(x, name).empty_like(x)
    if weight is not None and dweight is None and wanted[1]:
        dweight = family_of(weight, name, "weight").empty_like(weight)
    if bias is not None and dbias is None and wanted[2]:
        dbias = family_of(bias, name, "bias").empty_like(bias)
    read = None if act is None else bias
    done = dx, dweight, dbias, None
    last = handle, workspace, out is None
    _core.norm_backward(
        kind, dy, x, weight, read, mean, rstd, dresidual, dx, dweight, dbias, axis, weight_offset, act, *last
    )
    return named(NormGrads, handed_over(done, given, (x, weight, bias, x), name))


def _outer_shape(x: Any, axis: int | tuple[int, ...]) -> tuple[int, ...]:
    """x.shape without the normalised axes; wrong axes are left for the library to refuse."""
    shape = tuple(x.shape)
    if axis == -1:
        return shape[:-1]
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    try:
        gone = {a + len(shape) if a < 0 else a for a in axes}
    except TypeError:
        return shape
    return tuple(n for d, n in enumerate(shape) if d not in gone)
