# SPDX-License-Identifier: Apache-2.0
"""Gradients of batch, group and instance norm by central differences, and against PyTorch's functions and autograd.

The differences are made in float64 through the public functions alone, so neither the reference nor a shared formula
can hide a mistake.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import normact
from activation_cases import KINDS, Kind
from channel_cases import OPERATIONS, Problem, inputs
from channel_checks import arrays, backward, forward
from devices import Device

STEP = 2e-3  # fourth order: the formula is off by about STEP^4, the rounding by 2^-53 / STEP
OPTIONS = [
    (op, *flags)
    for op in OPERATIONS
    for flags in itertools.product((True, False), repeat=4)
    if (op == "batch_norm" or not flags[2]) and (op != "group_norm" or flags[3])
]
IDS = [
    "-".join(f"{name}={value}" for name, value in zip(("", "w", "b", "a", "t"), each, strict=True)) for each in OPTIONS
]


def gradients(device: Device, problem: Problem) -> None:
    """The backward after the forward, from its statistics, against the differences of sum(dy * y)."""
    given, dy = arrays(device, problem), inputs(problem).dy

    def loss(**moved: np.ndarray) -> float:
        names = {name: device.array(values, "float64") for name, values in moved.items()}
        return float(np.sum(device.values(forward(problem, given._replace(**names))) * dy))

    result = forward(problem, given, return_stats=True)
    grads = backward(problem, given._replace(mean=result.mean, rstd=result.rstd))
    names = [("dx", "x")] + [(f"d{name}", name) for name in ("weight", "bias", "addend") if getattr(problem, name)]
    for gradient, name in names:
        base = getattr(inputs(problem), name)
        want = np.empty_like(base)
        for index in np.ndindex(base.shape):

            def at(shift: float, index: tuple[int, ...] = index, base: np.ndarray = base, name: str = name) -> float:
                moved = base.copy()
                moved[index] += shift
                return loss(**{name: moved})

            want[index] = (8 * (at(STEP) - at(-STEP)) - (at(2 * STEP) - at(-2 * STEP))) / (12 * STEP)
        found = device.values(getattr(grads, gradient))
        np.testing.assert_allclose(found, want, rtol=1e-8, atol=1e-8, err_msg=f"{gradient} of {problem}")


def problem_of(op: str, **options: Any) -> Problem:
    return Problem(op, (2, 4, 3), "float64", num_groups=2, eps=0.1, **options)


@pytest.mark.parametrize("option", OPTIONS, ids=IDS)
def test_backward_is_the_derivative(device: Device, option: tuple) -> None:
    op, weight, bias, addend, training = option
    gradients(device, problem_of(op, weight=weight, bias=bias, addend=addend, training=training))


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("activation", ["silu", "gelu", "tanh", "mish", "softplus"])
def test_backward_through_an_activation_is_the_derivative(device: Device, op: str, activation: str) -> None:
    """Smooth ones: a difference over a corner is no derivative."""
    kind = Kind(activation)
    for training in (True, False) if op != "group_norm" else (True,):
        gradients(device, problem_of(op, addend=op == "batch_norm", training=training, activation=kind))


# ---- PyTorch ----

SHAPES = ((4, 6, 5, 3), (3, 6, 7), (2, 6, 3, 2, 2))


def functions(torch: Any) -> dict[str, Callable[[Any], Any]]:
    functional = torch.nn.functional
    return {
        "identity": lambda h: h,
        "relu": functional.relu,
        "leaky_relu": lambda h: functional.leaky_relu(h, 0.25),
        "silu": functional.silu,
        "gelu": functional.gelu,
    }


def compare_with_torch(problem: Problem, activation: str, call: Callable[[Any, Any], Any], nhwc: bool) -> None:
    """Value, gradients and running statistics; call(tensors, torch) is the norm as PyTorch has it."""
    import torch

    from devices import TorchDevice

    device = TorchDevice("cpu")
    given = arrays(device, problem)
    if nhwc and given.x.dim() in (4, 5):
        form = torch.channels_last if given.x.dim() == 4 else torch.channels_last_3d
        given = given._replace(**{k: getattr(given, k).to(memory_format=form) for k in ("x", "dy")})
    names = [name for name in ("x", "weight", "bias", "addend") if getattr(given, name) is not None]
    theirs = given._replace(**{name: getattr(given, name).clone().requires_grad_() for name in names})
    theirs = theirs._replace(
        running_mean=None if given.running_mean is None else given.running_mean.clone(),
        running_var=None if given.running_var is None else given.running_var.clone(),
    )
    h = call(theirs, torch)
    want = functions(torch)[activation](h if theirs.addend is None else h + theirs.addend)
    slopes = torch.autograd.grad(want, [getattr(theirs, name) for name in names], given.dy)
    found = forward(problem, given, return_stats=True)
    torch.testing.assert_close(found.y, want.detach(), rtol=1e-11, atol=1e-12)
    assert found.y.stride() == given.x.stride()
    grads = backward(problem, given._replace(mean=found.mean, rstd=found.rstd))
    for name, slope in zip(names, slopes, strict=True):
        torch.testing.assert_close(getattr(grads, f"d{name}"), slope, rtol=1e-9, atol=1e-11, msg=f"d{name}")
    for name in ("running_mean", "running_var"):
        if getattr(given, name) is not None:
            torch.testing.assert_close(getattr(given, name), getattr(theirs, name), rtol=1e-12, atol=1e-13)


def kind_of(activation: str) -> Kind | None:
    return None if activation == "identity" else Kind(activation)


@pytest.mark.parametrize("activation", ["identity", "relu", "leaky_relu", "silu", "gelu"])
@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torch_agrees_on_batch_norm(shape: tuple[int, ...], training: bool, nhwc: bool, activation: str) -> None:
    kind = kind_of(activation)
    for addend, momentum in ((False, 0.1), (True, 0.4)):
        problem = Problem(
            "batch_norm",
            shape,
            "float64",
            running=True,
            training=training,
            addend=addend,
            momentum=momentum,
            activation=kind,
        )

        def call(t: Any, torch: Any, problem: Problem = problem) -> Any:
            return torch.nn.functional.batch_norm(
                t.x, t.running_mean, t.running_var, t.weight, t.bias, problem.training, problem.momentum, problem.eps
            )

        compare_with_torch(problem, activation, call, nhwc)


@pytest.mark.parametrize("activation", ["identity", "relu", "leaky_relu", "silu", "gelu"])
@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torch_agrees_on_group_norm(shape: tuple[int, ...], groups: int, nhwc: bool, activation: str) -> None:
    problem = Problem("group_norm", shape, "float64", num_groups=groups, activation=kind_of(activation))

    def call(t: Any, torch: Any) -> Any:
        return torch.nn.functional.group_norm(t.x, groups, t.weight, t.bias, problem.eps)

    compare_with_torch(problem, activation, call, nhwc)


@pytest.mark.parametrize("activation", ["identity", "leaky_relu"])
@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torch_agrees_on_instance_norm(shape: tuple[int, ...], training: bool, nhwc: bool, activation: str) -> None:
    problem = Problem(
        "instance_norm", shape, "float64", running=True, training=training, activation=kind_of(activation)
    )

    def call(t: Any, torch: Any) -> Any:
        return torch.nn.functional.instance_norm(
            t.x, t.running_mean, t.running_var, t.weight, t.bias, problem.training, problem.momentum, problem.eps
        )

    compare_with_torch(problem, activation, call, nhwc)


def test_torch_agrees_on_modules() -> None:
    """The state of a BatchNorm2d after some steps, with momentum None too."""
    import torch

    for momentum in (0.1, None):
        module = torch.nn.BatchNorm2d(5, momentum=momentum)
        state = dict(module.named_buffers())
        running_mean, running_var, count = (state[name].clone() for name in state)
        for step in range(4):
            x = torch.randn(3, 5, 4, 4, generator=torch.Generator().manual_seed(step))
            want = module(x).detach()
            found = normact.batch_norm(
                x,
                module.weight.detach(),
                module.bias.detach(),
                running_mean,
                running_var,
                num_batches_tracked=count,
                training=True,
                momentum=momentum,
            )
            torch.testing.assert_close(found, want)
        torch.testing.assert_close(running_mean, state["running_mean"])
        torch.testing.assert_close(running_var, state["running_var"])
        assert torch.equal(count, state["num_batches_tracked"])


def test_synchronous_batch_norm_has_torch_s_gradients() -> None:
    """Two processes played by two halves of a batch, against autograd of the whole."""
    import torch

    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(7, 4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    weight, bias = (torch.randn(4, generator=generator, dtype=torch.float64) for _ in range(2))
    whole = [t.clone().requires_grad_() for t in (x, weight, bias)]
    want = torch.relu(torch.nn.functional.batch_norm(whole[0], None, None, whole[1], whole[2], True))
    slopes = torch.autograd.grad(want, whole, dy)

    halves = [(x[:2], dy[:2]), (x[2:], dy[2:])]
    moments = torch.stack([normact.batch_norm_statistics(part) for part, _ in halves])
    mean, rstd, *_ = normact.batch_norm_merge(moments)
    options: dict[str, Any] = {"mean": mean, "rstd": rstd, "activation": "relu"}
    y = torch.cat([normact.batch_norm_apply(part, weight, bias, **options) for part, _ in halves])
    parts = [normact.batch_norm_reduce(slope, part, weight, bias, **options) for part, slope in halves]
    sums = parts[0] + parts[1]
    count = moments[:, 2].sum(0)
    dx = torch.cat(
        [
            normact.batch_norm_input_gradient(slope, part, weight, bias, sums=sums, count=count, **options).dx
            for part, slope in halves
        ]
    )
    torch.testing.assert_close(y, want.detach(), rtol=1e-11, atol=1e-12)
    for found, slope in zip((dx, *sums), slopes, strict=True):
        torch.testing.assert_close(found, slope, rtol=1e-10, atol=1e-12)


def test_every_kind_is_known() -> None:
    assert set(functions(pytest.importorskip("torch"))) <= set(KINDS)
