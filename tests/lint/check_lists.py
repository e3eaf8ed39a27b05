# SPDX-License-Identifier: Apache-2.0
"""Each line of lists.h has a float64 reference, a Python function, a docs row, tests and a benchmark."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from source import ROOT

LISTS = ROOT / "cpp" / "include" / "normact" / "lists.h"

# The lists whose numbers callers may have compiled in, and what their enumerators begin with.
PINNED = {
    "NORMACT_STATUS_LIST": "NORMACT",
    "NORMACT_NORM_LIST": "NORMACT_NORM",
    "NORMACT_ACTIVATION_LIST": "NORMACT_ACTIVATION",
    "NORMACT_GATE_LAYOUT_LIST": "NORMACT_GATE",
    "NORMACT_ROW_VARIANT_LIST": "NORMACT_ROW",
}


# Norms whose kind is their entry point and no line of lists.h, and their references.
CHANNEL_NORMS = {
    "batch_norm": ("batch_norm", "batch_norm_backward"),
    "group_norm": ("group_norm", "group_norm_backward"),
    "instance_norm": (),  # a group norm with a group for each channel
}


class Texts(NamedTuple):
    """Where the names of operations must be found."""

    public: str
    readme: str
    bench: str


class Entry(NamedTuple):
    """One row of an X-macro list; only activations have a struct."""

    symbol: str
    value: int
    name: str
    struct: str


def entries(list_name: str) -> list[Entry]:
    text = LISTS.read_text()
    match = re.search(rf"#define {list_name}\(X\)((?:.*\\\n)*.*)", text)
    assert match, f"{LISTS}: no list {list_name}"
    found = re.findall(r'X\((\w+), (\d+), "([^"]*)"(?:, (\w+))?\)', match.group(1))
    assert len(found) == match.group(1).count("X("), f"{LISTS}: a row of {list_name} has another form"
    return [Entry(symbol, int(value), name, struct) for symbol, value, name, struct in found]


def names(list_name: str) -> list[str]:
    return [entry.name for entry in entries(list_name)]


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


def check_operation(name: str, reference: str, functions_of_reference: tuple[str, ...], texts: Texts) -> list[str]:
    """What norms and activations have in common: a reference, Python functions, a row in the README, a benchmark."""
    defined = functions(reference)
    problems = [f"{reference}: no function {each}" for each in functions_of_reference if each not in defined]
    for each in (name, f"{name}_backward"):
        if not re.search(rf"\b{each}\b", texts.public):
            problems.append(f"python/normact/__init__.py: does not export {each}")
    if not re.search(rf"^\|[^\n]*`{name}\b", texts.readme, re.MULTILINE):
        problems.append(f"README.md: no table row with `{name}`")
    if not re.search(rf"\b{name}\b", texts.bench):
        problems.append(f"bench/: no case of {name}")
    return problems


def check_values() -> list[str]:
    """Numbers are part of the interface: they count from 0 in the order of the list, and a test in C knows each."""
    problems = []
    pinned = "".join(path.read_text() for path in sorted((ROOT / "tests" / "c").glob("*.c")))
    for list_name, prefix in PINNED.items():
        for index, entry in enumerate(entries(list_name)):
            if entry.value != index:
                problems.append(f"lists.h: {entry.symbol} of {list_name} is {entry.value}, its place is {index}")
            if not re.search(rf"\b{prefix}_{entry.symbol} == {entry.value}\b", pinned):
                problems.append(f"tests/c: no assertion that {prefix}_{entry.symbol} == {entry.value}")
    return problems


def check() -> list[str]:
    problems = check_values()
    norms, variants = names("NORMACT_NORM_LIST"), names("NORMACT_ROW_VARIANT_LIST")
    texts = Texts(
        public=text_of("python/normact/__init__.py"),
        readme=text_of("README.md"),
        bench="".join(path.read_text() for path in sorted((ROOT / "bench").rglob("*.py"))),
    )
    architecture = text_of("ARCHITECTURE.md")
    formulas = "".join(path.read_text() for path in sorted((ROOT / "cpp" / "math").glob("activation*.h")))
    for norm in norms:
        problems += check_operation(norm, "tests/python/reference.py", (norm, f"{norm}_backward"), texts)
    for norm, references in CHANNEL_NORMS.items():
        problems += check_operation(norm, "tests/python/reference_channel.py", references, texts)
    for _, _, name, struct in entries("NORMACT_ACTIVATION_LIST"):
        problems += check_operation(name, "tests/python/reference_activation.py", (name, f"{name}_slope"), texts)
        if not re.search(rf"^struct {struct}\b", formulas, re.MULTILINE):
            problems.append(f"cpp/math/activation*.h: no struct {struct} for {name}")
    for path, name, want in (
        ("tests/python/cases.py", "KINDS", norms),
        ("tests/python/cases.py", "ROW_VARIANTS", variants),
        ("tests/python/channel_cases.py", "OPERATIONS", list(CHANNEL_NORMS)),
    ):
        if list(constant(path, name)) != want:
            problems.append(f"{path}: {name} is {constant(path, name)}, lists.h says {want}")
    problems += [f"ARCHITECTURE.md: no row kernel `{name}`" for name in variants[1:] if f"`{name}`" not in architecture]
    return problems
