# SPDX-License-Identifier: Apache-2.0
"""normact.jax on a GPU: on XLA's stream, with XLA's scratch memory, and by the kernels that run elsewhere too.

That the values are right there is shown by all other tests of normact.jax, which run where JAX computes by default.
"""

from __future__ import annotations

import concurrent.futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import normact
import normact.jax as nj

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")


@pytest.fixture
def two_gpus() -> list[Any]:
    if jax.device_count() < 2:
        pytest.skip("needs two GPUs")
    return jax.devices()[:2]


def draw(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def test_parameters_of_torch_on_another_stream() -> None:
    """They are handed over by a protocol that refuses what requires a gradient."""
    import torch

    x, weight = draw(6, 64), torch.nn.Parameter(torch.rand(64, device="cuda"))
    want = normact.rms_norm(x, jnp.asarray(weight.detach().cpu().numpy()))
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        assert_same(normact.rms_norm(x, weight), want)


def gradients(*arrays: Any) -> Any:
    """Of a loss over calls that need scratch memory: sums over rows, and the moments of a batch."""

    def loss(x: Any, weight: Any, bias: Any) -> Any:
        h = nj.layer_norm(x, weight, bias, activation="silu")
        h = nj.batch_norm(h, weight, bias, channel_axis=-1, training=True)
        h = nj.group_norm(h, 4, weight, bias, channel_axis=-1)
        return (nj.swiglu(h, bias=bias) ** 2).mean()

    return jax.grad(loss, argnums=(0, 1, 2))(*arrays)


def assert_same(found: Any, want: Any) -> None:
    """Bit for bit."""
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def assert_close(found: Any, want: Any) -> None:
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-3, atol=1e-5)


def test_the_kernels_are_those_of_other_arrays() -> None:
    x, dy, weight = draw(300, 768), draw(300, 768, seed=1), draw(768)
    y, pull = jax.vjp(lambda x, weight: nj.rms_norm(x, weight, activation="silu"), x, weight)
    assert y.devices() == x.devices() == {jax.devices()[0]}
    own = normact.rms_norm(x, weight, activation="silu", return_stats=True)
    grads = normact.rms_norm_backward(dy, x, weight, rstd=own.rstd, activation="silu")
    assert_same((y, *pull(dy)), (own.y, grads.dx, grads.dweight))
    y, pull = jax.vjp(nj.swiglu, x)
    assert_same((y, *pull(dy[:, :384])), (normact.swiglu(x), normact.swiglu_backward(dy[:, :384], x).dx))
    images = x.reshape(100, 3, 768)
    y = nj.batch_norm(images, None, None, training=True)
    assert_same(y, normact.batch_norm(images, training=True))
    assert_same(nj.group_norm(images, 3), normact.group_norm(images, 3))


def test_on_xlas_stream() -> None:
    """Between XLA's own kernels, with temporaries and scratch memory that XLA gives away at once."""

    @jax.jit
    def step(*arrays: Any) -> tuple[Any, ...]:
        return tuple(array - 0.1 * slope for array, slope in zip(arrays, gradients(*arrays), strict=True))

    start = draw(4096, 256), draw(256, seed=1), draw(256, seed=2)
    want = queued = start
    for _ in range(60):
        want = jax.block_until_ready(step(*want))
        queued = step(*queued)
    assert all(np.isfinite(np.asarray(array)).all() for array in want)
    assert_same(queued, want)
    looped = jax.jit(lambda *arrays: jax.lax.fori_loop(0, 60, lambda _, each: step(*each), arrays))
    assert_close(looped(*start), want)


def test_threads_share_a_gpu() -> None:
    step = jax.jit(gradients)
    given = [(draw(512, 64, seed=i), draw(64, seed=i), draw(64, seed=i + 1)) for i in range(4)]
    want = [step(*arrays) for arrays in given]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda i: (i % 4, step(*given[i % 4])), range(80)):
            assert_same(found[1], want[found[0]])


def test_the_cpu_beside_it() -> None:
    """In one process XLA takes the handler of the platform that the arrays are on."""
    host, gpu = jax.devices("cpu")[0], jax.devices()[0]
    given = draw(64, 32), draw(32), draw(32, seed=1)
    there = jax.jit(gradients)(*(jax.device_put(array, host) for array in given))
    here = jax.jit(gradients)(*given)
    assert there[0].devices() == {host} and here[0].devices() == {gpu}
    assert_close(here, there)


def test_a_gpu_that_is_not_the_first(two_gpus: list[Any]) -> None:
    given = draw(64, 32), draw(32), draw(32, seed=1)
    found = jax.jit(gradients)(*(jax.device_put(array, two_gpus[1]) for array in given))
    assert found[0].devices() == {two_gpus[1]}
    assert_same(found, jax.jit(gradients)(*given))


def test_divided_between_gpus(two_gpus: list[Any]) -> None:
    given = draw(64, 32), draw(32), draw(32, seed=1)
    mesh = jax.sharding.Mesh(np.array(two_gpus), ("d",))
    rows, whole = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*names)) for names in (("d",), ()))
    divided = jax.jit(gradients)(*(jax.device_put(*each) for each in zip(given, (rows, whole, whole), strict=True)))
    assert divided[0].sharding.is_equivalent_to(rows, 2)
    assert_close(divided, jax.jit(gradients)(*given))
