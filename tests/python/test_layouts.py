# SPDX-License-Identifier: Apache-2.0
"""Tensors that lie elsewhere than each other, or nowhere evenly: slices of channels, crops, turned images, gradients in
another memory format. GPUs carry these out on copies in the workspace, where they are large enough.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import activation_checks
import checks
import normact
from activation_cases import GatedProblem, Kind
from activation_cases import Problem as Activation
from cases import Problem as Rows
from channel_cases import OPERATIONS, Problem, expected_backward, expected_forward, fused_problem
from channel_checks import arrays, backward, check, forward, run_both
from devices import Device
from layouts import (
    Layout,
    channels_last,
    contiguous,
    cropped,
    every_second_column,
    every_second_row,
    expanded,
    half_of,
    in_memory,
)

AWAY: dict[str, Layout] = {
    "channels_last": channels_last,
    "cropped": cropped,
    "half_channels": half_of(1),
    "half_columns": half_of(3),
    "every_second_column": every_second_column,
    "every_second_row": every_second_row,
    "columns_before_lines": in_memory(0, 1, 3, 2),
    "channels_in_the_middle": in_memory(0, 2, 1, 3),
    "reversed_order": in_memory(3, 2, 1, 0),
    "samples_last": in_memory(1, 2, 3, 0),
}

SHAPES = [(3, 24, 28, 28), (16, 40, 7, 7), (9, 27, 13, 11), (5, 6, 3, 200)]

every_op = pytest.mark.parametrize("op", OPERATIONS)
every_layout = pytest.mark.parametrize("layout", AWAY)


@every_op
@every_layout
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_norms_of_images(device: Device, op: str, layout: str, dtype: str) -> None:
    """x in one layout, what is beside it in another, and the other way about."""
    away = AWAY[layout]
    for shape in SHAPES:
        groups = 3 if op == "group_norm" and shape[1] % 3 == 0 else 1
        plain = Problem(op, shape, dtype, "float32", num_groups=groups, running=op != "group_norm", mean=20.0)
        fused = dataclasses.replace(fused_problem(op, shape, dtype), num_groups=groups)
        for problem in (plain, fused):
            check(device, problem, away, contiguous)
            check(device, problem, contiguous, away)
            check(device, problem, away, away)


@every_layout
def test_masks(device: Device, layout: str) -> None:
    """Of which the bits have an order, whatever the tensors have."""
    away = AWAY[layout]
    for shape in SHAPES[:3]:
        problem = fused_problem("batch_norm", shape, "bfloat16")
        for slope in ("mask", "y"):
            check(device, dataclasses.replace(problem, slope_from=slope), away, contiguous)
            check(device, dataclasses.replace(problem, slope_from=slope), contiguous, away)
        given = arrays(device, problem, away, contiguous)
        result = forward(problem, given, return_mask=True)
        rows = arrays(device, problem)
        want = forward(problem, rows, return_mask=True)
        if result.mask.ndim == want.mask.ndim:  # else that of channels last
            assert (device.values(result.mask) == device.values(want.mask)).all(), layout


@every_op
@pytest.mark.parametrize("layout", ["cropped", "half_channels", "columns_before_lines", "reversed_order"])
def test_repeats_and_in_place(device: Device, op: str, layout: str) -> None:
    """The same bits each time; over x and dy, which may have gaps, within rounding of memory of its own."""
    away = AWAY[layout]
    problem = Problem(op, (3, 24, 28, 28), "bfloat16", "float32", num_groups=3 if op == "group_norm" else 1)
    found = [run_both(device, problem, away, in_place) for in_place in (False, False, True, True)]
    for first, again in ((0, 1), (2, 3)):
        for of, other in zip(found[first], found[again], strict=True):
            np.testing.assert_array_equal(device.bits(of), device.bits(other))
    for of, other in zip(found[0], found[2], strict=True):
        np.testing.assert_allclose(device.values(of), device.values(other), rtol=0.02, atol=0.02)


@every_op
def test_outputs_with_gaps(device: Device, op: str) -> None:
    """What lies between the elements of y and dx is left as it is."""
    problem = dataclasses.replace(fused_problem(op, (4, 24, 20, 30), "float32"), addend=False)
    for build in (cropped, every_second_column, half_of(1)):
        given = arrays(device, problem)
        whole = np.full(problem.shape, 7.0)
        y, dx = build(device, whole, "float32"), build(device, whole, "float32")
        forward(problem, given, out=y)
        plain = forward(problem, given)
        np.testing.assert_allclose(device.values(y), device.values(plain), rtol=1e-5, atol=1e-5)
        want = backward(problem, given)
        backward(problem, given, out=(dx, None, None))
        np.testing.assert_allclose(device.values(dx), device.values(want.dx), rtol=1e-4, atol=1e-4)


@every_op
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 1, 20, 20)], ids=["one-number", "one-plane"])
def test_an_expanded_gradient(device: Device, op: str, dtype: str, shape: tuple[int, ...]) -> None:
    """That of a sum, one number seen as a tensor, of which dx is no more than rounding; and one plane for all."""
    problem = Problem(op, (8, 24, 20, 20), dtype, "float32", num_groups=3 if op == "group_norm" else 1)
    given = arrays(device, problem)
    values = np.random.default_rng(7).normal(size=shape) if shape[-1] > 1 else np.full(shape, 0.5)
    whole = device.array(np.broadcast_to(values, problem.shape).copy(), dtype)
    found = backward(problem, given._replace(dy=device.broadcast(device.array(values, dtype), problem.shape)))
    want = backward(problem, given._replace(dy=whole))
    tolerance = {"float32": 1e-4, "bfloat16": 0.02}[dtype]
    # What cancels in dx is as large as dy; in dweight, which is a sum of all xhat, it is as many roundings of dy.
    cancelling = {"dx": 0.5 * tolerance, "dweight": 0.5 * problem.per_channel * 2**-23, "dbias": 0}
    for name, least in cancelling.items():
        a, b = device.values(getattr(found, name)), device.values(getattr(want, name))
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=max(tolerance * np.abs(b).max(), least), err_msg=name)


@every_layout
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations(device: Device, layout: str, dtype: str) -> None:
    away = AWAY[layout]
    for shape in ((8, 40, 28, 28), (64, 40, 7, 7)):
        for axis, bias in ((1, None), (1, "float32"), (3, dtype), (0, dtype)):
            problem = Activation(Kind("gelu"), shape, dtype, bias=bias, axis=axis)
            activation_checks.check(device, problem, away, contiguous)
            activation_checks.check(device, problem, contiguous, away)
            activation_checks.check(device, problem, away, away)


@every_layout
def test_gated_activations(device: Device, layout: str) -> None:
    away = AWAY[layout]
    for shape in ((8, 40, 28, 28), (64, 40, 7, 7)):
        problem = GatedProblem(Kind("silu"), shape, "bfloat16")
        activation_checks.gated_check(device, problem, away, contiguous)
        activation_checks.gated_check(device, problem, contiguous, away)


def test_an_activation_from_its_output_or_a_mask(device: Device) -> None:
    problem = Activation(Kind("relu"), (8, 40, 28, 28), "bfloat16")
    for build in (cropped, half_of(1), in_memory(0, 1, 3, 2)):
        given = activation_checks.arrays(device, problem, build, build)
        y, mask = activation_checks.forward(problem, given, return_mask=True)
        want = activation_checks.backward(problem, activation_checks.arrays(device, problem))
        for options in ({"y": build(device, device.values(y), "bfloat16")}, {"mask": mask}):
            found = activation_checks.backward(problem, given, **options)
            assert (device.values(found.dx) == device.values(want.dx)).all()


def test_a_gate_over_itself(device: Device) -> None:
    """y is up, which a copy of the gate must not overwrite."""
    problem = GatedProblem(Kind("silu"), (8, 40, 28, 28), "bfloat16")
    given = activation_checks.gated_arrays(device, problem, cropped, contiguous)
    want = activation_checks.gated_forward(problem, given)
    y = normact.gated(given.gate, given.up, kind="silu", out=given.up)
    assert (device.bits(y) == device.bits(want)).all()


def test_an_expanded_activation_gradient(device: Device) -> None:
    problem = Activation(Kind("gelu"), (64, 40, 16, 16), "bfloat16", bias="bfloat16", axis=1, equal_rows=True)
    activation_checks.check(device, problem, contiguous, expanded)


@every_layout
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_norms_over_channels(device: Device, layout: str, dtype: str) -> None:
    """Row norms over axis 1, and over two axes."""
    away = AWAY[layout]
    for shape in ((8, 40, 28, 28), (64, 40, 7, 7)):
        for axes in ((1,), (1, 3)):
            for op, kind in (("layer_norm", None), ("rms_norm", "silu")):
                problem = Rows(op, shape, dtype, "float32", axes=axes, activation=None if kind is None else Kind(kind))
                checks.check(device, problem, away, contiguous)
                checks.check(device, problem, contiguous, away)


@every_layout
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_norms_over_channels_of_large_images(device: Device, kind: str, layout: str, dtype: str) -> None:
    """Which a GPU reads twice, and has a workspace for, once they have been copied."""
    problem = Rows(kind, (2, 1024, 17, 17), dtype, "float32", axes=(1,))
    checks.check(device, problem, AWAY[layout], contiguous)
    checks.check(device, problem, contiguous, AWAY[layout])


@every_layout
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_parts_of_a_batch_norm(device: Device, layout: str, dtype: str) -> None:
    """Of which two have no workspace."""
    problem = Problem("batch_norm", (8, 24, 28, 28), dtype, "float32", addend=True, activation=Kind("silu"), mean=2.0)
    for x_layout, other in ((AWAY[layout], contiguous), (contiguous, AWAY[layout])):
        given = arrays(device, problem, x_layout, other)
        moments = normact.batch_norm_statistics(given.x)
        merged = normact.batch_norm_merge(device.array(device.values(moments)[None], "float32"), eps=problem.eps)
        options = {"addend": given.addend, "activation": "silu"}
        parameters = {"mean": merged.mean, "rstd": merged.rstd}
        y = normact.batch_norm_apply(given.x, given.weight, given.bias, **parameters, **options)
        checks.assert_within(device.values(y), expected_forward(problem)["y"], layout)
        inputs_of, want = (given.dy, given.x, given.weight, given.bias), expected_backward(problem)
        options |= {"mean": given.mean, "rstd": given.rstd}
        sums = normact.batch_norm_reduce(*inputs_of, **options)
        count = device.array(np.array([problem.per_channel]), "float32")
        found = normact.batch_norm_input_gradient(*inputs_of, sums=sums, count=count, **options)
        checks.assert_within(device.values(found.dx), want["dx"], layout)
        checks.assert_within(device.values(found.daddend), want["daddend"], layout)
        for row, name in zip(device.values(sums), ("dweight", "dbias"), strict=True):
            checks.assert_within(row, want[name], name)
