# SPDX-License-Identifier: Apache-2.0
"""Gradients by central differences: the backward is the derivative of the forward, of every kind and gated form.

All in float64 through the public functions alone, as in test_gradients.py. An element of y depends on its own element
of x, so that one shift of all of x differentiates every element at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import normact
from activation_cases import GATE_LAYOUTS, KINDS, GatedProblem, Kind, gated_inputs
from activation_checks import gated_arrays, gated_backward, gated_options
from devices import Device

STEP = 2e-3
CORNERS = np.array([-3.0, 0.0, 3.0, 6.0])  # where a piece of some kind begins


def differences(value: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """Five-point central differences, element by element."""
    near, far = value(x + STEP) - value(x - STEP), value(x + 2 * STEP) - value(x - 2 * STEP)
    return (8 * near - far) / (12 * STEP)


def away_from_corners(x: np.ndarray) -> np.ndarray:
    """The same numbers, none nearer to a corner than the differences reach."""
    near = np.min(np.abs(x[..., None] - CORNERS), axis=-1) < 4 * STEP
    return np.where(near, x + 0.05, x)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_backward_is_the_derivative(device: Device, name: str, axis: int) -> None:
    rng = np.random.default_rng(3)
    shape = (4, 5, 6)
    bias, dy = rng.standard_normal(shape[axis]), rng.standard_normal(shape)
    along = np.expand_dims(bias, tuple(d for d in range(3) if d != axis))
    x = away_from_corners(rng.uniform(-7, 7, shape) + along) - along
    numbers = Kind(name, alpha=0.7, beta=0.8, threshold=5.0).numbers

    def value(values: np.ndarray) -> np.ndarray:
        y = normact.activation(device.array(values, "float64"), name, bias=given_bias, axis=axis, **numbers)
        return device.values(y)

    given_bias = device.array(bias, "float64")
    grads = normact.activation_backward(
        device.array(dy, "float64"), device.array(x, "float64"), name, bias=given_bias, axis=axis, **numbers
    )
    want = dy * differences(value, x)
    if name == "softplus":  # what is not log(1 + exp) beyond the threshold is off by exp(-threshold) there
        want = np.where(np.abs(0.8 * (x + along) - 5.0) < 0.01, device.values(grads.dx), want)
    np.testing.assert_allclose(device.values(grads.dx), want, rtol=1e-8, atol=1e-9)
    others = tuple(d for d in range(3) if d != axis)
    np.testing.assert_allclose(device.values(grads.dbias), want.sum(others), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("layout", GATE_LAYOUTS)
@pytest.mark.parametrize("limit", [None, 2.5])
def test_gated_backward_is_the_derivative(device: Device, name: str, layout: str, limit: float | None) -> None:
    """Of gate and up by a shift of each, in a packed tensor of its half."""
    kind = Kind(name, alpha=0.7, beta=0.8, threshold=50.0)
    problem = GatedProblem(kind, (5, 8), "float64", layout, limit=limit, up_offset=0.5)
    halves = [away_from_corners(half + 0.031) for half in (gated_inputs(problem).gate, gated_inputs(problem).up)]
    dy = gated_inputs(problem).dy

    def value(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        y = normact.gated(device.array(gate, "float64"), device.array(up, "float64"), **gated_options(problem))
        return device.values(y)

    given = gated_arrays(device, problem)
    if problem.packed:
        parts = np.concatenate(halves, 1) if layout == "split" else np.stack(halves, 2).reshape(5, 16)
        given = given._replace(gate=device.array(parts, "float64"))
        dx = device.values(gated_backward(problem, given).dx)
        dgate, dup = (dx[:, :8], dx[:, 8:]) if layout == "split" else (dx[:, ::2], dx[:, 1::2])
    else:
        given = given._replace(gate=device.array(halves[0], "float64"), up=device.array(halves[1], "float64"))
        dgate, dup = (device.values(array) for array in gated_backward(problem, given)[:2])
    gate, up = halves
    np.testing.assert_allclose(dgate, dy * differences(lambda g: value(g, up), gate), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(dup, dy * differences(lambda u: value(gate, u), up), rtol=1e-8, atol=1e-8)


def test_torch_agrees() -> None:
    """PyTorch's own functions and their autograd, which knows nothing of our reference."""
    import torch
    from torch.nn import functional

    pairs: dict[str, Callable[..., Any]] = {
        "relu": functional.relu,
        "relu6": functional.relu6,
        "leaky_relu": lambda x: functional.leaky_relu(x, 0.01),
        "elu": functional.elu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "silu": functional.silu,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "softplus": functional.softplus,
        "mish": functional.mish,
        "hardswish": functional.hardswish,
        "hardsigmoid": functional.hardsigmoid,
    }
    # Slopes at the corners too: PyTorch's are ours.
    corners = torch.tensor([-6.0, -3.0, 0.0, 3.0, 6.0, 20.0, 25.0], dtype=torch.float64)
    x = torch.cat([torch.linspace(-12, 12, 997, dtype=torch.float64), corners]).requires_grad_()
    for name, function in pairs.items():
        want = function(x)
        (slope,) = torch.autograd.grad(want.sum(), x)
        found = normact.activation(x.detach(), name)
        loose = 1e-7 if name == "hardsigmoid" else 0.0  # PyTorch multiplies with a sixth that was a float32
        torch.testing.assert_close(found, want.detach(), rtol=1e-12 + loose, atol=1e-14, msg=name)
        grads = normact.activation_backward(torch.ones_like(slope), x.detach(), name)
        torch.testing.assert_close(grads.dx, slope, rtol=1e-11 + loose, atol=1e-13, msg=name)
