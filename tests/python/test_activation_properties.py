# SPDX-License-Identifier: Apache-2.0
"""Whatever shape, axis, strides, dtypes and options a user comes with: the result is the reference's.

HYPOTHESIS_PROFILE=search looks 20 times longer than CI does.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import normact
from activation_cases import GATE_LAYOUTS, KINDS, GatedProblem, Kind, Problem
from activation_checks import check, gated_check
from cases import DTYPES
from devices import Device
from strategies import layouts, shapes

kinds = st.builds(
    Kind,
    st.sampled_from(KINDS),
    alpha=st.sampled_from([0.0, 0.25, 1.0, 1.5, -0.5]),
    beta=st.sampled_from([0.5, 1.0, 4.0]),
    threshold=st.sampled_from([20.0, 8.03, float("inf")]),
)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    shape = draw(shapes())
    dtype, bias_dtype = draw(st.sampled_from(DTYPES))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return Problem(draw(kinds), shape, dtype, draw(st.sampled_from([None, bias_dtype])), axis)


@st.composite
def gated_problems(draw: st.DrawFn) -> GatedProblem:
    shape = draw(shapes())
    dtype, bias_dtype = draw(st.sampled_from(DTYPES))
    layout = draw(st.sampled_from(GATE_LAYOUTS))
    one = st.sampled_from([(True, False), (False, True)])
    biases = draw(st.sampled_from([(False, False), (True, True)]) | (one if layout == "separate" else st.nothing()))
    return GatedProblem(
        draw(kinds),
        shape,
        dtype,
        layout,
        biases,
        bias_dtype,
        draw(st.integers(-len(shape), len(shape) - 1)),
        draw(st.sampled_from([None, 2.0, 7.0])),
        draw(st.sampled_from([0.0, 1.0, -0.25])),
    )


@given(data=st.data())
def test_any_problem(device: Device, data: st.DataObject) -> None:
    problem = data.draw(problems())
    drawn = layouts(len(problem.shape), device.negative_strides)
    check(device, problem, data.draw(drawn), data.draw(drawn))


@given(data=st.data())
def test_any_gated_problem(device: Device, data: st.DataObject) -> None:
    problem = data.draw(gated_problems())
    drawn = layouts(len(problem.shape), device.negative_strides)
    gated_check(device, problem, data.draw(drawn), data.draw(drawn))


@given(data=st.data())
def test_permuting_elements_permutes_the_result(device: Device, data: st.DataObject) -> None:
    """Elements are independent: any selection of y is y of that selection, bit for bit."""
    count = data.draw(st.integers(1, 600))
    kind, (dtype, _) = data.draw(kinds), data.draw(st.sampled_from(DTYPES))
    values = np.random.default_rng(count).standard_normal(count) * 5
    chosen = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=40))

    def bits(of: np.ndarray) -> np.ndarray:
        return device.bits(normact.activation(device.array(of, dtype), kind.name, **kind.numbers))

    np.testing.assert_array_equal(bits(values[chosen]), bits(values)[chosen])


@given(data=st.data())
def test_negating_up_negates_the_result(device: Device, data: st.DataObject) -> None:
    """A gated activation without offset is odd in up, to the last bit."""
    count, kind = data.draw(st.integers(1, 300)), data.draw(kinds)
    rng = np.random.default_rng(count)
    gate, up = (device.array(rng.standard_normal(count) * 4, "float32") for _ in range(2))
    y = normact.gated(gate, up, kind.name, limit=3.0, **kind.numbers)
    mirrored = normact.gated(gate, -up, kind.name, limit=3.0, **kind.numbers)
    np.testing.assert_array_equal(device.values(mirrored), -device.values(y))
