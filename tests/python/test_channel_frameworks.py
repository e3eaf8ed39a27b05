# SPDX-License-Identifier: Apache-2.0
"""Batch, group and instance norm on each framework's own arrays, without a copy on either side; the numbers are tested
elsewhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
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
    """Every output of every function, by name, with its shape; statistics, moments and sums are float32."""
    x, dy, addend = (framework.array(random(4, 6, 5) + i, dtype) for i in range(3))
    weight, bias = (framework.array(random(6) + i, dtype) for i in range(2))
    found = normact.batch_norm(
        x, weight, bias, training=True, addend=addend, activation="relu", return_stats=True, return_mask=True
    )
    statistics = {"mean": found.mean, "rstd": found.rstd}
    grads = normact.batch_norm_backward(dy, x, weight, bias, **statistics, addend=addend, activation="relu")
    moments = normact.batch_norm_statistics(x)
    sums = normact.batch_norm_reduce(dy, x, weight, **statistics)
    count = framework.array(np.array([20.0], np.float32), "float32")
    part = normact.batch_norm_input_gradient(dy, x, weight, **statistics, sums=sums, count=count, return_daddend=True)
    gathered = framework.array(framework.values(moments)[None].astype(np.float32), "float32")
    merged = normact.batch_norm_merge(gathered)
    applied = normact.batch_norm_apply(x, weight, bias, **statistics, activation="relu", return_mask=True)
    group = normact.group_norm(x, 3, weight, bias, activation="silu", return_stats=True)
    group_grads = normact.group_norm_backward(
        dy, x, 3, weight, bias, mean=group.mean, rstd=group.rstd, activation="silu"
    )
    instance = normact.instance_norm(x, weight, bias, return_stats=True)
    instance_grads = normact.instance_norm_backward(dy, x, weight, mean=instance.mean, rstd=instance.rstd)
    inference = normact.batch_norm(x, weight, bias, found.mean, found.rstd)
    return {
        "batch y (4, 6, 5)": found.y,
        "batch mean (6,) float32": found.mean,
        "batch rstd (6,) float32": found.rstd,
        "batch mask (15,) uint8": found.mask,
        "batch dx (4, 6, 5)": grads.dx,
        "batch dweight (6,)": grads.dweight,
        "batch dbias (6,)": grads.dbias,
        "batch daddend (4, 6, 5)": grads.daddend,
        "inference (4, 6, 5)": inference,
        "moments (3, 6) float32": moments,
        "merged mean (6,) float32": merged.mean,
        "merged rstd (6,) float32": merged.rstd,
        "applied y (4, 6, 5)": applied.y,
        "applied mask (15,) uint8": applied.mask,
        "sums (2, 6) float32": sums,
        "part dx (4, 6, 5)": part.dx,
        "part daddend (4, 6, 5)": part.daddend,
        "group y (4, 6, 5)": group.y,
        "group mean (4, 3) float32": group.mean,
        "group rstd (4, 3) float32": group.rstd,
        "group dx (4, 6, 5)": group_grads.dx,
        "group dweight (6,)": group_grads.dweight,
        "group dbias (6,)": group_grads.dbias,
        "instance y (4, 6, 5)": instance.y,
        "instance mean (4, 6) float32": instance.mean,
        "instance dx (4, 6, 5)": instance_grads.dx,
        "instance dweight (6,)": instance_grads.dweight,
    }


def test_outputs_are_of_the_same_kind(framework: Any, dtype: str):
    like = type(framework.array(random(2), dtype))
    for name, array in outputs(framework, dtype).items():
        assert type(array) is like, name
        words = name.rpartition(")")
        assert framework.dtype(array) == (words[2].strip() or dtype), name
        assert words[0].endswith(str(tuple(array.shape))[:-1]), f"{name} has shape {tuple(array.shape)}"


def test_all_frameworks_give_the_same_bits(framework: Any, dtype: str):
    expected = outputs(Numpy(), dtype)
    for name, array in outputs(framework, dtype).items():
        found = np.asarray(array) if name.endswith("uint8") else framework.values(array)
        np.testing.assert_array_equal(found, Numpy().values(expected[name]), name)


@pytest.mark.parametrize("name", ["jax", "tensorflow"])
def test_immutable_frameworks_take_over_our_memory(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch):
    """Outputs are the very memory that the library wrote, aligned as they need it."""
    framework = FRAMEWORKS[name]()
    addresses: list[int] = []
    empty = _core.empty

    def spy(shape: Any, wanted: str) -> Any:
        buffer = empty(shape, wanted)
        addresses.append(_core.describe(buffer)[0])
        return buffer

    monkeypatch.setattr(_core, "empty", spy)
    x = framework.array(random(7, 33, 2), dtype)
    made = [normact.group_norm(x, 3), normact.instance_norm(x), normact.batch_norm(x, training=True)]
    assert [framework.address(y) for y in made] == addresses
    assert all(address % 64 == 0 for address in addresses)


@pytest.mark.parametrize("name", ["jax", "tensorflow"])
@pytest.mark.parametrize("momentum", [0.25, None])
def test_merge_returns_new_running_statistics_of_immutable_arrays(name: str, momentum: float | None):
    framework = FRAMEWORKS[name]()
    x = random(4, 6, 5)
    running = {"running_mean": random(6), "running_var": random(6) ** 2}
    count = np.array(3, np.int64)
    mine = {key: framework.array(values, "float32") for key, values in running.items()}
    moments = framework.array(normact.batch_norm_statistics(x)[None], "float32")
    merged = normact.batch_norm_merge(moments, **mine, num_batches_tracked=count, momentum=momentum)
    assert merged.num_batches_tracked is count and count == 4
    kept = {key: values.copy() for key, values in running.items()}
    want = {key: values.copy() for key, values in running.items()}
    normact.batch_norm(x, None, None, **want, num_batches_tracked=count, training=True, momentum=0.25)
    for key in running:
        found = getattr(merged, key)
        assert type(found) is type(mine[key])
        np.testing.assert_array_equal(framework.values(mine[key]), kept[key], "the given ones are as they were")
        np.testing.assert_allclose(framework.values(found), want[key], rtol=1e-6)


def test_tensorflow_counts_are_new_too():
    import tensorflow as tf

    count = tf.constant(3, tf.int64)
    moments = tf.constant(normact.batch_norm_statistics(random(4, 6, 5))[None])
    merged = normact.batch_norm_merge(moments, num_batches_tracked=count)
    assert int(merged.num_batches_tracked) == 4 and int(count) == 3
    assert merged.num_batches_tracked.dtype == tf.int64


def test_jax_counts_are_new_too():
    program = """
import jax, numpy, normact
jax.config.update("jax_enable_x64", True)
count = jax.numpy.asarray(3, "int64")
moments = jax.numpy.asarray(normact.batch_norm_statistics(numpy.arange(12.0).reshape(3, 4))[None])
merged = normact.batch_norm_merge(moments, num_batches_tracked=count)
assert int(merged.num_batches_tracked) == 4 and int(count) == 3
assert {array.dtype.name for array in merged[:2]} == {"float64"}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_numpy_running_statistics_beside_other_arrays(framework: Any):
    """Immutable x with NumPy's running statistics: these can be updated, whoever made x."""
    x = framework.array(random(4, 6, 5), "float32")
    running_mean, running_var = np.zeros(6, np.float32), np.ones(6, np.float32)
    y = normact.batch_norm(x, None, None, running_mean, running_var, training=True)
    assert type(y) is type(x)
    np.testing.assert_allclose(running_mean, 0.1 * random(4, 6, 5).mean((0, 2)), rtol=1e-4, atol=1e-6)
    assert (running_var != 1).all()


def test_inputs_are_not_copied(framework: Any, dtype: str):
    x = framework.array(random(3, 6, 4), dtype)
    address = framework.address(x)
    assert _core.describe(x)[0] == address
    if type(x).__module__ in ("numpy", "torch"):
        assert normact.group_norm(x, 2, out=x) is x
        assert framework.address(x) == address


def test_jax_results_go_on_in_jax():
    import jax

    x = jax.numpy.asarray(random(3, 6, 4))
    y = normact.group_norm(x, 2)
    np.testing.assert_array_equal(np.asarray(jax.jit(lambda a: 2 * a)(y)), 2 * np.asarray(y))


def test_tensorflow_results_go_on_in_tensorflow():
    import tensorflow as tf

    y = normact.batch_norm(tf.constant(random(3, 6, 4)), training=True)
    np.testing.assert_array_equal((2.0 * y).numpy(), 2 * y.numpy())


def test_streams_are_ignored_on_the_cpu():
    import torch

    x = random(3, 6, 4)
    for array in (x, torch.from_numpy(x)):
        for call in (
            lambda array, **options: normact.batch_norm(array, training=True, **options),
            lambda array, **options: normact.group_norm(array, 2, **options),
            lambda array, **options: normact.instance_norm(array, **options),
            lambda array, **options: normact.batch_norm_statistics(array, **options),
        ):
            np.testing.assert_array_equal(np.asarray(call(array, stream=0)), np.asarray(call(x)))
