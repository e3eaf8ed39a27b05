# SPDX-License-Identifier: Apache-2.0
"""The functions of normact.torch against PyTorch's own and against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import normact.torch as nt
from normact import _core
from normact.torch import channel_ops, pointwise_ops, row_ops
from normact.torch.functions import Calls
from torch_cases import CASES, FEW, Case, gradients, outputs

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


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("case", FEW, ids=lambda case: case.name)
def test_frozen_tensors_cost_nothing(case: Case, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward is called without the gradient of a frozen parameter or addend; the others have the same bits."""
    counts: list[int] = []

    def counting(function: Callable[..., Any], results: bool) -> Callable[..., Any]:
        def count(*args: Any) -> Any:
            found = function(*args)
            arrays = found if results else (*args, *(found or ()))
            counts.append(sum(isinstance(array, torch.Tensor) for array in arrays))
            return found

        return count

    if compiled:  # what the library is asked for
        for name in ("norm", "activation", "gated", "group_norm", "batch_norm"):
            monkeypatch.setattr(_core, f"{name}_backward", counting(getattr(_core, f"{name}_backward"), False))
    else:  # what PyTorch is given
        for calls in every_call():
            backward = calls.eager.__self__._backward_cls
            monkeypatch.setattr(backward, "apply", counting(backward.apply, True))
    torch._dynamo.reset()
    function = torch.compile(case.ours, backend="aot_eager") if compiled else case.ours
    tensors = case.tensors()
    want = gradients(function, tensors)
    frozen = [i for i, tensor in enumerate(tensors) if tensor.ndim == 1 or (i and case.name.startswith("batch_norm"))]
    for i in frozen:
        tensors[i].requires_grad_(False)
        rest = [j for j in range(len(tensors)) if j != i]
        found = gradients(lambda *some, rest=rest: function(*_with(tensors, rest, some)), [tensors[j] for j in rest])
        tensors[i].requires_grad_()
        for grad, j in zip(found, rest, strict=True):
            assert torch.equal(grad, want[j])
    assert counts == [counts[0]] + [counts[0] - 1] * len(frozen)


def every_call() -> list[Calls]:
    modules = (row_ops, pointwise_ops, channel_ops)
    return [value for module in modules for value in vars(module).values() if isinstance(value, Calls)]


def _with(tensors: list[torch.Tensor], places: list[int], some: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    made = list(tensors)
    for place, tensor in zip(places, some, strict=True):
        made[place] = tensor
    return made


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("running", [False, True])
def test_one_value_has_no_statistics(shape: tuple[int, ...], running: bool) -> None:
    kept = (torch.zeros(shape[1]), torch.ones(shape[1])) if running else (None, None)
    with pytest.raises(ValueError, match=r"^Expected more than 1 spatial element"):
        torch.nn.functional.instance_norm(torch.randn(shape), *kept)
    with pytest.raises(ValueError, match=r"^instance_norm: input has shape .*, one value a channel of a sample"):
        nt.instance_norm(torch.randn(shape), *kept)
    nt.instance_norm(torch.randn(shape), torch.zeros(shape[1]), torch.ones(shape[1]), use_input_stats=False)
