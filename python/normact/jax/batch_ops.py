# SPDX-License-Identifier: Apache-2.0
"""Batch norm as a JAX operation: in one call, or in parts where devices have different parts of the batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from normact.jax.call import Call
from normact.jax.layout import Layout, Result, Tensors
from normact.jax.op import Arrays, Op, build, like, statistic_dtype


class Options(NamedTuple):
    """What a batch norm is told beside its tensors. The axis is negative.

    `axes` are mapped axes along which the batch is divided. `daddend` asks for it.
    """

    function: str
    training: bool
    channel_axis: int
    eps: float
    momentum: float
    act: tuple[int, float, float, float]
    axes: tuple[str, ...] = ()
    keep: bool = False  # the statistics
    daddend: bool = False


def _attributes(operands: Tensors, options: Options) -> dict[str, Any]:
    return {
        "channel_axis": options.channel_axis,
        "training": int(options.training),
        "eps": options.eps,
        "momentum": options.momentum,
        **dict(zip(("activation", "alpha", "beta", "threshold"), options.act)),
    }


_LIKE_X = frozenset(("x", "dy", "y", "addend"))


def _layout(operands: Tensors, results: dict[str, str], options: Options, joint: bool = False) -> Layout:
    """Devices may have different channels, and also different parts of the batch.

    `results` says of each whether it is like x ("x"), a value for each channel ("channel"), or some rows of these.
    """
    x = operands["x"]
    dims = tuple(f"d{i}" for i in range(len(x.shape)))
    channel, wide = dims[options.channel_axis], statistic_dtype(x.dtype)
    kinds = {
        "x": Result(dims, x.dtype),
        "channel": Result((channel,), wide),
        "moments": Result(("three", channel), wide),
        "sums": Result(("two", channel), wide),
    }

    def dims_of(name: str) -> tuple[str, ...]:
        kind = "x" if name in _LIKE_X else "sums" if name == "sums" else "channel"
        return kinds[kind].dims

    sizes = {"three": 3} if "moments" in results else {"two": 2} if "sums" in results else {}
    whole = frozenset(("two",) if "sums" in operands else sizes)
    found = {name: kinds[kind] for name, kind in results.items()}
    talking = frozenset(dims) - {channel} if joint else frozenset()
    return Layout({name: dims_of(name) for name in operands}, found, whole, talking, sizes)


# ---- The parts ----


def _merge_layout(operands: Tensors, options: Options) -> Layout:
    channel = Result(("c",), operands["moments"].dtype)
    results = {name: channel for name in ("running_mean", "running_var") if name in operands}
    dims = {name: ("parts", "three", "c") if name == "moments" else ("c",) for name in operands}
    return Layout(dims, results | {"mean": channel, "rstd": channel}, frozenset(("parts", "three")))


def _input_gradient_layout(operands: Tensors, options: Options) -> Layout:
    return _layout(operands, {"dx": "x"} | ({"daddend": "x"} if options.daddend else {}), options)


_STATES = ("running_mean", "running_var")
_STATISTICS = Call(
    "batch_norm_statistics", lambda operands, options: _layout(operands, {"moments": "moments"}, options), _attributes
)
_MERGE = Call("batch_norm_merge", _merge_layout, _attributes, states=_STATES)
_APPLY = Call("batch_norm_apply", lambda operands, options: _layout(operands, {"y": "x"}, options), _attributes)
_REDUCE = Call("batch_norm_reduce", lambda operands, options: _layout(operands, {"sums": "sums"}, options), _attributes)
_INPUT_GRADIENT = Call("batch_norm_input_gradient", _input_gradient_layout, _attributes)


def _gathered(moments: Any, axes: tuple[str, ...]) -> Any:
    """The moments of all devices, in their order, as one array that is the same on all of them."""
    places = jnp.zeros((lax.psum(1, axes), *moments.shape), moments.dtype)
    return lax.psum(places.at[lax.axis_index(axes)].set(moments), axes)


def _forward_in_parts(operands: Tensors, options: Options, axes: tuple[str, ...]) -> Tensors:
    """All that a forward may be asked for, and the number of elements of a channel over all devices."""
    moments = _gathered(_STATISTICS({"x": operands["x"]}, options)["moments"], axes)
    states = {name: operands.get(name) for name in _STATES}
    merged = _MERGE({"moments": moments, **states}, options)
    given = {name: operands.get(name) for name in ("x", "weight", "bias", "addend")}
    given |= {"mean": merged["mean"], "rstd": merged["rstd"]}
    return merged | _APPLY(given, options) | {"count": moments[:, 2].sum(0)}


def _backward_in_parts(operands: Tensors, options: Options, axes: tuple[str, ...], count: Any) -> Tensors:
    """The gradients; those of weight and bias are of this device's part alone."""
    sums = _REDUCE(operands, options)["sums"]
    found = _INPUT_GRADIENT(operands | {"sums": lax.psum(sums, axes), "count": count}, options)
    return found | {"dweight": sums[0], "dbias": sums[1]}


# ---- In one call ----


def _forward_layout(operands: Tensors, options: Options) -> Layout:
    results = {"y": "x"}
    if options.training and "running_mean" in operands:
        results |= {"running_mean": "channel", "running_var": "channel"}
    if options.keep:
        results |= {"mean": "channel", "rstd": "channel"}
    return _layout(operands, results, options, joint=True)


def _backward_layout(operands: Tensors, options: Options) -> Layout:
    results = {"dx": "x"} | {f"d{name}": "channel" for name in ("weight", "bias") if name in operands}
    results |= {"daddend": "x"} if options.daddend else {}
    return _layout(operands, results, options, joint=options.training)


def _backward_across(operands: Tensors, options: Options, axes: tuple[str, ...]) -> Tensors:
    """The whole gradients, where arrays of one call are divided along axes of a mesh, evenly."""
    x = operands["x"]
    each = x.size // x.shape[options.channel_axis]
    count = jnp.full((), each * lax.psum(1, axes), statistic_dtype(x.dtype))
    found = _backward_in_parts(operands, options, axes, count)
    return {name: lax.psum(array, axes) if name in ("dweight", "dbias") else array for name, array in found.items()}


def _forward_across(operands: Tensors, options: Options, axes: tuple[str, ...]) -> Tensors:
    return _forward_in_parts(operands, options, axes) if options.training else _FORWARD(operands, options)


_FORWARD = Call("batch_norm_forward", _forward_layout, _attributes, states=_STATES, across=_forward_across)
_BACKWARD = Call("batch_norm_backward", _backward_layout, _attributes, across=_backward_across)


# ---- The operation ----


def _forward(tensors: Arrays, options: Options, keep: bool) -> tuple[Arrays, Arrays]:
    """Of x, weight, bias, addend and the running statistics: y and the new running statistics, or None for each."""
    x, weight, bias, addend, running_mean, running_var = tensors
    options = options._replace(keep=keep)
    given = {"x": x, "weight": weight, "bias": bias, "addend": addend}
    given |= {"running_mean": running_mean, "running_var": running_var}
    given = {name: tensor for name, tensor in given.items() if tensor is not None}
    found = _forward_in_parts(given, options, options.axes) if options.axes else _FORWARD(given, options)
    new = (found.get("running_mean"), found.get("running_var")) if options.training else (None, None)
    # h is computed again from all of these; without an activation bias and addend only say what gradients there are.
    kept = (x, weight, bias, addend, found.get("mean"), found.get("rstd"), found.get("count"))
    return (found["y"], *new), kept


def _backward(gradients: Arrays, kept: Arrays, options: Options) -> Arrays:
    x, weight, bias, addend, mean, rstd, count = kept
    given = {"dy": gradients[0], "x": x, "weight": weight, "bias": bias, "addend": addend, "mean": mean, "rstd": rstd}
    given = {name: tensor for name, tensor in given.items() if tensor is not None}
    options = options._replace(daddend=addend is not None)
    if options.axes:
        found = _backward_in_parts(given, options, options.axes, count)
    else:
        found = _BACKWARD(given, options)
    dweight, dbias = like(found.get("dweight"), weight), like(found.get("dbias"), bias)
    return found["dx"], dweight, dbias, found.get("daddend"), None, None


#: (options, x, weight, bias, addend, running_mean, running_var) -> y and the new running statistics, or None.
BATCH_NORM = build(Op(_forward, _backward, states=2, over_axes=lambda options: bool(options.axes)))
