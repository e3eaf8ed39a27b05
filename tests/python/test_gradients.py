# SPDX-License-Identifier: Apache-2.0
"""Gradients by central differences: the backward is the derivative of the forward, for every combination of options.

All in float64 through the public functions alone, so neither the reference nor a shared formula can hide a mistake.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import activation_cases
import normact
from cases import OPTIONS, Problem, expected_forward, inputs
from checks import arrays, backward, forward
from devices import Device

SHAPE = (3, 5)
STEP = 2e-3  # fourth order: the formula is off by about STEP^4, the rounding by 2^-53 / STEP

ids = ["-".join(f"{name}={value}" for name, value in zip("wbro", option, strict=True)) for option in OPTIONS]


def loss(device: Device, problem: Problem, values: dict[str, np.ndarray | None]) -> float:
    """sum(dy * y) + sum(dresidual * residual_out), whose gradient is what the backward is handed."""

    def array(name: str) -> Any:
        found = values[name]
        return None if found is None else device.array(found, "float64")

    result = getattr(normact, problem.kind)(
        array("x"),
        array("weight"),
        array("bias"),
        axis=problem.axis,
        eps=problem.eps,
        residual=array("residual"),
        weight_offset=problem.weight_offset,
        **problem.activation_options,
    )
    given = inputs(problem)
    if not problem.residual:
        return float(np.sum(device.values(result) * given.dy))
    return float(np.sum(device.values(result.y) * given.dy) + np.sum(device.values(result.residual) * given.dresidual))


def numerical_gradient(device: Device, problem: Problem, name: str) -> np.ndarray:
    """Five-point central differences of the loss with respect to one input."""
    given = inputs(problem)
    values = {key: getattr(given, key) for key in ("x", "residual", "weight", "bias")}
    base = values[name]
    gradient = np.empty_like(base)
    for index in np.ndindex(base.shape):

        def at(shift: float, index: tuple[int, ...] = index) -> float:
            moved = base.copy()
            moved[index] += shift
            return loss(device, problem, {**values, name: moved})

        near = at(STEP) - at(-STEP)
        far = at(2 * STEP) - at(-2 * STEP)
        gradient[index] = (8 * near - far) / (12 * STEP)
    return gradient


@pytest.mark.parametrize("option", OPTIONS, ids=ids)
@pytest.mark.parametrize("norm_ndim", [1, 2])
def test_backward_is_the_derivative(device: Device, kind: str, option: tuple, norm_ndim: int) -> None:
    weight, bias, residual, weight_offset = option
    shape = SHAPE if norm_ndim == 1 else (2, 2, 3)
    problem = Problem(
        kind,
        shape,
        "float64",
        norm_ndim=norm_ndim,
        weight=weight,
        bias=bias,
        residual=residual,
        weight_offset=weight_offset,
        eps=0.1,  # keeps the fifth derivatives, hence the error of the differences, small
    )
    check_gradients(device, problem)


def check_gradients(device: Device, problem: Problem, tolerance: float = 1e-9) -> None:
    """The backward after the forward, from its statistics, against the differences."""
    kind = problem.kind
    given = arrays(device, problem)
    result = forward(problem, given, return_stats=True)
    statistics = {"rstd": result.rstd} if kind == "rms_norm" else {"mean": result.mean, "rstd": result.rstd}
    grads = getattr(normact, f"{kind}_backward")(
        given.dy,
        result.residual if problem.residual else given.x,
        given.weight,
        given.bias,
        **statistics,
        axis=problem.axis,
        dresidual=given.dresidual,
        weight_offset=problem.weight_offset,
        **problem.activation_options,
    )
    pairs = [("dx", "x")]
    pairs += [("dx", "residual")] if problem.residual else []
    pairs += [("dweight", "weight")] if problem.weight else []
    pairs += [("dbias", "bias")] if problem.bias else []
    for gradient, name in pairs:
        want = numerical_gradient(device, problem, name)
        np.testing.assert_allclose(
            device.values(getattr(grads, gradient)), want, rtol=tolerance, atol=tolerance, err_msg=gradient
        )


KINKS = (-3.0, 0.0, 3.0, 6.0)  # of the activations, or of their derivatives


def clear_of_kinks(problem: Problem) -> bool:
    h = expected_forward(dataclasses.replace(problem, activation=None))["y"].values
    return min(np.abs(h - kink).min() for kink in KINKS) > 0.05


@pytest.mark.parametrize("activation", activation_cases.KINDS)
@pytest.mark.parametrize("option", OPTIONS[:3], ids=ids[:3])
def test_backward_through_an_activation(device: Device, kind: str, activation: str, option: tuple) -> None:
    weight, bias, residual, weight_offset = option
    for shift in range(100):  # other means give other inputs
        problem = Problem(
            kind,
            SHAPE,
            "float64",
            weight=weight,
            bias=bias,
            residual=residual,
            weight_offset=weight_offset,
            eps=0.1,
            mean=shift / 128,
            activation=activation_cases.Kind(activation),
        )
        if clear_of_kinks(problem):
            return check_gradients(device, problem, 1e-8)
    raise AssertionError("no problem without a kink")


def test_dresidual_is_added_after_the_norm(device: Device, kind: str) -> None:
    """dx with dresidual is dx without it plus dresidual: the sum must not pass through the norm's gradient."""
    with_it = Problem(kind, (4, 37), "float64", residual=True)
    given = arrays(device, with_it)
    grads = backward(with_it, given)
    statistics = {"rstd": given.rstd} if kind == "rms_norm" else {"mean": given.mean, "rstd": given.rstd}
    alone = getattr(normact, f"{kind}_backward")(given.dy, given.s, given.weight, given.bias, **statistics)
    np.testing.assert_allclose(
        device.values(grads.dx), device.values(alone.dx) + inputs(with_it).dresidual, rtol=1e-14, atol=1e-14
    )
