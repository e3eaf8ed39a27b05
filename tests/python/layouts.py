# SPDX-License-Identifier: Apache-2.0
"""Memory layouts: the same values, laid out in memory in every way a user may hand them over.

Gaps between the elements are NaN, so that a kernel that reads past its row cannot go unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from devices import Device

Layout = Callable[[Device, np.ndarray, str], Any]


def contiguous(device: Device, values: np.ndarray, dtype: str) -> Any:
    return device.array(values, dtype)


def _padded(padding: int) -> Layout:
    def build(device: Device, values: np.ndarray, dtype: str) -> Any:
        cols = values.shape[-1]
        storage = np.full((*values.shape[:-1], cols + padding), np.nan)
        storage[..., :cols] = values
        return device.array(storage, dtype)[..., :cols]

    return build


def offset_by_one(device: Device, values: np.ndarray, dtype: str) -> Any:
    """Contiguous, but starting one element past an aligned address."""
    storage = np.full(values.size + 1, np.nan)
    storage[1:] = values.ravel()
    return device.array(storage, dtype)[1:].reshape(values.shape)


def transposed(device: Device, values: np.ndarray, dtype: str) -> Any:
    """The last axis is the slowest in memory."""
    return device.array(values.swapaxes(0, -1), dtype).swapaxes(0, -1)


def channels_last(device: Device, values: np.ndarray, dtype: str) -> Any:
    """Axis 1 is the fastest in memory, as PyTorch's channels_last."""
    array = device.array(np.moveaxis(values, 1, -1), dtype)
    order = (0, values.ndim - 1, *range(1, values.ndim - 1))
    return array.transpose(order) if isinstance(array, np.ndarray) else array.permute(order)


def every_second_column(device: Device, values: np.ndarray, dtype: str) -> Any:
    storage = np.full((*values.shape[:-1], 2 * values.shape[-1]), np.nan)
    storage[..., ::2] = values
    return device.array(storage, dtype)[..., ::2]


def cropped(device: Device, values: np.ndarray, dtype: str) -> Any:
    """The middle of an image: its last two axes lose an element at each end."""
    storage = np.pad(values, [(0, 0)] * (values.ndim - 2) + [(1, 1)] * 2, constant_values=np.nan)
    return device.array(storage, dtype)[..., 1:-1, 1:-1]


def half_of(axis: int) -> Layout:
    """The first half of a tensor along an axis."""

    def first_half(device: Device, values: np.ndarray, dtype: str) -> Any:
        storage = np.concatenate([values, np.full_like(values, np.nan)], axis=axis)
        return device.array(storage, dtype)[(slice(None),) * axis + (slice(values.shape[axis]),)]

    return first_half


def in_memory(*order: int) -> Layout:
    """The axes in this order in memory, slowest first."""

    def ordered(device: Device, values: np.ndarray, dtype: str) -> Any:
        array = device.array(values.transpose(order), dtype)
        back = tuple(int(axis) for axis in np.argsort(order))
        return array.transpose(back) if isinstance(array, np.ndarray) else array.permute(back)

    ordered.__name__ = "memory_" + "".join(map(str, order))
    return ordered


def every_second_row(device: Device, values: np.ndarray, dtype: str) -> Any:
    storage = np.full((2 * values.shape[0], *values.shape[1:]), np.nan)
    storage[::2] = values
    return device.array(storage, dtype)[::2]


def expanded(device: Device, values: np.ndarray, dtype: str) -> Any:
    """One row seen as many (stride 0); the values must say so."""
    assert (values == values[:1]).all(), "an expanded layout needs equal rows"
    return device.broadcast(device.array(values[:1], dtype), values.shape)


def reversed_axes(device: Device, values: np.ndarray, dtype: str) -> Any:
    """Negative strides along every axis."""
    flip = (slice(None, None, -1),) * values.ndim
    return device.array(values[flip], dtype)[flip]


LAYOUTS: dict[str, Layout] = {
    "contiguous": contiguous,
    "row_strided": _padded(64),
    "row_strided_odd": _padded(5),
    "offset_by_one": offset_by_one,
    "transposed": transposed,
    "every_second_column": every_second_column,
    "every_second_row": every_second_row,
    "expanded": expanded,
    "reversed": reversed_axes,
}


def supported(layout: str, device: Device) -> bool:
    return layout != "reversed" or device.negative_strides
