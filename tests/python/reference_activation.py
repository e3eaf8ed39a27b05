# SPDX-License-Identifier: Apache-2.0
"""What every activation means: its value `<name>` and derivative `<name>_slope`, written from the papers that
normact.h names and not from the library's formulas.

The arithmetic has the dtype of x, float64 or, for who wants more digits, longdouble. Each form is chosen so that
nothing cancels, but for the zeros of the derivatives themselves. Infinity gives the limit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
Number = float


def _quiet(function: Callable[..., Array]) -> Callable[..., Array]:
    """Without NumPy's warnings about infinity: what is not chosen by a where() may be anything."""

    @functools.wraps(function)
    def call(*args: Any) -> Array:
        with np.errstate(all="ignore"):
            return function(*args)

    return call


# ---- Functions ----


@_quiet
def _logistic(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def _times(x: Array, share: Array) -> Array:
    """x * share, where the share is exponentially small wherever x is -infinity."""
    return np.where(np.isneginf(x), 0, x * share)


_PI = np.longdouble("3.14159265358979323846264338327950288")


def _pi(x: Array) -> Any:
    return x.dtype.type(_PI)


@_quiet
def _normal_density(x: Array) -> Array:
    return np.exp(-x * x / 2) / np.sqrt(2 * _pi(x))


_erfc = np.frompyfunc(math.erfc, 1, 1)


@_quiet
def _normal(x: Array) -> Array:
    """The distribution function of the standard normal distribution."""
    if x.dtype == np.float64:
        return np.asarray(_erfc(-x / math.sqrt(2)), np.float64) / 2
    z = np.asarray(np.abs(x))
    near, tail = z < 2.5, np.empty_like(z)
    tail[near] = 0.5 - _normal_centre(z[near])
    tail[~near] = _normal_tail(z[~near])
    return np.where(x < 0, tail, 1 - tail)


def _normal_centre(z: Array) -> Array:
    """Phi(z) - 1/2 by Marsaglia's series, phi(z) (z + z^3/3 + z^5/(3 5) + ...), whose terms are all positive."""
    term = total = z
    for n in range(1, 50):
        term = term * z * z / (2 * n + 1)
        total = total + term
    return total * _normal_density(z)


def _normal_tail(z: Array) -> Array:
    """Phi(-z) by Laplace's continued fraction, phi(z) / (z + 1/(z + 2/(z + 3/(z + ...))))."""
    fraction = z
    for n in range(120, 0, -1):
        fraction = z + n / fraction
    return np.where(np.isposinf(z), 0, _normal_density(z) / fraction)


# ---- Pieces ----


def identity(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return x


def identity_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return np.where(np.isnan(x), np.nan, np.ones_like(x))


def relu(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return np.where(x < 0, 0, x)


def relu_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return np.where(x > 0, x.dtype.type(1), 0)


def relu6(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return np.clip(x, 0, 6)


def relu6_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return np.where((x > 0) & (x < 6), x.dtype.type(1), 0)


@_quiet
def squared_relu(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return np.where(x < 0, 0, x) ** 2


def squared_relu_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return np.where(x < 0, 0, 2 * x)


def leaky_relu(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return np.where(x > 0, x, alpha * x)


def leaky_relu_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return np.where(x > 0, x.dtype.type(1), alpha)


def hardsigmoid(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return np.clip(x + 3, 0, 6) / 6


def hardsigmoid_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return np.where((x > -3) & (x < 3), 1 / x.dtype.type(6), 0)


@_quiet
def hardswish(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return _times(x, np.clip(x + 3, 0, 6) / 6)


def hardswish_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return np.select([x <= -3, x < 3], [np.zeros_like(x), (2 * x + 3) / 6], np.ones_like(x))


# ---- Exponentials ----


@_quiet
def elu(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(x))


@_quiet
def elu_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return np.where(x > 0, 1, alpha * np.exp(x))


def sigmoid(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return _logistic(x)


def sigmoid_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return _logistic(x) * _logistic(-x)


def tanh(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return np.tanh(x)


@_quiet
def tanh_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return 1 / np.cosh(x) ** 2


@_quiet
def softplus(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    z = beta * x
    return np.where(z > threshold, x, (np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))) / beta)


def softplus_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    z = beta * x
    return np.where(z > threshold, 1, _logistic(z))


@_quiet
def silu(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return _times(x, _logistic(x))


@_quiet
def silu_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return _slope_of_share(x, _logistic(x), _logistic(x) * _logistic(-x))


@_quiet
def quick_gelu(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return _times(x, _logistic(x.dtype.type("1.702") * x))


@_quiet
def quick_gelu_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    rate = x.dtype.type("1.702")
    return _slope_of_share(x, _logistic(rate * x), rate * _logistic(rate * x) * _logistic(-rate * x))


@_quiet
def gelu(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return _times(x, _normal(x))


@_quiet
def gelu_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return _slope_of_share(x, _normal(x), _normal_density(x))


@_quiet
def gelu_tanh(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return _times(x, _logistic(2 * _tanh_argument(x)))  # (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))


@_quiet
def gelu_tanh_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    u = _tanh_argument(x)
    du = np.sqrt(2 / _pi(x)) * (1 + 3 * x.dtype.type("0.044715") * x**2)
    share, tail = _logistic(2 * u), _logistic(2 * u) * _logistic(-2 * u)
    return _slope_of_share(x, share, np.where(tail == 0, 0, 2 * du * tail))


def _tanh_argument(x: Array) -> Array:
    return np.sqrt(2 / _pi(x)) * (x + x.dtype.type("0.044715") * x**3)


@_quiet
def mish(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    return _times(x, np.tanh(softplus(x, 0, 1, np.inf)))


@_quiet
def mish_slope(x: Array, alpha: Number, beta: Number, threshold: Number) -> Array:
    plus = softplus(x, 0, 1, np.inf)
    return _slope_of_share(x, np.tanh(plus), _logistic(x) / np.cosh(plus) ** 2)


def _slope_of_share(x: Array, share: Array, density: Array) -> Array:
    """The derivative of x * share(x), where share' = density falls faster than any power."""
    return share + np.where(np.isinf(x), 0, x * density)


# ---- The slope from the output ----


def identity_slope_from_output(y: Array, alpha: Number) -> Array:
    return np.ones_like(y)


def relu_slope_from_output(y: Array, alpha: Number) -> Array:
    return np.where(y > 0, 1.0, 0.0)


def relu6_slope_from_output(y: Array, alpha: Number) -> Array:
    return np.where((y > 0) & (y < 6), 1.0, 0.0)


def leaky_relu_slope_from_output(y: Array, alpha: Number) -> Array:
    return np.where(y > 0, 1.0, alpha)


def elu_slope_from_output(y: Array, alpha: Number) -> Array:
    return np.where(y > 0, 1, y + alpha)


def sigmoid_slope_from_output(y: Array, alpha: Number) -> Array:
    return y * (1 - y)


def tanh_slope_from_output(y: Array, alpha: Number) -> Array:
    return (1 - y) * (1 + y)


# ---- Gates ----


def gated(act: Array, u: Array, up_offset: Number) -> Array:
    """From the activation of the bounded gate and the bounded up."""
    return act * (u + up_offset)


def gated_slopes(act: Array, slope: Array, gate: Array, up: Array, u: Array, limit: Number, up_offset: Number):
    """dy/dgate and dy/dup; a bounded input has no influence beyond its bound."""
    return np.where(gate > limit, 0, (u + up_offset) * slope), np.where(np.abs(up) > limit, 0, act)
