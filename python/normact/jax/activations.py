# SPDX-License-Identifier: Apache-2.0
"""The activations on JAX arrays, differentiable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from normact.activation_docs import differentiable_docs
from normact.activation_options import gelu_kind
from normact.jax import inputs
from normact.jax.pointwise_ops import ACTIVATION, ActivationOptions

if TYPE_CHECKING:
    from jax.typing import ArrayLike


def activation(
    x: ArrayLike,
    kind: str,
    *,
    bias: ArrayLike | None = None,
    axis: int = -1,
    alpha: float | None = None,
    beta: float | None = None,
    threshold: float | None = None,
) -> Any:
    """An activation that is chosen by its name, of ``x + bias``.

    Parameters
    ----------
    x : array
        float64, float32, float16 or bfloat16, of any shape.
    kind : str
        "relu", "gelu", "silu" ...; the message about a wrong one lists them all.
    bias : array, optional
        Of shape ``(x.shape[axis],)``; the dtype of x, or float32 beside 16 bits. Its gradient comes from the pass
        that gives x's.
    axis : int
        The axis that the bias runs along; 1 for images in NCHW.
    alpha, beta, threshold : float, optional
        Of "leaky_relu", "elu" and "softplus", with the defaults that they have as functions.

    Returns
    -------
    y : jax.Array
        Shape and dtype of x.

    Raises
    ------
    ValueError, TypeError, NotImplementedError, jax.errors.JaxRuntimeError
        As in `layer_norm`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> activation(jnp.array([-1.0, 2.0]), "relu", bias=jnp.array([2.0, -3.0])).tolist()
    [1.0, 0.0]
    """
    return _apply("activation", kind, x, bias, axis, alpha, beta, threshold)


def _apply(
    function: str,
    kind: str,
    x: Any,
    bias: Any,
    axis: int,
    alpha: float | None = None,
    beta: float | None = None,
    threshold: float | None = None,
) -> Any:
    x = inputs.array(function, "x", x)
    if bias is not None:
        axis = inputs.negative(function, "axis", axis, x)
        bias = inputs.parameter(function, "bias", bias, (x.shape[axis],), x)
    act = inputs.activation(function, kind, alpha, beta, threshold, argument="kind")
    return ACTIVATION(ActivationOptions(function, act, axis if bias is not None else -1), x, bias)[0]


# ---- One function per kind ----


class _Function(Protocol):
    def __call__(self, x: ArrayLike, *, bias: ArrayLike | None = None, axis: int = -1) -> Any: ...


def _function(kind: str) -> _Function:
    @differentiable_docs(kind)
    def function(x: ArrayLike, *, bias: ArrayLike | None = None, axis: int = -1) -> Any:
        return _apply(kind, kind, x, bias, axis)

    function.__name__ = function.__qualname__ = kind
    return function


identity, relu, relu6 = _function("identity"), _function("relu"), _function("relu6")
squared_relu, gelu_tanh, quick_gelu = _function("squared_relu"), _function("gelu_tanh"), _function("quick_gelu")
silu, mish, sigmoid, tanh = _function("silu"), _function("mish"), _function("sigmoid"), _function("tanh")
hardswish, hardsigmoid = _function("hardswish"), _function("hardsigmoid")


@differentiable_docs("gelu", '`approximate` is "none" or "tanh". (`jax.nn.gelu` takes "tanh" by default.)')
def gelu(  # noqa: D103
    x: ArrayLike, *, approximate: str = "none", bias: ArrayLike | None = None, axis: int = -1
) -> Any:
    return _apply("gelu", gelu_kind("gelu", approximate), x, bias, axis)


@differentiable_docs("leaky_relu")
def leaky_relu(  # noqa: D103
    x: ArrayLike, *, alpha: float = 0.01, bias: ArrayLike | None = None, axis: int = -1
) -> Any:
    return _apply("leaky_relu", "leaky_relu", x, bias, axis, alpha=alpha)


@differentiable_docs("elu")
def elu(x: ArrayLike, *, alpha: float = 1.0, bias: ArrayLike | None = None, axis: int = -1) -> Any:  # noqa: D103
    return _apply("elu", "elu", x, bias, axis, alpha=alpha)


@differentiable_docs("softplus")
def softplus(  # noqa: D103
    x: ArrayLike,
    *,
    beta: float = 1.0,
    threshold: float = 20.0,
    bias: ArrayLike | None = None,
    axis: int = -1,
) -> Any:
    return _apply("softplus", "softplus", x, bias, axis, beta=beta, threshold=threshold)
