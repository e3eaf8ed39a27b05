# SPDX-License-Identifier: Apache-2.0
"""Layer norm and RMS norm, forward and backward, with an activation or without, on any framework's arrays."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from normact import _core
from normact.norm_calls import FORWARDS, NormGrads, backward, forward

if TYPE_CHECKING:
    from collections.abc import Iterator

_layer_norm, _rms_norm = FORWARDS[_core.LAYER], FORWARDS[_core.RMS]


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
    return_stats: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Normalise to mean 0 and variance 1 over some axes, then scale and shift.

    With ``s = x``, or ``round(x + residual)``, rounded to the dtype of the residual::

        mean = E[s]
        rstd = 1 / sqrt(E[(s - mean)**2] + eps)
        y    = act((s - mean) * rstd * (weight_offset + weight) + bias)

    Parameters
    ----------
    x : array
        float64, float32, float16 or bfloat16, of any shape and any strides. An array of NumPy, PyTorch, JAX,
        TensorFlow or CuPy, or any other with ``__dlpack__`` (then give `out`). It is not copied.
    weight, bias : array, optional
        Of shape ``x.shape`` over the normalised axes, in x's order; the dtype of x, or float32 beside 16 bits.
    axis : int or tuple of ints
        The axes to normalise over: any of them, in any order; 1 normalises the channels of every pixel of an image.
    eps : float
        Added to the variance; finite and not negative.
    residual : array, optional
        Added to x before the norm; shape of x, and its dtype, or float32 beside an x in 16 bits: a residual stream in
        float32, as under autocast. The sum, in the residual's dtype, is what is normalised and what is returned.
    weight_offset : float
        Added to the weight in float32; 1.0 is Gemma's convention.
    activation : str, optional
        The kind of an activation that y passes through before it is rounded, as for `activation`: "gelu", "silu", ...
    alpha : float, optional
        The activation's number, where it has one; default is that of its own function.
    return_stats : bool
        Return `mean` and `rstd` too, as the backward needs them.
    out : array or tuple, optional
        Where to write: y, or ``(y, residual, mean, rstd)`` with None for what the function shall make itself. An
        output may be the very array that is an input, as in ``out=x``.
    stream : int or stream object, optional
        The CUDA stream; default is the current stream of the framework of x. For PyTorch and CuPy it becomes the
        current stream for the time of the call.

    Returns
    -------
    y : array
        Like x: same framework, device, shape, dtype and, where x is dense, memory layout.
    NormOutput
        ``(y, residual, mean, rstd)`` instead, if `residual` or `return_stats` is given. The statistics are float32
        (float64 for float64), of the shape of x without the normalised axes, and in memory in the order that these
        have in x (row-major where x is expanded or reversed, and for JAX and TensorFlow).

    Raises
    ------
    ValueError
        A shape, device or value is wrong, an output is read-only or overlaps, or a tensor requires grad (this function
        records no gradient).
    TypeError
        An argument is no array or has a dtype that is not supported.
    NotImplementedError
        The arguments are right, but this build cannot do that.

    References
    ----------
    Ba, Kiros, Hinton, "Layer Normalization", 2016, arXiv:1607.06450.

    Examples
    --------
    >>> import numpy as np
    >>> layer_norm(np.array([[1.0, 2.0, 3.0], [1.0, 1.0, 4.0]]), eps=0.0).round(4).tolist()
    [[-1.2247, 0.0, 1.2247], [-0.7071, -0.7071, 1.4142]]
    """
    if activation is None and stream is None:  # by the shortest way
        return _layer_norm(x, weight, bias, residual, axis, eps, weight_offset, None, out, return_stats, None)
    return forward(
        _core.LAYER, x, weight, bias, axis, eps, residual, weight_offset, activation, alpha, return_stats, out, stream
    )


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
    return_stats: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Normalise to root mean square 1 over some axes, then scale and shift.

    With ``s = x``, or ``round(x + residual)``, rounded to the dtype of the residual::

        rstd = 1 / sqrt(E[s**2] + eps)
        y    = act(s * rstd * (weight_offset + weight) + bias)

    Parameters, results and errors are those of `layer_norm`; there is no mean, so `NormOutput.mean` is None.

    References
    ----------
    Zhang, Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467.

    Examples
    --------
    >>> import numpy as np
    >>> rms_norm(np.array([[3.0, 4.0]]), eps=0.0).round(4).tolist()
    [[0.8485, 1.1314]]
    """
    if activation is None and stream is None:  # by the shortest way
        return _rms_norm(x, weight, bias, residual, axis, eps, weight_offset, None, out, return_stats, None)
    return forward(
        _core.RMS, x, weight, bias, axis, eps, residual, weight_offset, activation, alpha, return_stats, out, stream
    )


def layer_norm_backward(
    dy: Any,
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    mean: Any,
    rstd: Any,
    axis: int | tuple[int, ...] = -1,
    dresidual: Any = None,
    weight_offset: float = 0.0,
    activation: str | None = None,
    alpha: float | None = None,
    out: Any = None,
    stream: Any = None,
) -> NormGrads:
    """Gradients of `layer_norm`.

    With ``xhat = (x - mean) * rstd``, ``dh = dy * act'(h)``, where ``y = act(h)``, and
    ``g = dh * (weight_offset + weight)``::

        dx      = rstd * (g - E[g] - xhat * E[g * xhat]) + dresidual
        dweight = sum over rows of dh * xhat
        dbias   = sum over rows of dh

    Parameters
    ----------
    dy : array
        The gradient of y; shape of x, and its dtype, or 16 bits beside a float32 sum of the forward.
    x : array
        What was normalised: the forward's x, or its `residual` output if it had a residual.
    weight, bias : array, optional
        Those of the forward; the dtype of dy, or float32. `bias` asks for `dbias` and gives its shape and dtype;
        without an activation its values do not matter.
    mean, rstd : array
        The forward's statistics.
    axis, weight_offset, activation, alpha
        Those of the forward. With an activation h is computed again.
    dresidual : array, optional
        The gradient that reached the forward's `residual` output, in the dtype of x; added to `dx` in the same pass.
    out : array or tuple, optional
        Where to write: dx, or ``(dx, dweight, dbias, daddend)`` with None for what the function shall make itself. dx
        may be dy, x or dresidual, daddend x or dresidual.
    stream : int or stream object, optional
        As in `layer_norm`.

    Returns
    -------
    NormGrads
        ``(dx, dweight, dbias, daddend)``. dx, in the dtype of dy, is the gradient of both x and the residual, unless
        these have two dtypes: then daddend, in float32, is the residual's, of which dx is the rounded form. Else
        daddend is None; dweight is None without a weight, dbias without a bias. The sums over rows are made in a fixed
        order: the same inputs give the same bits.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `layer_norm`.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[1.0, 2.0, 3.0]])
    >>> y, _, mean, rstd = layer_norm(x, eps=0.0, return_stats=True)
    >>> layer_norm_backward(np.array([[1.0, 0.0, 0.0]]), x, mean=mean, rstd=rstd).dx.round(4).tolist()
    [[0.2041, -0.4082, 0.2041]]
    """
    return backward(
        _core.LAYER, dy, x, weight, bias, mean, rstd, axis, dresidual, weight_offset, activation, alpha, out, stream
    )


def rms_norm_backward(
    dy: Any,
    x: Any,
    weight: Any = None,
    bias: Any = None,
    *,
    rstd: Any,
    axis: int | tuple[int, ...] = -1,
    dresidual: Any = None,
    weight_offset: float = 0.0,
    activation: str | None = None,
    alpha: float | None = None,
    out: Any = None,
    stream: Any = None,
) -> NormGrads:
    """Gradients of `rms_norm`.

    With ``xhat = x * rstd``, ``dh = dy * act'(h)``, where ``y = act(h)``, and ``g = dh * (weight_offset + weight)``::

        dx      = rstd * (g - xhat * E[g * xhat]) + dresidual
        dweight = sum over rows of dh * xhat
        dbias   = sum over rows of dh

    Parameters, results and errors are those of `layer_norm_backward`, without the mean.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[3.0, 4.0]])
    >>> rstd = rms_norm(x, eps=0.0, return_stats=True).rstd
    >>> rms_norm_backward(np.array([[1.0, 0.0]]), x, rstd=rstd).dx.round(4).tolist()
    [[0.181, -0.1358]]
    """
    return backward(
        _core.RMS, dy, x, weight, bias, None, rstd, axis, dresidual, weight_offset, activation, alpha, out, stream
    )


@contextlib.contextmanager
def row_variant(name: str) -> Iterator[None]:
    """Force a CUDA row kernel for the calls of this thread, for tests and measurements.

    Parameters
    ----------
    name : {"auto", "warp", "block", "cluster", "image", "tile", "stream"}
        A kernel that cannot serve a problem makes the call raise NotImplementedError; it is never replaced silently.

    Examples
    --------
    >>> import numpy as np
    >>> with row_variant("auto"):
    ...     y = rms_norm(np.ones((2, 3), np.float32))
    """
    if name not in _core.ROW_VARIANTS:
        raise ValueError(f"row_variant: name is {name!r}; expected one of {', '.join(_core.ROW_VARIANTS)}")
    previous = _core.set_row_variant(_core.ROW_VARIANTS[name])
    try:
        yield
    finally:
        _core.set_row_variant(previous)
