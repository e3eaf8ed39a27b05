# SPDX-License-Identifier: Apache-2.0
"""What the tests of normact.torch run over: each operation with its options, beside the same in PyTorch's own words."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn import functional

import normact.torch as nt


class Case(NamedTuple):
    """`ours` and `theirs` take the tensors in their order, of which all can have a gradient."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]

    def tensors(self, dtype: torch.dtype = torch.float64, device: str = "cpu") -> list[torch.Tensor]:
        """Differentiable, and the same in every call."""
        generator = torch.Generator().manual_seed(11)
        made = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in self.shapes]
        return [tensor.to(device, dtype).requires_grad_() for tensor in made]


PLAIN: dict[str, Callable[..., Any]] = {
    "identity": lambda x: x * 1,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "squared_relu": lambda x: functional.relu(x).square(),
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": functional.softplus,
    "mish": functional.mish,
    "hardswish": lambda x: x * (x + 3).clamp(0, 6) / 6,  # PyTorch's own has a sixth of float32
    "hardsigmoid": lambda x: (x + 3).clamp(0, 6) / 6,
}


def activated(y: torch.Tensor, activation: str | None) -> torch.Tensor:
    return y if activation is None else PLAIN[activation](y)


def _along(bias: torch.Tensor, dim: int, ndim: int) -> torch.Tensor:
    return bias.reshape([-1 if d == dim % ndim else 1 for d in range(ndim)])


# ---- Row norms ----


def _row_case(kind: str, parts: tuple[bool, ...], offset: float, activation: str | None) -> Case:
    has_weight, has_bias, has_residual = parts
    rows, cols = (3, 4), (5,)
    shapes = (rows + cols, *([rows + cols] if has_residual else []), *([cols] * (has_weight + has_bias)))
    norm = nt.layer_norm if kind == "layer_norm" else nt.rms_norm

    def split(rest: tuple[Any, ...]) -> tuple[Any, ...]:
        each = iter(rest)
        return tuple(next(each) if there else None for there in (has_residual, has_weight, has_bias))

    def ours(x: Any, *rest: Any) -> Any:
        residual, weight, bias = split(rest)
        options = {"residual": residual, "weight_offset": offset, "activation": activation}
        return norm(x, cols, weight, eps=1e-3, bias=bias, **options)

    def theirs(x: Any, *rest: Any) -> Any:
        residual, weight, bias = split(rest)
        total = x if residual is None else x + residual
        scale = None if weight is None else weight + offset
        if kind == "layer_norm":
            y = functional.layer_norm(total, cols, scale, bias, 1e-3)
        else:
            y = functional.rms_norm(total, cols, scale, 1e-3) + (0 if bias is None else bias)
        y = activated(y, activation)
        return y if residual is None else (y, total)

    names = [word for word, there in zip(("weight", "bias", "residual"), parts) if there]
    return Case("-".join([kind, *names, f"{offset:g}", str(activation)]), ours, theirs, shapes)


def row_cases() -> Iterator[Case]:
    for kind in ("layer_norm", "rms_norm"):
        for parts in itertools.product((False, True), repeat=3):
            yield _row_case(kind, parts, 0.0, None)
            if parts[0]:
                yield _row_case(kind, parts, 1.0, "silu")
            yield _row_case(kind, parts, 0.0, "gelu" if parts[2] else "tanh")


# ---- Activations ----


def activation_cases() -> Iterator[Case]:
    shape = (3, 4, 5)
    for kind, plain in PLAIN.items():
        for dim in (None, -1, 1):

            def ours(x: Any, bias: Any = None, kind: str = kind, dim: int | None = dim) -> Any:
                return nt.activation(x, kind, bias=bias, dim=-1 if dim is None else dim)

            def theirs(x: Any, bias: Any = None, plain: Any = plain, dim: Any = dim) -> Any:
                return plain(x if bias is None else x + _along(bias, dim, 3))

            yield Case(f"{kind}-{dim}", ours, theirs, (shape, *([] if dim is None else [(shape[dim],)])))


def _gated_case(kind: str, layout: str, has_bias: bool, limit: float | None) -> Case:
    packed = layout != "separate"
    width = 8 if packed else 4
    shapes = ((3, width), *([] if packed else [(3, 4)]), *([(width,)] * (has_bias * (1 if packed else 2))))

    def ours(gate: Any, *rest: Any) -> Any:
        up, *bias = (None, *rest) if packed else rest
        given = None if not bias else bias[0] if packed else tuple(bias)
        options: dict[str, Any] = {"layout": layout} if packed else {}
        return nt.gated(gate, up, kind, bias=given, limit=limit, up_offset=0.5, **options)

    def theirs(gate: Any, *rest: Any) -> Any:
        if packed:
            x = gate + rest[0] if has_bias else gate
            gate, up = x.chunk(2, -1) if layout == "split" else (x[..., ::2], x[..., 1::2])
        else:
            up = rest[0]
            if has_bias:
                gate, up = gate + rest[1], up + rest[2]
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return PLAIN[kind](gate) * (up + 0.5)

    return Case(f"gated-{kind}-{layout}-{has_bias}-{limit}", ours, theirs, shapes)


def gated_cases() -> Iterator[Case]:
    for layout, has_bias in itertools.product(("split", "interleaved", "separate"), (False, True)):
        yield _gated_case("silu", layout, has_bias, None)
        yield _gated_case("gelu", layout, has_bias, 0.7)
    yield from (_gated_case(kind, "split", False, None) for kind in ("sigmoid", "relu", "quick_gelu"))


# ---- Channel norms ----


def _beside(bias: Any, weight: Any) -> Any:
    """A weight wherever there is a bias, whose gradient PyTorch's kernels cannot give alone."""
    return torch.ones_like(bias) if weight is None and bias is not None else weight


def _affine(parts: tuple[bool, ...], rest: tuple[Any, ...]) -> tuple[Any, Any, list[Any]]:
    each = list(rest)
    weight = each.pop(0) if parts[0] else None
    return weight, each.pop(0) if parts[1] else None, each


def _group_case(name: str, parts: tuple[bool, ...], activation: str | None) -> Case:
    def ours(x: Any, *rest: Any) -> Any:
        weight, bias, _ = _affine(parts, rest)
        if name == "group_norm":
            return nt.group_norm(x, 2, weight, bias, 1e-3, activation=activation)
        return nt.instance_norm(x, None, None, weight, bias, eps=1e-3, activation=activation)

    def theirs(x: Any, *rest: Any) -> Any:
        weight, bias, _ = _affine(parts, rest)
        weight = _beside(bias, weight)
        return activated(functional.group_norm(x, 2 if name == "group_norm" else 4, weight, bias, 1e-3), activation)

    shapes = ((2, 4, 3, 2), *([(4,)] * sum(parts)))
    return Case(f"{name}-{parts[0]}-{parts[1]}-{activation}", ours, theirs, shapes)


def _batch_case(training: bool, parts: tuple[bool, ...], addend: bool, activation: str | None) -> Case:
    def running(x: Any) -> tuple[Any, Any]:
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        each = torch.linspace(-1, 1, 4, dtype=dtype), torch.linspace(0.5, 2, 4, dtype=dtype)
        return each[0].to(x.device), each[1].to(x.device)

    def ours(x: Any, *rest: Any) -> Any:
        weight, bias, others = _affine(parts, rest)
        options = {"training": training, "eps": 1e-3, "activation": activation}
        return nt.batch_norm(x, *running(x), weight, bias, addend=others[0] if others else None, **options)

    def theirs(x: Any, *rest: Any) -> Any:
        weight, bias, others = _affine(parts, rest)
        mean, var = (each.to(x.dtype) for each in running(x))
        y = functional.batch_norm(x, mean, var, _beside(bias, weight), bias, training, 0.1, 1e-3)
        return activated(y + others[0] if others else y, activation)

    shapes = ((2, 4, 3, 2), *([(4,)] * sum(parts)), *([(2, 4, 3, 2)] if addend else []))
    name = f"batch_norm-{'train' if training else 'eval'}-{parts[0]}-{parts[1]}-{addend}-{activation}"
    return Case(name, ours, theirs, shapes)


def channel_cases() -> Iterator[Case]:
    for parts in itertools.product((False, True), repeat=2):
        for activation in (None, "silu"):
            yield _group_case("group_norm", parts, activation)
            yield _group_case("instance_norm", parts, activation)
        for training, addend, activation in itertools.product((False, True), (False, True), (None, "relu", "silu")):
            yield _batch_case(training, parts, addend, activation)


CASES = [*row_cases(), *activation_cases(), *gated_cases(), *channel_cases()]

#: One of each operation, with all that it can take, for what is slow to test.
FEW = [
    case
    for case in CASES
    if case.name
    in (
        "layer_norm-weight-bias-0-None",
        "layer_norm-weight-bias-residual-0-gelu",
        "rms_norm-weight-0-None",
        "rms_norm-weight-bias-residual-1-silu",
        "relu-1",
        "gelu--1",
        "gated-silu-split-True-None",
        "gated-gelu-separate-True-0.7",
        "group_norm-True-True-silu",
        "batch_norm-eval-True-True-False-None",
        "batch_norm-train-True-True-False-silu",
        "batch_norm-train-True-True-True-relu",
    )
]
assert len(FEW) == 12


def outputs(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def gradients(function: Callable[..., Any], tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Of a sum of all outputs with fixed weights."""
    found = outputs(function(*tensors))
    seeds = [torch.linspace(-1, 2, y.numel(), dtype=torch.float64).reshape(y.shape).to(y) for y in found]
    return torch.autograd.grad(found, tensors, seeds)
