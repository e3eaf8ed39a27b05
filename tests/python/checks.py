# SPDX-License-Identifier: Apache-2.0
"""Run an operation on a device and hold every output against its expected values and bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import normact
import tolerance
from cases import Expected, Problem, expected_backward, expected_forward, inputs
from devices import Device
from layouts import LAYOUTS, Layout, contiguous


@dataclass(frozen=True)
class Arrays:
    """The inputs of a problem as arrays of a device."""

    x: Any
    residual: Any
    s: Any
    weight: Any
    bias: Any
    dy: Any
    dresidual: Any
    mean: Any
    rstd: Any


def arrays(
    device: Device, problem: Problem, layout: str | Layout = contiguous, other: str | Layout = contiguous
) -> Arrays:
    """x and s in one layout (a name in LAYOUTS or a function), all else that has x's shape in the other."""
    given = inputs(problem)

    def lay(values: np.ndarray | None, name: str | Layout, dtype: str = problem.dtype) -> Any:
        build = LAYOUTS[name] if isinstance(name, str) else name
        return None if values is None else build(device, values, dtype)

    def plain(values: np.ndarray | None, dtype: str) -> Any:
        return None if values is None else device.array(values, dtype)

    return Arrays(
        x=lay(given.x, layout),
        residual=lay(given.residual, other, problem.sums),
        s=lay(given.s, layout, problem.sums if problem.residual else problem.dtype),
        weight=plain(given.weight, problem.parameters),
        bias=plain(given.bias, problem.parameters),
        dy=lay(given.dy, other),
        dresidual=lay(given.dresidual, other, problem.sums),
        mean=plain(given.mean, problem.statistics) if problem.kind == "layer_norm" else None,
        rstd=plain(given.rstd, problem.statistics),
    )


def forward(problem: Problem, given: Arrays, **options: Any) -> Any:
    """The forward as the problem says; `options` are return_stats, out, stream."""
    return getattr(normact, problem.kind)(
        given.x,
        given.weight,
        given.bias,
        axis=problem.axis,
        eps=problem.eps,
        residual=given.residual,
        weight_offset=problem.weight_offset,
        **problem.activation_options,
        **options,
    )


def backward(problem: Problem, given: Arrays, **options: Any) -> Any:
    """The backward of the problem's forward, from the reference's statistics; `options` are out, stream."""
    statistics = {"rstd": given.rstd} if given.mean is None else {"mean": given.mean, "rstd": given.rstd}
    return getattr(normact, f"{problem.kind}_backward")(
        given.dy,
        given.s,
        given.weight,
        given.bias,
        **statistics,
        axis=problem.axis,
        dresidual=given.dresidual,
        weight_offset=problem.weight_offset,
        **problem.activation_options,
        **options,
    )


def check_forward(
    device: Device, problem: Problem, layout: str | Layout = contiguous, other: str | Layout = contiguous
) -> None:
    given = arrays(device, problem, layout, other)
    result = forward(problem, given, return_stats=True)
    where = f"{problem} {problem.activation_options} on {device.name}, x {layout}, others {other}"
    compare(device, result, expected_forward(problem), where)


def check_backward(
    device: Device, problem: Problem, layout: str | Layout = contiguous, other: str | Layout = contiguous
) -> None:
    given = arrays(device, problem, layout, other)
    result = backward(problem, given)
    where = f"{problem} {problem.activation_options} on {device.name}, x {layout}, others {other}"
    compare(device, result, expected_backward(problem), where)


def check(
    device: Device, problem: Problem, layout: str | Layout = contiguous, other: str | Layout = contiguous
) -> None:
    """Both directions."""
    check_forward(device, problem, layout, other)
    check_backward(device, problem, layout, other)


def compare(device: Device, result: Any, expected: dict[str, Expected], where: str) -> None:
    """Every field of a named tuple: right where something is expected, None elsewhere."""
    for name in result._fields:
        found = getattr(result, name)
        if name not in expected:
            assert found is None, f"{name} is there, expected None; {where}"
            continue
        assert found is not None, f"{name} is missing; {where}"
        want = expected[name]
        assert device.dtype_name(found) == want.dtype, (
            f"{name}: dtype {device.dtype_name(found)}, expected {want.dtype}"
        )
        assert tuple(found.shape) == want.values.shape, f"{name}: shape {found.shape}, expected {want.values.shape}"
        assert_within(device.values(found), want, f"{name}; {where}")


def assert_within(found: np.ndarray, want: Expected, where: str) -> None:
    error = np.abs(found - want.values)
    largest = tolerance.LARGEST[want.dtype]
    overflowed = np.isinf(found) & (found * want.values > 0) & (np.abs(want.values) + want.bound >= largest)
    bad = ~((error <= want.bound) | overflowed)  # NaN is bad
    if not bad.any():
        return
    excess = np.where(np.isnan(error), np.inf, error / np.maximum(want.bound, 1e-300))
    index = np.unravel_index(np.argmax(excess), bad.shape)
    at = tuple(int(i) for i in index)
    raise AssertionError(
        f"{int(bad.sum())} of {bad.size} elements out of bounds, worst at {at}: found {found[index]!r}, "
        f"expected {want.values[index]!r} within {want.bound[index]:.3g}, off by {error[index]:.3g}; {where}"
    )


def accepts(call: Callable[[], Any]) -> bool:
    """Runs it; False if the forced kernel cannot serve the problem, which is the only error that is allowed."""
    try:
        call()
    except NotImplementedError:
        return False
    return True


def assert_repeats(found: Any, block: Any, count: int) -> None:
    """That `found`, a 16-bit PyTorch tensor, is the block `count` times along its first axis, bit for bit."""
    import torch

    view, want = found.view(count, *block.shape), block.view(torch.int16)
    for index in range(count):
        assert torch.equal(view[index].view(torch.int16), want), f"repetition {index} of {count} differs from the first"
