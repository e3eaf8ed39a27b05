# SPDX-License-Identifier: Apache-2.0
"""Whatever shape, axes, strides, dtypes and options a user comes with: the result is the reference's.

HYPOTHESIS_PROFILE=search looks 20 times longer than CI does.
"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import normact
from cases import DTYPES, KINDS, Problem, inputs
from checks import check
from devices import Device
from strategies import MAX_ELEMENTS, layouts


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    sizes = st.one_of(st.integers(1, 9), st.integers(0, 300), st.sampled_from([0, 1, 128, 1024]))
    shape = tuple(draw(st.lists(sizes, min_size=1, max_size=4).filter(lambda s: math.prod(s) <= MAX_ELEMENTS)))
    norm_ndim = draw(st.integers(1, len(shape)).filter(lambda n: math.prod(shape[len(shape) - n :]) > 0))
    dtype, parameter_dtype = draw(st.sampled_from(DTYPES))
    weight = draw(st.booleans())
    return Problem(
        draw(st.sampled_from(KINDS)),
        shape,
        dtype,
        parameter_dtype,
        norm_ndim=norm_ndim,
        weight=weight,
        bias=draw(st.booleans()),
        residual=draw(st.booleans()),
        weight_offset=draw(st.sampled_from([0.0, 1.0, -0.25])) if weight else 0.0,
        eps=draw(st.sampled_from([1e-12, 1e-6, 1e-5, 0.5])),
        mean=draw(st.sampled_from([0.0, 3.0, -100.0])),
        std=draw(st.sampled_from([1.0, 1e-3, 50.0])),
    )


@given(data=st.data())
def test_any_problem(device: Device, data: st.DataObject) -> None:
    problem = data.draw(problems())
    negative = device.negative_strides
    x_layout = data.draw(layouts(len(problem.shape), negative))
    other_layout = data.draw(layouts(len(problem.shape), negative))
    check(device, problem, x_layout, other_layout)


@given(data=st.data())
def test_permuting_rows_permutes_the_result(device: Device, data: st.DataObject) -> None:
    """Rows are independent: any selection of rows of y is y of that selection, bit for bit."""
    rows, cols = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 600))
    kind = data.draw(st.sampled_from(KINDS))
    dtype, _ = data.draw(st.sampled_from(DTYPES))
    values = inputs(Problem(kind, (rows, cols), dtype)).x
    chosen = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=30))
    function = getattr(normact, kind)
    whole = device.bits(function(device.array(values, dtype)))
    np.testing.assert_array_equal(device.bits(function(device.array(values[chosen], dtype))), whole[chosen])


@given(data=st.data())
def test_scaling_by_a_power_of_two(device: Device, data: st.DataObject) -> None:
    """With eps = 0 the result does not change when x is scaled, not even in its last bit."""
    rows, cols = data.draw(st.integers(1, 9)), data.draw(st.integers(2, 600))
    kind = data.draw(st.sampled_from(KINDS))
    exponent = data.draw(st.integers(-9, 9))
    values = inputs(Problem(kind, (rows, cols))).x
    function = getattr(normact, kind)
    want = device.bits(function(device.array(values, "float32"), eps=0.0))
    scaled = device.array(np.ldexp(values, 2 * exponent), "float32")
    np.testing.assert_array_equal(device.bits(function(scaled, eps=0.0)), want)
