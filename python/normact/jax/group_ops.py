# SPDX-License-Identifier: Apache-2.0
"""Group norm, and instance norm with running statistics, as JAX operations."""

from __future__ import annotations

from typing import Any, NamedTuple

from normact.jax.call import Call
from normact.jax.layout import Layout, Result, Tensors
from normact.jax.op import Arrays, Op, build, like, statistic_dtype


class Options(NamedTuple):
    """What a group norm is told beside its tensors. The axis is negative."""

    function: str
    num_groups: int
    channel_axis: int
    eps: float
    momentum: float
    act: tuple[int, float, float, float]
    keep: bool = False  # the statistics


def _attributes(operands: Tensors, options: Options) -> dict[str, Any]:
    return {
        "num_groups": options.num_groups,
        "channel_axis": options.channel_axis,
        "eps": options.eps,
        "momentum": options.momentum,
        **dict(zip(("activation", "alpha", "beta", "threshold"), options.act)),
    }


def _layout(x: Any, operands: Tensors, results: dict[str, str], options: Options, whole: bool) -> Layout:
    """Devices may have different samples; running statistics, which are means over these, need them whole.

    `results` says of each whether it is like x ("x"), a statistic of a group ("group") or of a channel ("channel").
    """
    dims = tuple(f"d{i}" for i in range(len(x.shape)))
    wide = statistic_dtype(x.dtype)
    kinds = {
        "x": Result(dims, x.dtype),
        "group": Result((dims[0], "groups"), wide),
        "channel": Result((dims[options.channel_axis],), wide),
    }
    of_operand = {name: "channel" for name in operands}
    of_operand |= {"x": "x", "dy": "x", "mean": "group", "rstd": "group"}
    return Layout(
        {name: kinds[of_operand[name]].dims for name in operands},
        {name: kinds[kind] for name, kind in results.items()},
        frozenset((*dims[0 if whole else 1 :], "groups")),
        sizes={"groups": options.num_groups},
    )


def _forward_layout(operands: Tensors, options: Options) -> Layout:
    results = {"y": "x"}
    updates = "running_mean" in operands
    if updates:
        results |= {"running_mean": "channel", "running_var": "channel"}
    if options.keep:
        results |= {"mean": "group", "rstd": "group"}
    return _layout(operands["x"], operands, results, options, updates)


def _backward_layout(operands: Tensors, options: Options) -> Layout:
    results = {"dx": "x"} | {f"d{name}": "channel" for name in ("weight", "bias") if name in operands}
    return _layout(operands["x"], operands, results, options, False)


_FORWARD = Call("group_norm_forward", _forward_layout, _attributes, states=("running_mean", "running_var"))
_BACKWARD = Call("group_norm_backward", _backward_layout, _attributes)


def _forward(tensors: Arrays, options: Options, keep: bool) -> tuple[Arrays, Arrays]:
    x, weight, bias, running_mean, running_var = tensors
    given = {"x": x, "weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    found = _FORWARD(given, options._replace(keep=keep))
    returned = (found["y"], found.get("running_mean"), found.get("running_var"))
    return returned, (x, weight, bias, found.get("mean"), found.get("rstd"))


def _backward(gradients: Arrays, kept: Arrays, options: Options) -> Arrays:
    x, weight, bias, mean, rstd = kept
    given = {"dy": gradients[0], "x": x, "weight": weight, "bias": bias, "mean": mean, "rstd": rstd}
    found = _BACKWARD(given, options)
    return found["dx"], like(found.get("dweight"), weight), like(found.get("dbias"), bias), None, None


#: (options, x, weight, bias, running_mean, running_var) -> y and the new running statistics, or None for each.
GROUP_NORM = build(Op(_forward, _backward, states=2))
