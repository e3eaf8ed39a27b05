# SPDX-License-Identifier: Apache-2.0
"""Plots of the records: R on a GPU, times faster than the rivals on a CPU.

Of norms against columns and against size; of activations a line for each operation, the mean of its cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bench.cases import DIRECTIONS, LARGE, OPS, Case
from bench.targets import IN_MEMORY, geomean, times_faster

Record = dict
Points = dict[str, list[tuple[float, float, bool]]]  # of one panel, by contestant: x, y, odd number of columns

COLORS = {"normact": "#d1495b", "torch": "#6c757d", "compile": "#2a6f97", "jax": "#8d5a97", "onednn": "#588157"}
COLORS |= {"liger": "#e09f3e", "quack": "#2b9348", "apex": "#9c6644"}


def draw(gpu: Sequence[Record], cpu: Sequence[Record], folder: Path) -> list[Path]:
    """Draws what the records allow and returns the pictures' paths."""

    def of(records: Sequence[Record], norms: bool) -> list[Record]:
        away = ("axes", "channels")  # norms whose columns are not those of a matrix's rows
        return [r for r in records if (_case(r).family == "norm") == norms and _case(r).band not in away]

    norms = _draw_norms(of(gpu, True), of(cpu, True), folder)
    return norms + _draw_activations(of(gpu, False), of(cpu, False), folder)


def _draw_norms(gpu: Sequence[Record], cpu: Sequence[Record], folder: Path) -> list[Path]:
    images = []
    for dtype in ("bf16", "fp16", "fp32"):
        large = [r for r in gpu if _case(r).dtype == dtype and _case(r).tensor_bytes >= LARGE]
        other = [r for r in gpu if _case(r).dtype == dtype and _case(r).tensor_bytes < LARGE]
        title = f"{dtype}: fraction of a copy's speed"
        images += _figure(large, folder / f"columns-{dtype}.svg", f"{title}, tensors of 64 MiB and more", _columns)
        images += _figure(other, folder / f"size-{dtype}.svg", f"{title}, smaller tensors", _mebibytes)
        for threads in sorted({r["threads"] for r in cpu}):
            chosen = [r for r in cpu if r["threads"] == threads and _case(r).dtype == dtype]
            many = "1 thread" if threads == 1 else f"{threads} threads"
            path = folder / f"cpu-{dtype}-{threads}.svg"
            images += _figure(chosen, path, f"{dtype}, CPU, {many}: times faster than the rival", _mebibytes)
    return images


def _draw_activations(gpu: Sequence[Record], cpu: Sequence[Record], folder: Path) -> list[Path]:
    images = []
    for dtype in ("bf16", "fp16", "fp32"):
        for size, what, large in (("large", "64 MiB and more", True), ("small", "less than 64 MiB", False)):
            chosen = [r for r in gpu if _case(r).dtype == dtype and (_case(r).tensor_bytes >= LARGE) == large]
            title = f"{dtype}: fraction of a copy's speed, tensors of {what}"
            images += _dots(chosen, folder / f"activations-{size}-{dtype}.svg", title)
        for threads in sorted({r["threads"] for r in cpu}):
            chosen = [r for r in cpu if r["threads"] == threads and _case(r).dtype == dtype]
            for size, what, cached in (("cache", "in cache", True), ("memory", "in memory", False)):
                some = [r for r in chosen if (_case(r).tensor_bytes < IN_MEMORY) == cached]
                many = "1 thread" if threads == 1 else f"{threads} threads"
                title = f"{dtype}, CPU, {many}, {what}: times faster than the rival"
                images += _dots(some, folder / f"cpu-activations-{size}-{dtype}-{threads}.svg", title)
    return images


def _case(record: Record) -> Case:
    return Case.parse(record["case"])


def _columns(case: Case) -> float:
    return case.cols


def _mebibytes(case: Case) -> float:
    return case.tensor_bytes / (1 << 20)


def points(records: Iterable[Record], x_of: Callable[[Case], float]) -> Points:
    """R of every contestant, or on the CPU how many times longer each rival takes, sorted by x."""
    found: Points = {}
    for record in records:
        case, contestants = _case(record), record["contestants"]
        for name, values in contestants.items():
            y = values.get("R")
            if record["record"] == "cpu":
                y = None if name.startswith("normact") else times_faster(record, name)
            if y is not None:
                found.setdefault(name, []).append((x_of(case), y, case.band == "odd"))
    return {name: sorted(values) for name, values in found.items()}


def _figure(records: Sequence[Record], path: Path, title: str, x_of: Callable[[Case], float]) -> list[Path]:
    """One panel for each operation and direction that the records have."""
    if not records:
        return []
    pyplot = _pyplot(path)
    ops = [op for op in OPS if any(_case(r).op == op for r in records)]
    directions = [d for d in DIRECTIONS if any(_case(r).direction == d for r in records)]
    on_gpu = records[0]["record"] == "gpu"
    size = (1.0 + 3.6 * len(ops), 1.1 + 2.3 * len(directions))
    figure, panels = pyplot.subplots(len(directions), len(ops), figsize=size, squeeze=False, sharex=True, sharey=True)
    for row, direction in enumerate(directions):
        for column, op in enumerate(ops):
            panel = panels[row][column]
            chosen = [r for r in records if _case(r).op == op and _case(r).direction == direction]
            _panel(panel, points(chosen, x_of))
            _scale_y(panel, on_gpu)
            panel.set_title(f"{op} {direction}", fontsize=9)
            if row == len(directions) - 1:
                panel.set_xlabel("columns (x: odd)" if x_of is _columns else "MiB of a tensor (x: odd columns)")
        panels[row][0].set_ylabel("R" if on_gpu else "rival's time / ours")
    return _save(figure, panels, path, title)


def _dots(records: Sequence[Record], path: Path, title: str) -> list[Path]:
    """One panel for each direction, one line for each operation: the geometric mean over its cases."""
    if not records:
        return []
    pyplot = _pyplot(path)
    ops = [op for op in OPS if any(_case(r).op == op for r in records)]
    on_gpu, height = records[0]["record"] == "gpu", 1.4 + 0.22 * len(ops)
    figure, panels = pyplot.subplots(1, len(DIRECTIONS), figsize=(9.0, height), squeeze=False, sharey=True)
    for panel, direction in zip(panels[0], DIRECTIONS, strict=True):
        for name, (values, places) in means(records, ops, direction).items():
            panel.plot(
                values, places, "o", markersize=6 if name == "normact" else 4, color=COLORS.get(name), label=name
            )
        panel.axvline(1.0, color="black", linewidth=0.6, linestyle=":")
        panel.set_yticks(range(len(ops)), ops)
        panel.set_ylim(len(ops) - 0.5, -0.5)
        panel.set_title(direction, fontsize=9)
        panel.set_xlabel("R" if on_gpu else "rival's time / ours")
        panel.grid(alpha=0.25, linewidth=0.5)
        panel.spines[["top", "right"]].set_visible(False)
        if on_gpu:
            panel.set_xlim(left=0.0)
        else:
            _log2(panel, "x")
    return _save(figure, panels, path, title)


def means(records: Iterable[Record], ops: Sequence[str], direction: str) -> dict[str, tuple[list[float], list[int]]]:
    """Of every contestant the mean of each operation that it has, and the operation's place among `ops`."""
    found: dict[str, tuple[list[float], list[int]]] = {}
    for place, op in enumerate(ops):
        chosen = [r for r in records if _case(r).op == op and _case(r).direction == direction]
        for name, values in points(chosen, _mebibytes).items():
            numbers, places = found.setdefault(name, ([], []))
            numbers.append(geomean(y for _, y, _ in values))
            places.append(place)
    return found


def _pyplot(path: Path):
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": path.name, "font.size": 9})  # the same records, the same bytes
    from matplotlib import pyplot

    return pyplot


def _save(figure, panels, path: Path, title: str) -> list[Path]:
    """With a title and one legend for all panels."""
    lines = [line for panel in panels.flat for line in panel.get_lines() if line.get_label() in COLORS]
    handles = {line.get_label(): line for line in lines}
    figure.suptitle(title, fontsize=10)
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=max(1, len(handles)), frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    _pyplot(path).close(figure)
    return [path]


def _panel(panel, found: Points) -> None:
    """A line through the even column counts, crosses for the odd ones."""
    panel.set_xscale("log", base=2)
    panel.axhline(1.0, color="black", linewidth=0.6, linestyle=":")
    for name, values in sorted(found.items(), key=lambda item: item[0] == "normact"):  # ours on top
        color, width = COLORS.get(name), 1.8 if name == "normact" else 1.0
        even = [(x, y) for x, y, odd in values if not odd]
        crosses = [(x, y) for x, y, odd in values if odd]
        panel.plot(*zip(*even, strict=True), ".-", markersize=4, linewidth=width, color=color, label=name)
        panel.plot(*zip(*crosses, strict=True), "x", markersize=4, color=color)
    panel.grid(alpha=0.25, linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)


def _scale_y(panel, on_gpu: bool) -> None:
    """R from zero; ratios on a scale where twice as fast and twice as slow are equally far from 1."""
    if on_gpu:
        panel.set_ylim(bottom=0.0)
    else:
        _log2(panel, "y")


def _log2(panel, axis: str) -> None:
    from matplotlib import ticker

    getattr(panel, f"set_{axis}scale")("log", base=2)
    getattr(panel, f"{axis}axis").set_major_formatter(ticker.FormatStrFormatter("%g"))
