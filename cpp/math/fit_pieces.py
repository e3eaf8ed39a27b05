# SPDX-License-Identifier: Apache-2.0
"""Fits the piecewise polynomials of cpp/math and prints pieces.h.

    python cpp/math/fit_pieces.py > cpp/math/pieces.h        (needs mpmath; takes ten seconds)

Every piece interpolates at Chebyshev's points, the first one at 0 too. FUNCTIONS says what; the header states each
error, before any rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import mpmath as mp

mp.mp.dps = 40
PIECES = 32
CHECKS = 40  # points of a piece where its error is looked at
Real = Callable[[mp.mpf], mp.mpf]


def normal_lower(z: mp.mpf) -> mp.mpf:
    """Phi(-z)."""
    return mp.erfc(z / mp.sqrt(2)) / 2


def normal_slope(z: mp.mpf) -> mp.mpf:
    """Phi(-z) - z phi(z), the slope of x Phi(x) at -z."""
    return normal_lower(z) - z * mp.exp(-z * z / 2) / mp.sqrt(2 * mp.pi)


def logistic(t: mp.mpf) -> mp.mpf:
    """1 / (1 + exp(t))."""
    return 1 / (1 + mp.exp(t))


def logistic_slope(t: mp.mpf) -> mp.mpf:
    """The slope of x S(x) at -t."""
    return logistic(t) - t * logistic(t) * logistic(-t)


def logistic_density(t: mp.mpf) -> mp.mpf:
    """The slope of S at t and at -t."""
    return logistic(t) * logistic(-t)


def tanh_density(z: mp.mpf) -> mp.mpf:
    """The slope of tanh at z and at -z."""
    return 4 * logistic_density(2 * z)


def tanh_argument(z: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
    """2 u and its derivative, u = sqrt(2 / pi) (z + 0.044715 z^3)."""
    a = 2 * mp.sqrt(2 / mp.pi)
    b = mp.mpf("0.044715")
    return a * (z + b * z**3), a * (1 + 3 * b * z * z)


def tanh_lower(z: mp.mpf) -> mp.mpf:
    """S(-2 u)."""
    return logistic(tanh_argument(z)[0])


def tanh_slope(z: mp.mpf) -> mp.mpf:
    """The slope of x S(2 u) at -z."""
    t, slope = tanh_argument(z)
    return logistic(t) - z * slope * logistic(t) * logistic(-t)


class Function(NamedTuple):
    """A function of z >= 0, its pieces of this width, and where it is 0, if anywhere: near that errors are absolute."""

    name: str
    about: str
    f: Real
    width: mp.mpf
    degrees: dict[int, int]  # for M::kBits up to so many bits
    zero: float | None = None


# The widths are the least with which x F(x) has the slope 1, rounded, where the pieces end. The densities go on beyond
# them; their width saves a degree.
NORMAL, TANH, LOGISTIC, DENSITY = mp.mpf(49) / 256, mp.mpf(45) / 256, mp.mpf(5) / 8, mp.mpf(1) / 2
FUNCTIONS = [
    Function("NormalLower", "Phi(-z)", normal_lower, NORMAL, {11: 5, 24: 6}),
    Function("NormalSlope", "Phi(-z) - z phi(z)", normal_slope, NORMAL, {11: 5, 24: 6}, 0.7517916),
    Function("TanhLower", "S(-2 u), u = sqrt(2 / pi) (z + 0.044715 z^3)", tanh_lower, TANH, {11: 5, 24: 7}),
    Function("TanhSlope", "S(-2 u) - z 2 u' S(-2 u) S(2 u)", tanh_slope, TANH, {11: 5, 24: 7}, 0.7524614),
    Function("LogisticLower", "S(-z)", logistic, LOGISTIC, {11: 4, 24: 6}),
    Function("LogisticSlope", "S(-z) - z S(-z) S(z)", logistic_slope, LOGISTIC, {11: 5, 24: 6}, 1.2784645),
    Function("LogisticDensity", "S(-z) S(z)", logistic_density, DENSITY, {11: 4, 24: 6}),
    Function("TanhDensity", "4 S(-2z) S(2z)", tanh_density, DENSITY / 2, {11: 4, 24: 6}),
]


def fit(function: Function, piece: int, degree: int) -> tuple[list[mp.mpf], mp.mpf]:
    """Coefficients of the piece around piece * width, lowest first, and its largest error."""
    radius, centre = function.width / 2, piece * function.width
    points = [radius * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / (degree + 1)) for i in range(degree + 1)]
    if piece == 0:  # z >= 0, and x = 0 has to give its exact value
        points = [(radius + point) / 2 for point in points]
        points[-1] = mp.mpf(0)
    matrix = mp.matrix(degree + 1, degree + 1)
    for i, point in enumerate(points):
        for j in range(degree + 1):
            matrix[i, j] = point**j
    right = mp.matrix([function.f(centre + point) for point in points])
    solution = mp.lu_solve(matrix, right)
    coefficients = [solution[j] for j in range(degree + 1)]
    worst = mp.mpf(0)
    for i in range(CHECKS + 1):
        offset = radius * (2 * mp.mpf(i) / CHECKS - 1)
        if centre + offset < 0:
            continue
        exact = function.f(centre + offset)
        near = function.zero is not None and abs(centre + offset - function.zero) < 1
        error = abs(mp.polyval(coefficients[::-1], offset) - exact) / (1 if near else abs(exact))
        worst = max(worst, error)
    return coefficients, worst


def number(c: mp.mpf) -> str:
    """The nearest float, as C++ writes it."""
    text = mp.nstr(c, 9, min_fixed=-3, max_fixed=3)
    return (text if "." in text or "e" in text else text + ".0") + "F"


HEAD = """\
// SPDX-License-Identifier: Apache-2.0
// Functions of z >= 0 as 32 polynomials each, for processors that look a number up in a table of registers. Written by
// fit_pieces.py; do not edit. Piece i is around i kWidth; row k has the factors of the k-th power of z - i kWidth.
// Before each: the largest error before any rounding; relative, but absolute within 1 of a zero.
#pragma once

// clang-format off

namespace normact {

constexpr int kPieces = 32;
"""


def row(numbers: list[str]) -> str:
    """In braces, on lines of sixteen."""
    lines = [", ".join(numbers[i : i + 16]) for i in range(0, PIECES, 16)]
    return "    {" + ",\n     ".join(lines) + "}"


def table(function: Function, bits: int) -> str:
    """The coefficients of one precision."""
    degree = function.degrees[bits]
    fits = [fit(function, piece, degree) for piece in range(PIECES)]
    worst = max(error for _, error in fits)
    rows = ",\n".join(row([number(c[k]) for c, _ in fits]) for k in range(degree + 1))
    size = f"degree {degree}, 2^-{mp.nstr(-mp.log(worst, 2), 3)}"
    return f"  // {size}\n  alignas(64) static constexpr float k{bits}[{degree + 1}][kPieces] = {{\n{rows}}};\n"


def definition(function: Function) -> str:
    """The C++ struct."""
    width = mp.nstr(function.width, 17)
    reach = mp.nstr(function.width * (PIECES - mp.mpf(33) / 64), 17)  # a tie would round to the first piece
    return (
        f"\n/// {function.about}, for z <= kReach.\nstruct {function.name} {{\n"
        f"  static constexpr double kWidth = {width}, kReach = {reach};\n"
        + "".join(table(function, bits) for bits in function.degrees)
        + "};\n"
    )


if __name__ == "__main__":
    print(HEAD, end="")
    for function in FUNCTIONS:
        print(definition(function), end="")
    print("\n}  // namespace normact")
