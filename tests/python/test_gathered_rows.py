# SPDX-License-Identifier: Apache-2.0
"""layer_norm and rms_norm of rows whose columns are in pieces or apart, which GPU kernels gather in registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normact
from activation_cases import Kind
from cases import Problem, inputs
from checks import arrays, check, check_backward, check_forward
from devices import Device
from layouts import channels_last

# Lines of whole packs and others: from less than a pack a row to more than a block holds.
SHAPES = ((3, 1, 4, 8), (2, 3, 5, 8), (2, 10, 3, 24), (2, 40, 3, 64), (2, 150, 2, 72), (2, 130, 2, 200))
SHAPES += ((5, 2, 4, 1), (7, 3, 5, 5), (2, 10, 3, 27), (2, 90, 3, 25), (3, 150, 2, 49), (2, 300, 2, 35))
# Of neighbouring sizes, one is held and one is not (fp32 and 16 bits, both directions).
LONGEST = ((8192, 1), (8193, 1), (16384, 1), (16385, 1), (2048, 8), (2056, 8), (3072, 8), (3073, 8), (4096, 8))
LONGEST += ((4097, 8),)

dtypes = pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])


def transposed_lines(device: Device, values: np.ndarray, dtype: str) -> Any:
    """Axes 1 and 2 lie the other way around in memory."""
    return device.array(values.swapaxes(1, 2), dtype).swapaxes(1, 2)


@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_in_pieces(device: Device, kind: str, dtype: str, shape: tuple[int, ...]) -> None:
    check(device, Problem(kind, shape, dtype, "float32", axes=(1, 3)))
    check(device, Problem(kind, shape, dtype, residual=True, weight_offset=1.0, bias=False, axes=(1, 3)))
    check(device, Problem(kind, shape, dtype, weight=False, axes=(0, 3)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("channels", "line"), LONGEST)
def test_rows_about_as_long_as_registers_hold(device: Device, kind: str, dtype: str, channels: int, line: int) -> None:
    for residual in (False, True):
        check(device, Problem(kind, (2, channels, 2, line), dtype, residual=residual, axes=(1, 3)))


@dtypes
@pytest.mark.parametrize("activation", ["relu", "gelu", "mish", "softplus"])
@pytest.mark.parametrize("shape", [(2, 10, 3, 24), (2, 40, 3, 64), (2, 90, 3, 25), (7, 3, 5, 5)], ids=str)
def test_activations(device: Device, kind: str, dtype: str, activation: str, shape: tuple[int, ...]) -> None:
    for residual in (False, True):
        check(device, Problem(kind, shape, dtype, residual=residual, axes=(1, 3), activation=Kind(activation)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 24, 5, 16), (3, 10, 4, 5)], ids=str)
def test_tensors_in_layouts_of_their_own(device: Device, kind: str, dtype: str, shape: tuple[int, ...]) -> None:
    """x in one layout, residual and dy in another; parameters whose columns do not follow each other as x's do."""
    layouts: tuple[Any, ...] = ("contiguous", channels_last, transposed_lines, "every_second_column")
    for axes in ((1, 3), (0, 3), (1, 2, 3), (0, 2)):
        for layout in layouts:
            for other in layouts:
                check(device, Problem(kind, shape, dtype, residual=True, axes=axes), layout, other)


def test_columns_that_are_one(device: Device, kind: str) -> None:
    """Seen six times: strides of 0 among the columns."""
    values = inputs(Problem(kind, (1, 40, 8), axes=(0, 2))).x
    x = device.broadcast(device.array(values, "float32"), (6, 40, 8))
    want = getattr(normact, kind)(device.array(np.repeat(values, 6, axis=0), "float32"), axis=(0, 2))
    found = getattr(normact, kind)(x, axis=(0, 2))
    np.testing.assert_allclose(device.values(found), device.values(want), rtol=0, atol=8 * 2.0**-24)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("line", [8, 7])
def test_rows_do_not_depend_on_their_neighbours(device: Device, kind: str, dtype: str, line: int) -> None:
    """A row has the same bits in a batch of any size, forward and backward, with and without a residual of zeros."""
    problem = Problem(kind, (70, 12, 9, line), dtype, axes=(1, 3))
    values, function = inputs(problem).x, getattr(normact, kind)
    whole = device.bits(function(device.array(values, dtype), axis=(1, 3)))
    for rows in (1, 2, 5):
        few = device.array(values[:rows], dtype)
        np.testing.assert_array_equal(device.bits(function(few, axis=(1, 3))), whole[:rows])
        added = function(few, residual=device.array(np.zeros_like(values[:rows]), dtype), axis=(1, 3))
        np.testing.assert_array_equal(device.bits(added.y), whole[:rows])
    given = arrays(device, problem)

    def dx_of(rows: int) -> np.ndarray:
        x = given.x[:rows]
        found = function(x, given.weight, given.bias, axis=(1, 3), return_stats=True)
        mean = {} if found.mean is None else {"mean": found.mean}
        gradient = getattr(normact, f"{kind}_backward")
        return device.bits(gradient(given.dy[:rows], x, given.weight, **mean, rstd=found.rstd, axis=(1, 3)).dx)

    np.testing.assert_array_equal(dx_of(3), dx_of(70)[:3])


@pytest.mark.parametrize("line", [8, 7])
def test_large_means_do_not_cancel(device: Device, line: int) -> None:
    for channels in (3, 100, 900):
        check(device, Problem("layer_norm", (2, channels, 3, line), mean=1e4, axes=(1, 3)))


@pytest.mark.parametrize("line", [8, 7])
def test_constant_rows(device: Device, line: int) -> None:
    """Their variance is 0, never less, so that rstd is a number."""
    for value in (0.0, 0.1, 1000.1):
        for channels in (3, 100, 1000):
            x = device.array(np.full((2, channels, 3, line), np.float32(value)), "float32")
            found = normact.layer_norm(x, axis=(1, 3), eps=1e-12, return_stats=True)
            assert np.isfinite(device.values(found.rstd)).all()
            assert np.abs(device.values(found.y)).max() <= 1 + 8 * 2.0**-24


@pytest.mark.parametrize("line", [8, 7])
def test_nan_stays_in_its_row(device: Device, kind: str, line: int) -> None:
    values = inputs(Problem(kind, (3, 20, 4, line), axes=(1, 3))).x.copy()
    clean = device.values(getattr(normact, kind)(device.array(values, "float32"), axis=(1, 3)))
    values[1, 4, 2, 3] = np.nan
    y = device.values(getattr(normact, kind)(device.array(values, "float32"), axis=(1, 3)))
    assert np.isnan(y[1, :, 2]).all()
    clean[1, :, 2] = y[1, :, 2]
    np.testing.assert_array_equal(y, clean)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(3000, 3, 30, 8), (9000, 2, 10, 5), (400, 40, 20, 16)], ids=str)
def test_many_rows(device: Device, kind: str, dtype: str, shape: tuple[int, ...]) -> None:
    """More than blocks work on at a time."""
    check(device, Problem(kind, shape, dtype, axes=(1, 3)))


@pytest.mark.cuda
@pytest.mark.parametrize("activation", [None, "softplus"])
@pytest.mark.parametrize(
    "shape", [(30_000, 24, 9, 8), (60_000, 4, 9, 7), (60_000, 1, 9, 3), (30_000, 40, 2, 16)], ids=str
)
def test_sums_of_parameter_gradients_on_one_multiprocessor(
    device: Device, kind: str, shape: tuple[int, ...], activation: str | None
) -> None:
    """Whose threads take their sums to memory now and then. The slope of the activation is 1 so far out."""
    import torch

    x, dy = torch.randn(shape, device="cuda"), torch.full(shape, 0.1, device="cuda")
    of = (shape[1], shape[3])
    weight, bias = torch.ones(of, device="cuda"), torch.full(of, 60.0, device="cuda")
    normact.set_sm_margin(131)
    try:
        options = {"axis": (1, 3), "activation": activation}
        found = getattr(normact, kind)(x, weight, bias, return_stats=True, **options)
        mean = {} if found.mean is None else {"mean": found.mean}
        grads = getattr(normact, f"{kind}_backward")(dy, x, weight, bias, **mean, rstd=found.rstd, **options)
        want = float(np.float32(0.1)) * shape[0] * shape[2]
        np.testing.assert_allclose(device.values(grads.dbias), want, rtol=64 * 2.0**-24)
    finally:
        normact.set_sm_margin(0)


@pytest.mark.cuda
@dtypes
@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (2, 40, 3, 64), (2, 10, 3, 27), (3, 150, 2, 49)], ids=str)
def test_variants(device: Device, kind: str, dtype: str, shape: tuple[int, ...]) -> None:
    """Warps hold short rows and blocks longer ones; the stream takes all."""
    problem = Problem(kind, shape, dtype, residual=True, axes=(1, 3))
    for check_direction in (check_forward, check_backward):
        taken: list[str] = []
        for variant in ("warp", "block", "stream"):
            with normact.row_variant(variant):
                try:
                    check_direction(device, problem)
                except NotImplementedError:
                    continue
            taken.append(variant)
        assert taken in (["warp", "stream"], ["block", "stream"])
