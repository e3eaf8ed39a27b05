# SPDX-License-Identifier: Apache-2.0
"""The project's sources, as the rules see them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CXX_SUFFIXES = (".h", ".cuh", ".c", ".cpp", ".cu")
FOLDERS = ("cpp", "python", "tests", "examples", "bench")


def files(*suffixes: str, under: tuple[str, ...] = FOLDERS) -> list[Path]:
    found = (path for folder in under for path in (ROOT / folder).rglob("*") if path.suffix in suffixes)
    return sorted(path for path in found if path.is_file())


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def without_comments(text: str) -> str:
    """C++ with comments, strings and character literals blanked, line numbers kept."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.|\n)*?\)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)

    def blank(match: re.Match[str]) -> str:
        token = match.group()
        # 1'000'000: the quote is a digit separator.
        if token[0] == "'" and match.start() and text[match.start() - 1].isalnum():
            return token
        return re.sub(r"[^\n]", " ", token)

    return pattern.sub(blank, text)


def includes(path: Path) -> Iterator[tuple[int, str]]:
    """(line, target) of every #include; the target keeps its quotes or brackets."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*(<[^>]+>|"[^"]+")', line)
        if match:
            yield number, match.group(1)
