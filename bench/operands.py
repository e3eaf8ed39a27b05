# SPDX-License-Identifier: Apache-2.0
"""The tensors of a case, and the float64 check that every contestant must pass before it is timed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from bench.cases import Case
from bench.formulas import ACTIVATIONS, INVERSES, reference

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ROUNDOFF = {"fp64": 2.0**-53, "fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}  # of one rounding to nearest
STATISTICS = ("mean", "rstd")
CHUNK = 1 << 24  # elements taken to float64 at a time
# How many terms of magnitude 1 an element of y and of dx counts for: products of normal numbers have longer tails.
TERMS = {"norm": (4.0, 16.0), "pointwise": (16.0, 16.0), "bias": (16.0, 16.0), "gated": (64.0, 64.0)}

Outputs = dict[str, Any]  # tensors (of torch, or through DLPack) of one call: y, residual, dx, dweight, dbias


class WrongResultError(Exception):
    """A contestant's result is not the float64 reference within rounding."""


@dataclass
class Operands:
    """One set of inputs, all standard normal, and of preallocated outputs; None where the case has none."""

    x: Any  # backward of a norm: what was normalised, so with a residual the sum; of gates: both, packed; from y: y
    weight: Any = None
    bias: Any = None
    residual: Any = None
    dy: Any = None
    dresidual: Any = None
    mean: Any = None
    rstd: Any = None
    y: Any = None
    residual_out: Any = None
    dx: Any = None
    dweight: Any = None
    dbias: Any = None
    addend: Any = None
    daddend: Any = None
    mask: Any = None

    def poison(self) -> None:
        """Fills the outputs with NaN, so that what a call leaves unwritten shows."""
        outputs = [self.y, self.residual_out, self.dx, self.dweight, self.dbias, self.daddend]
        if self.dy is None:  # a forward's statistics are outputs too
            outputs += [self.mean, self.rstd]
        for output in outputs:
            if output is not None:
                output.fill_(torch.nan)


def make_operands(case: Case, device: str) -> Operands:
    if case.family == "channel":
        from bench import channel_operands

        return channel_operands.make(case, device)
    kwargs = {"device": device, "dtype": DTYPES[case.dtype]}

    def normal(*shape: int, dtype: str = case.dtype) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=DTYPES[dtype])

    parameters, summed = [case.shape[axis] for axis in case.axes], case.direction == "backward" and case.residual
    o = Operands(normal(*case.input_shape, dtype=case.sum_dtype if summed else case.dtype))
    if case.operation.from_output:
        o.x = ACTIVATIONS[case.kind](o.x)
    o.weight = normal(*parameters, dtype=case.parameter_dtype) if case.operation.weight else None
    o.bias = normal(*parameters, dtype=case.parameter_dtype) if case.bias else None
    if case.operation.statistics:
        _add_statistics(case, o)
    if case.direction == "forward":
        o.y = torch.empty(case.shape, **kwargs)
        if case.residual:
            o.residual = normal(*case.shape, dtype=case.sum_dtype)
            o.residual_out = torch.empty_like(o.residual)
        return o
    o.dy = normal(*case.shape)
    o.dx = torch.empty_like(o.x, dtype=o.dy.dtype)
    o.daddend = torch.empty_like(o.x) if case.operation.mixed else None
    o.dweight, o.dbias = (None if t is None else torch.empty_like(t) for t in (o.weight, o.bias))
    o.dresidual = normal(*case.shape, dtype=case.sum_dtype) if case.residual else None
    if case.operation.applied == "relu":
        _keep_off_the_corner(case, o)
    return o


def _keep_off_the_corner(case: Case, o: Operands) -> None:
    """No gradient comes in where rounding alone may decide whether relu's argument is positive."""
    parameters = [None if t is None else t.double() for t in (o.weight, o.bias)]
    for rows in _slices(case):
        h, _ = reference(case, activated=False)(o.x[rows].double(), None, *parameters)
        o.dy[rows].masked_fill_(h.abs() < 16 * ROUNDOFF[case.dtype], 0)


def _add_statistics(case: Case, o: Operands) -> None:
    """Of x for a backward, empty ones for a forward."""
    kwargs = {"device": o.x.device, "dtype": torch.float64 if case.dtype == "fp64" else torch.float32}
    o.rstd = torch.empty(case.statistics_shape, **kwargs)
    o.mean = torch.empty(case.statistics_shape, **kwargs) if case.kind == "layer_norm" else None
    if case.direction == "forward":
        return
    for rows in _slices(case):
        mean, rstd = _statistics(case, o.x[rows])
        o.rstd[rows[-1]] = rstd
        if o.mean is not None:
            o.mean[rows[-1]] = mean


def _slices(case: Case) -> Iterator[tuple[slice, ...]]:
    """Slices of the first axis that is not normalised, of so few elements that float64 copies cost little memory. The
    last of an index is that of the statistics.
    """
    axis = int(case.permuted and 0 in case.axes)
    size = case.shape[axis]
    step = max(1, CHUNK * size // math.prod(case.input_shape))
    for start in range(0, size, step):
        yield (*(slice(None),) * axis, slice(start, min(start + step, size)))


def _statistics(case: Case, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean (0 for rms_norm) and 1 / sqrt(variance + eps) of every row, in float64."""
    x64 = x.double()
    mean = x64.mean(case.axes, keepdim=True)
    if case.kind != "layer_norm":
        mean = torch.zeros_like(mean)
    return mean.squeeze(case.axes), ((x64 - mean).square().mean(case.axes) + case.eps).rsqrt()


def check(case: Case, operands: Operands, outputs: Outputs, *, slack: float = 1.0) -> None:
    """Raises WrongResultError unless every element of the outputs is right.

    An output may be off by its own rounding and by the few fp32 roundings before it (1.0). A rival that rounds
    intermediate results to the tensor's type is given `slack` times a rounding of a value of magnitude 1 as well.
    Statistics are checked where they are among the outputs.
    """
    for name, rows, expected, terms in _expectations(case, operands):
        if name in STATISTICS and outputs.get(name) is None:
            continue
        output = outputs[name]
        got = (output if torch.is_tensor(output) else torch.from_dlpack(output))[rows]
        roundoff = 2.0**-24 if name in STATISTICS and case.dtype != "fp64" else ROUNDOFF[_dtype_of(case, name)]
        loose = 0.0 if slack == 1.0 else slack * roundoff * max(1.0, terms**0.5)
        arithmetic = ROUNDOFF["fp64" if case.dtype == "fp64" else "fp32"]
        allowed = slack * 1.01 * roundoff * expected.abs() + 32 * terms * arithmetic + loose
        error = (got.double() - expected).abs()
        wrong = ~(error <= allowed)  # also true for NaN
        if wrong.any():
            worst = int(torch.where(wrong, error.nan_to_num(torch.inf) - allowed, -torch.inf).argmax())
            at = ", ".join(str(int(i)) for i in torch.unravel_index(torch.tensor(worst), got.shape))
            raise WrongResultError(
                f"{case.name}: {name}[{at}] of {rows} is {got.flatten()[worst]}, "
                f"expected {expected.flatten()[worst]}; {int(wrong.sum())} elements are wrong"
            )


def _dtype_of(case: Case, name: str) -> str:
    """Of an output that is no statistic."""
    if name in ("residual", "daddend"):
        return case.sum_dtype
    return case.parameter_dtype if name in ("dweight", "dbias") and case.family == "norm" else case.dtype


Expectation = tuple[str, Any, torch.Tensor, float]


def _expectations(case: Case, operands: Operands) -> Iterator[Expectation]:
    """(output, slice of it, float64 value, how many terms of magnitude 1 were added up for an element)."""
    if case.family == "channel":
        from bench import channel_operands

        yield from channel_operands.expectations(case, operands)
        return
    parameters = {
        name: getattr(operands, name).double().requires_grad_()
        for name in ("weight", "bias")
        if getattr(operands, name) is not None
    }
    sums = {f"d{name}": torch.zeros_like(parameter) for name, parameter in parameters.items()}
    forward, (y_terms, dx_terms) = reference(case), TERMS[case.family]
    for part in _slices(case):
        x = operands.x[part]
        if operands.residual is not None:
            x = x + operands.residual[part]  # rounded to the tensor's type, as the contract says
            yield "residual", part, x.double(), 1.0
        x64 = x.double()
        if case.operation.from_output:
            x64 = INVERSES[case.kind](x64)
        x64.requires_grad_()
        with torch.enable_grad():
            y64, _ = forward(x64, None, parameters.get("weight"), parameters.get("bias"))
        if case.direction == "forward":
            yield "y", part, y64.detach(), y_terms
            if case.operation.statistics:
                for name, value in zip(STATISTICS, _statistics(case, x), strict=True):
                    yield name, part[-1], value, 1.0
            continue
        dx, *gradients = torch.autograd.grad(y64, [x64, *parameters.values()], operands.dy[part].double())
        if operands.dresidual is not None:
            dx += operands.dresidual[part].double()
        yield "dx", part, dx, dx_terms
        if case.operation.mixed:
            yield "daddend", part, dx, dx_terms
        for name, gradient in zip(sums, gradients, strict=True):
            sums[name] += gradient
    if case.direction == "backward":
        added = math.prod(case.shape) // math.prod(case.shape[axis] for axis in case.axes)
        for name, total in sums.items():
            yield name, slice(None), total.detach(), max(added / 4, 1.0)
