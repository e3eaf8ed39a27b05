# SPDX-License-Identifier: Apache-2.0
"""Run an activation on a device and hold every output against its expected values and bounds, as checks.py does."""

from __future__ import annotations

from typing import Any, NamedTuple

import normact
from activation_cases import GatedProblem, Problem, expected, gated_expected, gated_inputs, inputs, packed
from checks import assert_within, compare
from devices import Device
from layouts import LAYOUTS, Layout, contiguous


class Arrays(NamedTuple):
    """The inputs of a problem as arrays of a device."""

    x: Any
    bias: Any
    dy: Any


class GatedArrays(NamedTuple):
    """The same of a gated one: `gate` is packed and `up` None where its layout says so; so is `bias`, or a pair."""

    gate: Any
    up: Any
    bias: Any
    dy: Any


class Output(NamedTuple):
    """A bare y with a name, for compare()."""

    y: Any


def build(layout: str | Layout) -> Layout:
    return LAYOUTS[layout] if isinstance(layout, str) else layout


def arrays(
    device: Device, problem: Problem, layout: str | Layout = contiguous, other: str | Layout = contiguous
) -> Arrays:
    """x in one layout, dy in the other."""
    given = inputs(problem)
    bias = None if given.bias is None else device.array(given.bias, problem.bias or "")
    x, dy = build(layout)(device, given.x, problem.dtype), build(other)(device, given.dy, problem.dtype)
    return Arrays(x, bias, dy)


def forward(problem: Problem, given: Arrays, **options: Any) -> Any:
    kind = problem.kind
    return normact.activation(given.x, kind.name, bias=given.bias, axis=problem.axis, **kind.numbers, **options)


def backward(problem: Problem, given: Arrays, **options: Any) -> Any:
    """From x, unless the options are y or mask."""
    kind, x = problem.kind, None if "y" in options or "mask" in options else given.x
    return normact.activation_backward(
        given.dy, x, kind.name, bias=given.bias, axis=problem.axis, **kind.numbers, **options
    )


def check(
    device: Device, problem: Problem, layout: str | Layout = contiguous, other: str | Layout = contiguous
) -> None:
    given, want = arrays(device, problem, layout, other), expected(problem)
    where = f"{problem} on {device.name}, x {layout}, dy {other}"
    compare(device, Output(forward(problem, given)), want, where)
    compare(device, backward(problem, given), want, where)


def gated_arrays(
    device: Device, problem: GatedProblem, layout: str | Layout = contiguous, other: str | Layout = contiguous
) -> GatedArrays:
    """Gate (or the packed tensor) in one layout, up and dy in the other."""
    given, bias_dtype = gated_inputs(problem), problem.bias_dtype or problem.dtype

    def plain(values: Any) -> Any:
        return None if values is None else device.array(values, bias_dtype)

    dy = build(other)(device, given.dy, problem.dtype)
    if not problem.packed:
        gate = build(layout)(device, given.gate, problem.dtype)
        up = build(other)(device, given.up, problem.dtype)
        biases = plain(given.gate_bias), plain(given.up_bias)
        return GatedArrays(gate, up, biases if any(problem.biases) else None, dy)
    both = build(layout)(device, packed(given.gate, given.up, problem.layout, problem.axis), problem.dtype)
    bias = None
    if given.gate_bias is not None and given.up_bias is not None:
        bias = plain(packed(given.gate_bias, given.up_bias, problem.layout, 0))
    return GatedArrays(both, None, bias, dy)


def gated_options(problem: GatedProblem) -> dict[str, Any]:
    layout = problem.layout if problem.packed else "split"
    numbers = {"limit": problem.limit, "up_offset": problem.up_offset, **problem.kind.numbers}
    return {"kind": problem.kind.name, "layout": layout, "axis": problem.axis, **numbers}


def gated_forward(problem: GatedProblem, given: GatedArrays, **options: Any) -> Any:
    return normact.gated(given.gate, given.up, bias=given.bias, **gated_options(problem), **options)


def gated_backward(problem: GatedProblem, given: GatedArrays, **options: Any) -> Any:
    return normact.gated_backward(given.dy, given.gate, given.up, bias=given.bias, **gated_options(problem), **options)


def gated_check(
    device: Device, problem: GatedProblem, layout: str | Layout = contiguous, other: str | Layout = contiguous
) -> None:
    given, want = gated_arrays(device, problem, layout, other), gated_expected(problem)
    where = f"{problem} on {device.name}, gate {layout}, others {other}"
    y = gated_forward(problem, given)
    assert tuple(y.shape) == problem.shape, where
    assert_within(device.values(y), want["y"], where)
    compare(device, gated_backward(problem, given), want, where)
