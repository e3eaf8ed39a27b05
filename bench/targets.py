# SPDX-License-Identifier: Apache-2.0
"""The numbers to reach, and how far a set of measurements is from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.cases import DIRECTIONS, LARGE, MIB, Case
from bench.groups import ACTIVATED, PLAIN, SMALL_SETS
from bench.operations import AWAY, LAYOUTS

ACTIVATIONS = ("pointwise", "bias", "gated")  # the families
CHANNEL = ("channel",)
ROWS = ("wide", "huge", "narrow", "odd")  # the bands of norms over the last axis
ON_CHIP = 24 * MIB  # what the multiprocessors of an H200 hold together, of what is normalised together and read
IN_MEMORY = 32 * MIB  # of a CPU: a tensor that no cache holds

Record = dict  # one measured case, as records.py writes it


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def roofline(record: Record) -> float | None:
    """R: the fraction of a copy's speed, copying as many bytes as the case must move."""
    return record.get("R")


def of_two_reads(record: Record) -> float | None:
    """The same of the speed that is left where x, and in a backward dy too, is read twice: for statistics first."""
    case = Case.parse(record["case"])
    once, again = sum(case.traffic), 1 if case.direction == "forward" else 2
    return record["R"] * (once + again) / once if "R" in record else None


def times_faster(record: Record, rival: str) -> float | None:
    """The rival's time over ours, like against like; None where the rival was not measured.

    On a GPU everyone's outputs cost nothing while a graph is replayed. On a CPU a rival that allocates its outputs is
    held against our allocating call, one that writes into given ones against out=.
    """
    found = record["contestants"]
    theirs = found.get(rival, {})
    fresh = "normact-fresh" in found and not theirs.get("preallocated")
    return theirs["us"] / found["normact-fresh" if fresh else "normact"]["us"] if "us" in theirs else None


def over_best(rivals: Sequence[str]) -> Callable[[Record], float | None]:
    """Against the fastest of some rivals."""

    def metric(record: Record) -> float | None:
        found = [ratio for rival in rivals if (ratio := times_faster(record, rival)) is not None]
        return min(found, default=None)

    return metric


def over(rival: str) -> Callable[[Record], float | None]:
    return lambda record: times_faster(record, rival)


def host_us(form: str) -> Callable[[Record], float | None]:
    """Microseconds of host time of one form of the call."""
    return lambda record: record["contestants"].get(form, {}).get("us")


@dataclass(frozen=True)
class Target:
    """A figure of merit over the cases that `select` takes; the worst cell or the geometric mean must reach `goal`."""

    name: str
    kind: str  # of record: gpu, cpu, host
    select: Callable[[Case, Record], bool]
    metric: Callable[[Record], float | None]
    goal: float
    worst: bool = False
    at_most: bool = False  # less is better
    families: tuple[str, ...] = ("norm",)  # of operations


@dataclass(frozen=True)
class Verdict:
    target: Target
    cells: int
    value: float  # what is held against the goal; nan without cells
    worst: float
    worst_case: str

    @property
    def mark(self) -> str:
        if not self.cells:
            return "not measured"
        reached = self.value <= self.target.goal if self.target.at_most else self.value >= self.target.goal
        return "pass" if reached else "FAIL"


def _large(
    direction: str | None = None,
    *,
    ops: Sequence[str] | None = PLAIN,
    bands: Sequence[str] | None = None,
    dtype: str | None = None,
):
    def select(case: Case, _: Record) -> bool:
        return (
            case.tensor_bytes >= LARGE
            and direction in (None, case.direction)
            and (ops is None or case.op in ops)
            and (bands is None or case.band in bands)
            and dtype in (None, case.dtype)
        )

    return select


def _in_cache(op: str, direction: str | None = None):
    def select(case: Case, record: Record) -> bool:
        fits = case.tensor_bytes <= MIB and case.dtype == "fp32" and record["threads"] == 1
        return fits and case.op == op and direction in (None, case.direction)

    return select


def _in_memory(case: Case, record: Record) -> bool:
    return case.tensor_bytes >= IN_MEMORY


def _any_case(case: Case, record: Record) -> bool:
    return True


def _gpu_targets() -> list[Target]:
    targets = []
    for band, columns, goal in (
        ("wide", "768..16384 columns", 0.95),
        ("huge", "32k..256k columns", 0.90),
        ("narrow", "64..256 columns", 0.90),
        ("odd", "odd columns", 0.80),
    ):
        for dtype in ("bf16", "fp32"):
            select = _large("forward", bands=(band,), dtype=dtype)
            targets.append(Target(f"forward, {columns}, {dtype}", "gpu", select, roofline, goal))
    for op, goal in (("rms_norm", 0.88), ("layer_norm", 0.85)):
        for dtype in ("bf16", "fp32"):
            select = _large("backward", ops=(op,), bands=ROWS, dtype=dtype)
            targets.append(Target(f"{op} backward, all columns, {dtype}", "gpu", select, roofline, goal))
    for direction in DIRECTIONS:
        for dtype in ("bf16", "fp32"):
            select = _large(direction, bands=("channels",), dtype=dtype)
            name = f"norms over axis 1 of images, {direction}, {dtype}"
            targets.append(Target(name, "gpu", select, roofline, 0.85))
        for dtype in ("bf16", "fp32"):
            select = _large(direction, ops=ACTIVATED, dtype=dtype)
            name = f"norm with an activation against the bare one, {direction}, {dtype} (times as fast)"
            targets.append(Target(name, "gpu", select, over("bare"), 0.97))
    targets.append(Target("no cell slower than PyTorch (times faster)", "gpu", _any_case, over("torch"), 1.0, True))
    return targets


def _gpu_activation_targets() -> list[Target]:
    targets = []
    for family, what, forward, backward in (
        ("pointwise", "activations", 0.96, 0.95),
        ("bias", "bias and activation", 0.96, 0.92),
        ("gated", "gated activations", 0.96, 0.95),
    ):
        for direction, goal in (("forward", forward), ("backward", backward)):
            for dtype in ("bf16", "fp32"):
                select = _large(direction, ops=None, dtype=dtype)
                name = f"{what} {direction}, {dtype}"
                targets.append(Target(name, "gpu", select, roofline, goal, families=(family,)))
    for rival in ("torch", "compile"):
        name, select = f"gelu against {rival} (times faster)", _large(ops=("gelu",))
        targets.append(Target(name, "gpu", select, over(rival), 1.2, families=("pointwise",)))
    for direction, goal in (("forward", 1.3), ("backward", 1.5)):
        name, select = f"bias_gelu {direction} against compile (times faster)", _large(direction, ops=("bias_gelu",))
        targets.append(Target(name, "gpu", select, over("compile"), goal, families=("bias",)))
    return targets


def _channel(
    function: str, direction: str | None = None, *, held: bool | None = None, least: int = 0, most: float = math.inf
):
    """Cases of bf16, whose sets fit on the chip or do not, of tensors of so many bytes. Goals are of whole images."""

    def select(case: Case, _: Record) -> bool:
        return (
            (case.kind == function or (function == "group_norm" and case.kind == "instance_norm"))
            and direction in (None, case.direction)
            and held in (None, _held(case))
            and case.dtype == "bf16"
            and case.operation.layout in LAYOUTS
            and case.shape not in SMALL_SETS
            and least <= case.tensor_bytes <= most
        )

    return select


def _held(case: Case) -> bool:
    """Whether one read can do: of a batch norm the whole tensor, of a group norm a group at a time."""
    size = case.set_bytes * (case.shape[1] if case.kind == "batch_norm" else 1)
    return size <= ON_CHIP


def _gpu_channel_targets() -> list[Target]:
    targets = []

    def add(name: str, select, metric, goal: float, worst: bool = False) -> None:
        targets.append(Target(name, "gpu", select, metric, goal, worst, families=CHANNEL))

    for direction in DIRECTIONS:
        held, larger = (_channel("batch_norm", direction, held=held) for held in (True, False))
        add(f"batch norm {direction}, on chip", held, roofline, 0.75)
        add(f"batch norm {direction}, larger, of two reads", larger, of_two_reads, 0.90)
    for direction, large, middle in (("forward", 0.75, 0.55), ("backward", 0.70, 0.45)):
        fits, beyond = (_channel("group_norm", direction, held=held, least=LARGE) for held in (True, False))
        add(f"group, instance norm {direction}, 64 MiB and more", fits, roofline, large)
        add(f"group, instance norm {direction}, groups beyond the chip", beyond, of_two_reads, 0.90)
        few = _channel("group_norm", direction, least=2 * MIB, most=20 * MIB)
        add(f"group, instance norm {direction}, 2 to 20 MiB", few, roofline, middle)
    best = over_best(("torch", "compile"))
    add("batch norm against the best rival (times faster)", _channel("batch_norm"), best, 2.0)
    add("batch norm against torch (times faster)", _channel("batch_norm"), over("torch"), 4.0)
    add("no batch norm slower than a rival (times faster)", _channel("batch_norm"), best, 1.0, True)
    away = lambda case, _: case.operation.layout in AWAY  # noqa: E731
    add("no norm of a slice or a crop slower than PyTorch (times faster)", away, over("torch"), 1.0, True)
    add("group, instance norm against compile (times faster)", _channel("group_norm"), over("compile"), 2.0)
    add("group, instance norm against torch (times faster)", _channel("group_norm"), over("torch"), 6.0)
    headline = "group_norm_silu_nchw/forward/bf16/1x128x20x256x256"

    def microseconds(record: Record) -> float | None:
        return record["contestants"]["normact"].get("us")

    name = f"{headline}, microseconds"
    chosen = lambda case, _: case.name == headline  # noqa: E731
    targets.append(Target(name, "gpu", chosen, microseconds, 190.0, True, True, CHANNEL))
    return targets


def _cpu_channel_targets() -> list[Target]:
    def layouts(function: str, layout: str):
        return lambda case, _: case.kind == function and case.operation.layout == layout

    faster, name = over("torch"), "no batch, group or instance norm slower than PyTorch (times faster)"
    targets = [Target(name, "cpu", _any_case, faster, 1.0, True, families=CHANNEL)]
    for what, select, goal in (
        ("group_norm, NHWC", layouts("group_norm", "nhwc"), 2.0),
        ("instance_norm, NCHW", layouts("instance_norm", "nchw"), 1.5),
        ("instance_norm, NHWC", layouts("instance_norm", "nhwc"), 1.5),
    ):
        targets.append(Target(f"{what} (times faster)", "cpu", select, faster, goal, families=CHANNEL))
    return targets


def _cpu_activation_targets() -> list[Target]:
    faster, targets = over("torch"), []
    for op, direction, goal in (("gelu", "forward", 1.5), ("gelu", "backward", 2.3), ("gelu_tanh", None, 4.0)):
        name = f"{op} {direction or 'both ways'}, fp32 in cache, 1 thread (times faster)"
        targets.append(Target(name, "cpu", _in_cache(op, direction), faster, goal, families=("pointwise",)))
    name = "no activation in memory slower than PyTorch (times faster)"
    targets.append(Target(name, "cpu", _in_memory, faster, 1.0, True, families=ACTIVATIONS))
    return targets


def _cpu_targets() -> list[Target]:
    """Apart for each norm, as PyTorch's rms_norm is a composite on the CPU and would flatter a common mean."""
    faster, targets = over("torch"), []
    for op in PLAIN:
        for direction, goal in (("forward", 1.3), ("backward", 2.0)):
            name = f"{op} {direction}, fp32 in cache, 1 thread (times faster)"
            targets.append(Target(name, "cpu", _in_cache(op, direction), faster, goal))
    targets.append(Target("no cell slower than PyTorch (times faster)", "cpu", _any_case, faster, 1.0, True))
    return targets


def _host_targets() -> list[Target]:
    def on_gpu(case: Case, record: Record) -> bool:
        return record["device"] == "cuda" and case.direction == "forward"

    return [
        Target("forward with out=, GPU, microseconds", "host", on_gpu, host_us("normact out="), 5.0, True, True),
        Target("forward, allocating, GPU, microseconds", "host", on_gpu, host_us("normact"), 9.0, True, True),
    ]


TARGETS = _gpu_targets() + _gpu_activation_targets() + _gpu_channel_targets()
TARGETS += _cpu_targets() + _cpu_activation_targets() + _cpu_channel_targets() + _host_targets()


def judge(records: Sequence[Record], kind: str) -> list[Verdict]:
    """Every target of a kind of record against such records; a target without cells is 'not measured'.

    Targets of families that the records do not have at all are left out.
    """
    families, verdicts = {Case.parse(record["case"]).family for record in records}, []
    for target in (t for t in TARGETS if t.kind == kind):
        if families and families.isdisjoint(target.families):
            continue
        chosen = [(target.metric(record), record["case"]) for record in records if _takes(target, record)]
        cells = sorted(((value, name) for value, name in chosen if value is not None), reverse=target.at_most)
        if not cells:
            verdicts.append(Verdict(target, 0, math.nan, math.nan, ""))
            continue
        worst, worst_case = cells[0]
        value = worst if target.worst else geomean(value for value, _ in cells)
        verdicts.append(Verdict(target, len(cells), value, worst, worst_case))
    return verdicts


def _takes(target: Target, record: Record) -> bool:
    case = Case.parse(record["case"])
    return case.family in target.families and target.select(case, record)


def verdict_lines(verdicts: Sequence[Verdict]) -> list[str]:
    """A plain-text table for the terminal."""
    lines = []
    for v in verdicts:
        numbers = f"{v.value:6.3f}  goal {v.target.goal:.2f}" if v.cells else f"{'-':>6}  goal {v.target.goal:.2f}"
        tail = f"  {v.cells} cells, worst {v.worst:.3f} {v.worst_case}" if v.cells else ""
        lines.append(f"{v.target.name:<60} {numbers}  {v.mark:<12}{tail}")
    return lines
