# SPDX-License-Identifier: Apache-2.0
"""Norms and activations of up to 2^24 elements on a GPU, whatever they are asked for.

What fits test_properties.py and test_channel_properties.py takes few of a GPU's plans. HYPOTHESIS_PROFILE=search looks
20 times longer.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from large_cases import channel_problems, layouts, row_problems
from large_checks import check_channels, check_rows
from large_pointwise import activation_problems, check_activation, check_gated, gated_problems

pytestmark = pytest.mark.cuda


@given(data=st.data())
def test_rows(device: Any, data: st.DataObject) -> None:
    problem = data.draw(row_problems())
    check_rows(problem, *(data.draw(layouts(len(problem.shape))) for _ in range(2)))


@given(data=st.data())
def test_channels(device: Any, data: st.DataObject) -> None:
    problem = data.draw(channel_problems())
    check_channels(problem, *(data.draw(layouts(len(problem.shape))) for _ in range(2)))


@given(data=st.data())
def test_activations(device: Any, data: st.DataObject) -> None:
    problem = data.draw(activation_problems())
    check_activation(problem, *(data.draw(layouts(len(problem.shape))) for _ in range(2)))


@given(data=st.data())
def test_gated(device: Any, data: st.DataObject) -> None:
    problem = data.draw(gated_problems())
    check_gated(problem, *(data.draw(layouts(len(problem.shape))) for _ in range(2)))
