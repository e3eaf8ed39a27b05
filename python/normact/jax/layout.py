# SPDX-License-Identifier: Apache-2.0
"""The dimensions of a call by names, as in an einsum."""

from __future__ import annotations

from typing import Any, NamedTuple

Dims = tuple[str, ...]
Tensors = dict[str, Any]  # by their names in the C API


class Result(NamedTuple):
    """The dimensions and dtype of a result."""

    dims: Dims
    dtype: Any


class Layout(NamedTuple):
    """The dimensions of all tensors of a call.

    `whole` are those that no device may have a part of, `joint` those over which devices with different parts must
    talk to each other; `sizes` has those that no operand has.
    """

    operands: dict[str, Dims]
    results: dict[str, Result]
    whole: frozenset[str] = frozenset()
    joint: frozenset[str] = frozenset()
    sizes: dict[str, int] = {}  # noqa: RUF012 (never written to)


def sizes_of(layout: Layout, operands: Tensors) -> dict[str, int]:
    """The size of each dimension."""
    sizes = dict(layout.sizes)
    for name, dims in layout.operands.items():
        sizes.update(zip(dims, operands[name].shape))
    return sizes
