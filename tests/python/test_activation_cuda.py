# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show of activations: graphs, streams, devices, sizes beyond 32 bits, the CPU's bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import normact
import tolerance
from activation_cases import (
    GATE_LAYOUTS,
    KINDS,
    GatedProblem,
    Kind,
    Problem,
    expected,
    gated_expected,
    positive_bits,
)
from activation_checks import (
    Arrays,
    GatedArrays,
    Output,
    arrays,
    backward,
    check,
    forward,
    gated_arrays,
    gated_backward,
    gated_check,
    gated_forward,
)
from checks import assert_repeats, compare
from devices import Device, NumpyDevice, capturing

pytestmark = pytest.mark.cuda

BOTH = (True, True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_cpu_and_gpu_round_alike(device: Device, dtype: str) -> None:
    """The same contract on both: at least 99.8 % equal bits (each is correctly rounded in 99.9 %)."""
    for name in KINDS:
        problem = Problem(Kind(name), (300, 1000), dtype, "float32")
        cpu = NumpyDevice()
        for run in (forward, lambda *args: backward(*args).dx):
            found = [where.values(run(problem, arrays(where, problem))) for where in (cpu, device)]
            different = np.mean(found[0] != found[1])
            assert different <= 2e-3, f"{name}: {different:.2e} of the elements differ"


@pytest.mark.parametrize("shape", [(70_001, 3), (65_537,), (3, 70_000, 5), (33, 65_536), (1, 2_000_003)], ids=str)
def test_sizes_around_the_limits_of_a_grid(device: Device, shape: tuple[int, ...]) -> None:
    for axis in range(len(shape)):
        for dtype in ("float32", "bfloat16"):
            check(device, Problem(Kind("gelu"), shape, dtype, "float32", axis))
            gated_check(device, GatedProblem(Kind("silu"), shape, dtype, "separate", BOTH, "float32", axis))
    for layout in GATE_LAYOUTS[1:]:
        gated_check(device, GatedProblem(Kind("silu"), shape, "bfloat16", layout, BOTH, "float32"))


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 7])
def test_every_alignment(device: Device, offset: int) -> None:
    """Packs of 16 bytes start anywhere; x, dy and the outputs each at their own."""

    def shifted(where: Device, values: np.ndarray, dtype: str) -> Any:
        storage = np.full(values.size + offset, np.nan)
        storage[offset:] = values.ravel()
        return where.array(storage, dtype)[offset:].reshape(values.shape)

    for dtype in ("float64", "float32", "float16", "bfloat16"):
        for shape in ((1,), (3, 33), (5, 1024), (4099,)):
            check(device, Problem(Kind("gelu"), shape, dtype, dtype), shifted, "contiguous")
            check(device, Problem(Kind("gelu"), shape, dtype), "offset_by_one", shifted)
            for layout in GATE_LAYOUTS:
                gated_check(device, GatedProblem(Kind("silu"), shape, dtype, layout), shifted, "offset_by_one")


# ---- Graphs, streams, devices ----


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(37, 33), (64, 1024), (3, 5, 70_001)], ids=str)
def test_cuda_graph(device: Device, dtype: str, shape: tuple[int, ...]) -> None:
    """Every operation is captured once and replayed on new numbers."""
    import torch

    problem = Problem(Kind("relu"), shape, dtype, dtype)
    gated = [GatedProblem(Kind("silu"), shape, dtype, layout, BOTH) for layout in GATE_LAYOUTS]
    static, fresh = arrays(device, problem), arrays(device, problem)
    static_gated, fresh_gated = ([gated_arrays(device, problem) for problem in gated] for _ in range(2))
    for array in (*static, *(array for given in static_gated for array in _flat(given))):
        array.zero_()
    graph = torch.cuda.CUDAGraph()
    with capturing(graph):
        output = forward(problem, static, return_mask=True)
        grads = backward(problem, static)
        masked = backward(problem, static, mask=output.mask)
        from_output = backward(problem, static, y=output.y)
        gated_outputs = [gated_forward(*pair) for pair in zip(gated, static_gated, strict=True)]
        gated_grads = [gated_backward(*pair) for pair in zip(gated, static_gated, strict=True)]
    for array, values in zip(static, fresh, strict=True):
        array.copy_(values)
    for given, values in zip(static_gated, fresh_gated, strict=True):
        for array, value in zip(_flat(given), _flat(values), strict=True):
            array.copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    compare(device, Output(output.y), expected(problem), "replayed")
    np.testing.assert_array_equal(device.values(output.mask), positive_bits(problem))
    for found in (grads, masked, from_output):
        compare(device, found, expected(problem), "replayed")
    for one, y, found in zip(gated, gated_outputs, gated_grads, strict=True):
        compare(device, Output(y), gated_expected(one), f"replayed {one}")
        compare(device, found, gated_expected(one), f"replayed {one}")


def _flat(given: GatedArrays) -> list[Any]:
    biases = given.bias if isinstance(given.bias, tuple) else (given.bias,)
    return [array for array in (given.gate, given.up, given.dy, *biases) if array is not None]


@pytest.mark.parametrize("explicit", [False, True], ids=["current", "explicit"])
def test_streams(device: Device, explicit: bool) -> None:
    """Work is queued behind the stream's earlier work, and the call does not wait for it."""
    import torch

    problem = Problem(Kind("relu"), (64, 1000), "float32", "float32")
    gated = GatedProblem(Kind("silu"), (64, 1000), "float32", "split", BOTH)
    source, gated_source = arrays(device, problem), gated_arrays(device, gated)
    target = Arrays(*(torch.zeros_like(array) for array in source))
    gated_target = gated_source._replace(gate=torch.zeros_like(gated_source.gate))
    forward(problem, source, return_mask=True)  # loads the kernels, which takes its time
    backward(problem, source)
    gated_forward(gated, gated_source)
    gated_backward(gated, gated_source)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)  # about 0.2 s
        for array, values in zip(target, source, strict=True):
            array.copy_(values, non_blocking=True)
        gated_target.gate.copy_(gated_source.gate, non_blocking=True)
    options = {"stream": stream} if explicit else {}
    with torch.cuda.stream(None if explicit else stream):
        output, grads = forward(problem, target, return_mask=True, **options), backward(problem, target, **options)
        y = gated_forward(gated, gated_target, **options)
        gated_grads = gated_backward(gated, gated_target, **options)
    assert not stream.query(), "the call waited for the GPU"
    stream.synchronize()
    compare(device, Output(output.y), expected(problem), "on a stream of its own")
    compare(device, grads, expected(problem), "on a stream of its own")
    np.testing.assert_array_equal(device.values(output.mask), positive_bits(problem))
    compare(device, Output(y), gated_expected(gated), "on a stream of its own")
    compare(device, gated_grads, gated_expected(gated), "on a stream of its own")


def test_a_device_that_is_not_current(device: Device) -> None:
    import torch

    last = torch.cuda.device_count() - 1
    problem = Problem(Kind("silu"), (9, 1000), "bfloat16", "float32")
    there = Arrays(*(array.to(f"cuda:{last}") for array in arrays(device, problem)))
    torch.cuda.synchronize(last)
    with torch.cuda.device(0):
        y, grads = forward(problem, there), backward(problem, there)
        assert torch.cuda.current_device() == 0
    assert y.device.index == last
    compare(device, Output(y), expected(problem), f"on cuda:{last}")
    compare(device, grads, expected(problem), f"on cuda:{last}")


def test_devices_must_agree() -> None:
    import torch

    x, host = torch.ones(3, 4, device="cuda"), torch.ones(4)
    with pytest.raises(ValueError, match="gelu: bias is on the CPU; expected"):
        normact.gelu(x, bias=host)
    with pytest.raises(ValueError, match="relu_backward: mask is on the CPU; expected"):
        normact.relu_backward(x, mask=torch.zeros(2, dtype=torch.uint8))
    with pytest.raises(ValueError, match="swiglu: up is on the CPU; expected"):
        normact.swiglu(x, torch.ones(3, 4))


# ---- Sizes beyond 32 bits ----


@pytest.mark.parametrize("power", [31, 32])
def test_more_elements_than_32_bits_count(device: Device, power: int, needs_gpu_bytes: Callable[[int], None]) -> None:
    """A block of rows repeated past 2^31 and 2^32 elements: each repetition has the block's bits."""
    rows, cols = 1024, 4096
    count = (1 << power) // (rows * cols) + 1
    needs_gpu_bytes(4 * 2 * count * rows * cols)
    problem = Problem(Kind("relu"), (rows, cols), "bfloat16", "float32")
    block = arrays(device, problem)
    (y, mask), grads = forward(problem, block, return_mask=True), backward(problem, block)
    big = block._replace(x=block.x.repeat(count, 1))
    large = forward(problem, big, return_mask=True)
    assert large.y.numel() > 1 << power
    assert_repeats(large.y, y, count)
    assert (large.mask.view(count, -1) == mask).all()
    del large
    big = big._replace(dy=block.dy.repeat(count, 1))
    large = backward(problem, big)
    assert_repeats(large.dx, grads.dx, count)
    exact = count * expected(problem)["dbias"].values
    magnitude = count * np.abs(device.values(grads.dx)).sum(0)
    bound = magnitude * tolerance.sum_units(count * rows) * tolerance.unit("bfloat16")
    assert (np.abs(device.values(large.dbias) - exact) <= bound + tolerance.ulp(exact, "float32")).all()


@pytest.mark.parametrize("layout", GATE_LAYOUTS)
def test_more_gated_elements_than_32_bits_count(
    device: Device, layout: str, needs_gpu_bytes: Callable[[int], None]
) -> None:
    rows, cols = 1024, 4096
    count = (1 << 31) // (rows * cols) + 1
    needs_gpu_bytes(5 * 2 * count * rows * cols)
    problem = GatedProblem(Kind("silu"), (rows, cols), "bfloat16", layout)
    block = gated_arrays(device, problem)
    y, grads = gated_forward(problem, block), gated_backward(problem, block)
    big = GatedArrays(*(None if array is None else array.repeat(count, 1) for array in block))
    large = gated_forward(problem, big)
    assert_repeats(large, y, count)
    del large
    for found, want in zip(gated_backward(problem, big), grads, strict=True):
        if want is not None:
            assert_repeats(found, want, count)


def test_strides_beyond_32_bits(device: Device, needs_gpu_bytes: Callable[[int], None]) -> None:
    """Three rows that lie 2^31 elements apart."""
    import torch

    stride, cols = 1 << 31, 1000
    needs_gpu_bytes(2 * (2 * stride + cols))
    problem = Problem(Kind("gelu"), (3, cols), "bfloat16", "float32")
    given = arrays(device, problem)
    x = torch.empty(2 * stride + cols, device="cuda", dtype=torch.bfloat16).as_strided((3, cols), (stride, 1))
    x.copy_(given.x)
    compare(device, Output(forward(problem, given._replace(x=x))), expected(problem), "rows far apart")
    compare(device, backward(problem, given._replace(x=x)), expected(problem), "rows far apart")
