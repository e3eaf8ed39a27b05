# SPDX-License-Identifier: Apache-2.0
"""A small grid of every kernel variant, dtype, odd size and direction, to be run under compute-sanitizer:

    compute-sanitizer --tool memcheck --error-exitcode 1 python tests/python/sanitizer_grid.py

and the same with racecheck, synccheck and initcheck. The tools slow a kernel down up to a hundred times, so the grid
is small; what is computed is checked too. PyTorch's caching allocator would hide overruns inside its blocks, hence
PYTORCH_NO_CUDA_MEMORY_CACHING. initcheck does not see what bulk copies write, which is how rows that are not whole
packs of 16 bytes leave the kernels: give it --cols 64 --cols 1000 --cols 40000 --layout contiguous --layout transposed.
racecheck does not follow an mbarrier at which one lane arrives for its warp: where every lane arrives, what it reports
of output buffers vanishes (tried on an H200). What is left in the backward of runs lies on either side of a
__syncthreads (cuda/parameter_sum.cuh).
"""

from __future__ import annotations

import argparse
import os
import sys

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import normact
from activation_cases import KINDS as ACTIVATIONS
from activation_cases import Kind
from cases import KINDS, ROW_VARIANTS, Problem
from checks import check_backward, check_forward
from devices import TorchDevice

COLS = (1, 7, 33, 64, 257, 1000, 4097, 9224, 12289, 40000)
DTYPES = (("float64", "float64"), ("float32", "float32"), ("float16", "float16"), ("bfloat16", "float32"))
# More rows than clusters: slots of their rings are filled again. And rows that are walked over in slices.
WIDEST = {"cluster": ((15, 131208), (8, 245768), (100, 40001)), "stream": ((2, 140_000), (2, 140_001))}
SIDE_BY_SIDE = ((2, 100, 64), (2, 70, 36), (3, 65, 49), (1, 1500, 24), (3, 64, 49), (2, 720, 49))
APART = ((2, 3, 5, 8), (2, 40, 3, 64), (2, 10, 3, 27), (3, 150, 2, 49), (2, 1100, 2, 16))
OVER_AXES = tuple((shape, (1,)) for shape in SIDE_BY_SIDE) + tuple((shape, (1, 3)) for shape in APART)
MIXED_COLS = (264, 768, 4096, 4097, 8192)  # beside a residual of float32; all but one whole packs
LAYOUTS = ("contiguous", "offset_by_one", "transposed")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=ROW_VARIANTS, action="append", help="only these (repeatable)")
    parser.add_argument("--cols", type=int, action="append", help="only rows of so many columns (repeatable)")
    parser.add_argument("--layout", choices=LAYOUTS, action="append", help="only these (repeatable)")
    parser.add_argument("--activation", choices=ACTIVATIONS, help="the norms with this one")
    options = parser.parse_args()
    activation = None if options.activation is None else Kind(options.activation)
    device = TorchDevice("cuda")
    ran: dict[str, int] = {}
    for variant in options.variant or ROW_VARIANTS:
        ran[variant] = sum(
            run(device, variant, problem, layout)
            for kind in KINDS
            for dtype, parameter_dtype in DTYPES
            for cols in options.cols or COLS
            for layout, residual in zip(LAYOUTS, (True, False, False), strict=True)
            if layout in (options.layout or LAYOUTS)
            for problem in [Problem(kind, (3, cols), dtype, parameter_dtype, residual=residual, activation=activation)]
        )
        ran[variant] += sum(
            run(device, variant, problem, "contiguous")
            for kind in KINDS
            for dtype, parameter_dtype in DTYPES
            for shape, axes in OVER_AXES
            for residual in (False, True)
            for problem in [
                Problem(kind, shape, dtype, parameter_dtype, residual=residual, activation=activation, axes=axes)
            ]
        )
        ran[variant] += sum(
            run(device, variant, problem, layout)
            for kind in KINDS
            for dtype, parameter_dtype in DTYPES[2:]
            for cols in options.cols or (*COLS, *MIXED_COLS)
            for layout in LAYOUTS[:2]
            for problem in [
                Problem(kind, (3, cols), dtype, parameter_dtype, residual=True, activation=activation, stream="float32")
            ]
        )
        ran[variant] += sum(
            run(device, variant, problem, "contiguous")
            for shape in (WIDEST.get(variant, ()) if options.cols is None else ())
            for kind in KINDS
            for dtype in ("float32", "bfloat16")
            for residual in (False, True)
            for problem in [Problem(kind, shape, dtype, "float32", residual=residual, activation=activation)]
        )
    print("calls that ran and were right:", ", ".join(f"{name} {count}" for name, count in ran.items()))
    return 0


def run(device: TorchDevice, variant: str, problem: Problem, layout: str) -> int:
    """How many of the two directions the variant accepts; each is checked against the reference."""
    done = 0
    with normact.row_variant(variant):
        for check in (check_forward, check_backward):
            try:
                check(device, problem, layout)
            except NotImplementedError:
                continue
            done += 1
    return done


if __name__ == "__main__":
    sys.exit(main())
