# SPDX-License-Identifier: Apache-2.0
"""A residual stream of float32 beside x in 16 bits: the sum is not rounded, y and dx are, daddend is dx before that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import normact
from activation_cases import Kind
from cases import OPTIONS, ROW_VARIANTS, Problem, expected_backward, expected_forward, inputs
from checks import arrays, backward, check, check_backward, check_forward, compare, forward
from devices import Device, capturing
from layouts import LAYOUTS, supported

DTYPES = (("float16", "float16"), ("float16", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"))
both_dtypes = pytest.mark.parametrize(("dtype", "parameter_dtype"), DTYPES, ids=["-".join(pair) for pair in DTYPES])
narrow_dtypes = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])

# At, below and above every size of the kernels: lanes, packs a thread, threads of a block, the CPU's groups and chunks.
COLS = (1, 2, 7, 8, 31, 33, 64, 72, 255, 256, 264, 512, 520, 768, 1000, 1024, 1032, 2048, 3080, 4096, 4100, 5120, 6144)
LONG_COLS = (6152, 7168, 8192, 9216, 9224, 12288, 12296, 16384, 65536, 300_000)


def mixed(kind: str, shape: tuple[int, ...], dtype: str, parameter_dtype: str | None = None, **options: Any) -> Problem:
    return Problem(kind, shape, dtype, parameter_dtype, residual=True, stream="float32", **options)


@both_dtypes
@pytest.mark.parametrize("cols", [33, 64, 1024])
def test_every_combination_of_options(device: Device, kind: str, dtype: str, parameter_dtype: str, cols: int) -> None:
    for weight, bias, residual, weight_offset in OPTIONS:
        if residual:
            options = {"weight": weight, "bias": bias, "weight_offset": weight_offset}
            check(device, mixed(kind, (3, cols), dtype, parameter_dtype, **options))


@both_dtypes
def test_every_number_of_columns(device: Device, kind: str, dtype: str, parameter_dtype: str) -> None:
    for cols in COLS + LONG_COLS:
        check(device, mixed(kind, (3, cols), dtype, parameter_dtype))
    for rows, cols in ((199, 48), (67, 768), (1000, 520), (70, 4096), (300, 8192)):
        check(device, mixed(kind, (rows, cols), dtype, parameter_dtype))


@both_dtypes
@pytest.mark.parametrize("activation", ["gelu", "silu", "relu", "mish"])
def test_activations(device: Device, kind: str, dtype: str, parameter_dtype: str, activation: str) -> None:
    act = Kind(activation)
    for cols in (7, 33, 256, 768, 1025, 4096, 8192, 12296):
        check(device, mixed(kind, (3, cols), dtype, parameter_dtype, activation=act))
        check(device, mixed(kind, (2, cols), dtype, weight=False, bias=False, activation=act))
    check(device, mixed(kind, (2, 24, 5, 5), dtype, parameter_dtype, axes=(1,), activation=act))


@both_dtypes
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in ("contiguous", "expanded")])
def test_every_layout(device: Device, kind: str, dtype: str, parameter_dtype: str, layout: str) -> None:
    if not supported(layout, device):
        pytest.skip(f"{device.name} has no such arrays")
    for shape in ((4, 96), (5, 1000), (2, 3, 256)):
        problem = mixed(kind, shape, dtype, parameter_dtype)
        for x, other in ((layout, layout), (layout, "contiguous"), ("contiguous", layout)):
            check(device, problem, x, other)


@narrow_dtypes
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((2, 12, 8, 8), (1,)),
        ((3, 5, 7, 7), (1,)),
        ((9, 33), (0,)),
        ((4, 6, 3, 16), (0, 2)),
        ((2, 12, 3, 2), (1, 3)),
        ((3, 5, 4, 6, 7), (1, 3)),
    ],
    ids=str,
)
def test_any_axes(device: Device, kind: str, dtype: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    check(device, mixed(kind, shape, dtype, "float32", axes=axes, weight_offset=1.0))
    check(device, mixed(kind, shape, dtype, weight=False, axes=axes))
    check(device, mixed(kind, shape, dtype, bias=False, axes=axes))


@both_dtypes
def test_without_dresidual(device: Device, kind: str, dtype: str, parameter_dtype: str) -> None:
    """The sum's gradient that nobody has: daddend is the norm's own."""
    for cols in (33, 768, 4096, 8192):
        problem = mixed(kind, (5, cols), dtype, parameter_dtype)
        given = arrays(device, problem)
        alone = backward(problem, _without(given, "dresidual"))
        with_it = backward(problem, given)
        wide = device.values(alone.daddend)
        compare(device, with_it, expected_backward(problem), f"{problem} on {device.name}")
        np.testing.assert_array_equal(device.values(alone.dx), _rounded(device, wide, dtype))
        exact = wide + inputs(problem).dresidual
        np.testing.assert_allclose(device.values(with_it.daddend), exact, rtol=2**-22, atol=2**-22)


def _without(given: Any, name: str) -> Any:
    import dataclasses

    return dataclasses.replace(given, **{name: None})


def _rounded(device: Device, values: np.ndarray, dtype: str) -> np.ndarray:
    return device.values(device.array(values, dtype))


@narrow_dtypes
def test_dx_is_daddend_rounded_once(device: Device, kind: str, dtype: str) -> None:
    for shape in ((9, 768), (4, 1000), (3, 8192), (2, 33)):
        result = backward(problem := mixed(kind, shape, dtype), arrays(device, problem))
        np.testing.assert_array_equal(device.values(result.dx), _rounded(device, device.values(result.daddend), dtype))


@narrow_dtypes
def test_rows_do_not_depend_on_their_number(device: Device, kind: str, dtype: str) -> None:
    """The bits of a row, alone and among others."""
    for cols in (40, 520, 768, 4096, 8192, 1001):
        problem = mixed(kind, (70, cols), dtype)
        given = arrays(device, problem)
        result, grads = forward(problem, given, return_stats=True), backward(problem, given)
        for rows in (1, 3):
            few = {name: None if array is None else array[:rows] for name, array in vars(given).items()}
            few |= {"weight": given.weight, "bias": given.bias}
            part, part_grads = (call(problem, type(given)(**few)) for call in (_with_stats, backward))
            for all_rows, some, names in (
                (result, part, ("y", "residual", "rstd")),
                (grads, part_grads, ("dx", "daddend")),
            ):
                for name in names:
                    found, want = device.values(getattr(some, name)), device.values(getattr(all_rows, name))[:rows]
                    np.testing.assert_array_equal(found, want, err_msg=f"{name} of {rows} rows of {cols}")


def _with_stats(problem: Problem, given: Any) -> Any:
    return forward(problem, given, return_stats=True)


@narrow_dtypes
def test_outputs_in_place(device: Device, kind: str, dtype: str) -> None:
    """y may be x, the sum the residual; dx may be dy, daddend x or dresidual: the same bits as elsewhere."""
    for cols in (33, 768, 5000, 8192):
        problem = mixed(kind, (6, cols), dtype)
        want, want_grads = _with_stats(problem, arrays(device, problem)), backward(problem, arrays(device, problem))
        given = arrays(device, problem)
        found = forward(problem, given, return_stats=True, out=(given.x, given.residual))
        assert found.y is given.x
        assert found.residual is given.residual
        _same(device, found, want)
        for name in ("s", "dresidual"):
            given = arrays(device, problem)
            grads = backward(problem, given, out=(given.dy, None, None, getattr(given, name)))
            assert grads.dx is given.dy
            assert grads.daddend is getattr(given, name)
            _same(device, grads, want_grads)


def _same(device: Device, found: Any, want: Any) -> None:
    for name in want._fields:
        if getattr(want, name) is not None:
            np.testing.assert_array_equal(
                device.values(getattr(found, name)), device.values(getattr(want, name)), err_msg=name
            )


@narrow_dtypes
def test_zero_sizes(device: Device, kind: str, dtype: str) -> None:
    norm, back = getattr(normact, kind), getattr(normact, f"{kind}_backward")
    for shape in ((0, 8), (3, 0), (0, 0)):
        x, stream = device.array(np.zeros(shape), dtype), device.array(np.zeros(shape), "float32")
        weight, statistic = (device.array(np.ones(shape[axis]), "float32") for axis in (1, 0))
        y, total, _, _ = norm(x, weight, weight, residual=stream)
        assert tuple(y.shape) == tuple(total.shape) == shape
        assert (device.dtype_name(y), device.dtype_name(total)) == (dtype, "float32")
        statistics = {"rstd": statistic} | ({"mean": statistic} if kind == "layer_norm" else {})
        grads = back(x, stream, weight, weight, **statistics, dresidual=stream)
        assert tuple(grads.dx.shape) == tuple(grads.daddend.shape) == shape
        assert (device.dtype_name(grads.dx), device.dtype_name(grads.daddend)) == (dtype, "float32")
        assert not device.values(grads.dweight).any()
        assert not device.values(grads.dbias).any()


@narrow_dtypes
def test_the_sum_keeps_what_16_bits_cannot(device: Device, kind: str, dtype: str) -> None:
    problem = mixed(kind, (3, 256), dtype, mean=100.0)
    found = device.values(forward(problem, arrays(device, problem)).residual)
    np.testing.assert_array_equal(found, inputs(problem).s)
    assert (found != _rounded(device, found, dtype)).any()


@narrow_dtypes
def test_wrong_dtypes(device: Device, kind: str, dtype: str) -> None:
    """One sentence, and nothing is written."""
    problem = mixed(kind, (3, 8), dtype)
    given = arrays(device, problem)
    other = "bfloat16" if dtype == "float16" else "float16"
    x, wide = inputs(problem).x, device.array(inputs(problem).x, "float32")
    norm, back = getattr(normact, kind), getattr(normact, f"{kind}_backward")
    either = f"expected {dtype} or float32 as x has dtype {dtype}"
    y = device.array(np.full(x.shape, 7.0), dtype)
    calls = [
        (f"residual has dtype float64; {either}", {"residual": device.array(x, "float64")}),
        (f"residual has dtype {other}; {either}", {"residual": device.array(x, other)}),
        (f"residual_out has dtype {dtype}; expected float32 as residual has", {"residual": wide, "out": (y, given.x)}),
        (f"residual_out has dtype float32; expected {dtype} as x", {"residual": given.x, "out": (y, wide)}),
    ]
    for sentence, options in calls:
        with pytest.raises(ValueError, match=f"^{kind}: {sentence}"):
            norm(given.x, **({"out": (y,)} | options))
    with pytest.raises(
        ValueError, match=f"^{kind}: residual has dtype {dtype}; expected float32 as x has dtype float32"
    ):
        norm(wide, residual=given.x, out=(wide,))
    assert (device.values(y) == 7).all()
    np.testing.assert_array_equal(device.values(wide), x)

    statistics = {"rstd": given.rstd} if kind == "rms_norm" else {"mean": given.mean, "rstd": given.rstd}
    dx = device.array(np.full(x.shape, 7.0), dtype)
    double = device.array(x, "float64")
    calls = [
        ("dy has dtype float64; expected float32, float16 or bfloat16 as x has dtype float32", (double, wide), {}),
        (f"dx has dtype float32; expected {dtype} as dy has dtype {dtype}", (given.dy, wide), {"out": (wide,)}),
        ("dresidual has dtype .*; expected float32 as x has", (given.dy, wide), {"dresidual": given.dy}),
        ("daddend has dtype .*; expected float32 as x has", (given.dy, wide), {"out": (dx, None, None, given.x)}),
        ("out.daddend is given, but this call does not", (given.dy, given.x), {"out": (dx, None, None, given.x)}),
        (
            f"weight has dtype {other}; expected {dtype} or float32 as dy",
            (given.dy, wide, device.array(x[0], other)),
            {},
        ),
    ]
    for sentence, tensors, options in calls:
        with pytest.raises(ValueError, match=f"^{kind}_backward: {sentence}"):
            back(*tensors, **statistics, **({"out": (dx,)} | options))
    assert (device.values(dx) == 7).all()
    np.testing.assert_array_equal(device.values(wide), x)


@pytest.mark.cuda
@both_dtypes
def test_forced_variants(device: Device, kind: str, dtype: str, parameter_dtype: str) -> None:
    """Over sizes and alignments a variant is right or refuses; warp, block and stream each take some, both ways."""
    done = set()
    for cols in (*COLS, *LONG_COLS):
        for rows, layout in ((3, "contiguous"), (2, "offset_by_one"), (5, "row_strided_odd"), (2, "row_strided")):
            for act in (None, Kind("silu")) if rows == 3 else (None,):
                problem = mixed(kind, (rows, cols), dtype, parameter_dtype, bias=rows != 5, activation=act)
                for variant in ROW_VARIANTS:
                    for direction, run in (("forward", check_forward), ("backward", check_backward)):
                        try:
                            with normact.row_variant(variant):
                                run(device, problem, layout)
                        except NotImplementedError:
                            assert variant not in ("auto", "stream"), f"{direction} of {problem}, {layout}"
                        else:
                            done.add((variant, direction))
    names = ("auto", "warp", "block", "stream")
    assert done == {(name, direction) for name in names for direction in ("forward", "backward")}


@pytest.mark.cuda
@pytest.mark.parametrize("cols", [64, 4096, 8192, 12296])
def test_cuda_graph(device: Device, kind: str, cols: int) -> None:
    """Forward and backward are captured once and replayed on new numbers."""
    import torch

    first, second = (mixed(kind, (37, cols), "bfloat16", mean=mean) for mean in (0.0, 1.0))
    static, fresh = arrays(device, first), arrays(device, second)
    graph = torch.cuda.CUDAGraph()
    with capturing(graph):
        output, grads = _with_stats(first, static), backward(first, static)
    for name, tensor in vars(static).items():
        if tensor is not None:
            tensor.copy_(getattr(fresh, name))
    graph.replay()
    torch.cuda.synchronize()
    compare(device, output, expected_forward(second), "replayed")
    compare(device, grads, expected_backward(second), "replayed")


@pytest.mark.cuda
@pytest.mark.parametrize("cols", [768, 4096, 8192])
def test_many_rows(device: Device, kind: str, cols: int) -> None:
    """More rows than a persistent grid works on at a time: each slot of a ring is filled again and again."""
    for options in ({}, {"activation": Kind("silu")}):
        check(device, mixed(kind, (1500, cols), "bfloat16", "float32", **options))


def test_a_stream_of_blocks(device: Device, kind: str) -> None:
    """A pre-norm block's bookkeeping over some layers: the stream is the exact sum of what was added to it."""
    problem = mixed(kind, (4, 64), "bfloat16")
    given = arrays(device, problem)
    stream, exact = given.residual, inputs(problem).residual.astype(np.float32)
    for _ in range(5):
        y, stream, _, _ = getattr(normact, kind)(given.x, given.weight, given.bias, residual=stream)
        exact = exact + inputs(problem).x.astype(np.float32)
        assert device.dtype_name(y) == "bfloat16"
    np.testing.assert_array_equal(device.values(stream), exact.astype(np.float64))
    assert expected_forward(problem)["residual"].dtype == "float32"
