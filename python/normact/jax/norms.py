# SPDX-License-Identifier: Apache-2.0
"""Layer norm and RMS norm on JAX arrays, differentiable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normact import _core
from normact.jax import inputs
from normact.jax.row_ops import NORM, Options

if TYPE_CHECKING:
    from jax.typing import ArrayLike


def layer_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-5,
    residual: ArrayLike | None = None,
    weight_offset: float = 0.0,
    activation: str | None = None,
    alpha: float | None = None,
) -> Any:
    """Normalise to mean 0 and variance 1 over some axes, then scale and shift.

    With ``s = x``, or ``round(x + residual)``, rounded to the dtype of the residual::

        y = act((s - mean) / sqrt(var + eps) * (weight_offset + weight) + bias)

    Parameters
    ----------
    x : array
        float64, float32, float16 or bfloat16, of any shape.
    weight, bias : array, optional
        Of shape ``x.shape`` over the normalised axes, in x's order; the dtype of x, or float32 beside 16 bits.
    axis : int or tuple of ints
        The axes to normalise over: any of them, in any order. Sharded arrays are worked on where they are if these
        axes are whole on each device.
    eps : float
        Added to the variance; finite and not negative.
    residual : array, optional
        Added to x before the norm; shape of x, and its dtype or float32: a residual stream in float32 beside an x in
        16 bits.
    weight_offset : float
        Added to the weight in float32; 1.0 is Gemma's convention.
    activation : str, optional
        The kind of an activation that y passes through before it is rounded: "gelu", "silu", ...
    alpha : float, optional
        The activation's number, where it has one.

    Returns
    -------
    y : jax.Array
        Shape and dtype of x.
    (y, s) : tuple of jax.Array
        With a residual: the sum too, in the residual's dtype, which is the next residual.

    Raises
    ------
    ValueError
        A shape or value is wrong.
    TypeError
        An argument is no array or has a dtype that is not supported.
    NotImplementedError
        The result is differentiated twice.
    jax.errors.JaxRuntimeError
        The library refuses what can only be seen when the call runs, such as an eps below 0.

    Examples
    --------
    >>> import jax, jax.numpy as jnp
    >>> x = jnp.array([[0.0, 0.0, 4.0, 4.0]])
    >>> layer_norm(x, eps=0.0).tolist()
    [[-1.0, -1.0, 1.0, 1.0]]
    >>> jax.grad(lambda x: layer_norm(x, eps=0.0)[0, 0])(x).tolist()
    [[0.25, -0.25, 0.0, 0.0]]
    """
    options = (axis, eps, weight_offset, activation, alpha)
    return _norm("layer_norm", _core.LAYER, x, residual, weight, bias, *options)


def rms_norm(
    x: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-6,
    residual: ArrayLike | None = None,
    weight_offset: float = 0.0,
    activation: str | None = None,
    alpha: float | None = None,
) -> Any:
    """Normalise to root mean square 1 over some axes, then scale and shift.

    With ``s = x``, or ``round(x + residual)``::

        y = act(s / sqrt(E[s**2] + eps) * (weight_offset + weight) + bias)

    Parameters, results and errors are those of `layer_norm`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> rms_norm(jnp.array([[3.0, 4.0]]), eps=0.5).round(2).tolist()
    [[0.8299999833106995, 1.1100000143051147]]
    """
    options = (axis, eps, weight_offset, activation, alpha)
    return _norm("rms_norm", _core.RMS, x, residual, weight, bias, *options)


def _norm(
    function: str,
    kind: int,
    x: Any,
    residual: Any,
    weight: Any,
    bias: Any,
    axis: int | tuple[int, ...],
    eps: float,
    weight_offset: float,
    activation: str | None,
    alpha: float | None,
) -> Any:
    x = inputs.array(function, "x", x)
    residual = inputs.twin(function, "residual", residual, x, stream=True)
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    axes = tuple(sorted(inputs.negative(function, "axis", each, x) for each in axes))
    if not axes or len(set(axes)) < len(axes):
        raise ValueError(f"{function}: axis is {axis}; expected distinct axes of x, at least one")
    shape = tuple(x.shape[each] for each in axes)
    weight = inputs.parameter(function, "weight", weight, shape, x)
    bias = inputs.parameter(function, "bias", bias, shape, x)
    weight_offset = inputs.number(function, "weight_offset", weight_offset)
    if weight is None and weight_offset:
        raise ValueError(f"{function}: weight_offset is {weight_offset} and weight is None; expected a weight")
    options = Options(
        function,
        kind,
        axes,
        inputs.number(function, "eps", eps),
        weight_offset,
        inputs.activation(function, activation, alpha),
    )
    found = NORM(options, x, residual, weight, bias)
    return found[0] if residual is None else found
