# SPDX-License-Identifier: Apache-2.0
"""The row norms as TensorFlow operations."""

from __future__ import annotations

import tensorflow as tf

from normact import _core, norm_calls
from normact.tensorflow.op import Op, Options, Tensors, Wanted, like, statistic


def _entry(name: str, kind: int, residual: bool) -> Op:
    """A norm of x, or of x + residual, which it returns too. RMS norm has no mean."""
    count = 2 if kind == _core.LAYER else 1  # of statistics

    def forward(tensors: Tensors, options: Options, keep: bool) -> Tensors:
        x, *other, weight, bias = tensors
        axis, eps, weight_offset, activation, alpha = options
        added = other[0] if residual else None
        found = norm_calls.forward(
            kind, x, weight, bias, axis, eps, added, weight_offset, activation, alpha, keep, None, None
        )
        if not residual and not keep:
            return (found,)
        return tuple(output for output in found if output is not None)

    def saves(tensors: Tensors, outputs: Tensors, options: Options) -> Tensors:
        normed = outputs[1] if residual else tensors[0]
        return normed, *tensors[-2:], *outputs[-count:]

    def backward(grads: Tensors, saved: Tensors, options: Options, wanted: Wanted) -> Tensors:
        x, weight, bias, *mean, rstd = saved
        axis, _, weight_offset, activation, alpha = options
        dsum = grads[1] if residual else None
        average = mean[0] if mean else None
        arrays = (grads[0], x, weight, bias, average, rstd)
        made = (True, *wanted[-2:], wanted[1])
        dx, dweight, dbias, daddend = norm_calls.backward(
            kind, *arrays, axis, dsum, weight_offset, activation, alpha, None, None, made
        )
        # The residual's gradient is dx too, unless it has a dtype of its own.
        return (dx, dx if daddend is None else daddend, dweight, dbias) if residual else (dx, dweight, dbias)

    def empty(tensors: Tensors, options: Options) -> tuple[tf.TensorSpec, ...]:
        x = tensors[0]
        return tuple(like(each) for each in tensors[: 2 if residual else 1]) + (statistic(x),) * count

    return Op(
        name=name,
        tensors=("x", *(("residual",) if residual else ()), "weight?", "bias?"),
        differentiable=4 if residual else 3,
        returned=2 if residual else 1,
        forward=forward,
        saves=saves,
        backward=backward,
        empty=empty,
    )


LAYER_NORM = _entry("layer_norm", _core.LAYER, residual=False)
RMS_NORM = _entry("rms_norm", _core.RMS, residual=False)
ADD_LAYER_NORM = _entry("layer_norm", _core.LAYER, residual=True)
ADD_RMS_NORM = _entry("rms_norm", _core.RMS, residual=True)
