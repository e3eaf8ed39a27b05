# SPDX-License-Identifier: Apache-2.0
"""One process of the tests of data-parallel training: `python parallel_worker.py RANK RANKS FILE`.

Every process trains its half of each batch, and a copy of the model alone on the whole of it; the weights must be the
same after all steps.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import normact.torch as nt
import ranks

STEPS = 4
BATCH = 8
# Both trainings compute the same sums in another order. In float64 a step changes the weights by a relative rounding
# of some 1e-15 with the sums' lengths; four steps of such a shallow net magnify it by less than ten thousand.
BOUND: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-12}


class Net(nn.Module):
    """Ten numbers for each image [images, 3, 8, 8], through one of each fused module."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nt.BatchNormReLU2d(8))
        self.body = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nt.GroupNormSiLU(4, 16))
        self.norm, self.attend, self.add_norm = nt.LayerNorm(16), nn.Linear(16, 16), nt.AddRMSNorm(16)
        self.up, self.gate, self.down = nn.Linear(16, 48), nt.SwiGLU(), nn.Linear(24, 16)
        self.dense, self.gelu, self.head = nn.Linear(16, 32, bias=False), nt.BiasGELU(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.body(self.stem(x)).flatten(2).transpose(1, 2)
        y, total = self.add_norm(self.attend(self.norm(tokens)), tokens)
        return self.head(self.gelu(self.dense((self.down(self.gate(self.up(y))) + total).mean(1))))


def nets() -> tuple[Any, Any]:
    """The same net twice: for one process, and with batch norms that see all of them."""
    torch.manual_seed(3)
    alone = Net().double()
    return alone, nt.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(alone))


def train(net: nn.Module, part: slice) -> list[float]:
    """Steps of SGD on a part of each batch; the losses."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator(torch.get_default_device()).manual_seed(4)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(BATCH, 3, 8, 8, dtype=torch.float64, generator=generator)
        labels = torch.randint(10, (BATCH,), generator=generator)
        loss = nn.functional.cross_entropy(net(x[part]), labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compare(alone: nn.Module, together: nn.Module, wrapped: nn.Module) -> None:
    """Trains both, and compares losses, weights and running statistics."""
    before = copy.deepcopy(alone.state_dict())
    share = BATCH // dist.get_world_size()
    mine = train(wrapped, slice(dist.get_rank() * share, (dist.get_rank() + 1) * share))
    want = train(alone, slice(None))
    losses = torch.tensor(mine, dtype=torch.float64)
    dist.all_reduce(losses)  # each process has the mean over its own images
    torch.testing.assert_close(losses / dist.get_world_size(), torch.tensor(want, dtype=torch.float64), **BOUND)
    for (name, ours), theirs in zip(together.state_dict().items(), alone.state_dict().values(), strict=True):
        whole = ours.full_tensor() if isinstance(ours, DTensor) else ours
        torch.testing.assert_close(whole, theirs, **BOUND, msg=lambda text, name=name: f"{name}: {text}")
        assert not torch.equal(theirs, before[name]), f"{name} did not learn"


def ddp() -> None:
    alone, together = nets()
    compare(alone, together, DistributedDataParallel(together))


def fsdp() -> None:
    """Blocks of their own and the rest, so that weights are gathered and freed in the middle of a step."""
    mesh = init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
    alone, together = nets()
    for block in (together.stem, together.body, together.add_norm, together.gelu):
        fully_shard(block, mesh=mesh)
    fully_shard(together, mesh=mesh)
    assert all(isinstance(parameter, DTensor) for parameter in together.parameters())
    compare(alone, together, together)


CHECKS = {"ddp": ddp, "fsdp": fsdp}

if __name__ == "__main__":
    ranks.main(CHECKS)
