# SPDX-License-Identifier: Apache-2.0
"""Problems of batch, group and instance norm, and what must come out: as in cases.py, whose types these use."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import reference_channel as reference
import tolerance
from activation_cases import Kind
from cases import Expected, activated, slopes
from cases import Problem as RowProblem
from remembered import remembered

OPERATIONS = ("batch_norm", "group_norm", "instance_norm")


@dataclass(frozen=True)
class Problem:
    op: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    parameter_dtype: str | None = None  # of weight and bias; None: as x
    channel_axis: int = 1
    num_groups: int = 1  # of a group norm
    training: bool = True  # of an instance norm: use_input_stats
    weight: bool = True
    bias: bool = True
    addend: bool = False
    running: bool = False  # whether there are running statistics; inference has them
    momentum: float | None = 0.1
    batches: int | None = None  # num_batches_tracked before the call
    eps: float = 1e-5
    mean: float = 0.0  # of the random x
    std: float = 1.0
    slope_from: str = "x"  # y, mask
    activation: Kind | None = field(default=None, repr=False)  # repr draws the inputs: they are those without it

    activation_options = RowProblem.activation_options

    @property
    def parameters(self) -> str:
        return self.parameter_dtype or self.dtype

    @property
    def statistics(self) -> str:
        return tolerance.accumulator(self.dtype)

    @property
    def axis(self) -> int:
        return self.channel_axis % len(self.shape)

    @property
    def channels(self) -> int:
        return self.shape[self.axis]

    @property
    def samples(self) -> int:
        return 1 if self.axis == 0 else self.shape[0]

    @property
    def by_channel(self) -> bool:
        """Whether a statistic belongs to a channel of all samples."""
        return self.op == "batch_norm" or not self.training

    @property
    def groups(self) -> int:
        return self.num_groups if self.op == "group_norm" else self.channels

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        return (self.channels,) if self.by_channel else (self.samples, self.groups)

    @property
    def per_channel(self) -> int:
        """Elements of a channel, in all samples."""
        return math.prod(self.shape) // max(self.channels, 1)

    def channelwise(self, values: np.ndarray) -> np.ndarray:
        """[samples, channels, places], with more digits than the kernel's arithmetic."""
        wide = np.longdouble if self.dtype == "float64" else np.float64
        moved = np.moveaxis(values, self.axis, 0 if self.axis == 0 else 1)
        return moved.reshape(self.samples, self.channels, -1 if values.size else 0).astype(wide)

    def shaped(self, values: np.ndarray) -> np.ndarray:
        """The inverse of channelwise."""
        moved = list(self.shape)
        del moved[self.axis]
        moved.insert(0 if self.axis == 0 else 1, self.channels)
        return np.moveaxis(values.reshape(moved), 0 if self.axis == 0 else 1, self.axis)

    def sets(self, values: np.ndarray) -> np.ndarray:
        """Of [samples, channels, places] (or what broadcasts to it) what is normalised together: [sets, members]."""
        full = np.broadcast_to(values, (self.samples, self.channels, self.per_channel // max(self.samples, 1)))
        if self.by_channel:
            return full.swapaxes(0, 1).reshape(self.channels, -1)
        return full.reshape(self.samples * self.groups, -1)

    def unset(self, values: np.ndarray) -> np.ndarray:
        """The inverse of sets."""
        if self.by_channel:
            return values.reshape(self.channels, self.samples, -1).swapaxes(0, 1)
        return values.reshape(self.samples, self.channels, -1)


def fused_problem(op: str, shape: tuple[int, ...], dtype: str = "bfloat16", **options: Any) -> Problem:
    """With an activation, and an addend where there may be one."""
    parameters = "float64" if dtype == "float64" else "float32"
    batch = op == "batch_norm"
    kind = Kind("relu" if batch else "silu")
    return Problem(op, shape, dtype, parameters, num_groups=4, addend=batch, activation=kind, **options)


def grouped_problem(kind: str, shape: tuple[int, ...], dtype: str, groups: int) -> Problem:
    """A group norm: plain, bare, silu, strided (the same), relu, far."""
    plain = Problem("group_norm", shape, dtype, "float32", num_groups=groups, mean=30.0)
    silu = replace(plain, activation=Kind("silu"))
    return {
        "plain": plain,
        "bare": replace(silu, weight=False, bias=False),
        "silu": silu,
        "strided": silu,
        "relu": replace(plain, activation=Kind("relu"), mean=0.0),
        "far": replace(plain, parameter_dtype=dtype, mean=1000.0, activation=Kind("tanh")),
    }[kind]


@dataclass(frozen=True)
class Inputs:
    """Exactly representable values in float64: x, addend, dy in the problem's shape, all else in one dimension."""

    x: np.ndarray
    weight: np.ndarray | None
    bias: np.ndarray | None
    addend: np.ndarray | None
    dy: np.ndarray
    running_mean: np.ndarray | None
    running_var: np.ndarray | None
    mean: np.ndarray  # what a forward hands to the backward, rounded to its dtype
    rstd: np.ndarray


@remembered
def inputs(problem: Problem) -> Inputs:
    rng = np.random.default_rng(zlib.crc32(repr(problem).encode()))

    def draw(shape: tuple[int, ...], dtype: str, mean: float = 0.0, std: float = 1.0) -> np.ndarray:
        return tolerance.round_to(rng.standard_normal(shape) * std + mean, dtype)

    size = (problem.channels,)
    x = draw(problem.shape, problem.dtype, problem.mean, problem.std)
    weight = draw(size, problem.parameters) if problem.weight else None
    bias = draw(size, problem.parameters) if problem.bias else None
    addend = draw(problem.shape, problem.dtype) if problem.addend else None
    dy = draw(problem.shape, problem.dtype)
    kept = problem.running or not problem.training
    running_mean = draw(size, problem.statistics, problem.mean, problem.std) if kept else None
    running_var = draw(size, problem.statistics, 0.0, problem.std) ** 2 if kept else None
    if running_var is not None:
        running_var = tolerance.round_to(running_var + problem.std**2 / 4, problem.statistics)
    mean, variance = _statistics(problem, x, running_mean, running_var)
    rstd = 1 / np.sqrt(variance + problem.eps)
    rounded = (tolerance.round_to(values, problem.statistics) for values in (mean, rstd))
    return Inputs(x, weight, bias, addend, dy, running_mean, running_var, *rounded)


def wide(problem: Problem, values: np.ndarray | None) -> Any:
    return None if values is None else values.astype(np.longdouble if problem.dtype == "float64" else np.float64)


def _statistics(problem: Problem, x, running_mean, running_var) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance in the shape of the statistics."""
    if not problem.training:
        return wide(problem, running_mean), wide(problem, running_var)
    if problem.by_channel:
        return reference.batch_norm_statistics(problem.channelwise(x))
    return reference.group_norm_statistics(problem.channelwise(x), problem.groups)


@dataclass(frozen=True)
class _Affine:
    """h of every element [samples, channels, places], and how far from it the arithmetic may be."""

    h: np.ndarray
    bound: np.ndarray


def _affine(problem: Problem, mean: np.ndarray, rstd: np.ndarray, bounds: tuple[np.ndarray, np.ndarray]) -> _Affine:
    """From statistics that may be off by `bounds` (of mean and rstd, each [sets])."""
    given = inputs(problem)
    x, weight, bias = problem.channelwise(given.x), wide(problem, given.weight), wide(problem, given.bias)
    addend = None if given.addend is None else problem.channelwise(given.addend)
    members = problem.sets(x)
    mean, rstd = mean.reshape(-1), rstd.reshape(-1)
    xhat = problem.unset((members - mean[:, None]) * rstd[:, None])
    h = reference.affine(xhat, weight, bias, addend)
    shift = sum(
        np.abs(part) for part in (0.0 if bias is None else bias[None, :, None], 0 if addend is None else addend)
    )
    bound = tolerance.forward_bound(
        members,
        None if weight is None else problem.sets(weight[None, :, None]),
        problem.sets(np.asarray(shift)),
        0.0,
        mean,
        rstd,
        *bounds,
        problem.dtype,
    )
    return _Affine(h, problem.unset(bound))


def statistics_bounds(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """mean, rstd [sets] and their bounds."""
    given = inputs(problem)
    mean, variance = (v.reshape(-1) for v in _statistics(problem, given.x, given.running_mean, given.running_var))
    rstd = 1 / np.sqrt(variance + problem.eps)
    if not problem.training:
        return mean, rstd, np.zeros_like(mean), 4 * tolerance.unit(problem.dtype) * rstd
    return (
        mean,
        rstd,
        *tolerance.statistics_bounds(
            problem.sets(problem.channelwise(given.x)), mean, rstd, problem.dtype, merged=True
        ),
    )


@remembered
def expected_forward(problem: Problem) -> dict[str, Expected]:
    """y, mean and rstd."""
    mean, rstd, mean_bound, rstd_bound = statistics_bounds(problem)
    found = _affine(problem, mean, rstd, (mean_bound, rstd_bound))
    y, bound = found.h, found.bound
    if problem.activation is not None:
        y, bound = activated(problem.activation, y, bound, problem.dtype)
    shape = problem.statistics_shape
    return {
        "y": _shaped(problem, y, bound),
        "mean": _expected(mean.reshape(shape), mean_bound.reshape(shape), problem.statistics),
        "rstd": _expected(rstd.reshape(shape), rstd_bound.reshape(shape), problem.statistics),
    }


def expected_running(problem: Problem) -> dict[str, Expected]:
    """running_mean and running_var after a forward in training."""
    given = inputs(problem)
    assert problem.momentum is not None or problem.batches is not None
    mean, rstd, mean_bound, rstd_bound = statistics_bounds(problem)
    variance = 1 / np.square(rstd) - problem.eps
    variance_bound = 2 * (variance + problem.eps) * rstd_bound / rstd
    count = problem.per_channel if problem.by_channel else problem.per_channel // problem.samples
    news = [(mean, mean_bound), (reference.unbiased(variance, count), reference.unbiased(variance_bound, count))]
    if not problem.by_channel:  # of the samples' statistics the means
        news = [tuple(v.reshape(problem.samples, -1).mean(axis=0) for v in pair) for pair in news]
    factor = 1 / ((problem.batches or 0) + 1) if problem.momentum is None else problem.momentum
    found, u = {}, tolerance.unit(problem.dtype)
    names = ("running_mean", "running_var")
    for name, old, (new, new_bound) in zip(names, (given.running_mean, given.running_var), news, strict=True):
        old = wide(problem, old)
        arithmetic = 4 * u * (abs(1 - factor) * np.abs(old) + abs(factor) * np.abs(new))
        if not problem.by_channel:
            arithmetic += abs(factor) * tolerance.sum_units(problem.samples) * u * np.abs(new)
        values = reference.running(old, new, factor)
        found[name] = _expected(values, abs(factor) * new_bound + arithmetic, problem.statistics)
    return found


@dataclass(frozen=True)
class Slopes:
    """What a backward that does not compute h again reads: y rounded, and which h are positive."""

    y: np.ndarray
    positive: np.ndarray


@remembered
def slope_sources(problem: Problem) -> Slopes:
    given = inputs(problem)
    zero = np.zeros(problem.statistics_shape).reshape(-1)
    h = _affine(problem, wide(problem, given.mean), wide(problem, given.rstd), (zero, zero)).h
    y = h if problem.activation is None else problem.activation.value(h)
    return Slopes(tolerance.round_to(problem.shaped(y), problem.dtype), problem.shaped(h) > 0)


def packed(positive: np.ndarray, channel_axis: int, channels_last: bool) -> np.ndarray:
    """A mask with bits in the order of channels last, or row-major."""
    if channels_last:
        return np.packbits(np.moveaxis(positive, channel_axis, -1).ravel(), bitorder="little").reshape(-1, 1)
    return np.packbits(positive.ravel(), bitorder="little")


@remembered
def expected_backward(problem: Problem) -> dict[str, Expected]:
    """dx, and dweight, dbias and daddend where the problem has weight, bias and addend; from the inputs' statistics."""
    return expected_backward_from(problem, inputs(problem).mean, inputs(problem).rstd)


def expected_backward_from(problem: Problem, mean: np.ndarray, rstd: np.ndarray) -> dict[str, Expected]:
    """The same from given statistics, which are inputs of the backward and taken as exact."""
    given, dtype, u = inputs(problem), problem.dtype, tolerance.unit(problem.dtype)
    x, weight = problem.channelwise(given.x), wide(problem, given.weight)
    mean, rstd = wide(problem, mean), wide(problem, rstd)
    dh, dh_bound = _through_activation(problem, mean, rstd)
    if problem.by_channel:
        exact = reference.batch_norm_backward(dh, x, weight, mean=mean, rstd=rstd, training=problem.training)
    else:
        exact = reference.group_norm_backward(dh, x, weight, groups=problem.groups, mean=mean, rstd=rstd)
    scale = None if weight is None else problem.sets(weight[None, :, None])
    members, set_mean, set_rstd = problem.sets(x), mean.reshape(-1), rstd.reshape(-1)
    dh_sets, dh_bound_sets = problem.sets(dh), problem.sets(dh_bound)
    if problem.training:
        dx_bound = tolerance.backward_bounds(dh_sets, members, scale, 0.0, set_mean, set_rstd, None, dtype)[0]
        dx_bound = dx_bound + tolerance.gradient_bounds_of_dy(dh_bound_sets, members, scale, 0.0, set_mean, set_rstd)[0]
    else:
        size = set_rstd[:, None] * (1.0 if scale is None else np.abs(scale))
        dx_bound = size * (4 * u * np.abs(dh_sets) + dh_bound_sets)
    xhat = problem.unset(np.abs(members - set_mean[:, None]) * set_rstd[:, None])
    per_sum = tolerance.sum_units(problem.per_channel) * u
    found = {"dx": _shaped(problem, exact.dx, problem.unset(dx_bound))}
    if problem.weight:
        bound = np.sum((per_sum * np.abs(dh) + dh_bound) * xhat, axis=(0, 2))
        found["dweight"] = _expected(exact.dweight, bound, problem.parameters)
    if problem.bias:
        found["dbias"] = _expected(
            exact.dbias, np.sum(per_sum * np.abs(dh) + dh_bound, axis=(0, 2)), problem.parameters
        )
    if problem.addend:
        found["daddend"] = _shaped(problem, dh, dh_bound)
    return found


def _through_activation(problem: Problem, mean: np.ndarray, rstd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """dh and its bound, [samples, channels, places]."""
    dy, kind, u = problem.channelwise(inputs(problem).dy), problem.activation, tolerance.unit(problem.dtype)
    if kind is None:
        return dy, np.zeros_like(dy)
    if problem.slope_from == "mask":
        return np.where(problem.channelwise(slope_sources(problem).positive) > 0, dy, 0), np.zeros_like(dy)
    if problem.slope_from == "y":
        y = problem.channelwise(slope_sources(problem).y)
        slope = kind.slope_from_output(y)
        return dy * slope, np.abs(dy) * 8 * u * (np.abs(slope) + (np.abs(y) if kind.name in ("elu", "tanh") else 0))
    zero = np.zeros(problem.statistics_shape).reshape(-1)
    found = _affine(problem, mean, rstd, (zero, zero))
    slope, slope_bound = slopes(kind, found.h, found.bound, problem.dtype)
    return dy * slope, np.abs(dy) * (slope_bound + u * np.abs(slope))


def _shaped(problem: Problem, values: np.ndarray, bound: np.ndarray) -> Expected:
    return _expected(problem.shaped(values), problem.shaped(bound), problem.dtype)


def _expected(values: np.ndarray, bound: np.ndarray, dtype: str) -> Expected:
    return Expected(values, tolerance.with_output_rounding(bound, values, dtype), dtype)
