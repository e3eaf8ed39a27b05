# SPDX-License-Identifier: Apache-2.0
"""Each operation as a composition of PyTorch's functions: the float64 reference, and what users of PyTorch write."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases import Case

Forward = Callable[..., tuple[Tensor, Tensor | None]]  # (x, residual or addend, weight, bias) -> (y, sum)
aten = torch.ops.aten


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": torch.clone,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "squared_relu": lambda x: functional.relu(x).square(),
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": functional.softplus,
    "mish": functional.mish,
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
}

# What float64 is computed with: PyTorch's derivative of hardsigmoid multiplies with a float32 1/6 on the CPU.
EXACT = ACTIVATIONS | {"hardsigmoid": lambda x: functional.relu6(x + 3) / 6}

# The operator that autograd calls, by kind: (dy, x, y) -> dx. The others are compositions.
BACKWARDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "identity": lambda dy, x, y: dy.clone(),
    "relu": lambda dy, x, y: aten.threshold_backward(dy, y, 0),
    "relu6": lambda dy, x, y: aten.hardtanh_backward(dy, x, 0, 6),
    "leaky_relu": lambda dy, x, y: aten.leaky_relu_backward(dy, x, 0.01, False),
    "elu": lambda dy, x, y: aten.elu_backward(dy, 1, 1, 1, False, x),
    "gelu": lambda dy, x, y: aten.gelu_backward(dy, x),
    "gelu_tanh": lambda dy, x, y: aten.gelu_backward(dy, x, approximate="tanh"),
    "silu": lambda dy, x, y: aten.silu_backward(dy, x),
    "sigmoid": lambda dy, x, y: aten.sigmoid_backward(dy, y),
    "tanh": lambda dy, x, y: aten.tanh_backward(dy, y),
    "softplus": lambda dy, x, y: aten.softplus_backward(dy, x, 1, 20),
    "mish": lambda dy, x, y: aten.mish_backward(dy, x),
    "hardswish": lambda dy, x, y: aten.hardswish_backward(dy, x),
    "hardsigmoid": lambda dy, x, y: aten.hardsigmoid_backward(dy, x),
}

# x from y, of the kinds that are measured from y.
INVERSES: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": torch.logit, "tanh": torch.atanh}


def composed(case: Case) -> Forward:
    """The forward as users of PyTorch write it."""
    forward = _of_family(case, ACTIVATIONS, case.operation.applied)
    if not case.operation.mixed:
        return forward

    def rounded(x, residual, weight, bias):
        """The norm of the float32 sum for a matmul in the dtype of x, as under autocast."""
        y, total = forward(x, residual, weight, bias)
        return y.to(x.dtype), total

    return rounded


def reference(case: Case, *, activated: bool = True) -> Forward:
    """The forward for tensors of float64, whose derivative has their precision too; of a norm also without its end."""
    return _of_family(case, EXACT, case.operation.applied if activated else "")


def _of_family(case: Case, activations: dict[str, Callable[[Tensor], Tensor]], applied: str) -> Forward:
    if case.family == "channel":
        return _channel_norm(case, activations, applied)
    return _norm(case, activations, applied) if case.family == "norm" else _activation(case, activations)


def _channel_norm(case: Case, activations: dict[str, Callable[[Tensor], Tensor]], applied: str) -> Forward:
    act = activations[applied] if applied else None

    def forward(x, addend, weight, bias):
        if case.kind == "batch_norm":
            h = functional.batch_norm(x, None, None, weight, bias, True, 0.0, case.eps)
        elif case.kind == "group_norm":
            h = functional.group_norm(x, case.groups, weight, bias, case.eps)
        else:
            h = functional.instance_norm(x, None, None, weight, bias, True, 0.0, case.eps)
        h = h if addend is None else h + addend
        return h if act is None else act(h), None

    return forward


def _norm(case: Case, activations: dict[str, Callable[[Tensor], Tensor]], applied: str) -> Forward:
    shape, eps = [case.shape[axis] for axis in case.axes], case.eps
    act = activations[applied] if applied else lambda h: h
    order = [axis for axis in range(len(case.shape)) if axis not in case.axes] + list(case.axes)
    back = [order.index(axis) for axis in range(len(order))]

    def norm(s, weight, bias):
        if case.kind == "layer_norm":
            return act(functional.layer_norm(s, shape, weight, bias, eps))
        return act(functional.rms_norm(s, shape, weight, eps))

    def forward(x, residual, weight, bias):
        total = None if residual is None else x + residual
        s = x if total is None else total
        if not case.permuted:
            return norm(s, weight, bias), total
        return norm(s.permute(order), weight, bias).permute(back).contiguous(), total

    return forward


def _activation(case: Case, activations: dict[str, Callable[[Tensor], Tensor]]) -> Forward:
    act, layout = activations[case.operation.activation], case.operation.layout
    trailing = (1,) * (len(case.shape) - 1 - case.axis % len(case.shape))

    def forward(x, residual, weight, bias):
        if layout:
            gate, up = x.chunk(2, -1) if layout == "split" else (x[..., 0::2], x[..., 1::2])
            return act(gate) * up, None
        return act(x if bias is None else x + bias.view(-1, *trailing)), None

    return forward
