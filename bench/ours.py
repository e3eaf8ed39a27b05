# SPDX-License-Identifier: Apache-2.0
"""normact itself as a contestant: writing into preallocated outputs, and allocating them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import normact
from bench.cases import Case
from bench.contest import Run
from bench.operands import Operands, Outputs


def call(case: Case, o: Operands, **options: object) -> Callable[[], Any]:
    """The bare call of the case's function; `options` are more keyword arguments."""
    parameters = (o.weight, o.bias) if case.bias else (o.weight,)
    if case.direction == "forward":
        if case.residual:
            options["residual"] = o.residual
        return partial(getattr(normact, case.kind), o.x, *parameters, eps=case.eps, **options)
    if case.residual:
        options["dresidual"] = o.dresidual
    if case.kind == "layer_norm":
        options["mean"] = o.mean
    return partial(getattr(normact, f"{case.kind}_backward"), o.dy, o.x, *parameters, rstd=o.rstd, **options)


def outputs_of(case: Case, o: Operands) -> tuple:
    """The preallocated outputs, as out= takes them."""
    if case.direction == "forward":
        return normact.NormOutput(o.y, o.residual_out, o.mean, o.rstd)
    return normact.NormGrads(o.dx, o.dweight, o.dbias, None)


def training(case: Case) -> dict[str, object]:
    """The options of the form that a training step calls."""
    return {"return_stats": True} if case.direction == "forward" else {}


def preallocated(case: Case, o: Operands) -> Run:
    """Nothing but the workspace is allocated; statistics are written too."""
    write = call(case, o, out=outputs_of(case, o), **training(case))
    forward = {"y": o.y, "residual": o.residual_out, "mean": o.mean, "rstd": o.rstd}
    named = forward if case.direction == "forward" else {"dx": o.dx, "dweight": o.dweight, "dbias": o.dbias}

    def run() -> Outputs:
        write()
        return named

    return run


def fresh(case: Case, o: Operands) -> Run:
    """Every output is allocated by the call."""
    allocate = call(case, o, **training(case))
    return lambda: allocate()._asdict()


CONTESTANTS = {"normact": preallocated, "normact-fresh": fresh}
