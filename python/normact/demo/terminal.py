# SPDX-License-Identifier: Apache-2.0
"""What the demo writes with: colours, a progress bar and a chart. Plain text where the output is not a terminal."""

from __future__ import annotations

import math
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 78
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "cyan": "36"}


def _is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _ascii_only() -> bool:
    return "utf" not in (sys.stdout.encoding or "").lower()


def styled(text: str, style: str) -> str:
    """The text in a colour, if the output is a terminal and NO_COLOR is not set."""
    if os.environ.get("NO_COLOR") or not _is_terminal():
        return text
    return f"\033[{_STYLES[style]}m{text}\033[0m"


def write(text: str = "") -> None:
    """One line, seen at once; characters that the terminal lacks are replaced."""
    encoding = sys.stdout.encoding or "ascii"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)


def heading(text: str) -> None:
    """An empty line, then the title of a part."""
    write()
    write(styled(text, "bold"))


def verdict(passed: bool, text: str) -> None:
    """A line that starts with a green ok or a red FAIL."""
    write(f"  {styled('ok  ', 'green') if passed else styled('FAIL', 'red')}  {text}")


class Progress:
    """A bar that redraws itself in place, and vanishes when done; silent unless the output is a terminal."""

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total, self._done = label, total, 0
        self._drawn = time.monotonic()  # what is quickly done shows no bar

    def _draw(self) -> None:
        full, empty = ("#", ".") if _ascii_only() else ("━", "╌")
        filled = round(30 * self._done / self._total)
        bar = styled(full * filled, "cyan") + styled(empty * (30 - filled), "dim")
        print(f"\r  {self._label} {bar} {self._done}/{self._total}", end="", flush=True)

    def step(self) -> None:
        """One more unit of work is done."""
        self._done += 1
        if not _is_terminal():
            return
        if self._done == self._total:
            print("\r\033[K", end="", flush=True)
        elif time.monotonic() - self._drawn > 0.2:
            self._draw()
            self._drawn = time.monotonic()


def chart(first: Sequence[float], second: Sequence[float], names: tuple[str, str], height: int = 10) -> list[str]:
    """Two curves over the same steps as lines of text; a point where both fall together has its own mark.

    What is not finite is drawn at the top.
    """
    marks = ("1", "2", "*") if _ascii_only() else ("△", "▽", "●")
    width = min(len(first), WIDTH - 12)
    columns = [round(i * (len(first) - 1) / max(width - 1, 1)) for i in range(width)]
    low, high = 0.0, max((value for value in (*first, *second) if math.isfinite(value)), default=1.0)
    grid = [[" "] * width for _ in range(height)]

    def row(value: float) -> int:
        share = (value - low) / (high - low or 1.0) if math.isfinite(value) else 1.0
        return height - 1 - round(share * (height - 1))

    for x, step in enumerate(columns):
        rows = (row(first[step]), row(second[step]))
        for y, mark in zip(rows, marks, strict=False):
            grid[y][x] = marks[2] if rows[0] == rows[1] else mark
    side, corner, floor = ("|", "+", "-") if _ascii_only() else ("│", "└", "─")
    lines = [f"{high - (high - low) * y / (height - 1):8.3f} {side}{''.join(cells)}" for y, cells in enumerate(grid)]
    lines.append(f"{'':8} {corner}{floor * width} step {len(first)}")
    lines.append(f"{'':10}{marks[0]} {names[0]}   {marks[1]} {names[1]}   {marks[2]} both in the same place")
    return lines
