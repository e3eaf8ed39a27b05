# SPDX-License-Identifier: Apache-2.0
"""The denominator of R: how long a copy that moves as many bytes takes on this card, in this run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.timing import GraphTimer, gpu_samples, rotation

KIB, GIB = 1 << 10, 1 << 30
SIZES = [16 * KIB << step for step in range(18)]  # 16 KiB to 2 GiB moved (read and written) by a copy


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


def measure_copies(l2_bytes: int, sizes: Sequence[int] = SIZES) -> CopyCurve:
    """The best of the driver's copy and a copy kernel at each size, over rotating buffers like every other case."""
    points = []
    for moved in sizes:
        samples = gpu_samples(_timers(moved, rotation(moved, l2_bytes)))
        name, best = min(samples.items(), key=lambda item: item[1].median)
        points.append((moved, best.median, name))
    return CopyCurve(points)


def _timers(moved: int, sets: int) -> dict[str, GraphTimer]:
    import torch

    count = moved // 8  # int32 elements of a tensor; a copy reads one tensor and writes one
    sources = [torch.randint(0, 1 << 30, (count,), dtype=torch.int32, device="cuda") for _ in range(sets)]
    targets = [torch.empty_like(source) for source in sources]
    pairs = list(zip(targets, sources, strict=True))
    timers = {"memcpy": GraphTimer([lambda t=t, s=s: t.copy_(s) for t, s in pairs])}
    try:
        from bench.copy_kernel import copy
    except ImportError:
        pass  # the record shows which copy won; without Triton it is the driver's everywhere
    else:
        targets[0].zero_()
        copy(targets[0], sources[0])
        if not torch.equal(targets[0], sources[0]):
            raise RuntimeError(f"the copy kernel does not copy ({moved} bytes)")
        timers["kernel"] = GraphTimer([lambda t=t, s=s: copy(t, s) for t, s in pairs])
    return timers
