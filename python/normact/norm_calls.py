# SPDX-License-Identifier: Apache-2.0
"""From a public function of `normact.norm` to the library: makes the outputs that are not given."""

from __future__ import annotations

from typing import Any, NamedTuple

from normact import _core
from normact.activation_calls import kind_number, numbers
from normact.arrays import family_of, workspace
from normact.outputs import ALL, Wanted, check_unwanted, unpack

_NAMES = {_core.LAYER: "layer_norm", _core.RMS: "rms_norm"}
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
) -> Any:
    """A forward of the kind LAYER or RMS; the arguments are those of `normact.layer_norm`."""
    act = None if activation is None else activation_argument(_NAMES[kind], activation, alpha)
    simple = residual is None and stream is None and not return_stats
    if simple and out is not None and not isinstance(out, tuple):  # the shortest way, for those who count microseconds
        _core.norm_forward(
            kind, x, weight, bias, None, out, None, None, None, axis, eps, weight_offset, act, None, workspace
        )
        return out
    args = (kind, x, weight, bias, axis, eps, residual, weight_offset, act, return_stats, out)
    if stream is None:
        return _forward_on(*args, None)
    with family_of(x, _NAMES[kind]).on_stream(x, stream) as handle:
        return _forward_on(*args, handle)


def _forward_on(
    kind: int,
    x: Any,
    weight: Any,
    bias: Any,
    axis: int | tuple[int, ...],
    eps: float,
    residual: Any,
    weight_offset: float,
    act: tuple[Any, ...] | None,
    return_stats: bool,
    out: Any,
    handle: int | None,
) -> Any:
    layer = kind == _core.LAYER
    given = y, s, mean, rstd = _NOTHING if out is None else unpack(_NAMES[kind], out, NormOutput._fields)
    if out is not None:
        wanted = (True, residual is not None, return_stats and layer, return_stats)
        check_unwanted(_NAMES[kind], given, NormOutput._fields, wanted)
    family = family_of(x, _NAMES[kind])
    if y is None:
        y = family.empty_like(x)
    if residual is not None and s is None:
        s = family.empty_like(x)
    if return_stats:
        shape = _outer_shape(x, axis)
        if mean is None and layer:
            mean = family.empty_stats(x, shape)
        if rstd is None:
            rstd = family.empty_stats(x, shape)
    _core.norm_forward(
        kind, x, weight, bias, residual, y, s, mean, rstd, axis, eps, weight_offset, act, handle, workspace
    )
    done = y, s, mean, rstd
    if family.hands_over:
        done = [mine if mine is array else family.hand_over(mine, x) for mine, array in zip(done, given, strict=True)]
    return NormOutput(*done) if residual is not None or return_stats else done[0]


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
) -> NormGrads:
    """A backward of the kind LAYER or RMS; the arguments are those of `normact.layer_norm_backward`.

    Of what is not `wanted` nothing is computed, but for dx.
    """
    act = None if activation is None else activation_argument(_NAMES[kind] + "_backward", activation, alpha)
    args = (kind, dy, x, weight, bias, mean, rstd, axis, dresidual, weight_offset, act, wanted, out)
    if stream is None:
        return _backward_on(*args, None)
    with family_of(x, _NAMES[kind] + "_backward").on_stream(x, stream) as handle:
        return _backward_on(*args, handle)


def _backward_on(
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
    act: tuple[Any, ...] | None,
    wanted: Wanted,
    out: Any,
    handle: int | None,
) -> NormGrads:
    name = _NAMES[kind] + "_backward"
    given = dx, dweight, dbias, _ = _NOTHING if out is None else unpack(name, out, NormGrads._fields)
    if out is not None:
        check_unwanted(name, given, NormGrads._fields, (True, weight is not None, bias is not None, False))
    if dx is None:
        dx = family_of(x, name).empty_like(x)
    if weight is not None and dweight is None and wanted[1]:
        dweight = family_of(weight, name, "weight").empty_like(weight)
    if bias is not None and dbias is None and wanted[2]:
        dbias = family_of(bias, name, "bias").empty_like(bias)
    _core.norm_backward(
        kind,
        dy,
        x,
        weight,
        None if act is None else bias,
        mean,
        rstd,
        dresidual,
        dx,
        dweight,
        dbias,
        axis,
        weight_offset,
        act,
        handle,
        workspace,
    )
    if dx is not given[0]:
        dx = family_of(x, name).hand_over(dx, x)
    if dweight is not given[1]:
        dweight = family_of(weight, name).hand_over(dweight, weight)
    if dbias is not given[2]:
        dbias = family_of(bias, name).hand_over(dbias, bias)
    return NormGrads(dx, dweight, dbias, None)


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
