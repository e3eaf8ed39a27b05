# SPDX-License-Identifier: Apache-2.0
"""The command line: ``python -m normact {info,demo,bench}``."""

from __future__ import annotations

import argparse
import importlib.metadata
import pathlib
import subprocess
import sys

import normact

_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]  # in an editable installation

# The distributions that bring an array library.
_LIBRARIES = {
    "numpy": ("numpy",),
    "torch": ("torch",),
    "jax": ("jax",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "cupy": ("cupy", "cupy-cuda13x", "cupy-cuda12x"),
    "ml_dtypes": ("ml_dtypes",),
}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def info() -> int:
    """Prints what this installation is and which array libraries it meets here."""
    facts = normact.build_info()
    facts["cuda"] = facts["cuda"] or "none: a CPU build"
    facts |= {"threads": str(normact.get_num_threads())}
    facts |= {"include": normact.get_include(), "cmake": normact.cmake_dir()}
    for name, distributions in _LIBRARIES.items():
        facts[name] = next(filter(None, map(_version, distributions)), "not installed")
    for name, value in facts.items():
        print(f"{name:>18}  {value}")
    return 0


def bench(argv: list[str]) -> int:
    """Without arguments a quick timing; with arguments the benchmarks of the source tree, if this runs from one."""
    if not argv:
        from normact import quick_bench

        return quick_bench.main()
    if not (_REPOSITORY / "bench" / "run.py").is_file():
        print(
            f"python -m normact bench {argv[0]}: the benchmarks that take options are in normact's source tree and "
            "need an editable installation of it; without options this prints a quick timing",
            file=sys.stderr,
        )
        return 2
    return subprocess.call([sys.executable, "-m", "bench.run", *argv], cwd=_REPOSITORY)


def main(argv: list[str]) -> int:
    """Runs a subcommand and returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m normact", description="Fused normalization and activation kernels for GPUs and CPUs."
    )
    parser.add_argument("--version", action="version", version=normact.__version__)
    parser.add_argument("command", choices=("info", "demo", "bench"), help="what to do")
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    args, rest = parser.parse_args(argv[:1]), argv[1:]
    if args.command == "info":
        argparse.ArgumentParser(prog="python -m normact info", description=info.__doc__).parse_args(rest)
        return info()
    if args.command == "bench":
        return bench(rest)
    from normact import demo

    return demo.main(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
