# SPDX-License-Identifier: Apache-2.0
"""What differs between the versions of JAX about meshes: manual regions and the axes that values vary over."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec, get_abstract_mesh

# Whether Shardy can be told that a dimension is needed whole.
_KNOWS_WHOLE = "need_replication_factors" in inspect.signature(custom_partitioning.def_partition).parameters
_STRUCT_PARAMETERS = inspect.signature(jax.ShapeDtypeStruct.__init__).parameters


def can_partition() -> bool:
    """Whether JAX can be told how a call is partitioned. If not, XLA gathers all operands of the call."""
    return _KNOWS_WHOLE or not getattr(jax.config, "jax_use_shardy_partitioner")  # noqa: B009 (set by name)


def partitioned(
    function: Callable[..., Any], partition: Any, infer: Any, rule: str, whole: tuple[str, ...]
) -> Callable[..., Any]:
    """The function with its partitioning: `rule` and `whole` for Shardy, `infer` for what was before it."""
    found = custom_partitioning(function)
    shardy = {"sharding_rule": rule, "need_replication_factors": whole} if _KNOWS_WHOLE else {}
    found.def_partition(partition, infer_sharding_from_operands=infer, **shardy)
    return found


def is_manual() -> bool:
    """Whether this is traced inside of a shard_map."""
    return bool(get_abstract_mesh().manual_axes)


def _axis_type(array: Any) -> Any:
    return getattr(jax.typeof(array), "manual_axis_type", None)


def varying_axes(array: Any) -> frozenset[str]:
    """The manual axes that a value varies over; none where that is not tracked."""
    kind = _axis_type(array)
    axes = getattr(jax.typeof(array), "vma", ()) if kind is None else kind.varying
    return frozenset(axes or ())


def _varying(array: Any, axes: tuple[str, ...]) -> Any:
    if hasattr(lax, "pcast"):
        return lax.pcast(array, axes, to="varying")
    return lax.pvary(array, axes)  # type: ignore[attr-defined]


def together(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """The arrays, each of them varying over all axes that any of them varies over. None stays None.

    What is used by all devices is made varying before a differentiable function, so that its gradient is summed over
    them by JAX.
    """
    union: frozenset[str] = frozenset().union(*(varying_axes(array) for array in arrays if array is not None))
    if not union:
        return tuple(arrays)

    def spread(array: Any) -> Any:
        missing = tuple(sorted(union - varying_axes(array)))
        return _varying(array, missing) if missing else array

    return tuple(None if array is None else spread(array) for array in arrays)


def explicit_mesh(arrays: Iterable[Any]) -> Any:
    """The mesh of arrays whose shardings are a part of their types; None where they are not."""
    if not hasattr(jax, "shard_map"):
        return None
    meshes = (jax.typeof(array).sharding.mesh for array in arrays)
    return next((each for each in meshes if getattr(each, "explicit_axes", ())), None)


def loop(function: Callable[..., Any], arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """`lax.map` over the first dimension, which it wants whole where shardings are a part of types.

    So all devices do all of it there, and the results are divided along that dimension as the arrays were.
    """
    device_mesh = explicit_mesh(arrays)
    if device_mesh is None:
        return lax.map(function, arrays)
    divided = (jax.typeof(array).sharding.spec[0] for array in arrays)
    along = next((axes for axes in divided if axes is not None), None)

    def laid(array: Any, axes: Any) -> Any:
        rest = jax.typeof(array).sharding.spec[1:]
        return jax.sharding.reshard(array, NamedSharding(device_mesh, PartitionSpec(axes, *rest)))

    found = lax.map(function, tuple(laid(array, None) for array in arrays))
    return tuple(laid(array, along) for array in found)


def mapped(function: Callable[..., Any], device_mesh: Any, operands: list[Any], results: list[Any]) -> Any:
    """The function on the parts of arrays, which are first laid out as is said."""

    def call(*arrays: Any) -> tuple[Any, ...]:
        laid = [jax.sharding.reshard(array, NamedSharding(device_mesh, spec)) for array, spec in zip(arrays, operands)]
        names = set(device_mesh.explicit_axes)
        options: dict[str, Any] = {"check_vma": False}
        if names != set(device_mesh.axis_names):  # said of all axes it is refused under vmap, which takes some itself
            options["axis_names"] = names
        mapped_function = jax.shard_map(
            lambda *parts: tuple(function(*parts)), in_specs=tuple(operands), out_specs=tuple(results), **options
        )
        return mapped_function(*laid)

    return call


def result(shape: tuple[int, ...], dtype: Any, like: Any) -> jax.ShapeDtypeStruct:
    """The type of a result that varies as `like` does."""
    axes = varying_axes(like)
    if not axes or not {"manual_axis_type", "vma"} & _STRUCT_PARAMETERS.keys():
        return jax.ShapeDtypeStruct(shape, dtype)
    sharding = NamedSharding(jax.typeof(like).sharding.mesh, PartitionSpec(*(None for _ in shape)))
    kind: dict[str, Any] = {"vma": axes} if "vma" in _STRUCT_PARAMETERS else {"manual_axis_type": _axis_type(like)}
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, **kind)
