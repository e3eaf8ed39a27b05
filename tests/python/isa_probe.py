# SPDX-License-Identifier: Apache-2.0
"""Checks a grid of problems on the CPU and prints the instruction set in use; run by test_isa.py in a process of its
own, because the choice is made once per process.
"""

from __future__ import annotations

import normact
from cases import DTYPES, KINDS, LARGE_COLS, MIDDLE_COLS, SMALL_COLS, Problem
from checks import check
from devices import NumpyDevice


def main() -> None:
    device = NumpyDevice()
    for kind in KINDS:
        for dtype, parameter_dtype in DTYPES:
            for cols in SMALL_COLS + MIDDLE_COLS + LARGE_COLS[:1]:
                problem = Problem(kind, (3, cols), dtype, parameter_dtype, residual=cols % 2 == 0)
                check(device, problem)
                check(device, problem, "offset_by_one", "row_strided_odd")
            check(device, Problem(kind, (5, 66), dtype, parameter_dtype), "transposed", "every_second_column")
            check(device, Problem(kind, (700, 40), dtype, parameter_dtype, weight=False))
    print(normact.build_info()["cpu_isa"])


if __name__ == "__main__":
    main()
