# SPDX-License-Identifier: Apache-2.0
"""What all public functions do with their arguments first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

_DTYPES = frozenset((tf.float64, tf.float32, tf.float16, tf.bfloat16))

_F = TypeVar("_F", bound=Callable[..., Any])


def public(function: _F) -> _F:
    """Keeps AutoGraph from rewriting a function: the graph is made of what it calls, not of its Python."""
    return tf.autograph.experimental.do_not_convert(function)


def tensor(function: str, name: str, value: Any) -> Any:
    """The argument as a tensor of a dtype that the kernels know; a variable's value, or what TensorFlow can convert.

    TensorFlow copies an array of NumPy whose memory is not aligned to 64 bytes, as its own kernels abort on that.
    """
    if not isinstance(value, tf.Tensor):
        value = _converted(function, name, value)
    if value.dtype not in _DTYPES:
        raise _wrong_dtype(function, name, value.dtype)
    return value


def _wrong_dtype(function: str, name: str, dtype: tf.DType) -> TypeError:
    return TypeError(f"{function}: {name} has dtype {dtype.name}; expected float64, float32, float16 or bfloat16")


def optional(function: str, name: str, value: Any) -> Any:
    """The same, or None."""
    return None if value is None else tensor(function, name, value)


def _converted(function: str, name: str, value: Any) -> Any:
    if isinstance(value, tf.Variable):
        return tf.convert_to_tensor(value)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if type(value).__qualname__ == "KerasTensor":
        kind += ", which stands for a value of a model that is being built"
        raise TypeError(f"{function}: {name} is of type {kind}; expected a tf.Tensor, or a layer of normact.keras here")
    if not isinstance(value, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)):
        try:
            return tf.convert_to_tensor(value)
        except (TypeError, ValueError):
            pass
    raise TypeError(f"{function}: {name} is of type {kind}; expected a tf.Tensor, a tf.Variable or an array")


def state(function: str, name: str, value: Any, *, counts: bool = False) -> Any:
    """A variable that the operation updates, or None. Raises ValueError for what is immutable.

    TypeError for a dtype that does not hold a statistic, or if it `counts`, for one that is no integer.
    """
    if value is None:
        return None
    if not isinstance(value, tf.Variable) and not (hasattr(value, "assign") and hasattr(value, "dtype")):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise ValueError(f"{function}: {name} is of type {kind}, which cannot be updated; expected a tf.Variable")
    dtype = tf.as_dtype(value.dtype).base_dtype
    if counts and not dtype.is_integer:
        raise TypeError(f"{function}: {name} has dtype {dtype.name}; expected an integer one, such as int64")
    if not counts and dtype not in _DTYPES:
        raise _wrong_dtype(function, name, dtype)
    return value


def flag(function: str, name: str, value: Any) -> bool:
    """A bool that is known when a graph is made, as it decides what the graph is."""
    try:
        return bool(value)
    except (TypeError, ValueError):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(f"{function}: {name} is of type {kind}; expected a bool that is no value of a graph") from None
