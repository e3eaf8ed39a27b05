# SPDX-License-Identifier: Apache-2.0
"""Batch norm, forward and backward, against the float64 reference: every dtype, layout, option and activation."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import normact
import tolerance
from activation_cases import FROM_OUTPUT, KINDS, Kind
from cases import DTYPES, Expected
from channel_cases import (
    Problem,
    expected_backward_from,
    expected_forward,
    expected_running,
    inputs,
)
from channel_checks import arrays, backward, check, check_backward, check_forward, check_running, forward
from checks import assert_within, compare
from devices import Device
from layouts import LAYOUTS, channels_last, supported

both_dtypes = pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES, ids=["-".join(pair) for pair in DTYPES])
one_dtype = pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])

# (shape, channel_axis): (N, C), 3-D to 5-D, channels first, last and between; odd, whole packs, one sample, one place.
SHAPES = [
    ((8, 12), 1),
    ((333, 7), 1),
    ((64, 64), -1),
    ((7, 12), 0),
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
    ((5, 1, 31), 1),
    ((2, 300, 1, 1), 1),
]


def batch_norm(
    shape: tuple[int, ...], dtype: str = "float32", parameter_dtype: str | None = None, **options
) -> Problem:
    return Problem("batch_norm", shape, dtype, parameter_dtype, **options)


@both_dtypes
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_every_shape(device: Device, dtype: str, parameter_dtype: str, shape: tuple[int, ...], axis: int) -> None:
    check(device, batch_norm(shape, dtype, parameter_dtype, channel_axis=axis, running=True))
    problem = batch_norm(shape, dtype, parameter_dtype, channel_axis=axis, addend=True, activation=Kind("relu"))
    check(device, problem)
    check(device, dataclasses.replace(problem, training=False))


@both_dtypes
def test_every_combination_of_options(device: Device, dtype: str, parameter_dtype: str) -> None:
    for shape, axis in (((3, 16, 4, 4), 1), ((5, 3, 9), -1)):
        for weight, bias, addend, training, silu in itertools.product((True, False), repeat=5):
            problem = batch_norm(
                shape,
                dtype,
                parameter_dtype,
                channel_axis=axis,
                weight=weight,
                bias=bias,
                addend=addend,
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
    for shape, axis in (((5, 16, 4, 6), 1), ((5, 33), 1), ((3, 7, 5, 9), -1), ((2, 3, 4, 5, 6), 1)):
        problem = batch_norm(
            shape, dtype, parameter_dtype, channel_axis=axis, addend=True, activation=Kind("relu"), running=True
        )
        check(device, problem, build, build)
        check(device, problem, build, "contiguous")
        check(device, problem, "contiguous", build)


@both_dtypes
@pytest.mark.parametrize("activation", KINDS)
def test_every_activation(device: Device, dtype: str, parameter_dtype: str, activation: str) -> None:
    for addend, training in itertools.product((False, True), repeat=2):
        problem = batch_norm(
            (4, 24, 5, 4), dtype, parameter_dtype, addend=addend, training=training, activation=Kind(activation)
        )
        check(device, problem)
        check(device, problem, channels_last, channels_last)


@both_dtypes
@pytest.mark.parametrize("activation", FROM_OUTPUT)
def test_slope_from_the_output(device: Device, dtype: str, parameter_dtype: str, activation: str) -> None:
    for addend, training in itertools.product((False, True), repeat=2):
        problem = batch_norm(
            (4, 24, 5, 3),
            dtype,
            parameter_dtype,
            addend=addend,
            training=training,
            activation=Kind(activation),
            slope_from="y",
        )
        check_backward(device, problem)
        check_backward(device, problem, channels_last, channels_last)


@one_dtype
@pytest.mark.parametrize(
    ("shape", "axis"), [((131_075, 3), 1), ((140_001, 8), 1), ((70_001, 2, 5), -1), ((2, 3, 300, 251), 1)], ids=str
)
def test_many_rows(device: Device, dtype: str, shape: tuple[int, ...], axis: int) -> None:
    """More than 65,535 and 131,070 rows of a channels-last matrix, and as many places of an image."""
    check(device, batch_norm(shape, dtype, "float64" if dtype == "float64" else "float32", channel_axis=axis))
    check(device, batch_norm(shape, dtype, channel_axis=axis, addend=True, activation=Kind("relu")))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_number_of_channels(device: Device, dtype: str) -> None:
    for channels in (
        1,
        2,
        3,
        7,
        8,
        15,
        16,
        17,
        31,
        33,
        63,
        64,
        65,
        127,
        128,
        129,
        255,
        256,
        257,
        511,
        1000,
        2048,
        2049,
    ):
        for shape, axis in (((5, 3, channels), -1), ((3, channels, 7), 1), ((2, channels, 16), 1)):
            check(device, batch_norm(shape, dtype, "float32", channel_axis=axis, activation=Kind("relu")))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_number_of_places(device: Device, dtype: str) -> None:
    for places in (1, 2, 3, 7, 8, 9, 15, 16, 31, 33, 49, 64, 196, 255, 256, 784, 1000, 1025, 3136, 4099, 12544):
        check(device, batch_norm((3, 4, places), dtype, "float32", addend=True, activation=Kind("relu")))


# ---- Running statistics ----


@one_dtype
@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0, 0.25, None])
@pytest.mark.parametrize("batches", [0, 3])
def test_running_statistics(device: Device, dtype: str, momentum: float | None, batches: int) -> None:
    for shape, axis in (((4, 12, 3, 3), 1), ((9, 5), -1), ((2, 6, 40), 1)):
        problem = batch_norm(
            shape, dtype, channel_axis=axis, running=True, momentum=momentum, batches=batches, mean=2.0
        )
        check_forward(device, problem)


def test_cumulative_statistics_are_means_over_batches(device: Device) -> None:
    batches = [np.random.default_rng(i).standard_normal((6, 4, 5)) + i for i in range(5)]
    running_mean, running_var = (device.array(np.full(4, 7.0), "float64") for _ in range(2))
    count = device.integers(np.zeros(1), "int64")
    for x in batches:
        normact.batch_norm(
            device.array(x, "float64"),
            None,
            None,
            running_mean,
            running_var,
            num_batches_tracked=count,
            training=True,
            momentum=None,
        )
    assert int(count[0]) == 5
    means, variances = ([f(x) for x in batches] for f in (lambda x: x.mean((0, 2)), lambda x: x.var((0, 2), ddof=1)))
    np.testing.assert_allclose(device.values(running_mean), np.mean(means, axis=0), rtol=1e-13)
    np.testing.assert_allclose(device.values(running_var), np.mean(variances, axis=0), rtol=1e-13)


@pytest.mark.parametrize("shape", [(0, 5), (0, 5, 3), (4, 5, 0), (2, 5, 0, 7)], ids=str)
def test_nothing_is_learned_from_nothing(device: Device, shape: tuple[int, ...]) -> None:
    """An empty x: empty y and dx, gradients of parameters 0, running statistics as they were."""
    x = device.array(np.zeros(shape), "float32")
    weight, running_mean, running_var = (device.array(np.full(5, v), "float32") for v in (2.0, 3.0, 4.0))
    count = device.integers(np.array(6), "int64")
    for momentum in (0.1, None):
        y = normact.batch_norm(
            x,
            weight,
            weight,
            running_mean,
            running_var,
            num_batches_tracked=count,
            training=True,
            momentum=momentum,
        )
        assert tuple(y.shape) == shape
        assert (device.values(running_mean) == 3).all() and (device.values(running_var) == 4).all()
        assert int(count) == 6
    for training in (True, False):
        grads = normact.batch_norm_backward(x, x, weight, weight, mean=weight, rstd=weight, training=training)
        assert tuple(grads.dx.shape) == shape
        assert (device.values(grads.dweight) == 0).all() and (device.values(grads.dbias) == 0).all()


def test_inference_leaves_the_running_statistics_alone(device: Device) -> None:
    problem = batch_norm((4, 6, 3), training=False, batches=3)
    given = arrays(device, problem)
    forward(problem, given)
    np.testing.assert_array_equal(device.values(given.running_mean), inputs(problem).running_mean)
    np.testing.assert_array_equal(device.values(given.running_var), inputs(problem).running_var)
    assert int(given.batches) == 3


def test_running_statistics_of_any_stride(device: Device) -> None:
    problem = batch_norm((4, 6, 3), running=True)
    given = arrays(device, problem)
    both = np.stack([device.values(given.running_mean), device.values(given.running_var)], 1)
    pair = device.array(both, "float32")
    given = given._replace(running_mean=pair[:, 0], running_var=pair[:, 1])
    forward(problem, given)
    check_running(device, problem, given, "in columns of a matrix")


# ---- Numerics ----


def test_seed_facts() -> None:
    """Of (2, 12, 3, 2): weight and statistics are (12,)."""
    x = np.random.default_rng(0).standard_normal((2, 12, 3, 2)).astype(np.float32)
    y, mean, rstd, _ = normact.batch_norm(x, np.ones(12, np.float32), training=True, return_stats=True)
    assert mean.shape == rstd.shape == (12,)
    np.testing.assert_allclose(y.mean((0, 2, 3)), 0, atol=1e-6)
    np.testing.assert_allclose(y.var((0, 2, 3)), 1, atol=1e-4)


@pytest.mark.parametrize("shape", [(64, 16), (16, 8, 12, 12), (3, 4, 20_000), (30_000, 24)], ids=str)
@pytest.mark.parametrize("nhwc", [False, True])
def test_large_means_do_not_cancel(device: Device, shape: tuple[int, ...], nhwc: bool) -> None:
    """mean/std = 1e4, where E[x^2] - E[x]^2 has no digit left in float32."""
    problem = batch_norm(shape, mean=1e4, running=True)
    layout = channels_last if nhwc else "contiguous"
    check(device, problem, layout, layout)
    rstd = device.values(forward(problem, arrays(device, problem, layout), return_stats=True).rstd)
    np.testing.assert_allclose(rstd, expected_forward(problem)["rstd"].values, rtol=1e-6)
    moments = device.values(normact.batch_norm_statistics(arrays(device, problem, layout).x))
    np.testing.assert_allclose(1 / np.sqrt(moments[1] / moments[2] + problem.eps), rstd, rtol=1e-6)


@one_dtype
def test_eps(device: Device, dtype: str) -> None:
    for eps in (0.0, 1e-12, 1e-6, 0.1, 1e4):
        for training in (True, False):
            check(device, batch_norm((4, 7, 10), dtype, eps=eps, training=training))
    zeros = device.array(np.zeros((3, 5)), dtype)
    result = normact.batch_norm(zeros, training=True, eps=0.0, return_stats=True)
    assert np.isposinf(device.values(result.rstd)).all()
    assert np.isnan(device.values(result.y)).all(), "0 * Inf"


@one_dtype
@pytest.mark.parametrize("nhwc", [False, True])
def test_nan_stays_in_its_channel(device: Device, dtype: str, nhwc: bool) -> None:
    problem = batch_norm((4, 12, 5, 3), dtype)
    layout = channels_last if nhwc else "contiguous"
    given = arrays(device, problem, layout, layout)
    clean = forward(problem, given, return_stats=True)
    values = inputs(problem).x.copy()
    values[1, 3, 2, 1], values[2, 5, 0, 0] = np.nan, np.inf
    build = channels_last if nhwc else LAYOUTS["contiguous"]
    found = forward(problem, given._replace(x=build(device, values, dtype)), return_stats=True)
    y, others = device.values(found.y), [c for c in range(12) if c not in (3, 5)]
    assert np.isnan(y[:, [3, 5]]).all()
    assert np.isnan(device.values(found.rstd)[3])
    np.testing.assert_array_equal(y[:, others], device.values(clean.y)[:, others])
    dy = inputs(problem).dy.copy()
    dy[0, 7, 4, 2] = np.nan
    want, grads = backward(problem, given), backward(problem, given._replace(dy=build(device, dy, dtype)))
    others = [c for c in range(12) if c != 7]
    assert np.isnan(device.values(grads.dx)[:, 7]).all()
    for name in ("dweight", "dbias"):
        assert np.isnan(device.values(getattr(grads, name))[7])
        found = device.values(getattr(grads, name))[others]
        np.testing.assert_array_equal(found, device.values(getattr(want, name))[others])
    np.testing.assert_array_equal(device.values(grads.dx)[:, others], device.values(want.dx)[:, others])


# Small and large, of whole packs and not: a GPU has several orders for these, each with its own factors of the sums.
@pytest.mark.parametrize(
    "shape", [(4, 12, 5, 3), (8, 64, 28, 28), (64, 256, 7, 7), (16, 24, 64, 64), (16, 256, 28, 28)]
)
@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_frozen_gradient_depends_on_no_other_element(
    device: Device, dtype: str, nhwc: bool, shape: tuple[int, ...]
) -> None:
    """With constant statistics dx is rstd * weight * dh, whatever the sums of its channel are."""
    problem = batch_norm(shape, dtype, training=False)
    layout = channels_last if nhwc else "contiguous"
    given, build = arrays(device, problem, layout, layout), channels_last if nhwc else LAYOUTS["contiguous"]
    want = device.values(backward(problem, given).dx)
    dy = inputs(problem).dy.copy()
    dy[1, 7, 2, 1] = np.nan
    grads = backward(problem, given._replace(dy=build(device, dy, dtype)))
    found = device.values(grads.dx)
    assert np.isnan(found[1, 7, 2, 1])
    assert np.isnan(device.values(grads.dweight)[7])
    want[1, 7, 2, 1] = found[1, 7, 2, 1]
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("nhwc", [False, True])
def test_16_bit_outputs_are_correctly_rounded(device: Device, dtype: str, nhwc: bool) -> None:
    """At least 99.9 % of the elements are the exact result rounded once, the rest its neighbour; as for row norms."""
    problem = batch_norm((16, 32, 28, 28), dtype, "float32", bias=False)
    expected = expected_forward(problem)["y"]
    layout = channels_last if nhwc else "contiguous"
    found = device.values(forward(problem, arrays(device, problem, layout)))
    assert_within(found, expected, str(problem))
    wrong = found != tolerance.round_to(expected.values, dtype)
    assert wrong.mean() <= 1e-3, f"{wrong.mean():.2e} of the elements are not correctly rounded"


@one_dtype
def test_constant_channels(device: Device, dtype: str) -> None:
    """Variance 0: y is the bias, exactly where the mean is."""
    values = np.broadcast_to(np.array([0.0, 1.0, -3.0, 0.5])[:, None], (6, 4, 16))
    bias = device.array(np.array([1.0, 2.0, 3.0, 4.0]), dtype)
    result = normact.batch_norm(device.array(values, dtype), None, bias, training=True, return_stats=True)
    np.testing.assert_array_equal(device.values(result.mean), values[0, :, 0])
    np.testing.assert_array_equal(device.values(result.y), np.broadcast_to(np.arange(1.0, 5.0)[:, None], (6, 4, 16)))


def test_forward_statistics_feed_the_backward(device: Device) -> None:
    problem = batch_norm((4, 10, 6, 3), addend=True, activation=Kind("gelu"))
    given = arrays(device, problem)
    found = forward(problem, given, return_stats=True)
    grads = backward(problem, given._replace(mean=found.mean, rstd=found.rstd))
    mean, rstd = device.values(found.mean), device.values(found.rstd)
    compare(device, grads, expected_backward_from(problem, mean, rstd), "from the forward's statistics")


def test_momentum_is_a_number_of_its_own(device: Device) -> None:
    """Running statistics may leave the range of what was seen: nothing is clamped."""
    problem = batch_norm((5, 3, 4), running=True, momentum=1.5)
    given = arrays(device, problem)
    forward(problem, given)
    want: dict[str, Expected] = expected_running(problem)
    assert_within(device.values(given.running_mean), want["running_mean"], "momentum 1.5")
