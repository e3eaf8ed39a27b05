# SPDX-License-Identifier: Apache-2.0
"""Training over several processes is training in one: DDP and FSDP2, on CPUs over gloo and on GPUs over NCCL."""

from __future__ import annotations

import pytest

import parallel_worker
import ranks


@pytest.fixture(scope="module", params=ranks.DEVICES)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ranks.Found:
    return ranks.run(parallel_worker, tmp_path_factory.mktemp("ranks"), request.param)


@pytest.mark.parametrize("check", parallel_worker.CHECKS)
def test_training(check: str, found: ranks.Found) -> None:
    assert not ranks.errors(found, check)
