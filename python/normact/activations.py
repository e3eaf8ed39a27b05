# SPDX-License-Identifier: Apache-2.0
"""The activations, forward and backward, on any framework's arrays.

A kind without options of its own is one line here; its formula is in `activation_docs`.
"""

from __future__ import annotations

from typing import Any, Protocol

from normact.activation_calls import ActivationGrads, backward, forward
from normact.activation_docs import backward_docs, forward_docs


def activation(
    x: Any,
    kind: str,
    *,
    bias: Any = None,
    axis: int = -1,
    alpha: float | None = None,
    beta: float | None = None,
    threshold: float | None = None,
    return_mask: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Apply an activation that is chosen by its name.

    ``activation(x, "silu")`` is ``silu(x)``, and so for every function of this family; their docstrings have the
    formulas.

    Parameters
    ----------
    x : array
        float64, float32, float16 or bfloat16, of any shape and any strides. An array of NumPy, PyTorch, JAX,
        TensorFlow or CuPy, or any other with ``__dlpack__`` (then give `out`). It is not copied.
    kind : str
        The name of an activation, such as "gelu" or "hardswish". The message about a wrong one lists them all.
    bias : array, optional
        Added to x along `axis`, in float32 (float64 to float64): of shape ``(x.shape[axis],)``, and the dtype of x or
        float32.
    axis : int
        The axis of x that the bias runs along; 1 for images in NCHW.
    alpha, beta, threshold : float, optional
        Of `leaky_relu`, `elu` and `softplus`, with their defaults there; other kinds ignore them.
    return_mask : bool
        Return which elements are positive, one bit each, as the backward of relu reads them. Other kinds have no mask.
    out : array or tuple, optional
        Where to write: y, or ``(y, mask)`` with None for what the function shall make itself. y may be x.
    stream : int or stream object, optional
        As in `layer_norm`.

    Returns
    -------
    y : array
        Like x: same framework, device, shape, dtype and, where x is dense, memory layout.
    ActivationOutput
        ``(y, mask)`` instead, if `return_mask` is given. mask is uint8 of shape ``(ceil(x.size / 8),)``: bit ``i % 8``
        of byte ``i // 8`` belongs to element i in row-major order of the indices.

    Raises
    ------
    ValueError
        A kind, shape, device or value is wrong, an output is read-only or overlaps, or a tensor requires grad.
    TypeError
        An argument is no array or has a dtype that is not supported.
    NotImplementedError
        The arguments are right, but this build cannot do that.

    Examples
    --------
    >>> import numpy as np
    >>> activation(np.array([[-1.0, 0.5, 2.0]]), "relu", bias=np.array([2.0, -1.0, 0.0])).tolist()
    [[1.0, 0.0, 2.0]]
    """
    return forward("activation", kind, x, bias, axis, alpha, beta, threshold, return_mask, out, stream)


def activation_backward(
    dy: Any,
    x: Any,
    kind: str,
    *,
    y: Any = None,
    mask: Any = None,
    bias: Any = None,
    axis: int = -1,
    alpha: float | None = None,
    beta: float | None = None,
    threshold: float | None = None,
    out: Any = None,
    stream: Any = None,
) -> ActivationGrads:
    """Gradients of `activation`.

    With ``act`` the activation and ``act'`` its derivative::

        dx    = dy * act'(x + bias)
        dbias = the sum of dx over all axes but `axis`

    Parameters
    ----------
    dy : array
        The gradient of y; shape and dtype of x.
    x : array or None
        The forward's x. None where `y` or `mask` is given: exactly one of the three is.
    kind : str
        The forward's.
    y : array, optional
        The forward's result, from which identity, relu, relu6, leaky_relu, elu (these two for ``alpha >= 0``), sigmoid
        and tanh know their derivative.
    mask : array, optional
        The forward's mask, for relu.
    bias : array, optional
        The forward's. It asks for `dbias` and gives its shape and dtype; its values matter with `x` alone.
    axis, alpha, beta, threshold
        The forward's.
    out : array or tuple, optional
        Where to write: dx, or ``(dx, dbias)`` with None for what the function shall make itself. dx may be dy, x or y.
    stream : int or stream object, optional
        As in `layer_norm`.

    Returns
    -------
    ActivationGrads
        ``(dx, dbias)``; dbias is None without a bias. Its sums are made in a fixed order: the same inputs give the
        same bits.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `activation`.

    Examples
    --------
    >>> import numpy as np
    >>> y, mask = activation(np.array([-1.0, 0.5, 2.0]), "relu", return_mask=True)
    >>> activation_backward(np.array([3.0, 4.0, 5.0]), None, "relu", mask=mask).dx.tolist()
    [0.0, 4.0, 5.0]
    """
    return backward("activation_backward", kind, dy, x, y, mask, bias, axis, alpha, beta, threshold, out, stream)


# ---- One function per kind and direction ----


class _Forward(Protocol):
    def __call__(self, x: Any, *, bias: Any = None, axis: int = -1, out: Any = None, stream: Any = None) -> Any: ...


class _Backward(Protocol):
    def __call__(
        self, dy: Any, x: Any, *, bias: Any = None, axis: int = -1, out: Any = None, stream: Any = None
    ) -> ActivationGrads: ...


class _BackwardFromOutput(Protocol):
    def __call__(
        self,
        dy: Any,
        x: Any = None,
        *,
        y: Any = None,
        bias: Any = None,
        axis: int = -1,
        out: Any = None,
        stream: Any = None,
    ) -> ActivationGrads: ...


def _forward(kind: str) -> _Forward:
    @forward_docs(kind)
    def function(x: Any, *, bias: Any = None, axis: int = -1, out: Any = None, stream: Any = None) -> Any:
        return forward(kind, kind, x, bias, axis, None, None, None, False, out, stream)

    function.__name__ = function.__qualname__ = kind
    return function


def _backward(kind: str) -> _Backward:
    name = f"{kind}_backward"

    @backward_docs(kind)
    def function(
        dy: Any, x: Any, *, bias: Any = None, axis: int = -1, out: Any = None, stream: Any = None
    ) -> ActivationGrads:
        return backward(name, kind, dy, x, None, None, bias, axis, None, None, None, out, stream)

    function.__name__ = function.__qualname__ = name
    return function


def _backward_from_output(kind: str) -> _BackwardFromOutput:
    name = f"{kind}_backward"

    @backward_docs(kind, output=True)
    def function(
        dy: Any,
        x: Any = None,
        *,
        y: Any = None,
        bias: Any = None,
        axis: int = -1,
        out: Any = None,
        stream: Any = None,
    ) -> ActivationGrads:
        return backward(name, kind, dy, x, y, None, bias, axis, None, None, None, out, stream)

    function.__name__ = function.__qualname__ = name
    return function


identity, identity_backward = _forward("identity"), _backward_from_output("identity")
relu6, relu6_backward = _forward("relu6"), _backward_from_output("relu6")
squared_relu, squared_relu_backward = _forward("squared_relu"), _backward("squared_relu")
gelu_tanh, gelu_tanh_backward = _forward("gelu_tanh"), _backward("gelu_tanh")
quick_gelu, quick_gelu_backward = _forward("quick_gelu"), _backward("quick_gelu")
silu, silu_backward = _forward("silu"), _backward("silu")
sigmoid, sigmoid_backward = _forward("sigmoid"), _backward_from_output("sigmoid")
tanh, tanh_backward = _forward("tanh"), _backward_from_output("tanh")
mish, mish_backward = _forward("mish"), _backward("mish")
hardswish, hardswish_backward = _forward("hardswish"), _backward("hardswish")
hardsigmoid, hardsigmoid_backward = _forward("hardsigmoid"), _backward("hardsigmoid")
