# SPDX-License-Identifier: Apache-2.0
"""Gradients of parameters are sums over up to millions of rows or samples: those of a constant keep their digits.

Terms of one sign are what a chain of additions does worst with: the rounding of each is of the size of the sum so far,
and of equal terms it goes one way. Of random terms they cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import normact
from devices import Device

TERM = 0.1  # of which no sum of float32 is exact
UNITS = 64  # of 2^-24: of sums of some terms each, of those, and so on
SHAPES = ((1_000_000, 2), (300_000, 8), (40_000, 64), (100_000, 4, 7), (100_000, 4, 8), (1_000_000, 2, 3))
SHAPES += ((3, 4, 500_000),)

shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def check(device: Device, found: Any, terms: int) -> None:
    want = float(np.float32(TERM)) * terms
    np.testing.assert_allclose(device.values(found), want, rtol=UNITS * 2.0**-24)


def laid(device: Device, shape: tuple[int, ...], last: bool) -> tuple[Any, Any]:
    """x and dy of float32, channels last if told."""
    if not last or len(shape) == 2:
        values = np.random.default_rng(0).standard_normal(shape)
        return device.array(values, "float32"), device.array(np.full(shape, TERM), "float32")
    x, dy = laid(device, (shape[0], shape[2], shape[1]), False)
    return x.swapaxes(1, 2), dy.swapaxes(1, 2)


def terms_of(shape: tuple[int, ...], axis: int = 1) -> int:
    return int(np.prod(shape)) // shape[axis]


def parameters(device: Device, size: int) -> tuple[Any, Any]:
    return device.array(np.ones(size), "float32"), device.array(np.zeros(size), "float32")


def row_bias_gradient(kind: str, x: Any, dy: Any, weight: Any, bias: Any, **options: Any) -> Any:
    found = getattr(normact, kind)(x, weight, bias, return_stats=True, **options)
    mean = {} if found.mean is None else {"mean": found.mean}
    return getattr(normact, f"{kind}_backward")(dy, x, weight, bias, **mean, rstd=found.rstd, **options).dbias


@shapes
def test_rows(device: Device, kind: str, shape: tuple[int, ...]) -> None:
    """Over the last axis, and over the second."""
    for axis in {1, len(shape) - 1}:
        given = (*laid(device, shape, False), *parameters(device, shape[axis]))
        check(device, row_bias_gradient(kind, *given, axis=axis), terms_of(shape, axis))


@pytest.mark.parametrize("shape", [(2_000_000, 1), (300_000, 12)], ids=str)
def test_rows_of_columns_apart(device: Device, kind: str, shape: tuple[int, ...]) -> None:
    """Every second column, which a GPU gathers."""
    x, dy = (of[:, ::2] for of in laid(device, (shape[0], 2 * shape[1]), False))
    check(device, row_bias_gradient(kind, x, dy, *parameters(device, shape[1])), shape[0])


@pytest.mark.cuda
@pytest.mark.parametrize("activation", [None, "softplus"])
@pytest.mark.parametrize(
    "shape", [(500_000, 768), (500_000, 257), (2_000_000, 1), (60_000, 4096), (2000, 9001)], ids=str
)
def test_rows_on_one_multiprocessor(device: Device, kind: str, shape: tuple[int, ...], activation: str | None) -> None:
    """Whose threads add up as many rows as they ever will. The slope of the activation is 1 so far out."""
    import torch

    x, dy = torch.randn(shape, device="cuda"), torch.full(shape, TERM, device="cuda")
    weight, bias = torch.ones(shape[1], device="cuda"), torch.full((shape[1],), 60.0, device="cuda")
    normact.set_sm_margin(131)
    try:
        check(device, row_bias_gradient(kind, x, dy, weight, bias, activation=activation), shape[0])
    finally:
        normact.set_sm_margin(0)


@pytest.mark.cuda
@pytest.mark.parametrize("shape", [(2000, 384, 7, 7), (700, 384, 14, 14), (300, 1088, 14, 14)], ids=str)
def test_images_on_one_multiprocessor(device: Device, kind: str, shape: tuple[int, ...]) -> None:
    import torch

    x, dy = torch.randn(shape, device="cuda"), torch.full(shape, TERM, device="cuda")
    weight, bias = torch.ones(shape[1], device="cuda"), torch.zeros(shape[1], device="cuda")
    if shape[-1] == 14:
        x, dy, weight, bias = (tensor.half() for tensor in (x, dy, weight, bias))
    normact.set_sm_margin(131)
    try:
        grads = row_bias_gradient(kind, x, dy, weight, bias, axis=1)
        want = float(dy.flatten()[0]) * terms_of(shape)
        np.testing.assert_allclose(device.values(grads), want, rtol=2.0**-10 if shape[-1] == 14 else UNITS * 2.0**-24)
    finally:
        normact.set_sm_margin(0)


def group_norm(x: Any, dy: Any, weight: Any, bias: Any) -> Any:
    found = normact.group_norm(x, 2, weight, bias, return_stats=True)
    return normact.group_norm_backward(dy, x, 2, weight, bias, mean=found.mean, rstd=found.rstd)


def instance_norm(x: Any, dy: Any, weight: Any, bias: Any) -> Any:
    found = normact.instance_norm(x, weight, bias, return_stats=True)
    return normact.instance_norm_backward(dy, x, weight, bias, mean=found.mean, rstd=found.rstd)


def batch_norm(x: Any, dy: Any, weight: Any, bias: Any) -> Any:
    found = normact.batch_norm(x, weight, bias, training=True, return_stats=True)
    return normact.batch_norm_backward(dy, x, weight, bias, mean=found.mean, rstd=found.rstd)


NORMS = [(norm, shape) for norm in (group_norm, batch_norm) for shape in SHAPES]
NORMS += [(instance_norm, shape) for shape in SHAPES if len(shape) > 2]  # of a single place it has nothing to say


@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize(("norm", "shape"), NORMS, ids=lambda each: getattr(each, "__name__", str(each)))
def test_channels(device: Device, norm: Callable[..., Any], last: bool, shape: tuple[int, ...]) -> None:
    x, dy = laid(device, shape, last)
    check(device, norm(x, dy, *parameters(device, shape[1])).dbias, terms_of(shape))


@shapes
def test_biases(device: Device, shape: tuple[int, ...]) -> None:
    x, dy = laid(device, shape, False)
    _, bias = parameters(device, shape[1])
    check(device, normact.identity_backward(dy, x, bias=bias, axis=1).dbias, terms_of(shape))


@pytest.mark.parametrize("shape", [(2_000_000, 2, 3), (10_000_000, 2)], ids=str)
def test_biases_of_what_is_broadcast(device: Device, shape: tuple[int, ...]) -> None:
    """Other loops than those over an array."""
    x, dy = (device.broadcast(device.array(np.full((1,) * len(shape), TERM), "float32"), shape) for _ in range(2))
    _, bias = parameters(device, shape[1])
    check(device, normact.identity_backward(dy, x, bias=bias, axis=1).dbias, terms_of(shape))
