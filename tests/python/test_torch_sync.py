# SPDX-License-Identifier: Apache-2.0
"""Batch norm over several processes is batch norm of the whole batch in one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import normact.torch as nt
import ranks
import sync_worker


@pytest.fixture(scope="module", params=ranks.DEVICES)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ranks.Found:
    return ranks.run(sync_worker, tmp_path_factory.mktemp("ranks"), request.param)


@pytest.mark.parametrize("check", sync_worker.CHECKS)
def test_sync_batch_norm(check: str, found: ranks.Found) -> None:
    """Two processes, on CPUs over gloo and on GPUs over NCCL: uneven batches, and one without any element."""
    assert not ranks.errors(found, check)


def test_convert() -> None:
    """Every batch norm, PyTorch's and ours, in place and with what is fused to it."""
    model: Any = nn.Sequential(nn.BatchNorm1d(4), nn.ModuleList([nt.BatchNormReLU2d(4)]), nn.LayerNorm(4))
    state = model.state_dict()
    model.train(False)
    assert nt.SyncBatchNorm.convert_sync_batchnorm(model) is model
    assert [type(m).__name__ for m in model.modules()][1:] == [
        "SyncBatchNorm", "ModuleList", "SyncBatchNorm", "LayerNorm",
    ]  # fmt: skip
    assert (model[0].activation, model[1][0].activation) == (None, "relu")
    assert not model[0].training
    assert list(model.state_dict()) == list(state)
    assert model[1][0](torch.randn(2, 4, 3, 3)).min() >= 0
    plain = nt.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm2d(4))
    assert isinstance(plain, nt.SyncBatchNorm)
    assert plain(torch.randn(2, 4, 3, 3)).shape == (2, 4, 3, 3)  # one process: plain batch norm
