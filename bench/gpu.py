# SPDX-License-Identifier: Apache-2.0
"""GPU time of every case, ours and the rivals', against a copy of the same bytes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import torch

from bench import ours, records
from bench.baselines import RIVALS
from bench.cases import Case
from bench.contest import admit, reason
from bench.copies import CopyCurve, measure_copies, measure_mixes
from bench.operands import Operands, WrongResultError, check, make_operands
from bench.progress import Budget, finish, say
from bench.timing import GraphTimer, gpu_samples, rotation, warm_up_gpu


def run(options: argparse.Namespace, budget: Budget) -> int:
    if not torch.cuda.is_available():
        say("no CUDA device: PyTorch sees none")
        return 1
    facts = records.environment("cuda", options.commit)
    facts.update(mode="gpu", variant=options.variant, rivals=options.rivals)
    recorder = records.Recorder(options.output, facts)
    say(f"{facts['device']}, driver {facts['driver']}, L2 {int(facts['l2_bytes']) >> 20} MiB, commit {facts['commit']}")
    torch.manual_seed(0)
    warm_up_gpu()
    measured, wrong = [], 0
    with torch.cuda.stream(torch.cuda.Stream()):  # all work is prepared on the stream that is captured
        curve = measure_copies(int(facts["l2_bytes"]))
        recorder.write("copy", {"points": curve.points})
        for line in curve.lines():
            say(line)
        mixes = measure_mixes(int(facts["l2_bytes"]), {case.traffic for case in options.cases})
        for traffic, mix in mixes.items():
            recorder.write("copy", {"traffic": traffic, "points": mix.points})
        for case in budget.within(options.cases):
            try:
                record = measure(case, options.rivals, curve, int(facts["l2_bytes"]), mixes.get(case.traffic))
            except (WrongResultError, NotImplementedError) as error:  # of normact: no number, and the run fails
                say(f"{case.name}: {error}")
                wrong += 1
                continue
            finally:
                torch.cuda.empty_cache()
            recorder.write("gpu", record)
            measured.append(record)
            say(line_of(case, record))
    finish(measured, "gpu", recorder, budget)
    if wrong:
        say(f"{wrong} cases gave a wrong result or were refused")
    return 1 if wrong else 0


def measure(case: Case, rivals: Sequence[str], curve: CopyCurve, l2_bytes: int, mix: CopyCurve | None = None) -> dict:
    """One record. A rival that is missing is named with the reason in place of its numbers.

    mix: the curve of copies that read and write in the case's proportion, for R_mix.
    """
    sets = [make_operands(case, "cuda") for _ in range(rotation(case.compulsory_bytes, l2_bytes))]
    timers = {"normact": _our_timer(case, sets)}
    if case.family == "norm" and case.operation.applied:  # what the activation costs
        bare = replace(case, op=case.kind)
        timers["bare"] = GraphTimer([ours.preallocated(bare, operands) for operands in sets])
    contestants: dict[str, dict] = {}
    notes: dict[str, dict] = {}
    for name in rivals:
        try:
            checked, notes[name] = admit(RIVALS[name], case, sets[0])
            timers[name] = GraphTimer([checked, *(RIVALS[name](case, operands) for operands in sets[1:])])
        except Exception as error:  # whatever goes wrong inside a rival is its result
            contestants[name] = {"missing": reason(error)}
    samples = gpu_samples(timers)
    for name, sample in samples.items():
        R = curve.roofline(case.compulsory_bytes, sample.median)  # noqa: N806
        contestants[name] = records.entry(sample, R=round(R, 4), **notes.get(name, {}))
    ours_us = samples["normact"].median
    return {
        "case": case.name,
        "bytes": case.compulsory_bytes,
        "sets": len(sets),
        "R": contestants["normact"]["R"],
        **({"R_mix": round(mix.roofline(case.compulsory_bytes, ours_us), 4)} if mix else {}),
        "gbps": round(case.compulsory_bytes / ours_us / 1e3, 1),
        "copy_us": round(curve.us(case.compulsory_bytes), 3),
        "contestants": contestants,
    }


def _our_timer(case: Case, sets: list[Operands]) -> GraphTimer:
    """Checked after a replay over poisoned outputs: what is timed is what is right."""
    timer = GraphTimer([ours.preallocated(case, operands) for operands in sets])
    for operands in sets:
        operands.poison()
    timer.replay()
    for operands, outputs in zip(sets[:2], timer.outputs[:2], strict=True):  # the other sets hold the same work
        check(case, operands, outputs)
    return timer


def line_of(case: Case, record: dict) -> str:
    """The case in one line: microseconds, R, spread, and R of the rivals (! where their result is wrong)."""
    mine = record["contestants"]["normact"]
    text = f"{case.op:<18} {case.direction:<8} {case.dtype} {case.shape_text:>13} {mine['us']:9.2f} us"
    text += f"  R {record['R']:.3f} +-{mine['spread']:.1%}"
    for name, their in record["contestants"].items():
        if name != "normact":
            mark = "!" if "wrong" in their else ""
            text += f"  {name} {their['R']:.3f}{mark}" if "R" in their else f"  {name} - ({their['missing'][:60]})"
    return text
