# SPDX-License-Identifier: Apache-2.0
"""Norms and activations of any size, whatever they are asked for: on a GPU of up to 2^24 elements.

What fits test_properties.py and test_channel_properties.py takes few of a GPU's plans. HYPOTHESIS_PROFILE=search looks
20 times longer.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from large_cases import channel_problems, layouts, part_problems, row_problems
from large_checks import check_channels, check_parts, check_rows
from large_pointwise import activation_problems, check_activation, check_gated, gated_problems
from large_replays import assert_same_bits_in_a_graph, assert_same_bits_side_by_side, recorded

SEARCHES = {
    "rows": (row_problems, check_rows),
    "channels": (channel_problems, check_channels),
    "parts": (part_problems, check_parts),
    "activations": (activation_problems, check_activation),
    "gated": (gated_problems, check_gated),
}
MOST = {"cpu": 15, "cuda": 24}  # elements, as a power of two
everywhere = pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])


@everywhere
@pytest.mark.parametrize("what", SEARCHES)
@given(data=st.data())
def test_any_problem(what: str, where: str, data: st.DataObject) -> None:
    problems, check = SEARCHES[what]
    problem = data.draw(problems(MOST[where]))
    drawn = layouts(len(problem.shape))
    with torch.device(where):
        check(problem, data.draw(drawn), data.draw(drawn))


def check_side_by_side(data: st.DataObject, most: int) -> None:
    """Two or three problems, each right alone; then all their calls again, in threads and in a graph."""
    with recorded() as calls:
        for what in data.draw(st.lists(st.sampled_from(tuple(SEARCHES)), min_size=2, max_size=3)):
            problems, check = SEARCHES[what]
            problem = data.draw(problems(most))
            drawn = layouts(len(problem.shape))
            check(problem, data.draw(drawn), data.draw(drawn))
    seed = data.draw(st.integers(0, 1 << 20))
    assert_same_bits_side_by_side(calls, seed)
    if torch.get_default_device().type == "cuda":
        assert_same_bits_in_a_graph(calls, seed)


@everywhere
@given(data=st.data())
def test_problems_side_by_side(where: str, data: st.DataObject) -> None:
    with torch.device(where):
        check_side_by_side(data, MOST[where] - 2)
