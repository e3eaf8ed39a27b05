# SPDX-License-Identifier: Apache-2.0
"""Makes RESULTS.md and the plots from the records: `python -m bench.report`. Nothing in them is written by hand."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

if __package__ in (None, ""):  # python bench/report.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import plots, records
from bench.cases import LARGE, Case
from bench.targets import geomean, judge, times_faster

HEAD = """# Results

Made by `python -m bench.report` from the records in [results](results); [README.md](README.md) says how they are
measured.
**R** is the speed as a fraction of that of a copy which moves as many bytes on the same card in the same run: R = 1 is
as fast as copying. `-` is a rival that has no such operation or was not measured; `!` marks a rival whose result is
further from the float64 one than rounding explains. R_mix, where it is given, is held against a kernel that also reads
and writes as many tensors as the case does. On a GPU, rivals that were not part of a case's last run show what they
took in the last one that they were part of.
"""

Record = dict


def with_rivals(new: Record, old: Record) -> Record:
    """A measurement, and what rivals that were not part of it took in another."""
    contestants = dict(new["contestants"])
    for name, found in old["contestants"].items():
        if "us" in found and "us" not in contestants.get(name, {}) and not name.startswith("normact"):
            contestants[name] = found
    return {**new, "contestants": contestants}


def newest(lines: Iterable[Record]) -> list[Record]:
    """Of every case the last measurement, without those of forced kernels; in the order of first appearance.

    Rivals that it lacks on a GPU are taken from the last one that has them: not all can be measured in one process.
    """
    last: dict[tuple, Record] = {}
    for line in lines:
        if line["record"] == "copy" or line["run"].get("variant", "auto") != "auto":
            continue
        key = (line["record"], line["case"], line.get("threads"))
        before = last.get(key, line)
        old, new = (before, line) if line["run"]["date"] >= before["run"]["date"] else (line, before)
        last[key] = with_rivals(new, old) if line["record"] == "gpu" else new
    return list(last.values())


# ---- Tables ---------------------------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table, numbers to the right of the first column."""
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows] + [""]


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def rivals_of(lines: Iterable[Record]) -> list[str]:
    """Names of the rivals in the order in which they appear, those without any number left out."""
    names = {name: None for line in lines for name, found in line["contestants"].items() if "us" in found}
    return [name for name in names if not name.startswith("normact")]


def mark(found: Record) -> str:
    return "!" if "wrong" in found else ""


def missing_notes(lines: Sequence[Record]) -> list[str]:
    """One line for each rival that was asked for and gave no number at all."""
    present, notes = set(rivals_of(lines)), {}
    for line in lines:
        for name, found in line["contestants"].items():
            if "missing" in found and name not in present:
                notes[name] = found["missing"]
    return [f"- {name} is missing: {why}" for name, why in notes.items()] + ([""] if notes else [])


def target_table(lines: Sequence[Record], kind: str) -> list[str]:
    rows = [
        (v.target.name, f"{v.target.goal:.2f}", number(v.value, 3), v.cells, number(v.worst, 3), v.worst_case, v.mark)
        for v in judge(lines, kind)
    ]
    return ["### Targets", "", *table(("target", "goal", "reached", "cells", "worst", "where", ""), rows)]


def run_lines(lines: Sequence[Record]) -> list[str]:
    """Where the numbers come from: each run that still supplies one."""
    runs = {(line["run"]["date"], line["run"]["mode"]): line["run"] for line in lines}
    out = []
    for run in runs.values():
        tree = {True: ", with local changes", False: ""}.get(run.get("dirty"), "")
        where = f"driver {run['driver']}, CUDA {run['cuda']}" if run.get("driver") else f"{run['cpus']} CPUs"
        has = ", ".join(f"{name} {version}" for name, version in run["versions"].items() if version)
        out.append(f"- {run['mode']} on {run['date']}: commit {run['commit'][:10]}{tree}; {where}; {has}")
    return [*out, ""]


def summary_table(lines: Sequence[Record]) -> list[str]:
    """Geometric means over the large tensors, by operation, direction, type and band of columns."""
    large = [line for line in lines if Case.parse(line["case"]).tensor_bytes >= LARGE]
    names = rivals_of(large)
    groups: dict[tuple, list[Record]] = {}
    for line in large:
        case = Case.parse(line["case"])
        groups.setdefault((case.op, case.direction, case.dtype, case.band), []).append(line)
    rows = []
    for key, members in sorted(groups.items()):
        found = [[line["contestants"].get(name, {}).get("R") for line in members] for name in names]
        means = [number(geomean(r for r in values if r)) if any(values) else "-" for values in found]
        mine = [line["R"] for line in members]
        rows.append((*key, len(members), number(geomean(mine), 3), number(min(mine), 3), *means))
    header = ("operation", "direction", "type", "columns", "cells", "R", "worst", *names)
    return ["### Geometric means of R, tensors of 64 MiB and more", "", *table(header, rows)] if rows else []


def gpu_table(lines: Sequence[Record]) -> list[str]:
    names, mixed = rivals_of(lines), any("R_mix" in line for line in lines)
    rows = []
    for line in lines:
        case, mine = Case.parse(line["case"]), line["contestants"]["normact"]
        found = [line["contestants"].get(name, {}) for name in names]
        theirs = [number(values.get("R")) + mark(values) for values in found]
        figures = (number(mine["us"]), f"{mine['spread']:.1%}", number(line["gbps"], 0), number(line["R"], 3))
        figures += (number(line.get("R_mix"), 3),) if mixed else ()
        rows.append((case.op, case.direction, case.dtype, case.shape_text, *figures, *theirs))
    header = ("operation", "direction", "type", "shape", "us", "spread", "GB/s", "R", *(("R_mix",) if mixed else ()))
    header += tuple(f"R {name}" for name in names)
    return folded("Every case", table(header, rows)) if rows else []


def cpu_table(lines: Sequence[Record]) -> list[str]:
    names = rivals_of(lines)
    rows = []
    for line in lines:
        case, found = Case.parse(line["case"]), line["contestants"]
        fresh = found["normact-fresh"]
        ratios = [number(times_faster(line, name)) + mark(found.get(name, {})) for name in names]
        figures = (number(found["normact"]["us"], 1), number(fresh["us"], 1), f"{fresh['spread']:.0%}")
        named = (case.op, case.direction, case.dtype, case.shape_text, line["threads"])
        rows.append((*named, *figures, number(line["gbps"], 1), *ratios))
    header = ("operation", "direction", "type", "shape", "threads", "us, out=", "us, fresh", "spread", "GB/s")
    return folded("Every case", table((*header, *(f"{name} / ours" for name in names)), rows)) if rows else []


def host_table(lines: Sequence[Record]) -> list[str]:
    out = ["### Host time of an eager call, microseconds", ""]
    verdicts = [v for v in judge(lines, "host") if v.cells]
    out += [f"- {v.target.name}: {number(v.value)}, goal {v.target.goal:.1f}: {v.mark}" for v in verdicts]
    out += [""] if verdicts else []
    for line in lines:
        found = line["contestants"].items()
        rows = [(name, number(values["us"]) if "us" in values else values["missing"]) for name, values in found]
        out += table((line["case"], "us"), rows)
    return out if lines else []


def step_table(lines: Sequence[Record]) -> list[str]:
    """Whole training steps; what is missing says why."""
    rows = []
    for line in lines:
        theirs, ours = (line["contestants"][name] for name in ("torch", "normact"))
        cells = [number(found["us"] / 1e3, 3) if "us" in found else found["missing"] for found in (theirs, ours)]
        both = "us" in theirs and "us" in ours
        rows.append((line["case"], *cells, number(theirs["us"] / ours["us"]) if both else "-"))
    header = ("training step", "torch, ms", "normact, ms", "torch / normact")
    return ["### Training steps", "", *table(header, rows)] if rows else []


def folded(title: str, lines: Sequence[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", "", *lines, "</details>", ""]


# ---- The page -------------------------------------------------------------------------------------------------------


def device_section(folder: Path, plot_root: Path | None) -> list[str]:
    """All that one folder of records tells."""
    lines = newest(records.read(sorted(folder.glob("*.jsonl"))))
    if not lines:
        return []
    of = {kind: [line for line in lines if line["record"] == kind] for kind in ("gpu", "cpu", "host", "step")}
    out = [f"## {lines[0]['run']['device']}", "", *run_lines(lines)]
    images = plots.draw(of["gpu"], of["cpu"], plot_root / folder.name) if plot_root else []
    pictures = [f"![{image.stem}](plots/{folder.name}/{image.name})" for image in images]
    if of["gpu"]:
        out += [*target_table(of["gpu"], "gpu"), *summary_table(of["gpu"]), *missing_notes(of["gpu"])]
    if of["cpu"]:
        out += [*target_table(of["cpu"], "cpu"), *missing_notes(of["cpu"])]
    out += [*pictures, ""] if pictures else []
    return [*out, *gpu_table(of["gpu"]), *cpu_table(of["cpu"]), *host_table(of["host"]), *step_table(of["step"])]


def write_report(results: Path, page: Path, *, plot: bool = True) -> None:
    """Writes `page`, and the plots into the folder plots beside it."""
    out = HEAD.splitlines() + [""]
    for folder in sorted(path for path in results.iterdir() if path.is_dir()):
        out += device_section(folder, page.parent / "plots" if plot else None)
    page.write_text("\n".join(out).rstrip() + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.report", description=__doc__)
    parser.add_argument("--results", type=Path, default=records.RESULTS, help="folder of the records")
    parser.add_argument("--page", type=Path, default=records.ROOT / "RESULTS.md", help="the page to write")
    parser.add_argument("--no-plots", action="store_true", help="the page alone, without matplotlib")
    options = parser.parse_args(arguments)
    write_report(options.results, options.page, plot=not options.no_plots)
    print(f"wrote {options.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
