# SPDX-License-Identifier: Apache-2.0
"""The kernels as JAX's own: differentiable functions under jit, grad, vmap and shard_map.

The functions have the names and arguments of those of `normact` without `out`, `stream`, `return_stats`, `return_mask`
and `num_batches_tracked`; `batch_norm` takes an `axis_name` and returns new running statistics. They give gradients to
every array, backwards and once. An array that is sharded stays where it is, as far as the operation allows: rows of a
norm, everything of an activation, samples of a group norm; a batch norm takes its statistics over all devices.
Parameters' gradients are summed over the devices.

>>> import jax, jax.numpy as jnp, normact.jax
>>> x, weight = jnp.ones((8, 512)), jnp.ones(512)
>>> loss = jax.jit(lambda x, weight: normact.jax.rms_norm(x, weight).sum())
>>> jax.grad(loss, argnums=1)(x, weight).shape
(512,)

`normact.jax.linen` and `normact.jax.nnx` have the norms as Flax's layers.
"""

from normact.jax.activations import (
    activation,
    elu,
    gelu,
    gelu_tanh,
    hardsigmoid,
    hardswish,
    identity,
    leaky_relu,
    mish,
    quick_gelu,
    relu,
    relu6,
    sigmoid,
    silu,
    softplus,
    squared_relu,
    tanh,
)
from normact.jax.channel_norms import batch_norm, group_norm, instance_norm
from normact.jax.gates import gated, geglu, glu, reglu, swiglu
from normact.jax.norms import layer_norm, rms_norm

__all__ = [
    "activation",
    "batch_norm",
    "elu",
    "gated",
    "geglu",
    "gelu",
    "gelu_tanh",
    "glu",
    "group_norm",
    "hardsigmoid",
    "hardswish",
    "identity",
    "instance_norm",
    "layer_norm",
    "leaky_relu",
    "mish",
    "quick_gelu",
    "reglu",
    "relu",
    "relu6",
    "rms_norm",
    "sigmoid",
    "silu",
    "softplus",
    "squared_relu",
    "swiglu",
    "tanh",
]
