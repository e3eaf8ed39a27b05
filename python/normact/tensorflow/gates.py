# SPDX-License-Identifier: Apache-2.0
"""The gated activations on TensorFlow tensors, differentiable."""

from __future__ import annotations

from typing import Any

from normact import gated_calls
from normact.activation_options import gelu_kind
from normact.tensorflow.call import call
from normact.tensorflow.inputs import optional, public, tensor
from normact.tensorflow.pointwise_ops import GATED


@public
def gated(
    gate: Any,
    up: Any = None,
    kind: str = "silu",
    *,
    layout: str = "split",
    axis: int = -1,
    bias: Any = None,
    alpha: float | None = None,
    beta: float | None = None,
    threshold: float | None = None,
    limit: float | None = None,
    up_offset: float = 0.0,
) -> Any:
    """An activation of one half of the input, times the other half.

    With the biases and bounds that are given::

        g = min(gate + gate_bias, limit)
        u = min(max(up + up_bias, -limit), limit)
        y = act(g) * (u + up_offset)

    Parameters
    ----------
    gate : tf.Tensor
        float64, float32, float16 or bfloat16. Without `up` it holds both, packed along `axis`.
    up : tf.Tensor, optional
        Shape and dtype of gate.
    kind : str
        The activation of the gate, as in `activation`.
    layout : {"split", "interleaved"}
        Of a packed input: gates in the first half and ups in the second, or gates at even and ups at odd places.
    axis : int
        The axis that packed inputs are packed along, and biases run along.
    bias : tf.Tensor or pair of tf.Tensors, optional
        Of a packed input one tensor, packed like `axis`; else ``(gate_bias, up_bias)``, each of shape
        ``(gate.shape[axis],)`` or None. The dtype of gate, or float32.
    alpha, beta, threshold : float, optional
        Of the kind, as in `activation`.
    limit : float, optional
        Bounds the gate from above and up on both sides; None, 0 or infinity for no bound.
    up_offset : float
        Added to up after its bound. gpt-oss has "quick_gelu", "interleaved", 7.0 and 1.0.

    Returns
    -------
    y : tf.Tensor
        Like gate; of a packed input with half the size along `axis`.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `layer_norm`.

    Examples
    --------
    >>> import tensorflow as tf
    >>> gated(tf.constant([-1.0, 2.0]), tf.constant([3.0, 4.0]), "relu").numpy().tolist()
    [0.0, 8.0]
    """
    return _apply("gated", gate, up, kind, layout, axis, bias, (alpha, beta, threshold, limit, up_offset))


_PLAIN = (None, None, None, None, 0.0)  # alpha, beta, threshold, limit, up_offset


def _apply(
    function: str, gate: Any, up: Any, kind: str, layout: str, axis: int, bias: Any, numbers: tuple[Any, ...] = _PLAIN
) -> Any:
    gate_bias, up_bias = gated_calls.split_bias(function, bias, up)
    tensors = (
        tensor(function, "gate", gate),
        optional(function, "up", up),
        optional(function, "bias" if up is None else "gate_bias", gate_bias),
        optional(function, "up_bias", up_bias),
    )
    return call(GATED, tensors, (function, kind, layout, axis, *numbers))


@public
def glu(gate: Any, up: Any = None, *, layout: str = "split", axis: int = -1, bias: Any = None) -> Any:
    """``sigmoid(gate) * up``; parameters, results and errors are those of `gated`."""
    return _apply("glu", gate, up, "sigmoid", layout, axis, bias)


@public
def swiglu(
    gate: Any,
    up: Any = None,
    *,
    layout: str = "split",
    axis: int = -1,
    bias: Any = None,
    limit: float | None = None,
    up_offset: float = 0.0,
) -> Any:
    """``silu(gate) * up``; parameters, results and errors are those of `gated`.

    Examples
    --------
    >>> import tensorflow as tf
    >>> swiglu(tf.constant([0.0, 0.0, 3.0, 4.0])).numpy().tolist()
    [0.0, 0.0]
    """
    return _apply("swiglu", gate, up, "silu", layout, axis, bias, (None, None, None, limit, up_offset))


@public
def geglu(
    gate: Any, up: Any = None, *, approximate: str = "none", layout: str = "split", axis: int = -1, bias: Any = None
) -> Any:
    """``gelu(gate) * up``; parameters, results and errors are those of `gated`, `approximate` is that of `gelu`."""
    return _apply("geglu", gate, up, gelu_kind("geglu", approximate), layout, axis, bias)


@public
def reglu(gate: Any, up: Any = None, *, layout: str = "split", axis: int = -1, bias: Any = None) -> Any:
    """``max(gate, 0) * up``; parameters, results and errors are those of `gated`."""
    return _apply("reglu", gate, up, "relu", layout, axis, bias)
