# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show of batch, group and instance norm: graphs, streams, sizes beyond 32 bits, the CPU's bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import normact
import tolerance
from activation_cases import Kind
from channel_cases import (
    OPERATIONS,
    Problem,
    expected_backward,
    expected_forward,
    expected_running,
    fused_problem,
    inputs,
    packed,
)
from channel_checks import Arrays, arrays, backward, check, check_running, forward
from checks import assert_repeats, assert_within, compare
from devices import Device, NumpyDevice, capturing
from layouts import channels_last
from normact.channel_calls import is_channels_last

pytestmark = pytest.mark.cuda

every_op = pytest.mark.parametrize("op", OPERATIONS)
both_layouts = pytest.mark.parametrize("layout", ["contiguous", "nhwc"])


def built(layout: str) -> Any:
    return channels_last if layout == "nhwc" else layout


def channels_before(where: Device, values: np.ndarray, dtype: str) -> Any:
    """An array whose last axis is behind the first in memory."""
    moved = where.array(np.ascontiguousarray(np.moveaxis(values, -1, 1)), dtype)
    return moved.permute(0, *range(2, values.ndim), 1)


@every_op
@both_layouts
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_cpu_and_gpu_round_alike(device: Device, op: str, dtype: str, layout: str) -> None:
    """The same contract on both: at least 99.8 % equal bits (each is correctly rounded in 99.9 %)."""
    problem, cpu = fused_problem(op, (8, 32, 28, 28), dtype), NumpyDevice()
    for name, run in (("y", forward), ("dx", lambda *args: backward(*args).dx)):
        found = [w.values(run(problem, arrays(w, problem, built(layout), built(layout)))) for w in (cpu, device)]
        different = np.mean(found[0] != found[1])
        assert different <= 2e-3, f"{name}: {different:.2e} of the elements differ"


@every_op
@both_layouts
@pytest.mark.parametrize(
    "shape",
    [
        (70_001, 4, 3),
        (2, 70_000, 3),
        (1, 4, 2_000_003),
        (256, 64, 56, 56),
        (32, 2048, 7, 7),
        (2, 512, 96, 96),
        (1, 128, 20, 64, 64),
        (4, 320, 33, 31),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sizes_of_models_and_limits_of_a_grid(
    device: Device, op: str, dtype: str, shape: tuple[int, ...], layout: str
) -> None:
    check(device, fused_problem(op, shape, dtype), built(layout), built(layout))


@every_op
@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 7])
def test_every_alignment(device: Device, op: str, offset: int) -> None:
    """Packs of 16 bytes start anywhere; x, dy and the outputs each at their own."""

    def shifted(where: Device, values: np.ndarray, dtype: str) -> Any:
        storage = np.full(values.size + offset, np.nan)
        storage[offset:] = values.ravel()
        return where.array(storage, dtype)[offset:].reshape(values.shape)

    for dtype in ("float64", "float32", "float16", "bfloat16"):
        for shape, axis in (((3, 8, 33), 1), ((5, 16, 64), 1), ((5, 9, 40), -1), ((5, 9, 36), -1)):
            problem = fused_problem(op, shape, dtype, channel_axis=axis)
            check(device, problem, shifted, "contiguous")
            check(device, problem, "offset_by_one", shifted)


@pytest.mark.parametrize(
    "shape",
    [(8, 2, 2, 2), (9, 8, 3, 3), (64, 24, 7, 7), (33, 6, 14, 14), (700, 16, 5, 5), (16, 520, 1, 3), (12, 64, 15, 15)],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_batch_norm_of_small_planes(device: Device, dtype: str, shape: tuple[int, ...]) -> None:
    """Packs hold several channels, and threads on neighbouring packs share one."""
    plain = Problem("batch_norm", shape, dtype, "float32", running=True, batches=3, mean=30.0)
    fused = fused_problem("batch_norm", shape, dtype)
    for problem in (
        plain,
        dataclasses.replace(plain, weight=False, bias=False, activation=Kind("gelu")),
        fused,
        dataclasses.replace(fused, slope_from="y"),
        dataclasses.replace(fused, slope_from="mask"),
        dataclasses.replace(fused, training=False),
        dataclasses.replace(fused, parameter_dtype=dtype, mean=1000.0),
    ):
        check(device, problem)
    moved = (shape[0], *shape[2:], shape[1])  # channels last, in the same memory
    last = fused_problem("batch_norm", moved, dtype, slope_from="mask", channel_axis=-1)
    for problem in (last, dataclasses.replace(last, slope_from="x")):
        check(device, problem, channels_before, channels_before)
    bits = forward(last, arrays(device, last, channels_before, channels_before), return_mask=True)
    np.testing.assert_array_equal(bits.mask.cpu().numpy(), packed(device.values(bits.y) > 0, -1, False))
    given = arrays(device, fused)
    want = expected_forward(fused) | expected_backward(fused)
    for name, found in parts(fused, given).items():
        loose = dataclasses.replace(want[name], bound=want[name].bound + tolerance.ulp(want[name].values, "float32"))
        assert_within(device.values(found), loose, f"{name} of the parts")


# ---- Graphs, streams, devices ----


def parts(problem: Problem, given: Arrays) -> dict[str, Any]:
    """Every part of a batch norm on the arrays of a problem."""
    options = {"activation": "relu", "addend": given.addend}
    statistics = {"mean": given.mean, "rstd": given.rstd}
    moments = normact.batch_norm_statistics(given.x)
    merged = normact.batch_norm_merge(moments[None], eps=problem.eps)
    y = normact.batch_norm_apply(given.x, given.weight, given.bias, **statistics, **options)
    inputs_of = (given.dy, given.x, given.weight, given.bias)
    sums = normact.batch_norm_reduce(*inputs_of, **statistics, **options)
    grads = normact.batch_norm_input_gradient(*inputs_of, **statistics, sums=sums, count=moments[2], **options)
    return {"mean": merged.mean, "rstd": merged.rstd, "y": y, "dweight": sums[0], "dbias": sums[1], "dx": grads.dx}


@every_op
@both_layouts
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(5, 12, 7, 9), (16, 64, 28, 28), (64, 256, 56, 56), (3, 20, 17)], ids=str)
def test_cuda_graph(device: Device, op: str, dtype: str, shape: tuple[int, ...], layout: str) -> None:
    """Forward and backward, and the parts, are captured once and replayed on new numbers, more than once."""
    import torch

    running = op != "group_norm"
    first = fused_problem(op, shape, dtype, running=running)
    second = dataclasses.replace(first, mean=1.0, std=3.0)
    static, fresh = (arrays(device, problem, built(layout), built(layout)) for problem in (first, second))
    graph = torch.cuda.CUDAGraph()
    with capturing(graph):
        output = forward(first, static, return_stats=True)
        grads = backward(first, static)
        pieces = parts(first, static) if op == "batch_norm" else {}
    for name in static._fields:
        if getattr(static, name) is not None:
            getattr(static, name).copy_(getattr(fresh, name))
    graph.replay()
    torch.cuda.synchronize()
    want = expected_forward(second) | expected_backward(second)
    compare(device, output, expected_forward(second), "replayed")
    compare(device, grads, expected_backward(second), "replayed")
    if running:
        check_running(device, second, static, "replayed")
    for name, found in pieces.items():
        loose = dataclasses.replace(want[name], bound=want[name].bound + tolerance.ulp(want[name].values, "float32"))
        assert_within(device.values(found), loose, f"{name} of the parts, replayed")
    bits = device.bits(output.y), device.bits(grads.dx)
    graph.replay()
    torch.cuda.synchronize()
    np.testing.assert_array_equal(device.bits(output.y), bits[0])
    np.testing.assert_array_equal(device.bits(grads.dx), bits[1])


@every_op
@pytest.mark.parametrize("explicit", [False, True], ids=["current", "explicit"])
def test_streams(device: Device, op: str, explicit: bool) -> None:
    """Work is queued behind the stream's earlier work, and the call does not wait for it."""
    import torch

    problem = fused_problem(op, (8, 16, 30, 30), "float32")
    source = arrays(device, problem)
    target = Arrays(*(None if array is None else torch.zeros_like(array) for array in source))
    forward(problem, source, return_stats=True)  # loads the kernels, which takes its time
    backward(problem, source)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)  # about 0.2 s
        for array, values in zip(target, source, strict=True):
            if array is not None:
                array.copy_(values, non_blocking=True)
    with torch.cuda.stream(None if explicit else stream):
        options = {"stream": stream.cuda_stream} if explicit else {}
        output, grads = forward(problem, target, return_stats=True, **options), backward(problem, target, **options)
    assert not stream.query(), "the call waited for the GPU"
    stream.synchronize()
    compare(device, output, expected_forward(problem), "on a stream of its own")
    compare(device, grads, expected_backward(problem), "on a stream of its own")


@both_layouts
@pytest.mark.parametrize("target", ["x", "addend"])
@pytest.mark.parametrize("shape", [(4, 16, 8, 8), (4, 16, 7, 7)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_mask_beside_an_output_in_place(
    device: Device, dtype: str, shape: tuple[int, ...], target: str, layout: str
) -> None:
    """The mask of an output elsewhere, or a refusal that has written nothing."""
    given = arrays(device, fused_problem("batch_norm", shape, dtype), built(layout), built(layout))
    options = {"training": True, "addend": given.addend, "activation": "relu", "return_mask": True}
    want = normact.batch_norm(given.x, given.weight, given.bias, **options)
    place = getattr(given, target)
    before = device.bits(place)
    try:
        found = normact.batch_norm(given.x, given.weight, given.bias, out=place, **options)
    except NotImplementedError:
        np.testing.assert_array_equal(device.bits(place), before)
        return
    np.testing.assert_array_equal(device.bits(found.y), device.bits(want.y))
    assert bool((found.mask == want.mask).all())


@both_layouts
@pytest.mark.parametrize(
    "shape", [(4, 64, 28, 28), (3, 72, 4, 6), (2, 8, 1, 8), (5, 24, 16, 2), (9, 40, 7, 7), (32, 256, 56, 56)], ids=str
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_mask_has_the_bits_of_the_output(device: Device, dtype: str, shape: tuple[int, ...], layout: str) -> None:
    """However its bits lie beside the elements; and a backward from either has the same slopes."""
    problem = fused_problem("batch_norm", shape, dtype)
    given = arrays(device, problem, built(layout), built(layout))
    found = forward(problem, given, return_mask=True)
    bits = packed(device.values(found.y) > 0, 1, is_channels_last(given.x, 1))
    np.testing.assert_array_equal(found.mask.cpu().numpy(), bits)
    from_y, from_mask = (backward(problem, given._replace(**{name: getattr(found, name)})) for name in ("y", "mask"))
    np.testing.assert_array_equal(device.bits(from_mask.daddend), device.bits(from_y.daddend))
    unit = {"float32": 2.0**-23, "bfloat16": 2.0**-7}[dtype]  # sums may be taken in another order
    for name in ("dx", "dweight", "dbias"):
        one, other = (device.values(getattr(grads, name)) for grads in (from_y, from_mask))
        np.testing.assert_allclose(other, one, rtol=unit, atol=8 * unit * np.abs(one).max(), err_msg=name)


@every_op
@both_layouts
def test_in_place_over_many_blocks(device: Device, op: str, layout: str) -> None:
    """Blocks that share a set read what others of them overwrite, but not too late."""
    problem = fused_problem(op, (32, 64, 56, 56))
    given = arrays(device, problem, built(layout), built(layout))
    want = device.bits(forward(problem, given))
    for _ in range(8):
        x = given.x.clone()
        np.testing.assert_array_equal(device.bits(forward(problem, given._replace(x=x), out=x)), want)


@every_op
@both_layouts
def test_two_streams_at_once(device: Device, op: str, layout: str) -> None:
    """Calls that run side by side do not share what they sum up in, nor wait for each other for ever."""
    import torch

    problem = fused_problem(op, (32, 64, 56, 56))
    given = arrays(device, problem, built(layout), built(layout))
    want = device.bits(forward(problem, given)), device.bits(backward(problem, given).dx)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    found = []
    for turn in range(24):
        with torch.cuda.stream(streams[turn % 4]):
            found.append((forward(problem, given), backward(problem, given).dx))
    torch.cuda.synchronize()
    for y, dx in found:
        np.testing.assert_array_equal(device.bits(y), want[0])
        np.testing.assert_array_equal(device.bits(dx), want[1])


def test_running_statistics_stay_on_the_gpu(device: Device) -> None:
    """The count of batches too: nothing is read back."""
    problem = fused_problem("batch_norm", (4, 12, 5, 5), "float32", running=True, momentum=None, batches=2)
    given = arrays(device, problem)
    forward(problem, given)
    assert given.batches.is_cuda and int(given.batches) == 3
    for name, want in expected_running(problem).items():
        assert_within(device.values(getattr(given, name)), want, name)


# ---- Sizes beyond 32 bits ----


@pytest.mark.parametrize("op", ["group_norm", "instance_norm"])
@both_layouts
def test_more_elements_than_32_bits_count(
    device: Device, op: str, layout: str, needs_gpu_bytes: Callable[[int], None]
) -> None:
    """Samples repeated past 2^31 elements: all repetitions have the same bits, and but for rounding the block's."""
    import torch

    block_shape = (4, 64, 128, 128)
    count = (1 << 31) // int(np.prod(block_shape)) + 1
    needs_gpu_bytes(4 * 2 * count * int(np.prod(block_shape)))
    problem = fused_problem(op, block_shape)
    block = arrays(device, problem, built(layout), built(layout))
    want = forward(problem, block), backward(problem, block)

    def big(array: Any) -> Any:
        order = (0, 2, 3, 1) if layout == "nhwc" else (0, 1, 2, 3)
        inverse = (0, 3, 1, 2) if layout == "nhwc" else (0, 1, 2, 3)
        return array.permute(order).repeat(count, 1, 1, 1).permute(inverse)

    x, dy = big(block.x), big(block.dy)
    assert x.numel() > 1 << 31
    y = forward(problem, block._replace(x=x))
    dense = (0, 2, 3, 1) if layout == "nhwc" else (0, 1, 2, 3)
    first = y.permute(dense)[: block_shape[0]].contiguous()
    assert_repeats(y.permute(dense), first, count)
    unit = torch.finfo(x.dtype).eps
    torch.testing.assert_close(first, want[0].permute(dense).contiguous(), rtol=unit, atol=unit)
    del y
    statistics = {name: getattr(block, name).repeat(count, 1) for name in ("mean", "rstd")}
    grads = backward(problem, block._replace(x=x, dy=dy, **statistics))
    first, block_dx = grads.dx.permute(dense)[: block_shape[0]].contiguous(), want[1].dx.permute(dense).contiguous()
    assert_repeats(grads.dx.permute(dense), first, count)
    torch.testing.assert_close(first, block_dx, rtol=unit, atol=unit * float(block_dx.abs().max()))
    exact = count * device.values(want[1].dbias)
    assert np.abs(device.values(grads.dbias) - exact).max() <= 1e-3 * count * np.abs(inputs(problem).dy).sum() / 64


@both_layouts
def test_a_channel_of_more_elements_than_32_bits_count(
    device: Device, layout: str, needs_gpu_bytes: Callable[[int], None]
) -> None:
    """Batch norm over 2^31 + elements of each of two channels: +1 and -1 in turn, and a last sample that tells."""
    import torch

    places, samples = 1 << 20, (1 << 11) + 3
    needs_gpu_bytes(3 * 2 * 2 * places * samples)
    x = torch.ones(samples, 2, places, device="cuda", dtype=torch.bfloat16)
    x[:, :, 1::2] = -1
    x[-1, 1] = 3
    if layout == "nhwc":
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    result = normact.batch_norm(x, training=True, return_stats=True)
    total = places * samples
    mean = np.array([0.0, 3.0 * places / total])
    square = np.array([1.0, (total - places + 9.0 * places) / total])
    # The mean is told from the first element, 1: it rounds in units of that distance.
    np.testing.assert_allclose(device.values(result.mean), mean, rtol=3e-7, atol=2.0**-24)
    rstd = 1 / np.sqrt(square - mean**2 + 1e-5)
    np.testing.assert_allclose(device.values(result.rstd), rstd, rtol=3e-7)
    last = tolerance.round_to((3.0 - mean[1:]) * rstd[1:], "bfloat16")
    assert float(result.y[-1, 1, -1]) == last[0] and bool((result.y[-1, 1] == last[0]).all())
    ones = torch.ones_like(result.mean)
    grads = normact.batch_norm_backward(x, x, ones, ones, mean=result.mean, rstd=result.rstd)
    np.testing.assert_allclose(device.values(grads.dbias), mean * total, rtol=1e-5, atol=1.0)


def test_strides_beyond_32_bits(device: Device, needs_gpu_bytes: Callable[[int], None]) -> None:
    """Three samples that lie 2^31 elements apart."""
    import torch

    stride = 1 << 31
    needs_gpu_bytes(2 * (2 * stride + 4096))
    for op in OPERATIONS:
        problem = fused_problem(op, (3, 8, 125))
        given = arrays(device, problem)
        x = torch.empty(2 * stride + 1000, device="cuda", dtype=torch.bfloat16).as_strided(
            (3, 8, 125), (stride, 125, 1)
        )
        x.copy_(given.x)
        apart = given._replace(x=x)
        assert_within(device.values(forward(problem, apart)), expected_forward(problem)["y"], op)
        out = backward(problem, apart, out=torch.empty_like(given.x))
        compare(device, out, expected_backward(problem), f"samples of {op} far apart")
        del x, apart
        torch.cuda.empty_cache()
