# SPDX-License-Identifier: Apache-2.0
"""A small grid of every pointwise kernel, dtype, layout and direction, to be run under compute-sanitizer:

    compute-sanitizer --tool memcheck --error-exitcode 1 python tests/python/sanitizer_pointwise.py

and the same with racecheck, synccheck and initcheck. See sanitizer_grid.py, which does this for the norms.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import numpy as np

import normact
from activation_cases import GatedProblem, Kind, Problem
from activation_checks import arrays, check, gated_check
from devices import TorchDevice

DTYPES = ("float64", "float32", "float16", "bfloat16")
# Flat with and without a tail; rows of packs; biases along the last axis, in packs and not; images whose channels are
# whole packs, straddle them, or are smaller.
SHAPES = ((1000,), (8, 64), (33, 77), (2, 3, 64), (20, 6, 49), (2, 4, 5), (1, 1))


def main() -> int:
    device = TorchDevice("cuda")
    gelu, relu = Kind("gelu"), Kind("relu")
    ran = 0
    for dtype in DTYPES:
        for shape in SHAPES:
            for axis in range(-min(len(shape), 2), 0):
                for layout in ("contiguous", "offset_by_one", "row_strided", "transposed"):
                    check(device, Problem(gelu, shape, dtype, dtype, axis), layout)
                    ran += 1
            for packed in ("separate", "split", "interleaved"):
                gated_check(device, GatedProblem(gelu, shape, dtype, packed, (True, True)))
                gated_check(device, GatedProblem(gelu, shape, dtype, packed), "offset_by_one")
                ran += 2
            given = arrays(device, Problem(relu, shape, dtype))
            y, mask = normact.relu(given.x, return_mask=True)
            from_mask = normact.relu_backward(given.dy, mask=mask).dx
            from_output = normact.relu_backward(given.dy, y=y).dx
            np.testing.assert_array_equal(device.bits(from_mask), device.bits(from_output))
            ran += 1
    print("problems that ran and were right:", ran)
    return 0


if __name__ == "__main__":
    sys.exit(main())
