# SPDX-License-Identifier: Apache-2.0
"""Who may include whom: python -> bindings -> normact.h -> api -> core -> {cpu, cuda} -> math."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

from source import CXX_SUFFIXES, ROOT, files, includes, shown

# Folder -> the folders (or single headers) that its files may include. Paths are from cpp/ or cpp/include/.
ALLOWED = {
    "cpp/include": ("normact/", "dlpack/"),
    "cpp/math": ("math/",),
    "cpp/core": ("core/", "math/", "normact/"),
    "cpp/cpu": ("cpu/", "core/", "math/", "normact/"),
    "cpp/cuda": ("cuda/", "core/", "math/", "normact/"),
    "cpp/api": ("api/", "core/", "cpu/backend.h", "cuda/backend.h", "normact/"),
    "python/bindings": ("bindings/", "normact/", "nanobind/", "dlpack/"),
    "examples": ("normact/",),
    "tests/c": ("normact/", "check.h"),
}

CUDA_HEADER = re.compile(r"^(?!\"cuda/)[<\"](cuda|cub/|cooperative_groups|nv/|mma\.h|device_launch|driver_types|sm_\d)")
PYTHON_HEADER = re.compile(r"^[<\"](Python\.h|nanobind/|pybind11/|numpy/)")
FRAMEWORKS = {"torch", "jax", "jaxlib", "flax", "tensorflow", "keras", "cupy", "ml_dtypes"}
# What is imported on request only may import frameworks at its top; these others only inside functions.
ON_REQUEST = re.compile(r"^(torch(/\w+)?|jax(/\w+)?|tensorflow(/\w+)?|keras(/\w+)?|demo/(?!__init__)\w+)\.py$")
LAZY = re.compile(r"^(arrays|quick_bench|demo/__init__)\.py$")


def check_cxx(path: Path) -> list[str]:
    name = shown(path)
    problems = []
    rule = next((folder for folder in ALLOWED if name.startswith(folder + "/")), None)
    for line, target in includes(path):
        inner = target[1:-1]
        if target[0] == '"' and rule and not inner.startswith(ALLOWED[rule]):
            problems.append(f"{name}:{line}: {rule} may include {', '.join(ALLOWED[rule])}, found {target}")
        if CUDA_HEADER.match(target) and not name.startswith(("cpp/cuda/", "tests/cpp/cuda_", "examples/")):
            problems.append(f"{name}:{line}: CUDA headers belong under cpp/cuda, found {target}")
        if PYTHON_HEADER.match(target) and not name.startswith("python/bindings/"):
            problems.append(f"{name}:{line}: Python belongs under python/bindings, found {target}")
        if target.startswith('"..') or target.startswith('"./'):
            problems.append(f"{name}:{line}: include by the path from cpp/, found {target}")
    return problems


def cuda_standard(root: Path = ROOT) -> list[str]:
    """What a C++17 compiler says of the headers of core and math that CUDA sources include: these are C++17."""
    sources = [path for path in sorted((root / "cpp/cuda").iterdir()) if path.suffix in (".cu", ".cuh", ".h")]
    headers = {target for path in sources for _, target in includes(path) if target.startswith(('"core/', '"math/'))}
    command = [os.environ.get("CXX", "c++"), "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
    command += [f"-I{root / folder}" for folder in ("cpp", "cpp/include")]
    text = "".join(f"#include {header}\n" for header in sorted(headers))
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    return [] if done.returncode == 0 else [line for line in done.stderr.splitlines() if "error" in line]


def framework_imports(tree: ast.Module) -> list[tuple[int, str, bool]]:
    """(line, framework, whether it runs when the module is imported)."""
    found: list[tuple[int, str, bool]] = []

    def note(node: ast.Import | ast.ImportFrom, names: list[str], at_import: bool) -> None:
        tops = [name.split(".")[0] for name in names]
        found.extend((node.lineno, top, at_import) for top in tops if top in FRAMEWORKS)

    def visit(node: ast.AST, at_import: bool) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            at_import = False
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.Import):
            note(node, [alias.name for alias in node.names], at_import)
        if isinstance(node, ast.ImportFrom) and not node.level:
            note(node, [node.module or ""], at_import)
        for child in ast.iter_child_nodes(node):
            visit(child, at_import)

    visit(tree, True)
    return found


def check_python(path: Path) -> list[str]:
    module = path.relative_to(ROOT / "python" / "normact").as_posix()
    if ON_REQUEST.match(module):
        return []
    problems = []
    for line, framework, at_import in framework_imports(ast.parse(path.read_text())):
        if at_import:
            problems.append(f"{shown(path)}:{line}: importing normact must not import {framework}")
        elif not LAZY.match(module):
            problems.append(f"{shown(path)}:{line}: {framework} is the business of arrays.py and {framework}.py")
    return problems


def check() -> list[str]:
    found = [problem for path in files(*CXX_SUFFIXES) for problem in check_cxx(path)]
    return found + [problem for path in files(".py", under=("python/normact",)) for problem in check_python(path)]
