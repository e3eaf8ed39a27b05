# SPDX-License-Identifier: Apache-2.0
"""Tests in several processes: `run` starts them all once, `main` is what each of them does.

A worker is a script of named checks. Each process makes every check, in the same order, and writes down how it went, so
that a test for each check only reads.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType

import pytest

RANKS = 2
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}  # of each device
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.cuda))  # for fixtures
Found = list[dict[str, str]]  # for each process the error of each check, "" for none


def run(worker: ModuleType, folder: pathlib.Path, device: str = "cpu", seconds: float = 240) -> Found:
    """Starts RANKS processes of a worker, each on its own GPU if on any, and returns what they found."""
    if device == "cuda":
        import torch

        if torch.cuda.device_count() < RANKS:
            pytest.skip("needs two GPUs")
    commands = [
        [sys.executable, str(worker.__file__), str(rank), str(RANKS), folder / "store", device] for rank in range(RANKS)
    ]
    workers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    found: Found = []
    try:
        for rank, each in enumerate(workers):
            out, chatter = each.communicate(timeout=seconds)
            assert each.returncode == 0, f"rank {rank}:\n{chatter}"
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        for each in workers:
            each.kill()
    return found


def errors(found: Found, check: str) -> str:
    """What went wrong in a check."""
    return "\n".join(f"rank {rank}:\n{each[check]}" for rank, each in enumerate(found) if each[check])


def main(checks: Mapping[str, Callable[[], None]]) -> None:
    """Joins the group that the command line names and makes all checks, with its device as PyTorch's default."""
    import torch
    import torch.distributed as dist

    rank, ranks, file, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    torch.set_default_device(device)
    dist.init_process_group(BACKENDS[device], init_method=f"file://{file}", rank=rank, world_size=ranks)
    found = {}
    for name, check in checks.items():
        try:
            check()
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
        dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(found), flush=True)
    # Gloo's threads may still be letting go of Python objects, which aborts a process whose Python ends meanwhile.
    os._exit(0)
