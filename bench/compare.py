# SPDX-License-Identifier: Apache-2.0
"""Compares two records: `python -m bench.compare BEFORE.jsonl AFTER.jsonl`. Says what is a change and what is noise.

The samples of one run agree better with each other than with those of the next run, which has its memory elsewhere. So
a change must pass a rank test of the samples and also exceed what the rivals, which have not changed, differ between
the two runs. Measure some rivals in both; without them only --threshold tells noise.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):  # python bench/compare.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import records
from bench.targets import geomean

LEVEL = 0.01  # of the rank test, two-sided
THRESHOLD = 0.02  # smaller changes are noise whatever else is known
CONTROLS = 10  # at least so many measurements of rivals tell the noise between runs


@dataclass(frozen=True)
class Change:
    key: tuple
    before: float  # microseconds, on a GPU scaled to the same copy time
    after: float
    p: float

    @property
    def speedup(self) -> float:
        return self.before / self.after

    def verdict(self, threshold: float) -> str:
        if self.p > LEVEL or abs(math.log(self.speedup)) <= math.log1p(threshold):
            return "noise"
        return "faster" if self.speedup > 1 else "SLOWER"


def rank_test(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of the Mann-Whitney U test, normal approximation with ties and continuity corrected.

    Source: Mann, Whitney 1947.
    """
    n, m = len(a), len(b)
    values = sorted([*a, *b])
    u = sum((x < y) + 0.5 * (x == y) for x in a for y in b)
    ties = sum(values.count(v) ** 3 - values.count(v) for v in set(values))
    variance = n * m / 12 * ((n + m + 1) - ties / ((n + m) * (n + m - 1)))
    if variance <= 0:
        return 1.0  # all samples are the same number
    z = max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def changes(before: Path, after: Path, contestant: str = "normact") -> list[Change]:
    """The cases that both records have, each with its last measurement there."""
    old, new = (_last(records.read([path]), contestant) for path in (before, after))
    found = []
    for key in (key for key in new if key in old):
        (a, a_copy), (b, b_copy) = old[key], new[key]
        scale = a_copy / b_copy if a_copy and b_copy else 1.0  # the cards' and the days' difference taken out
        scaled = [us * scale for us in b["samples"]]
        found.append(Change(key, a["us"], b["us"] * scale, rank_test(a["samples"], scaled)))
    return found


def noise_between(before: Path, after: Path) -> float | None:
    """Three robust standard deviations of the rivals' differences between the runs; None with too few of them."""
    lines = records.read([before]), records.read([after])
    rivals = {name for side in lines for line in side for name in line.get("contestants", {})}
    differences = []
    for rival in (name for name in rivals if not name.startswith("normact")):
        old, new = (_last(side, rival) for side in lines)
        differences += [abs(math.log(new[key][0]["us"] / old[key][0]["us"])) for key in new if key in old]
    if len(differences) < CONTROLS:
        return None
    return math.expm1(3 * 1.4826 * statistics.median(differences))  # 1.4826: from the median to sigma of a normal


def _last(lines: Sequence[dict], contestant: str) -> dict[tuple, tuple[dict, float | None]]:
    last = {}
    for line in lines:
        values = line.get("contestants", {}).get(contestant, {})
        if "us" in values:
            last[line["record"], line["case"], line.get("threads")] = (values, line.get("copy_us"))
    return last


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.compare", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--contestant", default="normact", help="compare this one's times (default: normact)")
    parser.add_argument("--threshold", type=float, default=THRESHOLD, help="least change that counts (default: 0.02)")
    options = parser.parse_args(arguments)
    found = changes(options.before, options.after, options.contestant)
    if not found:
        print("the records have no case in common")
        return 2
    noise = noise_between(options.before, options.after)
    threshold = max(options.threshold, noise or 0.0)
    counts = {"faster": 0, "SLOWER": 0, "noise": 0}
    for change in sorted(found, key=lambda c: c.speedup):
        verdict = change.verdict(threshold)
        counts[verdict] += 1
        kind, case, threads = change.key
        name = case if threads is None else f"{case} ({threads} threads)"
        if verdict != "noise":
            times = f"{change.before:9.2f} -> {change.after:9.2f} us"
            print(f"{kind:<4} {name:<52} {times}  x{change.speedup:.3f}  p {change.p:.1g}  {verdict}")
    print(f"{len(found)} cases: " + ", ".join(f"{count} {word}" for word, count in counts.items()), end="; ")
    print(f"geometric mean x{geomean(change.speedup for change in found):.4f}")
    measured = "not measured: no rivals in both records" if noise is None else f"{noise:.1%}"
    print(f"noise between the runs {measured}; changes of {threshold:.1%} and more count")
    return 1 if counts["SLOWER"] else 0


if __name__ == "__main__":
    sys.exit(main())
