# SPDX-License-Identifier: Apache-2.0
"""The activations on TensorFlow tensors, differentiable."""

from __future__ import annotations

from typing import Any, Protocol

from normact.activation_docs import differentiable_docs
from normact.activation_options import gelu_kind
from normact.tensorflow.call import call
from normact.tensorflow.inputs import optional, public, tensor
from normact.tensorflow.pointwise_ops import ACTIVATION


@public
def activation(
    x: Any,
    kind: str,
    *,
    bias: Any = None,
    axis: int = -1,
    alpha: float | None = None,
    beta: float | None = None,
    threshold: float | None = None,
) -> Any:
    """An activation that is chosen by its name, of ``x + bias``.

    Parameters
    ----------
    x : tf.Tensor
        float64, float32, float16 or bfloat16, of any shape.
    kind : str
        "relu", "gelu", "silu" ...; the message about a wrong one lists them all.
    bias : tf.Tensor, optional
        Of shape ``(x.shape[axis],)``; the dtype of x, or float32 beside 16 bits. Its gradient comes from the pass
        that gives x's.
    axis : int
        The axis of x that the bias runs along; 1 for images in NCHW.
    alpha, beta, threshold : float, optional
        Of "leaky_relu", "elu" and "softplus", with the defaults of their functions.

    Returns
    -------
    y : tf.Tensor
        Shape, dtype and device of x.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `layer_norm`.

    Examples
    --------
    >>> import tensorflow as tf
    >>> activation(tf.constant([-1.0, 2.0]), "relu", bias=tf.constant([2.0, -3.0])).numpy().tolist()
    [1.0, 0.0]
    """
    return _apply("activation", kind, x, bias, axis, alpha, beta, threshold)


def _apply(function: str, kind: str, x: Any, bias: Any, axis: int, *numbers: float | None) -> Any:
    """`numbers` are alpha, beta and threshold, or nothing."""
    tensors = (tensor(function, "x", x), optional(function, "bias", bias))
    return call(ACTIVATION, tensors, (function, kind, axis, *(numbers or (None, None, None))))


# ---- One function per kind ----


class _Function(Protocol):
    def __call__(self, x: Any, *, bias: Any = None, axis: int = -1) -> Any: ...


def _function(kind: str) -> _Function:
    @differentiable_docs(kind)
    def function(x: Any, *, bias: Any = None, axis: int = -1) -> Any:
        return _apply(kind, kind, x, bias, axis)

    function.__name__ = function.__qualname__ = kind
    return public(function)


identity, relu, relu6 = _function("identity"), _function("relu"), _function("relu6")
squared_relu, gelu_tanh, quick_gelu = _function("squared_relu"), _function("gelu_tanh"), _function("quick_gelu")
silu, sigmoid, tanh, mish = _function("silu"), _function("sigmoid"), _function("tanh"), _function("mish")
hardswish, hardsigmoid = _function("hardswish"), _function("hardsigmoid")


@public
@differentiable_docs("gelu", '`approximate` is "none" or "tanh".')
def gelu(x: Any, *, approximate: str = "none", bias: Any = None, axis: int = -1) -> Any:  # noqa: D103
    return _apply("gelu", gelu_kind("gelu", approximate), x, bias, axis)


@public
@differentiable_docs("leaky_relu")
def leaky_relu(x: Any, *, alpha: float = 0.01, bias: Any = None, axis: int = -1) -> Any:  # noqa: D103
    return _apply("leaky_relu", "leaky_relu", x, bias, axis, alpha, None, None)


@public
@differentiable_docs("elu")
def elu(x: Any, *, alpha: float = 1.0, bias: Any = None, axis: int = -1) -> Any:  # noqa: D103
    return _apply("elu", "elu", x, bias, axis, alpha, None, None)


@public
@differentiable_docs("softplus")
def softplus(  # noqa: D103
    x: Any, *, beta: float = 1.0, threshold: float = 20.0, bias: Any = None, axis: int = -1
) -> Any:
    return _apply("softplus", "softplus", x, bias, axis, None, beta, threshold)
