# SPDX-License-Identifier: Apache-2.0
"""The denominators: how long a copy that moves as many bytes takes on this card, in this run.

That of R reads as much as it writes. Of each other mix of reads and writes that is measured there is a curve of its
own, whose kernel reads and writes as many tensors as the case: the denominator of R_mix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

from bench.operations import Traffic
from bench.timing import GraphTimer, gpu_samples, rotation

KIB, GIB = 1 << 10, 1 << 30
SIZES = [16 * KIB << step for step in range(18)]  # 16 KiB to 2 GiB moved (read and written) by a copy
COPY: Traffic = (1, 1)
MIXES: tuple[Traffic, ...] = ((2, 1), (3, 2))  # of the backwards and the gates


@dataclass(frozen=True)
class CopyCurve:
    """(bytes moved, microseconds, the copy that was fastest), by size; between sizes log-log interpolation."""

    points: Sequence[tuple[int, float, str]]

    def us(self, moved: float) -> float:
        """Time of a copy that moves so many bytes; beyond the largest size at its bandwidth."""
        first, last = self.points[0], self.points[-1]
        if moved <= first[0]:
            return first[1]
        if moved >= last[0]:
            return last[1] * moved / last[0]
        for (low, low_us, _), (high, high_us, _) in pairwise(self.points):
            if moved <= high:
                part = math.log(moved / low) / math.log(high / low)
                return low_us * (high_us / low_us) ** part
        raise AssertionError("unreachable: moved lies between the first and the last size")

    def roofline(self, moved: float, us: float) -> float:
        """R: the copy's time over this time."""
        return self.us(moved) / us

    def lines(self) -> list[str]:
        rows = [(moved >> 10, us, moved / us / 1e3, by) for moved, us, by in self.points]
        return [f"copy {kib:>8} KiB  {us:9.2f} us  {gbps:7.0f} GB/s  {by}" for kib, us, gbps, by in rows]


def measure_copies(l2_bytes: int, traffic: Traffic = COPY, sizes: Sequence[int] = SIZES) -> CopyCurve:
    """The fastest way at each size, over rotating buffers like every other case."""
    points = []
    for moved in sizes:
        samples = gpu_samples(_timers(moved, rotation(moved, l2_bytes), traffic))
        name, best = min(samples.items(), key=lambda item: item[1].median)
        points.append((moved, best.median, name))
    return CopyCurve(points)


def measure_mixes(l2_bytes: int, wanted: set[Traffic]) -> dict[Traffic, CopyCurve]:
    """The curves of the mixes that are wanted; none without Triton."""
    try:
        import bench.copy_kernel  # noqa: F401
    except ImportError:
        return {}
    return {traffic: measure_copies(l2_bytes, traffic) for traffic in MIXES if traffic in wanted}


def _timers(moved: int, sets: int, traffic: Traffic) -> dict[str, GraphTimer]:
    """The driver's copy, if it is one, and a kernel."""
    import torch

    (reads, writes), device = traffic, "cuda"
    count = moved // (4 * sum(traffic))  # int32 elements of a tensor
    sources = [
        [torch.randint(0, 1 << 30, (count,), dtype=torch.int32, device=device) for _ in range(reads)]
        for _ in range(sets)
    ]
    targets = [[torch.empty_like(source[0]) for _ in range(writes)] for source in sources]
    pairs = list(zip(targets, sources, strict=True))
    timers = {}
    if traffic == COPY:
        timers["memcpy"] = GraphTimer([lambda t=t, s=s: t[0].copy_(s[0]) for t, s in pairs])
    try:
        from bench.copy_kernel import stream
    except ImportError:
        return timers  # the record shows which copy won; without Triton it is the driver's everywhere
    for target in targets[0]:
        target.zero_()
    stream(*pairs[0])
    expected = reduce(torch.bitwise_xor, sources[0])
    if not all(torch.equal(target, expected) for target in targets[0]):
        raise RuntimeError(f"the copy kernel does not copy ({moved} bytes, {reads} read, {writes} written)")
    timers["kernel"] = GraphTimer([lambda t=t, s=s: stream(t, s) for t, s in pairs])
    return timers
