# SPDX-License-Identifier: Apache-2.0
"""The activations, plain and gated, as PyTorch operations."""

from __future__ import annotations

import torch

from normact import activation_calls, gated_calls
from normact.activation_calls import FROM_OUTPUT
from normact.arrays import half_of
from normact.torch import fakes
from normact.torch.functions import build
from normact.torch.op import Joined, Op, Options, Shapes, Tensors, Wanted

# The tensors and options of an activation: kind, axis, alpha, beta, threshold.
_ACTIVATION = ("str kind", "int axis", "float? alpha", "float? beta", "float? threshold")


def _dims(ndim: int, axis: int | None) -> list[int]:
    """All dimensions but one."""
    return [dim for dim in range(ndim) if axis is None or dim != axis % ndim]


def _activation_name(options: Options) -> str:
    kind = options[0]
    return kind if isinstance(kind, str) and kind in activation_calls.KINDS else "activation"


def _activation_forward(tensors: Tensors, options: Options, keep: bool | Joined) -> Tensors:
    x, bias = tensors
    kind, axis, alpha, beta, threshold = options
    return (
        activation_calls.forward(
            _activation_name(options), kind, x, bias, axis, alpha, beta, threshold, False, None, None
        ),
    )


def _activation_saves(tensors: Tensors, outputs: Tensors, options: Options) -> Tensors:
    x, bias = tensors
    return (None, outputs[0], bias) if options[0] in FROM_OUTPUT else (x, None, bias)


def _activation_backward(grads: Tensors, saved: Tensors, options: Options, wanted: Wanted) -> Tensors:
    x, y, bias = saved
    kind, axis, alpha, beta, threshold = options
    name = f"{kind}_backward"
    numbers = (alpha, beta, threshold)
    return activation_calls.backward(name, kind, grads[0], x, y, None, bias, axis, *numbers, None, None, wanted)


def _activation_shapes(tensors: Tensors, options: Options) -> Shapes:
    (x, bias), (kind, axis, *_) = tensors, options
    activation_calls.kind_number("activation", kind)
    return None, None if bias is None else (x.shape[axis],)


ACTIVATION = build(
    Op(
        name="activation",
        tensors=("x", "bias?"),
        options=_ACTIVATION,
        outputs=("y",),
        returned=1,
        saved=("x?", "y?", "bias?"),
        saves=_activation_saves,
        gradients=(("x", "y"), ("bias",)),
        gradient_of=(0, 1),
        forward=_activation_forward,
        backward=_activation_backward,
        empty=lambda tensors, options: (torch.empty_like(tensors[0]),),
        shapes=_activation_shapes,
        function=_activation_name,
        leading=("x",),
        divisible=lambda ndim, names, options: _dims(ndim, options[1] if "bias" in names else None),
        divided=("x", "y"),
    )
)


def _gated_forward(tensors: Tensors, options: Options, keep: bool | Joined) -> Tensors:
    gate, up, gate_bias, up_bias = tensors
    kind, layout, axis, alpha, beta, threshold, limit, up_offset = options
    bias = gated_calls.joined_bias(up, gate_bias, up_bias)
    numbers = (alpha, beta, threshold, limit, up_offset)
    return (gated_calls.forward("gated", gate, up, kind, layout, axis, bias, *numbers, None, None),)


def _gated_backward(grads: Tensors, saved: Tensors, options: Options, wanted: Wanted) -> Tensors:
    gate, up, gate_bias, up_bias = saved
    kind, layout, axis, alpha, beta, threshold, limit, up_offset = options
    bias = gated_calls.joined_bias(up, gate_bias, up_bias)
    numbers = (alpha, beta, threshold, limit, up_offset)
    arrays = (grads[0], gate, up)
    found = gated_calls.backward("gated_backward", *arrays, kind, layout, axis, bias, *numbers, None, None, wanted)
    return (found[0], None, found[1], None) if up is None else tuple(found)


def _gated_empty(tensors: Tensors, options: Options) -> Tensors:
    gate, up, axis = tensors[0], tensors[1], options[2]
    return (torch.empty_like(gate if up is not None else half_of(gate, axis)),)


def _gated_shapes(tensors: Tensors, options: Options) -> Shapes:
    gate, up, (kind, layout, axis, *_) = *tensors[:2], options
    activation_calls.kind_number("gated", kind)
    gated_calls.layout_number("gated", layout, up)
    if up is None:
        fakes.check_divides("gated", "gate", gate, axis, 2, "an even size")
    of_axis = (gate.shape[axis],)
    return None, gate.shape, of_axis, of_axis


def _gated_divisible(ndim: int, names: tuple[str, ...], options: Options) -> list[int]:
    packed, biased = "up" not in names, "gate_bias" in names or "up_bias" in names
    return _dims(ndim, options[2] if packed or biased else None)


GATED = build(
    Op(
        name="gated",
        tensors=("gate", "up?", "gate_bias?", "up_bias?"),
        options=("str kind", "str layout", *_ACTIVATION[1:], "float? limit", "float up_offset"),
        outputs=("y",),
        returned=1,
        saved=("gate", "up?", "gate_bias?", "up_bias?"),
        saves=lambda tensors, outputs, options: tensors,
        gradients=(("gate",), ("up",), ("gate_bias",), ("up_bias",)),
        gradient_of=(0, 1, 2, 3),
        forward=_gated_forward,
        backward=_gated_backward,
        empty=_gated_empty,
        shapes=_gated_shapes,
        leading=("gate", "up"),
        divisible=_gated_divisible,
        divided=("gate", "up", "y"),
    )
)
