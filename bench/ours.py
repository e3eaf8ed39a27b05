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
    function = getattr(normact, case.kind if case.direction == "forward" else f"{case.kind}_backward")
    tensors = [o.x] if case.direction == "forward" else [o.dy, o.x]
    if case.operation.from_output:
        return partial(normact.activation_backward, o.dy, None, case.kind, y=o.x, **options)
    if case.family == "norm":
        tensors += [o.weight, o.bias] if case.bias else [o.weight]
        return partial(function, *tensors, **_norm_options(case, o), **options)
    if case.family == "channel":
        tensors += [case.groups, o.weight, o.bias] if case.kind == "group_norm" else [o.weight, o.bias]
        return partial(function, *tensors, **_channel_options(case, o), **options)
    return partial(function, *tensors, **_activation_options(case, o), **options)


def _channel_options(case: Case, o: Operands) -> dict[str, Any]:
    """The form that a training step calls; the backward of an addend's relu reads the mask and not the addend."""
    op, forward = case.operation, case.direction == "forward"
    options: dict[str, Any] = {"activation": op.applied} if op.applied else {}
    options |= {"eps": case.eps} if forward else {"mean": o.mean, "rstd": o.rstd}
    if forward and case.kind == "batch_norm":
        options |= {"training": True}
    if op.addend:
        options |= {"addend": o.addend} if forward else {"mask": o.mask, "return_daddend": True}
    return options


def _norm_options(case: Case, o: Operands) -> dict[str, Any]:
    options: dict[str, Any] = {"axis": case.axes} if case.permuted else {}
    options |= {"activation": case.operation.applied} if case.operation.applied else {}
    if case.direction == "forward":
        return options | {"eps": case.eps} | ({"residual": o.residual} if case.residual else {})
    options["rstd"] = o.rstd
    if case.residual:
        options["dresidual"] = o.dresidual
    if case.kind == "layer_norm":
        options["mean"] = o.mean
    return options


def _activation_options(case: Case, o: Operands) -> dict[str, object]:
    options: dict[str, object] = {"layout": case.operation.layout} if case.operation.layout else {}
    return options | ({"bias": o.bias, "axis": case.axis} if case.bias else {})


def outputs_of(case: Case, o: Operands) -> Any:
    """The preallocated outputs, as out= takes them."""
    if case.family == "channel":
        if case.direction == "backward":
            return normact.NormGrads(o.dx, o.dweight, o.dbias, o.daddend)
        if case.kind == "batch_norm":
            return normact.BatchNormOutput(o.y, o.mean, o.rstd, o.mask)
        return normact.GroupNormOutput(o.y, o.mean, o.rstd)
    if case.family != "norm":
        return o.y if case.direction == "forward" else (o.dx, o.dbias) if case.bias else o.dx
    if case.direction == "forward":
        return normact.NormOutput(o.y, o.residual_out, o.mean, o.rstd)
    return normact.NormGrads(o.dx, o.dweight, o.dbias, o.daddend)


def training(case: Case) -> dict[str, object]:
    """The options of the form that a training step calls."""
    if case.direction == "backward" or not case.operation.statistics:
        return {}
    options: dict[str, object] = {"return_stats": True}
    return options | ({"return_mask": True} if case.operation.mask else {})


def preallocated(case: Case, o: Operands) -> Run:
    """Nothing but the workspace is allocated; statistics are written too."""
    write = call(case, o, out=outputs_of(case, o), **training(case))
    forward = {"y": o.y, "residual": o.residual_out, "mean": o.mean, "rstd": o.rstd}
    backward = {"dx": o.dx, "dweight": o.dweight, "dbias": o.dbias, "daddend": o.daddend}
    named = forward if case.direction == "forward" else backward

    def run() -> Outputs:
        write()
        return named

    return run


def fresh(case: Case, o: Operands) -> Run:
    """Every output is allocated by the call."""
    allocate = call(case, o, **training(case))

    def run() -> Outputs:
        found = allocate()
        return found._asdict() if hasattr(found, "_asdict") else {"y": found}

    return run


CONTESTANTS = {"normact": preallocated, "normact-fresh": fresh}
