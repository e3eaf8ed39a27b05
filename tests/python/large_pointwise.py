# SPDX-License-Identifier: Apache-2.0
"""Activations and gated activations of up to some millions of elements: drawn as in large_cases.py, checked as in
large_checks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

import normact
from large_cases import DTYPES, FILLS, PLANES, Guarded, Layout, bits, normal, sizes, spoil_workspaces, totals, uneven
from large_checks import assert_same_bits, assert_untouched, in_place, tensors
from large_reference import ACTIVATIONS, ROUNDINGS, Activation, Bounded, assert_close, gated, reduced

Tensor = torch.Tensor


@dataclass(frozen=True)
class Problem:
    kind: str
    shape: tuple[int, ...]
    axis: int  # of the bias, or along which halves are packed
    dtype: torch.dtype
    bias: torch.dtype | None
    source: str = "x"  # of slopes: y, mask; or how gates are packed, "separate" if they are not
    seed: int = 0

    @property
    def activation(self) -> Activation:
        return Activation(self.kind, self.dtype)

    def along(self, bias: Tensor) -> Tensor:
        """A bias, wide, so that it broadcasts."""
        return bias.double().reshape([-1] + [1] * (len(self.shape) - 1 - self.axis))

    def biased(self, x: Tensor, bias: Tensor | None) -> Bounded:
        wide = x.double() if bias is None else x.double() + self.along(bias)
        return Bounded(wide, 2 * self.activation.u * wide.abs())

    def check_bias(self, found: Tensor, bias: Tensor, terms: Bounded, name: str) -> None:
        like = self.along(bias)
        bound = reduced(terms.bound + ROUNDINGS * self.activation.u * terms.values.abs(), like)
        assert_close(found, Bounded(reduced(terms.values, like), bound), f"{name} of {self}")

    def halves(self, tensor: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Of a packed gate."""
        if self.source == "split":
            first, second = tensor.chunk(2, axis)
        else:
            first, second = tensor.unflatten(axis, (-1, 2)).unbind(axis + 1)
        return first, second


@st.composite
def _shapes(draw: st.DrawFn, most: int) -> tuple[int, ...]:
    total, fills = draw(totals(most)), draw(FILLS)
    if draw(st.booleans()):
        columns = draw(sizes(min(16, most)))
        return draw(sizes(total - bits(columns), fills=fills)), columns
    planes = draw(st.sampled_from(PLANES))
    channels = draw(sizes(min(11, most - bits(*planes))))
    return draw(sizes(total - bits(channels, *planes), fills=fills)), channels, *planes


@st.composite
def _problems(draw: st.DrawFn, most: int, sources: dict[str, tuple[str, ...]], others: tuple[str, ...]) -> Problem:
    shape, dtype, kind = draw(_shapes(most)), draw(st.sampled_from(DTYPES)), draw(st.sampled_from(tuple(ACTIVATIONS)))
    bias = draw(st.sampled_from([None, dtype, torch.float64 if dtype == torch.float64 else torch.float32]))
    source = draw(st.sampled_from(sources.get(kind, others)))
    axis, seed = draw(st.integers(0, len(shape) - 1)), draw(st.integers(0, 1 << 20))
    return Problem(kind, shape, axis, dtype, bias, source, seed)


def activation_problems(most: int) -> st.SearchStrategy[Problem]:
    return _problems(most, {"relu": ("x", "y", "mask"), "sigmoid": ("x", "y"), "tanh": ("x", "y")}, ("x",))


def gated_problems(most: int) -> st.SearchStrategy[Problem]:
    return _problems(most, {}, ("separate", "split", "interleaved"))


class _Drawn:
    """Tensors of a problem, one after the other."""

    def __init__(self, problem: Problem):
        self._generator = torch.Generator(torch.get_default_device()).manual_seed(problem.seed)
        self._problem = problem

    def lay(self, layout: Layout, shape: tuple[int, ...]) -> Tensor:
        dtype = self._problem.dtype
        return layout.empty(shape, dtype).tensor.copy_(2 * normal(shape, dtype, self._generator))

    def gradient(self, layout: Layout, shape: tuple[int, ...]) -> Tensor:
        dtype = self._problem.dtype
        return layout.input(uneven(normal(shape, dtype, self._generator), self._problem.seed), dtype)

    def bias(self, size: int) -> Tensor | None:
        dtype = self._problem.bias
        return None if dtype is None else normal((size,), dtype, self._generator).to(dtype)


def _row(size: int, dtype: torch.dtype | None) -> Guarded | None:
    return None if dtype is None else Layout((0,), (0,), 1).empty((size,), dtype)


def check_activation(problem: Problem, layout: Layout, other: Layout) -> None:
    draw, size = _Drawn(problem), problem.shape[problem.axis]
    x, dy, bias = draw.lay(layout, problem.shape), draw.gradient(other, problem.shape), draw.bias(size)
    options: dict[str, Any] = {"bias": bias, "axis": problem.axis}
    out = [other.empty(problem.shape, problem.dtype)]
    masked = problem.source == "mask"
    where = (out[0].tensor, None) if masked else out[0].tensor
    spoil_workspaces()
    found = normact.activation(x, problem.kind, **options, return_mask=masked, out=where)
    y, mask = found if masked else (found, None)
    assert_untouched(out, str(problem))
    h = problem.biased(x, bias)
    assert_close(y, problem.activation.value(h), f"y of {problem}")

    wants = x if problem.source == "x" else None
    more: dict[str, Any] = {"y": y} if problem.source == "y" else {"mask": mask} if masked else {}
    grads = [other.empty(problem.shape, problem.dtype), _row(size, problem.bias)]
    spoil_workspaces()
    gradients = normact.activation_backward(dy, wants, problem.kind, **options, **more, out=tensors(grads))
    assert_untouched(grads, f"the backward of {problem}")
    dh = problem.activation.backward(dy.double(), h)
    if problem.source == "y":  # its rounding is seen where the slope is y * (1 - y) and the like
        amplified = 2.1 * dy.double().abs() * (y.double() - problem.activation.value(h).values).abs()
        dh = Bounded(dh.values, dh.bound + amplified)
    assert_close(gradients.dx, dh, f"dx of {problem}")
    if bias is not None:
        problem.check_bias(gradients.dbias, bias, dh, "dbias")
    more["out"] = in_place(other, dy, [other.empty(problem.shape, problem.dtype), _row(size, problem.bias)])
    assert_same_bits(gradients, normact.activation_backward(dy, wants, problem.kind, **options, **more), problem)
    again = x if layout == other else other.empty(problem.shape, problem.dtype).tensor
    normact.activation(x, problem.kind, **options, out=again)
    assert_same_bits(_Output(y), _Output(again), problem)


class _Output(NamedTuple):
    y: Tensor


class _Gate(NamedTuple):
    gate: Tensor  # and up and bias, as the functions take them
    up: Tensor | None
    bias: Any
    halves: tuple[Tensor, Tensor]  # gate and up
    biases: tuple[Tensor, Tensor] | None


def _gate(problem: Problem, layout: Layout, draw: _Drawn) -> _Gate:
    axis, size = problem.axis, problem.shape[problem.axis]
    if problem.source == "separate":
        halves = draw.lay(layout, problem.shape), draw.lay(layout, problem.shape)
        first, second = draw.bias(size), draw.bias(size)
        biases = None if first is None or second is None else (first, second)
        return _Gate(*halves, biases, halves, biases)
    shape = (*problem.shape[:axis], 2 * size, *problem.shape[axis + 1 :])
    both, bias = draw.lay(layout, shape), draw.bias(2 * size)
    return _Gate(both, None, bias, problem.halves(both, axis), None if bias is None else problem.halves(bias, 0))


def _gate_gradients(problem: Problem, layout: Layout) -> list[Guarded | None]:
    """Where those of gate, up and their biases go, or of what is packed and its bias."""
    axis, size = problem.axis, problem.shape[problem.axis]
    if problem.source == "separate":
        halves = [layout.empty(problem.shape, problem.dtype) for _ in range(2)]
        return [*halves, *(_row(size, problem.bias) for _ in range(2))]
    shape = (*problem.shape[:axis], 2 * size, *problem.shape[axis + 1 :])
    return [layout.empty(shape, problem.dtype), _row(2 * size, problem.bias)]


def check_gated(problem: Problem, layout: Layout, other: Layout) -> None:
    draw = _Drawn(problem)
    dy, gate = draw.gradient(other, problem.shape), _gate(problem, layout, draw)
    options: dict[str, Any] = {"kind": problem.kind, "axis": problem.axis, "bias": gate.bias}
    packed = problem.source != "separate"
    if packed:
        options["layout"] = problem.source
    out = [other.empty(problem.shape, problem.dtype)]
    spoil_workspaces()
    y = normact.gated(gate.gate, gate.up, **options, out=out[0].tensor)
    assert_untouched(out, str(problem))
    gate_bias, up_bias = gate.biases or (None, None)
    biased = problem.biased(gate.halves[0], gate_bias), problem.biased(gate.halves[1], up_bias)
    value, *wanted = gated(dy.double(), *biased, problem.activation)
    assert_close(y, value, f"y of {problem}")

    spoil_workspaces()
    grads = _gate_gradients(problem, layout)
    found = normact.gated_backward(dy, gate.gate, gate.up, **options, out=tensors(grads))
    assert_untouched(grads, f"the backward of {problem}")
    gradients = problem.halves(found.dx, problem.axis) if packed else (found.dgate, found.dup)
    for name, gradient, want in zip(("dgate", "dup"), gradients, wanted, strict=True):
        assert_close(gradient, want, f"{name} of {problem}")
    if gate.biases is not None:
        sums = problem.halves(found.dbias, 0) if packed else (found.dgate_bias, found.dup_bias)
        for name, total, bias, want in zip(("dgate_bias", "dup_bias"), sums, gate.biases, wanted, strict=True):
            problem.check_bias(total, bias, want, name)
    again = tensors(_gate_gradients(problem, layout))
    assert_same_bits(found, normact.gated_backward(dy, gate.gate, gate.up, **options, out=again), problem)
