# SPDX-License-Identifier: Apache-2.0
"""Fits the polynomials of cpp/math and prints polynomials.h.

    python cpp/math/fit_polynomials.py | clang-format > cpp/math/polynomials.h        (needs mpmath; takes ten seconds)

Every fit is minimax in relative error (Remez' exchange). The table at the end of this file says what is fitted; the
header states each error in bits: 2^-bits is the largest relative error before any rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import mpmath as mp

mp.mp.dps = 60
GRID = 12  # points of the error's grid for each of its extrema


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


def minimax(f: Callable[[mp.mpf], mp.mpf], low: mp.mpf, high: mp.mpf, degree: int) -> tuple[list[mp.mpf], mp.mpf]:
    """Coefficients, lowest first, and the largest relative error on [low, high]."""
    count = degree + 2
    middle, radius = (low + high) / 2, (high - low) / 2
    points = [middle - radius * mp.cos(mp.pi * i / (count - 1)) for i in range(count)]
    grid = [middle - radius * mp.cos(mp.pi * i / (count * GRID)) for i in range(count * GRID + 1)]
    values = [f(x) for x in grid]
    for _ in range(30):
        matrix, right = mp.matrix(count, count), mp.matrix(count, 1)
        for i, x in enumerate(points):
            right[i] = f(x)
            for j in range(degree + 1):
                matrix[i, j] = x**j
            matrix[i, degree + 1] = (-1) ** i * right[i]
        solution = mp.lu_solve(matrix, right)
        coefficients = [solution[j] for j in range(degree + 1)]
        error = [mp.polyval(coefficients[::-1], x) / y - 1 for x, y in zip(grid, values, strict=True)]
        peaks = extrema(error, count)
        sizes = [abs(error[i]) for i in peaks]
        if len(peaks) < count or max(sizes) < mp.mpf("1.001") * min(sizes):
            break
        points = [
            vertex(grid[i - 1 : i + 2], error[i - 1 : i + 2]) if 0 < i < len(grid) - 1 else grid[i] for i in peaks
        ]
    return coefficients, max(abs(e) for e in error)


# ---- What is fitted -------------------------------------------------------------------------------------------------


def exp2_ratio(f: mp.mpf) -> mp.mpf:
    return mp.expm1(f * mp.log(2)) / f if f else mp.log(2)


def atanh_rest(u: mp.mpf) -> mp.mpf:
    if u < mp.mpf(10) ** -20:
        return mp.mpf(2) / 3 + mp.mpf(2) / 5 * u
    s = mp.sqrt(u)
    return (2 * mp.atanh(s) / s - 2) / u


def normal_tail(centre: mp.mpf) -> Callable[[mp.mpf], mp.mpf]:
    def ratio(s: mp.mpf) -> mp.mpf:
        shifted = 2 * centre / (1 - s)  # z + centre
        z = shifted - centre
        return mp.erfc(z / mp.sqrt(2)) / 2 * mp.exp(z * z / 2) * shifted

    return ratio


class Fit(NamedTuple):
    bits: int
    degree: int
    centre: mp.mpf = mp.mpf(0)  # of normal_tail
    reach: mp.mpf = mp.mpf(0)


class Function(NamedTuple):
    name: str
    argument: str
    about: str
    fits: list[Fit]


FUNCTIONS = [
    Function("exp2_ratio", "f", "(2^f - 1) / f for |f| <= 1/2.", [Fit(11, 4), Fit(24, 5), Fit(53, 11)]),
    Function("atanh_rest", "u", "(2 atanh(s) / s - 2) / s^2 at u = s^2 <= 1/9.", [Fit(24, 3), Fit(53, 9)]),
    Function(
        "normal_tail_ratio",
        "s",
        "Phi(-z) exp(z^2 / 2) (z + c) at s = (z - c) / (z + c), for 0 <= z <= reach; c is normal_tail_centre.",
        [
            Fit(11, 7, mp.mpf("3.5"), mp.mpf("14.5")),
            Fit(24, 9, mp.mpf("3.5"), mp.mpf("14.5")),
            Fit(53, 22, mp.mpf(5), mp.mpf(39)),
        ],
    ),
]


def fitted(name: str, fit: Fit) -> tuple[list[mp.mpf], mp.mpf]:
    if name == "exp2_ratio":
        return minimax(exp2_ratio, mp.mpf("-0.5"), mp.mpf("0.5"), fit.degree)
    if name == "atanh_rest":
        return minimax(atanh_rest, mp.mpf(0), mp.mpf(1) / 9, fit.degree)
    end = (fit.reach - fit.centre) / (fit.reach + fit.centre)
    return minimax(normal_tail(fit.centre), mp.mpf(-1), end, fit.degree)


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


def branches(fits: list[Fit], body: Callable[[Fit], str]) -> str:
    parts = []
    for i, fit in enumerate(fits):
        test = f"if constexpr (M::kBits <= {fit.bits}) " if i < len(fits) - 1 else ""
        parts.append(f"{test}{{\n    {body(fit)}\n  }}")
    return "  " + " else ".join(parts)


def definition(function: Function) -> str:
    def body(fit: Fit) -> str:
        coefficients, error = fitted(function.name, fit)
        digits = 17 if fit.bits > 24 else 10
        shown = ", ".join(mp.nstr(c, digits, min_fixed=-4, strip_zeros=False) for c in coefficients)
        size = f"degree {fit.degree}, 2^-{mp.nstr(-mp.log(error, 2), 3)}"
        return f"return polynomial<M>({function.argument}, {shown});  // {size}"

    return (
        f"\n/// {function.about}\ntemplate <class M>\n"
        f"NORMACT_HD typename M::Number {function.name}(typename M::Number {function.argument}) {{\n"
        f"{branches(function.fits, body)}\n}}\n"
    )


def centres(fits: list[Fit]) -> str:
    def body(fit: Fit) -> str:
        return f"return {mp.nstr(fit.centre, 3)};  // reach {mp.nstr(fit.reach, 3)}"

    return (
        f"\ntemplate <class M>\nNORMACT_HD constexpr double normal_tail_centre() {{\n{branches(fits, body)}\n}}\n"
    )


if __name__ == "__main__":
    print(HEAD, end="")
    print(centres(FUNCTIONS[-1].fits), end="")
    for function in FUNCTIONS:
        print(definition(function), end="")
    print("\n}  // namespace normact")
