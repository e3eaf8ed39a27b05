# SPDX-License-Identifier: Apache-2.0
"""Group and instance norm of many small sets, as of the nodes of a graph or the points of a cloud."""

from __future__ import annotations

import pytest

from activation_cases import KINDS, Kind
from channel_cases import Problem
from channel_checks import check
from devices import Device
from layouts import channels_last, contiguous, every_second_column, every_second_row, offset_by_one, transposed

# (shape, groups): sets of 2 to 8191 elements, some whole packs; one group, or more than a block has.
GROUPS = [
    ((5000, 2), 1),
    ((3000, 9), 3),
    ((700, 148), 37),
    ((2111, 5), 1),
    ((900, 64), 8),
    ((333, 64), 4),
    ((400, 24, 3), 8),
    ((90, 36, 5), 3),
    ((260, 3, 7, 7), 1),
    ((64, 40, 7, 7), 5),
    ((150, 96, 4, 4), 6),
    ((9, 58, 7, 7), 1),
    ((3, 32, 8, 16), 1),
    ((6, 167, 7, 7), 1),
    ((5, 8191), 1),
    ((1, 1200, 3), 300),
]
INSTANCES = [(5000, 3, 2, 2), (300, 70, 5), (2500, 2, 3, 3), (70, 33, 7, 7), (5000, 4, 8, 8), (7, 3, 53, 67)]
LAYOUTS = (contiguous, channels_last, every_second_row)

each_dtype = pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])


def check_layouts(device: Device, problem: Problem) -> None:
    """x and dy alike, and apart."""
    layouts = LAYOUTS if len(problem.shape) > 2 else (contiguous, every_second_row)
    for layout in layouts:
        check(device, problem, layout, layout)
    check(device, problem, layouts[1], contiguous)
    check(device, problem, offset_by_one, contiguous)


@each_dtype
@pytest.mark.parametrize(("shape", "groups"), GROUPS, ids=str)
def test_group_norm(device: Device, dtype: str, shape: tuple[int, ...], groups: int) -> None:
    check_layouts(
        device, Problem("group_norm", shape, dtype, "float64" if dtype == "float64" else "float32", num_groups=groups)
    )


@each_dtype
@pytest.mark.parametrize("shape", INSTANCES, ids=str)
def test_instance_norm_with_running_statistics(device: Device, dtype: str, shape: tuple[int, ...]) -> None:
    check_layouts(device, Problem("instance_norm", shape, dtype, running=True))


@each_dtype
@pytest.mark.parametrize(
    "shape", [(3000, 1, 2, 1), (700, 5, 3), (900, 2, 4, 4), (40, 300, 2), (3, 2000, 1, 4)], ids=str
)
def test_instance_norm(device: Device, dtype: str, shape: tuple[int, ...]) -> None:
    """On the CPU sets are rows of few columns, in strips of some groups."""
    check_layouts(device, Problem("instance_norm", shape, dtype))
    check(device, Problem("instance_norm", shape, dtype, weight=False, bias=False), contiguous, channels_last)
    check(device, Problem("instance_norm", shape, dtype, activation=Kind("gelu")), channels_last, every_second_row)


@each_dtype
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33])
def test_every_size(device: Device, dtype: str, size: int) -> None:
    for samples, groups in ((1, 1), (530, 1), (75, 7), (20, 17), (2, 520)):
        for shape in ((samples, groups * size), (samples, groups, size)):
            problem = Problem("group_norm", shape, dtype, num_groups=groups)
            check(device, problem, contiguous, contiguous)
            check(device, problem, every_second_column, contiguous)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1000, 12), (200, 16), (60, 12, 5, 5), (30, 24, 4, 4), (4, 80, 7, 7)], ids=str)
def test_activations(device: Device, kind: str, shape: tuple[int, ...]) -> None:
    check(device, Problem("group_norm", shape, "float16", num_groups=2, activation=Kind(kind)), contiguous, contiguous)


@pytest.mark.parametrize("mean", [0.0, 300.0, 1e6])
@pytest.mark.parametrize(("shape", "groups"), [((3000, 6), 2), ((50, 6, 7, 7), 2), ((5, 58, 7, 7), 1)], ids=str)
def test_means_far_from_zero(device: Device, mean: float, shape: tuple[int, ...], groups: int) -> None:
    check(device, Problem("group_norm", shape, "float32", num_groups=groups, mean=mean), contiguous, contiguous)


def test_columns_apart(device: Device) -> None:
    check(device, Problem("group_norm", (700, 12), num_groups=3), every_second_column, contiguous)


@each_dtype
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((230, 71, 1), 1),
        ((40, 1024, 1), 1),
        ((40, 1025), 1),
        ((90, 600), 3),
        ((270, 2, 7, 7), 1),
        ((100, 4, 8, 8), 1),
        ((100, 4, 8, 8), 4),
        ((30, 5, 8, 8), 1),
        ((30, 7, 5, 13), 7),
        ((60, 9, 3, 5), 3),
        ((7, 24, 5, 5), 4),
    ],
    ids=str,
)
def test_elements_apart(device: Device, dtype: str, shape: tuple[int, ...], groups: int) -> None:
    """Sets whose planes and rows are no arrays, or short ones, are small up to some hundred elements."""
    layouts = [channels_last, transposed, every_second_column]
    for activation in (None, Kind("silu")):
        problem = Problem("group_norm", shape, dtype, num_groups=groups, activation=activation)
        for layout in layouts:
            check(device, problem, layout, layout)
            check(device, problem, contiguous, layout)
