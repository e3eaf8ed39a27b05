# SPDX-License-Identifier: Apache-2.0
"""The activations, plain and gated, as JAX operations."""

from __future__ import annotations

from typing import Any, NamedTuple

from normact import _core
from normact.activation_calls import FROM_OUTPUT
from normact.gated_calls import SEPARATE
from normact.jax.call import Call
from normact.jax.layout import Layout, Result, Tensors
from normact.jax.op import Arrays, Op, build, like, statistic_dtype

#: By their numbers.
_FROM_OUTPUT = frozenset(_core.ACTIVATIONS[name] for name in FROM_OUTPUT)


class ActivationOptions(NamedTuple):
    """What an activation is told beside its tensors. The axis is negative."""

    function: str
    act: tuple[int, float, float, float]  # number, alpha, beta, threshold
    axis: int


def _numbers(act: tuple[int, float, float, float]) -> dict[str, Any]:
    return dict(zip(("kind", "alpha", "beta", "threshold"), act))


def _names(array: Any) -> tuple[str, ...]:
    return tuple(f"d{i}" for i in range(len(array.shape)))


def _activation_attributes(operands: Tensors, options: ActivationOptions) -> dict[str, Any]:
    return {"axis": options.axis, **_numbers(options.act)}


def _activation_layout(operands: Tensors, options: ActivationOptions) -> Layout:
    x = operands["x"]
    dims = _names(x)
    each = {"x": dims, "bias": dims[options.axis :][:1]}
    return Layout({name: each[name] for name in operands}, {"y": Result(dims, x.dtype)})


def _activation_backward_layout(operands: Tensors, options: ActivationOptions) -> Layout:
    dy = operands["dy"]
    dims = _names(dy)
    along = dims[options.axis :][:1]
    results = {"dx": Result(dims, dy.dtype)}
    if "bias" in operands:
        results["dbias"] = Result(along, statistic_dtype(dy.dtype))
    each = {"dy": dims, "x": dims, "y": dims, "bias": along}
    return Layout({name: each[name] for name in operands}, results)


_ACTIVATION = Call("activation_forward", _activation_layout, _activation_attributes, leading=frozenset(("x", "y")))
_ACTIVATION_BACKWARD = Call(
    "activation_backward",
    _activation_backward_layout,
    _activation_attributes,
    leading=frozenset(("dy", "x", "y", "dx")),
)


def _activation_forward(tensors: Arrays, options: ActivationOptions, keep: bool) -> tuple[Arrays, Arrays]:
    x, bias = tensors
    y = _ACTIVATION({"x": x, "bias": bias}, options)["y"]
    return (y,), (None, y, bias) if options.act[0] in _FROM_OUTPUT else (x, None, bias)


def _activation_backward(gradients: Arrays, kept: Arrays, options: ActivationOptions) -> Arrays:
    x, y, bias = kept
    found = _ACTIVATION_BACKWARD({"dy": gradients[0], "x": x, "y": y, "bias": bias}, options)
    return found["dx"], like(found.get("dbias"), bias)


#: (options, x, bias) -> y.
ACTIVATION = build(Op(_activation_forward, _activation_backward))


# ---- Gated activations ----


class GatedOptions(NamedTuple):
    """What a gated activation is told beside its tensors. The axis is negative."""

    function: str
    act: tuple[int, float, float, float]
    layout: int
    axis: int
    limit: float
    up_offset: float


def _gated_attributes(operands: Tensors, options: GatedOptions) -> dict[str, Any]:
    return {
        "layout": options.layout,
        "axis": options.axis,
        "limit": options.limit,
        "up_offset": options.up_offset,
        **_numbers(options.act),
    }


class _GatedDims(NamedTuple):
    inputs: tuple[str, ...]
    output: tuple[str, ...]
    bias: tuple[str, ...]
    whole: frozenset[str]
    sizes: dict[str, int]


def _gated_dims(gate: Any, options: GatedOptions) -> _GatedDims:
    """A packed axis has a name of its own, and no device may have a part of it."""
    dims = _names(gate)
    if options.layout == SEPARATE:
        return _GatedDims(dims, dims, dims[options.axis :][:1], frozenset(), {})
    place = len(dims) + options.axis
    packed = (*dims[:place], "packed", *dims[place + 1 :])
    half = {dims[place]: gate.shape[place] // 2}
    return _GatedDims(packed, dims, ("packed",), frozenset(("packed", dims[place])), half)


def _gated_layout(operands: Tensors, options: GatedOptions) -> Layout:
    gate = operands["gate"]
    dims = _gated_dims(gate, options)
    each = {"gate": dims.inputs, "up": dims.inputs, "gate_bias": dims.bias, "up_bias": dims.bias}
    results = {"y": Result(dims.output, gate.dtype)}
    return Layout({name: each[name] for name in operands}, results, dims.whole, sizes=dims.sizes)


def _gated_backward_layout(operands: Tensors, options: GatedOptions) -> Layout:
    gate = operands["gate"]
    dims = _gated_dims(gate, options)
    each = {"gate": dims.inputs, "up": dims.inputs, "gate_bias": dims.bias, "up_bias": dims.bias}
    results = {}
    for name in ("gate", "up"):
        if name in operands:
            results[f"d{name}"] = Result(dims.inputs, gate.dtype)
    for name in ("gate_bias", "up_bias"):
        if name in operands:
            results[f"d{name}"] = Result(dims.bias, statistic_dtype(gate.dtype))
    each["dy"] = dims.output
    return Layout({name: each[name] for name in operands}, results, dims.whole, sizes=dims.sizes)


_GATED = Call("gated_forward", _gated_layout, _gated_attributes, leading=frozenset(("gate", "up", "y")))
_GATED_BACKWARD = Call(
    "gated_backward",
    _gated_backward_layout,
    _gated_attributes,
    leading=frozenset(("dy", "gate", "up", "dgate", "dup")),
)
_GATED_TENSORS = ("gate", "up", "gate_bias", "up_bias")


def _gated_forward(tensors: Arrays, options: GatedOptions, keep: bool) -> tuple[Arrays, Arrays]:
    return (_GATED(dict(zip(_GATED_TENSORS, tensors)), options)["y"],), tensors


def _gated_backward(gradients: Arrays, kept: Arrays, options: GatedOptions) -> Arrays:
    found = _GATED_BACKWARD({"dy": gradients[0], **dict(zip(_GATED_TENSORS, kept))}, options)
    return tuple(like(found.get(f"d{name}"), tensor) for name, tensor in zip(_GATED_TENSORS, kept))


#: (options, gate, up, gate_bias, up_bias) -> y.
GATED = build(Op(_gated_forward, _gated_backward))
