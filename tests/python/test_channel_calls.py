# SPDX-License-Identifier: Apache-2.0
"""What the calls of batch, group and instance norm give and take beside numbers: named tuples, out=, in place, layouts,
the same bits every time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import normact
from activation_cases import Kind
from channel_cases import OPERATIONS, Problem, expected_backward, expected_forward
from channel_checks import Arrays, arrays, backward, forward
from checks import assert_within
from devices import Device
from layouts import channels_last

every_op = pytest.mark.parametrize("op", OPERATIONS)
dtypes = pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])


def problem_of(op: str, shape: tuple[int, ...] = (3, 8, 5, 4), dtype: str = "float32", **options: Any) -> Problem:
    return Problem(op, shape, dtype, num_groups=4, addend=op == "batch_norm", activation=Kind("relu"), **options)


def output_type(op: str) -> type:
    return normact.BatchNormOutput if op == "batch_norm" else normact.GroupNormOutput


# ---- What is returned ----


@every_op
@dtypes
def test_what_is_returned(device: Device, op: str, dtype: str) -> None:
    """A bare y, unless more is asked for; the bits of y do not depend on what else is asked for."""
    problem = problem_of(op, dtype=dtype)
    given = arrays(device, problem)
    bare, full = forward(problem, given), forward(problem, given, return_stats=True)
    assert isinstance(bare, type(given.x))
    assert isinstance(full, output_type(op))
    np.testing.assert_array_equal(device.bits(bare), device.bits(full.y))
    assert tuple(full.mean.shape) == tuple(full.rstd.shape) == problem.statistics_shape
    grads = backward(problem, given)
    assert isinstance(grads, normact.NormGrads)
    assert (grads.daddend is None) == (op != "batch_norm")
    fewer = backward(problem, given._replace(weight=None, bias=None, addend=None))
    assert fewer.dweight is None and fewer.dbias is None and fewer.daddend is None


@every_op
def test_gradients_have_the_dtype_of_what_they_belong_to(device: Device, op: str) -> None:
    problem = problem_of(op, dtype="bfloat16")
    given = arrays(device, problem)
    weight = device.array(np.ones(8), "float32")
    grads = backward(problem, given._replace(weight=weight))
    assert (device.dtype_name(grads.dweight), device.dtype_name(grads.dbias)) == ("float32", "bfloat16")


@every_op
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "row_strided", "every_second_column", "nhwc"])
def test_outputs_have_the_layout_of_x(device: Device, op: str, layout: str) -> None:
    """The same rule as NumPy's and PyTorch's empty_like: channels_last in, channels_last out; gaps are closed."""
    problem = problem_of(op)
    build = channels_last if layout == "nhwc" else layout
    given = arrays(device, problem, build, build)
    want = device.strides(device.empty_like(given.x))
    assert device.strides(forward(problem, given)) == want
    grads = backward(problem, given)
    assert device.strides(grads.dx) == want
    if op == "batch_norm":
        assert device.strides(grads.daddend) == want


def test_torch_memory_formats() -> None:
    import torch

    x = torch.randn(2, 8, 5, 4).to(memory_format=torch.channels_last)
    assert normact.batch_norm(x, training=True).is_contiguous(memory_format=torch.channels_last)
    assert normact.group_norm(x, 4).is_contiguous(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 5, 4, 3).to(memory_format=torch.channels_last_3d)
    assert normact.instance_norm(x).is_contiguous(memory_format=torch.channels_last_3d)


# ---- out= ----


@every_op
def test_out_entries_are_used(device: Device, op: str) -> None:
    problem = problem_of(op)
    given = arrays(device, problem)
    options = {"return_stats": True} | ({"return_mask": True} if op == "batch_norm" else {})
    made = forward(problem, given, **options)
    out = type(made)(*(device.empty_like(array) for array in made))
    found = forward(problem, given, out=out, **options)
    assert all(mine is theirs for mine, theirs in zip(found, out, strict=True))
    for array, want in zip(found, made, strict=True):
        np.testing.assert_array_equal(np.asarray(array.tolist()), np.asarray(want.tolist()))
    made = backward(problem, given)
    out = normact.NormGrads(*(None if array is None else device.empty_like(array) for array in made))
    found = backward(problem, given, out=out)
    for mine, theirs, want in zip(found, out, made, strict=True):
        assert mine is theirs
        if want is not None:
            np.testing.assert_array_equal(device.bits(mine), device.bits(want))


@every_op
@pytest.mark.parametrize("layout", ["contiguous", "nhwc"])
def test_in_place(device: Device, op: str, layout: str) -> None:
    """y may be x or the addend, dx may be dy or x, daddend may be dy or the addend."""
    problem = problem_of(op)
    build = channels_last if layout == "nhwc" else layout

    def fresh() -> Arrays:
        return arrays(device, problem, build, build)

    want_y, want = expected_forward(problem)["y"], expected_backward(problem)
    given = fresh()
    assert forward(problem, given, out=given.x) is given.x
    assert_within(device.values(given.x), want_y, "y is x")
    for name in ("dy", "x"):
        given = fresh()
        assert backward(problem, given, out=getattr(given, name)).dx is getattr(given, name)
        assert_within(device.values(getattr(given, name)), want["dx"], f"dx is {name}")
    if op != "batch_norm":
        return
    given = fresh()
    forward(problem, given, out=given.addend)
    assert_within(device.values(given.addend), want_y, "y is addend")
    for dx, daddend in (("x", "dy"), ("dy", "addend"), ("x", "addend")):
        given = fresh()
        grads = backward(problem, given, out=(getattr(given, dx), None, None, getattr(given, daddend)))
        assert_within(device.values(grads.dx), want["dx"], f"dx is {dx}")
        assert_within(device.values(grads.daddend), want["daddend"], f"daddend is {daddend}")


# ---- Bits ----


def all_bits(device: Device, *results: Any) -> list[np.ndarray]:
    return [device.bits(array) for result in results for array in result if array is not None]


def run(device: Device, problem: Problem, given: Arrays) -> list[np.ndarray]:
    return all_bits(device, forward(problem, given, return_stats=True), backward(problem, given))


@every_op
@dtypes
@pytest.mark.parametrize("shape", [(4, 24, 13, 11), (1, 8, 300, 200), (2000, 12), (64, 64, 7, 7)], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "nhwc"])
def test_repeated_runs(device: Device, op: str, dtype: str, shape: tuple[int, ...], layout: str) -> None:
    build = channels_last if layout == "nhwc" else layout
    problem = problem_of(op, shape, dtype)
    given = arrays(device, problem, build, build)
    want = run(device, problem, given)
    for _ in range(3):
        for found, bits in zip(run(device, problem, given), want, strict=True):
            np.testing.assert_array_equal(found, bits)


@pytest.fixture
def restore_threads() -> Iterator[None]:
    before = normact.get_num_threads()
    yield
    normact.set_num_threads(before)


@pytest.mark.cpu
@pytest.mark.usefixtures("restore_threads")
@every_op
@dtypes
@pytest.mark.parametrize(
    "shape", [(4, 24, 33, 31), (1, 4, 300, 200), (9000, 12), (64, 64, 7, 7), (9, 640, 5, 1), (20000, 4, 2, 1)], ids=str
)
@pytest.mark.parametrize("layout", ["contiguous", "nhwc"])
def test_thread_count(device: Device, op: str, dtype: str, shape: tuple[int, ...], layout: str) -> None:
    """Forward and every gradient are the same bits for 1, 2, 3, 7 and 16 threads."""
    build = channels_last if layout == "nhwc" else layout
    problem = problem_of(op, shape, dtype)
    given = arrays(device, problem, build, build)
    normact.set_num_threads(1)
    want = run(device, problem, given)
    for threads in (2, 3, 7, 16):
        normact.set_num_threads(threads)
        for found, bits in zip(run(device, problem, given), want, strict=True):
            np.testing.assert_array_equal(found, bits, f"{threads} threads")


@pytest.mark.parametrize("op", ["group_norm", "instance_norm"])
@dtypes
@pytest.mark.parametrize("layout", ["contiguous", "nhwc"])
def test_a_sample_does_not_depend_on_its_batch(device: Device, op: str, dtype: str, layout: str) -> None:
    build = channels_last if layout == "nhwc" else layout
    shapes = [(6, 16, 12, 12), (40, 8, 4, 4), (5, 32, 40, 16)]
    if not device.is_cuda:  # where small sets are cut by how many there are
        shapes += [(700, 8, 2, 1), (1100, 4, 1, 1), (3, 600, 3, 1)]
    for shape in shapes:
        problem = problem_of(op, shape, dtype)
        given = arrays(device, problem, build, build)
        whole, dx = forward(problem, given, return_stats=True), backward(problem, given).dx
        for sample in (0, 1, shape[0] - 1):
            part = slice(sample, sample + 1)
            alone = given._replace(**{name: getattr(given, name)[part] for name in ("x", "dy", "mean", "rstd")})
            for name in ("y", "mean", "rstd"):
                found = device.bits(getattr(forward(problem, alone, return_stats=True), name))
                np.testing.assert_array_equal(found, device.bits(getattr(whole, name))[part], f"{name} {shape}")
            np.testing.assert_array_equal(device.bits(backward(problem, alone).dx), device.bits(dx)[part])
