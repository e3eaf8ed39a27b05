# SPDX-License-Identifier: Apache-2.0
"""What the demos have in common: PyTorch and normact take turns, side by side, and their losses are drawn."""

from __future__ import annotations

import importlib.util
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

import normact
from normact.demo.terminal import Progress, write

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAMES = ("PyTorch", "normact")
Losses = tuple[list[float], list[float]]


def choose_device(wanted: str) -> str:
    """'cuda' if PyTorch sees a GPU and normact was built for it, unless the caller wants something else."""
    has_gpu, built = torch.cuda.is_available(), bool(normact.build_info()["cuda"])
    if wanted == "cuda" and not (has_gpu and built):
        reason = "PyTorch finds no GPU" if not has_gpu else "this build of normact has no CUDA back end"
        raise ValueError(f"--device cuda cannot be used: {reason}")
    return wanted if wanted != "auto" else "cuda" if has_gpu and built else "cpu"


def pair(
    make: Callable[[Any], nn.Module], plain: Any, fused: Any, device: str, dtype: torch.dtype
) -> tuple[nn.Module, nn.Module]:
    """The net with PyTorch's parts and with normact's, from the same random numbers."""
    nets = []
    for parts in (plain, fused):
        torch.manual_seed(0)
        nets.append(make(parts).to(device, dtype))
    return nets[0], nets[1]


class Timing(NamedTuple):
    """Seconds of many runs."""

    median: float
    best: float

    @property
    def disturbed(self) -> bool:
        """Whether something else was busy on the machine, so that the median says little."""
        return self.median > 3 * self.best


def take_turns(functions: Sequence[Callable[[], object]], rounds: int, device: str, label: str) -> list[Timing]:
    """Times each function; they take turns, so that a slow moment of the machine hits all of them."""
    seconds: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function()  # the first call allocates and warms caches
    progress = Progress(label, rounds)
    for _ in range(rounds):
        for times, function in zip(seconds, functions, strict=True):
            _synchronize(device)
            start = time.perf_counter()
            function()
            _synchronize(device)
            times.append(time.perf_counter() - start)
        progress.step()
    return [Timing(statistics.median(times), min(times)) for times in seconds]


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def place(device: str) -> str:
    """Where the demo runs and on what, in one line."""
    info = normact.build_info()
    cpu = f"CPU ({info['cpu_isa']}, {normact.get_num_threads()} threads)"
    where = torch.cuda.get_device_name() if device == "cuda" else cpu
    return f"{where}, normact {normact.__version__}, PyTorch {torch.__version__}"


def duration(seconds: float) -> str:
    """In microseconds or milliseconds, whichever reads better."""
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def largest_difference(losses: Losses) -> float:
    """Of two loss curves, relative; NaN if one has a NaN."""
    differences = [abs(a - b) / a for a, b in zip(*losses, strict=True)]
    return max(differences, key=lambda d: (d != d, d))


def plot_losses(curves: Sequence[tuple[str, str, Losses]], path: str) -> None:
    """A PNG file of (title, label of the y axis, the two curves), side by side, if matplotlib is there."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * len(curves), 4.0), layout="constrained")
    for axes, (title, label, losses) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves, strict=True):
        axes.plot(losses[0], color="#bbbbbb", linewidth=6, label=NAMES[0])
        axes.plot(losses[1], color="#0b6e4f", linewidth=1.5, label=NAMES[1])
        axes.set(xlabel="step", ylabel=label, title=title, ylim=(0, None))
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    write(f"  Curves saved to {path}")
