# SPDX-License-Identifier: Apache-2.0
"""An operation as JAX sees it: one `Op`, from which the differentiable function is made.

How an operation behaves under vmap and on sharded arrays is said by its calls (`normact.jax.call`). A new operation is
one more entry of a table (`row_ops`, `pointwise_ops`, `batch_ops`, `group_ops`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from normact.jax import mesh

Arrays = tuple[Any, ...]  # jax.Array, or None for an optional one that is not there


@dataclasses.dataclass(frozen=True, eq=False)
class Op:
    """An operation. All callables take the tensors as one tuple, in an order that is the operation's own."""

    #: (tensors, options, keep) -> (what the caller gets, what the backward reads). Without `keep` the second is not
    #: used.
    forward: Callable[[Arrays, Any, bool], tuple[Arrays, Arrays]]
    #: (gradients of what the caller got, what the forward kept, options) -> for each tensor its gradient or None.
    backward: Callable[[Arrays, Arrays, Any], Arrays]
    #: How many of the last tensors are running statistics, which have no gradient.
    states: int = 0
    #: options -> whether it sums over mapped axes, which it knows by their names.
    over_axes: Callable[[Any], bool] = lambda options: False


def build(op: Op) -> Callable[..., Arrays]:
    """A function of the options and the tensors, differentiable backwards, once."""
    keeping = _once(op, lambda options, tensors: op.forward(tensors, options, True))
    gradients_of = _once(op, lambda options, kept, gradients: op.backward(gradients, kept, options))

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def function(options: Any, *tensors: Any) -> Arrays:
        return op.forward(tensors, options, False)[0]

    def forward(options: Any, *tensors: Any) -> tuple[Arrays, Arrays]:
        return keeping(options, tensors)

    def backward(options: Any, kept: Arrays, gradients: Arrays) -> Arrays:
        return gradients_of(options, kept, gradients)

    function.defvjp(forward, backward)

    @functools.partial(jax.jit, static_argnums=0, inline=True)
    def call(options: Any, *tensors: Any) -> Arrays:
        differentiable = len(tensors) - op.states
        return function(options, *mesh.together(tensors[:differentiable]), *tensors[differentiable:])

    return call


def _once(op: Op, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which says so if it is differentiated: it is a part of a derivative itself."""

    def forward(options: Any, *arguments: Any) -> tuple[Any, None]:
        return function(options, *arguments), None  # whose derivative may not be needed: under stop_gradient

    def refuse(options: Any, *arguments: Any) -> Any:
        raise NotImplementedError(
            f"normact.jax: {options.function} was differentiated twice, and its backward has no gradient of its own; "
            "expected a loss without gradients in it (no gradient penalty, no Hessian), or a formula of jax.numpy"
        )

    once = jax.custom_vjp(function, nondiff_argnums=(0,))
    once.defvjp(forward, refuse)
    compiled = jax.jit(once, static_argnums=0, inline=True)

    def call(options: Any, *arguments: Any) -> Any:
        # Without jit each call under vmap makes a new function and compiles it. But vmap runs a backward where the
        # names of its axes are not known inside of a jit.
        return (once if op.over_axes(options) else compiled)(options, *arguments)

    return call


def like(gradient: Any, tensor: Any) -> Any:
    """A gradient, which is made in the dtype of sums, in that of its tensor; None for a tensor that is not there."""
    return None if tensor is None else gradient.astype(tensor.dtype)


def statistic_dtype(dtype: Any) -> Any:
    """The dtype of statistics, and of sums over all rows, of an array."""
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)
