# SPDX-License-Identifier: Apache-2.0
"""Activations on each framework's own arrays, without a copy on either side; the numbers are tested elsewhere."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import normact
from frameworks import DTYPES, FRAMEWORKS, Numpy, random
from normact import _core


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> Any:
    return FRAMEWORKS[request.param]()


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


def outputs(framework: Any, dtype: str) -> dict[str, Any]:
    """Every kind of output of a forward and a backward, by name, with its shape and dtype."""
    x, dy, bias = (framework.array(random(*shape), dtype) for shape in ((6, 34), (6, 34), (34,)))
    half, half_bias = framework.array(random(6, 17), dtype), framework.array(random(17), dtype)
    y, mask = normact.relu(x, bias=bias, return_mask=True)
    grads = normact.gelu_backward(dy, x, bias=bias)
    separate = normact.geglu_backward(dy, x, dy, bias=(bias, bias))
    packed = normact.swiglu_backward(half, x, bias=bias)
    return {
        "y (6, 34)": y,
        "dx (6, 34)": grads.dx,
        "dbias (34,)": grads.dbias,
        "dx of mask (6, 34)": normact.relu_backward(dy, mask=mask).dx,
        "dx of y (6, 34)": normact.tanh_backward(dy, y=normact.tanh(x)).dx,
        "gated (6, 34)": normact.gated(x, dy, "gelu", bias=(bias, None)),
        "split (6, 17)": normact.swiglu(x, bias=bias),
        "interleaved (3, 34)": normact.reglu(x, layout="interleaved", axis=0),
        "biased half (6, 17)": normact.silu(half, bias=half_bias),
        **{f"{name} {tuple(array.shape)}": array for name, array in separate._asdict().items()},
        "packed dx (6, 34)": packed.dx,
        "packed dbias (34,)": packed.dbias,
    }


def test_outputs_are_of_the_same_kind(framework: Any, dtype: str):
    like = type(framework.array(random(2), dtype))
    for name, array in outputs(framework, dtype).items():
        assert type(array) is like, name
        assert framework.dtype(array) == dtype, name
        assert name.endswith(f" {tuple(array.shape)}"), f"{name} has shape {tuple(array.shape)}"


def test_all_frameworks_give_the_same_bits(framework: Any, dtype: str):
    expected = outputs(Numpy(), dtype)
    for name, array in outputs(framework, dtype).items():
        np.testing.assert_array_equal(framework.values(array), Numpy().values(expected[name]), name)


def test_masks_are_bytes_of_the_same_framework(framework: Any, dtype: str):
    x = framework.array(random(7, 33), dtype)
    y, mask = normact.relu(x, return_mask=True)
    assert type(mask) is type(y)
    assert framework.dtype(mask) == "uint8"
    assert tuple(mask.shape) == (29,)
    np.testing.assert_array_equal(np.asarray(mask), np.packbits(framework.values(x) > 0, bitorder="little"))


def test_empty_arrays(framework: Any):
    x = framework.array(random(0, 4), "float32")
    y, mask = normact.relu(x, return_mask=True)
    assert tuple(y.shape) == (0, 4)
    assert tuple(mask.shape) == (0,)
    assert tuple(normact.swiglu(x).shape) == (0, 2)


@pytest.mark.parametrize("name", ["jax", "tensorflow"])
def test_immutable_frameworks_take_over_our_memory(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch):
    """A y, a y of another shape and a mask are the very memory that the library wrote, and live as long as they."""
    framework = FRAMEWORKS[name]()
    addresses: list[int] = []
    empty = _core.empty

    def spy(shape: Any, wanted: str) -> Any:
        buffer: Any = empty(shape, wanted)
        addresses.append(np.from_dlpack(buffer).ctypes.data if wanted == "uint8" else _core.describe(buffer)[0])
        return buffer

    monkeypatch.setattr(_core, "empty", spy)
    x = framework.array(random(8, 32), dtype)
    made = [normact.gelu(x), normact.swiglu(x), normact.relu(x, return_mask=True).mask]
    found = [framework.address(array) for array in made[:2]]
    assert found == addresses[:2]
    assert all(address % 64 == 0 for address in addresses)
    gc.collect()
    np.testing.assert_array_equal(framework.values(made[0]), framework.values(normact.gelu(x)))
    np.testing.assert_array_equal(np.asarray(made[2]), np.packbits(framework.values(x) > 0, bitorder="little"))


def test_inputs_are_not_copied(framework: Any, dtype: str):
    x = framework.array(random(6, 32), dtype)
    address = framework.address(x)
    assert _core.describe(x)[0] == address
    if type(x).__module__ in ("numpy", "torch"):
        assert normact.silu(x, out=x) is x
        assert framework.address(x) == address


def test_jax_results_go_on_in_jax():
    import jax

    x = jax.numpy.asarray(random(6, 32))
    np.testing.assert_array_equal(
        np.asarray(jax.jit(lambda a: 2 * a)(normact.swiglu(x))), 2 * np.asarray(normact.swiglu(x))
    )


def test_tensorflow_results_go_on_in_tensorflow():
    import tensorflow as tf

    x = tf.constant(random(6, 32))
    np.testing.assert_array_equal((2.0 * normact.swiglu(x)).numpy(), 2 * normact.swiglu(x).numpy())


def test_jax_tracers_are_refused():
    import jax

    for function in (normact.gelu, normact.swiglu):
        with pytest.raises(TypeError, match=r"is of type \S*Tracer; expected a jax\.Array with a value"):
            jax.jit(function)(jax.numpy.ones((2, 4)))


def test_stream_is_ignored_on_the_cpu():
    import torch

    x = random(3, 4)
    for array in (x, torch.from_numpy(x)):
        np.testing.assert_array_equal(np.asarray(normact.gelu(array, stream=0)), normact.gelu(x))
        np.testing.assert_array_equal(np.asarray(normact.swiglu(array, stream=0)), normact.swiglu(x))
        np.testing.assert_array_equal(
            np.asarray(normact.gelu_backward(array, array, stream=0).dx), normact.gelu_backward(x, x).dx
        )
        grads = normact.swiglu_backward(array[:, :2], array, stream=0)
        np.testing.assert_array_equal(np.asarray(grads.dx), normact.swiglu_backward(x[:, :2], x).dx)


# ---- On a GPU ----


@pytest.mark.cuda
def test_cupy_on_a_gpu():
    cupy = pytest.importorskip("cupy")
    values, stream = random(64, 768), cupy.cuda.Stream(non_blocking=True)
    x = cupy.asarray(values)
    cupy.cuda.Device().synchronize()
    with stream:
        y, mask = normact.relu(x, return_mask=True)
        gated = normact.swiglu(x, bias=x[0])
        grads = normact.swiglu_backward(gated, x, bias=x[0])
    stream.synchronize()
    np.testing.assert_array_equal(mask.get(), np.packbits(values > 0, bitorder="little"))
    np.testing.assert_array_equal(y.get(), normact.relu(values))
    np.testing.assert_allclose(gated.get(), normact.swiglu(values, bias=values[0]), rtol=1e-6, atol=1e-6)
    wanted = normact.swiglu_backward(gated.get(), values, bias=values[0])
    np.testing.assert_allclose(grads.dx.get(), wanted.dx, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(grads.dbias.get(), wanted.dbias, rtol=1e-4, atol=1e-4)


@pytest.mark.cuda
def test_jax_on_a_gpu():
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    values = random(64, 768)
    x = jax.numpy.asarray(values)
    for _ in range(20):  # with temporaries, whose memory JAX reuses at once
        y, mask = normact.relu(x * 1, return_mask=True)
        gated = normact.swiglu(x * 1, bias=x[0] * 1)
        assert y.devices() == mask.devices() == gated.devices() == x.devices()
        np.testing.assert_array_equal(np.asarray(mask), np.packbits(values > 0, bitorder="little"))
        np.testing.assert_allclose(np.asarray(gated), normact.swiglu(values, bias=values[0]), rtol=1e-6, atol=1e-6)
