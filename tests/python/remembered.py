# SPDX-License-Identifier: Apache-2.0
"""References are computed once for the tests that share them, in no more than so many bytes of a worker's memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import cachetools
import numpy as np
from cachetools.keys import hashkey

Problem = TypeVar("Problem")
Result = TypeVar("Result")
ENTRY = 1 << 10  # of small results it is the objects that count


def _nbytes(result: Any) -> int:
    if isinstance(result, np.ndarray):
        return result.nbytes
    if isinstance(result, (tuple, list)):
        return ENTRY + sum(_nbytes(part) for part in result)
    parts = result if isinstance(result, dict) else getattr(result, "__dict__", {})
    return ENTRY + sum(_nbytes(part) for part in parts.values())


_results: cachetools.LRUCache[Any, Any] = cachetools.LRUCache(1 << 30, getsizeof=_nbytes)


def remembered(function: Callable[[Problem], Result]) -> Callable[[Problem], Result]:
    """Of equal problems, one after the other, all get the result of the first; nobody may change it."""
    return cachetools.cached(_results, key=functools.partial(hashkey, function))(function)
