# SPDX-License-Identifier: Apache-2.0
"""The row norms as JAX operations."""

from __future__ import annotations

from typing import Any, NamedTuple

from normact import _core
from normact.jax.call import Call
from normact.jax.layout import Layout, Result, Tensors
from normact.jax.op import Arrays, Op, build, like, statistic_dtype


class Options(NamedTuple):
    """What a row norm is told beside its tensors. The axes are negative."""

    function: str
    kind: int
    axes: tuple[int, ...]
    eps: float
    weight_offset: float
    act: tuple[int, float, float, float]  # the activation's number, alpha, beta, threshold
    keep: bool = False  # the statistics


def _dims(operands: Tensors, options: Options) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The dimensions of x, of its rows and of its columns."""
    ndim = operands["x"].ndim if hasattr(operands["x"], "ndim") else len(operands["x"].shape)
    dims = tuple(f"d{i}" for i in range(ndim))
    cols = tuple(dims[axis] for axis in sorted(options.axes))
    return dims, tuple(dim for dim in dims if dim not in cols), cols


def _forward_layout(operands: Tensors, options: Options) -> Layout:
    x, (dims, rows, cols) = operands["x"], _dims(operands, options)
    results = {"y": Result(dims, x.dtype)}
    if "residual" in operands:
        results["residual_out"] = Result(dims, operands["residual"].dtype)
    if options.keep and options.kind == _core.LAYER:
        results["mean"] = Result(rows, statistic_dtype(x.dtype))
    if options.keep:
        results["rstd"] = Result(rows, statistic_dtype(x.dtype))
    each = {"x": dims, "residual": dims, "weight": cols, "bias": cols}
    return Layout({name: each[name] for name in operands}, results, frozenset(cols))


def _backward_layout(operands: Tensors, options: Options) -> Layout:
    x, dy, (dims, rows, cols) = operands["x"], operands["dy"], _dims(operands, options)
    results = {"dx": Result(dims, dy.dtype)}
    if x.dtype != dy.dtype:  # a sum in float32, whose addends had two dtypes
        results["daddend"] = Result(dims, x.dtype)
    for name in ("weight", "bias"):
        if name in operands:
            results[f"d{name}"] = Result(cols, statistic_dtype(x.dtype))
    each = {"dy": dims, "x": dims, "weight": cols, "bias": cols, "mean": rows, "rstd": rows, "dresidual": dims}
    return Layout({name: each[name] for name in operands}, results, frozenset(cols))


def _attributes(operands: Tensors, options: Options) -> dict[str, Any]:
    activation, alpha, beta, threshold = options.act
    return {
        "kind": options.kind,
        "axes": options.axes,
        "eps": options.eps,
        "weight_offset": options.weight_offset,
        "activation": activation,
        "alpha": alpha,
        "beta": beta,
        "threshold": threshold,
    }


_FORWARD = Call(
    "norm_forward",
    _forward_layout,
    _attributes,
    leading=frozenset(("x", "residual", "y", "residual_out", "mean", "rstd")),
)
_BACKWARD = Call(
    "norm_backward",
    _backward_layout,
    _attributes,
    leading=frozenset(("dy", "x", "mean", "rstd", "dresidual", "dx", "daddend")),
)


def _forward(tensors: Arrays, options: Options, keep: bool) -> tuple[Arrays, Arrays]:
    """Of x, residual, weight and bias: y, and with a residual the sum."""
    x, residual, weight, bias = tensors
    given = {"x": x, "residual": residual, "weight": weight, "bias": bias}
    found = _FORWARD(given, options._replace(keep=keep))
    total = found.get("residual_out")
    returned = (found["y"],) if residual is None else (found["y"], total)
    return returned, (x if residual is None else total, weight, bias, found.get("mean"), found.get("rstd"))


def _backward(gradients: Arrays, kept: Arrays, options: Options) -> Arrays:
    x, weight, bias, mean, rstd = kept
    has_residual = len(gradients) == 2
    given = {"dy": gradients[0], "x": x, "weight": weight, "bias": bias, "mean": mean, "rstd": rstd}
    found = _BACKWARD(given | {"dresidual": gradients[1] if has_residual else None}, options)
    dx = found["dx"]
    return (
        dx,
        found.get("daddend", dx) if has_residual else None,
        like(found.get("dweight"), weight),
        like(found.get("dbias"), bias),
    )


#: (options, x, residual, weight, bias) -> y, and with a residual the sum.
NORM = build(Op(_forward, _backward))
