# SPDX-License-Identifier: Apache-2.0
"""What calls on millions of elements must give, and how far off they may be: PyTorch in float64, where the tensors are.

The other references are NumPy's, exact to the last roundings and slow; plans for large tensors go wrong by whole
elements. So the bounds here are an error model with one constant for all roundings, and gradients are autograd's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import functional

Tensor = torch.Tensor

# Roundings that a value may show, in units of the arithmetic's u, times the magnitudes that went into it.
ROUNDINGS = 64.0
HALF_ULP = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
SMALLEST = {torch.float64: 0.0, torch.float32: 2.0**-149, torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}

# Of every kind its value.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda h: functional.gelu(h, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "mish": functional.mish,
}
STEEPEST = 1.2  # that a value or a slope is of these, at most


class Bounded(NamedTuple):
    """Values and how far from them a result may be, before its rounding."""

    values: Tensor
    bound: Tensor


class Inputs(NamedTuple):
    """Of a norm, float64, broadcasting against each other."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    addend: Tensor | None


class Forward(NamedTuple):
    y: Bounded
    mean: Bounded
    rstd: Bounded
    h: Bounded  # what the activation is of
    xhat: Bounded


class Backward(NamedTuple):
    dx: Bounded
    dweight: Bounded | None
    dbias: Bounded | None
    dh: Bounded


class Activation(NamedTuple):
    kind: str | None
    dtype: torch.dtype  # of tensors

    @property
    def u(self) -> float:
        """Of the arithmetic, which is fp32 but for fp64."""
        return 2.0**-53 if self.dtype == torch.float64 else 2.0**-24

    @property
    def error(self) -> float:
        """Relatively, of values and slopes: 2^-16 is what kernels of 16 bits may leave to the rounding."""
        return 2.0**-16 if self.dtype.itemsize == 2 else ROUNDINGS * self.u

    def value(self, h: Bounded) -> Bounded:
        if self.kind is None:
            return h
        y = ACTIVATIONS[self.kind](h.values)
        return Bounded(y, STEEPEST * h.bound + y.abs() * self.error)

    def slope(self, h: Bounded) -> Bounded:
        if self.kind is None:
            return Bounded(torch.ones_like(h.values), torch.zeros_like(h.values))
        with torch.enable_grad():
            leaf = h.values.detach().requires_grad_()
            (slope,) = torch.autograd.grad(ACTIVATIONS[self.kind](leaf).sum(), leaf)
        if self.kind == "relu":  # on either side of its kink
            return Bounded(slope, (h.values.abs() <= h.bound).double())
        return Bounded(slope, STEEPEST * h.bound + self.error)

    def backward(self, dy: Tensor, h: Bounded) -> Bounded:
        slope, bound = self.slope(h)
        return Bounded(dy * slope, dy.abs() * bound)


class Norm(NamedTuple):
    """A norm over the dimensions `over`."""

    over: tuple[int, ...]
    centred: bool  # whether the mean is subtracted
    eps: float
    activation: Activation

    @property
    def rounding(self) -> float:
        return ROUNDINGS * self.activation.u

    def forward(self, given: Inputs) -> Forward:
        mean = given.x.mean(self.over, keepdim=True) if self.centred else given.x.new_zeros(())
        variance = (given.x - mean).square().mean(self.over, keepdim=True)
        return self.from_statistics(given, mean, torch.rsqrt(variance + self.eps))

    def from_statistics(self, given: Inputs, mean: Tensor, rstd: Tensor) -> Forward:
        far = (1 + mean.abs() * rstd) / math.sqrt(ROUNDINGS)  # x - mean may be 0, but not the roundings in mean
        xhat = h = (given.x - mean) * rstd
        size = xhat_size = xhat.abs() + far
        if given.weight is not None:
            h, size = h * given.weight, size * given.weight.abs()
        for shift in (given.bias, given.addend):
            if shift is not None:
                h, size = h + shift, size + shift.abs()
        bounded = Bounded(h, self.rounding * (size + h.abs()))
        return Forward(
            self.activation.value(bounded),
            Bounded(mean, self.rounding * (mean.abs() + 1 / rstd)),
            Bounded(rstd, self.rounding * rstd * (1 + far)),
            bounded,
            Bounded(xhat, self.rounding * xhat_size),
        )

    def backward(self, dy: Tensor, given: Inputs, forward: Forward, *, training: bool) -> Backward:
        """From the statistics of the forward; without training these are constants."""
        weight, bias = given.weight, given.bias
        with torch.enable_grad():
            leaf = given.x.detach().requires_grad_()
            of_leaf = given._replace(x=leaf)
            if training:
                again = self.forward(of_leaf)
            else:
                again = self.from_statistics(of_leaf, forward.mean.values, forward.rstd.values)
            (dx,) = torch.autograd.grad(again.y.values, leaf, dy)
        dh, dh_bound = self.activation.backward(dy, forward.h)
        scale = forward.rstd.values if weight is None else forward.rstd.values * weight.abs()
        terms, xhat = self.rounding * dh.abs() + dh_bound, forward.xhat.bound / self.rounding
        g = terms * scale
        dx_bound = g
        if training:
            c2 = xhat * (g * xhat).mean(self.over, keepdim=True)
            dx_bound = g + c2 + (g.mean(self.over, keepdim=True) if self.centred else 0)
        dweight = dbias = None
        if weight is not None:
            dweight = Bounded(reduced(dh * forward.xhat.values, weight), reduced(terms * xhat, weight))
        if bias is not None:
            dbias = Bounded(reduced(dh, bias), reduced(terms, bias))
        return Backward(Bounded(dx, dx_bound), dweight, dbias, Bounded(dh, dh_bound))


def gated(dy: Tensor, gate: Bounded, up: Bounded, activation: Activation) -> tuple[Bounded, Bounded, Bounded]:
    """y = act(gate) * up and the gradients of gate and up."""
    value, slope = activation.value(gate), activation.slope(gate)
    rounding = 4 * activation.u

    def product(a: Bounded, b: Bounded) -> Bounded:
        values = a.values * b.values
        bound = a.bound * b.values.abs() + (a.values.abs() + a.bound) * b.bound
        return Bounded(values, bound + rounding * values.abs())

    through = Bounded(dy, torch.zeros_like(dy))
    return product(value, up), product(product(through, up), slope), product(through, value)


def reduced(terms: Tensor, like: Tensor) -> Tensor:
    """Their sum, in the shape of what was broadcast against them."""
    return terms.sum_to_size(like.shape)


def assert_close(found: Tensor, want: Bounded, where: str) -> None:
    """After one more rounding, to the dtype of what was found. All tensors have the same number of elements."""
    values, bound = (t.expand(want.values.shape).reshape(found.shape) for t in want)
    allowed = bound + 1.01 * HALF_ULP[found.dtype] * (values.abs() + bound) + SMALLEST[found.dtype]
    error = (found.double() - values).abs()
    overflows = found.isinf() & (found.double() * values > 0) & (values.abs() + allowed >= torch.finfo(found.dtype).max)
    bad = ~((error <= allowed) | overflows)  # NaN is bad
    if not bool(bad.any()):
        return
    excess = torch.where(error.isnan(), math.inf, torch.where(bad, error / allowed, 0.0))
    at = tuple(int(i) for i in torch.unravel_index(excess.argmax(), bad.shape))
    raise AssertionError(
        f"{where}: {int(bad.sum())} of {bad.numel()} elements out of bounds, worst at {at}: "
        f"found {found[at].item()!r}, expected {values[at].item()!r} within {allowed[at].item():.3g}"
    )
