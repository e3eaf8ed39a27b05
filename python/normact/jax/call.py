# SPDX-License-Identifier: Apache-2.0
"""A function of the C API as JAX sees it: one `Call`, from which vmap and the partitioning of sharded arrays follow.

A call names the dimensions of its operands and results, as an einsum does. From these names come the shapes of the
results, how the work is divided between devices, and which results have to be summed over them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from normact.jax import mesh
from normact.jax.layout import Dims, Layout, Tensors, sizes_of
from normact.jax.partition import Axes, partitioned
from normact.jax.target import FIELDS, target


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """A function of the C API. Operands that are not there are not in a dict of tensors."""

    name: str
    #: (operands, options) -> the dimensions of these and of the wanted results.
    layout: Callable[[Tensors, Any], Layout]
    #: (operands, options) -> the members of the C description.
    attributes: Callable[[Tensors, Any], dict[str, Any]]
    #: Operands that are updated in place, so that they are results too.
    states: tuple[str, ...] = ()
    #: Tensors that may have any number of further leading dimensions: a vmap over them is one call, if all results are
    #: of this kind. Else it is a call for each.
    leading: frozenset[str] = frozenset()
    #: (operands, options, axes) -> results, where joint dimensions are divided along these axes of the mesh.
    across: Callable[[Tensors, Any, tuple[str, ...]], Tensors] | None = None

    def __call__(self, tensors: Tensors, options: Any) -> Tensors:
        """The results by their names. Tensors that are None are not there."""
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        if mesh.is_manual():
            operands = mesh.together(list(given.values()))
            found = _run(self, dict(zip(given, operands)), options)
        else:
            found = _batchable(self, tuple(given), options)(*given.values())
        return dict(zip(self.layout(given, options).results, found))


# ---- The call itself ----


def _attribute(value: Any) -> Any:
    """What XLA hands on as int64, float64, an array of int64, or text."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return np.array(value, np.int64)
    return np.float64(value) if isinstance(value, float) else np.int64(value)


def _run(call: Call, operands: Tensors, options: Any) -> tuple[Any, ...]:
    """The call on whole arrays, or on a device's parts of them."""
    layout = call.layout(operands, options)
    sizes, arrays = sizes_of(layout, operands), list(operands.values())
    results = [
        mesh.result(tuple(sizes[dim] for dim in result.dims), result.dtype, arrays[0])
        for result in layout.results.values()
    ]
    names, found = list(operands), list(layout.results)
    fields = tuple(FIELDS[call.name].index(name) for name in names + found)
    aliases = {names.index(state): found.index(state) for state in call.states if state in layout.results}
    function = jax.ffi.ffi_call(target(call.name), results, vmap_method="sequential", input_output_aliases=aliases)
    attributes = {"fields": fields, "function": options.function, **call.attributes(operands, options)}
    return tuple(function(*arrays, **{key: _attribute(value) for key, value in attributes.items()}))


def _on_device(call: Call, operands: Tensors, options: Any, layout: Layout, axes: Axes) -> tuple[Any, ...]:
    """The call on a device's parts. A result without a divided dimension is the sum over the devices."""
    joint = tuple(name for dim, names in axes.items() if dim in layout.joint for name in names)
    if joint and call.across is not None:
        found = call.across(operands, options, joint)
        return tuple(found[name] for name in layout.results)

    def summed(array: Any, dims: Dims) -> Any:
        missing = tuple(name for dim, names in axes.items() if dim not in dims for name in names)
        return lax.psum(array, missing) if missing else array

    found = _run(call, operands, options)
    return tuple(summed(array, result.dims) for array, result in zip(found, layout.results.values()))


# ---- vmap ----


def _batchable(call: Call, names: tuple[str, ...], options: Any) -> Any:
    """The call as a function of the operands of these names, in their order."""

    @custom_vmap
    def function(*operands: Any) -> tuple[Any, ...]:
        given = dict(zip(names, operands))
        layout = call.layout(given, options)

        def whole(*arrays: Any) -> tuple[Any, ...]:
            return _run(call, dict(zip(names, arrays)), options)

        def part(axes: Axes, *arrays: Any) -> tuple[Any, ...]:
            return _on_device(call, dict(zip(names, arrays)), options, layout, axes)

        return partitioned(layout, given, whole, part)

    @function.def_vmap
    def rule(size: int, batched: list[bool], *operands: Any) -> tuple[Any, Any]:
        one = {
            name: jax.ShapeDtypeStruct(operand.shape[1:] if there else operand.shape, operand.dtype)
            for name, operand, there in zip(names, operands, batched)
        }
        results = call.layout(one, options).results
        moving = {name for name, there in zip(names, batched) if there}
        if moving | results.keys() <= call.leading:
            found = function(
                *(
                    jax.numpy.broadcast_to(operand, (size, *operand.shape))
                    if name in call.leading and not there
                    else operand
                    for name, operand, there in zip(names, operands, batched)
                )
            )
        else:

            def each(parts: tuple[Any, ...]) -> tuple[Any, ...]:
                part = iter(parts)
                return function(*(next(part) if there else operand for operand, there in zip(operands, batched)))

            found = mesh.loop(each, tuple(operand for operand, there in zip(operands, batched) if there))
        return found, (True,) * len(found)

    return function
