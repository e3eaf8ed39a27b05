# SPDX-License-Identifier: Apache-2.0
"""Problems of activations and gated activations, and what must come out: as in cases.py, whose types these use.

The inputs are multiples of 1/16 of at most 8, so that x + bias and up + up_offset are exact in every dtype: a bound is
then the activation's own error and the roundings after it.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

import reference_activation as reference
import tolerance
from cases import Expected
from normact import _core
from remembered import remembered

KINDS = tuple(_core.ACTIVATIONS)
FROM_OUTPUT = tuple(kind for kind in KINDS if hasattr(reference, f"{kind}_slope_from_output"))
GATE_LAYOUTS = tuple(_core.GATE_LAYOUTS)

# Values of these are their input's, or a constant.
EXACT = ("identity", "relu", "relu6")
# What the heads in cpp/math/activation_*.h say of values and slopes in float32, and the ulp that a GPU's exp2 adds.
ULPS = {
    "elu": (3.5, 2.5),
    "gelu": (7, 5),
    "gelu_tanh": (4.5, 8),
    "quick_gelu": (4.5, 7.5),
    "silu": (5, 7),
    "sigmoid": (4, 6),
    "tanh": (4.5, 6.5),
    "softplus": (5, 4),
    "mish": (5.5, 9),
}
OTHER_ULPS = 4.0
# Derivatives that are sums of two terms and have a zero, where only the terms' own error can be asked for.
WITH_ZERO_SLOPE = ("gelu", "gelu_tanh", "quick_gelu", "silu", "mish", "hardswish")


@dataclass(frozen=True)
class Kind:
    """An activation and its numbers."""

    name: str
    alpha: float = 0.25
    beta: float = 1.0
    threshold: float = 20.0

    def value(self, x: np.ndarray) -> np.ndarray:
        return getattr(reference, self.name)(x, self.alpha, self.beta, self.threshold)

    def slope(self, x: np.ndarray) -> np.ndarray:
        return getattr(reference, f"{self.name}_slope")(x, self.alpha, self.beta, self.threshold)

    def slope_from_output(self, y: np.ndarray) -> np.ndarray:
        return getattr(reference, f"{self.name}_slope_from_output")(y, self.alpha)

    @property
    def numbers(self) -> dict[str, Any]:
        return {"alpha": self.alpha, "beta": self.beta, "threshold": self.threshold}

    def value_bound(self, x: np.ndarray, value: np.ndarray, dtype: str) -> np.ndarray:
        """How far the arithmetic may be from the value."""
        if self.name in EXACT:
            return np.zeros_like(value)
        ulps = ULPS.get(self.name, (OTHER_ULPS, OTHER_ULPS))[0]
        return _arithmetic(value, ulps, dtype) + _flushed(x, dtype)

    def slope_bound(self, x: np.ndarray, slope: np.ndarray, dtype: str) -> np.ndarray:
        """The same for the slope at x."""
        ulps = ULPS.get(self.name, (OTHER_ULPS, OTHER_ULPS))[1]
        return _arithmetic(np.abs(slope) + self.cancelled(x, slope), ulps, dtype) + _flushed(x, dtype)

    def cancelled(self, x: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """What is lost where share + x share' is less than its terms; the share is value / x."""
        if self.name not in WITH_ZERO_SLOPE:
            return np.zeros_like(slope)
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where((x == 0) | ~np.isfinite(x), 0.5, self.value(x) / x)
        terms = np.abs(share) + np.abs(slope - share)
        return np.where(terms > 1.5 * np.abs(slope), terms, 0)


def _arithmetic(values: np.ndarray, ulps: float, dtype: str) -> np.ndarray:
    """So many units in the last place; for 16 bits 2^-16, so that the rounding to them is what is seen.

    That is 2^-20 and the rounding of an exponent of up to 150, which is not compensated there.
    """
    if dtype in ("float16", "bfloat16"):
        return np.ldexp(np.abs(values), -16)
    return ulps * tolerance.ulp(np.where(np.isfinite(values), np.abs(values), 0), dtype)


def _flushed(x: np.ndarray, dtype: str) -> np.ndarray:
    """An intermediate result below the least normal number may be 0, before it is multiplied with x and its like."""
    least = 2.0 ** tolerance.SMALLEST_EXPONENT[tolerance.accumulator(dtype)]
    return np.where(np.abs(x) > 1, 1024 * least, least)


def wide(values: np.ndarray, dtype: str) -> np.ndarray:
    """With more digits than the kernel's arithmetic."""
    return values.astype(np.longdouble if dtype == "float64" else np.float64)


def multiples(rng: np.random.Generator, shape: tuple[int, ...], most: float, step: float) -> np.ndarray:
    count = int(most / step)
    return rng.integers(-count + 1, count, shape) * step


def along(values: np.ndarray | None, axis: int, ndim: int) -> np.ndarray | float:
    """A bias in a shape that broadcasts against the tensor; 0 for none."""
    if values is None:
        return 0.0
    shape = [1] * ndim
    shape[axis] = values.size
    return values.reshape(shape)


# ---- Activations ----


@dataclass(frozen=True)
class Problem:
    kind: Kind
    shape: tuple[int, ...]
    dtype: str = "float32"
    bias: str | None = None  # its dtype
    axis: int = -1
    equal_rows: bool = False


@dataclass(frozen=True)
class Inputs:
    x: np.ndarray
    bias: np.ndarray | None
    dy: np.ndarray


@remembered
def inputs(problem: Problem) -> Inputs:
    rng = np.random.default_rng(zlib.crc32(repr(problem).encode()))
    drawn = (1, *problem.shape[1:]) if problem.equal_rows else problem.shape
    bias = None if problem.bias is None else multiples(rng, (problem.shape[problem.axis],), 1, 1 / 16)
    x, dy = multiples(rng, drawn, 8, 1 / 16), multiples(rng, drawn, 2, 1 / 16)
    return Inputs(np.broadcast_to(x, problem.shape), bias, np.broadcast_to(dy, problem.shape))


def expected(problem: Problem) -> dict[str, Expected]:
    """y, dx, dbias (if there is a bias) and mask."""
    given = inputs(problem)
    return expected_of(problem, given.x, given.bias, given.dy)


def expected_of(problem: Problem, x: np.ndarray, bias: np.ndarray | None, dy: np.ndarray) -> dict[str, Expected]:
    kind, dtype, ndim = problem.kind, problem.dtype, len(problem.shape)
    s = wide(x, dtype) + along(bias, problem.axis, ndim)
    value, slope = kind.value(s), kind.slope(s)
    slope_bound = kind.slope_bound(s, slope, dtype)
    found = {
        "y": rounded(value, kind.value_bound(s, value, dtype), dtype),
        "dx": rounded(dy * slope, np.abs(dy) * slope_bound, dtype),
    }
    if bias is not None:
        found["dbias"] = summed(dy * slope, np.abs(dy) * slope_bound, problem.axis, dtype, problem.bias or dtype)
    return found


def rounded(values: np.ndarray, bound: np.ndarray, dtype: str) -> Expected:
    """An output, whose bound is that of the arithmetic so far."""
    return Expected(values, tolerance.with_output_rounding(bound, values, dtype), dtype)


def summed(terms: np.ndarray, bound: np.ndarray, axis: int, dtype: str, output: str) -> Expected:
    """The sum over all axes but one; half a rounding per term for terms that were rounded to dtype before."""
    others = tuple(d for d in range(terms.ndim) if d != axis % terms.ndim)
    count = math.prod(terms.shape[d] for d in others)
    magnitude = np.sum(np.abs(terms), axis=others)
    sums = tolerance.sum_units(count) * tolerance.unit(dtype) * magnitude
    return rounded(np.sum(terms, axis=others), np.sum(bound, axis=others) + sums, output)


def positive_bits(problem: Problem) -> np.ndarray:
    """The mask: one bit per element in row-major order, the first in the lowest bit."""
    given = inputs(problem)
    return np.packbits(given.x + along(given.bias, problem.axis, given.x.ndim) > 0, bitorder="little")


# ---- Gated activations ----


@dataclass(frozen=True)
class GatedProblem:
    kind: Kind
    shape: tuple[int, ...]  # of y
    dtype: str = "float32"
    layout: str = "separate"
    biases: tuple[bool, bool] = (False, False)  # of gate, of up; packed inputs have both or none
    bias_dtype: str | None = None  # None: as the inputs
    axis: int = -1
    limit: float | None = None
    up_offset: float = 0.0

    @property
    def packed(self) -> bool:
        return self.layout != "separate"


@dataclass(frozen=True)
class GatedInputs:
    gate: np.ndarray
    up: np.ndarray
    gate_bias: np.ndarray | None
    up_bias: np.ndarray | None
    dy: np.ndarray


@remembered
def gated_inputs(problem: GatedProblem) -> GatedInputs:
    rng = np.random.default_rng(zlib.crc32(repr(problem).encode()))
    size = (problem.shape[problem.axis],)
    gate_bias, up_bias = (multiples(rng, size, 1, 1 / 16) if given else None for given in problem.biases)
    gate, up, dy = (multiples(rng, problem.shape, most, 1 / 16) for most in (8, 8, 2))
    return GatedInputs(gate, up, gate_bias, up_bias, dy)


def packed(first: np.ndarray, second: np.ndarray, layout: str, axis: int) -> np.ndarray:
    """Gate and up, or anything laid out like them, as one tensor."""
    if layout == "split":
        return np.concatenate([first, second], axis)
    axis %= first.ndim
    shape = (*first.shape[:axis], 2 * first.shape[axis], *first.shape[axis + 1 :])
    return np.stack([first, second], axis + 1).reshape(shape)


def gated_expected(problem: GatedProblem) -> dict[str, Expected]:
    """y and the gradients by the names of ActivationGrads or GatedGrads."""
    given, dtype, axis, ndim = gated_inputs(problem), problem.dtype, problem.axis, len(problem.shape)
    limit = math.inf if problem.limit is None else problem.limit
    gate = wide(given.gate, dtype) + along(given.gate_bias, axis, ndim)
    up = wide(given.up, dtype) + along(given.up_bias, axis, ndim)
    g, u, kind = np.minimum(gate, limit), np.clip(up, -limit, limit), problem.kind
    act, slope = kind.value(g), kind.slope(g)
    act_bound, slope_bound = kind.value_bound(g, act, dtype), kind.slope_bound(g, slope, dtype)
    unit = tolerance.unit(dtype)

    def product(factor: np.ndarray, values: np.ndarray, bound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = factor * values
        return values, np.abs(factor) * bound + 3 * unit * np.abs(values)

    factor = u + problem.up_offset
    dgate, dgate_bound = product(np.where(gate > limit, 0, given.dy * factor), slope, slope_bound)
    dup, dup_bound = product(np.where(np.abs(up) > limit, 0, given.dy), act, act_bound)
    parts = {"y": rounded(*product(factor, act, act_bound), dtype)}
    parts["dgate"], parts["dup"] = rounded(dgate, dgate_bound, dtype), rounded(dup, dup_bound, dtype)
    output = problem.bias_dtype or dtype
    if given.gate_bias is not None:
        parts["dgate_bias"] = summed(dgate, dgate_bound, axis, dtype, output)
    if given.up_bias is not None:
        parts["dup_bias"] = summed(dup, dup_bound, axis, dtype, output)
    return _pack_gradients(problem, parts) if problem.packed else parts


def _pack_gradients(problem: GatedProblem, parts: dict[str, Expected]) -> dict[str, Expected]:
    def join(first: str, second: str, axis: int) -> Expected:
        a, b = parts[first], parts[second]
        values = packed(a.values, b.values, problem.layout, axis)
        return Expected(values, packed(a.bound, b.bound, problem.layout, axis), a.dtype)

    found = {"y": parts["y"], "dx": join("dgate", "dup", problem.axis)}
    if "dgate_bias" in parts:
        found["dbias"] = join("dgate_bias", "dup_bias", 0)
    return found
