# SPDX-License-Identifier: Apache-2.0
"""Gated activations against the float64 reference: layouts of the gate, biases, bounds, outputs, bits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import normact
from activation_cases import GATE_LAYOUTS, KINDS, GatedProblem, Kind, gated_expected, gated_inputs, packed
from activation_checks import Output, gated_arrays, gated_backward, gated_check, gated_forward
from cases import DTYPES
from checks import compare
from devices import Device
from layouts import LAYOUTS, channels_last, supported
from test_determinism import assert_same_bits

both_dtypes = pytest.mark.parametrize(("dtype", "bias_dtype"), DTYPES, ids=["-".join(pair) for pair in DTYPES])
dtypes = pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
BOTH, NONE = (True, True), (False, False)


@pytest.fixture(params=GATE_LAYOUTS)
def layout(request: pytest.FixtureRequest) -> str:
    return request.param


# ---- Every kind, layout, bias, bound ----


@both_dtypes
def test_every_kind(device: Device, layout: str, dtype: str, bias_dtype: str) -> None:
    for name in KINDS:
        for shape in ((1,), (7,), (3, 65), (5, 128), (2, 3, 33)):
            problem = GatedProblem(Kind(name), shape, dtype, layout, bias_dtype=bias_dtype)
            gated_check(device, problem)
            gated_check(device, replace(problem, biases=BOTH))


@both_dtypes
def test_bounds_and_offsets(device: Device, layout: str, dtype: str, bias_dtype: str) -> None:
    """gpt-oss: both sides of every bound, and on it."""
    for name, limit, up_offset in itertools.product(("quick_gelu", "relu"), (None, 2.0, 7.0, np.inf), (0.0, 1.0, -0.5)):
        for biases in (NONE, BOTH):
            problem = GatedProblem(
                Kind(name), (9, 70), dtype, layout, biases, bias_dtype, limit=limit, up_offset=up_offset
            )
            gated_check(device, problem)


@both_dtypes
def test_every_axis(device: Device, layout: str, dtype: str, bias_dtype: str) -> None:
    """Packed and biased along the first, a middle and the last axis; one channel, few rows and many."""
    shapes = (((7, 66), (0, 1, -1, -2)), ((2, 6, 5, 9), (0, 1, -2, 3)), ((3, 1, 40), (1,)), ((1, 33), (0,)))
    for shape, axes in (*shapes, ((3000, 3), (0, 1))):
        for axis in axes:
            problem = GatedProblem(Kind("silu"), shape, dtype, layout, BOTH, bias_dtype, axis)
            gated_check(device, problem)
            gated_check(device, replace(problem, biases=NONE))


@dtypes
def test_every_memory_layout(device: Device, layout: str, dtype: str) -> None:
    """Gate in one layout, up and dy in another; the halves of one packed tensor are halves of any memory."""
    for name in LAYOUTS:
        if not supported(name, device) or name == "expanded":
            continue
        for shape, axis in (((5, 33), -1), ((6, 64), -1), ((3, 4, 70), 1)):
            for biases in (NONE, BOTH):
                problem = GatedProblem(Kind("gelu"), shape, dtype, layout, biases, axis=axis)
                gated_check(device, problem, name, name)
                gated_check(device, problem, name, "contiguous")
                gated_check(device, problem, "contiguous", name)


@both_dtypes
def test_one_bias_of_two(device: Device, dtype: str, bias_dtype: str) -> None:
    """Separate inputs may have either; the gradient of the other is None."""
    for biases in ((True, False), (False, True)):
        gated_check(device, GatedProblem(Kind("silu"), (5, 33), dtype, "separate", biases, bias_dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_over_many_elements(device: Device, layout: str, dtype: str) -> None:
    for shape, axis in (((30_000, 8), 1), ((8, 20_000), 0), ((64, 3, 500), 1)):
        gated_check(device, GatedProblem(Kind("silu"), shape, dtype, layout, BOTH, axis=axis))


@dtypes
def test_halves_of_one_tensor(device: Device, layout: str, dtype: str) -> None:
    """A packed tensor and two views of its halves are the same problem, bit for bit."""
    if layout == "separate":
        return
    problem = GatedProblem(Kind("silu"), (5, 66), dtype, layout)
    given = gated_arrays(device, problem)
    gate, up = (
        (given.gate[:, :66], given.gate[:, 66:]) if layout == "split" else (given.gate[:, ::2], given.gate[:, 1::2])
    )
    np.testing.assert_array_equal(device.bits(normact.swiglu(gate, up)), device.bits(gated_forward(problem, given)))
    grads = normact.swiglu_backward(given.dy, gate, up)
    both = packed(device.bits(grads.dgate), device.bits(grads.dup), layout, 1)
    np.testing.assert_array_equal(device.bits(gated_backward(problem, given).dx), both)


def test_windows_of_one_tensor(device: Device) -> None:
    """An element apart, but not alternating."""
    for dtype, shape in (("float32", (60_000, 4, 8)), ("bfloat16", (20_000, 4, 16))):
        whole = device.array(np.random.default_rng(6).standard_normal(shape), dtype)
        gate, up = whole[:, :3, : shape[2] // 2], whole[:, :3, 1 : shape[2] // 2 + 1]
        apart = [device.array(device.values(each), dtype) for each in (gate, up)]
        np.testing.assert_array_equal(device.bits(normact.swiglu(gate, up)), device.bits(normact.swiglu(*apart)))
        for found, want in zip(normact.swiglu_backward(up, gate, up), normact.swiglu_backward(apart[1], *apart)):
            if want is not None:
                np.testing.assert_array_equal(device.bits(found), device.bits(want))


@dtypes
def test_infinity_and_nan(device: Device, dtype: str) -> None:
    """NaN on either side is NaN; infinity is bounded where there is a bound."""
    gate = device.array(np.array([np.nan, 1.0, np.nan, np.inf, -np.inf, 2.0, 2.0]), dtype)
    up = device.array(np.array([1.0, np.nan, np.nan, 1.0, 1.0, np.inf, -np.inf]), dtype)
    found = device.values(normact.gated(gate, up, "relu", limit=4.0))
    np.testing.assert_array_equal(found, [np.nan, np.nan, np.nan, 4.0, 0.0, 8.0, -8.0])
    found = device.values(normact.gated(gate, up, "silu"))
    np.testing.assert_array_equal(np.isnan(found), [True, True, True, False, False, False, False])
    assert found[3] == np.inf
    assert found[4] == 0


# ---- Functions ----


def test_every_form_has_its_functions(device: Device, layout: str) -> None:
    forms: tuple[tuple[Any, Any, str, dict[str, Any]], ...] = (
        (normact.glu, normact.glu_backward, "sigmoid", {}),
        (normact.swiglu, normact.swiglu_backward, "silu", {}),
        (normact.swiglu, normact.swiglu_backward, "silu", {"limit": 2.0, "up_offset": 1.0}),
        (normact.geglu, normact.geglu_backward, "gelu", {}),
        (normact.geglu, normact.geglu_backward, "gelu_tanh", {"approximate": "tanh"}),
        (normact.reglu, normact.reglu_backward, "relu", {}),
    )
    for function, gradient, name, options in forms:
        bounds: dict[str, Any] = {key: value for key, value in options.items() if key != "approximate"}
        problem = GatedProblem(Kind(name), (4, 6, 5), "float32", layout, BOTH, axis=1, **bounds)
        given, want = gated_arrays(device, problem), gated_expected(problem)
        packing: dict[str, Any] = {} if layout == "separate" else {"layout": layout}
        y = function(given.gate, given.up, bias=given.bias, axis=1, **packing, **options)
        compare(device, Output(y), want, function.__name__)
        grads = gradient(given.dy, given.gate, given.up, bias=given.bias, axis=1, **packing, **options)
        compare(device, grads, want, gradient.__name__)
        assert isinstance(grads, normact.GatedGrads if layout == "separate" else normact.ActivationGrads)


def test_the_default_is_swiglu_of_a_split_tensor(device: Device) -> None:
    x = device.array(np.linspace(-3, 3, 40).reshape(2, 20), "float32")
    np.testing.assert_array_equal(device.bits(normact.gated(x)), device.bits(normact.swiglu(x[:, :10], x[:, 10:])))


def test_torch_agrees() -> None:
    """PyTorch's glu has the gates in the second half."""
    import torch

    x = torch.randn(5, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    first, second = x[:, :32], x[:, 32:]
    torch.testing.assert_close(normact.glu(second, first), torch.nn.functional.glu(x), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(normact.swiglu(x), torch.nn.functional.silu(first) * second, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(normact.geglu(x), torch.nn.functional.gelu(first) * second, rtol=1e-14, atol=1e-14)


def test_gpt_oss_agrees() -> None:
    """As transformers writes it: interleaved, bounded, 1 added to up."""
    import torch

    x = 6 * torch.randn(5, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gate, up = x[..., ::2].clamp(max=7.0), x[..., 1::2].clamp(min=-7.0, max=7.0)
    want = (up + 1) * (gate * torch.sigmoid(gate * 1.702))
    found = normact.gated(x, None, "quick_gelu", layout="interleaved", limit=7.0, up_offset=1.0)
    torch.testing.assert_close(found, want, rtol=1e-14, atol=1e-14)


# ---- Outputs and shapes ----


def test_outputs_have_the_layout_of_their_inputs(device: Device) -> None:
    problem = GatedProblem(Kind("silu"), (6, 5, 8))
    given = gated_arrays(device, problem, "transposed", "row_strided")
    assert device.strides(gated_forward(problem, given)) == device.strides(device.empty_like(given.gate))
    grads = gated_backward(problem, given)
    assert device.strides(grads.dgate) == device.strides(device.empty_like(given.gate))
    assert device.strides(grads.dup) == device.strides(device.empty_like(given.up))


@pytest.mark.parametrize("shape", [(4, 6, 3, 10), (4, 2, 2, 2), (3, 2, 1, 6)])
def test_packed_outputs_have_the_order_of_their_inputs(device: Device, shape: tuple[int, ...]) -> None:
    """In memory the dimensions of y follow each other as those of x do, without gaps; dx is as x."""
    orders = LAYOUTS["contiguous"], LAYOUTS["every_second_column"], LAYOUTS["transposed"], channels_last
    for order, layout, axis in itertools.product(orders, ("split", "interleaved"), (0, 1, -1)):
        if shape[axis] % 2 != 0:
            continue
        half = [n // 2 if d == axis % 4 else n for d, n in enumerate(shape)]
        problem = GatedProblem(Kind("silu"), tuple(half), layout=layout, axis=axis)
        given = gated_arrays(device, problem, order)
        like = device.empty_like(order(device, np.zeros(half), "float32"))
        assert significant(device, gated_forward(problem, given)) == significant(device, like)
        dx = gated_backward(problem, given).dx
        assert significant(device, dx) == significant(device, device.empty_like(given.gate))


def significant(device: Device, array: Any) -> list[int]:
    """The strides along more than one element."""
    return [step for step, size in zip(device.strides(array), array.shape, strict=True) if size > 1]


@dtypes
def test_given_outputs(device: Device, layout: str, dtype: str) -> None:
    problem = GatedProblem(Kind("gelu"), (6, 36), dtype, layout, BOTH)
    given, want = gated_arrays(device, problem), gated_expected(problem)
    storage = device.array(np.zeros((6, 40)), dtype)
    y = storage[:, :36]
    assert gated_forward(problem, given, out=y) is y
    assert gated_forward(problem, given, out=(y,)) is y
    compare(device, Output(y), want, "into a view")
    assert (device.values(storage)[:, 36:] == 0).all(), "written past the end of the rows"
    made = gated_backward(problem, given)
    outputs = type(made)(*(device.empty_like(array) for array in made))
    found = gated_backward(problem, given, out=outputs)
    assert all(mine is theirs for mine, theirs in zip(found, outputs, strict=True))
    assert_same_bits(device, found, made, "into out")
    some = gated_backward(problem, given, out=outputs[0])
    assert some[0] is outputs[0]
    assert some[1] is not outputs[1]


@dtypes
def test_in_place(device: Device, dtype: str) -> None:
    """y over gate or up; dgate and dup over gate, up and dy in any pairing; a packed dx over its x."""
    for shape in ((3, 33), (2, 20_000)):
        problem = GatedProblem(Kind("silu"), shape, dtype, biases=BOTH)
        y, grads = (run(problem, gated_arrays(device, problem)) for run in (gated_forward, gated_backward))
        for name in ("gate", "up"):
            given = gated_arrays(device, problem)
            found = gated_forward(problem, given, out=getattr(given, name))
            np.testing.assert_array_equal(device.bits(found), device.bits(y), f"y over {name}")
        for first, second in itertools.permutations(("gate", "up", "dy"), 2):
            given = gated_arrays(device, problem)
            found = gated_backward(problem, given, out=(getattr(given, first), getattr(given, second)))
            assert_same_bits(device, found, grads, f"dgate over {first}, dup over {second}")
        for layout in GATE_LAYOUTS[1:]:
            one = replace(problem, layout=layout)
            want, given = gated_backward(one, gated_arrays(device, one)), gated_arrays(device, one)
            assert_same_bits(device, gated_backward(one, given, out=given.gate), want, f"dx over x, {layout}")


@both_dtypes
def test_no_elements(device: Device, layout: str, dtype: str, bias_dtype: str) -> None:
    for shape, axis in (((0, 6), 1), ((2, 0, 64), 2), ((5, 0), 1), ((0, 6), 0)):
        problem = GatedProblem(Kind("silu"), shape, dtype, layout, BOTH, bias_dtype, axis)
        given = gated_arrays(device, problem)
        assert tuple(gated_forward(problem, given).shape) == shape
        grads = gated_backward(problem, given)
        for array, like in ((grads[0], given.gate), (grads[-1], given.bias[1] if layout == "separate" else given.bias)):
            assert tuple(array.shape) == tuple(like.shape)
            assert (device.values(array) == 0).all()


def test_inputs_are_left_alone(device: Device, layout: str) -> None:
    problem = GatedProblem(Kind("silu"), (17, 64), "bfloat16", layout)
    given = gated_arrays(device, problem)
    before = {name: device.values(array).copy() for name, array in given._asdict().items() if array is not None}
    gated_forward(problem, given)
    gated_backward(problem, given)
    for name, values in before.items():
        np.testing.assert_array_equal(device.values(getattr(given, name)), values, name)


def test_a_gate_that_is_its_own_up(device: Device) -> None:
    """The same array may be passed twice."""
    problem = GatedProblem(Kind("relu"), (4, 33))
    x = device.array(gated_inputs(problem).gate, "float32")
    np.testing.assert_array_equal(device.values(normact.reglu(x, x)), device.values(normact.squared_relu(x)))


# ---- Bits ----


@dtypes
def test_repeated_runs(device: Device, layout: str, dtype: str) -> None:
    for shape, axis in (((500, 258), 1), ((3, 32768), 1), ((10_000, 16), 1), ((8, 8, 999), 1)):
        problem = GatedProblem(Kind("silu"), shape, dtype, layout, BOTH, axis=axis)
        given = gated_arrays(device, problem)
        y, grads = Output(gated_forward(problem, given)), gated_backward(problem, given)
        for run in range(2):
            assert_same_bits(device, Output(gated_forward(problem, given)), y, f"run {run}")
            assert_same_bits(device, gated_backward(problem, given), grads, f"run {run}")


@pytest.fixture
def restore_threads() -> Iterator[None]:
    before = normact.get_num_threads()
    yield
    normact.set_num_threads(before)


@pytest.mark.cpu
@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_thread_count(device: Device, layout: str, dtype: str) -> None:
    for shape, axis in (((1, 50_003), 1), ((20_000, 24), 1), ((6, 40, 1000), 1), ((40, 10_000), 0)):
        problem = GatedProblem(Kind("gelu"), shape, dtype, layout, BOTH, axis=axis)
        given = gated_arrays(device, problem)
        normact.set_num_threads(1)
        y, grads = Output(gated_forward(problem, given)), gated_backward(problem, given)
        for threads in (2, 4):
            normact.set_num_threads(threads)
            assert_same_bits(device, Output(gated_forward(problem, given)), y, f"{threads} threads")
            assert_same_bits(device, gated_backward(problem, given), grads, f"{threads} threads")
