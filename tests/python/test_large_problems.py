# SPDX-License-Identifier: Apache-2.0
"""Norms and activations of any size, whatever they are asked for: on a GPU of up to 2^24 elements.

What fits test_properties.py and test_channel_properties.py takes few of a GPU's plans. HYPOTHESIS_PROFILE=search looks
20 times longer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import normact
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
MARGINS = (0, 0, 0, 1, 16, 20, 66, 100, 131, 200)
MOST = {"cpu": 15, "cuda": 24}  # elements, as a power of two
everywhere = pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])


@contextlib.contextmanager
def machine(data: st.DataObject, where: str) -> Iterator[None]:
    """New tensors are there; some of the multiprocessors may have to be left free."""
    margin = data.draw(st.sampled_from(MARGINS)) if where == "cuda" else 0
    normact.set_sm_margin(margin)
    try:
        with torch.device(where):
            yield
    finally:
        normact.set_sm_margin(0)


def check_one(what: str, data: st.DataObject, most: int) -> None:
    problems, check = SEARCHES[what]
    problem = data.draw(problems(most))
    drawn = layouts(len(problem.shape))
    check(problem, data.draw(drawn), data.draw(drawn))


@everywhere
@pytest.mark.parametrize("what", SEARCHES)
@given(data=st.data())
def test_any_problem(what: str, where: str, data: st.DataObject) -> None:
    with machine(data, where):
        check_one(what, data, MOST[where])


@everywhere
@given(data=st.data())
def test_problems_side_by_side(where: str, data: st.DataObject) -> None:
    """Two or three problems, each right alone; then all their calls again, in threads and in a graph."""
    with machine(data, where):
        with recorded() as calls:
            for what in data.draw(st.lists(st.sampled_from(tuple(SEARCHES)), min_size=2, max_size=3)):
                check_one(what, data, MOST[where] - 2)
        seed = data.draw(st.integers(0, 1 << 20))
        assert_same_bits_side_by_side(calls, seed)
        if where == "cuda":
            assert_same_bits_in_a_graph(calls, seed)
