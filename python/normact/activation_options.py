# SPDX-License-Identifier: Apache-2.0
"""The activations that have options of their own."""

from __future__ import annotations

from typing import Any

from normact.activation_calls import ActivationGrads, backward, forward
from normact.activation_docs import backward_docs, forward_docs

# ruff: noqa: D103 (the docstrings are made of activation_docs)


@forward_docs("relu", mask=True)
def relu(
    x: Any,
    *,
    bias: Any = None,
    axis: int = -1,
    return_mask: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    return forward("relu", "relu", x, bias, axis, None, None, None, return_mask, out, stream)


@backward_docs("relu", output=True, mask=True)
def relu_backward(
    dy: Any,
    x: Any = None,
    *,
    y: Any = None,
    mask: Any = None,
    bias: Any = None,
    axis: int = -1,
    out: Any = None,
    stream: Any = None,
) -> ActivationGrads:
    return backward("relu_backward", "relu", dy, x, y, mask, bias, axis, None, None, None, out, stream)


@forward_docs("leaky_relu")
def leaky_relu(
    x: Any, *, alpha: float = 0.01, bias: Any = None, axis: int = -1, out: Any = None, stream: Any = None
) -> Any:
    return forward("leaky_relu", "leaky_relu", x, bias, axis, alpha, None, None, False, out, stream)


@backward_docs("leaky_relu", output=True)
def leaky_relu_backward(
    dy: Any,
    x: Any = None,
    *,
    y: Any = None,
    alpha: float = 0.01,
    bias: Any = None,
    axis: int = -1,
    out: Any = None,
    stream: Any = None,
) -> ActivationGrads:
    name = "leaky_relu_backward"
    return backward(name, "leaky_relu", dy, x, y, None, bias, axis, alpha, None, None, out, stream)


@forward_docs("elu")
def elu(x: Any, *, alpha: float = 1.0, bias: Any = None, axis: int = -1, out: Any = None, stream: Any = None) -> Any:
    return forward("elu", "elu", x, bias, axis, alpha, None, None, False, out, stream)


@backward_docs("elu", output=True)
def elu_backward(
    dy: Any,
    x: Any = None,
    *,
    y: Any = None,
    alpha: float = 1.0,
    bias: Any = None,
    axis: int = -1,
    out: Any = None,
    stream: Any = None,
) -> ActivationGrads:
    return backward("elu_backward", "elu", dy, x, y, None, bias, axis, alpha, None, None, out, stream)


_APPROXIMATIONS = {"none": "gelu", "tanh": "gelu_tanh"}


def gelu_kind(function: str, approximate: Any) -> str:
    """The kind that PyTorch calls gelu with this `approximate`."""
    kind = _APPROXIMATIONS.get(approximate) if isinstance(approximate, str) else None
    if kind is None:
        raise ValueError(f"{function}: approximate is {approximate!r}; expected 'none' or 'tanh'")
    return kind


@forward_docs("gelu")
def gelu(
    x: Any,
    *,
    approximate: str = "none",
    bias: Any = None,
    axis: int = -1,
    out: Any = None,
    stream: Any = None,
) -> Any:
    return forward("gelu", gelu_kind("gelu", approximate), x, bias, axis, None, None, None, False, out, stream)


@backward_docs("gelu")
def gelu_backward(
    dy: Any,
    x: Any,
    *,
    approximate: str = "none",
    bias: Any = None,
    axis: int = -1,
    out: Any = None,
    stream: Any = None,
) -> ActivationGrads:
    kind = gelu_kind("gelu_backward", approximate)
    return backward("gelu_backward", kind, dy, x, None, None, bias, axis, None, None, None, out, stream)


@forward_docs("softplus")
def softplus(
    x: Any,
    *,
    beta: float = 1.0,
    threshold: float = 20.0,
    bias: Any = None,
    axis: int = -1,
    out: Any = None,
    stream: Any = None,
) -> Any:
    return forward("softplus", "softplus", x, bias, axis, None, beta, threshold, False, out, stream)


@backward_docs("softplus")
def softplus_backward(
    dy: Any,
    x: Any,
    *,
    beta: float = 1.0,
    threshold: float = 20.0,
    bias: Any = None,
    axis: int = -1,
    out: Any = None,
    stream: Any = None,
) -> ActivationGrads:
    name = "softplus_backward"
    return backward(name, "softplus", dy, x, None, None, bias, axis, None, beta, threshold, out, stream)
