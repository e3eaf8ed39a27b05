# SPDX-License-Identifier: Apache-2.0
"""One process of the tests of synchronous batch norm: `python sync_worker.py RANK RANKS FILE`.

Each process normalises its part of a batch; rank 0 normalises the whole of it alone and compares.
"""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist

import normact.torch as nt
import ranks

SIZES = ([3, 5], [8, 0])  # images of each process: uneven, and none


def whole(channels: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator(torch.get_default_device()).manual_seed(8)
    shape = (8, channels, 4, 3)
    x, addend, dy = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    return x + 3, addend, dy


def step(norm: torch.nn.Module, x: torch.Tensor, addend: torch.Tensor | None, dy: torch.Tensor) -> list[torch.Tensor]:
    """The result and all gradients; those of parameters are this process's."""
    given = [tensor.clone().requires_grad_() for tensor in (x, addend) if tensor is not None]
    y = norm(*given)
    found = torch.autograd.grad(y, [*given, *norm.parameters()], dy)
    return [y.detach(), *found]


def compare(sizes: list[int], activation: str | None, with_addend: bool, memory_format: torch.memory_format) -> None:
    rank, channels = dist.get_rank(), 4
    x, addend, dy = (tensor.contiguous(memory_format=memory_format) for tensor in whole(channels))
    torch.manual_seed(1)
    alone = nt.BatchNorm2d(channels, momentum=None).double()
    for parameter in alone.parameters():
        torch.nn.init.normal_(parameter)
    alone.activation = activation
    together = nt.SyncBatchNorm(channels, momentum=None).double()
    together.load_state_dict(alone.state_dict())
    together.activation = activation
    begin = sum(sizes[:rank])
    part = slice(begin, begin + sizes[rank])
    found = step(together, x[part], addend[part] if with_addend else None, dy[part])
    want_forward = _Addend(alone) if with_addend else alone
    want = step(want_forward, x, addend if with_addend else None, dy)
    elementwise = 3 if with_addend else 2
    for ours, theirs in zip(found[:elementwise], want[:elementwise], strict=True):
        torch.testing.assert_close(ours, theirs[part], rtol=1e-10, atol=1e-11)
    for ours, theirs in zip(found[elementwise:], want[elementwise:], strict=True):
        dist.all_reduce(ours)
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    for ours, theirs in zip(together.state_dict().values(), alone.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs)
    for module in (together, alone):
        module.eval()
    torch.testing.assert_close(together(x), alone(x))


class _Addend(torch.nn.Module):
    def __init__(self, norm: nt.BatchNorm2d) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor, addend: torch.Tensor) -> torch.Tensor:
        return self.norm.normalise(x, addend)


def batch_norm() -> None:
    for sizes, activation in itertools.product(SIZES, (None, "relu", "silu")):
        compare(sizes, activation, False, torch.contiguous_format)
        compare(sizes, activation, True, torch.channels_last)


def twice() -> None:
    norm = nt.SyncBatchNorm(2)
    x = torch.randn(3, 2, requires_grad=True)
    (first,) = torch.autograd.grad(norm(x).square().sum(), x, create_graph=True)
    try:
        first.sum().backward()
    except NotImplementedError as error:
        assert "sync_batch_norm was differentiated twice" in str(error)
    else:
        raise AssertionError("differentiated twice")


def negated() -> None:
    """A gradient that is negated lazily, as that of an imaginary part under a conjugate."""
    norm, seed = nt.SyncBatchNorm(2), torch.randn(3, 2)
    x = torch.randn(3, 2, requires_grad=True)
    y = norm(x)
    lazy = torch.complex(torch.zeros_like(seed), -seed).conj().imag
    found, want = (torch.autograd.grad(y, x, each, retain_graph=True)[0] for each in (lazy, seed))
    assert torch.equal(found, want)


CHECKS = {"batch_norm": batch_norm, "twice": twice, "negated": negated}

if __name__ == "__main__":
    ranks.main(CHECKS)
