# SPDX-License-Identifier: Apache-2.0
"""Layer norm and RMS norm on TensorFlow tensors, differentiable."""

from __future__ import annotations

from typing import Any

from normact.tensorflow.call import call
from normact.tensorflow.inputs import optional, public, tensor
from normact.tensorflow.row_ops import ADD_LAYER_NORM, ADD_RMS_NORM, LAYER_NORM, RMS_NORM


@public
def layer_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-5,
    residual: Any = None,
    weight_offset: float = 0.0,
    activation: str | None = None,
    alpha: float | None = None,
) -> Any:
    """`normact.layer_norm` with gradients: normalise to mean 0 and variance 1 over some axes, then scale and shift.

    With ``s = x``, or ``round(x + residual)``, rounded to the dtype of the residual::

        y = act((s - mean) / sqrt(var + eps) * (weight_offset + weight) + bias)

    Parameters
    ----------
    x : tf.Tensor
        float64, float32, float16 or bfloat16, of any shape. Here as for all tensors a tf.Variable stands for its value,
        and what `tf.convert_to_tensor` takes is converted.
    weight, bias : tf.Tensor, optional
        Of shape ``x.shape`` over the normalised axes, in x's order; the dtype of x, or float32 beside 16 bits.
    axis : int or tuple of ints
        The axes to normalise over: any of them, in any order.
    eps : float
        Added to the variance.
    residual : tf.Tensor, optional
        Shape of x, added to it before the norm; the dtype of x, or float32: a residual stream in float32 beside an x in
        16 bits.
    weight_offset : float
        Added to the weight; 1.0 is Gemma's convention.
    activation : str, optional
        The kind of an activation that y passes through before it is rounded: "gelu", "silu", ...
    alpha : float, optional
        The activation's number, where it has one.

    Returns
    -------
    y : tf.Tensor
        Shape, dtype and device of x.
    (y, s) : tuple of tf.Tensors
        With a residual: the sum too, in the residual's dtype, which is the next residual.

    Raises
    ------
    ValueError
        A shape, device or value is wrong. Inside of tf.function, where shapes may be known only when it runs, such an
        error comes as tf.errors.InvalidArgumentError with the same sentence in it.
    TypeError
        An argument is no tensor or has a dtype that is not supported.
    NotImplementedError
        The result is differentiated twice.

    Examples
    --------
    >>> import tensorflow as tf
    >>> x = tf.Variable([[1.0, 2.0, 3.0]], dtype=tf.float64)
    >>> with tf.GradientTape() as tape:
    ...     first = layer_norm(x, eps=0.0)[0, 0]
    >>> tape.gradient(first, x).numpy().round(4).tolist()
    [[0.2041, -0.4082, 0.2041]]
    """
    name = "layer_norm"
    x, rest = tensor(name, "x", x), (optional(name, "weight", weight), optional(name, "bias", bias))
    options = (axis, eps, weight_offset, activation, alpha)
    if residual is None:
        return call(LAYER_NORM, (x, *rest), options)
    return call(ADD_LAYER_NORM, (x, tensor(name, "residual", residual), *rest), options)


@public
def rms_norm(
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-6,
    residual: Any = None,
    weight_offset: float = 0.0,
    activation: str | None = None,
    alpha: float | None = None,
) -> Any:
    """`normact.rms_norm` with gradients: scale by the inverse of the root of the mean square over some axes.

    With ``s = x``, or ``round(x + residual)``::

        y = act(s / sqrt(E[s**2] + eps) * (weight_offset + weight) + bias)

    Parameters, results and errors are those of `layer_norm`.

    Examples
    --------
    >>> import tensorflow as tf
    >>> rms_norm(tf.constant([3.0, 4.0], tf.float64), eps=0.0).numpy().round(4).tolist()
    [0.8485, 1.1314]
    """
    name = "rms_norm"
    x, rest = tensor(name, "x", x), (optional(name, "weight", weight), optional(name, "bias", bias))
    options = (axis, eps, weight_offset, activation, alpha)
    if residual is None:
        return call(RMS_NORM, (x, *rest), options)
    return call(ADD_RMS_NORM, (x, tensor(name, "residual", residual), *rest), options)
