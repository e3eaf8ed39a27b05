# SPDX-License-Identifier: Apache-2.0
"""The parts of a batch norm over several processes: together they are the whole, however the batch is divided."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import normact
import tolerance
from activation_cases import Kind
from cases import Expected
from channel_cases import Problem, expected_backward, expected_forward, expected_running, inputs, slope_sources
from channel_checks import arrays, check_running
from checks import assert_within
from devices import Device
from layouts import channels_last

one_dtype = pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])

# Samples of each process: uneven, one alone, none.
DIVISIONS = [(8,), (1, 7), (3, 0, 4, 1), (0, 8), (5, 3, 0), (1, 1, 1, 1, 1, 1, 1, 1)]


def problem_of(dtype: str, **options: Any) -> Problem:
    return Problem("batch_norm", (8, 12, 5, 3), dtype, "float64" if dtype == "float64" else "float32", **options)


def stacked(device: Device, parts: list[Any], dtype: str) -> Any:
    """What gathering gives: one array [K, ...]."""
    return device.array(np.stack([device.values(part) for part in parts]), dtype)


def pieces(array: Any, division: tuple[int, ...]) -> list[Any]:
    ends = np.cumsum((0, *division)).tolist()
    return [None if array is None else array[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]


def check_expected(device: Device, found: Any, want: Expected, where: str) -> None:
    assert device.dtype_name(found) == want.dtype, where
    assert tuple(found.shape) == want.values.shape, where
    assert_within(device.values(found), want, where)


every_division = pytest.mark.parametrize("division", DIVISIONS, ids=str)
both_layouts = pytest.mark.parametrize("nhwc", [False, True])


@one_dtype
@every_division
@both_layouts
def test_forward_of_parts_is_the_whole(device: Device, dtype: str, division: tuple[int, ...], nhwc: bool) -> None:
    problem = problem_of(dtype, addend=True, activation=Kind("silu"), running=True, batches=2, mean=3.0)
    layout = channels_last if nhwc else "contiguous"
    given, want, where = arrays(device, problem, layout, layout), expected_forward(problem), str(division)
    xs, addends = (pieces(array, division) for array in (given.x, given.addend))
    moments = stacked(device, [normact.batch_norm_statistics(x) for x in xs], problem.statistics)
    merged = normact.batch_norm_merge(
        moments, given.running_mean, given.running_var, num_batches_tracked=given.batches, momentum=0.1, eps=problem.eps
    )
    assert merged.running_mean is given.running_mean and merged.num_batches_tracked is given.batches
    check_running(device, problem, given, where)
    check_expected(device, merged.mean, want["mean"], f"mean; {where}")
    check_expected(device, merged.rstd, want["rstd"], f"rstd; {where}")
    options: dict[str, Any] = {"mean": merged.mean, "rstd": merged.rstd, "activation": "silu"}
    ys = [
        normact.batch_norm_apply(x, given.weight, given.bias, addend=addend, **options)
        for x, addend in zip(xs, addends, strict=True)
    ]
    assert_within(np.concatenate([device.values(part) for part in ys]), want["y"], f"y; {where}")


@one_dtype
@every_division
@both_layouts
@pytest.mark.parametrize("activation", [None, "silu", "relu"])
def test_backward_of_parts_is_the_whole(
    device: Device, dtype: str, division: tuple[int, ...], nhwc: bool, activation: str | None
) -> None:
    """From the reference's statistics, which the backward takes as they are; relu's slope from y."""
    kind = None if activation is None else Kind(activation)
    problem = problem_of(dtype, addend=True, activation=kind, slope_from="y" if activation == "relu" else "x")
    layout = channels_last if nhwc else "contiguous"
    given, want, where = arrays(device, problem, layout, layout), expected_backward(problem), f"{division} {activation}"
    options: dict[str, Any] = {"mean": given.mean, "rstd": given.rstd, "activation": activation}
    parts = [
        ((dy, x, given.weight, given.bias), {"addend": addend, "y": y, **options})
        for x, dy, addend, y in zip(
            *(pieces(array, division) for array in (given.x, given.dy, given.addend, given.y)), strict=True
        )
    ]
    reduced = [device.values(normact.batch_norm_reduce(*inputs_of, **more)) for inputs_of, more in parts]
    total = np.sum(reduced, axis=0)
    for row, name in enumerate(("dweight", "dbias")):
        assert_within(total[row], _looser(want[name], len(division), dtype), f"{name}; {where}")
    sums = device.array(total, problem.statistics)
    count = device.array(np.array([problem.per_channel]), problem.statistics)
    grads = [normact.batch_norm_input_gradient(*inputs_of, sums=sums, count=count, **more) for inputs_of, more in parts]
    assert all(part.dweight is None and part.dbias is None for part in grads)
    for name in ("dx", "daddend"):
        found = np.concatenate([device.values(getattr(part, name)) for part in grads])
        assert_within(found, want[name], f"{name}; {where}")


def _looser(want: Expected, parts: int, dtype: str) -> Expected:
    """Each part is rounded to the sums' dtype, and adding them up rounds too."""
    more = parts * tolerance.unit(dtype) * (np.abs(want.values) + want.bound)
    return dataclasses.replace(want, bound=want.bound + more)


@one_dtype
def test_one_part_has_the_bits_of_the_whole(device: Device, dtype: str) -> None:
    """A single process gets what batch_norm gives, but for the order in which sums are added."""
    problem = problem_of(dtype, activation=Kind("relu"))
    given = arrays(device, problem)
    whole = normact.batch_norm(
        given.x, given.weight, given.bias, training=True, activation="relu", return_stats=True, return_mask=True
    )
    y, _, _, mask = normact.batch_norm_apply(
        given.x, given.weight, given.bias, mean=whole.mean, rstd=whole.rstd, activation="relu", return_mask=True
    )
    np.testing.assert_array_equal(device.bits(y), device.bits(whole.y))
    np.testing.assert_array_equal(np.asarray(mask.tolist()), np.asarray(whole.mask.tolist()))


@pytest.mark.parametrize("shape", [(), (1,), (12,)], ids=str)
def test_shapes_of_the_count(device: Device, shape: tuple[int, ...]) -> None:
    problem = problem_of("float32")
    given = arrays(device, problem)
    statistics = {"mean": given.mean, "rstd": given.rstd}
    sums = normact.batch_norm_reduce(given.dy, given.x, given.weight, **statistics)
    count = device.array(np.full(shape, 120.0), "float32")
    found = normact.batch_norm_input_gradient(given.dy, given.x, given.weight, **statistics, sums=sums, count=count)
    assert_within(device.values(found.dx), expected_backward(problem)["dx"], f"count {shape}")


@one_dtype
def test_slope_from_mask_and_y(device: Device, dtype: str) -> None:
    for source in ("y", "mask"):
        problem = problem_of(dtype, activation=Kind("relu"), slope_from=source)
        given = arrays(device, problem)
        options = {"mean": given.mean, "rstd": given.rstd, "activation": "relu", "y": given.y, "mask": given.mask}
        sums = normact.batch_norm_reduce(given.dy, given.x, given.weight, given.bias, **options)
        want = expected_backward(problem)
        assert_within(device.values(sums)[0], want["dweight"], source)
        assert_within(device.values(sums)[1], want["dbias"], source)
        count = device.array(np.array(120.0), problem.statistics)
        grads = normact.batch_norm_input_gradient(
            given.dy, given.x, given.weight, given.bias, sums=sums, count=count, return_daddend=True, **options
        )
        assert_within(device.values(grads.dx), want["dx"], source)
        positive = slope_sources(problem).positive
        np.testing.assert_array_equal(device.values(grads.daddend), np.where(positive, inputs(problem).dy, 0))


def test_a_process_without_elements(device: Device) -> None:
    x = device.array(np.zeros((0, 5, 7)), "float32")
    assert (device.values(normact.batch_norm_statistics(x)) == 0).all()
    ones = device.array(np.ones(5), "float32")
    sums = normact.batch_norm_reduce(x, x, ones, mean=ones, rstd=ones)
    assert tuple(sums.shape) == (2, 5) and (device.values(sums) == 0).all()
    assert tuple(normact.batch_norm_apply(x, mean=ones, rstd=ones).shape) == (0, 5, 7)
    grads = normact.batch_norm_input_gradient(x, x, ones, mean=ones, rstd=ones, sums=sums, count=ones)
    assert tuple(grads.dx.shape) == (0, 5, 7)


def test_no_process_has_elements(device: Device) -> None:
    """Nothing is learned from nothing: mean 0, rstd 1 / sqrt(eps), running statistics as they were."""
    moments = device.array(np.zeros((3, 3, 5)), "float32")
    running_mean, running_var = (device.array(np.full(5, v), "float32") for v in (3.0, 4.0))
    count = device.integers(np.array(6), "int64")
    for momentum in (0.1, None):
        merged = normact.batch_norm_merge(
            moments, running_mean, running_var, num_batches_tracked=count, momentum=momentum, eps=0.25
        )
        assert (device.values(merged.mean) == 0).all() and (device.values(merged.rstd) == 2).all()
        assert (device.values(running_mean) == 3).all() and (device.values(running_var) == 4).all()
        assert int(count) == 6


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_many_parts_of_very_different_means(device: Device, scale: float) -> None:
    """Chan's merge of 64 parts, whose means differ by more than their spread."""
    rng = np.random.default_rng(5)
    parts = [tolerance.round_to(rng.standard_normal((n, 6)) + scale * k, "float32") for k, n in enumerate([3, 50] * 32)]
    moments = [normact.batch_norm_statistics(device.array(part, "float32")) for part in parts]
    merged = normact.batch_norm_merge(stacked(device, moments, "float32"), eps=0.0)
    whole = np.concatenate(parts)
    np.testing.assert_allclose(device.values(merged.mean), whole.mean(0), rtol=1e-6)
    np.testing.assert_allclose(device.values(merged.rstd), 1 / whole.std(0), rtol=2e-6)


def test_counts_are_true_counts_of_many_elements(device: Device) -> None:
    """Counts beyond 2^24 - not every integer there is a float32 - merge within rounding."""
    counts = np.array([2.0**24 + 2, 2.0**25, 5.0])
    means, variances = np.array([1.0, 2.0, 50.0]), np.array([1.0, 4.0, 9.0])
    moments = np.stack([means, variances * counts, counts], 1)[:, :, None]
    merged = normact.batch_norm_merge(device.array(moments, "float32"), eps=0.0)
    mean = (means * counts).sum() / counts.sum()
    variance = ((variances + (means - mean) ** 2) * counts).sum() / counts.sum()
    np.testing.assert_allclose(device.values(merged.mean), [mean], rtol=3e-7)
    np.testing.assert_allclose(device.values(merged.rstd), [variance**-0.5], rtol=3e-7)


def test_merge_gives_what_is_asked_for(device: Device) -> None:
    moments = device.array(np.ones((2, 3, 4)), "float32")
    merged = normact.batch_norm_merge(moments)
    assert merged.running_mean is None and merged.running_var is None and merged.num_batches_tracked is None
    mean, rstd = (device.array(np.zeros(4), "float32") for _ in range(2))
    merged = normact.batch_norm_merge(moments, out=(mean, rstd))
    assert merged.mean is mean and merged.rstd is rstd
    assert (device.values(mean) == 1).all()


def test_expected_running_statistics_of_parts_are_those_of_the_whole(device: Device) -> None:
    problem = problem_of("float32", running=True, batches=4, momentum=None)
    given = arrays(device, problem)
    moments = stacked(device, [normact.batch_norm_statistics(x) for x in pieces(given.x, (3, 5))], "float32")
    normact.batch_norm_merge(
        moments, given.running_mean, given.running_var, num_batches_tracked=given.batches, momentum=None
    )
    for name, want in expected_running(problem).items():
        check_expected(device, getattr(given, name), want, name)
