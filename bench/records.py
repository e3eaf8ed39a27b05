# SPDX-License-Identifier: Apache-2.0
"""Records of measurements: JSON lines. A line of kind "run" tells where the lines after it were measured.

  run   date, commit, dirty, device, driver, versions, options ...
  copy  points of the copy curve: [bytes moved, microseconds, which copy]; traffic: of [2, 1] reads and writes, ...
  gpu   case, bytes, R, R_mix, GB/s, and for each contestant median, spread, samples (microseconds), R, or why it is
        missing
  cpu   the same with `threads` in place of R
  host  host time of eager calls, microseconds
  step  a whole training step of PyTorch's modules and of normact's, microseconds
Numbers are only ever measured; what is computed from them later lives in report.py and targets.py.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from bench.timing import Sample

ROOT = Path(__file__).resolve().parent
RESULTS = ROOT / "results"

WIDEST_ISA = "avx512"  # what a CPU's records were measured with, unless its name says otherwise


def entry(sample: Sample, **more: object) -> dict:
    """A contestant's part of a record."""
    return {
        "us": round(sample.median, 3),
        "spread": round(sample.spread, 4),
        **more,
        "samples": [round(us, 3) for us in sample.us],
    }


class Recorder:
    """Appends lines to one file, each at once, so that an interrupted run keeps what it has measured."""

    def __init__(self, results: Path, run: Mapping[str, object]) -> None:
        day = str(run["date"])[:10]
        self.path = results / slug(str(run["device"])) / f"{day}-{str(run['commit'])[:10]}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.write("run", run)

    def write(self, kind: str, fields: Mapping[str, object]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"record": kind, **fields}) + "\n")


def read(paths: Iterable[Path]) -> list[dict]:
    """All measured lines, each with its run under "run", in the order of the files and lines."""
    lines = []
    for path in paths:
        run: dict | None = None
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            line = json.loads(text)
            if line["record"] == "run":
                run = line
            elif run is None:
                raise ValueError(f"{path}:{number}: a measurement before any line of kind 'run'")
            else:
                lines.append({**line, "run": run})
    return lines


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


# ---- Where a run happens --------------------------------------------------------------------------------------------


def environment(device: str, commit: str | None = None) -> dict:
    """The facts of a run; `commit` is for copies of the tree that are not git checkouts."""
    import torch

    import normact
    from bench.baselines import versions

    facts: dict[str, object] = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit or _git("rev-parse", "HEAD") or "unknown",
        "dirty": None if commit or not _git("rev-parse", "HEAD") else bool(_git("status", "--porcelain", "-uno")),
        "cpu": cpu_name(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": versions(),
        "normact": {key: str(value) for key, value in normact.build_info().items() if key != "extension"},  # a path
    }
    if device == "cpu":
        isa = normact.build_info()["cpu_isa"]
        return {"device": f"{facts['cpu']}{'' if isa == WIDEST_ISA else f' with {isa.upper()}'}", **facts}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        **facts,
        "cuda": torch.version.cuda,
        "l2_bytes": properties.L2_cache_size,
        "multiprocessors": properties.multi_processor_count,
        **_nvidia_smi(),
    }


def cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _nvidia_smi() -> dict[str, str | None]:
    names = {"driver": "driver_version", "sm_clock_mhz": "clocks.sm", "memory_clock_mhz": "clocks.mem"}
    names["celsius"] = "temperature.gpu"
    command = ["nvidia-smi", f"--query-gpu={','.join(names.values())}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return dict.fromkeys(names)
    return dict(zip(names, (field.strip() for field in done.stdout.split(",")), strict=True))
