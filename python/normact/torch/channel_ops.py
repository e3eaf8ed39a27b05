# SPDX-License-Identifier: Apache-2.0
"""Batch, group and instance norm as PyTorch operations.

Batch norm has four entries: with an addend or without, updating running statistics or not. So each has fixed outputs.
"""

from __future__ import annotations

import torch

from normact import channel_calls
from normact.activation_calls import FROM_OUTPUT
from normact.norm_calls import activation_argument
from normact.outputs import JOINED
from normact.torch import fakes
from normact.torch.functions import build
from normact.torch.op import Joined, Op, Options, Shapes, Tensors, Wanted, statistic_dtype

_ACTIVATION = ("str? activation", "float? alpha")


def _statistics(x: torch.Tensor, *shape: int) -> Tensors:
    return tuple(x.new_empty(shape, dtype=statistic_dtype(x.dtype)) for _ in range(2))


# ---- Group and instance norm ----


def _group(name: str, updates: bool) -> Op:
    """Group norm, and instance norm with running statistics: as many groups as channels, and a momentum."""
    backward_name = f"{name}_backward"

    def forward(tensors: Tensors, options: Options, keep: bool | Joined) -> Tensors:
        x, weight, bias, *running = tensors
        num_groups, eps, activation, alpha, *momentum = options
        act = activation_argument(name, activation, alpha)
        mean, variance = running or (None, None)
        arrays = (x, weight, bias, mean, variance)
        factor = momentum[0] if momentum else 0.0
        found = channel_calls.group_forward(name, arrays, num_groups, 1, eps, factor, act, keep, None, None)
        return found if keep else (found,)

    def backward(grads: Tensors, saved: Tensors, options: Options, wanted: Wanted) -> Tensors:
        num_groups, _, activation, alpha, *_ = options
        act = activation_argument(backward_name, activation, alpha)
        *front, rstd = saved
        arrays = (grads[0], *front, JOINED if rstd is None else rstd)
        return channel_calls.group_backward(backward_name, arrays, num_groups, 1, act, None, None, wanted)

    def empty(tensors: Tensors, options: Options) -> Tensors:
        x = tensors[0]
        return torch.empty_like(x), *_statistics(x, x.shape[0], options[0])

    def shapes(tensors: Tensors, options: Options) -> Shapes:
        x, (num_groups, _, activation, alpha, *_) = tensors[0], options
        activation_argument(name, activation, alpha)
        channels = fakes.channels_of(name, x)
        fakes.check_divides(name, "x", x, 1, num_groups, f"a multiple of num_groups, {num_groups}")
        return None, *((channels,),) * (len(tensors) - 1)

    return Op(
        name=f"{name}_update" if updates else name,
        tensors=("x", "weight?", "bias?", *(("running_mean", "running_var") if updates else ())),
        options=("SymInt num_groups", "float eps", *_ACTIVATION, *(("float momentum",) if updates else ())),
        outputs=("y", "mean", "rstd"),
        returned=1,
        saved=("x", "weight?", "bias?", "mean", "rstd"),
        saves=lambda tensors, outputs, options: (*tensors[:3], *outputs[1:]),
        gradients=(("x",), ("weight",), ("bias",)),
        gradient_of=(0, 1, 2, None, None) if updates else (0, 1, 2),
        forward=forward,
        backward=backward,
        empty=empty,
        shapes=shapes,
        function=lambda options: name,
        states=2 if updates else 0,
        divisible=lambda ndim, names, options: None if updates else (0,),
        divided=("x", "y", "mean", "rstd"),
    )


GROUP_NORM = build(_group("group_norm", updates=False))
INSTANCE_NORM_UPDATE = build(_group("instance_norm", updates=True))


# ---- Batch norm ----


def _batch_shapes(tensors: Tensors, options: Options, addend: bool, updates: bool) -> Shapes:
    x, (_, _, activation, alpha, *_) = tensors[0], options
    activation_argument("batch_norm", activation, alpha)
    channel = (fakes.channels_of("batch_norm", x),)
    of_states = (channel, channel, None) if updates else (channel, channel)
    return None, *((x.shape,) if addend else ()), channel, channel, *of_states


def _batch(name: str, addend: bool, updates: bool) -> Op:
    """Batch norm; without updates it may still read running statistics, in inference."""
    running = ("running_mean", "running_var") if updates else ("running_mean?", "running_var?")
    front = ("x", *(("addend",) if addend else ()), "weight?", "bias?")
    normed = len(front)

    def forward(tensors: Tensors, options: Options, keep: bool | Joined) -> Tensors:
        x, *added, weight, bias = tensors[:normed]
        training, eps, activation, alpha, *momentum = options
        act = activation_argument("batch_norm", activation, alpha)
        mean, variance, batches = tensors[normed:] if updates else (*tensors[normed:], None)
        arrays = (x, weight, bias, added[0] if addend else None, mean, variance, batches)
        factor = momentum[0] if updates else 0.0
        found = channel_calls.batch_forward(
            "batch_norm", arrays, training, 1, eps, factor, act, keep, False, None, None
        )
        return found[:3] if keep else (found,)

    def saves(tensors: Tensors, outputs: Tensors, options: Options) -> Tensors:
        x, *added, weight, bias = tensors[:normed]
        y, mean, rstd = outputs[:3]
        # x is read in any case, and gives what the activation was applied to again: y is kept only where it spares the
        # addend.
        if addend and options[2] in FROM_OUTPUT:
            return x, weight, bias, None, mean, rstd, y
        return x, weight, bias, added[0] if addend and options[2] is not None else None, mean, rstd, None

    def backward(grads: Tensors, saved: Tensors, options: Options, wanted: Wanted) -> Tensors:
        x, weight, bias, added, mean, rstd, y = saved
        training, _, activation, alpha, *_ = options
        act = activation_argument("batch_norm_backward", activation, alpha)
        rstd = JOINED if rstd is None else rstd
        arrays = channel_calls.BatchInputs(grads[0], x, weight, bias, added, mean, rstd, y, None)
        return channel_calls.batch_backward("batch_norm_backward", arrays, training, 1, act, addend, None, None, wanted)

    def empty(tensors: Tensors, options: Options) -> Tensors:
        x = tensors[0]
        return torch.empty_like(x), *_statistics(x, x.shape[1])

    of_tensors = (0, *((3,) if addend else ()), 1, 2)
    states = (*running, "num_batches_tracked?") if updates else running
    return Op(
        name=name,
        tensors=front + states,
        options=("bool training", "float eps", *_ACTIVATION, *(("float? momentum",) if updates else ())),
        outputs=("y", "mean", "rstd"),
        returned=1,
        saved=("x", "weight?", "bias?", "addend?", "mean", "rstd", "y?"),
        saves=saves,
        gradients=(("x",), ("weight",), ("bias",), *((("x",),) if addend else ())),
        gradient_of=of_tensors + (None,) * len(states),
        forward=forward,
        backward=backward,
        empty=empty,
        shapes=lambda tensors, options: _batch_shapes(tensors, options, addend, updates),
        function=lambda options: "batch_norm",
        states=len(states) if updates else 0,
        divisible=lambda ndim, names, options: None if options[0] else [dim for dim in range(ndim) if dim != 1],
        divided=("x", "addend", "y"),
    )


BATCH_NORM = build(_batch("batch_norm", addend=False, updates=False))
BATCH_NORM_UPDATE = build(_batch("batch_norm_update", addend=False, updates=True))
BATCH_NORM_ADD = build(_batch("batch_norm_add", addend=True, updates=False))
BATCH_NORM_ADD_UPDATE = build(_batch("batch_norm_add_update", addend=True, updates=True))
