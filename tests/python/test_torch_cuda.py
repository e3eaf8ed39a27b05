# SPDX-License-Identifier: Apache-2.0
"""normact.torch on a GPU: values, CUDA graphs of whole training steps, other devices, compiled models."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import normact.torch as nt
from devices import Device, capturing
from torch_cases import CASES, Case, gradients, outputs

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_torch(device: Device, case: Case) -> None:
    tensors = case.tensors(device="cuda")
    for found, want in zip(outputs(case.ours(*tensors)), outputs(case.theirs(*tensors)), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-11, atol=1e-12)
    for found, want in zip(gradients(case.ours, tensors), gradients(case.theirs, tensors), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("module", [nt.AddLayerNorm, nt.AddRMSNorm], ids=lambda module: module.__name__)
@pytest.mark.parametrize("cols", [768, 4096, 8192])
def test_float32_stream_under_autocast(device: Device, module: type[nt.LayerNorm], cols: int, compiled: bool) -> None:
    """The sum is float32, the norm bfloat16 for the next matmul; beside PyTorch's steps in float32."""
    norm = module(cols, device="cuda")
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(64, cols, device="cuda").bfloat16().requires_grad_()
    stream = torch.randn(64, cols, device="cuda").requires_grad_()
    run = torch.compile(norm, fullgraph=True, backend="aot_eager") if compiled else norm
    with torch.autocast("cuda", torch.bfloat16):
        y, total = run(x, stream)
    assert (y.dtype, total.dtype) == (torch.bfloat16, torch.float32)
    plain = x.float() + stream
    base: Any = torch.nn.LayerNorm if module is nt.AddLayerNorm else torch.nn.RMSNorm
    want = base.forward(norm, plain).bfloat16()
    assert torch.equal(total, plain)
    torch.testing.assert_close(y, want, rtol=2**-7, atol=1e-5)
    seeds = [torch.randn_like(y), torch.randn_like(total)]
    inputs = [x, stream, *norm.parameters()]
    grads = torch.autograd.grad([y, total], inputs, seeds)
    for grad, other in zip(grads, torch.autograd.grad([want, plain], inputs, seeds), strict=True):
        assert grad.dtype == other.dtype
        bound = 2**-7 if grad.dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(grad, other, rtol=bound, atol=1e-4)
    assert torch.equal(grads[0], grads[1].bfloat16())


def _model() -> torch.nn.Module:
    torch.manual_seed(4)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        nt.BatchNormReLU2d(8),
        nt.GroupNormSiLU(2, 8),
        torch.nn.Flatten(2),
        nt.LayerNorm(36),
        torch.nn.Linear(36, 64),
        nt.SwiGLU(),
        nt.RMSNorm(32),
        nt.BiasGELU(32),
    ).cuda()


def test_cuda_graph_of_a_training_step(device: Device) -> None:
    """Forward, backward and optimizer captured once and replayed: the losses of the same steps done eagerly."""
    captured, eager = _model(), _model()
    batches = [torch.randn(4, 3, 8, 8, device="cuda") for _ in range(6)]
    x = batches[0].clone()

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (captured, eager)]
    state = copy.deepcopy(captured.state_dict())
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(captured, optimizers[0], x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizers[0].zero_grad(set_to_none=True)
    with capturing(graph):
        loss = step(captured, optimizers[0], x)
    with torch.no_grad():
        for mine, first in zip(captured.state_dict().values(), state.values()):
            mine.copy_(first)
    for batch in batches:
        x.copy_(batch)
        graph.replay()
        torch.testing.assert_close(loss, step(eager, optimizers[1], batch), rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(captured.state_dict().values(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_compiled_with_cuda_graphs(device: Device) -> None:
    model = _model().eval()
    x = torch.randn(4, 3, 8, 8, device="cuda")
    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_tensors_of_a_device_that_is_not_current(device: Device) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = torch.randn(4, 8, device="cuda:1", requires_grad=True)
    with torch.cuda.device(0):
        y = nt.layer_norm(x, 8)
        y.square().sum().backward()
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (8,)))
    assert x.grad is not None
    assert x.grad.device == x.device


def test_cuda_autocast_keeps_dtypes(device: Device) -> None:
    """PyTorch's layer norm would give float32 here."""
    x = torch.randn(4, 8, device="cuda", dtype=torch.float16, requires_grad=True)
    with torch.autocast("cuda", torch.float16):
        assert nt.layer_norm(x, 8).dtype == torch.float16
        assert nt.softplus(x).dtype == torch.float16


def test_devices_are_not_mixed(device: Device) -> None:
    with pytest.raises(ValueError, match=r"^layer_norm: weight .*expected"):
        nt.layer_norm(torch.randn(4, 8, device="cuda"), 8, torch.ones(8, requires_grad=True))
