# SPDX-License-Identifier: Apache-2.0
"""What is checked of tensors without memory, which never reach the library: meta tensors, those of `torch.export`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from normact.torch.op import statistic_dtype

if TYPE_CHECKING:
    from normact.torch.op import Op, Options, Tensors

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def check(op: Op, tensors: Tensors, options: Options, function: str | None = None) -> None:
    """Raises what the library would: TypeError for the dtype of the first tensor, ValueError for all else.

    function: what messages name, if not what they name of the operation.
    """
    x, function = tensors[0], function or op.called(options)
    if x.dtype not in _DTYPES:
        expected = ", ".join(map(_text, _DTYPES))
        raise TypeError(f"{function}: {op.tensors[0]} has dtype {_text(x.dtype)}; expected one of {expected}")
    wide = statistic_dtype(x.dtype)
    for argument, tensor, shape in zip(op.tensors, tensors, op.shapes(tensors, options)):
        name = argument.rstrip("?")
        if tensor is None or shape is None:
            continue
        check_shape(function, name, tensor, shape)
        data = name in op.divided and name != "residual"  # a residual stream may be float32
        if tensor.dtype is not x.dtype and (data or tensor.dtype is not wide):
            expected = _text(x.dtype) if data or wide is x.dtype else f"{_text(x.dtype)} or {_text(wide)}"
            raise ValueError(f"{function}: {name} has dtype {_text(tensor.dtype)}; expected {expected}")


def check_shape(function: str, name: str, tensor: Any, shape: Sequence[Any]) -> None:
    """ValueError for another shape, of sizes that may be symbols."""

    def sentence() -> str:
        return f"{function}: {name} has shape {tuple(tensor.shape)}; expected {tuple(shape)}"

    if tensor.ndim != len(shape):
        raise ValueError(sentence())
    for size, expected in zip(tensor.shape, shape):
        torch._check_value(size == expected, sentence)


def channels_of(function: str, x: Any) -> Any:
    """The size of axis 1. ValueError if there is none."""
    if x.ndim < 2:
        raise ValueError(f"{function}: x has shape {tuple(x.shape)}; expected at least 2 axes")
    return x.shape[1]


def check_divides(function: str, name: str, tensor: Any, axis: int, divisor: Any, expected: str) -> None:
    """ValueError if the size along an axis is no multiple of the divisor."""
    size = tensor.shape[axis]
    torch._check_value(
        divisor > 0 and size % divisor == 0,
        lambda: f"{function}: {name} has size {size} along axis {axis}; expected {expected}",
    )


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
