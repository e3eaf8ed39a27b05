# SPDX-License-Identifier: Apache-2.0
"""From a public function of `normact.norm` to the library: makes the outputs that are not given."""

from __future__ import annotations

from typing import Any, NamedTuple

from normact import _core
from normact.activation_calls import kind_number, numbers
from normact.arrays import family_of
from normact.outputs import ALL, Wanted

#: The functions by kind.
NAMES = {_core.LAYER: "layer_norm", _core.RMS: "rms_norm"}
#: Of each kind its forward, of an activation as `activation_argument` says it, on a stream's handle or None.
FORWARDS = {kind: _core.norm_forward(kind) for kind in NAMES}
_BACKWARD_NAMES = {kind: f"{name}_backward" for kind, name in NAMES.items()}
# Of each output its name and that of the array which it is like.
OUTPUTS = (("y", "x"), ("residual", "x"), ("mean", "x"), ("rstd", "x"))
GRADIENTS = (("dx", "x"), ("dweight", "weight"), ("dbias", "bias"), ("daddend", "x"))


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
        with family_of(x, NAMES[kind]).on_stream(x, stream, NAMES[kind]) as found:
            return forward(kind, x, weight, bias, *options, None, found)
    act = None if activation is None else activation_argument(NAMES[kind], activation, alpha)
    return FORWARDS[kind](x, weight, bias, residual, axis, eps, weight_offset, act, out, return_stats, handle)


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
    what is not `wanted` nothing is computed, but for dx. `rstd` is `JOINED` if `mean` holds both
    statistics.
    """
    name = _BACKWARD_NAMES[kind]
    if stream is not None:
        options = (axis, dresidual, weight_offset, activation, alpha, out)
        with family_of(x, name).on_stream(x, stream, name) as found:
            return backward(kind, dy, x, weight, bias, mean, rstd, *options, None, wanted, found)
    act = None if activation is None else activation_argument(name, activation, alpha)
    return _core.norm_backward(
        kind, dy, x, weight, bias, mean, rstd, dresidual, axis, weight_offset, act, out, wanted, handle
    )
