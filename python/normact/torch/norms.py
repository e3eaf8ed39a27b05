# SPDX-License-Identifier: Apache-2.0
"""Layer norm and RMS norm with PyTorch's arguments, differentiable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from normact.torch.call import call, nested, not_a_tensor
from normact.torch.inputs import is_mixed, matched
from normact.torch.row_ops import (
    ADD_LAYER_NORM,
    ADD_RMS_NORM,
    LAYER_NORM,
    MIXED_ADD_LAYER_NORM,
    MIXED_ADD_RMS_NORM,
    RMS_NORM,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def layer_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
    weight_offset: float = 0.0,
    activation: str | None = None,
    alpha: float | None = None,
) -> Any:
    """`torch.nn.functional.layer_norm`, and what may be done in the same pass.

    With ``s = input``, or ``round(input + residual)``, rounded to the dtype of residual::

        y = act((s - mean) / sqrt(var + eps) * (weight_offset + weight) + bias)

    Parameters
    ----------
    input : Tensor
        float64, float32, float16 or bfloat16, of any shape that ends in `normalized_shape`, and any strides.
    normalized_shape : int or sequence of ints
        The last sizes of input, over which is normalised.
    weight, bias : Tensor, optional
        Of shape `normalized_shape`; the dtype of input, or float32 beside 16 bits.
    eps : float
        Added to the variance.
    residual : Tensor, optional
        Shape of input, added to it before the norm; the dtype of input, or float32: a residual stream in float32 beside
        an input in 16 bits, as under autocast.
    weight_offset : float
        Added to the weight; 1.0 is Gemma's convention.
    activation : str, optional
        The kind of an activation that y passes through before it is rounded: "gelu", "silu", ...
    alpha : float, optional
        The activation's number, where it has one.

    Returns
    -------
    y : Tensor
        Shape, dtype, device and memory layout of input, also under autocast.
    (y, s) : tuple of Tensors
        With a residual: the sum too, in the residual's dtype, which is the next residual.

    Raises
    ------
    ValueError
        A shape, device or value is wrong.
    TypeError
        An argument is no tensor or has a dtype that is not supported.
    NotImplementedError
        The result is differentiated twice.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64, requires_grad=True)
    >>> layer_norm(x, 3, eps=0.0)[0, 0].backward()
    >>> x.grad.round(decimals=4).tolist()
    [[0.2041, -0.4082, 0.2041]]
    """
    axis = trailing("layer_norm", input, normalized_shape)
    options = (axis, eps, weight_offset, activation, alpha)
    if residual is None:
        return call(LAYER_NORM, matched((input, weight, bias)), options)
    mixed = is_mixed(input, residual)
    calls = MIXED_ADD_LAYER_NORM if mixed else ADD_LAYER_NORM
    return call(calls, matched((input, residual, weight, bias), 2, mixed=mixed), options)


def rms_norm(
    input: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    weight_offset: float = 0.0,
    activation: str | None = None,
    alpha: float | None = None,
) -> Any:
    """`torch.nn.functional.rms_norm`, and what may be done in the same pass.

    With ``s = input``, or ``round(input + residual)``::

        y = act(s / sqrt(E[s**2] + eps) * (weight_offset + weight) + bias)

    Parameters, results and errors are those of `layer_norm`. `eps` of None is PyTorch's: the distance from 1 to the
    next number of the dtype that is computed in, float64 for float64 and float32 for all others.

    Examples
    --------
    >>> import torch
    >>> rms_norm(torch.tensor([3.0, 4.0], dtype=torch.float64), 2, eps=0.0).round(decimals=4).tolist()
    [0.8485, 1.1314]
    """
    axis = trailing("rms_norm", input, normalized_shape)
    if eps is None:
        eps = _EPS64 if input.dtype == torch.float64 else _EPS32
    options = (axis, eps, weight_offset, activation, alpha)
    if residual is None:
        return call(RMS_NORM, matched((input, weight, bias)), options)
    mixed = is_mixed(input, residual)
    calls = MIXED_ADD_RMS_NORM if mixed else ADD_RMS_NORM
    return call(calls, matched((input, residual, weight, bias), 2, mixed=mixed), options)


_EPS32 = torch.finfo(torch.float32).eps
_EPS64 = torch.finfo(torch.float64).eps
_LAST = (-1,)


def trailing(function: str, input: Any, normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    """The axes that `normalized_shape` names. Raises ValueError if they are not of these sizes."""
    if not isinstance(input, torch.Tensor):
        raise not_a_tensor(function, "input", input)
    try:
        sizes = input.shape
    except RuntimeError:
        if input.is_nested:
            raise nested(function, "input") from None
        raise
    if type(normalized_shape) is tuple and len(normalized_shape) == 1 and sizes and sizes[-1] == normalized_shape[0]:
        return _LAST  # as nearly always
    sizes = tuple(sizes)  # a torch.Size takes four times as long to cut
    try:
        if isinstance(normalized_shape, torch.Tensor):  # a weight where PyTorch has the shape
            raise TypeError
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    except TypeError:
        kind = type(normalized_shape).__name__
        message = f"{function}: normalized_shape is of type {kind}; expected an int or a sequence of ints"
        raise TypeError(message) from None
    count = len(shape)
    if not count or sizes[-count:] != shape:
        raise ValueError(
            f"{function}: normalized_shape is {list(shape)} and input of shape {list(sizes)}; expected an input "
            "whose last sizes are those of normalized_shape"
        )
    return _LAST if count == 1 else tuple(range(-count, 0))
