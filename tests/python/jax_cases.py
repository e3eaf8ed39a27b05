# SPDX-License-Identifier: Apache-2.0
"""What the tests of normact.jax's transforms run over: operations beside the same in the words of jax.numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import normact.jax as nj

SHAPE, CHANNELS = (3, 4, 6), 4  # of x; its axis 1 has the channels


class Case(NamedTuple):
    """`ours` and `theirs` take the arrays in their order, of which all have a gradient."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]

    def arrays(self, leading: tuple[int, ...] = ()) -> list[jax.Array]:
        """The same in every call."""
        rng = np.random.default_rng(11)
        return [jnp.asarray(rng.standard_normal(leading + shape)) for shape in self.shapes]


def _norm(x: Any, axes: tuple[int, ...], eps: float = 1e-5) -> Any:
    centred = x - x.mean(axes, keepdims=True)
    return centred / jnp.sqrt(jnp.square(centred).mean(axes, keepdims=True) + eps)


def _along(parameter: Any) -> Any:
    return parameter[:, None]


def _layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    return jax.nn.silu(_norm(x, (-1,)) * (1 + weight) + bias)


def _add_rms_norm(x: Any, residual: Any, weight: Any) -> Any:
    total = x + residual
    rms = jnp.sqrt(jnp.square(total).mean((0, 2), keepdims=True) + 1e-6)
    return total / rms * weight[:, None, :], total


def _batch_norm(x: Any, weight: Any, bias: Any, addend: Any) -> Any:
    return jax.nn.relu(_norm(x, (0, 2)) * _along(weight) + _along(bias) + addend)


def _batch_norm_update(x: Any, weight: Any) -> Any:
    count = x.size // CHANNELS
    variance = x.var((0, 2)) * count / (count - 1)
    return _norm(x, (0, 2)) * _along(weight), 0.9 * STATES[0] + 0.1 * x.mean((0, 2)), 0.9 * STATES[1] + 0.1 * variance


def _group_norm(x: Any, weight: Any, bias: Any) -> Any:
    grouped = _norm(x.reshape(3, 2, -1), (-1,)).reshape(x.shape)
    return jax.nn.gelu(grouped * _along(weight) + _along(bias), approximate=False)


def _inference(x: Any, weight: Any, bias: Any) -> Any:
    return (x - _along(STATES[0])) / jnp.sqrt(_along(STATES[1]) + 1e-5) * _along(weight) + _along(bias)


def _split(x: Any, bias: Any) -> Any:
    packed = x + bias
    return jax.nn.silu(packed[..., :3]) * packed[..., 3:]


STATES = (np.linspace(-1, 1, CHANNELS), np.linspace(1, 2, CHANNELS))
_C, _N = (CHANNELS,), (SHAPE[-1],)

CASES = [
    Case(
        "layer_norm",
        lambda x, w, b: nj.layer_norm(x, w, b, weight_offset=1.0, activation="silu"),
        _layer_norm,
        (SHAPE, _N, _N),
    ),
    Case("layer_norm_bare", nj.layer_norm, lambda x: _norm(x, (-1,)), (SHAPE,)),
    Case(
        "add_rms_norm",
        lambda x, r, w: nj.rms_norm(x, w, axis=(0, 2), residual=r),
        _add_rms_norm,
        (SHAPE, SHAPE, (SHAPE[0], SHAPE[2])),
    ),
    Case("gelu", nj.gelu, lambda x: jax.nn.gelu(x, approximate=False), (SHAPE,)),
    Case("tanh_bias", lambda x, b: nj.tanh(x, bias=b, axis=1), lambda x, b: jnp.tanh(x + _along(b)), (SHAPE, _C)),
    Case("swiglu", nj.swiglu, lambda g, u: jax.nn.silu(g) * u, (SHAPE, SHAPE)),
    Case("swiglu_packed", lambda x, b: nj.swiglu(x, bias=b), _split, (SHAPE, _N)),
    Case(
        "reglu_biases",
        lambda g, u, a, b: nj.reglu(g, u, bias=(a, b), axis=1),
        lambda g, u, a, b: jax.nn.relu(g + _along(a)) * (u + _along(b)),
        (SHAPE, SHAPE, _C, _C),
    ),
    Case(
        "batch_norm",
        lambda x, w, b, a: nj.batch_norm(x, w, b, addend=a, training=True, activation="relu"),
        _batch_norm,
        (SHAPE, _C, _C, SHAPE),
    ),
    Case(
        "batch_norm_update",
        lambda x, w: nj.batch_norm(x, w, None, *STATES, training=True),
        _batch_norm_update,
        (SHAPE, _C),
    ),
    Case("batch_norm_inference", lambda x, w, b: nj.batch_norm(x, w, b, *STATES), _inference, (SHAPE, _C, _C)),
    Case("group_norm", lambda x, w, b: nj.group_norm(x, 2, w, b, activation="gelu"), _group_norm, (SHAPE, _C, _C)),
    Case("instance_norm", nj.instance_norm, lambda x, w: _norm(x, (-1,)) * _along(w), (SHAPE, _C)),
]


def first(found: Any) -> Any:
    """What of the results has a gradient: y, and the sum of a residual."""
    return (
        found[:2] if isinstance(found, tuple) and len(found) == 2 else found[0] if isinstance(found, tuple) else found
    )


def loss(function: Callable[..., Any]) -> Callable[..., Any]:
    """A scalar whose gradient differs from element to element."""

    def scalar(*arrays: Any) -> Any:
        return sum(jnp.sum(jnp.sin(3 * leaf)) for leaf in jax.tree.leaves(first(function(*arrays))))

    return scalar
