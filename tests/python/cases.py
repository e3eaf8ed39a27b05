# SPDX-License-Identifier: Apache-2.0
"""Problems: what is computed, on which numbers, and what must come out.

A Problem is a value; its inputs and its expected results are made once and shared by all devices and layouts.
"""

from __future__ import annotations

import itertools
import math
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

import reference
import tolerance
from remembered import remembered

if TYPE_CHECKING:
    from activation_cases import Kind

KINDS = ("layer_norm", "rms_norm")

# (dtype of x, dtype of weight and bias)
DTYPES = (
    ("float64", "float64"),
    ("float32", "float32"),
    ("float16", "float16"),
    ("float16", "float32"),
    ("bfloat16", "bfloat16"),
    ("bfloat16", "float32"),
)

# (weight, bias, residual, weight_offset): the offset needs a weight.
OPTIONS = tuple(
    (weight, bias, residual, offset)
    for weight, bias, residual, offset in itertools.product((True, False), (True, False), (False, True), (0.0, 1.0))
    if weight or not offset
)

# Around every power of two and vector width that a kernel may care for, real hidden sizes, and primes.
SMALL_COLS = (1, 2, 7, 31, 32, 33, 64, 65, 127, 128, 255, 256, 257)
MIDDLE_COLS = (513, 768, 1000, 1024, 2047, 4096, 4097)
LARGE_COLS = (8192, 12289, 16384, 65536)
HUGE_COLS = (131073, 1 << 20)

ROW_VARIANTS = ("auto", "warp", "block", "cluster", "image", "tile", "stream")


@dataclass(frozen=True)
class Problem:
    kind: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    parameter_dtype: str | None = None  # of weight and bias; None: as x
    norm_ndim: int = 1  # so many trailing axes are normalised
    weight: bool = True
    bias: bool = True
    residual: bool = False
    weight_offset: float = 0.0
    eps: float = 1e-5
    mean: float = 0.0  # of the random x
    std: float = 1.0
    equal_rows: bool = False
    activation: Kind | None = field(default=None, repr=False)  # repr draws the inputs: they are those without it
    axes: tuple[int, ...] | None = field(default=None, repr=False)  # the normalised ones, if not the trailing norm_ndim
    stream: str | None = field(default=None, repr=False)  # dtype of the residual and its sum, if not that of x

    @property
    def activation_options(self) -> dict[str, str | float]:
        """What the functions are handed of it."""
        return {} if self.activation is None else {"activation": self.activation.name, "alpha": self.activation.alpha}

    @property
    def parameters(self) -> str:
        return self.parameter_dtype or self.dtype

    @property
    def sums(self) -> str:
        return self.stream or self.dtype

    @property
    def statistics(self) -> str:
        return tolerance.accumulator(self.dtype)

    @property
    def axis(self) -> int | tuple[int, ...]:
        if self.axes is not None:
            return self.axes
        return -1 if self.norm_ndim == 1 else tuple(range(-self.norm_ndim, 0))

    @property
    def col_axes(self) -> list[int]:
        axes = range(-self.norm_ndim, 0) if self.axes is None else self.axes
        return sorted(axis % len(self.shape) for axis in axes)

    @property
    def row_axes(self) -> list[int]:
        return [axis for axis in range(len(self.shape)) if axis not in self.col_axes]

    @property
    def row_shape(self) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.row_axes)

    @property
    def col_shape(self) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.col_axes)

    def as_matrix(self, values: np.ndarray) -> np.ndarray:
        """[rows, cols], with more digits than the kernel's arithmetic."""
        wide = np.longdouble if self.dtype == "float64" else np.float64
        matrix = values.transpose(self.row_axes + self.col_axes)
        return matrix.reshape(math.prod(self.row_shape), math.prod(self.col_shape)).astype(wide)

    def as_tensor(self, matrix: np.ndarray) -> np.ndarray:
        """[rows, cols] in the problem's shape."""
        return matrix.reshape(self.row_shape + self.col_shape).transpose(np.argsort(self.row_axes + self.col_axes))


@dataclass(frozen=True)
class Inputs:
    """Exactly representable values, in float64 and the problem's shape; s is x, or round(x + residual)."""

    x: np.ndarray
    residual: np.ndarray | None
    s: np.ndarray
    weight: np.ndarray | None
    bias: np.ndarray | None
    dy: np.ndarray
    dresidual: np.ndarray | None
    mean: np.ndarray  # what a forward hands to the backward, rounded to its dtype
    rstd: np.ndarray


@dataclass(frozen=True)
class Expected:
    """An output and how far from it a result may be; both in the problem's shape."""

    values: np.ndarray
    bound: np.ndarray
    dtype: str


@remembered
def inputs(problem: Problem) -> Inputs:
    rng = np.random.default_rng(zlib.crc32(repr(problem).encode()))

    def draw(shape: tuple[int, ...], dtype: str, mean: float = 0.0, std: float = 1.0) -> np.ndarray:
        return tolerance.round_to(rng.standard_normal(shape) * std + mean, dtype)

    def draw_rows(dtype: str, mean: float = 0.0, std: float = 1.0) -> np.ndarray:
        if problem.equal_rows:
            return np.repeat(draw((1, *problem.shape[1:]), dtype, mean, std), problem.shape[0], axis=0)
        return draw(problem.shape, dtype, mean, std)

    x = draw_rows(problem.dtype, problem.mean, problem.std)
    residual = draw_rows(problem.sums, problem.mean, problem.std) if problem.residual else None
    s = x if residual is None else tolerance.round_to(x + residual, problem.sums)
    statistics = _forward(problem, s, None, None)
    return Inputs(
        x=x,
        residual=residual,
        s=s,
        weight=draw(problem.col_shape, problem.parameters) if problem.weight else None,
        bias=draw(problem.col_shape, problem.parameters) if problem.bias else None,
        dy=draw_rows(problem.dtype),
        dresidual=draw_rows(problem.sums) if problem.residual else None,
        mean=tolerance.round_to(statistics.mean, problem.statistics).reshape(problem.row_shape),
        rstd=tolerance.round_to(statistics.rstd, problem.statistics).reshape(problem.row_shape),
    )


def _parameter(problem: Problem, values: np.ndarray | None) -> np.ndarray | None:
    wide = np.longdouble if problem.dtype == "float64" else np.float64
    return None if values is None else values.ravel().astype(wide)


def _forward(problem: Problem, s, weight, bias) -> reference.Forward:
    norm = getattr(reference, problem.kind)
    return norm(
        problem.as_matrix(s),
        _parameter(problem, weight),
        _parameter(problem, bias),
        eps=problem.eps,
        weight_offset=problem.weight_offset if weight is not None else 0.0,
    )


@remembered
def expected_forward(problem: Problem) -> dict[str, Expected]:
    """y, residual (if there is one), mean (layer norm) and rstd."""
    given = inputs(problem)
    s = problem.as_matrix(given.s)
    weight, bias = _parameter(problem, given.weight), _parameter(problem, given.bias)
    exact = _forward(problem, given.s, given.weight, given.bias)
    mean_bound, rstd_bound = tolerance.statistics_bounds(s, exact.mean, exact.rstd, problem.dtype)
    if problem.kind == "rms_norm":
        mean_bound = np.zeros_like(mean_bound)
    offset = problem.weight_offset
    y_bound = tolerance.forward_bound(
        s, weight, bias, offset, exact.mean, exact.rstd, mean_bound, rstd_bound, problem.dtype
    )
    y = exact.y
    if problem.activation is not None:
        y, y_bound = activated(problem.activation, exact.y, y_bound, problem.dtype)
    found = {
        "y": _expected(problem.as_tensor(y), problem.as_tensor(y_bound), problem.dtype, problem.shape),
        "rstd": _expected(exact.rstd, rstd_bound, problem.statistics, problem.row_shape),
    }
    if problem.kind == "layer_norm":
        found["mean"] = _expected(exact.mean, mean_bound, problem.statistics, problem.row_shape)
    if problem.residual:
        found["residual"] = Expected(given.s, np.zeros_like(given.s), problem.sums)  # the correctly rounded sum
    return found


@remembered
def expected_backward(problem: Problem) -> dict[str, Expected]:
    """dx, with a stream of its own dtype daddend, and dweight and dbias where the problem has a weight and a bias,
    from the inputs' statistics.
    """
    return expected_backward_from(problem, inputs(problem).mean, inputs(problem).rstd)


def expected_backward_from(problem: Problem, mean: np.ndarray, rstd: np.ndarray) -> dict[str, Expected]:
    """The same from given statistics, which are inputs of the backward and taken as exact."""
    given = inputs(problem)
    dy, s = problem.as_matrix(given.dy), problem.as_matrix(given.s)
    weight = _parameter(problem, given.weight)
    offset = problem.weight_offset if weight is not None else 0.0
    mean, rstd = mean.ravel().astype(s.dtype), rstd.ravel().astype(s.dtype)
    dy_bound = None
    if problem.activation is not None:
        bias = _parameter(problem, given.bias)
        h = (s - mean[:, None]) * rstd[:, None]
        h = (h if weight is None else h * (weight + offset)) + (0 if bias is None else bias)
        exactly = np.zeros_like(rstd)
        h_bound = tolerance.forward_bound(s, weight, bias, offset, mean, rstd, exactly, exactly, problem.dtype)
        slope, slope_bound = slopes(problem.activation, h, h_bound, problem.sums)
        dy, dy_bound = dy * slope, np.abs(dy) * (slope_bound + tolerance.unit(problem.dtype) * np.abs(slope))
    if problem.kind == "layer_norm":
        exact = reference.layer_norm_backward(dy, s, weight, mean=mean, rstd=rstd, weight_offset=offset)
    else:
        exact = reference.rms_norm_backward(dy, s, weight, rstd=rstd, weight_offset=offset)
    dresidual = None if given.dresidual is None else problem.as_matrix(given.dresidual)
    bounds = tolerance.backward_bounds(dy, s, weight, offset, mean, rstd, dresidual, problem.dtype)
    if dy_bound is not None:
        more = tolerance.gradient_bounds_of_dy(dy_bound, s, weight, offset, mean, rstd)
        bounds = tuple(bound + extra for bound, extra in zip(bounds, more, strict=True))
    dx = exact.dx if dresidual is None else exact.dx + dresidual
    found = {"dx": _expected(problem.as_tensor(dx), problem.as_tensor(bounds[0]), problem.dtype, problem.shape)}
    if problem.sums != problem.dtype:
        found["daddend"] = _expected(problem.as_tensor(dx), problem.as_tensor(bounds[0]), problem.sums, problem.shape)
    if problem.weight:
        found["dweight"] = _expected(exact.dweight, bounds[1], problem.parameters, problem.col_shape)
    if problem.bias:
        found["dbias"] = _expected(exact.dbias, bounds[2], problem.parameters, problem.col_shape)
    return found


def activated(kind: Kind, h: np.ndarray, h_bound: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """act(h) and its bound, for an h that may be off by h_bound."""
    value = kind.value(h)
    steepest = np.maximum(*(np.abs(kind.slope(h + shift)) for shift in (-h_bound, h_bound)))
    return value, 1.01 * np.maximum(steepest, np.abs(kind.slope(h))) * h_bound + kind.value_bound(h, value, dtype)


def slopes(kind: Kind, h: np.ndarray, h_bound: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """act'(h) and its bound, which beside a kink of act takes in both sides."""
    slope = kind.slope(h)
    apart = np.maximum(*(np.abs(kind.slope(h + shift) - slope) for shift in (-2 * h_bound, 2 * h_bound)))
    return slope, apart + kind.slope_bound(h, slope, dtype)


def _expected(values: np.ndarray, bound: np.ndarray, dtype: str, shape: tuple[int, ...]) -> Expected:
    bound = tolerance.with_output_rounding(bound, values, dtype)
    return Expected(values.reshape(shape), bound.reshape(shape), dtype)
