# SPDX-License-Identifier: Apache-2.0
"""Activations and gated activations of up to some millions of elements: drawn as in large_cases.py, checked as in
large_checks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

import normact
from large_cases import DTYPES, MAX_BITS, PLANES, Guarded, Layout, bits, sizes, spoil_workspaces
from large_checks import assert_same_bits, assert_untouched, tensors
from large_reference import ACTIVATIONS, Activation, Bounded, assert_close, gated, reduced, unit_of

Tensor = torch.Tensor
FROM_OUTPUT = ("relu", "sigmoid", "tanh")
SPLIT, INTERLEAVED = "split", "interleaved"


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
        return Activation(self.kind, unit_of(self.dtype))

    def along(self, bias: Tensor | None) -> Tensor | float:
        return 0.0 if bias is None else bias.double().reshape([-1] + [1] * (len(self.shape) - 1 - self.axis))


@st.composite
def _shapes(draw: st.DrawFn) -> tuple[int, ...]:
    if draw(st.booleans()):
        columns = draw(sizes(16))
        return draw(sizes(MAX_BITS - bits(columns))), columns
    planes = draw(st.sampled_from(PLANES))
    channels = draw(sizes(min(11, MAX_BITS - bits(*planes))))
    return draw(sizes(MAX_BITS - bits(channels, *planes))), channels, *planes


@st.composite
def _problems(draw: st.DrawFn, sources: dict[str, tuple[str, ...]], others: tuple[str, ...]) -> Problem:
    shape, dtype, kind = draw(_shapes()), draw(st.sampled_from(DTYPES)), draw(st.sampled_from(tuple(ACTIVATIONS)))
    bias = draw(st.sampled_from([None, dtype, torch.float64 if dtype == torch.float64 else torch.float32]))
    source = draw(st.sampled_from(sources.get(kind, others)))
    axis, seed = draw(st.integers(0, len(shape) - 1)), draw(st.integers(0, 1 << 20))
    return Problem(kind, shape, axis, dtype, bias, source, seed)


def activation_problems() -> st.SearchStrategy[Problem]:
    return _problems({"relu": ("x", "y", "mask"), "sigmoid": ("x", "y"), "tanh": ("x", "y")}, ("x",))


def gated_problems() -> st.SearchStrategy[Problem]:
    return _problems({}, ("separate", SPLIT, INTERLEAVED))


class _Drawn:
    """Tensors of a problem, one after the other."""

    def __init__(self, problem: Problem):
        self._generator = torch.Generator("cuda").manual_seed(problem.seed)
        self._problem = problem

    def plain(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, device="cuda")

    def lay(self, layout: Layout, shape: tuple[int, ...]) -> Tensor:
        return layout.empty(shape, self._problem.dtype).tensor.copy_(2 * self.plain(*shape))

    def bias(self, size: int) -> Tensor | None:
        return None if self._problem.bias is None else self.plain(size).to(self._problem.bias)


def _row(size: int, dtype: torch.dtype | None) -> Guarded | None:
    return None if dtype is None else Layout((0,), (0,), 1).empty((size,), dtype)


def check_activation(problem: Problem, layout: Layout, other: Layout) -> None:
    draw, size = _Drawn(problem), problem.shape[problem.axis]
    x, dy, bias = draw.lay(layout, problem.shape), draw.lay(other, problem.shape), draw.bias(size)
    options = {"bias": bias, "axis": problem.axis}
    out = [other.empty(problem.shape, problem.dtype)]
    masked = problem.source == "mask"
    where = (out[0].tensor, None) if masked else out[0].tensor
    spoil_workspaces()
    found = normact.activation(x, problem.kind, **options, return_mask=masked, out=where)
    y, mask = found if masked else (found, None)
    assert_untouched(out, str(problem))
    wide = x.double() + problem.along(bias)
    h = Bounded(wide, 2 * problem.activation.u * wide.abs())
    assert_close(y, problem.activation.value(h), f"y of {problem}")

    wants = x if problem.source == "x" else None
    more: dict[str, Any] = {"y": y} if problem.source == "y" else {"mask": mask} if masked else {}
    grads = [other.empty(problem.shape, problem.dtype), _row(size, problem.bias)]
    spoil_workspaces()
    gradients = normact.activation_backward(dy, wants, problem.kind, **options, **more, out=tensors(grads))
    assert_untouched(grads, f"the backward of {problem}")
    dh, bound = problem.activation.backward(dy.double(), h)
    if problem.source == "y":  # whose rounding is amplified where the slope is y * (1 - y) and the like
        bound = bound + dy.double().abs() * 2.1 * (y.double() - problem.activation.value(h).values).abs()
    assert_close(gradients.dx, Bounded(dh, bound), f"dx of {problem}")
    if bias is not None:
        like = problem.along(bias)
        terms = reduced(bound + 64 * problem.activation.u * dh.abs(), like)
        assert_close(gradients.dbias, Bounded(reduced(dh, like), terms), f"dbias of {problem}")
    more["out"] = (dy, *tensors([_row(size, problem.bias)]))
    assert_same_bits(gradients, normact.activation_backward(dy, wants, problem.kind, **options, **more), problem)
    again = x if layout == other else other.empty(problem.shape, problem.dtype).tensor
    normact.activation(x, problem.kind, **options, out=again)
    assert torch.equal(again, y), f"y of {problem}: other bits the second time"


def check_gated(problem: Problem, layout: Layout, other: Layout) -> None:
    draw, axis, packed = _Drawn(problem), problem.axis, problem.source != "separate"
    size, shape = problem.shape[axis], list(problem.shape)
    dy = draw.lay(other, problem.shape)
    options: dict[str, Any] = {"kind": problem.kind, "axis": axis}
    if packed:
        shape[axis] *= 2
        both, bias = draw.lay(layout, tuple(shape)), draw.bias(2 * size)
        inputs: tuple[Tensor, ...] = (both,)
        options |= {"layout": problem.source, "bias": bias}
        gate, up = halves(problem, both, axis)
        biases = (None, None) if bias is None else halves(problem, bias, 0)
    else:
        inputs = gate, up = (draw.lay(layout, problem.shape) for _ in range(2))
        biases = (draw.bias(size), draw.bias(size))
        options["bias"] = None if problem.bias is None else biases
        inputs = (gate, up)
    out = [other.empty(problem.shape, problem.dtype)]
    y = normact.gated(*inputs, **options, out=out[0].tensor)
    assert_untouched(out, str(problem))
    wide = [half.double() + problem.along(bias) for half, bias in zip((gate, up), biases, strict=True)]
    bounded = [Bounded(half, 2 * problem.activation.u * half.abs()) for half in wide]
    value, dgate, dup = gated(dy.double(), *bounded, problem.activation)
    assert_close(y, value, f"y of {problem}")
    spoil_workspaces()
    found = normact.gated_backward(dy, *inputs, **options)
    if packed:
        gradients = halves(problem, found.dx, axis)
        sums = (None, None) if found.dbias is None else halves(problem, found.dbias, 0)
    else:
        gradients, sums = (found.dgate, found.dup), (found.dgate_bias, found.dup_bias)
    for name, gradient, total, want, bias in zip(("gate", "up"), gradients, sums, (dgate, dup), biases, strict=True):
        assert_close(gradient, want, f"d{name} of {problem}")
        if bias is not None:
            like = problem.along(bias)
            terms = reduced(want.bound + 64 * problem.activation.u * want.values.abs(), like)
            assert_close(total, Bounded(reduced(want.values, like), terms), f"d{name}_bias of {problem}")
    assert_same_bits(found, normact.gated_backward(dy, *inputs, **options), problem)


def halves(problem: Problem, tensor: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    if problem.source == SPLIT:
        return tensor.chunk(2, axis)
    return tensor.unflatten(axis, (-1, 2)).unbind(axis + 1)
