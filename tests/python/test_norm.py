# SPDX-License-Identifier: Apache-2.0
"""layer_norm and rms_norm, forward and backward, against the float64 reference: every option, dtype, shape, layout."""

from __future__ import annotations

import math

import numpy as np
import pytest

import normact
import tolerance
from cases import (
    DTYPES,
    HUGE_COLS,
    LARGE_COLS,
    MIDDLE_COLS,
    OPTIONS,
    SMALL_COLS,
    Problem,
    expected_backward_from,
    expected_forward,
    inputs,
)
from checks import arrays, assert_within, backward, check, compare, forward
from devices import Device
from layouts import LAYOUTS, supported

both_dtypes = pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES, ids=["-".join(pair) for pair in DTYPES])


@pytest.fixture(params=[name for name in LAYOUTS if name != "contiguous"])
def layout(request: pytest.FixtureRequest) -> str:
    return request.param


@both_dtypes
@pytest.mark.parametrize("cols", [33, 64, 1024])
def test_every_combination_of_options(device: Device, kind: str, dtype: str, parameter_dtype: str, cols: int) -> None:
    for weight, bias, residual, weight_offset in OPTIONS:
        check(
            device,
            Problem(
                kind,
                (3, cols),
                dtype,
                parameter_dtype,
                weight=weight,
                bias=bias,
                residual=residual,
                weight_offset=weight_offset,
            ),
        )


@both_dtypes
def test_every_layout(device: Device, kind: str, dtype: str, parameter_dtype: str, layout: str) -> None:
    if not supported(layout, device):
        layout = "transposed"  # PyTorch has no negative strides; the pair below is then one more combination
    for shape in ((5, 33), (6, 64), (3, 1024)):
        for residual in (False, True):
            problem = Problem(
                kind,
                shape,
                dtype,
                parameter_dtype,
                residual=residual,
                equal_rows=layout == "expanded",
                weight_offset=0.5,
            )
            check(device, problem, layout, layout)
            check(device, problem, layout, "contiguous")
            check(device, problem, "contiguous", layout)


@both_dtypes
def test_every_number_of_columns(device: Device, kind: str, dtype: str, parameter_dtype: str) -> None:
    """No hidden-size table: each fast path at, below and above its sizes, with and without the parameters."""
    for cols in SMALL_COLS + MIDDLE_COLS + LARGE_COLS:
        rows = (1, 199) if cols <= 257 else (1, 3)
        for row_count in rows:
            check(device, Problem(kind, (row_count, cols), dtype, parameter_dtype))
        check(device, Problem(kind, (2, cols), dtype, parameter_dtype, weight=False, bias=False, residual=True))
        check(device, Problem(kind, (2, cols), dtype, parameter_dtype, bias=False), "offset_by_one", "contiguous")


@pytest.mark.parametrize("cols", HUGE_COLS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_very_long_rows(device: Device, kind: str, dtype: str, cols: int) -> None:
    check(device, Problem(kind, (2, cols), dtype, "float32"))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "norm_ndim"),
    [
        ((7,), 1),
        ((2, 3, 65), 1),
        ((2, 3, 4, 16), 1),
        ((4, 6, 10), 2),
        ((3, 4, 5, 6), 3),
        ((3, 5, 7), 3),
        ((2, 1, 9, 1), 2),
    ],
    ids=str,
)
def test_trailing_axes(device: Device, kind: str, dtype: str, shape: tuple[int, ...], norm_ndim: int) -> None:
    """Weight and bias have the shape of the normalised axes; mean and rstd that of the others."""
    for residual in (False, True):
        problem = Problem(kind, shape, dtype, norm_ndim=norm_ndim, residual=residual)
        check(device, problem)
        for layout in ("row_strided_odd", "every_second_row", "transposed", "every_second_column"):
            check(device, problem, layout, "contiguous")
            check(device, problem, layout, layout)


def test_axis_spellings(device: Device, kind: str) -> None:
    """Positive and negative axes in any order mean the same."""
    x = device.array(inputs(Problem(kind, (3, 4, 5))).x, "float32")
    function = getattr(normact, kind)
    want = device.bits(function(x, axis=(1, 2)))
    for axis in ((-2, -1), (2, 1), [1, 2], (-1, 1)):
        np.testing.assert_array_equal(device.bits(function(x, axis=axis)), want)
    np.testing.assert_array_equal(device.bits(function(x, axis=2)), device.bits(function(x)))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_what_is_returned(device: Device, kind: str, dtype: str) -> None:
    """A bare y, unless more is asked for; the bits of y do not depend on what else is asked for."""
    problem = Problem(kind, (4, 96), dtype)
    given = arrays(device, problem)
    bare = forward(problem, given)
    full = forward(problem, given, return_stats=True)
    assert isinstance(bare, type(given.x))
    assert isinstance(full, normact.NormOutput)
    assert full.residual is None
    assert (full.mean is None) == (kind == "rms_norm")
    np.testing.assert_array_equal(device.bits(bare), device.bits(full.y))
    with_residual = Problem(kind, (4, 96), dtype, residual=True)
    result = forward(with_residual, arrays(device, with_residual))
    assert result.mean is None
    assert result.rstd is None
    np.testing.assert_array_equal(device.values(result.residual), inputs(with_residual).s)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "row_strided", "every_second_column"])
def test_outputs_have_the_layout_of_x(device: Device, kind: str, layout: str) -> None:
    """The same rule as NumPy's and PyTorch's empty_like: dense layouts are kept, gaps are closed."""
    problem = Problem(kind, (6, 5, 8), residual=True)
    given = arrays(device, problem, layout, layout)
    want = device.strides(device.empty_like(given.x))
    result = forward(problem, given)
    assert device.strides(result.y) == want
    assert device.strides(result.residual) == want
    assert device.strides(backward(problem, given).dx) == want


# ---- Numerics ----


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("cols", [256, 1000, 4096])
def test_16_bit_outputs_are_correctly_rounded(device: Device, kind: str, dtype: str, cols: int) -> None:
    """At least 99.9 % of the elements are the exact result rounded once, the rest its neighbour.

    Where x is so close to the mean that their difference is smaller than the rounding of the mean itself, no
    neighbour can be promised; there the error model alone holds.
    """
    problem = Problem(kind, (400_000 // cols, cols), dtype, "float32", bias=False)
    given = arrays(device, problem)
    expected = expected_forward(problem)["y"]
    found = device.values(forward(problem, given))
    assert_within(found, expected, str(problem))
    correct = tolerance.round_to(expected.values, dtype)
    wrong = found != correct
    assert wrong.mean() <= 1e-3, f"{wrong.mean():.2e} of the elements are not correctly rounded"
    ulp = tolerance.ulp(expected.values, dtype)
    cancelled = expected.bound > ulp
    assert cancelled.mean() <= 1e-2, "the exemption must be rare"
    assert (cancelled | (np.abs(found - correct) <= ulp)).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("cols", [64, 768, 1000, 4096, 16384])
@pytest.mark.parametrize("mean", [0.0, 10.0, 1000.0])
def test_statistics(device: Device, kind: str, dtype: str, cols: int, mean: float) -> None:
    """Within 3e-7 of the exact ones, relative to the larger of |mean| and std, at mean/std up to 1000."""
    rows = max(3, 65536 // cols)
    problem = Problem(kind, (rows, cols), dtype, weight=False, bias=False, mean=mean)
    result = forward(problem, arrays(device, problem), return_stats=True)
    expected = expected_forward(problem)
    exact_rstd = expected["rstd"].values
    np.testing.assert_array_less(np.abs(device.values(result.rstd) / exact_rstd - 1), 3e-7)
    if kind == "layer_norm":
        exact_mean = expected["mean"].values
        scale = np.maximum(np.abs(exact_mean), 1 / exact_rstd)
        np.testing.assert_array_less(np.abs(device.values(result.mean) - exact_mean) / scale, 3e-7)


@pytest.mark.parametrize("cols", [33, 768, 4096, 65536])
def test_large_means_do_not_cancel(device: Device, cols: int) -> None:
    """mean/std = 1e4, where E[x^2] - E[x]^2 has no digit left in float32."""
    problem = Problem("layer_norm", (5, cols), mean=1e4)
    check(device, problem)
    rstd = device.values(forward(problem, arrays(device, problem), return_stats=True).rstd)
    np.testing.assert_allclose(rstd, expected_forward(problem)["rstd"].values, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("cols", [1, 7, 64, 1000, 4097])
def test_constant_rows(device: Device, dtype: str, cols: int) -> None:
    """A constant row has variance 0: y is the bias, up to what the rounding of the mean leaves, also for a tiny eps."""
    for value in (0.0, 1.0, -3.0, 0.1, 1000.0):
        for eps in (1e-12, 1e-5):
            x = device.array(np.full((3, cols), tolerance.round_to(np.array(value), dtype)), dtype)
            result = normact.layer_norm(x, eps=eps, return_stats=True)
            constant = device.values(x)[0, 0]
            u = tolerance.unit(dtype)
            mean_bound = tolerance.sum_units(cols) * u * abs(constant)
            assert np.abs(device.values(result.mean) - constant).max() <= mean_bound
            y = device.values(result.y)
            assert np.isfinite(y).all()
            # |x - mean| * rstd, with the variance that this very mean error leaves.
            assert np.abs(y).max() <= 1 + 8 * u if mean_bound > 0 else (y == 0).all()
            if mean_bound < 1e-3 * math.sqrt(eps):
                assert np.abs(y).max() <= 1.01 * mean_bound / math.sqrt(eps)
                np.testing.assert_allclose(device.values(result.rstd), 1 / math.sqrt(eps), rtol=2e-6)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_nan_stays_in_its_row(device: Device, kind: str, dtype: str) -> None:
    """NaN and Inf reach every element of their row and no other row, forward and backward."""
    for cols in (7, 64, 1000, 5000):
        problem = Problem(kind, (6, cols), dtype)
        values = inputs(problem).x.copy()
        values[1, cols // 2] = np.nan
        values[3, cols - 1] = np.inf
        values[4, 0] = -np.inf
        result = normact.NormOutput(*getattr(normact, kind)(device.array(values, dtype), return_stats=True))
        y, rstd = device.values(result.y), device.values(result.rstd)
        clean = [0, 2, 5]
        reference = device.values(getattr(normact, kind)(device.array(inputs(problem).x, dtype)))
        np.testing.assert_array_equal(y[clean], reference[clean])
        assert np.isnan(y[1]).all()
        assert np.isnan(rstd[1])
        if kind == "layer_norm":
            assert np.isnan(y[[3, 4]]).all(), "Inf - mean = Inf - Inf"
        else:
            assert (rstd[[3, 4]] == 0).all(), "1 / sqrt(Inf)"
            assert np.isnan(y[3, cols - 1]) and np.isnan(y[4, 0]), "Inf * 0"
            assert (y[3, : cols - 1] == 0).all()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_nan_in_the_gradient(device: Device, kind: str, dtype: str) -> None:
    """A NaN of dy reaches its row of dx and its column of dweight and dbias."""
    problem = Problem(kind, (5, 70), dtype)
    given = arrays(device, problem)
    dy = inputs(problem).dy.copy()
    dy[2, 11] = np.nan
    statistics = {"rstd": given.rstd} if kind == "rms_norm" else {"mean": given.mean, "rstd": given.rstd}
    grads = getattr(normact, f"{kind}_backward")(
        device.array(dy, dtype), given.x, given.weight, given.bias, **statistics
    )
    clean = backward(problem, given)
    rows, cols = np.arange(5) != 2, np.arange(70) != 11
    assert np.isnan(device.values(grads.dx)[2]).all()
    np.testing.assert_array_equal(device.values(grads.dx)[rows], device.values(clean.dx)[rows])
    for name in ("dweight", "dbias"):
        found = device.values(getattr(grads, name))
        assert np.isnan(found[11])
        np.testing.assert_array_equal(found[cols], device.values(getattr(clean, name))[cols])


@pytest.mark.parametrize(
    ("dtype", "std"), [("float64", 1e150), ("float32", 1e17), ("bfloat16", 1e17), ("float16", 1e4)]
)
def test_large_and_small_values(device: Device, kind: str, dtype: str, std: float) -> None:
    """The squares of float32 values up to 1e18 fit; those of tiny values vanish below eps without harm."""
    for cols in (33, 256, 1000):
        check(device, Problem(kind, (4, cols), dtype, parameter_dtype=tolerance.accumulator(dtype), std=std))
        check(device, Problem(kind, (4, cols), dtype, parameter_dtype=tolerance.accumulator(dtype), std=1 / std))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cols", [33, 256, 5000, 65536])
def test_overflowing_variance(device: Device, kind: str, dtype: str, cols: int) -> None:
    """Beyond the range of the squares rstd is 1/sqrt(Inf) = 0 and y is 0, never NaN, on every device alike."""
    x = device.array(inputs(Problem(kind, (3, cols), dtype)).x * 1e30, dtype)
    result = getattr(normact, kind)(x, return_stats=True)
    assert (device.values(result.rstd) == 0).all()
    assert (device.values(result.y) == 0).all()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_eps(device: Device, kind: str, dtype: str) -> None:
    for eps in (0.0, 1e-12, 1e-6, 0.1, 1e4):
        check(device, Problem(kind, (4, 70), dtype, eps=eps))
    zeros = device.array(np.zeros((2, 5)), dtype)
    result = getattr(normact, kind)(zeros, eps=0.0, return_stats=True)
    assert np.isposinf(device.values(result.rstd)).all()
    assert np.isnan(device.values(result.y)).all(), "0 * Inf"


def test_weight_offset_is_added_in_float32(device: Device, kind: str) -> None:
    """1 + w in bfloat16 loses w below 2^-8; here it must not."""
    x = device.array(inputs(Problem(kind, (3, 64), "bfloat16")).x, "bfloat16")
    small = device.array(np.full(64, 2.0**-9), "bfloat16")
    exact = device.array(np.full(64, 1 + 2.0**-9), "float32")
    function = getattr(normact, kind)
    np.testing.assert_array_equal(device.bits(function(x, small, weight_offset=1.0)), device.bits(function(x, exact)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parameter_gradients_of_many_rows(device: Device, kind: str, dtype: str) -> None:
    """Where a running sum in the output's dtype would stall."""
    for shape in ((50_000, 8), (20_011, 33)):
        check(device, Problem(kind, shape, dtype))


def test_forward_statistics_feed_the_backward(device: Device, kind: str) -> None:
    """The two directions agree on what the statistics are, in the shape in which they travel."""
    problem = Problem(kind, (3, 4, 40))
    given = arrays(device, problem)
    result = forward(problem, given, return_stats=True)
    statistics = {"rstd": result.rstd} if kind == "rms_norm" else {"mean": result.mean, "rstd": result.rstd}
    grads = getattr(normact, f"{kind}_backward")(given.dy, given.x, given.weight, given.bias, **statistics)
    rstd = device.values(result.rstd)
    mean = np.zeros_like(rstd) if result.mean is None else device.values(result.mean)
    compare(device, grads, expected_backward_from(problem, mean, rstd), "from the forward's statistics")
