# SPDX-License-Identifier: Apache-2.0
"""`python -m bench.steps`: both of its runs at tiny sizes, and what the report makes of their records."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

from bench import records, report, steps

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_gpt(tmp_path: pathlib.Path) -> None:
    tiny = ["--tiny", "--seconds", "0.05", "--output", str(tmp_path)]
    assert steps.main(["gpt", "--modes", "eager,graphed", *tiny]) == 0
    lines = records.read(tmp_path.glob("*/*.jsonl"))
    assert {line["case"] for line in lines} >= {"gpt/fp32/eager", "gpt/bf16/eager"}
    assert all(found["us"] > 0 for line in lines for found in line["contestants"].values())
    report.write_report(tmp_path, tmp_path / "page.md", plot=False)
    assert "| gpt/bf16/eager |" in (tmp_path / "page.md").read_text()


def test_sync(tmp_path: pathlib.Path) -> None:
    """Two processes; on CPUs PyTorch's own is missing."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bench.steps"]
    command = [*launch, "sync", "--tiny", "--seconds", "0.05", "--output", str(tmp_path)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, *command], cwd=ROOT, env=env, check=True, timeout=240)
    lines = records.read(tmp_path.glob("*/*.jsonl"))
    assert [line["case"] for line in lines] == ["sync_batch_norm/layer/2", "sync_batch_norm/block/2"]
    assert all("us" in line["contestants"]["normact"] for line in lines)
    assert all("missing" in line["contestants"]["torch"] for line in lines)
    report.write_report(tmp_path, tmp_path / "page.md", plot=False)
