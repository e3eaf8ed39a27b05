# SPDX-License-Identifier: Apache-2.0
"""Norms so large that the CPU writes them past its caches: each row or sample has the bits of a call of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normact
from channel_cases import Problem
from channel_checks import arrays
from devices import Device
from layouts import LAYOUTS, channels_last

BYTES = 32 << 20  # of all tensors of a call
PLANES = ((64, 64), (63, 65))  # whole vectors, and not
CHANNELS = 24
ROW_DTYPES = (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"))  # of x, and of the residual


def samples_of(device: Device, planes: tuple[int, int], dtype: str, layout: Any) -> Any:
    """x, dy, weight and bias, where x and y alone move BYTES."""
    sample = 2 * CHANNELS * planes[0] * planes[1] * (2 if dtype == "bfloat16" else 4)
    return arrays(device, Problem("group_norm", (BYTES // sample + 1, CHANNELS, *planes), dtype), layout, layout)


def same_bits(device: Device, large: Any, small: Any, sample: int, what: str) -> None:
    assert np.array_equal(device.bits(large[sample : sample + 1]), device.bits(small)), f"{what} of sample {sample}"


@pytest.mark.cpu
@pytest.mark.parametrize("cols", [96, 256, 1000, 8192])
@pytest.mark.parametrize(("dtype", "stream"), ROW_DTYPES)
def test_rows(device: Device, kind: str, dtype: str, stream: str, cols: int) -> None:
    """Whole cache lines, or not; a few rows, of which some go together, against all."""
    rows = BYTES // (2 * cols * (2 if dtype == "bfloat16" else 4)) + 3
    values = np.random.default_rng(0).standard_normal((rows, cols), np.float32)
    x, other, weight = device.array(values, dtype), device.array(values[::-1], stream), device.array(values[0], dtype)
    statistics = {name: device.array(np.abs(values[:, 0]) + 1, "float32") for name in ("mean", "rstd")}
    if kind == "rms_norm":
        del statistics["mean"]
    forward, backward = getattr(normact, kind), getattr(normact, f"{kind}_backward")

    def run(some: slice) -> dict[str, Any]:
        y, total = forward(x[some], weight, residual=other[some])[:2]
        plain = forward(x[some], weight)
        of_rows = {name: array[some] for name, array in statistics.items()}
        gradients = backward(x[some], other[some], weight, **of_rows, dresidual=other[some])
        more = {} if gradients.daddend is None else {"daddend": gradients.daddend}
        return {"y": y, "sum": total, "plain": plain, "dx": gradients.dx, **more}

    large = run(slice(0, rows))
    for first, count in ((0, 1), (rows // 2, 5), (rows - 3, 3)):
        some = slice(first, first + count)
        for name, alone in run(some).items():
            assert np.array_equal(device.bits(large[name][some]), device.bits(alone)), f"{name} of rows {some}"


@pytest.mark.cpu
@pytest.mark.parametrize("planes", PLANES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", [LAYOUTS["contiguous"], channels_last])
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_group_norm(device: Device, activation: str | None, layout: Any, dtype: str, planes: tuple[int, int]) -> None:
    given = samples_of(device, planes, dtype, layout)
    options: Any = {"num_groups": 4, "weight": given.weight, "bias": given.bias, "activation": activation}
    y, mean, rstd = normact.group_norm(given.x, **options, return_stats=True)
    dx = normact.group_norm_backward(given.dy, given.x, **options, mean=mean, rstd=rstd).dx
    for i in (0, len(y) - 1):
        one = slice(i, i + 1)
        same_bits(device, y, normact.group_norm(given.x[one], **options), i, "y")
        alone = normact.group_norm_backward(given.dy[one], given.x[one], **options, mean=mean[one], rstd=rstd[one])
        same_bits(device, dx, alone.dx, i, "dx")


@pytest.mark.cpu
@pytest.mark.parametrize("planes", PLANES, ids=str)
@pytest.mark.parametrize("layout", [LAYOUTS["contiguous"], channels_last])
@pytest.mark.parametrize("in_place", [False, True])
def test_batch_norm_in_parts(device: Device, in_place: bool, layout: Any, planes: tuple[int, int]) -> None:
    """With an addend and its gradient, and into an input."""
    given = samples_of(device, planes, "float32", layout)
    moments = normact.batch_norm_statistics(given.x)
    mean, rstd, *_ = normact.batch_norm_merge(moments[None])
    options: Any = {"weight": given.weight, "bias": given.bias, "mean": mean, "rstd": rstd}
    sums = normact.batch_norm_reduce(given.dy, given.x, **options)
    options_of_dx: Any = {**options, "sums": sums, "count": moments[2]}
    some = [slice(i, i + 1) for i in (0, len(given.x) - 1)]
    expected = [
        (
            normact.batch_norm_apply(given.x[i], **options, addend=given.dy[i], activation="relu"),
            normact.batch_norm_input_gradient(given.dy[i], given.x[i], **options_of_dx).dx,
        )
        for i in some
    ]
    dx = normact.batch_norm_input_gradient(given.dy, given.x, **options_of_dx).dx
    out = given.dy if in_place else None
    y = normact.batch_norm_apply(given.x, **options, addend=given.dy, activation="relu", out=out)
    for i, (y_alone, dx_alone) in zip(some, expected, strict=True):
        same_bits(device, y, y_alone, i.start, "y")
        same_bits(device, dx, dx_alone, i.start, "dx")


@pytest.mark.cpu
@pytest.mark.parametrize("samples", [2, 100])
@pytest.mark.parametrize("layout", [LAYOUTS["contiguous"], LAYOUTS["every_second_column"], channels_last])
@pytest.mark.parametrize(("activation", "source"), [("relu", "y"), ("relu", "mask"), ("sigmoid", "y")])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_batch_norm_is_asked_for(
    device: Device, dtype: str, activation: str, source: str, layout: Any, samples: int
) -> None:
    """With daddend, where both passes may meet, the other gradients have the bits that they have without."""
    problem = Problem("batch_norm", (samples, CHANNELS, 61, 61), dtype)
    given = arrays(device, problem, layout, layout)
    parameters = {"weight": given.weight, "bias": given.bias}
    options: Any = {**parameters, "training": True, "activation": activation, "return_stats": True}
    y, mean, rstd, mask = normact.batch_norm(given.x, **options, return_mask=source == "mask")
    slopes = {source: y if source == "y" else mask}
    more: Any = {"mean": mean, "rstd": rstd, "activation": activation, **slopes}
    alone, together = (
        normact.batch_norm_backward(given.dy, given.x, **parameters, **more, return_daddend=wanted)
        for wanted in (False, True)
    )
    assert alone.daddend is None
    for name in ("dx", "dweight", "dbias"):
        mine, want = getattr(together, name), getattr(alone, name)
        assert np.array_equal(device.bits(mine), device.bits(want)), name
    slope = device.values(y) > 0 if activation == "relu" else device.values(y) * (1 - device.values(y))
    np.testing.assert_allclose(device.values(together.daddend), slope * device.values(given.dy), rtol=2**-7)
