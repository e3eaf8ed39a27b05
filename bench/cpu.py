# SPDX-License-Identifier: Apache-2.0
"""CPU time of every case, ours and the rivals', with one thread and with all."""

from __future__ import annotations

import argparse
import ctypes
import os
from collections.abc import Sequence

import torch

import normact
from bench import ours, records
from bench.baselines import RIVALS
from bench.cases import Case
from bench.contest import admit, reason
from bench.operands import WrongResultError, check, make_operands
from bench.progress import Budget, finish, say
from bench.targets import times_faster
from bench.timing import CPU_SAMPLES, cpu_samples

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h
THREADED_SAMPLES = 11  # each waits for the other contestants' threads to sleep
PREALLOCATED = {"onednn"}  # write into given outputs
UNTHREADED = {"jax"}  # their thread pools cannot be resized in a running process: timed with all threads only


def run(options: argparse.Namespace, budget: Budget) -> int:
    facts = records.environment("cpu", options.commit)
    facts.update(mode="cpu", rivals=options.rivals)
    recorder = records.Recorder(options.output, facts)
    say(f"{facts['device']}, {facts['cpus']} CPUs, load {facts['load']}, commit {facts['commit']}")
    if os.getloadavg()[0] > 0.5 * float(str(facts["cpus"])):
        say("this machine is busy: numbers of several threads and of long calls will mislead")
    keep_freed_memory()
    torch.manual_seed(0)
    processors = int(str(facts["cpus"]))
    counts = sorted({processors if text == "all" else int(text) for text in options.threads.split(",")})
    measured, wrong = [], 0
    for case in budget.within(options.cases):
        for threads in counts:
            try:
                record = measure(case, options.rivals, threads, processors)
            except (WrongResultError, NotImplementedError) as error:
                say(f"{case.name}: {error}")
                wrong += 1
                break
            recorder.write("cpu", record)
            measured.append(record)
            say(line_of(case, record))
    say(f"load at the end {os.getloadavg()[0]:.2f}")
    finish(measured, "cpu", recorder, budget)
    return 1 if wrong else 0


def keep_freed_memory() -> None:
    """Has glibc's malloc reuse what is freed instead of returning it to the system.

    Otherwise every fresh tensor of 32 MiB is new memory, and the time is that of its page faults, on all sides alike.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def measure(case: Case, rivals: Sequence[str], threads: int, processors: int) -> dict:
    torch.set_num_threads(threads)
    normact.set_num_threads(threads)
    operands = make_operands(case, "cpu")
    calls = {name: build(case, operands) for name, build in ours.CONTESTANTS.items()}
    for call in calls.values():
        operands.poison()
        check(case, operands, call())
    contestants: dict[str, dict] = {}
    notes: dict[str, dict] = {}
    for name in rivals:
        if name in UNTHREADED and threads != processors:
            contestants[name] = {"missing": "its thread count cannot be set in a running process"}
            continue
        try:
            calls[name], notes[name] = admit(RIVALS[name], case, operands)
            if name in PREALLOCATED:
                notes[name]["preallocated"] = True
        except Exception as error:  # whatever goes wrong inside a rival is its result
            contestants[name] = {"missing": reason(error)}
    samples = cpu_samples(calls, samples=CPU_SAMPLES if threads == 1 else THREADED_SAMPLES, settle=threads > 1)
    contestants.update({name: records.entry(sample, **notes.get(name, {})) for name, sample in samples.items()})
    return {
        "case": case.name,
        "bytes": case.compulsory_bytes,
        "threads": threads,
        "gbps": round(case.compulsory_bytes / samples["normact"].median / 1e3, 2),
        "contestants": contestants,
    }


def line_of(case: Case, record: dict) -> str:
    """The case in one line: microseconds with preallocated and with fresh outputs, and how much longer rivals take."""
    found = record["contestants"]
    shape, fresh = case.shape_text, found["normact-fresh"]["us"]
    text = f"{case.op:<18} {case.direction:<8} {case.dtype} {shape:>11} {record['threads']:>2} threads"
    text += f" {found['normact']['us']:9.2f} us, fresh {fresh:9.2f} us +-{found['normact-fresh']['spread']:.0%}"
    for name, their in found.items():
        if not name.startswith("normact"):
            faster, mark = times_faster(record, name), "!" if "wrong" in their else ""
            text += f"  {name} -" if faster is None else f"  {name} {faster:.2f}x{mark}"
    return text
