# SPDX-License-Identifier: Apache-2.0
"""What every run does around its cases: keeps to the time limit, prints as it goes, ends with the targets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from bench import targets
from bench.cases import Case
from bench.records import Recorder


class Budget:
    """Hands out cases until the time is up, and says what it left out."""

    def __init__(self, seconds: float) -> None:
        self.start, self.seconds = time.monotonic(), seconds

    @property
    def spent(self) -> float:
        return time.monotonic() - self.start

    def within(self, cases: Sequence[Case]) -> Iterator[Case]:
        for number, case in enumerate(cases):
            if self.spent > self.seconds:
                say(f"time limit: {len(cases) - number} of {len(cases)} cases not run, from {case.name} on")
                return
            yield case


def say(text: str) -> None:
    print(text, flush=True)


def finish(measured: Sequence[dict], kind: str, recorder: Recorder, budget: Budget) -> None:
    say("")
    for line in targets.verdict_lines(targets.judge(measured, kind)):
        say(line)
    say(f"\n{len(measured)} measurements in {budget.spent:.0f} s, recorded in {recorder.path}")
