# SPDX-License-Identifier: Apache-2.0
"""The gated activations on JAX arrays, differentiable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normact.activation_options import gelu_kind
from normact.gated_calls import layout_number, split_bias
from normact.jax import inputs
from normact.jax.pointwise_ops import GATED, GatedOptions

if TYPE_CHECKING:
    from jax.typing import ArrayLike


def gated(
    gate: ArrayLike,
    up: ArrayLike | None = None,
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
    """Multiply an activation of one half of the input with the other half.

    With the biases and bounds that are given::

        g = min(gate + gate_bias, limit)
        u = min(max(up + up_bias, -limit), limit)
        y = act(g) * (u + up_offset)

    Parameters
    ----------
    gate : array
        float64, float32, float16 or bfloat16, of any shape. Without `up` it holds both, packed along `axis`.
    up : array, optional
        Shape and dtype of gate.
    kind : str
        The activation of the gate, as in `activation`.
    layout : {"split", "interleaved"}
        Of a packed input: gates in the first half and ups in the second, or gates at even and ups at odd places.
    axis : int
        The axis that packed inputs are packed along, and biases run along. A packed one must be whole on each device.
    bias : array or pair of arrays, optional
        Of a packed input one array, packed like `axis`; else ``(gate_bias, up_bias)``, each of shape
        ``(gate.shape[axis],)`` or None. The dtype of gate, or float32.
    alpha, beta, threshold : float, optional
        Of the kind, as in `activation`.
    limit : float, optional
        Bounds the gate from above and up on both sides; None, 0 or infinity for no bound.
    up_offset : float
        Added to up after its bound. gpt-oss has "quick_gelu", "interleaved", 7.0 and 1.0.

    Returns
    -------
    y : jax.Array
        Shape and dtype of gate; of a packed input half the size along `axis`.

    Raises
    ------
    ValueError, TypeError, NotImplementedError, jax.errors.JaxRuntimeError
        As in `layer_norm`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> gated(jnp.array([-1.0, 2.0]), jnp.array([3.0, 4.0]), "relu").tolist()
    [0.0, 8.0]
    """
    return _apply("gated", gate, up, kind, layout, axis, bias, alpha, beta, threshold, limit, up_offset)


def _apply(
    function: str,
    gate: Any,
    up: Any,
    kind: str,
    layout: str,
    axis: int,
    bias: Any,
    alpha: float | None = None,
    beta: float | None = None,
    threshold: float | None = None,
    limit: float | None = None,
    up_offset: float = 0.0,
) -> Any:
    gate = inputs.array(function, "gate", gate)
    up = inputs.twin(function, "up", up, gate, "gate")
    axis = inputs.negative(function, "axis", axis, gate, "gate")
    number = layout_number(function, layout, up)
    if up is None and gate.shape[axis] % 2:
        raise ValueError(f"{function}: gate has size {gate.shape[axis]} along axis {axis}; expected an even one")
    options = GatedOptions(
        function,
        inputs.activation(function, kind, alpha, beta, threshold, argument="kind"),
        number,
        axis,
        0.0 if limit is None else inputs.number(function, "limit", limit),
        inputs.number(function, "up_offset", up_offset),
    )
    return GATED(options, gate, up, *_biases(function, bias, gate, up, axis))[0]


def _biases(function: str, bias: Any, gate: Any, up: Any, axis: int) -> tuple[Any, Any]:
    names = ("bias" if up is None else "gate_bias", "up_bias")
    found = zip(names, split_bias(function, bias, up))
    first, second = (inputs.parameter(function, name, each, (gate.shape[axis],), gate) for name, each in found)
    return first, second


def glu(
    gate: ArrayLike, up: ArrayLike | None = None, *, layout: str = "split", axis: int = -1, bias: Any = None
) -> Any:
    """``sigmoid(gate) * up``; parameters, results and errors are those of `gated`.

    `jax.nn.glu` of one array has the gates in the second half: that is ``glu(x2, x1)`` of its halves x1 and x2.
    """
    return _apply("glu", gate, up, "sigmoid", layout, axis, bias)


def swiglu(
    gate: ArrayLike,
    up: ArrayLike | None = None,
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
    >>> import jax.numpy as jnp
    >>> swiglu(jnp.array([0.0, 0.0, 3.0, 4.0])).tolist()
    [0.0, 0.0]
    """
    return _apply("swiglu", gate, up, "silu", layout, axis, bias, limit=limit, up_offset=up_offset)


def geglu(
    gate: ArrayLike,
    up: ArrayLike | None = None,
    *,
    approximate: str = "none",
    layout: str = "split",
    axis: int = -1,
    bias: Any = None,
) -> Any:
    """``gelu(gate) * up``, with ``approximate="tanh"`` the form of Gemma and T5 1.1.

    Parameters, results and errors are those of `gated`.
    """
    return _apply("geglu", gate, up, gelu_kind("geglu", approximate), layout, axis, bias)


def reglu(
    gate: ArrayLike, up: ArrayLike | None = None, *, layout: str = "split", axis: int = -1, bias: Any = None
) -> Any:
    """``max(gate, 0) * up``; parameters, results and errors are those of `gated`."""
    return _apply("reglu", gate, up, "relu", layout, axis, bias)
