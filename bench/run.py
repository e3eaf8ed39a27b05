# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks: `python -m bench.run gpu|cpu|host`. Results are printed as they come and recorded."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):  # python bench/run.py
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import records
from bench.groups import GROUPS, cases_of
from bench.progress import Budget, say

DEFAULTS = {
    "gpu": {"groups": "roofline", "rivals": "none"},
    "cpu": {"groups": "cpu", "rivals": "torch,jax"},
    "host": {"groups": "", "rivals": "none"},
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    from bench.baselines import RIVALS

    parser = argparse.ArgumentParser(prog="bench.run", description=__doc__)
    parser.add_argument("mode", choices=DEFAULTS)
    parser.add_argument("--groups", help=f"comma-separated, of {', '.join(GROUPS)} (default: roofline or cpu)")
    parser.add_argument("--filter", default="", help="keep cases whose name op/direction/dtype/SHAPE matches this")
    parser.add_argument("--rivals", help=f"comma-separated, of {', '.join(RIVALS)}; or all, or none")
    parser.add_argument("--time-limit", type=float, default=float("inf"), metavar="SECONDS", help="start no case after")
    parser.add_argument("--variant", default="auto", help="force a CUDA row kernel, see normact.row_variant")
    parser.add_argument("--threads", default="1,all", help="cpu: thread counts (default: 1,all)")
    parser.add_argument("--output", type=Path, default=records.RESULTS, help="folder of the records")
    parser.add_argument("--commit", help="the commit that is measured, where the tree is not a git checkout")
    options = parser.parse_args(arguments)
    for name, value in DEFAULTS[options.mode].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.rivals = _names(parser, "rival", options.rivals, RIVALS)
    options.groups = _names(parser, "group", options.groups, GROUPS)
    options.cases = [case for case in cases_of(options.groups) if re.search(options.filter, case.name)]
    return options


def _names(parser: argparse.ArgumentParser, what: str, text: str, known: dict) -> list[str]:
    if text in ("", "none"):
        return []
    names = list(known) if text == "all" else text.split(",")
    for name in names:
        if name not in known:
            parser.error(f"unknown {what} {name!r}, expected one of {', '.join(known)}")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.mode != "host" and not options.cases:
        say("no case matches")
        return 2
    import normact

    forced = normact.row_variant(options.variant) if options.variant != "auto" else contextlib.nullcontext()
    with forced:
        if options.mode == "gpu":
            from bench.gpu import run
        elif options.mode == "cpu":
            from bench.cpu import run
        else:
            from bench.host import run
        return run(options, Budget(options.time_limit))


if __name__ == "__main__":
    sys.exit(main())
