# SPDX-License-Identifier: Apache-2.0
"""The activations with PyTorch's arguments, differentiable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.compiler import is_compiling

from normact import _core
from normact.activation_calls import FROM_OUTPUT
from normact.activation_docs import differentiable_docs
from normact.activation_options import gelu_kind
from normact.torch.call import call
from normact.torch.inputs import check_tensor, matched, negative
from normact.torch.pointwise_ops import ACTIVATION

if TYPE_CHECKING:
    from torch import Tensor


def activation(
    input: Tensor,
    kind: str,
    *,
    bias: Tensor | None = None,
    dim: int = -1,
    alpha: float | None = None,
    beta: float | None = None,
    threshold: float | None = None,
) -> Tensor:
    """An activation that is chosen by its name, of ``input + bias``.

    Parameters
    ----------
    input : Tensor
        float64, float32, float16 or bfloat16, of any shape and any strides.
    kind : str
        "relu", "gelu", "silu" ...; the message about a wrong one lists them all.
    bias : Tensor, optional
        Of shape ``(input.shape[dim],)``; the dtype of input, or float32 beside 16 bits. Its gradient comes from the
        pass that gives input's.
    dim : int
        The dimension that the bias runs along; 1 for images.
    alpha, beta, threshold : float, optional
        Of "leaky_relu", "elu" and "softplus", with PyTorch's defaults.

    Returns
    -------
    y : Tensor
        Shape, dtype, device and memory layout of input, also under autocast.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `layer_norm`.

    Examples
    --------
    >>> import torch
    >>> activation(torch.tensor([-1.0, 2.0]), "relu", bias=torch.tensor([2.0, -3.0])).tolist()
    [1.0, 0.0]
    """
    return _apply("activation", kind, input, bias, dim, alpha, beta, threshold)


def _apply(
    function: str,
    kind: str,
    input: Any,
    bias: Any,
    dim: int,
    alpha: float | None = None,
    beta: float | None = None,
    threshold: float | None = None,
    inplace: bool = False,
) -> Any:
    check_tensor(function, "input", input)
    if bias is not None:
        dim = negative(function, dim, "input", input)
    options = (kind, dim, alpha, beta, threshold)
    if not inplace:
        return call(ACTIVATION, matched((input, bias)), options)
    # The backward reads the input as it was, if it does not go from the output. What is traced may be run with
    # gradients another time.
    records = torch.is_grad_enabled() or is_compiling() or not _core.torch_is_plain()
    kept = input.clone() if records and kind not in FROM_OUTPUT else input
    return input.copy_(call(ACTIVATION, matched((kept, bias)), options))


# ---- One function per kind ----

_INPLACE = "`inplace` writes the result into input, as PyTorch does."


def _documented(kind: str, more: str = "") -> Callable[[Any], Any]:
    return differentiable_docs(kind, more, "input")


class _Function(Protocol):
    def __call__(self, input: Tensor, *, bias: Tensor | None = None, dim: int = -1) -> Tensor: ...


class _InplaceFunction(Protocol):
    def __call__(
        self, input: Tensor, inplace: bool = False, *, bias: Tensor | None = None, dim: int = -1
    ) -> Tensor: ...


def _function(kind: str) -> _Function:
    @_documented(kind)
    def function(input: Tensor, *, bias: Tensor | None = None, dim: int = -1) -> Tensor:
        return _apply(kind, kind, input, bias, dim)

    function.__name__ = function.__qualname__ = kind
    return function


def _inplace_function(kind: str) -> _InplaceFunction:
    @_documented(kind, _INPLACE)
    def function(input: Tensor, inplace: bool = False, *, bias: Tensor | None = None, dim: int = -1) -> Tensor:
        return _apply(kind, kind, input, bias, dim, inplace=inplace)

    function.__name__ = function.__qualname__ = kind
    return function


identity, squared_relu = _function("identity"), _function("squared_relu")
gelu_tanh, quick_gelu = _function("gelu_tanh"), _function("quick_gelu")
sigmoid, tanh = _function("sigmoid"), _function("tanh")
relu, relu6 = _inplace_function("relu"), _inplace_function("relu6")
silu, mish = _inplace_function("silu"), _inplace_function("mish")
hardswish, hardsigmoid = _inplace_function("hardswish"), _inplace_function("hardsigmoid")


@_documented("gelu", '`approximate` is "none" or "tanh".')
def gelu(  # noqa: D103
    input: Tensor, approximate: str = "none", *, bias: Tensor | None = None, dim: int = -1
) -> Tensor:
    return _apply("gelu", gelu_kind("gelu", approximate), input, bias, dim)


@_documented("leaky_relu", "alpha is `negative_slope`. " + _INPLACE)
def leaky_relu(  # noqa: D103
    input: Tensor,
    negative_slope: float = 0.01,
    inplace: bool = False,
    *,
    bias: Tensor | None = None,
    dim: int = -1,
) -> Tensor:
    return _apply("leaky_relu", "leaky_relu", input, bias, dim, alpha=negative_slope, inplace=inplace)


@_documented("elu", _INPLACE)
def elu(  # noqa: D103
    input: Tensor, alpha: float = 1.0, inplace: bool = False, *, bias: Tensor | None = None, dim: int = -1
) -> Tensor:
    return _apply("elu", "elu", input, bias, dim, alpha=alpha, inplace=inplace)


@_documented("softplus")
def softplus(  # noqa: D103
    input: Tensor, beta: float = 1.0, threshold: float = 20.0, *, bias: Tensor | None = None, dim: int = -1
) -> Tensor:
    return _apply("softplus", "softplus", input, bias, dim, beta=beta, threshold=threshold)
