# SPDX-License-Identifier: Apache-2.0
"""A small grid of batch, group and instance norms in both layouts, to be run under compute-sanitizer:

    compute-sanitizer --tool racecheck --error-exitcode 1 python tests/python/sanitizer_channel.py

and the same with memcheck, synccheck and initcheck. See sanitizer_grid.py, which does this for the row norms.
"""

from __future__ import annotations

import argparse
import os
import sys

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import normact
from activation_cases import Kind
from channel_cases import OPERATIONS, Problem
from channel_checks import arrays, check, forward
from devices import TorchDevice
from layouts import channels_last, cropped, half_of

DTYPES = (("float64", "float64"), ("float32", "float32"), ("float16", "float16"), ("bfloat16", "float32"))
RINGS = ((6, 4, 300, 600), (17, 20, 120, 192), (25, 20, 64, 64))
# (N, C); few and many places, whole packs and not; channels that are whole packs, straddle them, or are many; many
# small planes; sets that need more than one block, with whole packs and without; sets of planes that a block takes on,
# or a cluster; bands in clusters; rows that teams take on; groups of cut planes, for a block and for a cluster; sizes
# that rings ask for, with groups of one channel and of five: of these the larger one forward, the smaller one backward.
SHAPES = (
    (33, 12),
    (3, 8, 49),
    (2, 12, 8, 8),
    (5, 36, 3, 3),
    (20, 16, 7, 7),
    (2, 64, 16, 16),
    (1, 4, 70, 70),
    (2, 4, 200, 200),
    (2, 8, 200, 200),
    (800, 8, 2, 4),
    (2, 4, 199, 199),
    (2, 4, 1, 1),
    (3, 260, 5),
    (2, 8, 4, 6, 5),
    (90, 20, 32, 40),
    (300, 8, 7, 7),
    (5, 40, 64, 64),
    (3, 64, 7, 7),
    (3, 96, 49, 49),
    *RINGS,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--op", choices=OPERATIONS, action="append", help="only these (repeatable)")
    parser.add_argument(
        "--dtype", choices=[each[0] for each in DTYPES], action="append", help="only these (repeatable)"
    )
    options = parser.parse_args()
    device = TorchDevice("cuda")
    ran = 0
    for op in options.op or OPERATIONS:
        for dtype, parameter_dtype in DTYPES:
            if options.dtype and dtype not in options.dtype:
                continue
            for shape in SHAPES:
                ran += run(device, op, shape, dtype, parameter_dtype)
    print("problems that ran and were right:", ran)
    return 0


def run(device: TorchDevice, op: str, shape: tuple[int, ...], dtype: str, parameter_dtype: str) -> int:
    batch, places = op == "batch_norm", shape[2:] not in ((), (1, 1))
    activation = Kind("relu" if batch else "silu")
    plain = Problem(op, shape, dtype, parameter_dtype, num_groups=4, running=op != "group_norm" and (batch or places))
    fused = Problem(op, shape, dtype, parameter_dtype, num_groups=4, addend=batch, activation=activation)
    layouts = ("contiguous",) if shape in RINGS else ("contiguous", channels_last, "offset_by_one", "transposed")
    problems = [(problem, layout) for layout in layouts for problem in (plain, fused)]
    if batch:
        from_mask = Problem(op, shape, dtype, parameter_dtype, addend=True, activation=activation, slope_from="mask")
        inference = Problem(op, shape, dtype, parameter_dtype, addend=True, activation=activation, training=False)
        problems += [(problem, layout) for layout in layouts[:2] for problem in (from_mask, inference)]
    for problem, layout in problems:
        check(device, problem, layout, layout)
    away = (half_of(1), cropped) if len(shape) == 4 and shape not in RINGS else ()  # x is copied where it is large
    for layout in away:
        check(device, fused, layout, "contiguous")
    if not batch:
        return len(problems) + len(away)
    forward(fused, arrays(device, fused), return_mask=True)
    for layout in layouts[:2]:  # channels last these are the passes of the launches over rows
        parts(arrays(device, fused, layout, layout))
    return len(problems) + len(away) + 1 + len(layouts[:2])


def parts(given) -> None:
    """The functions of the split form; that they are right is tested elsewhere."""
    moments = normact.batch_norm_statistics(given.x)
    mean, rstd, *_ = normact.batch_norm_merge(moments.expand(3, *moments.shape))
    options = {"mean": mean, "rstd": rstd, "addend": given.addend, "activation": "relu"}
    normact.batch_norm_apply(given.x, given.weight, given.bias, **options)
    sums = normact.batch_norm_reduce(given.dy, given.x, given.weight, given.bias, **options)
    normact.batch_norm_input_gradient(
        given.dy, given.x, given.weight, given.bias, sums=sums, count=moments[2], **options
    )


if __name__ == "__main__":
    sys.exit(main())
