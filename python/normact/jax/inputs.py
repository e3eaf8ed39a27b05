# SPDX-License-Identifier: Apache-2.0
"""What all public functions do with their arguments first: a wrong one ends here, when the function is traced."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from normact.activation_calls import kind_number, numbers
from normact.jax.op import statistic_dtype

_DTYPES = tuple(jnp.dtype(each) for each in (jnp.float64, jnp.float32, jnp.float16, jnp.bfloat16))
_IDENTITY = kind_number("", "identity"), 0.0, 1.0, 20.0


def array(function: str, name: str, value: Any) -> Any:
    """An array of JAX's. TypeError for what is none, or has a dtype that is not supported."""
    if not isinstance(value, jax.Array):
        if isinstance(value, (np.ndarray, np.generic)):
            value = _of_numpy(function, name, value)
        elif hasattr(value, "__jax_array__"):
            value = value.__jax_array__()
        else:
            raise TypeError(f"{function}: {name} is of type {_kind(value)}; expected a jax.Array")
    if value.dtype not in _DTYPES:
        raise _wrong_dtype(function, name, value)
    return value


def _of_numpy(function: str, name: str, value: Any) -> Any:
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError):
        if value.dtype not in _DTYPES:  # of strings or objects
            raise _wrong_dtype(function, name, value) from None
    expected = "a jax.Array or a numpy.ndarray; numpy.asarray() drops what the subclass adds"
    raise TypeError(f"{function}: {name} is of type {_kind(value)}; expected {expected}")


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _wrong_dtype(function: str, name: str, value: Any) -> TypeError:
    return TypeError(f"{function}: {name} has dtype {value.dtype}; expected float64, float32, float16 or bfloat16")


def twin(function: str, name: str, value: Any, x: Any, like: str = "x", *, stream: bool = False) -> Any:
    """An optional array of the shape and dtype of x, which messages call `like`.

    A `stream` may be float32 beside an x of 16 bits.
    """
    if value is None:
        return None
    value = array(function, name, value)
    if value.shape != x.shape:
        raise ValueError(f"{function}: {name} has shape {value.shape}; expected {x.shape}, as {like} has")
    wider = stream and x.dtype.itemsize == 2
    if value.dtype != x.dtype and not (wider and value.dtype == jnp.float32):
        either = ", or float32" if wider else ""
        raise TypeError(f"{function}: {name} has dtype {value.dtype}; expected {x.dtype}, as {like} has{either}")
    return value


def parameter(function: str, name: str, value: Any, shape: tuple[int, ...], x: Any) -> Any:
    """An optional array of this shape, of x's dtype or float32."""
    if value is None:
        return None
    value = array(function, name, value)
    if value.shape != shape:
        raise ValueError(f"{function}: {name} has shape {value.shape}; expected {shape}")
    if value.dtype not in (x.dtype, statistic_dtype(x.dtype)):
        either = f"{x.dtype} or float32" if x.dtype.itemsize == 2 else f"{x.dtype}"
        raise TypeError(f"{function}: {name} has dtype {value.dtype}; expected {either}")
    return value


def statistic(function: str, name: str, value: Any, shape: tuple[int, ...], x: Any) -> Any:
    """An optional array of this shape in the dtype of statistics."""
    value = parameter(function, name, value, shape, x)
    if value is not None and value.dtype != statistic_dtype(x.dtype):
        raise TypeError(f"{function}: {name} has dtype {value.dtype}; expected {statistic_dtype(x.dtype)}")
    return value


def negative(function: str, name: str, axis: Any, x: Any, like: str = "x") -> int:
    """The axis counted from the last, so that leading ones may be added. ValueError for a wrong one."""
    number = integer(function, name, axis)
    if not x.ndim:
        raise ValueError(f"{function}: {like} has 0 dimensions; expected at least 1")
    if not -x.ndim <= number < x.ndim:
        raise ValueError(
            f"{function}: {name} is {number} and {like} has {x.ndim} dimensions; expected one of {-x.ndim} to "
            f"{x.ndim - 1}"
        )
    return number if number < 0 else number - x.ndim


def integer(function: str, name: str, value: Any) -> int:
    """An integer that is known when the function is traced."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{function}: {name} is of type {type(value).__name__}; expected an int") from None


def number(function: str, name: str, value: Any) -> float:
    """A number that is known when the function is traced."""
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except OverflowError:
        raise ValueError(f"{function}: {name} is an int that no float holds; expected a number") from None
    except Exception:
        expected = "a number that is no traced value"
        raise TypeError(f"{function}: {name} is of type {_kind(value)}; expected {expected}") from None


def flag(function: str, name: str, value: Any) -> bool:
    """A bool that is known when the function is traced, as it decides what is traced."""
    try:
        return bool(value)
    except (TypeError, ValueError):
        expected = "a bool that is no traced value"
        raise TypeError(f"{function}: {name} is of type {_kind(value)}; expected {expected}") from None


def activation(
    function: str,
    kind: str | None,
    alpha: Any = None,
    beta: Any = None,
    threshold: Any = None,
    argument: str = "activation",
) -> tuple[int, float, float, float]:
    """The number of a kind, alpha, beta and threshold; of no activation of a norm those of the identity."""
    if kind is None and argument == "activation":
        return _IDENTITY
    index = kind_number(function, kind, argument)
    words = ("alpha", "beta", "threshold")
    alpha, beta, threshold = (
        number(function, *each) for each in zip(words, numbers(str(kind), alpha, beta, threshold))
    )
    return index, alpha, beta, threshold
