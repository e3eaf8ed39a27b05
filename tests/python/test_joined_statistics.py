# SPDX-License-Identifier: Apache-2.0
"""Both statistics of a norm in one array, which only normact.torch asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import normact
import normact.torch
from normact import _core
from normact.outputs import ALL, JOINED


@pytest.mark.parametrize("shape", [(4, 33), (33,), (2, 3, 8)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_joined_statistics(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Both statistics in one tensor, as normact.torch has them made, are the two."""
    x = torch.randn(shape).to(dtype)
    y, _, mean, rstd = normact.layer_norm(x, return_stats=True)
    recorded = normact.torch.layer_norm(x.clone().requires_grad_(), shape[-1:])
    saved = recorded.grad_fn.saved_tensors  # x, weight, bias and the statistics
    assert torch.equal(recorded, y) and saved[4] is None
    assert torch.equal(saved[3], torch.stack([mean, rstd]))
    for pair in (saved[3], torch.stack([mean, rstd], dim=-1).movedim(-1, 0)):  # at any strides
        found: Any = _core.norm_backward(
            _core.LAYER, y, x, None, None, pair, JOINED, None, -1, 0.0, None, None, ALL, None
        )
        assert torch.equal(found.dx, normact.layer_norm_backward(y, x, mean=mean, rstd=rstd).dx)


def test_joined_statistics_lie_as_x() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    y = normact.torch.layer_norm(x, 5)
    assert y.grad_fn.saved_tensors[3].stride() == (24, 12, 1, 3)
    dy = torch.randn_like(y)
    (want,) = torch.autograd.grad(torch.nn.functional.layer_norm(x, (5,)), x, dy)
    torch.testing.assert_close(torch.autograd.grad(y, x, dy)[0], want)


def test_joined_statistics_of_a_wrong_shape() -> None:
    x = torch.randn(3, 8)
    with pytest.raises(ValueError, match=r"layer_norm_backward: mean .* expected .* shape \(2, \.\.\.\)"):
        last = (JOINED, None, -1, 0.0, None, None, ALL, None)
        _core.norm_backward(_core.LAYER, x, x, None, None, torch.zeros(3), *last)


def test_the_mark_is_no_output() -> None:
    x = torch.randn(3, 8)
    with pytest.raises(TypeError, match="rstd"):
        normact.layer_norm(x, return_stats=True, out=(None, None, torch.zeros(2, 3), JOINED))


@pytest.mark.parametrize("wanted", [1, np.True_, "yes"])
def test_whether_statistics_are_wanted(wanted: Any) -> None:
    """Anything that is true is, and no mark for something else; what is neither true nor false is an error."""
    x = torch.randn(3, 8)
    assert normact.layer_norm(x, return_stats=wanted).rstd.shape == (3,)
    with pytest.raises(ValueError, match="ambiguous"):
        normact.layer_norm(x, return_stats=np.array([1, 0]))  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(TypeError, match="rstd"):
        normact.layer_norm_backward(x, x, mean=torch.zeros(3), rstd=True)
