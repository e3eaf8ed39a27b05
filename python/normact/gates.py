# SPDX-License-Identifier: Apache-2.0
"""Gated activations, forward and backward, on any framework's arrays."""

from __future__ import annotations

from typing import Any

from normact.activation_options import gelu_kind
from normact.gated_calls import backward, forward

_PLAIN = (None, None, None, None, 0.0)  # alpha, beta, threshold, limit, up_offset


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
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Multiply an activation of one half of the input with the other half.

    With the biases and bounds that are given::

        g = min(gate + gate_bias, limit)
        u = min(max(up + up_bias, -limit), limit)
        y = act(g) * (u + up_offset)

    Parameters
    ----------
    gate : array
        float64, float32, float16 or bfloat16, of any shape and any strides. Without `up` it holds both, packed along
        `axis`.
    up : array, optional
        Shape and dtype of gate; its own strides.
    kind : str
        The activation of the gate, as in `activation`.
    layout : {"split", "interleaved"}
        How a packed input lies along `axis`: the gates in the first half and the ups in the second, or gates at even
        and ups at odd places. Without meaning where `up` is given.
    axis : int
        The axis that biases run along, and packed inputs are packed along.
    bias : array or pair of arrays, optional
        Of a packed input one array, packed like `axis`; else ``(gate_bias, up_bias)``, each of shape
        ``(gate.shape[axis],)`` or None. The dtype of gate, or float32. Added in float32 (float64 to float64).
    alpha, beta, threshold : float, optional
        Of the kind, as in `activation`.
    limit : float, optional
        Bounds the gate from above and up on both sides; None, 0 or infinity for no bound. gpt-oss is
        ``gated(x, None, "quick_gelu", layout="interleaved", limit=7.0, up_offset=1.0)``.
    up_offset : float
        Added to up after its bound.
    out : array, optional
        Where to write y. It may be `gate` or `up` where these are separate.
    stream : int or stream object, optional
        As in `layer_norm`.

    Returns
    -------
    y : array
        Like gate: same framework, device, dtype, and its dimensions in the same order in memory. Of the shape of `gate`
        and `up`; of a packed input with half the size along `axis`.

    Raises
    ------
    ValueError
        A kind, layout, shape, device or value is wrong, an output is read-only or overlaps, or a tensor requires grad.
    TypeError
        An argument is no array or has a dtype that is not supported.
    NotImplementedError
        The arguments are right, but this build cannot do that.

    References
    ----------
    Dauphin, Fan, Auli, Grangier, "Language Modeling with Gated Convolutional Networks", 2017, arXiv:1612.08083.
    Shazeer, "GLU Variants Improve Transformer", 2020, arXiv:2002.05202.

    Examples
    --------
    >>> import numpy as np
    >>> gated(np.array([-1.0, 2.0]), np.array([3.0, 4.0]), "relu").tolist()
    [0.0, 8.0]
    >>> gated(np.array([-1.0, 3.0, 2.0, 4.0]), kind="relu", layout="interleaved").tolist()
    [0.0, 8.0]
    """
    return forward("gated", gate, up, kind, layout, axis, bias, alpha, beta, threshold, limit, up_offset, out, stream)


def gated_backward(
    dy: Any,
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
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradients of `gated`, both in one pass.

    With g and u as there, and ``act'`` the derivative of the activation::

        dgate = dy * (u + up_offset) * act'(g), 0 where gate + gate_bias > limit
        dup   = dy * act(g),                    0 where abs(up + up_bias) > limit

    and the gradients of the biases are their sums over all axes but `axis`.

    Parameters
    ----------
    dy : array
        The gradient of y, of its shape and dtype.
    gate, up, kind, layout, axis, bias, alpha, beta, threshold, limit, up_offset
        The forward's.
    out : array or tuple, optional
        Where to write: dgate, or ``(dgate, dup, dgate_bias, dup_bias)``, and of a packed input dx, or ``(dx, dbias)``;
        None for what the function shall make itself. dgate and dup may be dy, gate or up, dx may be gate.
    stream : int or stream object, optional
        As in `layer_norm`.

    Returns
    -------
    GatedGrads
        ``(dgate, dup, dgate_bias, dup_bias)``; None for a bias that is not there. The sums are made in a fixed order:
        the same inputs give the same bits.
    ActivationGrads
        ``(dx, dbias)`` instead for a packed input, packed in the same way.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `gated`.

    Examples
    --------
    >>> import numpy as np
    >>> dgate, dup, _, _ = gated_backward(np.array([1.0, 5.0]), np.array([-1.0, 2.0]), np.array([3.0, 4.0]), "relu")
    >>> dgate.tolist(), dup.tolist()
    ([0.0, 20.0], [0.0, 10.0])
    """
    return backward(
        "gated_backward", dy, gate, up, kind, layout, axis, bias, alpha, beta, threshold, limit, up_offset, out, stream
    )


def glu(
    gate: Any,
    up: Any = None,
    *,
    layout: str = "split",
    axis: int = -1,
    bias: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gated linear unit: ``sigmoid(gate) * up``.

    Parameters, results and errors are those of `gated`. PyTorch's `glu` of one tensor has the gates in the second half:
    that is ``glu(x2, x1)`` of its halves x1 and x2.

    References
    ----------
    Dauphin, Fan, Auli, Grangier, "Language Modeling with Gated Convolutional Networks", 2017, arXiv:1612.08083.

    Examples
    --------
    >>> import numpy as np
    >>> glu(np.array([0.0, 2.0]), np.array([3.0, 4.0])).round(4).tolist()
    [1.5, 3.5232]
    """
    return forward("glu", gate, up, "sigmoid", layout, axis, bias, *_PLAIN, out, stream)


def glu_backward(
    dy: Any,
    gate: Any,
    up: Any = None,
    *,
    layout: str = "split",
    axis: int = -1,
    bias: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradients of `glu`; parameters, results and errors are those of `gated_backward`.

    Examples
    --------
    >>> import numpy as np
    >>> glu_backward(np.array([1.0]), np.array([2.0]), np.array([4.0])).dgate.round(4).tolist()
    [0.42]
    """
    return backward("glu_backward", dy, gate, up, "sigmoid", layout, axis, bias, *_PLAIN, out, stream)


def swiglu(
    gate: Any,
    up: Any = None,
    *,
    layout: str = "split",
    axis: int = -1,
    bias: Any = None,
    limit: float | None = None,
    up_offset: float = 0.0,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gated linear unit with `silu`: ``silu(gate) * up``, the form of Llama, Qwen, Mistral and DeepSeek.

    Parameters, results and errors are those of `gated`.

    References
    ----------
    Shazeer, "GLU Variants Improve Transformer", 2020, arXiv:2002.05202.

    Examples
    --------
    >>> import numpy as np
    >>> swiglu(np.array([-1.0, 2.0]), np.array([3.0, 4.0])).round(4).tolist()
    [-0.8068, 7.0464]
    """
    return forward("swiglu", gate, up, "silu", layout, axis, bias, None, None, None, limit, up_offset, out, stream)


def swiglu_backward(
    dy: Any,
    gate: Any,
    up: Any = None,
    *,
    layout: str = "split",
    axis: int = -1,
    bias: Any = None,
    limit: float | None = None,
    up_offset: float = 0.0,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradients of `swiglu`; parameters, results and errors are those of `gated_backward`.

    Examples
    --------
    >>> import numpy as np
    >>> swiglu_backward(np.array([1.0]), np.array([2.0, 4.0])).dx.round(4).tolist()
    [4.3631, 1.7616]
    """
    name = "swiglu_backward"
    return backward(name, dy, gate, up, "silu", layout, axis, bias, None, None, None, limit, up_offset, out, stream)


def geglu(
    gate: Any,
    up: Any = None,
    *,
    approximate: str = "none",
    layout: str = "split",
    axis: int = -1,
    bias: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gated linear unit with `gelu`: ``gelu(gate) * up``, with ``approximate="tanh"`` the form of Gemma and T5 1.1.

    Parameters, results and errors are those of `gated`; `approximate` is that of `gelu`.

    References
    ----------
    Shazeer, "GLU Variants Improve Transformer", 2020, arXiv:2002.05202.

    Examples
    --------
    >>> import numpy as np
    >>> geglu(np.array([-1.0, 2.0]), np.array([3.0, 4.0])).round(4).tolist()
    [-0.476, 7.818]
    """
    kind = gelu_kind("geglu", approximate)
    return forward("geglu", gate, up, kind, layout, axis, bias, *_PLAIN, out, stream)


def geglu_backward(
    dy: Any,
    gate: Any,
    up: Any = None,
    *,
    approximate: str = "none",
    layout: str = "split",
    axis: int = -1,
    bias: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradients of `geglu`; parameters, results and errors are those of `gated_backward`.

    Examples
    --------
    >>> import numpy as np
    >>> geglu_backward(np.array([1.0]), np.array([2.0]), np.array([4.0])).dgate.round(4).tolist()
    [4.3409]
    """
    kind = gelu_kind("geglu_backward", approximate)
    return backward("geglu_backward", dy, gate, up, kind, layout, axis, bias, *_PLAIN, out, stream)


def reglu(
    gate: Any,
    up: Any = None,
    *,
    layout: str = "split",
    axis: int = -1,
    bias: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gated linear unit with `relu`: ``max(gate, 0) * up``.

    Parameters, results and errors are those of `gated`.

    References
    ----------
    Shazeer, "GLU Variants Improve Transformer", 2020, arXiv:2002.05202.

    Examples
    --------
    >>> import numpy as np
    >>> reglu(np.array([-1.0, 2.0]), np.array([3.0, 4.0])).tolist()
    [0.0, 8.0]
    """
    return forward("reglu", gate, up, "relu", layout, axis, bias, *_PLAIN, out, stream)


def reglu_backward(
    dy: Any,
    gate: Any,
    up: Any = None,
    *,
    layout: str = "split",
    axis: int = -1,
    bias: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradients of `reglu`; parameters, results and errors are those of `gated_backward`.

    Examples
    --------
    >>> import numpy as np
    >>> reglu_backward(np.array([1.0]), np.array([2.0]), np.array([4.0])).dgate.tolist()
    [4.0]
    """
    return backward("reglu_backward", dy, gate, up, "relu", layout, axis, bias, *_PLAIN, out, stream)
