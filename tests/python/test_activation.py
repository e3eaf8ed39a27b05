# SPDX-License-Identifier: Apache-2.0
"""Values and slopes of every activation, number by number: all 16-bit inputs, dense sweeps, the ends of the range."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import normact
import tolerance
from activation_cases import EXACT, FROM_OUTPUT, KINDS, Kind, wide
from checks import Expected, assert_within
from devices import NUMPY_DTYPES, Device

WIDE = ("float32", "float64")
NARROW = ("float16", "bfloat16")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(request.param)


def value(device: Device, kind: Kind, x: np.ndarray, dtype: str) -> Any:
    return normact.activation(device.array(x, dtype), kind.name, **kind.numbers)


def slope(device: Device, kind: Kind, x: np.ndarray, dtype: str) -> Any:
    """dx for dy = 1."""
    ones = device.array(np.ones(x.shape), dtype)
    return normact.activation_backward(ones, device.array(x, dtype), kind.name, **kind.numbers).dx


# ---- 16 bits ----


@functools.lru_cache
def every_value(dtype: str) -> np.ndarray:
    """All 65,536, infinities and NaN too, as [256, 256]."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        return np.arange(1 << 16, dtype=np.uint16).view(NUMPY_DTYPES[dtype]).astype(np.float64).reshape(256, 256)


def places(values: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers in order: the difference of two is their distance in units in the last place."""
    bits = values.astype(NUMPY_DTYPES[dtype]).view(np.int16).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFF), bits)


@functools.cache
def every_expected(kind: Kind, dtype: str, of_slope: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The exact results, their roundings, and what an intermediate result's own errors may add."""
    x = every_value(dtype)
    with np.errstate(invalid="ignore"):
        exact = (kind.slope if of_slope else kind.value)(x)
        slack = kind.slope_bound(x, exact, dtype) if of_slope else kind.value_bound(x, exact, dtype)
        return exact, tolerance.round_to(exact, dtype), slack


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("of_slope", [False, True], ids=["value", "slope"])
def test_every_16_bit_input(device: Device, kind: Kind, dtype: str, of_slope: bool) -> None:
    """At least 99.9 % are the exact result rounded once, and all others its neighbour.

    Where a derivative is next to its zero, or a result below the least normal float32, no neighbour can be promised;
    there the bound of the arithmetic holds.
    """
    x = every_value(dtype)
    exact, correct, slack = every_expected(kind, dtype, of_slope)
    found = device.values((slope if of_slope else value)(device, kind, x, dtype))
    known = ~np.isnan(exact if not of_slope else x)
    if not of_slope:
        np.testing.assert_array_equal(np.isnan(found), np.isnan(x), "NaN gives NaN, and nothing else does")
    distance = np.where(known, np.abs(places(found, dtype) - places(correct, dtype)), 0)
    worst = np.unravel_index(np.argmax(distance), distance.shape)
    where = f"worst at x = {x[worst]!r}: found {found[worst]!r}, expected {correct[worst]!r}; {kind} {dtype}"
    share = np.count_nonzero(distance) / np.count_nonzero(known)
    assert share <= 1e-3, f"{share:.2e} of the results are not correctly rounded; {where}"
    if kind.name in EXACT:
        assert share == 0, where
    ulp = tolerance.ulp(np.where(np.isfinite(exact), exact, 0), dtype)
    with np.errstate(invalid="ignore"):
        allowed = (distance <= 1) | ((slack > ulp / 8) & (np.abs(found - exact) <= slack + ulp / 2))
    assert allowed.all(), f"{np.count_nonzero(~allowed)} results are not the neighbour of the right one; {where}"


# ---- 32 and 64 bits ----


@functools.lru_cache
def sweep(dtype: str) -> np.ndarray:
    """Dense around 0, a logarithmic ladder over all magnitudes, and numbers that are easily got wrong."""
    count = 200_000 if dtype == "float32" else 6_000
    rng = np.random.default_rng(5)
    least, most = (-149, 128) if dtype == "float32" else (-1074, 1024)
    ladder = np.exp2(rng.uniform(least, most, count // 4)) * rng.choice([-1.0, 1.0], count // 4)
    specials = [
        0.0,
        0.5,
        1.0,
        3.0,
        6.0,
        20.0,
        30.0,
        87.0,
        88.0,
        88.73,
        89.0,
        103.9,
        104.0,
        709.0,
        745.0,
        1e4,
        3e38,
        1e-38,
    ]
    specials = np.array([*specials, 1e-40, 1e-45, 1.4e-45, *(n * 0.0625 for n in range(1, 200))])
    near = specials * (1 + tolerance.unit(dtype) * 4)
    x = np.concatenate([rng.uniform(-14, 14, count), rng.uniform(-110, 110, count // 4), ladder])
    with np.errstate(over="ignore"):
        x = tolerance.round_to(np.concatenate([x, specials, -specials, near, -near]), dtype)
    return x[np.isfinite(x)]


@functools.cache
def sweep_expected(kind: Kind, dtype: str) -> tuple[Expected, Expected]:
    """Value and slope, with the bounds that are stated for them; an overflowing value is checked by assert_within."""
    x = wide(sweep(dtype), dtype)
    exact, exact_slope = kind.value(x), kind.slope(x)
    return (
        Expected(exact, kind.value_bound(x, exact, dtype), dtype),
        Expected(exact_slope, kind.slope_bound(x, exact_slope, dtype), dtype),
    )


@pytest.mark.parametrize("dtype", WIDE)
def test_wide_inputs(device: Device, kind: Kind, dtype: str) -> None:
    """Within the units in the last place that are stated for the kind."""
    x = sweep(dtype)
    want, want_slope = sweep_expected(kind, dtype)
    found, found_slope = (device.values(run(device, kind, x, dtype)) for run in (value, slope))
    assert_within(found, want, f"value of {kind}")
    assert_within(found_slope, want_slope, f"slope of {kind}")


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize(
    "kind",
    [
        Kind("leaky_relu", alpha=0.01),
        Kind("leaky_relu", alpha=-2.0),
        Kind("elu", alpha=1.0),
        Kind("elu", alpha=-0.5),
        Kind("softplus", beta=0.5, threshold=4.0),
        Kind("softplus", beta=4.0),
        Kind("softplus", beta=0.7, threshold=float("inf")),
        Kind("softplus", threshold=-3.0),
    ],
    ids=str,
)
def test_numbers_of_a_kind(device: Device, kind: Kind, dtype: str) -> None:
    """alpha is rounded to float32 where the arithmetic is float32; beta and threshold are what they are."""
    as_used = Kind(kind.name, float(tolerance.round_to(np.array(kind.alpha), dtype)), kind.beta, kind.threshold)
    x = sweep(dtype)[:: 7 if dtype == "float32" else 1]
    exact_x = wide(x, dtype)
    exact, exact_slope = as_used.value(exact_x), as_used.slope(exact_x)
    with np.errstate(over="ignore"):  # where beta x is rounded on its way to the threshold, either side of it is right
        keep = ~(np.abs(kind.beta * x - kind.threshold) < 1e-5)
    for run, values, bound in (
        (value, exact, as_used.value_bound(exact_x, exact, dtype)),
        (slope, exact_slope, as_used.slope_bound(exact_x, exact_slope, dtype)),
    ):
        found = device.values(run(device, kind, x, dtype))
        assert_within(found[keep], Expected(values[keep], bound[keep], dtype), f"{run.__name__} of {kind}")


def test_exact_gelu_has_small_relative_errors(device: Device) -> None:
    """Not only near 0 but on the whole left tail, where x Phi(x) is tiny: 5e-7 from -12 to 12."""
    x = tolerance.round_to(np.linspace(-12, 12, 1_000_000), "float32")
    exact = Kind("gelu").value(x)
    found = device.values(normact.gelu(device.array(x, "float32")))
    error = np.abs(found - exact) / np.maximum(np.abs(exact), 1e-300)
    assert error.max() <= 5e-7, f"{error.max():.2e} at {x[np.argmax(error)]!r}"


# ---- The ends of the range ----

LIMITS = {
    "identity": (-np.inf, 1, np.inf, 1),
    "relu": (0, 0, np.inf, 1),
    "relu6": (0, 0, 6, 0),
    "squared_relu": (0, 0, np.inf, np.inf),
    "leaky_relu": (-np.inf, 0.25, np.inf, 1),
    "elu": (-0.25, 0, np.inf, 1),
    "sigmoid": (0, 0, 1, 0),
    "tanh": (-1, 0, 1, 0),
    "hardsigmoid": (0, 0, 1, 0),
}
LIMITS_OF_OTHERS = (0, 0, np.inf, 1)  # all that fall from 0 to 0 on the left and are x on the right


@pytest.mark.parametrize("dtype", WIDE + NARROW)
def test_infinity_and_nan(device: Device, kind: Kind, dtype: str) -> None:
    """Infinity gives the limits of value and slope, NaN gives NaN; the neighbours keep their results."""
    left, left_slope, right, right_slope = LIMITS.get(kind.name, LIMITS_OF_OTHERS)
    x = np.tile([-np.inf, 0.5, np.inf, 0.5, np.nan, 0.5], 11)
    found, found_slope = (device.values(run(device, kind, x, dtype)).reshape(-1, 6) for run in (value, slope))
    want = device.values(value(device, kind, np.full(6, 0.5), dtype))[0]
    np.testing.assert_array_equal(found, np.tile([left, want, right, want, np.nan, want], (11, 1)), str(kind))
    np.testing.assert_array_equal(found_slope[:, :3:2], np.tile([left_slope, right_slope], (11, 1)), str(kind))


@pytest.mark.parametrize("dtype", WIDE + NARROW)
def test_nan_in_the_gradient(device: Device, kind: Kind, dtype: str) -> None:
    x = np.linspace(-4, 4, 33)
    dy = np.where(np.arange(33) == 30, np.nan, 1.0)
    dx = normact.activation_backward(device.array(dy, dtype), device.array(x, dtype), kind.name, **kind.numbers).dx
    clean = device.values(slope(device, kind, x, dtype))
    np.testing.assert_array_equal(device.values(dx), np.where(np.isnan(dy), np.nan, clean), str(kind))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_subnormal_inputs(device: Device, kind: Kind, dtype: str) -> None:
    """They are no zeros: x, its half or its multiple come out, within the least normal number of it."""
    least = 2.0 ** tolerance.SMALLEST_EXPONENT[dtype]
    spacing = least * 2.0 ** -tolerance.MANTISSA_BITS[dtype]
    x = spacing * np.array([1, 2, 3, 7, 64, 100]) * np.array([[1.0], [-1.0]])
    found = device.values(value(device, kind, x, dtype))
    if kind.name in EXACT:
        np.testing.assert_array_equal(found, kind.value(x))
    else:
        np.testing.assert_allclose(found, kind.value(x), rtol=2.0 ** -tolerance.MANTISSA_BITS[dtype], atol=least)


# ---- The slope from what the forward left ----


@pytest.mark.parametrize("name", FROM_OUTPUT)
@pytest.mark.parametrize("dtype", WIDE + NARROW)
def test_slope_from_output(device: Device, name: str, dtype: str) -> None:
    """A function of the y that is given, which is taken as exact."""
    kind = Kind(name)
    x = every_value(dtype)[np.isfinite(every_value(dtype))] if dtype in NARROW else sweep(dtype)
    y = device.values(value(device, kind, x, dtype))
    keep = np.isfinite(y)
    y = y[keep]
    exact = kind.slope_from_output(wide(y, dtype))
    bound = 4 * tolerance.unit(dtype) * np.maximum(1, np.abs(exact))  # 1 - y^2 loses what y is rounded by
    want = Expected(exact, tolerance.with_output_rounding(bound, exact, dtype), dtype)
    ones, given = device.array(np.ones(y.shape), dtype), device.array(y, dtype)
    dx = normact.activation_backward(ones, None, name, y=given, **kind.numbers).dx
    assert_within(device.values(dx), want, f"{kind} from y")
    if name in (*EXACT, "leaky_relu"):
        np.testing.assert_array_equal(device.bits(dx), device.bits(slope(device, kind, x[keep], dtype)))


def test_kinds_without_a_slope_from_output(device: Device) -> None:
    x = device.array(np.ones(3), "float32")
    for name in set(KINDS) - set(FROM_OUTPUT):
        with pytest.raises(ValueError, match=r"activation_backward: y "):
            normact.activation_backward(x, None, name, y=x)
    for name in ("leaky_relu", "elu"):
        with pytest.raises(ValueError, match="alpha"):
            normact.activation_backward(x, None, name, y=x, alpha=-0.5)


def test_the_references_agree() -> None:
    """The two forms of the normal distribution, and every slope with the differences of its value."""
    x = np.linspace(-11.9, 11.9, 2_001)
    gelu = Kind("gelu")
    np.testing.assert_allclose(gelu.value(x), gelu.value(x.astype(np.longdouble)), rtol=1e-13)
    for kind in map(Kind, KINDS):
        step = 1e-6
        found = (kind.value(x + step) - kind.value(x - step)) / (2 * step)
        smooth = np.min(np.abs(x[:, None] - [-3.0, 0.0, 3.0, 6.0]), axis=1) > step
        np.testing.assert_allclose(found[smooth], kind.slope(x)[smooth], atol=2e-8, err_msg=str(kind))
