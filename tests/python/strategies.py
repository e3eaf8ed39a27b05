# SPDX-License-Identifier: Apache-2.0
"""What hypothesis draws for more than one family of operations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from devices import Device
from layouts import Layout

MAX_ELEMENTS = 20_000
MOST_STORED = 2**24


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    """One to four sizes, zero included."""
    sizes = st.one_of(st.integers(0, 9), st.integers(0, 300), st.sampled_from([1, 128, 1024]))
    return tuple(draw(st.lists(sizes, min_size=1, max_size=4).filter(lambda s: math.prod(s) <= MAX_ELEMENTS)))


@st.composite
def layouts(draw: st.DrawFn, ndim: int, negative: bool) -> Layout:
    """Axes in any order in memory, with gaps, an offset, and (where the library has them) negative strides."""
    order = draw(st.permutations(range(ndim)))
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 3]), min_size=ndim, max_size=ndim))
    padding = draw(st.lists(st.sampled_from([0, 0, 1, 8]), min_size=ndim, max_size=ndim))
    flips = draw(st.lists(st.booleans() if negative else st.just(False), min_size=ndim, max_size=ndim))

    def build(device: Device, values: np.ndarray, dtype: str) -> Any:
        spans = [size * step + pad for size, step, pad in zip(values.shape, steps, padding, strict=True)]
        cut = tuple(slice(pad, None, step) for pad, step in zip(padding, steps, strict=True))
        if math.prod(spans) > MOST_STORED:  # large axes beside one of no elements, which a gap would fill
            spans, cut = values.shape, ()
        flip = tuple(slice(None, None, -1) if flipped else slice(None) for flipped in flips)
        storage = np.full(spans, np.nan)
        storage[cut] = values[flip]
        inverse = [order.index(axis) for axis in range(ndim)]
        array = device.array(storage.transpose(order), dtype)
        array = array.transpose(inverse) if device.negative_strides else array.permute(inverse)
        array = array[cut]
        return array[flip] if any(flips) else array

    return build
