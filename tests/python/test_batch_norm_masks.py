# SPDX-License-Identifier: Apache-2.0
"""Batch norm beside relu's mask: its bits in both orders, and backwards from it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from activation_cases import Kind
from cases import DTYPES
from channel_cases import Problem, expected_forward, packed, slope_sources
from channel_checks import arrays, backward, check_backward, forward
from devices import Device
from layouts import channels_last
from normact.channel_calls import is_channels_last

SHAPES = [((3, 16, 4, 4), 1), ((3, 7, 5, 3), 1), ((5, 3, 33), -1), ((9, 13), 1), ((4, 1, 8, 8), 1), ((20, 16, 1, 1), 1)]
both_dtypes = pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES, ids=["-".join(pair) for pair in DTYPES])


@both_dtypes
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_mask(device: Device, dtype: str, parameter_dtype: str, shape: tuple[int, ...], axis: int) -> None:
    """One bit an element, in row-major order or channels last, whatever the layout; and the backward from it."""
    problem = Problem(
        "batch_norm", shape, dtype, parameter_dtype, channel_axis=axis, addend=True, activation=Kind("relu")
    )
    for layout in ("contiguous", channels_last, "transposed"):
        given = arrays(device, problem, layout, layout)
        result = forward(problem, given, return_mask=True)
        assert result.mean is None and result.rstd is None
        positive = device.values(result.y) > 0
        want_bits = packed(positive, axis, is_channels_last(given.x, axis))
        np.testing.assert_array_equal(np.asarray(result.mask.tolist()), want_bits)
        for last in (False, True):
            mask = device.integers(np.full_like(packed(positive, axis, last), 85), "uint8")
            y = forward(problem, given, return_mask=True, out=(None, None, None, mask)).y
            np.testing.assert_array_equal(np.asarray(mask.tolist()), packed(device.values(y) > 0, axis, last))
        # Where h is further from 0 than the arithmetic, the bits are those of the reference.
        want = expected_forward(dataclasses.replace(problem, activation=None))["y"]
        sure = np.abs(want.values) > want.bound
        np.testing.assert_array_equal(positive[sure], slope_sources(problem).positive[sure])
        for training in (True, False):
            from_mask = dataclasses.replace(problem, slope_from="mask", training=training)
            check_backward(device, from_mask, layout, layout)
            check_backward(device, from_mask, layout, "contiguous")
        # The mask says itself in which order its bits are.
        given = arrays(device, dataclasses.replace(problem, slope_from="mask"), layout, layout)
        of = slope_sources(problem).positive
        one, other = (
            backward(problem, given._replace(mask=device.integers(packed(of, axis, last), "uint8")))
            for last in (False, True)
        )
        for name in ("dx", "daddend"):
            np.testing.assert_allclose(
                *(device.values(getattr(grads, name)) for grads in (one, other)), rtol=0.02, atol=0.01
            )


def test_daddend_without_the_addend(device: Device) -> None:
    """y or the mask makes the addend's values unnecessary; its gradient is asked for by name."""
    problem = Problem("batch_norm", (3, 16, 4, 4), addend=True, activation=Kind("relu"))
    given = arrays(device, problem)
    _, mean, rstd, mask = forward(problem, given, return_stats=True, return_mask=True)
    given = given._replace(mean=mean, rstd=rstd)
    want = backward(problem, given)
    found = backward(problem, given._replace(addend=None, mask=mask), return_daddend=True)
    for one, other in zip(found, want, strict=True):
        np.testing.assert_array_equal(device.values(one), device.values(other))
    assert backward(problem, given._replace(addend=None, mask=mask)).daddend is None
