# SPDX-License-Identifier: Apache-2.0
"""Time of whole training steps: a GPT on one device, and a ResNet block with synchronous batch norm on several.

    python -m bench.steps gpt
    torchrun --nproc-per-node 2 -m bench.steps sync

`gpt` is plain PyTorch beside normact.torch: eager, compiled, as a CUDA graph, in float32 and under bf16 autocast.
`sync` is torch.nn.SyncBatchNorm beside normact's, the layer alone and a block of a ResNet under
DistributedDataParallel, bf16 and channels last; the images of all processes together stay as many (strong scaling).
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import normact.torch as nt
from bench import records
from bench.contest import reason
from bench.progress import say
from bench.timing import Sample
from normact.demo import MODES, sequence, vision
from normact.demo.steps import Steps, compiler_error
from normact.demo.turns import pair

ROUNDS = 11
GPT = sequence.Size(width=768, layers=12, heads=12, length=1024, batch=16)
TINY_GPT = sequence.Size(width=16, layers=1, heads=2, length=16, batch=2)


class Images(NamedTuple):
    """Of all processes together."""

    count: int
    channels: int
    size: int


IMAGES = Images(256, 256, 28)
TINY_IMAGES = Images(4, 8, 4)

Calls = dict[str, Callable[[], object]]


def samples(calls: Calls, device: str, seconds: float) -> dict[str, Sample]:
    """Microseconds a call: loops of some calls, not waited for but at the end; contestants take turns."""

    def loop(call: Callable[[], object], count: int) -> float:
        _wait(device)
        start = time.perf_counter()
        for _ in range(count):
            call()
        _wait(device)
        return (time.perf_counter() - start) / count

    for call in calls.values():
        loop(call, 5)  # compiles, captures, chooses kernels
    count = max(1, round(seconds / ROUNDS / _longest(max(loop(call, 3) for call in calls.values()), device)))
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            found[name].append(loop(call, count) * 1e6)
    return {name: Sample(tuple(us)) for name, us in found.items()}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _longest(seconds: float, device: str) -> float:
    """Of all processes, which must make as many calls as each other."""
    if not dist.is_initialized():
        return seconds
    longest = torch.tensor(seconds, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return longest.item()


# ---- A GPT ----


def gpt(device: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    size = TINY_GPT if options.tiny else GPT
    text = torch.randint(256, (size.batch, size.length + 1), generator=torch.Generator().manual_seed(0)).to(device)
    batch = text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def loss(net: nn.Module, text: Tensor, following: Tensor) -> Tensor:
        return functional.cross_entropy(net(text).flatten(0, 1).float(), following.flatten())

    for autocast, mode in ((a, m) for a in (None, torch.bfloat16) for m in options.modes):
        case = f"gpt/{'bf16' if autocast else 'fp32'}/{mode}"
        error = "needs a GPU" if mode == "graphed" and device != "cuda" else None
        error = error or (compiler_error(device) if mode == "compiled" else None)
        if error:
            say(f"{case}: {error}")
            continue
        nets = pair(lambda parts: sequence.GPT(parts, size), *sequence.GPT_PARTS, device, torch.float32)
        steps = [Steps(net, loss, lambda step: batch, 1e-3, mode, autocast) for net in nets]
        calls: Calls = {name: functools.partial(each.run, batch) for name, each in zip(("torch", "normact"), steps)}
        tokens = size.batch * size.length
        yield {"case": case, "tokens": tokens, "contestants": _entries(samples(calls, device, options.seconds))}


def _entries(found: dict[str, Sample]) -> dict[str, Any]:
    return {name: records.entry(sample) for name, sample in found.items()}


# ---- Synchronous batch norm ----


class TorchSync(nn.SyncBatchNorm):
    """PyTorch's, with what comes behind it in a block."""

    def forward(self, input: Tensor, addend: Tensor | None = None) -> Tensor:
        h = super().forward(input)
        return functional.relu(h if addend is None else h + addend)


class OurSync(nt.SyncBatchNorm):
    activation = "relu"


LAYERS = {"torch": nn.SyncBatchNorm, "normact": nt.SyncBatchNorm}
IN_BLOCKS = {"torch": TorchSync, "normact": OurSync}


def sync(device: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    images, ranks = TINY_IMAGES if options.tiny else IMAGES, dist.get_world_size()
    shape = (images.count // ranks, images.channels, images.size, images.size)
    x = torch.randn(shape, device=device).to(torch.bfloat16, memory_format=torch.channels_last)

    def layer(kind: type[nn.Module]) -> nn.Module:
        return kind(images.channels)

    def block(kind: Any) -> nn.Module:
        net: Any = vision.Block((kind, kind), images.channels, images.channels, 1)
        ids = [torch.device(device, torch.cuda.current_device())] if device == "cuda" else None
        return DistributedDataParallel(net.to(device).to(memory_format=torch.channels_last), ids)

    def step(net: nn.Module, given: Tensor) -> None:
        with torch.autocast(device, torch.bfloat16):
            y = net(given)
        y.backward(given.detach())

    for name, make, kinds in (("layer", layer, LAYERS), ("block", block, IN_BLOCKS)):
        calls: Calls = {}
        missing: dict[str, Any] = {}
        for who, kind in kinds.items():
            try:
                call = functools.partial(step, make(kind).to(device), x.clone().requires_grad_())
                call()
            except Exception as error:  # PyTorch's refuses CPUs
                missing[who] = {"missing": reason(error)}
            else:
                calls[who] = call
        found = _entries(samples(calls, device, options.seconds))
        yield {
            "case": f"sync_batch_norm/{name}/{ranks}",
            "shape": shape,
            "ranks": ranks,
            "contestants": found | missing,
        }


# ---- The command line ----


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.steps", description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("gpt", "sync"))
    parser.add_argument(
        "--modes", type=lambda text: text.split(","), default=MODES, help="of gpt: some of " + ",".join(MODES)
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="for each contestant (default: 5)")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes: to see that it runs")
    parser.add_argument("--output", type=Path, default=records.RESULTS, help="folder of the records")
    parser.add_argument("--commit", help="the commit that is measured, where the tree is not a git checkout")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.what == "gpt":
        return _run(gpt(device, options), device, options)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        code = _run(sync(device, options), device, options)
    finally:
        dist.destroy_process_group()
    # Gloo's threads may still be letting go of Python objects, which aborts a process whose Python ends meanwhile.
    sys.stdout.flush()
    os._exit(code)


def _run(cases: Iterator[dict[str, Any]], device: str, options: argparse.Namespace) -> int:
    """Prints and records each case; of several processes the first does."""
    torch.manual_seed(0)
    first = not dist.is_initialized() or dist.get_rank() == 0
    facts = records.environment(device, options.commit) if first else {}
    recorder = records.Recorder(options.output, {**facts, "mode": "step"}) if first else None
    for record in cases:
        if recorder is None:
            continue
        recorder.write("step", record)
        say(record["case"])
        for name, found in record["contestants"].items():
            say(f"  {name:<10}" + (f"{found['us']:12.1f} us" if "us" in found else f"- ({found['missing']})"))
    if recorder is not None:
        say(f"recorded in {recorder.path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
