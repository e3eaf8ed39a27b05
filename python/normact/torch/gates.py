# SPDX-License-Identifier: Apache-2.0
"""The gated activations on PyTorch tensors, differentiable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normact.activation_options import gelu_kind
from normact.gated_calls import split_bias
from normact.torch.call import call
from normact.torch.inputs import check_tensor, matched, negative
from normact.torch.pointwise_ops import GATED

if TYPE_CHECKING:
    from torch import Tensor


def gated(
    gate: Tensor,
    up: Tensor | None = None,
    kind: str = "silu",
    *,
    layout: str = "split",
    dim: int = -1,
    bias: Any = None,
    alpha: float | None = None,
    beta: float | None = None,
    threshold: float | None = None,
    limit: float | None = None,
    up_offset: float = 0.0,
) -> Tensor:
    """An activation of one half of the input, times the other half.

    With the biases and bounds that are given::

        g = min(gate + gate_bias, limit)
        u = min(max(up + up_bias, -limit), limit)
        y = act(g) * (u + up_offset)

    Parameters
    ----------
    gate : Tensor
        float64, float32, float16 or bfloat16. Without `up` it holds both, packed along `dim`.
    up : Tensor, optional
        Shape and dtype of gate; its own strides.
    kind : str
        The activation of the gate, as in `activation`.
    layout : {"split", "interleaved"}
        Of a packed input: gates in the first half and ups in the second, or gates at even and ups at odd places.
    dim : int
        The dimension that packed inputs are packed along, and biases run along.
    bias : Tensor or pair of Tensors, optional
        Of a packed input one tensor, packed like `dim`; else ``(gate_bias, up_bias)``, each of shape
        ``(gate.shape[dim],)`` or None. The dtype of gate, or float32.
    alpha, beta, threshold : float, optional
        Of the kind, as in `activation`.
    limit : float, optional
        Bounds the gate from above and up on both sides; None, 0 or infinity for no bound.
    up_offset : float
        Added to up after its bound. gpt-oss has "quick_gelu", "interleaved", 7.0 and 1.0.

    Returns
    -------
    y : Tensor
        Like gate; of a packed input with half the size along `dim`.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `layer_norm`.

    Examples
    --------
    >>> import torch
    >>> gated(torch.tensor([-1.0, 2.0]), torch.tensor([3.0, 4.0]), "relu").tolist()
    [0.0, 8.0]
    """
    return _apply("gated", gate, up, kind, layout, dim, bias, alpha, beta, threshold, limit, up_offset)


def _apply(
    function: str,
    gate: Any,
    up: Any,
    kind: str,
    layout: str,
    dim: int,
    bias: Any,
    alpha: float | None = None,
    beta: float | None = None,
    threshold: float | None = None,
    limit: float | None = None,
    up_offset: float = 0.0,
) -> Any:
    check_tensor(function, "gate", gate)
    dim = negative(function, dim, "gate", gate)
    options = (kind, layout, dim, alpha, beta, threshold, limit, up_offset)
    return call(GATED, matched((gate, up, *split_bias(function, bias, up)), 2), options)


def glu(gate: Tensor, up: Tensor | None = None, *, layout: str = "split", dim: int = -1, bias: Any = None) -> Tensor:
    """``sigmoid(gate) * up``; parameters, results and errors are those of `gated`.

    PyTorch's `glu` of one tensor has the gates in the second half: that is ``glu(x2, x1)`` of its halves x1 and x2.
    """
    return _apply("glu", gate, up, "sigmoid", layout, dim, bias)


def swiglu(
    gate: Tensor,
    up: Tensor | None = None,
    *,
    layout: str = "split",
    dim: int = -1,
    bias: Any = None,
    limit: float | None = None,
    up_offset: float = 0.0,
) -> Tensor:
    """``silu(gate) * up``; parameters, results and errors are those of `gated`.

    Examples
    --------
    >>> import torch
    >>> swiglu(torch.tensor([0.0, 0.0, 3.0, 4.0])).tolist()
    [0.0, 0.0]
    """
    return _apply("swiglu", gate, up, "silu", layout, dim, bias, limit=limit, up_offset=up_offset)


def geglu(
    gate: Tensor,
    up: Tensor | None = None,
    *,
    approximate: str = "none",
    layout: str = "split",
    dim: int = -1,
    bias: Any = None,
) -> Tensor:
    """``gelu(gate) * up``; parameters, results and errors are those of `gated`, `approximate` is that of `gelu`."""
    return _apply("geglu", gate, up, gelu_kind("geglu", approximate), layout, dim, bias)


def reglu(gate: Tensor, up: Tensor | None = None, *, layout: str = "split", dim: int = -1, bias: Any = None) -> Tensor:
    """``max(gate, 0) * up``; parameters, results and errors are those of `gated`."""
    return _apply("reglu", gate, up, "relu", layout, dim, bias)
