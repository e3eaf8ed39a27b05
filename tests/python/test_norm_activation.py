# SPDX-License-Identifier: Apache-2.0
"""Norms with an activation, forward and backward, against the float64 reference: every kind, and for some of them
every dtype, size, option, layout and row variant.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import normact
from activation_cases import KINDS, Kind
from cases import DTYPES, OPTIONS, ROW_VARIANTS, Problem, expected_backward, expected_forward
from checks import arrays, assert_within, backward, check, check_backward, check_forward, forward
from devices import Device
from layouts import LAYOUTS, supported

both_dtypes = pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES, ids=["-".join(pair) for pair in DTYPES])
some_activations = pytest.mark.parametrize("activation", ["gelu", "silu", "relu"])


@both_dtypes
@pytest.mark.parametrize("activation", KINDS)
def test_every_kind(device: Device, kind: str, dtype: str, parameter_dtype: str, activation: str) -> None:
    for residual in (False, True):
        problem = Problem(kind, (7, 320), dtype, parameter_dtype, residual=residual, activation=Kind(activation))
        check(device, problem)


@both_dtypes
@some_activations
def test_every_number_of_columns(device: Device, kind: str, dtype: str, parameter_dtype: str, activation: str) -> None:
    """At, below and above the sizes of each fast path and of the buffers of the CPU."""
    act = Kind(activation)
    for cols in (1, 2, 7, 16, 33, 64, 127, 256, 257, 768, 1000, 1024, 1025, 4096, 4097, 8192, 8193, 16384, 65536):
        check(device, Problem(kind, (3, cols), dtype, parameter_dtype, activation=act))
        bare = Problem(kind, (2, cols), dtype, weight=False, bias=False, residual=True, activation=act)
        check(device, bare)
    check(device, Problem(kind, (199, 48), dtype, parameter_dtype, activation=act))


@pytest.mark.parametrize("cols", [200_000, 1 << 20])
def test_very_long_rows(device: Device, kind: str, cols: int) -> None:
    check(device, Problem(kind, (2, cols), "bfloat16", "float32", activation=Kind("silu")))


@both_dtypes
@some_activations
def test_every_combination_of_options(
    device: Device, kind: str, dtype: str, parameter_dtype: str, activation: str
) -> None:
    for cols in (33, 64):
        for weight, bias, residual, weight_offset in OPTIONS:
            problem = Problem(
                kind,
                (3, cols),
                dtype,
                parameter_dtype,
                weight=weight,
                bias=bias,
                residual=residual,
                weight_offset=weight_offset,
                activation=Kind(activation),
            )
            check(device, problem)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "contiguous"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@some_activations
def test_every_layout(device: Device, kind: str, dtype: str, layout: str, activation: str) -> None:
    if not supported(layout, device):
        layout = "transposed"
    for shape in ((5, 33), (6, 64), (3, 1024)):
        for residual in (False, True):
            problem = Problem(
                kind,
                shape,
                dtype,
                residual=residual,
                equal_rows=layout == "expanded",
                activation=Kind(activation),
            )
            check(device, problem, layout, layout)
            check(device, problem, layout, "contiguous")
            check(device, problem, "contiguous", layout)


@pytest.mark.cuda
@pytest.mark.parametrize("variant", ROW_VARIANTS)
@both_dtypes
def test_every_row_variant(device: Device, kind: str, dtype: str, parameter_dtype: str, variant: str) -> None:
    """Forced over shapes that it may refuse; stream takes all of them."""
    ran = 0
    for cols in (8, 48, 64, 256, 520, 768, 1024, 4096, 6144, 16384, 40000, 131072, 262144):
        for activation in ("gelu", "relu"):
            problem = Problem(
                kind,
                (2, cols, 8 + cols % 3) if variant == "tile" else (5, cols),
                dtype,
                parameter_dtype,
                residual=cols % 3 == 0,
                activation=Kind(activation),
                axes=(1,),
            )
            with normact.row_variant(variant):
                for each in (check_forward, check_backward):
                    try:
                        each(device, problem)
                    except NotImplementedError:
                        continue
                    ran += 1
    assert ran > 0 or variant == "image" or (variant, dtype) == ("tile", "float64")
    assert ran == 52 or variant not in ("auto", "stream")


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_identity_is_no_activation(device: Device, kind: str, dtype: str) -> None:
    """Bit for bit."""
    problem = Problem(kind, (5, 100), dtype, residual=True)
    identity = dataclasses.replace(problem, activation=Kind("identity"))
    given = arrays(device, problem)
    for run in (forward, backward):
        found, want = run(identity, given), run(problem, given)
        for one, other in zip(found, want, strict=True):
            if one is not None:
                assert np.array_equal(device.bits(one), device.bits(other))


@pytest.mark.parametrize(("activation", "alpha"), [("leaky_relu", 0.01), ("elu", 1.0), ("gelu", None)])
def test_default_numbers(device: Device, kind: str, activation: str, alpha: float | None) -> None:
    """alpha is that of the activation's own function."""
    norm = getattr(normact, kind)
    x = arrays(device, Problem(kind, (3, 20), "float64")).x
    found, want = norm(x, activation=activation), norm(x, activation=activation, alpha=alpha)
    assert np.array_equal(device.bits(found), device.bits(want))
    own = getattr(normact, activation)(norm(x))
    np.testing.assert_allclose(device.values(found), device.values(own), rtol=1e-12, atol=1e-14)


def test_in_place(device: Device, kind: str) -> None:
    problem = Problem(kind, (4, 1500), "float32", activation=Kind("silu"))
    given = arrays(device, problem)
    assert forward(problem, given, out=given.x) is given.x
    assert_within(device.values(given.x), expected_forward(problem)["y"], "y = x")
    for name in ("dy", "s"):
        given = arrays(device, problem)
        grads = backward(problem, given, out=getattr(given, name))
        assert grads.dx is getattr(given, name)
        for field in ("dx", "dweight", "dbias"):
            assert_within(device.values(getattr(grads, field)), expected_backward(problem)[field], f"dx = {name}")


def test_no_rows(device: Device, kind: str) -> None:
    problem = Problem(kind, (0, 64), "float32", activation=Kind("gelu"))
    grads = backward(problem, arrays(device, problem))
    assert (device.values(grads.dweight) == 0).all()
    assert (device.values(grads.dbias) == 0).all()


def test_the_bias_matters_to_the_backward(device: Device, kind: str) -> None:
    """h is computed again: with another bias the slopes are others."""
    problem = Problem(kind, (4, 64), "float32", activation=Kind("relu"))
    given = arrays(device, problem)
    low = dataclasses.replace(given, bias=device.array(np.full(64, -100.0), "float32"))
    assert (device.values(backward(problem, low).dx) == 0).all()
    assert (device.values(backward(problem, given).dx) != 0).any()


@pytest.mark.parametrize("wrong", ["gel", "", 3])
def test_unknown_activations(device: Device, kind: str, wrong: object) -> None:
    given = arrays(device, Problem(kind, (3, 8)))
    with pytest.raises(ValueError, match=rf"^{kind}: activation is {wrong!r}; expected one of identity, relu"):
        getattr(normact, kind)(given.x, activation=wrong)
    statistics = {"rstd": given.rstd} if given.mean is None else {"mean": given.mean, "rstd": given.rstd}
    with pytest.raises(ValueError, match=rf"^{kind}_backward: activation is {wrong!r}; expected one of"):
        getattr(normact, f"{kind}_backward")(given.dy, given.s, **statistics, activation=wrong)


def test_wrong_numbers(device: Device, kind: str) -> None:
    x = arrays(device, Problem(kind, (3, 8))).x
    with pytest.raises(ValueError, match="alpha is nan; expected a finite number for elu"):
        getattr(normact, kind)(x, activation="elu", alpha=float("nan"))
    with pytest.raises(TypeError, match="alpha is of type str; expected a number"):
        getattr(normact, kind)(x, activation="elu", alpha="1")
