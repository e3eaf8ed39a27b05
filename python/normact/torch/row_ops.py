# SPDX-License-Identifier: Apache-2.0
"""The row norms as PyTorch operations."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

import torch

from normact import _core, norm_calls
from normact.norm_calls import NAMES
from normact.outputs import JOINED
from normact.torch.functions import build
from normact.torch.op import Joined, Op, Options, Quick, Shapes, Tensors, Wanted, statistic_dtype

_OPTIONS = ("int[] axis", "float eps", "float weight_offset", "str? activation", "float? alpha")


def _backward(kind: int, residual: bool) -> Callable[..., Tensors]:
    layer = kind == _core.LAYER

    def backward(grads: Tensors, saved: Tensors, options: Options, wanted: Wanted) -> Tensors:
        if layer:
            x, weight, bias, mean, rstd = saved
            rstd = JOINED if rstd is None else rstd
        else:
            (x, weight, bias, rstd), mean = saved, None
        axis, _, weight_offset, activation, alpha = options
        dsum = grads[1] if residual else None
        return norm_calls.backward(
            kind,
            grads[0],
            x,
            weight,
            bias,
            mean,
            rstd,
            axis,
            dsum,
            weight_offset,
            activation,
            alpha,
            None,
            None,
            wanted,
        )

    return backward


def _entry(name: str, kind: int, residual: bool, mixed: bool = False) -> Op:
    """A norm of x, or of x + residual, which it returns too. RMS norm has no mean.

    mixed: the residual and the sum are float32 beside an x of 16 bits, so that their gradients differ.
    """
    statistics = ("mean", "rstd") if kind == _core.LAYER else ("rstd",)
    outputs = ("y", *(("sum",) if residual else ()), *statistics)
    there = operator.itemgetter(*(("y", "sum", "mean", "rstd").index(output) for output in outputs))
    first = len(outputs) - len(statistics)

    def forward(tensors: Tensors, options: Options, keep: bool | Joined) -> Tensors:
        axis, eps, weight_offset, activation, alpha = options
        if residual:
            x, other, weight, bias = tensors
        else:
            (x, weight, bias), other = tensors, None
        found = norm_calls.forward(
            kind, x, weight, bias, axis, eps, other, weight_offset, activation, alpha, bool(keep), None, None
        )
        if keep:
            # Operators promise strides before they run: row-major ones, where the library's follow x.
            return there((*found[:2], *(each if each is None else each.contiguous() for each in found[2:])))
        return found[:2] if residual else (found,)

    def saves(tensors: Tensors, outputs: Tensors, options: Options) -> Tensors:
        return outputs[1] if residual else tensors[0], tensors[-2], tensors[-1], *outputs[first:]

    def empty(tensors: Tensors, options: Options) -> Tensors:
        x = tensors[0]
        gone = {axis % x.ndim for axis in options[0]}
        shape = [size for dim, size in enumerate(x.shape) if dim not in gone]
        like_x = tuple(torch.empty_like(like) for like in ((x, tensors[1] if mixed else x) if residual else (x,)))
        return like_x + tuple(x.new_empty(shape, dtype=statistic_dtype(x.dtype)) for _ in statistics)

    def shapes(tensors: Tensors, options: Options) -> Shapes:
        x, (axes, _, _, activation, alpha) = tensors[0], options
        norm_calls.activation_argument(NAMES[kind], activation, alpha)
        of_axes = [x.shape[axis] for axis in sorted(axis % x.ndim for axis in axes)]
        return (None, *((x.shape,) if residual else ()), of_axes, of_axes)

    return Op(
        name=name,
        tensors=("x", *(("residual",) if residual else ()), "weight?", "bias?"),
        options=_OPTIONS,
        outputs=outputs,
        returned=2 if residual else 1,
        saved=("x", "weight?", "bias?", *statistics),
        saves=saves,
        gradients=(("dy",), ("weight",), ("bias",), ("x",)) if mixed else (("x",), ("weight",), ("bias",)),
        gradient_of=(0, 3, 1, 2) if mixed else (0, 0, 1, 2) if residual else (0, 1, 2),
        forward=forward,
        backward=_backward(kind, residual),
        empty=empty,
        shapes=shapes,
        leading=("x", "residual"),
        divisible=lambda ndim, names, options: range(min((axis % ndim for axis in options[0]), default=0)),
        divided=("x", "residual", "y", "sum", "dy", *statistics),
        function=lambda options: NAMES[kind],
        quick=Quick(
            _core.torch_norm_direct(kind, residual),
            _core.torch_norm_forward(kind, residual),
            functools.partial(_core.torch_norm_backward, kind, residual),
        ),
    )


LAYER_NORM = build(_entry("layer_norm", _core.LAYER, residual=False))
RMS_NORM = build(_entry("rms_norm", _core.RMS, residual=False))
ADD_LAYER_NORM = build(_entry("add_layer_norm", _core.LAYER, residual=True))
ADD_RMS_NORM = build(_entry("add_rms_norm", _core.RMS, residual=True))
MIXED_ADD_LAYER_NORM = build(_entry("mixed_add_layer_norm", _core.LAYER, residual=True, mixed=True))
MIXED_ADD_RMS_NORM = build(_entry("mixed_add_rms_norm", _core.RMS, residual=True, mixed=True))
