# SPDX-License-Identifier: Apache-2.0
"""The functions of normact.jax, under jit and vjp, against the float64 reference of all other tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

import cases
import channel_cases
import normact
import normact.jax as nj
from activation_cases import KINDS, GatedProblem, Kind
from activation_cases import Problem as ActivationProblem
from jax_checks import (
    assert_same_bits,
    check_activation,
    check_channel,
    check_gated,
    check_row,
    enable_x64,
    quick_compilation,
)

every_dtype = pytest.mark.parametrize(("dtype", "parameter_dtype"), cases.DTYPES)


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    with enable_x64(True), quick_compilation():
        yield


@every_dtype
@pytest.mark.parametrize("kind", cases.KINDS)
def test_row_norms(kind: str, dtype: str, parameter_dtype: str) -> None:
    options = cases.OPTIONS[::2] if dtype == "float64" else (cases.OPTIONS[0], cases.OPTIONS[3])
    for weight, bias, residual, offset in options:
        check_row(
            cases.Problem(
                kind, (3, 2, 33), dtype, parameter_dtype, weight=weight, bias=bias, residual=residual,
                weight_offset=offset,
            )
        )  # fmt: skip


@pytest.mark.parametrize("parameter_dtype", [None, "float32"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", cases.KINDS)
def test_row_norms_of_a_float32_stream(kind: str, dtype: str, parameter_dtype: str | None) -> None:
    for options in ({}, {"weight": False, "bias": False}, {"axes": (1,), "activation": Kind("silu")}):
        problem: dict[str, Any] = {"residual": True, "stream": "float32"} | options
        check_row(cases.Problem(kind, (3, 2, 33), dtype, parameter_dtype, **problem))


@pytest.mark.parametrize("axes", [(1,), (0, 2), (-1, -2), (2, 0, 1)], ids=str)
def test_row_norms_over_other_axes(axes: tuple[int, ...]) -> None:
    for kind in cases.KINDS:
        check_row(cases.Problem(kind, (4, 5, 6), axes=axes, activation=Kind("silu"), residual=True))


@pytest.mark.parametrize("shape", [(0, 5), (7,), (1, 1), (3, 300)], ids=str)
def test_row_norms_of_other_shapes(shape: tuple[int, ...]) -> None:
    check_row(cases.Problem("layer_norm", shape))


@pytest.mark.parametrize("kind", KINDS)
def test_activations(kind: str) -> None:
    for dtype, bias, axis in (("float32", "float32", 1), ("bfloat16", None, -1)):
        check_activation(ActivationProblem(Kind(kind), (3, 4, 7), dtype, bias, axis))


@pytest.mark.parametrize("layout", ["separate", "split", "interleaved"])
def test_gates(layout: str) -> None:
    kinds = itertools.cycle(Kind(kind) for kind in ("silu", "sigmoid", "gelu_tanh", "relu"))
    for dtype, biases, axis in itertools.product(
        ("float64", "float32", "bfloat16"), ((False, False), (True, True)), (-1, 1)
    ):
        limited: dict[str, Any] = {"limit": 3.0, "up_offset": 1.0} if axis == 1 else {}
        check_gated(GatedProblem(next(kinds), (3, 4, 6), dtype, layout, biases, axis=axis, **limited))


def test_one_bias_of_a_gate() -> None:
    for biases in ((True, False), (False, True)):
        check_gated(GatedProblem(Kind("silu"), (3, 8), biases=biases))


@every_dtype
def test_batch_norm(dtype: str, parameter_dtype: str) -> None:
    for (training, running), kind, addend in itertools.product(
        ((True, False), (True, True), (False, True)), (None, Kind("relu"), Kind("silu")), (False, True)
    ):
        if dtype != "float64" and addend != (kind is not None and running):
            continue
        check_channel(
            channel_cases.Problem(
                "batch_norm", (4, 3, 5), dtype, parameter_dtype, training=training, running=running, addend=addend,
                activation=kind,
            )
        )  # fmt: skip


@every_dtype
def test_group_norm(dtype: str, parameter_dtype: str) -> None:
    for axis, groups in ((1, 2), (-1, 3), (1, 6))[: 3 if dtype == "float64" else 1]:
        shape = (3, 6, 5) if axis == 1 else (3, 5, 6)
        options = {"channel_axis": axis, "num_groups": groups, "activation": Kind("silu") if groups == 2 else None}
        check_channel(channel_cases.Problem("group_norm", shape, dtype, parameter_dtype, **options))


def test_group_norm_without_parameters() -> None:
    check_channel(channel_cases.Problem("group_norm", (3, 6, 5), weight=False, bias=False))


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_instance_norm(training: bool, running: bool) -> None:
    if running or training:
        check_channel(channel_cases.Problem("instance_norm", (3, 4, 5, 2), training=training, running=running))


def test_without_jit_and_without_gradient_is_the_same() -> None:
    x = jax.numpy.asarray(np.random.default_rng(0).standard_normal((5, 64)), "float32")
    want = normact.layer_norm(np.asarray(x))
    for found in (nj.layer_norm(x), jax.jit(nj.layer_norm)(x), jax.vjp(nj.layer_norm, x)[0]):
        assert_same_bits(found, want)


def test_numpy_arrays_are_taken() -> None:
    x = np.ones((2, 3), np.float32)
    assert isinstance(nj.rms_norm(x, x[0], residual=x)[1], jax.Array)


def test_donated_running_statistics_are_updated_in_place() -> None:
    """Bit for bit what is given without donation: the buffers are aliased, not shared with something alive."""
    x = jax.numpy.asarray(np.random.default_rng(1).standard_normal((6, 4)), "float32")

    def step(mean: jax.Array, variance: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        return nj.batch_norm(x, None, None, mean, variance, training=True)

    start = jax.numpy.zeros(4, "float32"), jax.numpy.ones(4, "float32")
    want = jax.jit(step)(*start)
    found = jax.jit(step, donate_argnums=(0, 1))(*(jax.numpy.array(state) for state in start))
    for ours, theirs in zip(found, want, strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    np.testing.assert_array_equal(np.asarray(start[0]), 0)
