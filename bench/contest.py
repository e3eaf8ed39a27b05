# SPDX-License-Identifier: Apache-2.0
"""What a contestant is, and how a rival is let in.

A rival that is not installed or has no such operation is missing, with the reason. One whose first result is not the
float64 reference within rounding is timed all the same, since it is what its users get, and marked as wrong.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.cases import Case
from bench.operands import Operands, Outputs, WrongResultError, check

Run = Callable[[], Outputs]  # one call
Build = Callable[[Case, Operands], Run]

RIVAL_SLACK = 4.0  # rivals may round intermediate results to the tensor's type


class MissingError(Exception):
    """The rival is not installed, or has no such operation."""


def admit(build: Build, case: Case, operands: Operands) -> tuple[Run, dict[str, object]]:
    """The rival's call for these operands, and what its record says about it: nothing, or why it is wrong."""
    call = build(case, operands)
    try:
        check(case, operands, call(), slack=RIVAL_SLACK)
    except WrongResultError as error:
        return call, {"wrong": str(error)}
    except KeyError as error:
        raise MissingError(f"returns no {error}") from error
    return call, {}


def reason(error: Exception) -> str:
    """Why a rival has no number, in one line for the record."""
    first = (str(error).strip() or "no message").splitlines()[0][:160]
    return first if isinstance(error, MissingError) else f"{type(error).__name__}: {first}"
