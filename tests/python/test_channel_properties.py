# SPDX-License-Identifier: Apache-2.0
"""Whatever shape, channel axis, strides, dtypes and options a user comes with: the result is the reference's.

HYPOTHESIS_PROFILE=search looks 20 times longer than CI does.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import normact
from activation_cases import KINDS, Kind
from cases import DTYPES
from channel_cases import OPERATIONS, Problem, expected_forward, expected_running, inputs
from channel_checks import arrays, check
from checks import assert_within
from devices import Device
from strategies import MAX_ELEMENTS, layouts


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """With elements, and more than one of a channel where statistics are learned."""
    op = draw(st.sampled_from(OPERATIONS))
    sizes = st.one_of(st.integers(1, 9), st.integers(1, 300), st.sampled_from([1, 128, 1024]))
    shape = tuple(draw(st.lists(sizes, min_size=2, max_size=5).filter(lambda s: math.prod(s) <= MAX_ELEMENTS)))
    axis = draw(st.integers(0 if op == "batch_norm" else 1, len(shape) - 1))
    channels = shape[axis]
    groups = draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0]))
    training = op == "group_norm" or draw(st.booleans())
    members = math.prod(shape) // channels // (1 if op == "batch_norm" else shape[0])
    if members == 1 and op == "batch_norm":
        training = False
    dtype, parameter_dtype = draw(st.sampled_from(DTYPES))
    activation = draw(st.one_of(st.none(), st.sampled_from(KINDS)))
    return Problem(
        op,
        shape,
        dtype,
        parameter_dtype,
        channel_axis=axis - draw(st.sampled_from([0, len(shape)])),
        num_groups=groups,
        training=training,
        weight=draw(st.booleans()),
        bias=draw(st.booleans()),
        addend=op == "batch_norm" and draw(st.booleans()),
        running=op != "group_norm" and members > 1 and draw(st.booleans()),
        momentum=draw(st.sampled_from([0.1, 0.5, 1.0])),
        eps=draw(st.sampled_from([1e-12, 1e-6, 1e-5, 0.5])),
        mean=draw(st.sampled_from([0.0, 3.0, -100.0])),
        std=draw(st.sampled_from([1.0, 1e-3, 50.0])),
        activation=None if activation is None else Kind(activation),
    )


@given(data=st.data())
def test_any_problem(device: Device, data: st.DataObject) -> None:
    problem = data.draw(problems())
    negative = device.negative_strides
    x_layout = data.draw(layouts(len(problem.shape), negative))
    other_layout = data.draw(layouts(len(problem.shape), negative))
    check(device, problem, x_layout, other_layout)


@given(data=st.data())
def test_any_division_of_a_batch(device: Device, data: st.DataObject) -> None:
    """Moments of any parts merge to the statistics of the whole."""
    samples, channels, places = (data.draw(st.integers(1, n)) for n in (40, 9, 30))
    mean = data.draw(st.sampled_from([0.0, 3.0, -1e3]))
    problem = Problem("batch_norm", (samples, channels, places), mean=mean, running=True)
    if samples * places == 1:
        problem = Problem("batch_norm", (2, channels, places), mean=mean, running=True)
    cuts = sorted(data.draw(st.lists(st.integers(0, problem.samples), max_size=5)))
    given_arrays = arrays(device, problem)
    ends = [0, *cuts, problem.samples]
    parts = [given_arrays.x[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]
    moments = np.stack([device.values(normact.batch_norm_statistics(part)) for part in parts])
    assert moments[:, 2].sum(0).tolist() == [problem.per_channel] * channels
    merged = normact.batch_norm_merge(
        device.array(moments, "float32"), given_arrays.running_mean, given_arrays.running_var
    )
    want = expected_forward(problem) | expected_running(problem)
    for name in ("mean", "rstd", "running_mean", "running_var"):
        assert_within(device.values(getattr(merged, name)), want[name], f"{name}; {problem} cut at {cuts}")


@pytest.mark.cpu
@given(data=st.data())
def test_permuting_samples_permutes_the_result(device: Device, data: st.DataObject) -> None:
    """Samples of a group norm are independent: any selection of them gives that selection of y, bit for bit.

    On a GPU how a sample is divided depends on how many there are, and on where in 16 bytes it begins.
    """
    samples, groups, per_group, places = (data.draw(st.integers(1, n)) for n in (9, 4, 6, 40))
    dtype, _ = data.draw(st.sampled_from(DTYPES))
    values = inputs(Problem("group_norm", (samples, groups * per_group, places), dtype, num_groups=groups)).x
    chosen = data.draw(st.lists(st.integers(0, samples - 1), min_size=1, max_size=12))
    whole = device.bits(normact.group_norm(device.array(values, dtype), groups))
    found = device.bits(normact.group_norm(device.array(values[chosen], dtype), groups))
    np.testing.assert_array_equal(found, whole[chosen])


@given(data=st.data())
def test_scaling_by_a_power_of_two(device: Device, data: st.DataObject) -> None:
    """With eps = 0 the result does not change when x is scaled, not even in its last bit."""
    samples, channels, places = (
        data.draw(st.integers(2, 9)),
        data.draw(st.integers(1, 9)),
        data.draw(st.integers(2, 60)),
    )
    exponent = data.draw(st.integers(-9, 9))
    values = inputs(Problem("batch_norm", (samples, channels, places))).x
    scaled = np.ldexp(values, 2 * exponent)
    for call in (
        lambda x: normact.batch_norm(x, training=True, eps=0.0),
        lambda x: normact.group_norm(x, 1, eps=0.0),
        lambda x: normact.instance_norm(x, eps=0.0),
    ):
        want = device.bits(call(device.array(values, "float32")))
        np.testing.assert_array_equal(device.bits(call(device.array(scaled, "float32"))), want)
