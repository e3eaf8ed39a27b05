# SPDX-License-Identifier: Apache-2.0
"""Fits the polynomials of cpp/math and prints polynomials.h.

    python cpp/math/fit_polynomials.py | clang-format > cpp/math/polynomials.h        (needs mpmath; takes ten seconds)

Every fit is minimax in the relative error of a result (Remez' exchange). FUNCTIONS says what is fitted; the header
states each error: 2^-bits, relative, before any rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import mpmath as mp

mp.mp.dps = 60
GRID = 12  # points of the error's grid for each of its extrema
Real = Callable[[mp.mpf], mp.mpf]


def extrema(error: list[mp.mpf], wanted: int) -> list[int]:
    """Where the error is largest between its changes of sign; the outer ones go if there are too many."""
    found: list[int] = []
    for i, value in enumerate(error):
        if found and (value > 0) == (error[found[-1]] > 0):
            if abs(value) > abs(error[found[-1]]):
                found[-1] = i
        else:
            found.append(i)
    while len(found) > wanted:
        found.pop(0 if abs(error[found[0]]) < abs(error[found[-1]]) else -1)
    return found


def vertex(x: list[mp.mpf], y: list[mp.mpf]) -> mp.mpf:
    """Of the parabola through three points."""
    left, right = x[1] - x[0], x[1] - x[2]
    low, high = y[1] - y[2], y[1] - y[0]
    scale = left * low - right * high
    return x[1] - (left**2 * low - right**2 * high) / (2 * scale) if scale else x[1]


def minimax(f: Real, weight: Real, low: mp.mpf, high: mp.mpf, basis: list[Real]) -> tuple[list[mp.mpf], mp.mpf]:
    """The coefficients of the basis, and the largest weighted error on the open interval."""
    count = len(basis) + 1
    middle, radius = (low + high) / 2, (high - low) / 2

    def nodes(number: int) -> list[mp.mpf]:
        return [middle - radius * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / number) for i in range(number)]

    points, grid = nodes(count), nodes(count * GRID)
    values, weights = [f(x) for x in grid], [weight(x) for x in grid]
    bases = [[each(x) for each in basis] for x in grid]
    for _ in range(30):
        matrix, right = mp.matrix(count, count), mp.matrix(count, 1)
        for i, x in enumerate(points):
            right[i] = f(x)
            for j, each in enumerate(basis):
                matrix[i, j] = each(x)
            matrix[i, count - 1] = (-1) ** i / weight(x)
        solution = mp.lu_solve(matrix, right)
        coefficients = [solution[j] for j in range(count - 1)]
        error = [(mp.fdot(coefficients, b) - y) * w for b, y, w in zip(bases, values, weights, strict=True)]
        peaks = extrema(error, count)
        sizes = [abs(error[i]) for i in peaks]
        if len(peaks) < count or max(sizes) < mp.mpf("1.001") * min(sizes):
            break
        points = [
            vertex(grid[i - 1 : i + 2], error[i - 1 : i + 2]) if 0 < i < len(grid) - 1 else grid[i] for i in peaks
        ]
    return coefficients, max(abs(e) for e in error)


# ---- What is fitted -------------------------------------------------------------------------------------------------

CENTRE = mp.mpf(4)  # of normal_tail_rest: a power of two, so that nothing is rounded at z = 0


def exp2_ratio(f: mp.mpf) -> mp.mpf:
    """(2^f - 1) / f."""
    return mp.expm1(f * mp.log(2)) / f if f else mp.log(2)


def atanh_ratio(u: mp.mpf) -> mp.mpf:
    """2 atanh(s) / s at s^2 = u."""
    s = mp.sqrt(u)
    return 2 * mp.atanh(s) / s


def tail_argument(s: mp.mpf) -> mp.mpf:
    """The z of s = (z - c) / (z + c)."""
    return CENTRE * (1 + s) / (1 - s)


def tail_ratio(s: mp.mpf) -> mp.mpf:
    """Phi(-z) exp(z^2 / 2) (z + c)^2."""
    z = tail_argument(s)
    return mp.erfc(z / mp.sqrt(2)) / 2 * mp.exp(z * z / 2) * (z + CENTRE) ** 2


def tail_exponent(z: mp.mpf) -> mp.mpf:
    """(log2(Phi(-z)) + 1) / z."""
    return mp.log(mp.erfc(z / mp.sqrt(2)), 2) / z


def tail_slope(z: mp.mpf, sign: int = -1) -> mp.mpf:
    """(Phi(-z) - z phi(z)) exp(z^2 / 2), or with the other sign the size of its terms."""
    return mp.erfc(z / mp.sqrt(2)) / 2 * mp.exp(z * z / 2) + sign * z / mp.sqrt(2 * mp.pi)


class Fit(NamedTuple):
    """One polynomial: for M::kBits up to bits; on (low, high)."""

    bits: int
    degree: int
    low: mp.mpf
    high: mp.mpf


class Function(NamedTuple):
    """What is fitted, and what an error of it costs relative to the result."""

    name: str
    argument: str
    about: str
    f: Real
    weight: Real
    fits: list[Fit]
    pole: mp.mpf | None = None  # of r = 1 / (z + pole), in which the polynomial is; a multiple of z is added


def tail_fit(bits: int, degree: int, reach: float) -> Fit:
    """For z up to reach."""
    return Fit(bits, degree, mp.mpf(-1), (reach - CENTRE) / (reach + CENTRE))


def pole_function(name: str, about: str, pole: str, f: Real, weight: Real) -> Function:
    """For bf16: of 0 <= z <= 13.3, beyond which Phi(-z) < 2^-126. The pole is the one that fits best."""
    c = mp.mpf(pole)
    fit = Fit(8, 5, 1 / (mp.mpf("13.3") + c), 1 / c)
    return Function(name, "r", about, lambda r: f(1 / r - c), lambda r: weight(1 / r - c), [fit], c)


HALF = mp.mpf(1) / 2
NINTH = mp.mpf(1) / 9
FUNCTIONS = [
    Function(
        "exp2_ratio",
        "f",
        "(2^f - 1) / f for |f| <= 1/2.",
        exp2_ratio,
        lambda f: 1 / exp2_ratio(f),
        [Fit(11, 4, -HALF, HALF), Fit(24, 5, -HALF, HALF), Fit(53, 11, -HALF, HALF)],
    ),
    Function(
        "atanh_rest",
        "u",
        "(2 atanh(s) / s - 2) / u at u = s^2 <= 1/9; the error is that of 2 atanh(s).",
        lambda u: (atanh_ratio(u) - 2) / u,
        lambda u: u / atanh_ratio(u),
        [Fit(11, 2, mp.mpf(0), NINTH), Fit(24, 3, mp.mpf(0), NINTH), Fit(53, 9, mp.mpf(0), NINTH)],
    ),
    Function(
        "normal_tail_rest",
        "s",
        "(Phi(-z) exp(z^2 / 2) (z + 4)^2 - 8) / z at s = (z - 4) / (z + 4), for 0 <= z <= 14.5 (double: 39);\n"
        "/// the error is that of Phi(-z).",
        lambda s: (tail_ratio(s) - CENTRE**2 / 2) / tail_argument(s),
        lambda s: tail_argument(s) / tail_ratio(s),
        [tail_fit(11, 6, 14.5), tail_fit(24, 8, 14.5), tail_fit(53, 22, 39)],
    ),
    pole_function(
        "normal_tail_exponent_rest",
        "(log2(Phi(-z)) + 1) / z for 0 <= z <= 13.3; the error is that of Phi(-z). Beyond, up\n"
        "/// to 16, it gives less than 2^-126.",
        "3.8",
        tail_exponent,
        lambda z: z * mp.log(2),
    ),
    pole_function(
        "normal_tail_slope",
        "(Phi(-z) - z phi(z)) exp(z^2 / 2) for 0 <= z <= 13.3; near its zero the error is relative to a quarter of\n"
        "/// its terms.",
        "3",
        tail_slope,
        lambda z: 1 / mp.hypot(tail_slope(z), tail_slope(z, 1) / 4),
    ),
]

# ---- The header -----------------------------------------------------------------------------------------------------

HEAD = """\
// SPDX-License-Identifier: Apache-2.0
// Minimax polynomials, in the degree that M::kBits asks for. Written by fit_polynomials.py; do not edit. After each:
// the largest relative error before any rounding.
#pragma once

#include "math/hd.h"

namespace normact {

/// c0 + c1 x + c2 x^2 + ... by Horner's rule.
template <class M>
NORMACT_HD typename M::Number polynomial(typename M::Number, double c0) {
  return M::constant(c0);
}
template <class M, class... Rest>
NORMACT_HD typename M::Number polynomial(typename M::Number x, double c0, Rest... rest) {
  return M::multiply_add(x, polynomial<M>(x, rest...), M::constant(c0));
}
"""


def power(exponent: int) -> Real:
    """x to it."""
    return lambda x: x**exponent


def branches(fits: list[Fit], body: Callable[[Fit], str]) -> str:
    """A body for each precision."""
    if len(fits) == 1:
        return f"  {body(fits[0])}"
    parts = []
    for i, fit in enumerate(fits):
        test = f"if constexpr (M::kBits <= {fit.bits}) " if i < len(fits) - 1 else ""
        parts.append(f"{test}{{\n    {body(fit)}\n  }}")
    return "  " + " else ".join(parts)


def definition(function: Function) -> str:
    """The C++ function."""
    pole = function.pole

    def body(fit: Fit) -> str:
        basis = [power(j) for j in range(fit.degree + 1)]
        if pole:
            basis.append(lambda r: 1 / r - pole)
        coefficients, error = minimax(function.f, function.weight, fit.low, fit.high, basis)
        digits = 17 if fit.bits > 24 else 10
        shown = [mp.nstr(c, digits, min_fixed=-4, strip_zeros=False) for c in coefficients]
        value = f"polynomial<M>({function.argument}, {', '.join(shown[: fit.degree + 1])})"
        size = f"degree {fit.degree}, 2^-{mp.nstr(-mp.log(error, 2), 3)}"
        if not pole:
            return f"return {value};  // {size}"
        return (
            f"const auto r = M::reciprocal(z + M::constant({mp.nstr(pole)}));\n"
            f"  return M::multiply_add(z, M::constant({shown[-1]}), {value});  // {size}"
        )

    argument = "z" if pole else function.argument
    return (
        f"\n/// {function.about}\ntemplate <class M>\n"
        f"NORMACT_HD typename M::Number {function.name}(typename M::Number {argument}) {{\n"
        f"{branches(function.fits, body)}\n}}\n"
    )


if __name__ == "__main__":
    print(HEAD, end="")
    for function in FUNCTIONS:
        print(definition(function), end="")
    print("\n}  // namespace normact")
