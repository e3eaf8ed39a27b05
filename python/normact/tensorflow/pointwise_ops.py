# SPDX-License-Identifier: Apache-2.0
"""The activations, plain and gated, as TensorFlow operations."""

from __future__ import annotations

import operator

import tensorflow as tf

from normact import activation_calls, gated_calls
from normact.tensorflow.op import Op, Options, Tensors, Wanted, goes_back_from_output, like

# Options of both: the name that messages have, kind, axis, alpha, beta, threshold.


def _activation_forward(tensors: Tensors, options: Options, keep: bool) -> Tensors:
    x, bias = tensors
    name, kind, axis, alpha, beta, threshold = options
    return (activation_calls.forward(name, kind, x, bias, axis, alpha, beta, threshold, False, None, None),)


def _activation_saves(tensors: Tensors, outputs: Tensors, options: Options) -> Tensors:
    x, bias = tensors
    return (None, outputs[0], bias) if goes_back_from_output(options[1]) else (x, None, bias)


def _activation_backward(grads: Tensors, saved: Tensors, options: Options, wanted: Wanted) -> Tensors:
    x, y, bias = saved
    name, kind, axis, alpha, beta, threshold = options
    name, numbers = f"{name}_backward", (alpha, beta, threshold)
    return activation_calls.backward(name, kind, grads[0], x, y, None, bias, axis, *numbers, None, None, wanted)


ACTIVATION = Op(
    name="activation",
    tensors=("x", "bias?"),
    differentiable=2,
    returned=1,
    forward=_activation_forward,
    saves=_activation_saves,
    backward=_activation_backward,
    empty=lambda tensors, options: (like(tensors[0]),),
)


def _gated_forward(tensors: Tensors, options: Options, keep: bool) -> Tensors:
    gate, up, *biases = tensors
    name, kind, layout, axis, alpha, beta, threshold, limit, up_offset = options
    bias, numbers = gated_calls.joined_bias(up, *biases), (alpha, beta, threshold, limit, up_offset)
    return (gated_calls.forward(name, gate, up, kind, layout, axis, bias, *numbers, None, None),)


def _gated_backward(grads: Tensors, saved: Tensors, options: Options, wanted: Wanted) -> Tensors:
    gate, up, *biases = saved
    name, kind, layout, axis, alpha, beta, threshold, limit, up_offset = options
    bias, numbers = gated_calls.joined_bias(up, *biases), (alpha, beta, threshold, limit, up_offset)
    name = f"{name}_backward"
    arrays = (grads[0], gate, up)
    found = gated_calls.backward(name, *arrays, kind, layout, axis, bias, *numbers, None, None, wanted)
    return (found[0], None, found[1], None) if up is None else tuple(found)


def _gated_empty(tensors: Tensors, options: Options) -> tuple[tf.TensorSpec, ...]:
    gate, up = tensors[:2]
    rank = gate.shape.rank
    try:
        axis = operator.index(options[3])
    except TypeError:
        return (like(gate),)  # a wrong axis is left for the library to refuse
    if up is not None or rank is None or not -rank <= axis < rank:
        return (like(gate),)
    shape = gate.shape.as_list()
    shape[axis] = None if shape[axis] is None else shape[axis] // 2
    return (tf.TensorSpec(shape, gate.dtype),)


GATED = Op(
    name="gated",
    tensors=("gate", "up?", "gate_bias?", "up_bias?"),
    differentiable=4,
    returned=1,
    forward=_gated_forward,
    saves=lambda tensors, outputs, options: tensors,
    backward=_gated_backward,
    empty=_gated_empty,
)
