# SPDX-License-Identifier: Apache-2.0
"""Each line of lists.h has a float64 reference, a Python function, a docs row, tests and a benchmark."""

from __future__ import annotations

import ast
import re

from source import ROOT

LISTS = ROOT / "cpp" / "include" / "normact" / "lists.h"


def names(list_name: str) -> list[str]:
    """The third column of an X-macro list."""
    text = LISTS.read_text()
    match = re.search(rf"#define {list_name}\(X\)((?:.*\\\n)*.*)", text)
    assert match, f"{LISTS}: no list {list_name}"
    found = re.findall(r'X\(\w+, \d+, "([^"]*)"(?:, \w+)?\)', match.group(1))
    assert found, f"{LISTS}: {list_name} is empty"
    return found


def text_of(path: str) -> str:
    """The file's text; a file that is missing has none, and so breaks every rule about it."""
    file = ROOT / path
    return file.read_text() if file.exists() else ""


def functions(path: str) -> set[str]:
    tree = ast.parse(text_of(path))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def constant(path: str, name: str) -> tuple[str, ...]:
    """The value of a tuple of strings assigned at the top of a module."""
    for node in ast.parse(text_of(path)).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name:
            return tuple(ast.literal_eval(node.value))
    raise AssertionError(f"{path}: no {name}")


def check() -> list[str]:
    problems = []
    norms, variants = names("NORMACT_NORM_LIST"), names("NORMACT_ROW_VARIANT_LIST")
    references = functions("tests/python/reference.py")
    public = text_of("python/normact/__init__.py")
    readme = text_of("README.md")
    bench = "".join(path.read_text() for path in sorted((ROOT / "bench").rglob("*.py")))
    architecture = text_of("ARCHITECTURE.md")
    for norm in norms:
        for name in (norm, f"{norm}_backward"):
            if name not in references:
                problems.append(f"tests/python/reference.py: no function {name}")
            if not re.search(rf"\b{name}\b", public):
                problems.append(f"python/normact/__init__.py: does not export {name}")
        if not re.search(rf"^\|[^\n]*`{norm}\b", readme, re.MULTILINE):
            problems.append(f"README.md: no table row with `{norm}`")
        if not re.search(rf"\b{norm}\b", bench):
            problems.append(f"bench/: no case of {norm}")
    slopes = functions("tests/python/reference_activation.py")
    for activation in names("NORMACT_ACTIVATION_LIST"):
        for name in (activation, f"{activation}_slope"):
            if name not in slopes:
                problems.append(f"tests/python/reference_activation.py: no function {name}")
        for name in (activation, f"{activation}_backward"):
            if f'"{name}"' not in public:
                problems.append(f"python/normact/__init__.py: does not export {name}")
        if not re.search(rf"^\|[^\n]*`{activation}`", readme, re.MULTILINE):
            problems.append(f"README.md: no table row with `{activation}`")
    for path, name, want in (
        ("tests/python/cases.py", "KINDS", norms),
        ("tests/python/cases.py", "ROW_VARIANTS", variants),
    ):
        if list(constant(path, name)) != want:
            problems.append(f"{path}: {name} is {constant(path, name)}, lists.h says {want}")
    problems += [f"ARCHITECTURE.md: no row kernel `{name}`" for name in variants[1:] if f"`{name}`" not in architecture]
    return problems
