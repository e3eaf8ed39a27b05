# SPDX-License-Identifier: Apache-2.0
"""How time is taken: GPU time from replayed CUDA graphs, CPU time from interleaved loops, host time a call."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Call = Callable[[], Any]

GRAPH_LAUNCHES = 12  # at least so many calls in a graph
REPLAYS = 11  # samples of each contestant
L2_MULTIPLE = 4  # the rotated sets exceed the L2 cache so many times
MAX_SETS = 512  # of small tensors; their graphs then hold as many launches
SPIN_CYCLES = 200_000  # keeps the GPU busy while the CPU queues a sample, so that no gap is timed


@dataclass(frozen=True)
class Sample:
    """Times of one contestant, microseconds a call."""

    us: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.us)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a fraction of the median."""
        low, _, high = statistics.quantiles(self.us, n=4)
        return (high - low) / 2 / self.median


# ---- GPU ------------------------------------------------------------------------------------------------------------


def rotation(set_bytes: int, l2_bytes: int) -> int:
    """How many sets of buffers to rotate through so that no call finds its data in the L2 cache."""
    return min(MAX_SETS, max(2, math.ceil(L2_MULTIPLE * l2_bytes / set_bytes)))


class GraphTimer:
    """One contestant's calls, a set of buffers each, captured into a CUDA graph that goes round all the sets.

    Made and used with a stream other than the default one current, the one on which the calls have been prepared.
    The outputs of the last round stay referenced, so that a contestant that allocates gets a fresh output in every
    set, as one with preallocated outputs has. So do the calls: a graph reads what they hold, as what the forward of a
    rival saved for its backward, and does not hold it itself.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        import torch

        for call in (*calls[:1], *calls[:2]):  # the first calls compile, load modules, grow pools
            call()
        self.calls = calls
        self.launches = math.ceil(GRAPH_LAUNCHES / len(calls)) * len(calls)
        self.outputs: list[Any] = [None] * len(calls)
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
            for launch in range(self.launches):
                self.outputs[launch % len(calls)] = calls[launch % len(calls)]()

    def replay(self) -> None:
        self.graph.replay()

    def time(self) -> tuple[Any, Any]:
        """Queues one timed replay; the elapsed time of the two events is read after a synchronisation."""
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(SPIN_CYCLES + 2000 * self.launches)
        start.record()
        self.graph.replay()
        end.record()
        return start, end


def gpu_samples(timers: Mapping[str, GraphTimer], replays: int = REPLAYS) -> dict[str, Sample]:
    """GPU time a call of each contestant; their replays take turns, so that clocks and neighbours hit all alike."""
    import torch

    for timer in timers.values():
        timer.replay()
    times: dict[str, list[float]] = {name: [] for name in timers}
    for _ in range(replays):
        events = {name: timer.time() for name, timer in timers.items()}
        torch.cuda.synchronize()
        for name, (start, end) in events.items():
            times[name].append(start.elapsed_time(end) * 1e3 / timers[name].launches)
    return {name: Sample(tuple(us)) for name, us in times.items()}


def warm_up_gpu(seconds: float = 0.3) -> None:
    """Brings the clocks up."""
    import torch

    a = torch.randn(2048, 2048, device="cuda")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(10):
            torch.mm(a, a)
        torch.cuda.synchronize()


# ---- CPU ------------------------------------------------------------------------------------------------------------

CPU_SAMPLES = 31
CPU_CASE_SECONDS = 3.0  # calls of milliseconds get fewer samples, so that a case takes about so long ...
CPU_LEAST_SAMPLES = 7  # ... but at least these
CPU_SAMPLE_SECONDS = 3e-4  # shorter than a time slice, so that on a busy machine most samples are undisturbed
SETTLE_SECONDS = 0.01  # libgomp's idle workers spin for up to so long before they sleep
QUEUE_DEPTH = 200  # calls of a loop on a GPU; the driver blocks the caller once about a thousand launches wait


def cpu_samples(
    calls: Mapping[str, Call], *, samples: int = CPU_SAMPLES, settle: bool = False, sync: Call | None = None
) -> dict[str, Sample]:
    """Wall time a call of each contestant, taking turns; a sample is a loop of at least CPU_SAMPLE_SECONDS.

    Before each sample the call runs untimed, so that its data are where the last contestant's were.
    settle: wait before that until the last contestant's threads have stopped spinning.
    sync: for asynchronous calls, of which the host's time is wanted: runs after each loop, outside of the time.
    """
    loops, turn = {}, 0.0
    for name, call in calls.items():
        once = min(_loop(call, 1, sync) for _ in range(5))
        loops[name] = min(max(1, math.ceil(CPU_SAMPLE_SECONDS / once)), QUEUE_DEPTH if sync else 1 << 30)
        turn += once * (1 + loops[name] // 8 + loops[name])
    samples = min(samples, max(CPU_LEAST_SAMPLES, int(CPU_CASE_SECONDS / turn)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    collecting = gc.isenabled()
    gc.disable()
    try:
        for _ in range(samples):
            for name, call in calls.items():
                if settle:
                    time.sleep(SETTLE_SECONDS)
                _loop(call, 1 + loops[name] // 8, sync)
                times[name].append(_loop(call, loops[name], sync) * 1e6 / loops[name])
    finally:
        if collecting:
            gc.enable()
    return {name: Sample(tuple(us)) for name, us in times.items()}


def _loop(call: Call, count: int, sync: Call | None) -> float:
    """Seconds of so many calls."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    seconds = time.perf_counter() - start
    if sync:
        sync()
    return seconds
