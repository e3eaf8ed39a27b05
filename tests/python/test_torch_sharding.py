# SPDX-License-Identifier: Apache-2.0
"""The operations on DTensors: divided where each process can compute its part alone, and then without any exchange."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ranks
import sharding_worker


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> ranks.Found:
    return ranks.run(sharding_worker, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("check", sharding_worker.CHECKS)
def test_sharding(check: str, found: ranks.Found) -> None:
    assert not ranks.errors(found, check)


def test_nothing_slow_is_imported() -> None:
    """DTensor and the compiler take a second each."""
    program = "import sys, torch, normact.torch as nt; nt.gelu(torch.ones(2)); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"torch.distributed.tensor", "torch._dynamo"}.isdisjoint(result.stdout.split())
