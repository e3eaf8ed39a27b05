# SPDX-License-Identifier: Apache-2.0
"""What the tests of normact.tensorflow run over: each operation with its options, beside TensorFlow's own words."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow

import normact.tensorflow as nt

tf: Any = tensorflow  # which declares less than it takes


class Case(NamedTuple):
    """`ours` and `theirs` take the tensors in their order, of which all can have a gradient."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]

    def tensors(self, dtype: str = "float64") -> list[Any]:
        """The same in every call."""
        generator = np.random.default_rng(11)
        return [tf.cast(tf.constant(generator.standard_normal(shape)), dtype) for shape in self.shapes]


def _clipped(x: Any) -> Any:
    return tf.clip_by_value(x, 0.0, 6.0)


def _normal(x: Any) -> Any:
    return tf.math.erfc(-x / np.sqrt(2)) / 2


# TensorFlow's own gelu and leaky_relu have their numbers in float32.
PLAIN: dict[str, Callable[..., Any]] = {
    "identity": lambda x: x * 1,
    "relu": tf.nn.relu,
    "relu6": _clipped,
    "squared_relu": lambda x: tf.nn.relu(x) ** 2,
    "leaky_relu": lambda x: tf.where(x > 0, x, 0.01 * x),
    "elu": tf.nn.elu,
    "gelu": lambda x: x * _normal(x),
    "gelu_tanh": lambda x: x / 2 * (1 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x * tf.sigmoid(1.702 * x),
    "silu": lambda x: x * tf.sigmoid(x),
    "sigmoid": tf.sigmoid,
    "tanh": tf.tanh,
    "softplus": tf.math.softplus,
    "mish": lambda x: x * tf.tanh(tf.math.softplus(x)),
    "hardswish": lambda x: x * _clipped(x + 3) / 6,
    "hardsigmoid": lambda x: _clipped(x + 3) / 6,
}


def activated(y: Any, activation: str | None) -> Any:
    return y if activation is None else PLAIN[activation](y)


def along(bias: Any, axis: int, rank: int) -> Any:
    """A vector to be combined with a tensor of this rank."""
    return tf.reshape(bias, [-1 if d == axis % rank else 1 for d in range(rank)])


# ---- Row norms ----


def _row_case(kind: str, parts: tuple[bool, ...], axis: Any, offset: float, activation: str | None) -> Case:
    shape = (3, 4, 5)
    axes = sorted(each % 3 for each in (axis if isinstance(axis, tuple) else (axis,)))
    cols = tuple(shape[each] for each in axes)
    shapes = (shape, *([shape] if parts[2] else []), *([cols] * (parts[0] + parts[1])))
    norm = nt.layer_norm if kind == "layer_norm" else nt.rms_norm

    def split(rest: tuple[Any, ...]) -> tuple[Any, ...]:
        each = iter(rest)
        return tuple(next(each) if there else None for there in (parts[2], parts[0], parts[1]))

    def ours(x: Any, *rest: Any) -> Any:
        residual, weight, bias = split(rest)
        options: dict[str, Any] = {"residual": residual, "weight_offset": offset, "activation": activation}
        return norm(x, weight, bias, axis=axis, eps=1e-3, **options)

    def theirs(x: Any, *rest: Any) -> Any:
        residual, weight, bias = split(rest)
        total = x if residual is None else x + residual
        mean = tf.reduce_mean(total, axes, keepdims=True) if kind == "layer_norm" else 0
        square = tf.reduce_mean((total - mean) ** 2, axes, keepdims=True)
        wide = [shape[d] if d in axes else 1 for d in range(3)]
        y = (total - mean) / tf.sqrt(square + 1e-3)
        y = y if weight is None else y * (tf.reshape(weight, wide) + offset)
        y = activated(y if bias is None else y + tf.reshape(bias, wide), activation)
        return y if residual is None else (y, total)

    names = [word for word, there in zip(("weight", "bias", "residual"), parts) if there]
    return Case("-".join([kind, *names, f"{axis}", f"{offset:g}", str(activation)]), ours, theirs, shapes)


def row_cases() -> Iterator[Case]:
    for kind, parts in itertools.product(("layer_norm", "rms_norm"), itertools.product((False, True), repeat=3)):
        yield _row_case(kind, parts, -1, 0.0, None)
        yield _row_case(kind, parts, (0, 2), 0.0, "gelu" if parts[2] else "tanh")
    yield _row_case("layer_norm", (True, True, True), 1, 1.0, "silu")
    yield _row_case("rms_norm", (True, False, False), -1, 1.0, "silu")


# ---- Activations ----


def activation_cases() -> Iterator[Case]:
    shape = (3, 4, 5)
    for kind, plain in PLAIN.items():
        for axis in (None, -1, 1):

            def ours(x: Any, bias: Any = None, kind: str = kind, axis: int | None = axis) -> Any:
                return nt.activation(x, kind, bias=bias, axis=-1 if axis is None else axis)

            def theirs(x: Any, bias: Any = None, plain: Any = plain, axis: Any = axis) -> Any:
                return plain(x if bias is None else x + along(bias, axis, 3))

            yield Case(f"{kind}-{axis}", ours, theirs, (shape, *([] if axis is None else [(shape[axis],)])))


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
            gate, up = tf.split(x, 2, -1) if layout == "split" else (x[..., ::2], x[..., 1::2])
        else:
            up = rest[0]
            if has_bias:
                gate, up = gate + rest[1], up + rest[2]
        if limit is not None:
            gate, up = tf.where(gate > limit, tf.constant(limit, gate.dtype), gate), tf.clip_by_value(up, -limit, limit)
        return PLAIN[kind](gate) * (up + 0.5)

    return Case(f"gated-{kind}-{layout}-{has_bias}-{limit}", ours, theirs, shapes)


def gated_cases() -> Iterator[Case]:
    for layout, has_bias in itertools.product(("split", "interleaved", "separate"), (False, True)):
        yield _gated_case("silu", layout, has_bias, None)
        yield _gated_case("gelu", layout, has_bias, 0.7)
    yield from (_gated_case(kind, "split", False, None) for kind in ("sigmoid", "relu", "quick_gelu"))


# ---- Channel norms ----

CHANNELS = 4


def _affine(parts: tuple[bool, ...], rest: tuple[Any, ...]) -> tuple[Any, Any, list[Any]]:
    each = list(rest)
    weight = each.pop(0) if parts[0] else None
    return weight, each.pop(0) if parts[1] else None, each


def _scaled(xhat: Any, weight: Any, bias: Any, axis: int) -> Any:
    y = xhat if weight is None else xhat * along(weight, axis, 4)
    return y if bias is None else y + along(bias, axis, 4)


def image(axis: int) -> tuple[int, ...]:
    return (2, CHANNELS, 3, 2) if axis == 1 else (2, 3, 2, CHANNELS)


def _group_case(name: str, parts: tuple[bool, ...], axis: int, activation: str | None) -> Case:
    def ours(x: Any, *rest: Any) -> Any:
        weight, bias, _ = _affine(parts, rest)
        options: dict[str, Any] = {"eps": 1e-3, "channel_axis": axis, "activation": activation}
        if name == "group_norm":
            return nt.group_norm(x, 2, weight, bias, **options)
        return nt.instance_norm(x, weight, bias, **options)

    def theirs(x: Any, *rest: Any) -> Any:
        weight, bias, _ = _affine(parts, rest)
        first = x if axis == 1 else tf.transpose(x, (0, 3, 1, 2))
        members = tf.reshape(first, (2, 2 if name == "group_norm" else CHANNELS, -1))
        mean = tf.reduce_mean(members, 2, keepdims=True)
        variance = tf.reduce_mean((members - mean) ** 2, 2, keepdims=True)
        xhat = tf.reshape((members - mean) / tf.sqrt(variance + 1e-3), first.shape)
        return activated(
            _scaled(xhat if axis == 1 else tf.transpose(xhat, (0, 2, 3, 1)), weight, bias, axis), activation
        )

    shapes = (image(axis), *([(CHANNELS,)] * sum(parts)))
    return Case(f"{name}-{parts[0]}-{parts[1]}-{axis}-{activation}", ours, theirs, shapes)


def running(dtype: Any) -> tuple[Any, Any]:
    return tf.cast(tf.linspace(-1.0, 1.0, CHANNELS), dtype), tf.cast(tf.linspace(0.5, 2.0, CHANNELS), dtype)


def _batch_case(training: bool, parts: tuple[bool, ...], addend: bool, axis: int, activation: str | None) -> Case:
    def ours(x: Any, *rest: Any) -> Any:
        weight, bias, others = _affine(parts, rest)
        options: dict[str, Any] = {"training": training, "eps": 1e-3, "channel_axis": axis, "activation": activation}
        means = (None, None) if training else running(tf.float64 if x.dtype == tf.float64 else tf.float32)
        return nt.batch_norm(x, weight, bias, *means, addend=others[0] if others else None, **options)

    def theirs(x: Any, *rest: Any) -> Any:
        weight, bias, others = _affine(parts, rest)
        over = [d for d in range(4) if d != axis % 4]
        mean, variance = tf.nn.moments(x, over) if training else running(x.dtype)
        xhat = (x - along(mean, axis, 4)) / tf.sqrt(along(variance, axis, 4) + 1e-3)
        y = _scaled(xhat, weight, bias, axis)
        return activated(y + others[0] if others else y, activation)

    shapes = (image(axis), *([(CHANNELS,)] * sum(parts)), *([image(axis)] if addend else []))
    name = f"batch_norm-{'train' if training else 'eval'}-{parts[0]}-{parts[1]}-{addend}-{axis}-{activation}"
    return Case(name, ours, theirs, shapes)


def channel_cases() -> Iterator[Case]:
    for parts in itertools.product((False, True), repeat=2):
        axis = 1 if parts[0] == parts[1] else -1
        for activation in (None, "silu"):
            yield _group_case("group_norm", parts, axis, activation)
            yield _group_case("instance_norm", parts, -axis if axis == -1 else -1, activation)
        for training, addend, activation in itertools.product((False, True), (False, True), (None, "relu", "silu")):
            yield _batch_case(training, parts, addend, axis if training else -axis, activation)


CASES = [*row_cases(), *activation_cases(), *gated_cases(), *channel_cases()]

#: One of each operation, with all that it can take, for what is slow to test.
FEW = [
    case
    for case in CASES
    if case.name
    in (
        "layer_norm-weight-bias--1-0-None",
        "layer_norm-weight-bias-residual-1-1-silu",
        "rms_norm-weight--1-1-silu",
        "rms_norm-weight-bias-residual--1-0-None",
        "relu-1",
        "gelu--1",
        "gated-silu-split-True-None",
        "gated-gelu-separate-True-0.7",
        "group_norm-True-True-1-silu",
        "instance_norm-True-True--1-None",
        "batch_norm-eval-True-True-False--1-None",
        "batch_norm-train-True-True-False-1-silu",
        "batch_norm-train-True-True-True-1-relu",
    )
]
assert len(FEW) == 13, [case.name for case in FEW]


def outputs(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def loss(result: Any) -> Any:
    """A sum of all outputs with fixed weights."""
    total = tf.constant(0.0, tf.float64)
    for y in outputs(result):
        seed = tf.reshape(tf.linspace(tf.constant(-1.0, tf.float64), 2.0, tf.size(y)), tf.shape(y))
        total += tf.reduce_sum(tf.cast(y, tf.float64) * seed)
    return total


def gradients(function: Callable[..., Any], tensors: list[Any]) -> list[Any]:
    """Of the loss, for all tensors."""
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        found = loss(function(*tensors))
    return tape.gradient(found, tensors)
