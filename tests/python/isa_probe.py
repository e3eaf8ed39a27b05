# SPDX-License-Identifier: Apache-2.0
"""Checks a grid of problems on the CPU and prints the instruction set in use; run by test_isa.py in a process of its
own, because the choice is made once per process.
"""

from __future__ import annotations

import normact
from activation_cases import GATE_LAYOUTS, GatedProblem, Kind
from activation_cases import KINDS as ACTIVATIONS
from activation_cases import Problem as ActivationProblem
from activation_checks import check as check_activation
from activation_checks import gated_check
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
            for side_by_side in (1, 2, 3, 4, 5):
                check(device, Problem(kind, (40, 7, side_by_side), dtype, parameter_dtype, axes=(1,)))
    for dtype, bias_dtype in DTYPES:
        for name in ACTIVATIONS:
            kind = Kind(name)
            for shape, axis in (((3, 67), -1), ((2, 3, 130), 1)):
                check_activation(device, ActivationProblem(kind, shape, dtype, bias_dtype, axis))
                check_activation(device, ActivationProblem(kind, shape, dtype), "offset_by_one", "transposed")
            for cols in (2, 4, 5, 8, 9, 16, 17, 31, 32, 33, 48, 67):  # a vector and more, whole or not
                problem = ActivationProblem(kind, (5, cols), dtype)
                check_activation(device, problem, "row_strided_odd", "row_strided_odd")
        for layout in GATE_LAYOUTS:
            problem = GatedProblem(Kind("gelu"), (5, 67), dtype, layout, (True, True), bias_dtype, limit=3.0)
            gated_check(device, problem, "row_strided_odd", "transposed")
    print(normact.build_info()["cpu_isa"])


if __name__ == "__main__":
    main()
