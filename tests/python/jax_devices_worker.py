# SPDX-License-Identifier: Apache-2.0
"""The tests of normact.jax on four devices, in a process of its own, since their number is fixed when JAX starts.

Prints one line of JSON for each check: its name, the largest error beside one device, and the collectives that were
compiled into the forward and into the gradient.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402, N817

import normact.jax as nj  # noqa: E402

TYPES = getattr(jax.sharding, "AxisType", None)


def make_mesh(kind: str = "Auto", shape: tuple[int, ...] = (4,), names: tuple[str, ...] = ("d",)) -> Any:
    return jax.make_mesh(shape, names, axis_types=(getattr(TYPES, kind),) * len(names)) if TYPES else None


MESH = make_mesh() or jax.make_mesh((4,), ("d",))


def shard_map(function: Any, in_specs: Any, out_specs: Any, check: bool) -> Any:
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_vma=check)
    from jax.experimental.shard_map import shard_map as old

    return old(function, mesh=MESH, in_specs=in_specs, out_specs=out_specs, check_rep=check)


def draw(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(len(shape)).standard_normal(shape), jnp.float32)


def compiled(function: Any, arrays: Any) -> tuple[Any, dict[str, int]]:
    """The results, and how many collectives of each kind made them."""
    program = jax.jit(function).lower(*arrays).compile()
    words = ("all-gather", "all-reduce", "all-to-all", "collective-permute")
    counts = {word: len(re.findall(rf" {word}(?:-start)?\(", program.as_text() or "")) for word in words}
    return program(*arrays), counts


def error(found: Any, want: Any) -> float:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True)
    return max(float(np.max(np.abs(np.asarray(ours) - np.asarray(theirs)))) for ours, theirs in pairs)


def loss(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(function(*arrays))[:1])


def report(name: str, found: float, forward: Any = None, backward: Any = None, spec: Any = None) -> None:
    print(json.dumps({"name": name, "error": found, "forward": forward, "backward": backward, "spec": str(spec)}))


def under_jit(name: str, function: Callable[..., Any], arrays: list[Any], specs: list[Any]) -> None:
    """On sharded arrays, and on the same ones whole."""
    sharded = [jax.device_put(array, NamedSharding(MESH, spec)) for array, spec in zip(arrays, specs, strict=True)]
    gradient = jax.grad(loss(function), argnums=tuple(range(len(arrays))))
    (found, forward), (gradients, backward) = compiled(function, sharded), compiled(gradient, sharded)
    errors = [error(found, function(*arrays)), error(gradients, jax.jit(gradient)(*arrays))]
    spec = jax.tree.leaves(found)[0].sharding.spec
    report(name, max(errors), forward, backward, tuple(spec))


def plain_jit() -> None:
    x, r, w, b = draw(8, 4, 16), draw(8, 4, 16) + 1, draw(16), draw(16) + 1
    rows, cols, whole = P("d"), P(None, None, "d"), P()

    def add(x: Any, r: Any, w: Any, b: Any) -> Any:
        return nj.layer_norm(x, w, b, residual=r)

    def add_half(x: Any, r: Any, w: Any, b: Any) -> Any:
        return add(x.astype("bfloat16"), r, w, b)

    under_jit("layer_norm", nj.layer_norm, [x, w, b], [rows, whole, whole])
    under_jit("layer_norm half", lambda x, w: nj.layer_norm(x.astype("bfloat16"), w), [x, w], [rows, whole])
    under_jit("add_layer_norm", add, [x, r, w, b], [rows, rows, whole, whole])
    under_jit("add_layer_norm half", add_half, [x, r, w, b], [rows, rows, whole, whole])
    under_jit("rms_norm of columns", nj.rms_norm, [x, w], [cols, whole])
    under_jit("rms_norm over axis 1", lambda x, w: nj.rms_norm(x, w, axis=1), [x, draw(4)], [cols, whole])
    under_jit("gelu", lambda x, b: nj.gelu(x, bias=b), [x, b], [rows, whole])
    under_jit("gelu of columns", lambda x, b: nj.gelu(x, bias=b), [x, b], [cols, rows])
    under_jit("relu", nj.relu, [x], [cols])
    under_jit("swiglu", lambda x, b: nj.swiglu(x, bias=b), [x, b], [rows, whole])
    under_jit("geglu of columns", lambda g, u: nj.geglu(g, u), [x, r], [cols, cols])
    image, c = draw(8, 4, 3, 5), draw(4)
    group, batch = [image, c, c + 1], [P("d"), whole, whole]
    under_jit("group_norm", lambda x, w, b: nj.group_norm(x, 2, w, b), group, batch)
    under_jit("instance_norm", lambda x, w, b: nj.instance_norm(x, w, b, c, c * c), group, batch)

    def train(x: Any, w: Any, b: Any) -> Any:
        return nj.batch_norm(x, w, b, c, c * c, training=True, activation="silu")

    under_jit("batch_norm", train, group, batch)
    under_jit("batch_norm alone", lambda x: nj.batch_norm(x, training=True), [image], [P("d")])
    under_jit("batch_norm of channels", train, group, [P(None, "d"), P("d"), P("d")])
    under_jit("batch_norm inference", lambda x, w, b: nj.batch_norm(x, w, b, c, c * c), group, batch)
    under_jit("vmap", jax.vmap(nj.layer_norm, in_axes=(1, None, None)), [x, w, b], [rows, whole, whole])


def mapped(check: bool) -> None:
    """shard_map, with JAX's check of what varies and without."""
    x, w, c = draw(8, 4, 16), draw(16), draw(4)
    rows, whole = P("d"), P()
    name = f"shard_map {'checked' if check else 'unchecked'}"

    def compare(label: str, function: Any, want: Any, arrays: Any, specs: Any, out: Any) -> None:
        mapped_function = shard_map(function, specs, out, check)
        argnums = tuple(range(len(arrays)))
        errors = [error(jax.jit(mapped_function)(*arrays), want(*arrays))]
        both = [jax.jit(jax.grad(loss(each), argnums=argnums))(*arrays) for each in (mapped_function, want)]
        report(f"{name} {label}", max(*errors, error(*both)))

    compare("layer_norm", nj.layer_norm, nj.layer_norm, (x, w, w + 1), (rows, whole, whole), rows)
    gated = lambda x, b: nj.swiglu(x, bias=b)  # noqa: E731
    compare("swiglu", gated, gated, (x, w), (rows, whole), rows)

    def train(x: Any, c: Any, axis_name: str | None = None) -> Any:
        return nj.batch_norm(x, c, c + 1, c, c * c, training=True, activation="silu", axis_name=axis_name)

    compare("batch_norm", lambda x, c: train(x, c, "d"), train, (x, c), (rows, whole), (rows, whole, whole))
    inside = shard_map(jax.vmap(nj.layer_norm, in_axes=(0, None)), (rows, whole), rows, check)
    report(f"{name} vmap inside", error(inside(x, w), nj.layer_norm(x, w)))
    outside = jax.vmap(shard_map(nj.layer_norm, (rows, whole), rows, check))
    want = jnp.stack([nj.layer_norm(x, w), nj.layer_norm(2 * x, 3 * w)])
    report(f"{name} vmap outside", error(outside(jnp.stack([x, 2 * x]), jnp.stack([w, 3 * w])), want))


def two_axes() -> None:
    """A batch along one axis of a mesh, what belongs to a channel along the other."""
    global MESH
    MESH = make_mesh(shape=(2, 2), names=("a", "b")) or jax.make_mesh((2, 2), ("a", "b"))
    x, c = draw(8, 4, 6), draw(4)

    def train(x: Any, c: Any) -> Any:
        return nj.batch_norm(x, c, c, c, c * c, training=True)

    under_jit("batch_norm on two axes", train, [x, c], [P("a", "b"), P("b")])
    under_jit("rms_norm on two axes", nj.rms_norm, [x, draw(6)], [P("a", "b"), P()])
    under_jit("silu on two axes", lambda x, c: nj.silu(x, bias=c, axis=1), [x, c], [P("a", "b"), P("b")])


def explicit() -> None:
    """Where shardings are a part of types."""
    with jax.set_mesh(make_mesh("Explicit")):
        x, w = draw(8, 4, 16), draw(16)
        sharded = jax.device_put(x, P("d")), jax.device_put(w, P())
        functions = {
            "layer_norm": nj.layer_norm,
            "gelu": lambda x, w: nj.gelu(x, bias=w),
            "batch_norm": lambda x, w: nj.batch_norm(x, w, training=True, channel_axis=-1),
            "vmap": lambda x, w: jax.vmap(nj.layer_norm)(x) * w,
            "vmap of batch_norm": jax.vmap(lambda x, w: nj.batch_norm(x, w, training=True, channel_axis=-1), (0, None)),
        }
        for name, function in functions.items():
            gradient = jax.grad(loss(function), argnums=(0, 1))
            (found, forward), (gradients, backward) = compiled(function, sharded), compiled(gradient, sharded)
            errors = [error(found, function(x, w)), error(gradients, gradient(x, w))]
            report(f"explicit {name}", max(errors), forward, backward, tuple(found.sharding.spec))


if __name__ == "__main__":
    plain_jit()
    mapped(check=True)
    mapped(check=False)
    two_axes()
    if hasattr(jax, "set_mesh"):
        explicit()
