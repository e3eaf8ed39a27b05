# SPDX-License-Identifier: Apache-2.0
"""From a public function of `normact.gates` to the library: makes the outputs that are not given."""

from __future__ import annotations

from typing import Any, NamedTuple

from normact import _core
from normact.activation_calls import ActivationGrads, kind_number, numbers
from normact.arrays import family_of
from normact.outputs import ALL, Wanted

SEPARATE = _core.GATE_LAYOUTS["separate"]
# Of each gradient its name and that of the array which it is like.
_GRADIENTS = (("dgate", "gate"), ("dup", "up"), ("dgate_bias", "gate_bias"), ("dup_bias", "up_bias"))
_PACKED_GRADIENTS = (("dx", "gate"), ("dbias", "gate_bias"))
_PACKED = {name: number for name, number in _core.GATE_LAYOUTS.items() if number != SEPARATE}

# axis, alpha, beta, threshold, limit, up_offset
_Options = tuple[Any, Any, Any, Any, Any, Any]


class GatedGrads(NamedTuple):
    """What the backward of a gated activation with separate inputs gives; None for a bias that is not there."""

    dgate: Any
    dup: Any
    dgate_bias: Any
    dup_bias: Any


def layout_number(function: str, layout: Any, up: Any) -> int:
    """The number of a layout, which is that of a packed input, or where up is given SEPARATE."""
    number = _PACKED.get(layout) if isinstance(layout, str) else None
    if number is None:
        raise ValueError(f"{function}: layout is {layout!r}; expected one of {', '.join(_PACKED)}")
    return number if up is None else SEPARATE


def split_bias(function: str, bias: Any, up: Any) -> tuple[Any, Any]:
    """gate_bias and up_bias; a packed bias is the first."""
    if bias is None:
        return None, None
    pair = isinstance(bias, (tuple, list))
    if up is None:
        if pair:
            raise TypeError(f"{function}: bias is a {type(bias).__name__}; expected one array, packed like gate")
        return bias, None
    if not pair or len(bias) != 2:
        found = f"a {type(bias).__name__} of {len(bias)}" if pair else f"of type {type(bias).__name__}"
        raise TypeError(f"{function}: bias is {found}; expected a pair (gate_bias, up_bias), as up is given")
    return bias[0], bias[1]


def joined_bias(up: Any, gate_bias: Any, up_bias: Any) -> Any:
    """The argument `bias` again: one packed like gate, or one for each."""
    if up is None:
        return gate_bias
    return None if gate_bias is None and up_bias is None else (gate_bias, up_bias)


def _options(kind: str, axis: Any, alpha: Any, beta: Any, threshold: Any, limit: Any, up_offset: Any) -> _Options:
    return axis, *numbers(kind, alpha, beta, threshold), 0.0 if limit is None else limit, up_offset


def _empty_output(function: str, gate: Any, up: Any, axis: Any) -> Any:
    """y, in memory as gate is; with half the size of a packed one. A wrong axis is left for the library to refuse."""
    family = family_of(gate, function, "gate")
    ndim = len(getattr(gate, "shape", ()))
    packed = up is None and isinstance(axis, int) and -ndim <= axis < ndim
    return family.empty_half(gate, axis) if packed else family.empty_like(gate)


def forward(
    function: str,
    gate: Any,
    up: Any,
    kind: str,
    layout: str,
    axis: int,
    bias: Any,
    alpha: float | None,
    beta: float | None,
    threshold: float | None,
    limit: float | None,
    up_offset: float,
    out: Any,
    stream: Any,
) -> Any:
    """A forward; the arguments are those of `normact.gated`, `function` is what messages name."""
    call = function, kind_number(function, kind), layout_number(function, layout, up)
    biases = split_bias(function, bias, up)
    options = _options(kind, axis, alpha, beta, threshold, limit, up_offset)
    if stream is None and out is not None and not isinstance(out, tuple):  # the shortest way
        _core.gated_forward(*call, gate, up, *biases, out, *options, None, False)
        return out
    if stream is None:
        return _forward_on(call, gate, up, biases, options, out, None)
    with family_of(gate, function, "gate").on_stream(gate, stream, function) as handle:
        return _forward_on(call, gate, up, biases, options, out, handle)


def _forward_on(
    call: tuple[str, int, int],
    gate: Any,
    up: Any,
    biases: tuple[Any, Any],
    options: _Options,
    out: Any,
    handle: int | None,
) -> Any:
    (given,) = _core.unpack(call[0], out, (("y", "gate"),))
    y = _empty_output(call[0], gate, up, options[0]) if given is None else given
    _core.gated_forward(*call, gate, up, *biases, y, *options, handle, given is None)
    return y if y is given else family_of(gate, call[0], "gate").hand_over(y, gate)


def backward(
    function: str,
    dy: Any,
    gate: Any,
    up: Any,
    kind: str,
    layout: str,
    axis: int,
    bias: Any,
    alpha: float | None,
    beta: float | None,
    threshold: float | None,
    limit: float | None,
    up_offset: float,
    out: Any,
    stream: Any,
    wanted: Wanted = ALL,
) -> GatedGrads | ActivationGrads:
    """A backward; the arguments are those of `normact.gated_backward`, `function` is what messages name."""
    call = function, kind_number(function, kind), layout_number(function, layout, up)
    biases = split_bias(function, bias, up)
    options = _options(kind, axis, alpha, beta, threshold, limit, up_offset)
    if stream is None:
        return _backward_on(call, dy, gate, up, biases, options, wanted, out, None)
    with family_of(dy, function, "dy").on_stream(dy, stream, function) as handle:
        return _backward_on(call, dy, gate, up, biases, options, wanted, out, handle)


def _backward_on(
    call: tuple[str, int, int],
    dy: Any,
    gate: Any,
    up: Any,
    biases: tuple[Any, Any],
    options: _Options,
    wanted: Wanted,
    out: Any,
    handle: int | None,
) -> GatedGrads | ActivationGrads:
    """Every gradient is like its input, so one rule makes and returns all four. Those of biases may be unwanted."""
    function = call[0]
    if up is None:
        kind, names, likes, made = ActivationGrads, _PACKED_GRADIENTS, (gate, biases[0]), (True, wanted[2])
    else:
        kind, names, likes, made = GatedGrads, _GRADIENTS, (gate, up, *biases), (True, True, *wanted[2:])
    done = _core.outputs(function, out, names, likes, made)
    dgate, dup, dgate_bias, dup_bias = done if up is not None else (done[0], None, done[1], None)
    _core.gated_backward(*call, dy, gate, up, *biases, dgate, dup, dgate_bias, dup_bias, *options, handle, out is None)
    return _core.finish(kind, done, out, names, likes, function)
