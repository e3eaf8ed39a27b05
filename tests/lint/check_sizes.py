# SPDX-License-Identifier: Apache-2.0
"""Files and functions stay small enough to be held in the head, and each file says its licence."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from source import CXX_SUFFIXES, files, shown, without_comments

FILE_LIMIT = 400
FUNCTION_LIMIT = 60
KERNEL_LIMIT = 120  # of a __global__ function, whose phases share registers and barriers

# What opens a block that is no function.
NOT_A_FUNCTION = re.compile(r"\b(namespace|struct|class|enum|union|extern|if|for|while|switch|do|else|try|catch)\b")


def cxx_functions(text: str) -> list[tuple[str, int, int]]:
    """(head, first line, number of lines) of every outermost function body; macros are left out."""
    text = re.sub(r"(?m)^[ \t]*#(?:.*\\\n)*.*$", lambda m: "\n" * m.group().count("\n"), without_comments(text))
    found: list[tuple[str, int, int]] = []
    head_start, depth_of_body, depth = 0, None, 0
    body: tuple[str, int] | None = None
    for position, char in enumerate(text):
        if char == "{":
            head = " ".join(text[head_start:position].split())
            if body is None and "(" in head and not NOT_A_FUNCTION.match(re.sub(r"^template <.*?> ", "", head)):
                first = text.count("\n", 0, position - len(text[head_start:position].lstrip())) + 1
                body, depth_of_body = (head, first), depth
            depth += 1
            head_start = position + 1
        elif char == "}":
            depth -= 1
            head_start = position + 1
            if body is not None and depth == depth_of_body:
                last = text.count("\n", 0, position) + 1
                found.append((body[0], body[1], last - body[1] + 1))
                body = None
        elif char == ";" and body is None:
            head_start = position + 1
    return found


def python_functions(text: str) -> list[tuple[str, int, int]]:
    """(name, first line, number of lines without the docstring) of every function."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            comment = lines_of(node.body[0]) if ast.get_docstring(node, clean=False) is not None else 0
            found.append((node.name, node.lineno, lines_of(node) - comment))
    return found


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def check_file(path: Path) -> list[str]:
    text = path.read_text()
    lines = text.count("\n")
    problems = []
    if "SPDX-License-Identifier: Apache-2.0" not in text[:200]:
        problems.append(f"{shown(path)}:1: the first lines do not say SPDX-License-Identifier: Apache-2.0")
    if lines > FILE_LIMIT:
        problems.append(f"{shown(path)}: {lines} lines, the limit is {FILE_LIMIT}")
    functions = cxx_functions(text) if path.suffix in CXX_SUFFIXES else python_functions(text)
    for head, first, count in functions:
        kind, limit = ("kernel", KERNEL_LIMIT) if "__global__" in head else ("function", FUNCTION_LIMIT)
        if count > limit:
            problems.append(f"{shown(path)}:{first}: {count} lines, the limit of a {kind} is {limit}: {head[:70]}")
    return problems


def check() -> list[str]:
    return [problem for path in files(*CXX_SUFFIXES, ".py") for problem in check_file(path)]
