# SPDX-License-Identifier: Apache-2.0
"""Group norm, forward and backward, against the float64 reference: every dtype, layout, grouping and activation."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import normact
import tolerance
from activation_cases import KINDS, Kind
from cases import DTYPES
from channel_cases import Problem, expected_backward_from, expected_forward, inputs
from channel_checks import arrays, backward, check, forward
from checks import assert_within, compare
from devices import Device
from layouts import LAYOUTS, channels_last, supported

both_dtypes = pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES, ids=["-".join(pair) for pair in DTYPES])
one_dtype = pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])

# (shape, channel_axis, groups): channels a group 1, 3, 5, 7, 10, 20, 30, 70 and whole packs; (N, C) and 3-D to 5-D.
SHAPES = [
    ((4, 12), 1, 4),
    ((3, 70), 1, 1),
    ((2, 12, 3, 2), 1, 4),
    ((2, 12, 3, 2), 1, 12),
    ((2, 12, 3, 2), 1, 1),
    ((3, 40, 7), 1, 4),
    ((3, 60, 5, 5), 1, 3),
    ((2, 90, 4, 4), 1, 3),
    ((2, 140, 3, 3), 1, 2),
    ((2, 35, 6, 5), 1, 5),
    ((3, 9, 11), 1, 3),
    ((1, 64, 8, 8), 1, 32),
    ((2, 128, 4, 4), 1, 32),
    ((2, 6, 3, 4, 5), 1, 2),
    ((2, 5, 6, 64), -1, 32),
    ((2, 7, 5, 40), -1, 4),
    ((2, 7, 5, 30), -1, 3),
    ((2, 3, 7, 5, 70), -1, 1),
    ((2, 6, 3, 4, 5), 2, 3),
    ((3, 33, 17), -1, 17),
    ((5, 2049), 1, 3),
]


def group_norm(
    shape: tuple[int, ...], groups: int, dtype: str = "float32", parameter_dtype: str | None = None, **options
) -> Problem:
    return Problem("group_norm", shape, dtype, parameter_dtype, num_groups=groups, **options)


@both_dtypes
@pytest.mark.parametrize(("shape", "axis", "groups"), SHAPES, ids=str)
def test_every_shape(
    device: Device, dtype: str, parameter_dtype: str, shape: tuple[int, ...], axis: int, groups: int
) -> None:
    check(device, group_norm(shape, groups, dtype, parameter_dtype, channel_axis=axis))
    check(device, group_norm(shape, groups, dtype, parameter_dtype, channel_axis=axis, activation=Kind("silu")))


@both_dtypes
def test_every_combination_of_options(device: Device, dtype: str, parameter_dtype: str) -> None:
    for shape, axis, groups in (((3, 16, 4, 4), 1, 4), ((5, 3, 9), -1, 3)):
        for weight, bias, silu in itertools.product((True, False), repeat=3):
            kind = Kind("silu") if silu else None
            problem = group_norm(
                shape,
                groups,
                dtype,
                parameter_dtype,
                channel_axis=axis,
                weight=weight,
                bias=bias,
                activation=kind,
            )
            check(device, problem)


@pytest.mark.parametrize("layout", [*(name for name in LAYOUTS if name not in ("contiguous", "expanded")), "nhwc"])
@both_dtypes
def test_every_layout(device: Device, dtype: str, parameter_dtype: str, layout: str) -> None:
    if not supported(layout, device):
        layout = "transposed"
    build = channels_last if layout == "nhwc" else layout
    for shape, axis, groups in (
        ((5, 16, 4, 6), 1, 4),
        ((5, 33), 1, 3),
        ((3, 7, 5, 9), -1, 3),
        ((2, 6, 4, 5, 6), 1, 2),
    ):
        problem = group_norm(shape, groups, dtype, parameter_dtype, channel_axis=axis, activation=Kind("silu"))
        check(device, problem, build, build)
        check(device, problem, build, "contiguous")
        check(device, problem, "contiguous", build)


@both_dtypes
@pytest.mark.parametrize("activation", KINDS)
def test_every_activation(device: Device, dtype: str, parameter_dtype: str, activation: str) -> None:
    problem = group_norm((3, 24, 5, 4), 6, dtype, parameter_dtype, activation=Kind(activation))
    check(device, problem)
    check(device, problem, channels_last, channels_last)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("per_group", [1, 2, 3, 4, 8, 10, 16, 20, 30, 32, 33, 64, 70, 128])
def test_every_number_of_channels(device: Device, dtype: str, per_group: int) -> None:
    for groups in (1, 2, 3, 8):
        channels = per_group * groups
        for shape, axis in (((2, 9, channels), -1), ((2, channels, 9), 1), ((2, channels, 16), 1), ((3, channels), 1)):
            check(device, group_norm(shape, groups, dtype, "float32", channel_axis=axis, activation=Kind("silu")))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_number_of_places(device: Device, dtype: str) -> None:
    for places in (1, 2, 3, 7, 8, 9, 16, 31, 49, 64, 196, 256, 784, 1000, 1025, 4096, 4099, 16384):
        for shape, axis in (((2, 8, places), 1), ((2, places, 8), -1)):
            check(device, group_norm(shape, 2, dtype, "float32", channel_axis=axis, activation=Kind("silu")))


@one_dtype
@pytest.mark.parametrize(
    ("shape", "axis", "groups"),
    [
        ((2, 8, 400, 333), 1, 2),
        ((1, 300, 301, 6), -1, 3),
        ((70_001, 6), 1, 3),
        ((2, 70_001, 6), -1, 3),
    ],
    ids=str,
)
def test_large_groups_and_many_samples(
    device: Device, dtype: str, shape: tuple[int, ...], axis: int, groups: int
) -> None:
    parameters = "float64" if dtype == "float64" else "float32"
    check(device, group_norm(shape, groups, dtype, parameters, channel_axis=axis, activation=Kind("silu")))


@pytest.mark.parametrize("shape", [(0, 6), (0, 6, 3), (4, 6, 0), (2, 6, 0, 7)], ids=str)
def test_no_elements(device: Device, shape: tuple[int, ...]) -> None:
    """An empty x: empty y and dx, gradients of parameters 0."""
    x, weight = device.array(np.zeros(shape), "float32"), device.array(np.full(6, 2.0), "float32")
    assert tuple(normact.group_norm(x, 3, weight, weight).shape) == shape
    if device.is_cuda and shape[0] > 0:  # statistics of nothing, as of row norms without columns
        with pytest.raises(NotImplementedError):
            normact.group_norm(x, 3, weight, weight, return_stats=True)
    else:
        result = normact.group_norm(x, 3, weight, weight, return_stats=True)
        assert tuple(result.y.shape) == shape and tuple(result.mean.shape) == (shape[0], 3)
    ones = device.array(np.ones((shape[0], 3)), "float32")
    grads = normact.group_norm_backward(x, x, 3, weight, weight, mean=ones, rstd=ones)
    assert tuple(grads.dx.shape) == shape and grads.daddend is None
    assert (device.values(grads.dweight) == 0).all() and (device.values(grads.dbias) == 0).all()


def test_no_channels(device: Device) -> None:
    """Groups of nothing have statistics all the same, as other sets without elements."""
    x = device.array(np.zeros((2, 0, 3)), "float32")
    assert tuple(normact.group_norm(x, 5).shape) == (2, 0, 3)
    if device.is_cuda:
        with pytest.raises(NotImplementedError):
            normact.group_norm(x, 5, return_stats=True)
        return
    mean, rstd = (device.array(np.full((2, 5), 7.0), "float32") for _ in range(2))
    normact.group_norm(x, 5, eps=0.25, return_stats=True, out=(None, mean, rstd))
    assert (device.values(mean) == 0).all() and (device.values(rstd) == 2).all()


# ---- Numerics ----


def test_seed_facts() -> None:
    """Of (2, 12, 3, 2) with 4 groups: weight (12,), statistics (2, 4)."""
    x = np.random.default_rng(0).standard_normal((2, 12, 3, 2)).astype(np.float32)
    y, mean, rstd = normact.group_norm(x, 4, np.ones(12, np.float32), return_stats=True)
    assert mean.shape == rstd.shape == (2, 4)
    np.testing.assert_allclose(y.reshape(2, 4, -1).mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(y.reshape(2, 4, -1).var(-1), 1, atol=1e-4)


def test_one_group_is_layer_norm_and_a_group_a_channel_is_instance_norm(device: Device) -> None:
    problem = group_norm((3, 8, 5, 4), 1, weight=False, bias=False)
    x = arrays(device, problem).x
    layer = device.values(normact.layer_norm(x, axis=(1, 2, 3)))
    np.testing.assert_allclose(device.values(normact.group_norm(x, 1)), layer, rtol=1e-5, atol=1e-6)
    instance = normact.instance_norm(x)
    np.testing.assert_array_equal(device.bits(normact.group_norm(x, 8)), device.bits(instance))


@pytest.mark.parametrize("shape", [(6, 64), (4, 32, 12, 12), (2, 4, 20_000)], ids=str)
@pytest.mark.parametrize("nhwc", [False, True])
def test_large_means_do_not_cancel(device: Device, shape: tuple[int, ...], nhwc: bool) -> None:
    """mean/std = 1e4, where E[x^2] - E[x]^2 has no digit left in float32."""
    problem = group_norm(shape, 4, mean=1e4)
    layout = channels_last if nhwc else "contiguous"
    check(device, problem, layout, layout)
    rstd = device.values(forward(problem, arrays(device, problem, layout), return_stats=True).rstd)
    np.testing.assert_allclose(rstd, expected_forward(problem)["rstd"].values, rtol=1e-6)


def test_channels_of_very_different_means(device: Device) -> None:
    """Within a group the channels' means are far apart: parts of it must be merged, not averaged."""
    problem = group_norm((2, 12, 40), 3)
    values = inputs(problem).x + 100.0 * np.arange(12)[None, :, None]
    for layout in (LAYOUTS["contiguous"], channels_last):
        x = layout(device, values, "float32")
        exact = device.values(x).reshape(2, 3, -1)
        result = normact.group_norm(x, 3, return_stats=True)
        np.testing.assert_allclose(device.values(result.mean), exact.mean(-1), rtol=1e-6)
        np.testing.assert_allclose(device.values(result.rstd), 1 / np.sqrt(exact.var(-1) + 1e-5), rtol=1e-6)


@one_dtype
def test_eps(device: Device, dtype: str) -> None:
    for eps in (0.0, 1e-12, 1e-6, 0.1, 1e4):
        check(device, group_norm((4, 6, 10), 2, dtype, eps=eps))
    zeros = device.array(np.zeros((3, 6)), dtype)
    result = normact.group_norm(zeros, 2, eps=0.0, return_stats=True)
    assert np.isposinf(device.values(result.rstd)).all()
    assert np.isnan(device.values(result.y)).all(), "0 * Inf"


def test_a_group_of_one_element(device: Device) -> None:
    """Its variance is 0 and y the bias; allowed, as in PyTorch."""
    x, bias = device.array(np.arange(6.0).reshape(2, 3), "float32"), device.array(np.array([1.0, 2.0, 3.0]), "float32")
    y = normact.group_norm(x, 3, None, bias)
    np.testing.assert_array_equal(device.values(y), [[1, 2, 3], [1, 2, 3]])


@one_dtype
@pytest.mark.parametrize("nhwc", [False, True])
def test_nan_stays_in_its_group(device: Device, dtype: str, nhwc: bool) -> None:
    problem = group_norm((3, 12, 5, 3), 4, dtype)
    layout = channels_last if nhwc else LAYOUTS["contiguous"]
    given = arrays(device, problem, layout, layout)
    values = inputs(problem).x.copy()
    values[1, 4, 2, 1] = np.nan  # channels 3, 4, 5
    clean = device.values(forward(problem, given))
    y = device.values(forward(problem, given._replace(x=layout(device, values, dtype))))
    assert np.isnan(y[1, 3:6]).all()
    y[1, 3:6] = clean[1, 3:6]
    np.testing.assert_array_equal(y, clean)
    dy = inputs(problem).dy.copy()
    dy[2, 7, 0, 0] = np.nan
    want, grads = backward(problem, given), backward(problem, given._replace(dy=layout(device, dy, dtype)))
    dx, clean = device.values(grads.dx), device.values(want.dx)
    assert np.isnan(dx[2, 6:9]).all()
    dx[2, 6:9] = clean[2, 6:9]
    np.testing.assert_array_equal(dx, clean)
    assert np.isnan(device.values(grads.dweight)).tolist() == [c == 7 for c in range(12)]
    assert np.isnan(device.values(grads.dbias)).tolist() == [c == 7 for c in range(12)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("nhwc", [False, True])
def test_16_bit_outputs_are_correctly_rounded(device: Device, dtype: str, nhwc: bool) -> None:
    """At least 99.9 % of the elements are the exact result rounded once, the rest its neighbour; as for row norms."""
    problem = group_norm((8, 64, 28, 28), 16, dtype, "float32", bias=False)
    expected = expected_forward(problem)["y"]
    found = device.values(forward(problem, arrays(device, problem, channels_last if nhwc else "contiguous")))
    assert_within(found, expected, str(problem))
    wrong = found != tolerance.round_to(expected.values, dtype)
    assert wrong.mean() <= 1e-3, f"{wrong.mean():.2e} of the elements are not correctly rounded"


def test_forward_statistics_feed_the_backward(device: Device) -> None:
    problem = group_norm((4, 10, 6, 3), 5, activation=Kind("gelu"))
    given = arrays(device, problem)
    found = forward(problem, given, return_stats=True)
    grads = backward(problem, given._replace(mean=found.mean, rstd=found.rstd))
    mean, rstd = device.values(found.mean), device.values(found.rstd)
    compare(device, grads, expected_backward_from(problem, mean, rstd), "from the forward's statistics")


@pytest.mark.parametrize(("shape", "groups"), [((1, 32, 64, 64), 1), ((1, 32, 16, 16), 8)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_whole_planes_that_begin_within_16_bytes(
    device: Device, dtype: str, shape: tuple[int, ...], groups: int
) -> None:
    """All at the same place: a GPU's workspace is known before addresses are, and is enough for these, too."""
    rng = np.random.default_rng(3)
    x, dy = (rng.standard_normal(shape) for _ in range(2))

    def behind_one_element(values: np.ndarray) -> Any:
        return device.array(np.concatenate([[0.0], values.ravel()]), dtype)[1:].reshape(shape)

    plain = [device.array(values, dtype) for values in (x, dy)]
    shifted = [behind_one_element(values) for values in (x, dy)]
    want = normact.group_norm(plain[0], groups, return_stats=True)
    out = behind_one_element(np.zeros(shape))
    found = normact.group_norm(shifted[0], groups, out=(out, None, None), return_stats=True)
    kept = {"mean": want.mean, "rstd": want.rstd}
    want_dx = normact.group_norm_backward(plain[1], plain[0], groups, **kept).dx
    normact.group_norm_backward(shifted[1], shifted[0], groups, **kept, out=(shifted[1], None, None))
    tolerance = {"float32": 1e-5, "bfloat16": 0.02}[dtype]
    for a, b in ((found.y, want.y), (shifted[1], want_dx), (found.rstd, want.rstd)):
        np.testing.assert_allclose(device.values(a), device.values(b), rtol=tolerance, atol=tolerance)
