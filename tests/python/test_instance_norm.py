# SPDX-License-Identifier: Apache-2.0
"""Instance norm, forward and backward, against the float64 reference, and its running statistics."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import normact
from activation_cases import KINDS, Kind
from cases import DTYPES
from channel_cases import Problem, inputs
from channel_checks import arrays, check, check_forward, forward
from devices import Device
from layouts import LAYOUTS, channels_last, supported

both_dtypes = pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES, ids=["-".join(pair) for pair in DTYPES])
one_dtype = pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])

SHAPES = [
    ((6, 5, 9), 1),
    ((2, 12, 3, 2), 1),
    ((4, 33, 7, 5), 1),
    ((3, 64, 8, 8), 1),
    ((4, 7, 5, 33), -1),
    ((3, 8, 8, 64), 3),
    ((3, 5, 4, 6), 2),
    ((2, 3, 4, 5, 6), 1),
    ((2, 3, 4, 5, 16), -1),
    ((1, 17, 6, 6), 1),
    ((1, 6, 6, 40), -1),
]


def instance_norm(
    shape: tuple[int, ...], dtype: str = "float32", parameter_dtype: str | None = None, **options
) -> Problem:
    return Problem("instance_norm", shape, dtype, parameter_dtype, **options)


@both_dtypes
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_every_shape(device: Device, dtype: str, parameter_dtype: str, shape: tuple[int, ...], axis: int) -> None:
    check(device, instance_norm(shape, dtype, parameter_dtype, channel_axis=axis))
    check(device, instance_norm(shape, dtype, parameter_dtype, channel_axis=axis, running=True, mean=2.0))
    relu = instance_norm(shape, dtype, parameter_dtype, channel_axis=axis, activation=Kind("leaky_relu"))
    check(device, relu)


@both_dtypes
def test_every_combination_of_options(device: Device, dtype: str, parameter_dtype: str) -> None:
    for shape, axis in (((3, 16, 4, 4), 1), ((5, 3, 9), -1)):
        for weight, bias, training, silu in itertools.product((True, False), repeat=4):
            problem = instance_norm(
                shape,
                dtype,
                parameter_dtype,
                channel_axis=axis,
                weight=weight,
                bias=bias,
                training=training,
                activation=Kind("silu") if silu else None,
            )
            check(device, problem)


@pytest.mark.parametrize("layout", [*(name for name in LAYOUTS if name not in ("contiguous", "expanded")), "nhwc"])
@both_dtypes
def test_every_layout(device: Device, dtype: str, parameter_dtype: str, layout: str) -> None:
    if not supported(layout, device):
        layout = "transposed"
    build = channels_last if layout == "nhwc" else layout
    for shape, axis in (((5, 16, 4, 6), 1), ((3, 7, 5, 9), -1), ((2, 6, 4, 5, 6), 1)):
        problem = instance_norm(shape, dtype, parameter_dtype, channel_axis=axis, activation=Kind("leaky_relu"))
        check(device, problem, build, build)
        check(device, problem, build, "contiguous")
        check(device, problem, "contiguous", build)


@both_dtypes
@pytest.mark.parametrize("activation", KINDS)
def test_every_activation(device: Device, dtype: str, parameter_dtype: str, activation: str) -> None:
    for training in (True, False):
        problem = instance_norm((3, 9, 5, 4), dtype, parameter_dtype, training=training, activation=Kind(activation))
        check(device, problem)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_number_of_places(device: Device, dtype: str) -> None:
    for places in (2, 3, 7, 8, 9, 16, 31, 49, 64, 196, 256, 1000, 1025, 4096, 65_537):
        for shape, axis in (((2, 5, places), 1), ((2, places, 5), -1)):
            check(device, instance_norm(shape, dtype, "float32", channel_axis=axis))


# ---- Running statistics ----


@one_dtype
@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0])
def test_running_statistics(device: Device, dtype: str, momentum: float) -> None:
    """They learn the means over the samples; every sample has its own spread."""
    for shape, axis in (((4, 12, 3, 3), 1), ((9, 4, 5), -1), ((1, 6, 40), 1)):
        problem = instance_norm(shape, dtype, channel_axis=axis, running=True, momentum=momentum, mean=2.0)
        check_forward(device, problem)


def test_use_input_stats_false_is_batch_norm_in_inference(device: Device) -> None:
    problem = instance_norm((4, 6, 5), training=False)
    given = arrays(device, problem)
    mine = forward(problem, given, return_stats=True)
    batch = normact.batch_norm(
        given.x, given.weight, given.bias, given.running_mean, given.running_var, return_stats=True
    )
    assert isinstance(mine, normact.GroupNormOutput)
    for name in mine._fields:
        np.testing.assert_array_equal(device.bits(getattr(mine, name)), device.bits(getattr(batch, name)))
    np.testing.assert_array_equal(device.values(given.running_mean), inputs(problem).running_mean)


@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 5, 0)], ids=str)
def test_nothing_is_learned_from_nothing(device: Device, shape: tuple[int, ...]) -> None:
    x = device.array(np.zeros(shape), "float32")
    weight, running_mean, running_var = (device.array(np.full(5, v), "float32") for v in (2.0, 3.0, 4.0))
    y = normact.instance_norm(x, weight, weight, running_mean, running_var)
    assert tuple(y.shape) == shape
    assert (device.values(running_mean) == 3).all() and (device.values(running_var) == 4).all()
    ones = device.array(np.ones((shape[0], 5)), "float32")
    grads = normact.instance_norm_backward(x, x, weight, weight, mean=ones, rstd=ones)
    assert (device.values(grads.dweight) == 0).all() and (device.values(grads.dbias) == 0).all()


def test_large_means_do_not_cancel(device: Device) -> None:
    for layout in ("contiguous", channels_last):
        check(device, instance_norm((3, 8, 40, 41), mean=1e4, running=True), layout, layout)
