# SPDX-License-Identifier: Apache-2.0
"""Batch, group and instance norm as TensorFlow operations.

TensorFlow's tensors are immutable. So a state (a running statistic) is copied to new memory, which the raw call then
updates and the operation returns; who calls it assigns that to the variable.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from normact import channel_calls
from normact.arrays import family_of
from normact.norm_calls import activation_argument
from normact.tensorflow.op import Op, Options, Tensors, Wanted, goes_back_from_output, like, statistic


def _copies(function: str, states: Tensors) -> Tensors:
    return tuple(None if state is None else family_of(state, function).writable(state) for state in states)


def _handed_over(function: str, copies: Tensors, states: Tensors) -> Tensors:
    """The new values of the states that are there."""
    pairs = zip(copies, states, strict=True)
    return tuple(family_of(state, function).hand_over(copy, state) for copy, state in pairs if state is not None)


def _specs(x: Any, states: Tensors) -> tuple[tf.TensorSpec, ...]:
    return (like(x), statistic(x), statistic(x), *(like(state) for state in states if state is not None))


# ---- Group and instance norm ----


def _group(name: str, updates: bool) -> Op:
    """Group norm, and instance norm with running statistics. Options: groups, channel axis, eps, act, momentum."""

    def groups(x: Any, num_groups: Any, channel_axis: int) -> Any:
        return channel_calls.instance_groups(x, channel_axis, name) if name == "instance_norm" else num_groups

    def forward(tensors: Tensors, options: Options, keep: bool) -> Tensors:
        x, weight, bias, *states = tensors
        num_groups, channel_axis, eps, activation, alpha, momentum = options
        act = activation_argument(name, activation, alpha)
        copies = _copies(name, tuple(states))
        mean, variance = copies or (None, None)
        arrays = (x, weight, bias, mean, variance)
        number = groups(x, num_groups, channel_axis)
        found = channel_calls.group_forward(name, arrays, number, channel_axis, eps, momentum, act, keep, None, None)
        outputs = tuple(found) if keep else (found,)
        return outputs + _handed_over(name, copies, tuple(states))

    def backward(grads: Tensors, saved: Tensors, options: Options, wanted: Wanted) -> Tensors:
        x, weight, bias, mean, rstd = saved
        num_groups, channel_axis, _, activation, alpha, _ = options
        function = f"{name}_backward"
        act = activation_argument(function, activation, alpha)
        arrays = (grads[0], x, weight, bias, mean, rstd)
        number = groups(x, num_groups, channel_axis)
        made = (*wanted, False)  # there is no addend
        return channel_calls.group_backward(function, arrays, number, channel_axis, act, None, None, made)[:3]

    return Op(
        name=name,
        tensors=("x", "weight?", "bias?", *(("running_mean?", "running_var?") if updates else ())),
        differentiable=3,
        returned=1,
        forward=forward,
        saves=lambda tensors, outputs, options: (*tensors[:3], *outputs[1:3]),
        backward=backward,
        empty=lambda tensors, options: _specs(tensors[0], tensors[3:]),
        states=2 if updates else 0,
    )


GROUP_NORM = _group("group_norm", updates=False)
INSTANCE_NORM = _group("instance_norm", updates=False)
INSTANCE_NORM_UPDATE = _group("instance_norm", updates=True)


# ---- Batch norm ----


def _batch(updates: bool) -> Op:
    """Batch norm; without updates it may still read running statistics, in inference.

    Options: what messages call it, training, channel axis, eps, activation, alpha, momentum.
    """

    def forward(tensors: Tensors, options: Options, keep: bool) -> Tensors:
        x, weight, bias, addend, *states = tensors
        name, training, channel_axis, eps, activation, alpha, momentum = options
        act = activation_argument(name, activation, alpha)
        mean, variance, batches = given = _copies(name, tuple(states)) if updates else (*states, None)
        arrays = (x, weight, bias, addend, mean, variance, batches)
        found = channel_calls.batch_forward(
            name, arrays, training, channel_axis, eps, momentum, act, keep, False, None, None
        )
        outputs = tuple(found[:3]) if keep else (found,)
        return outputs + (_handed_over(name, given, tuple(states)) if updates else ())

    def saves(tensors: Tensors, outputs: Tensors, options: Options) -> Tensors:
        x, weight, bias, addend = tensors[:4]
        y, mean, rstd = outputs[:3]
        activation = options[4]
        # x is read in any case, and gives what the activation was applied to again: y is kept only where it spares the
        # addend.
        if addend is not None and goes_back_from_output(activation):
            return x, weight, bias, None, mean, rstd, y
        return x, weight, bias, None if activation is None else addend, mean, rstd, None

    def backward(grads: Tensors, saved: Tensors, options: Options, wanted: Wanted) -> Tensors:
        x, weight, bias, addend, mean, rstd, y = saved
        name, training, channel_axis, _, activation, alpha, _ = options
        function = f"{name}_backward"
        act = activation_argument(function, activation, alpha)
        arrays = channel_calls.BatchInputs(grads[0], x, weight, bias, addend, mean, rstd, y, None)
        return channel_calls.batch_backward(
            function, arrays, training, channel_axis, act, wanted[3], None, None, wanted
        )

    return Op(
        name="batch_norm",
        tensors=("x", "weight?", "bias?", "addend?", "running_mean?", "running_var?")
        + (("num_batches_tracked?",) if updates else ()),
        differentiable=4,
        returned=1,
        forward=forward,
        saves=saves,
        backward=backward,
        empty=lambda tensors, options: _specs(tensors[0], tensors[4:] if updates else ()),
        states=3 if updates else 0,
    )


BATCH_NORM = _batch(updates=False)
BATCH_NORM_UPDATE = _batch(updates=True)
