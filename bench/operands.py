# SPDX-License-Identifier: Apache-2.0
"""The tensors of a case, and the float64 check that every contestant must pass before it is timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from bench.cases import Case

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
ROUNDOFF = {"fp64": 2.0**-53, "fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}  # of one rounding to nearest
STATISTICS = ("mean", "rstd")
CHUNK = 1 << 24  # elements taken to float64 at a time

Outputs = dict[str, Any]  # tensors (of torch, or through DLPack) of one call: y, residual, dx, dweight, dbias


class WrongResultError(Exception):
    """A contestant's result is not the float64 reference within rounding."""


@dataclass
class Operands:
    """One set of inputs, all standard normal, and of preallocated outputs; None where the case has none."""

    x: Any  # backward: what was normalised, so with a residual the sum
    weight: Any
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

    def poison(self) -> None:
        """Fills the outputs with NaN, so that what a call leaves unwritten shows."""
        outputs = [self.y, self.residual_out, self.dx, self.dweight, self.dbias]
        if self.dy is None:  # a forward's statistics are outputs too
            outputs += [self.mean, self.rstd]
        for output in outputs:
            if output is not None:
                output.fill_(torch.nan)


def make_operands(case: Case, device: str) -> Operands:
    kwargs = {"device": device, "dtype": DTYPES[case.dtype]}

    def normal() -> torch.Tensor:
        return torch.randn(case.rows, case.cols, **kwargs)

    x, weight = normal(), torch.randn(case.cols, **kwargs)
    operands = Operands(x, weight, torch.randn(case.cols, **kwargs) if case.bias else None)
    statistics = {"device": device, "dtype": torch.float64 if case.dtype == "fp64" else torch.float32}
    operands.rstd = torch.empty(case.rows, **statistics)
    operands.mean = torch.empty(case.rows, **statistics) if case.kind == "layer_norm" else None
    if case.direction == "forward":
        operands.y = torch.empty_like(x)
        if case.residual:
            operands.residual, operands.residual_out = normal(), torch.empty_like(x)
        return operands
    for rows in _row_slices(case):
        mean, rstd = _statistics(case, x[rows])
        operands.rstd[rows] = rstd
        if operands.mean is not None:
            operands.mean[rows] = mean
    operands.dy, operands.dx, operands.dweight = normal(), torch.empty_like(x), torch.empty_like(weight)
    operands.dbias = torch.empty_like(weight) if case.bias else None
    operands.dresidual = normal() if case.residual else None
    return operands


def _row_slices(case: Case) -> Iterator[slice]:
    """Slices of rows that hold so few elements that float64 copies of them cost little memory."""
    step = max(1, CHUNK // case.cols)
    for start in range(0, case.rows, step):
        yield slice(start, min(start + step, case.rows))


def _statistics(case: Case, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean (0 for rms_norm) and 1 / sqrt(variance + eps) of every row, in float64."""
    x64 = x.double()
    mean = x64.mean(1) if case.kind == "layer_norm" else x64.new_zeros(len(x64))
    return mean, ((x64 - mean[:, None]).square().mean(1) + case.eps).rsqrt()


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
        roundoff = 2.0**-24 if name in STATISTICS and case.dtype != "fp64" else ROUNDOFF[case.dtype]
        loose = 0.0 if slack == 1.0 else slack * roundoff * max(1.0, terms**0.5)
        arithmetic = ROUNDOFF["fp64" if case.dtype == "fp64" else "fp32"]
        allowed = slack * 1.01 * roundoff * expected.abs() + 32 * terms * arithmetic + loose
        error = (got.double() - expected).abs()
        wrong = ~(error <= allowed)  # also true for NaN
        if wrong.any():
            worst = int(torch.where(wrong, error.nan_to_num(torch.inf) - allowed, -torch.inf).argmax())
            at = divmod(worst, case.cols) if got.ndim == 2 else worst
            raise WrongResultError(
                f"{case.name}: {name}[{at}] of {rows} is {got.flatten()[worst]}, "
                f"expected {expected.flatten()[worst]}; {int(wrong.sum())} elements are wrong"
            )


def _expectations(case: Case, operands: Operands) -> Iterator[tuple[str, slice, torch.Tensor, float]]:
    """(output, slice of it, float64 value, how many terms of magnitude 1 were added up for an element)."""
    shape, parameters = (case.cols,), [operands.weight.double().requires_grad_()]
    if operands.bias is not None:
        parameters.append(operands.bias.double().requires_grad_())
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    norm = functional.layer_norm if case.kind == "layer_norm" else functional.rms_norm
    for rows in _row_slices(case):
        x = operands.x[rows]
        if operands.residual is not None:
            x = x + operands.residual[rows]  # rounded to the tensor's type, as the contract says
            yield "residual", rows, x.double(), 1.0
        x64 = x.double().requires_grad_()
        with torch.enable_grad():
            y64 = norm(x64, shape, *parameters, eps=case.eps)
        if case.direction == "forward":
            yield "y", rows, y64.detach(), 4.0
            for name, value in zip(STATISTICS, _statistics(case, x), strict=True):
                yield name, rows, value, 1.0
            continue
        dx, *gradients = torch.autograd.grad(y64, [x64, *parameters], operands.dy[rows].double())
        if operands.dresidual is not None:
            dx += operands.dresidual[rows].double()
        yield "dx", rows, dx, 16.0
        for total, gradient in zip(sums, gradients, strict=True):
            total += gradient
    if case.direction == "backward":
        for name, total in zip(("dweight", "dbias"), sums, strict=False):
            yield name, slice(None), total, case.rows / 4
