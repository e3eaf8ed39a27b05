# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can show: every kernel variant by force, graphs, streams, devices, sizes beyond 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import normact
import reference
import tolerance
from cases import DTYPES, ROW_VARIANTS, Problem, expected_backward, expected_forward, inputs
from checks import Arrays, accepts, arrays, assert_repeats, backward, check_backward, check_forward, compare, forward
from devices import Device, NumpyDevice, capability, capturing

pytestmark = pytest.mark.cuda

SHORT_COLS = (1, 2, 7, 31, 33, 64, 127, 255, 256, 257, 768, 1000, 1024, 2047)
LONG_COLS = (4096, 4097, 8192, 9224, 12289, 16384, 65536, 150_001, 300_000)
both_dtypes = pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES, ids=["-".join(pair) for pair in DTYPES])


LAST_VARIANT = ROW_VARIANTS[-1]  # takes every problem


# ---- Kernel variants ----


def check_variants(device: Device, problem: Problem, layout: str, other: str = "contiguous") -> set[tuple[str, str]]:
    """The (variant, direction) that took the problem, all of them with right results.

    `auto` and the last variant take every problem; the others may refuse.
    """
    done = set()
    for variant in ROW_VARIANTS:
        for direction, check in (("forward", check_forward), ("backward", check_backward)):
            with normact.row_variant(variant):
                if accepts(lambda check=check: check(device, problem, layout, other)):
                    done.add((variant, direction))
                else:
                    assert variant not in ("auto", LAST_VARIANT), (
                        f"{variant} refused {direction} of {problem}, {layout}"
                    )
    return done


@both_dtypes
def test_forced_variants(device: Device, kind: str, dtype: str, parameter_dtype: str) -> None:
    """Over every size and alignment a variant is right or refuses, and each takes some."""
    done = set()
    for cols in SHORT_COLS + LONG_COLS:
        for rows, layout in ((3, "contiguous"), (2, "offset_by_one"), (5, "row_strided_odd"), (2, "row_strided")):
            problem = Problem(kind, (rows, cols), dtype, parameter_dtype, residual=rows == 3, bias=rows != 5)
            done |= check_variants(device, problem, layout)
    done |= check_side_by_side(device, kind, dtype, parameter_dtype)
    idle = set(ROW_VARIANTS) - {variant for variant, direction in done if direction == "forward"}
    allowed = {"image", "tile"} if dtype == "float64" else set()
    assert idle <= (allowed | {"cluster"} if capability() < (9, 0) else allowed), f"took no problem: {idle}"


def check_side_by_side(device: Device, kind: str, dtype: str, parameter_dtype: str) -> set[tuple[str, str]]:
    """Rows side by side: lines of whole packs and others, tiles of 8, 4 and 2 units, groups with a column less."""
    done = set()
    small = ((2, 96, 64), (2, 130, 36), (3, 257, 49), (1, 40, 5), (2, 1, 8, 3))
    for shape in (*small, (2, 1000, 24), (1, 1500, 40), (1, 3000, 17)):
        problem = Problem(kind, shape, dtype, parameter_dtype, residual=shape[0] == 2, axes=(1,))
        done |= check_variants(device, problem, "contiguous")
        done |= check_variants(device, problem, "offset_by_one")
    # Images: of a block and of clusters, bands of several lines and of one, more rows than threads, the last block with
    # fewer bands.
    large = ((1, 1088, 196), (3, 768, 17, 17), (2, 8192, 49))  # read twice
    for shape in ((5, 64, 49), (2, 720, 49), (2, 768, 196), (1, 16, 2044), (3, 500, 121), (2, 1536, 7, 7), *large):
        problem = Problem(kind, shape, dtype, parameter_dtype, residual=shape[0] == 2, axes=(1,))
        done |= check_variants(device, problem, "contiguous")
    two = Problem(kind, (3, 10, 5, 16), dtype, parameter_dtype, residual=True, axes=(0, 2))
    return done | check_variants(device, two, "contiguous")


@pytest.mark.parametrize("layout", ["transposed", "every_second_column", "expanded"])
def test_forced_variants_on_strided_columns(device: Device, kind: str, layout: str) -> None:
    for shape in ((4, 33), (3, 1000), (2, 5000)):
        problem = Problem(kind, shape, "bfloat16", "float32", equal_rows=layout == "expanded")
        check_variants(device, problem, layout, layout)


@pytest.mark.parametrize("shape", [(60_003, 33), (30_000, 64), (5_001, 768), (1_001, 4096), (301, 16384)], ids=str)
def test_forced_variants_with_many_rows(device: Device, kind: str, shape: tuple[int, int]) -> None:
    """More rows than the GPU holds at once: the persistent loops and the two stages of the parameter gradients."""
    check_variants(device, Problem(kind, shape, "bfloat16", "float32"), "contiguous")


@pytest.mark.parametrize("pixels", [56 * 56, 54 * 58, 55 * 57])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_many_rows_side_by_side(device: Device, kind: str, dtype: str, pixels: int) -> None:
    """Several tiles a block in the backward, whose copies and statistics come in ahead."""
    for residual in (False, True):
        problem = Problem(kind, (60, 24, pixels), dtype, "float32", residual=residual, axes=(1,))
        assert ("tile", "backward") in check_variants(device, problem, "contiguous")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_many_images(device: Device, kind: str, dtype: str) -> None:
    """Several images for a cluster, whose copies and statistics come in ahead; and of those that are read twice."""
    for shape in ((700, 64, 49), (300, 768, 49), (150, 384, 196), (40, 768, 289), (90, 1088, 196)):
        for residual in (False, True):
            problem = Problem(kind, shape, dtype, "float32", residual=residual, axes=(1,))
            with normact.row_variant("image"):
                check_forward(device, problem)
                check_backward(device, problem)


@pytest.mark.parametrize("shape", [(3, 720, 49), (2, 4096, 49), (2, 1088, 196)], ids=str)
def test_statistics_of_images_with_large_means(device: Device, shape: tuple[int, ...]) -> None:
    """What slices of an image have of a row keeps its digits."""
    x = device.array(np.random.default_rng(2).standard_normal(shape) + 1000.0, "float32")
    with normact.row_variant("image"):
        _, _, mean, rstd = normact.layer_norm(x, axis=1, return_stats=True)
    want = reference.layer_norm(device.values(x).swapaxes(1, 2).reshape(-1, shape[1]))
    np.testing.assert_allclose(device.values(mean).ravel(), want.mean, rtol=3e-7)
    np.testing.assert_allclose(device.values(rstd).ravel(), want.rstd, rtol=1e-6)


@pytest.mark.parametrize(
    ("cols", "outliers"),
    [(64, [0, 9, 18, 27, 32, 41, 50, 59]), (8192, list(range(112)))],  # kept, read twice
    ids=["kept", "twice"],
)
def test_images_whose_sums_begin_far_from_the_mean(device: Device, cols: int, outliers: list[int]) -> None:
    """The columns that tell about where a mean may be are outliers, infinite, or all the same."""
    normal = np.random.default_rng(1).standard_normal((3, cols, 49))
    far, infinite, constant = normal.copy(), normal.copy(), np.full_like(normal, 9999.9)
    far[:, outliers] += 1000.0
    infinite[:, 0, ::2] = np.inf
    for x, atol in ((far, 1e-5), (infinite, 1e-5), (constant, 1e-9), (normal + 1e4, 2e-3)):
        rows = device.values(device.array(x, "float32")).swapaxes(1, 2).reshape(-1, cols)
        with np.errstate(invalid="ignore"):
            want = reference.layer_norm(rows)
        with normact.row_variant("image"):
            y, _, mean, rstd = normact.layer_norm(device.array(x, "float32"), axis=1, return_stats=True)
        found = device.values(y).swapaxes(1, 2).reshape(-1, cols)
        np.testing.assert_allclose(found, want.y, rtol=1e-5, atol=atol)
        np.testing.assert_allclose(device.values(mean).ravel(), want.mean, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(device.values(rstd).ravel(), want.rstd, rtol=1e-5)


def test_unknown_variant_is_refused() -> None:
    with pytest.raises(ValueError, match="abacus"), normact.row_variant("abacus"):
        pass


def test_forcing_ends_with_the_block(device: Device) -> None:
    """A variant that refuses inside the block is not in force after it."""
    x = device.array(inputs(Problem("rms_norm", (2, 131073))).x, "float32")
    want = device.bits(normact.rms_norm(x))
    with normact.row_variant("warp"):
        assert not accepts(lambda: normact.rms_norm(x)), "a warp cannot hold so long a row"
    np.testing.assert_array_equal(device.bits(normact.rms_norm(x)), want)


# ---- The CPU and the GPU ----


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("cols", [64, 1000, 4096])
def test_cpu_and_gpu_round_alike(device: Device, kind: str, dtype: str, cols: int) -> None:
    """The same contract on both: at least 99.8 % equal bits (each is correctly rounded in 99.9 %)."""
    problem = Problem(kind, (200_000 // cols, cols), dtype, "float32")
    cpu = NumpyDevice()
    for name, run in (("y", forward), ("dx", backward)):
        found = [run(problem, arrays(where, problem)) for where in (cpu, device)]
        on_cpu, on_gpu = (result if name == "y" else result.dx for result in found)
        different = cpu.values(on_cpu) != device.values(on_gpu)
        assert different.mean() <= 2e-3, f"{name}: {different.mean():.2e} of the elements differ"


# ---- Graphs, streams, devices ----


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("cols", [33, 1024, 16384, 131072])
@pytest.mark.parametrize("residual", [False, True])
def test_cuda_graph(device: Device, kind: str, dtype: str, cols: int, residual: bool) -> None:
    """Forward and backward are captured once and replayed on new numbers."""
    import torch

    first = Problem(kind, (37, cols), dtype, residual=residual)
    second = Problem(kind, (37, cols), dtype, residual=residual, mean=1.0, std=3.0)
    static, fresh = arrays(device, first), arrays(device, second)
    graph = torch.cuda.CUDAGraph()
    with capturing(graph):
        output = forward(first, static, return_stats=True)
        grads = backward(first, static)
    for name, tensor in vars(static).items():
        if tensor is not None:
            tensor.copy_(getattr(fresh, name))
    graph.replay()
    torch.cuda.synchronize()
    compare(device, output, expected_forward(second), "replayed")
    compare(device, grads, expected_backward(second), "replayed")
    eager = forward(second, fresh, return_stats=True)
    np.testing.assert_array_equal(device.bits(output.y), device.bits(eager.y))


@pytest.mark.parametrize("explicit", [False, True], ids=["current", "explicit"])
def test_streams(device: Device, kind: str, explicit: bool) -> None:
    """Work is queued behind the stream's earlier work, and the call does not wait for it."""
    import torch

    problem = Problem(kind, (64, 1000), "float32")
    source = arrays(device, problem)
    target = Arrays(**{name: None if t is None else torch.zeros_like(t) for name, t in vars(source).items()})
    forward(problem, source, return_stats=True)  # loads the kernels, which takes its time
    backward(problem, source)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)  # about 0.2 s
        for name, tensor in vars(target).items():
            if tensor is not None:
                tensor.copy_(getattr(source, name), non_blocking=True)
    # Another stream than the current one only if the call says so.
    with torch.cuda.stream(None if explicit else stream):
        options = {"stream": stream.cuda_stream} if explicit else {}
        output, grads = forward(problem, target, return_stats=True, **options), backward(problem, target, **options)
    assert not stream.query(), "the call waited for the GPU"
    stream.synchronize()
    compare(device, output, expected_forward(problem), "on a stream of its own")
    compare(device, grads, expected_backward(problem), "on a stream of its own")


def test_a_device_that_is_not_current(device: Device, kind: str) -> None:
    """The tensors say where to run; the current device stays what it was. (One GPU: the last is the current one.)"""
    import torch

    last = torch.cuda.device_count() - 1
    problem = Problem(kind, (9, 1000), "bfloat16")
    there = Arrays(**{n: None if t is None else t.to(f"cuda:{last}") for n, t in vars(arrays(device, problem)).items()})
    torch.cuda.synchronize(last)
    with torch.cuda.device(0):
        output, grads = forward(problem, there, return_stats=True), backward(problem, there)
        assert torch.cuda.current_device() == 0
    assert output.y.device.index == last
    compare(device, output, expected_forward(problem), f"on cuda:{last}")
    compare(device, grads, expected_backward(problem), f"on cuda:{last}")


def test_tensors_on_two_devices_are_refused(device: Device, kind: str) -> None:
    import torch

    x = torch.ones(3, 8, device="cuda")
    for other in (torch.ones(8), torch.ones(8, device=f"cuda:{torch.cuda.device_count() - 1}")):
        if other.device == x.device:
            continue
        with pytest.raises(ValueError, match="weight"):
            getattr(normact, kind)(x, other)


# ---- Sizes beyond 32 bits ----


def _repeated(block: Any, count: int) -> Any:
    """[count * rows, cols]: the block again and again."""
    return block.repeat(count, 1)


@pytest.mark.parametrize("power", [31, 32])
@pytest.mark.parametrize("cols", [1000, 4096])
def test_more_elements_than_32_bits_count(
    device: Device, kind: str, power: int, cols: int, needs_gpu_bytes: Callable[[int], None]
) -> None:
    """A block of rows repeated past 2^31 and 2^32 elements: each repetition has the block's bits."""
    block_rows = 1024
    count = (1 << power) // (block_rows * cols) + 2
    needs_gpu_bytes(3 * 2 * count * block_rows * cols)
    problem = Problem(kind, (block_rows, cols), "bfloat16", "float32")
    block = arrays(device, problem)
    y_block, grads_block = forward(problem, block), backward(problem, block)

    big = {name: _repeated(getattr(block, name), count) for name in ("x", "dy")}
    y = forward(problem, Arrays(**{**vars(block), "x": big["x"]}))
    assert y.numel() > 1 << power
    assert_repeats(y, y_block, count)
    del y
    statistics = {n: None if (t := getattr(block, n)) is None else t.repeat(count) for n in ("mean", "rstd")}
    given = Arrays(**{**vars(block), **statistics, "x": big["x"], "s": big["x"], "dy": big["dy"]})
    grads = backward(problem, given)
    assert_repeats(grads.dx, grads_block.dx, count)
    magnitude = np.sum(np.abs(inputs(problem).dy) * _xhat(problem), axis=0)
    bound = count * magnitude * tolerance.sum_units(count * block_rows) * tolerance.unit("bfloat16")
    exact = count * expected_backward(problem)["dweight"].values
    assert (np.abs(device.values(grads.dweight) - exact) <= bound + tolerance.ulp(exact, "float32")).all()


def _xhat(problem: Problem) -> np.ndarray:
    given = inputs(problem)
    centred = given.x - (given.mean[:, None] if problem.kind == "layer_norm" else 0.0)
    return np.abs(centred * given.rstd[:, None])


@pytest.mark.parametrize("power", [31, 32])
def test_one_row_longer_than_32_bits_count(
    device: Device, kind: str, power: int, needs_gpu_bytes: Callable[[int], None]
) -> None:
    """+1 and -1 in turn, and a last element that tells whether the end of the row was reached."""
    import torch

    cols = (1 << power) + 9
    needs_gpu_bytes(4 * 2 * cols)
    x = torch.ones(cols, device="cuda", dtype=torch.bfloat16)
    x[1::2] = -1
    x[-1] = 256
    result = getattr(normact, kind)(x, eps=1e-5, return_stats=True)
    # The exact sums: cols - 1 ones that cancel, and the last.
    mean = 256 / cols if kind == "layer_norm" else 0.0
    square = (cols - 1 + 256.0**2) / cols - mean**2
    np.testing.assert_allclose(float(result.rstd), 1 / np.sqrt(square + 1e-5), rtol=3e-7)
    want = [float(tolerance.round_to(np.array((v - mean) / np.sqrt(square)), "bfloat16")) for v in (1.0, -1.0, 256.0)]
    assert float(result.y[-1]) == want[2]
    assert bool((result.y[:-1:2] == want[0]).all())
    assert bool((result.y[1::2] == want[1]).all())


def test_row_stride_beyond_32_bits(device: Device, kind: str, needs_gpu_bytes: Callable[[int], None]) -> None:
    """Three rows that lie 2^31 elements apart."""
    import torch

    stride, cols = 1 << 31, 1000
    needs_gpu_bytes(2 * (2 * stride + cols))
    problem = Problem(kind, (3, cols), "bfloat16")
    given = arrays(device, problem)
    storage = torch.empty(2 * stride + cols, device="cuda", dtype=torch.bfloat16)
    x = storage.as_strided((3, cols), (stride, 1))
    x.copy_(given.x)
    apart = Arrays(**{**vars(given), "x": x, "s": x})
    compare(device, forward(problem, apart, return_stats=True), expected_forward(problem), "rows far apart")
    compare(device, backward(problem, apart), expected_backward(problem), "rows far apart")


@pytest.mark.parametrize("step", [1, 2], ids=["pieces", "elements"])
def test_column_stride_beyond_32_bits(
    device: Device, kind: str, step: int, needs_gpu_bytes: Callable[[int], None]
) -> None:
    """Rows in three pieces that lie 2^31 elements apart."""
    import torch

    stride, shape = 1 << 31, (3, 5, 16)
    needs_gpu_bytes(2 * (2 * stride + 5 * 16 * step))
    problem = Problem(kind, shape, "bfloat16", axes=(0, 2))
    given = arrays(device, problem)
    storage = torch.empty(2 * stride + 5 * 16 * step, device="cuda", dtype=torch.bfloat16)
    x = storage.as_strided(shape, (stride, 16 * step, step))
    x.copy_(given.x)
    apart = Arrays(**{**vars(given), "x": x, "s": x})
    compare(device, forward(problem, apart, return_stats=True), expected_forward(problem), "columns far apart")
    compare(device, backward(problem, apart), expected_backward(problem), "columns far apart")
