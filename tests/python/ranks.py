# SPDX-License-Identifier: Apache-2.0
"""Tests in several processes: `run` starts them all once, `main` is what each of them does.

A worker is a script of named checks. Each process makes every check, in the same order, and writes down how it went, so
that a test for each check only reads.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType

RANKS = 2
Found = list[dict[str, str]]  # for each process the error of each check, "" for none


def run(worker: ModuleType, folder: pathlib.Path, seconds: float = 240) -> Found:
    """Starts RANKS processes of a worker and returns what they found."""
    commands = [
        [sys.executable, str(worker.__file__), str(rank), str(RANKS), folder / "store"] for rank in range(RANKS)
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
    """Joins the group that the command line names, over gloo, and makes all checks."""
    import torch
    import torch.distributed as dist

    rank, ranks, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    found = {}
    for name, check in checks.items():
        try:
            check()
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
        dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(found))
