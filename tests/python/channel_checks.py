# SPDX-License-Identifier: Apache-2.0
"""Run a batch, group or instance norm on a device and hold its outputs against what is expected, as checks.py does."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import normact
from channel_cases import (
    Problem,
    expected_backward,
    expected_forward,
    expected_running,
    inputs,
    packed,
    slope_sources,
)
from checks import assert_within, compare
from devices import Device
from layouts import LAYOUTS, Layout, contiguous
from normact.channel_calls import is_channels_last


class Arrays(NamedTuple):
    """The inputs of a problem as arrays of a device; y and mask as the backward reads them, if it does."""

    x: Any
    weight: Any
    bias: Any
    addend: Any
    dy: Any
    running_mean: Any
    running_var: Any
    batches: Any
    mean: Any
    rstd: Any
    y: Any
    mask: Any


def arrays(
    device: Device, problem: Problem, layout: str | Layout = contiguous, other: str | Layout = contiguous
) -> Arrays:
    """x and y in one layout (a name in LAYOUTS or a function), addend and dy in the other."""
    given = inputs(problem)

    def lay(values: np.ndarray | None, name: str | Layout) -> Any:
        build = LAYOUTS[name] if isinstance(name, str) else name
        return None if values is None else build(device, values, problem.dtype)

    def plain(values: np.ndarray | None, dtype: str) -> Any:
        return None if values is None else device.array(values, dtype)

    x, y, mask = lay(given.x, layout), None, None
    if problem.slope_from == "y":
        y = lay(slope_sources(problem).y, layout)
    if problem.slope_from == "mask":
        last = is_channels_last(x, problem.channel_axis)
        mask = device.integers(packed(slope_sources(problem).positive, problem.channel_axis, last), "uint8")
    return Arrays(
        x=x,
        weight=plain(given.weight, problem.parameters),
        bias=plain(given.bias, problem.parameters),
        addend=lay(given.addend, other),
        dy=lay(given.dy, other),
        running_mean=plain(given.running_mean, problem.statistics),
        running_var=plain(given.running_var, problem.statistics),
        batches=None if problem.batches is None else device.integers(np.array(problem.batches), "int64"),
        mean=plain(given.mean, problem.statistics),
        rstd=plain(given.rstd, problem.statistics),
        y=y,
        mask=mask,
    )


def _options(problem: Problem) -> dict[str, Any]:
    return problem.activation_options | {"channel_axis": problem.channel_axis}


def forward(problem: Problem, given: Arrays, **options: Any) -> Any:
    """The forward as the problem says; `options` are return_stats, return_mask, out, stream."""
    options |= _options(problem) | {"eps": problem.eps}
    if problem.op == "group_norm":
        return normact.group_norm(given.x, problem.num_groups, given.weight, given.bias, **options)
    running = (given.running_mean, given.running_var)
    options["momentum"] = problem.momentum
    if problem.op == "instance_norm":
        options["use_input_stats"] = problem.training
        return normact.instance_norm(given.x, given.weight, given.bias, *running, **options)
    options |= {"training": problem.training, "addend": given.addend, "num_batches_tracked": given.batches}
    return normact.batch_norm(given.x, given.weight, given.bias, *running, **options)


def backward(problem: Problem, given: Arrays, **options: Any) -> Any:
    """The backward of the problem's forward, from the statistics in `given`; `options` are out, stream ..."""
    options = _options(problem) | {"mean": given.mean, "rstd": given.rstd} | options
    parameters = (given.weight, given.bias)
    if problem.op == "group_norm":
        return normact.group_norm_backward(given.dy, given.x, problem.num_groups, *parameters, **options)
    if problem.op == "instance_norm":
        options["use_input_stats"] = problem.training
        return normact.instance_norm_backward(given.dy, given.x, *parameters, **options)
    options = {"training": problem.training, "addend": given.addend, "y": given.y, "mask": given.mask} | options
    return normact.batch_norm_backward(given.dy, given.x, *parameters, **options)


def check_forward(
    device: Device, problem: Problem, layout: str | Layout = contiguous, other: str | Layout = contiguous
) -> None:
    given = arrays(device, problem, layout, other)
    result = forward(problem, given, return_stats=True)
    where = f"{problem} {problem.activation} on {device.name}, x {layout}, others {other}"
    compare(device, result, expected_forward(problem), where)
    if problem.running and problem.training:
        check_running(device, problem, given, where)


def check_running(device: Device, problem: Problem, given: Arrays, where: str) -> None:
    """What a forward in training has made of the running statistics."""
    for name, want in expected_running(problem).items():
        assert_within(device.values(getattr(given, name)), want, f"{name}; {where}")
    if problem.batches is not None:
        assert int(given.batches) == problem.batches + 1, where


def check_backward(
    device: Device, problem: Problem, layout: str | Layout = contiguous, other: str | Layout = contiguous
) -> None:
    given = arrays(device, problem, layout, other)
    result = backward(problem, given)
    where = f"{problem} {problem.activation} on {device.name}, x {layout}, others {other}"
    compare(device, result, expected_backward(problem), where)


def check(
    device: Device, problem: Problem, layout: str | Layout = contiguous, other: str | Layout = contiguous
) -> None:
    """Both directions."""
    check_forward(device, problem, layout, other)
    check_backward(device, problem, layout, other)


def run_both(device: Device, problem: Problem, layout: str | Layout, in_place: bool) -> list[Any]:
    """y, dx, dweight, dbias of tensors that lie so, y over x and dx over dy or not."""
    given = arrays(device, problem, layout, layout)
    y = forward(problem, given, **({"out": given.x} if in_place else {}))
    assert not in_place or y is given.x
    given = arrays(device, problem, layout, layout)
    result = backward(problem, given, **({"out": given.dy} if in_place else {}))
    return [y, result.dx, result.dweight, result.dbias]


def check_repeats(device: Device, problem: Problem, layout: str | Layout = contiguous) -> None:
    """Over x and over dy or not, the same bits each time."""
    found = [[device.bits(of) for of in run_both(device, problem, layout, again == 3)] for again in range(4)]
    for other in found[1:]:
        for of, again in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(of, again)
