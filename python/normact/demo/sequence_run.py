# SPDX-License-Identifier: Apache-2.0
"""The demos of transformers: a GPT that learns Python from its standard library, and a ViT that reads digits.

Each trains with PyTorch's modules and with normact's, eagerly, compiled and, on a GPU, as a captured CUDA graph. Every
run starts from the same numbers and sees the same batches as PyTorch's eager one, whose losses it must have.
"""

from __future__ import annotations

import math
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from normact.demo import MAX_LOSS_DIFFERENCE, MODES, sequence
from normact.demo.steps import Steps, compiler_error
from normact.demo.terminal import chart, heading, styled, verdict, write
from normact.demo.turns import NAMES, Losses, largest_difference, pair, place, plot_losses, take_turns

SIZES = {
    "gpt": {
        "cpu": sequence.Size(width=128, layers=3, heads=4, length=128, batch=8),
        "cuda": sequence.Size(width=768, layers=12, heads=12, length=1024, batch=8),
    },
    "vit": {
        "cpu": sequence.Size(width=96, layers=4, heads=4, length=16, batch=64),
        "cuda": sequence.Size(width=384, layers=12, heads=6, length=16, batch=64),
    },
}
LATER_STEPS = 20  # of the modes after the first, at most: enough to time, and to see losses part


class Task(NamedTuple):
    """What is learned."""

    title: str
    what: str  # the data, in a line
    unit: str  # of what a step reads
    count: int  # of them a step
    parts: tuple[sequence.Parts, sequence.Parts]
    make: Callable[[sequence.Parts], nn.Module]
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    batch: Callable[[int], tuple[Tensor, Tensor]]  # of a step
    rate: float  # smaller for wide nets, whose sums are longer


def library_text() -> Tensor:
    """The sources of Python's standard library, and its help texts: some five million bytes."""
    folder = pathlib.Path(os.__file__).parent
    files = [*sorted(folder.glob("*.py")), folder / "pydoc_data" / "topics.py"]
    text = b"".join(file.read_bytes() for file in files if file.is_file())
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def gpt(device: str) -> Task:
    """The next byte of a text."""
    size, text = SIZES["gpt"][device], library_text()

    def batch(step: int) -> tuple[Tensor, Tensor]:
        begins = torch.randint(len(text) - size.length, (size.batch,), generator=torch.Generator().manual_seed(step))
        rows = torch.stack([text[begin : begin + size.length + 1] for begin in begins.tolist()]).long().to(device)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def loss(net: nn.Module, text: Tensor, following: Tensor) -> Tensor:
        return functional.cross_entropy(net(text).flatten(0, 1), following.flatten())

    what = f"{len(text) / 1e6:.1f} million bytes of Python's standard library, {size.batch} x {size.length} a step"

    def make(parts: sequence.Parts) -> nn.Module:
        return sequence.GPT(parts, size)

    count = size.batch * size.length
    return Task(
        "GPT: AddRMSNorm and SwiGLU", what, "bytes", count, sequence.GPT_PARTS, make, loss, batch, 12.8 / size.width
    )


def vit(device: str) -> Task:
    """Which digit an image shows."""
    from normact.demo import vision_run

    size = SIZES["vit"][device]
    digits = vision_run.load(device).float()

    def loss(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(net(images), labels)

    what = f"{len(digits.images)} handwritten digits of 8 x 8 pixels (scikit-learn), {size.batch} a step"

    def make(parts: sequence.Parts) -> nn.Module:
        return sequence.ViT(parts, size)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        return digits.batch(step, size.batch)

    title, rate = "ViT: AddLayerNorm and BiasGELU", min(0.002, 0.2 / size.width)
    return Task(title, what, "images", size.batch, sequence.VIT_PARTS, make, loss, batch, rate)


TASKS = {"gpt": gpt, "vit": vit}


def train(task: Task, mode: str, device: str, steps: int) -> tuple[Losses, tuple[float, float]]:
    """Both nets side by side from the same numbers: their losses, and what each reads a second."""
    nets = pair(task.make, *task.parts, device, torch.float32)
    both = [Steps(net, task.loss, task.batch, task.rate, mode) for net in nets]
    times = take_turns(both, steps - 1, device, mode)
    return (both[0].losses, both[1].losses), (task.count / times[0].median, task.count / times[1].median)


def usable(device: str, wanted: tuple[str, ...]) -> Iterator[str]:
    """The modes that work here; of the others, says why not."""
    for mode in wanted:
        if mode == "graphed" and device != "cuda":
            write("  graphed: CUDA graphs need a GPU")
        elif mode == "compiled" and (error := compiler_error(device)):
            write(f"  compiled: torch.compile does not work here: {error}")
        else:
            yield mode


def show(task: Task, device: str, steps: int, modes: tuple[str, ...]) -> tuple[Losses, bool]:
    """All modes; the eager losses, and whether all runs agree."""
    curves: dict[str, Losses] = {}
    # In float32 both add the same numbers in another order: such nets part by some 1e-7 in a hundred steps.
    write(styled(f"  {'':10}{NAMES[0]:>16}{NAMES[1]:>16}   {task.unit} a second, median", "dim"))
    for mode in usable(device, modes):
        count = min(steps, LATER_STEPS) if curves else steps
        curves[mode], (plain, ours) = train(task, mode, device, count)
        write(f"  {mode:10}{plain:16,.0f}{ours:16,.0f}   {ours / plain:4.2f}x")
    if not curves:
        return ([], []), False
    first = next(iter(curves.values()))
    for line in chart(*first, NAMES):
        write("  " + line)
    want = first[0]
    differences = [largest_difference((want[: len(curve)], curve)) for losses in curves.values() for curve in losses]
    difference = max(differences, key=lambda d: (math.isnan(d), d))
    passed = difference <= MAX_LOSS_DIFFERENCE  # a NaN fails
    runs = f"{len(differences)} runs"
    verdict(
        passed,
        f"largest relative difference of the losses of {runs}: {difference:.1e} (allowed: {MAX_LOSS_DIFFERENCE})",
    )
    write(f"  The loss went from {want[0]:.3f} to {want[-1]:.3f}.")
    return first, passed


def run(what: str, device: str, steps: int, plot: str, modes: tuple[str, ...] = MODES) -> int:
    """One of the tasks; 0 if PyTorch and normact agree."""
    start = time.perf_counter()
    task = TASKS[what](device)
    write(styled("normact: a transformer on fused kernels", "bold"))
    write(f"  {place(device)}")
    write(f"  {task.what}")
    heading(f"{task.title}, {steps} steps of SGD")
    losses, passed = show(task, device, steps, modes)
    if losses[0]:
        plot_losses([(task.title, "cross entropy", losses)], plot)
    heading(f"{'Done' if passed else 'The nets do not agree'} in {time.perf_counter() - start:.0f} s.")
    return 0 if passed else 1
