# SPDX-License-Identifier: Apache-2.0
"""How a call is divided between devices: by the names of its dimensions.

Under plain jit XLA's partitioner asks how the operands may lie, and each device then works on its parts. Where
shardings are a part of types, they are known when the call is traced, and it is a shard_map.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from normact.jax import mesh
from normact.jax.layout import Dims, Layout, Tensors, sizes_of

#: The mesh axes that each divided dimension is divided along.
Axes = dict[str, tuple[str, ...]]


def partitioned(
    layout: Layout, operands: Tensors, whole: Callable[..., Any], part: Callable[..., Any]
) -> tuple[Any, ...]:
    """The results of `whole(*arrays)`; on devices that have parts of the arrays, `part(axes, *parts)`."""
    arrays, explicit = list(operands.values()), mesh.explicit_mesh(operands.values())
    if explicit is not None:
        specs = {name: jax.typeof(array).sharding.spec for name, array in operands.items()}
        axes = _axes_of(layout, sizes_of(layout, operands), specs, explicit)
        laid = _specs(layout, tuple(operands), axes)
        return mesh.mapped(lambda *parts: part(axes, *parts), explicit, *laid)(*arrays)
    if not mesh.can_partition():
        return whole(*arrays)
    return _asked_by_xla(layout, operands, whole, part)(*arrays)


def _asked_by_xla(
    layout: Layout, operands: Tensors, whole: Callable[..., Any], part: Callable[..., Any]
) -> Callable[..., Any]:
    names, sizes = tuple(operands), sizes_of(layout, operands)

    def divided(device_mesh: Any, arguments: Any) -> tuple[Axes, list[Any], list[Any]]:
        specs = {name: getattr(argument.sharding, "spec", ()) for name, argument in zip(names, arguments)}
        axes = _axes_of(layout, sizes, specs, device_mesh)
        of_operands, of_results = (
            [NamedSharding(device_mesh, spec) for spec in side] for side in _specs(layout, names, axes)
        )
        return axes, of_operands, of_results

    def infer(device_mesh: Any, arguments: Any, results: Any) -> tuple[Any, ...]:
        return tuple(divided(device_mesh, arguments)[2])

    def partition(device_mesh: Any, arguments: Any, results: Any) -> Any:
        axes, of_operands, of_results = divided(device_mesh, arguments)
        return device_mesh, lambda *parts: part(axes, *parts), tuple(of_results), tuple(of_operands)

    return mesh.partitioned(whole, partition, infer, *_rule(layout, names))


def _rule(layout: Layout, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The dimensions in Shardy's notation, and those that must be whole in the order in which they appear."""
    operands = [layout.operands[name] for name in names]
    results = [result.dims for result in layout.results.values()]
    text = " -> ".join(", ".join(" ".join(dims) for dims in side) for side in (operands, results))
    every = dict.fromkeys(dim for dims in operands + results for dim in dims)
    return text, tuple(dim for dim in every if dim in layout.whole)


def _axes_of(layout: Layout, sizes: dict[str, int], divided: dict[str, Any], device_mesh: Any) -> Axes:
    """The mesh axes that each dimension is divided along: as in the first operand in which it is.

    A dimension stays whole if the call needs it so, or if it does not divide evenly.
    """
    axes: Axes = {}
    used: set[str] = set()
    for operand, spec in divided.items():
        for dim, entry in zip(layout.operands[operand], spec):
            names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
            parts = int(np.prod([device_mesh.shape[name] for name in names], dtype=np.int64))
            if not names or dim in layout.whole or dim in axes or used & set(names) or sizes[dim] % parts:
                continue
            axes[dim] = tuple(names)
            used |= set(names)
    return axes


def _specs(layout: Layout, operands: tuple[str, ...], axes: Axes) -> tuple[list[PartitionSpec], list[PartitionSpec]]:
    """How the operands of these names and the results lie. (The arrays themselves are of a trace that may be over.)"""

    def along(dims: Dims) -> PartitionSpec:
        return PartitionSpec(*(axes.get(dim) for dim in dims))

    results = [along(result.dims) for result in layout.results.values()]
    return [along(layout.operands[name]) for name in operands], results
