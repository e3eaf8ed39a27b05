# SPDX-License-Identifier: Apache-2.0
"""Batch, group and instance norm of planes of few places, which go several at a time on a CPU."""

from __future__ import annotations

import dataclasses

import pytest

from activation_cases import Kind
from channel_cases import OPERATIONS, Problem
from channel_checks import check
from devices import Device
from test_channel_planes import every_second_channel


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("places", [1, 2, 7, 8, 15, 16, 17, 33, 49, 64, 129, 255, 256, 257])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_small_planes(device: Device, op: str, dtype: str, places: int) -> None:
    """Around whole vectors; even and odd numbers of planes, and more of them than go together."""
    for samples, channels in ((2, 12), (3, 20), (70, 4)):
        parameters = "float64" if dtype == "float64" else "float32"
        plain = Problem(op, (samples, channels, places), dtype, parameters, num_groups=4, mean=30.0)
        check(device, plain)
        check(device, dataclasses.replace(plain, activation=Kind("relu")), every_second_channel, every_second_channel)
        if op == "batch_norm":
            check(device, dataclasses.replace(plain, addend=True, activation=Kind("relu"), slope_from="mask"))
            check(device, dataclasses.replace(plain, training=False))
