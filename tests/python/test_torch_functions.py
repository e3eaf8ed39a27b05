# SPDX-License-Identifier: Apache-2.0
"""The functions of normact.torch against PyTorch's own and against finite differences."""

from __future__ import annotations

import pytest
import torch

from torch_cases import CASES, Case, gradients, outputs

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_case
def test_agrees_with_torch(case: Case) -> None:
    """In float64, where both are off by rounding alone."""
    tensors = case.tensors()
    for found, want in zip(outputs(case.ours(*tensors)), outputs(case.theirs(*tensors)), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-11, atol=1e-12)
    for found, want in zip(gradients(case.ours, tensors), gradients(case.theirs, tensors), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-11)


@every_case
def test_gradcheck(case: Case) -> None:
    assert torch.autograd.gradcheck(case.ours, case.tensors(), fast_mode=True)


@every_case
def test_without_gradient_is_the_same(case: Case) -> None:
    """Bit for bit: the direct call, and the one that keeps what the backward reads."""
    tensors = case.tensors(torch.float32)
    with torch.no_grad():
        plain = outputs(case.ours(*tensors))
    for found, want in zip(plain, outputs(case.ours(*tensors)), strict=True):
        assert not found.requires_grad
        assert want.requires_grad
        assert torch.equal(found, want)
