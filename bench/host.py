# SPDX-License-Identifier: Apache-2.0
"""Host time of an eager call: what the caller's thread spends, GPU work not waited for.

On a GPU a loop of calls is timed without a synchronisation inside. Without one, calls on CPU arrays so small that
the arithmetic is a fraction are timed, on PyTorch tensors and on NumPy arrays; there the arithmetic is included.
`normact.torch` is timed beside PyTorch's own functions: without a gradient, with one recorded, and with the backward.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch.nn import functional

import normact
import normact.torch
from bench import ours, records
from bench.baselines import RIVALS
from bench.cases import DIRECTIONS, Case
from bench.contest import admit, reason
from bench.groups import PLAIN
from bench.operands import Operands, make_operands
from bench.progress import Budget, finish, say
from bench.timing import cpu_samples

GPU_SHAPES = [(128, 1024)]
CPU_SHAPES = [(1, 16), (128, 128)]  # next to no arithmetic, and a little

Calls = dict[str, Callable[[], object]]


def run(options: argparse.Namespace, budget: Budget) -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    facts = records.environment(device, options.commit)
    facts.update(mode="host", rivals=options.rivals)
    recorder = records.Recorder(options.output, facts)
    say(f"{facts['device']}, host {facts['cpu']}, load {facts['load']}, commit {facts['commit']}")
    torch.set_num_threads(1)
    normact.set_num_threads(1)
    dtype, shapes = ("bf16", GPU_SHAPES) if device == "cuda" else ("fp32", CPU_SHAPES)
    cases = [Case(op, way, dtype, shape) for shape, op, way in product(shapes, PLAIN, DIRECTIONS)]
    measured = []
    for case in budget.within(cases):
        record = measure(case, device, options.rivals)
        recorder.write("host", record)
        measured.append(record)
        say(case.name)
        for name, found in record["contestants"].items():
            say(f"  {name:<28}" + (f"{found['us']:8.2f} us" if "us" in found else f"- ({found['missing']})"))
    finish(measured, "host", recorder, budget)
    return 0


def measure(case: Case, device: str, rivals: list[str]) -> dict:
    o = make_operands(case, device)
    calls = {**_our_calls(case, o), **_torch_calls(case, o)}
    if device == "cpu":
        arrays = Operands(**{name: None if t is None else t.numpy() for name, t in vars(o).items()})
        calls.update({f"{name}, NumPy": call for name, call in _our_calls(case, arrays).items()})
    contestants: dict[str, dict] = {}
    for name in rivals:
        try:
            calls[name], _ = admit(RIVALS[name], case, o)
        except Exception as error:  # whatever goes wrong inside a rival is its result
            contestants[name] = {"missing": reason(error)}
    samples = cpu_samples(calls, sync=torch.cuda.synchronize if device == "cuda" else None)
    contestants.update({name: records.entry(sample) for name, sample in samples.items()})
    return {"case": case.name, "device": device, "contestants": contestants}


def _our_calls(case: Case, o: Operands) -> Calls:
    """The plain forward and the one that also returns the statistics; the backward has one form."""
    outputs = ours.outputs_of(case, o)
    forms: dict[str, dict[str, object]] = {"": {"out": outputs}}
    if case.direction == "forward":
        forms = {"": {"out": o.y}, ", statistics": {"out": outputs, **ours.training(case)}}
    calls: Calls = {}
    for form, options in forms.items():
        calls[f"normact out={form}"] = ours.call(case, o, **options)
        calls[f"normact{form}"] = ours.call(case, o, **{k: v for k, v in options.items() if k != "out"})
    return calls


def _torch_calls(case: Case, o: Operands) -> Calls:
    """PyTorch's functions and ours in their place, as eager code calls them; its backward alone is an operator."""
    if case.direction == "backward":
        return {"torch": RIVALS["torch"](case, o)}
    tensors = [t for t in (o.x, o.weight, o.bias) if t is not None]
    recorded = [t.detach().requires_grad_() for t in tensors]
    dy = torch.ones_like(o.x)
    calls: Calls = {}
    for name, module in (("torch", functional), ("normact.torch", normact.torch)):
        norm = partial(_norm, getattr(module, case.kind), case)
        calls[name] = partial(norm, tensors)
        calls[f"{name}, grad recorded"] = partial(norm, recorded)
        calls[f"{name}, forward and backward"] = partial(_step, norm, recorded, dy)
    return calls


def _norm(norm: Callable[..., Any], case: Case, tensors: list[torch.Tensor]) -> torch.Tensor:
    return norm(tensors[0], (case.cols,), *tensors[1:], eps=case.eps)


def _step(norm: Callable[..., Any], tensors: list[torch.Tensor], dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(norm(tensors), tensors, dy)
