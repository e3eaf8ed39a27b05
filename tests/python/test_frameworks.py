# SPDX-License-Identifier: Apache-2.0
"""Each framework's own arrays in and out, without a copy on either side; the numbers are tested elsewhere."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import normact
from frameworks import CPU, DTYPES, FRAMEWORKS, Numpy, random
from normact import _core


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> Any:
    return FRAMEWORKS[request.param]()


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> str:
    return request.param


def test_inputs_are_not_copied(framework: Any, dtype: str):
    x = framework.array(random(6, 32), dtype)
    address, device, _, code, bits, shape, _ = _core.describe(x)
    assert (address, device, shape) == (framework.address(x), CPU, (6, 32))
    assert (code, bits) == (4 if dtype == "bfloat16" else 2, 32 if dtype == "float32" else 16)


def test_outputs_are_of_the_same_kind(framework: Any, dtype: str):
    x, residual, weight, bias = (framework.array(random(*shape), dtype) for shape in ((6, 32), (6, 32), (32,), (32,)))
    output = normact.layer_norm(x, weight, bias, residual=residual, return_stats=True)
    grads = normact.layer_norm_backward(x, output.residual, weight, bias, mean=output.mean, rstd=output.rstd)
    like_x = (output.y, output.residual, grads.dx)
    assert all(type(array) is type(x) for array in (*output, *grads[:3]))
    assert all(framework.dtype(array) == dtype and tuple(array.shape) == (6, 32) for array in like_x)
    assert all(framework.dtype(array) == "float32" and tuple(array.shape) == (6,) for array in output[2:])
    assert all(framework.dtype(array) == dtype and tuple(array.shape) == (32,) for array in grads[1:3])
    assert grads.daddend is None


def results(framework: Any, dtype: str) -> list[np.ndarray]:
    """Every output of a forward and a backward."""
    x, weight, residual = (framework.array(random(*shape), dtype) for shape in ((6, 33), (33,), (6, 33)))
    output = normact.layer_norm(x, weight, residual=residual, return_stats=True)
    grads = normact.layer_norm_backward(residual, x, weight, mean=output.mean, rstd=output.rstd)
    return [framework.values(array) for array in (*output, grads.dx, grads.dweight)]


def test_all_frameworks_give_the_same_bits(framework: Any, dtype: str):
    for array, expected in zip(results(framework, dtype), results(Numpy(), dtype), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_empty_arrays(framework: Any):
    output = normact.layer_norm(framework.array(random(0, 4), "float32"), return_stats=True)
    assert tuple(output.y.shape) == (0, 4)
    assert tuple(output.mean.shape) == tuple(output.rstd.shape) == (0,)


def test_scalar_statistics(framework: Any):
    output = normact.rms_norm(framework.array(random(8), "float32"), return_stats=True)
    assert output.mean is None
    assert tuple(output.rstd.shape) == ()


@pytest.mark.parametrize("name", ["jax", "tensorflow"])
def test_immutable_frameworks_take_over_our_memory(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch):
    """Their outputs are the very memory that the library wrote, aligned as they need it, and live as long as they."""
    framework = FRAMEWORKS[name]()
    addresses: list[int] = []
    empty = _core.empty

    def spy(shape: Any, wanted: str) -> Any:
        buffer = empty(shape, wanted)
        addresses.append(_core.describe(buffer)[0])
        return buffer

    monkeypatch.setattr(_core, "empty", spy)
    x = framework.array(random(7, 33), dtype)
    outputs = [normact.rms_norm(x) for _ in range(5)]
    assert [framework.address(y) for y in outputs] == addresses
    assert all(address % 64 == 0 for address in addresses)
    gc.collect()
    first = framework.values(outputs[0])
    assert all(np.array_equal(framework.values(y), first) for y in outputs)
    del outputs
    gc.collect()
    assert np.array_equal(framework.values(normact.rms_norm(x)), first)


def test_jax_results_go_on_in_jax():
    import jax

    x = jax.numpy.asarray(random(6, 32))
    y = normact.rms_norm(x)
    doubled = jax.jit(lambda a: 2 * a)(y)
    np.testing.assert_array_equal(np.asarray(doubled), 2 * np.asarray(y))
    assert y.device == x.device
    np.testing.assert_array_equal(
        np.asarray(normact.rms_norm(2 * x)), np.asarray(normact.rms_norm(jax.jit(lambda a: 2 * a)(x)))
    )


def test_jax_devices_are_kept():
    """On the second of two CPU devices; a fresh process, as JAX counts its devices once."""
    program = """
import jax, numpy, normact
x = jax.device_put(numpy.ones((3, 4), numpy.float32), jax.devices()[1])
y = normact.rms_norm(x, return_stats=True)
assert y.y.devices() == y.rstd.devices() == {jax.devices()[1]}, y.y.devices()
sharded = jax.device_put(x, jax.NamedSharding(jax.make_mesh((2,), ("d",)), jax.P(None, "d")))
for out in (None, numpy.empty((3, 4), numpy.float32)):
    try:
        normact.rms_norm(sharded, out=out)
    except TypeError as error:
        print("refused:", error)
"""
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused: rms_norm: x is a jax") == 2, done.stdout


def test_jax_float64():
    program = """
import jax, normact
jax.config.update("jax_enable_x64", True)
output = normact.layer_norm(jax.numpy.ones((3, 4), "float64"), return_stats=True)
assert {array.dtype.name for array in (output.y, output.mean, output.rstd)} == {"float64"}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_tensorflow_results_go_on_in_tensorflow():
    import tensorflow as tf

    x = tf.constant(random(6, 32))
    y = normact.rms_norm(x)
    assert y.device == x.device
    np.testing.assert_array_equal((y + y).numpy(), 2 * y.numpy())
    np.testing.assert_array_equal(tf.function(lambda a: 2.0 * a)(y).numpy(), 2 * y.numpy())


def test_torch_statistics_are_ordinary_tensors():
    import torch

    output = normact.layer_norm(torch.from_numpy(random(6, 32)), return_stats=True)
    assert output.y.untyped_storage().resizable(), "the memory is PyTorch's own"
    assert not any(array.requires_grad for array in (output.y, output.mean, output.rstd))


def test_stream_is_ignored_on_the_cpu():
    import torch

    x = random(3, 4)
    for array in (x, torch.from_numpy(x)):
        y = normact.rms_norm(array, stream=0)
        assert np.array_equal(np.asarray(y), normact.rms_norm(x))


# ---- On a GPU ----


@pytest.mark.cuda
@pytest.mark.parametrize("explicit", [False, True])
def test_cupy_on_a_gpu(explicit: bool):
    cupy = pytest.importorskip("cupy")
    values = random(64, 768)
    expected = normact.layer_norm(values, values[0], return_stats=True)
    stream = cupy.cuda.Stream(non_blocking=True)
    x = cupy.asarray(values)
    cupy.cuda.Device().synchronize()
    with contextlib.nullcontext() if explicit else stream:
        output = normact.layer_norm(x, x[0], return_stats=True, stream=stream if explicit else None)
    stream.synchronize()
    assert all(type(array) is cupy.ndarray for array in output if array is not None)
    np.testing.assert_allclose(output.y.get(), expected.y, rtol=1e-5, atol=1e-5)
    grads = normact.layer_norm_backward(x, x, x[0], mean=output.mean, rstd=output.rstd)
    wanted = normact.layer_norm_backward(values, values, values[0], mean=expected.mean, rstd=expected.rstd)
    np.testing.assert_allclose(grads.dx.get(), wanted.dx, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(grads.dweight.get(), wanted.dweight, rtol=1e-4, atol=1e-3)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_jax_on_a_gpu(dtype: str):
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    values = random(64, 768)
    x = jax.numpy.asarray(values, dtype=dtype)
    host = np.asarray(x)
    expected = normact.layer_norm(host, host[0], return_stats=True)
    output = expected
    for _ in range(20):  # with temporaries, whose memory JAX reuses at once
        output = normact.layer_norm(x * 1, x[0] * 1, return_stats=True)
        assert output.y.devices() == x.devices()
        tolerance = 1e-5 if dtype == "float32" else 1e-2
        np.testing.assert_allclose(
            np.asarray(output.y, np.float64), expected.y.astype(np.float64), rtol=tolerance, atol=tolerance
        )
    grads = normact.layer_norm_backward(x, x, x[0], mean=output.mean, rstd=output.rstd)
    assert grads.dx.devices() == grads.dweight.devices() == x.devices()


@pytest.mark.cuda
def test_frameworks_mixed_on_a_gpu():
    import torch

    cupy = pytest.importorskip("cupy")
    x = torch.randn(64, 256, device="cuda")
    weight = cupy.random.default_rng(0).standard_normal(256, dtype=cupy.float32)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        y = normact.rms_norm(x, weight)
    side.synchronize()
    expected = normact.rms_norm(x.cpu().numpy(), weight.get())
    np.testing.assert_allclose(y.cpu().numpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.cuda
def test_devices_must_agree():
    import torch

    with pytest.raises(ValueError, match="weight is on the CPU; expected"):
        normact.rms_norm(torch.ones(3, 4, device="cuda"), torch.ones(4))


def test_jax_arrays_in_another_order() -> None:
    """Their statistics are row-major: what the library hands over to JAX has no other order."""
    jax, layouts = pytest.importorskip("jax"), pytest.importorskip("jax.experimental.layout")
    if not hasattr(layouts, "Format"):
        pytest.skip("this JAX names layouts otherwise")
    values = random(3, 4, 8)
    place = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    x = jax.device_put(values, layouts.Format(layouts.Layout(major_to_minor=(1, 0, 2)), place))
    found, want = (normact.layer_norm(array, return_stats=True) for array in (x, values))
    for name in ("y", "mean", "rstd"):
        np.testing.assert_allclose(getattr(found, name), getattr(want, name), rtol=1e-6, atol=1e-6)
