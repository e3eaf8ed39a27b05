# SPDX-License-Identifier: Apache-2.0
"""What all public functions do with their arguments first."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._C import _is_any_autocast_enabled

from normact.torch.call import nested, not_a_tensor


def check_tensor(function: str, name: str, value: Any) -> None:
    """Raises TypeError for what is no dense tensor of PyTorch."""
    if not isinstance(value, torch.Tensor):
        raise not_a_tensor(function, name, value)
    if value.is_nested:
        raise nested(function, name)


_NARROW = (torch.bfloat16, torch.float16)


def is_mixed(narrow: Any, wide: Any) -> bool:
    """Whether a tensor of 16 bits goes with one of float32; of what is no tensor, the library says so."""
    return getattr(wide, "dtype", None) is torch.float32 and getattr(narrow, "dtype", None) in _NARROW


def matched(tensors: tuple[Any, ...], count: int = 1, *, mixed: bool = False) -> tuple[Any, ...]:
    """The tensors in dtypes that go together, which differ only under autocast.

    There matmuls give the low dtype, and what did not come from one is float32. So the first `count` tensors take the
    widest dtype among them, as PyTorch's addition and multiplication do, unless they are `mixed`, which the operation
    takes as they are; and the others, parameters, are made float32 if they have neither that nor the data's dtype.
    Without autocast nothing is converted: the library refuses a mixture.
    """
    if not _is_any_autocast_enabled():
        return tensors
    like, parameters = tensors[:count], tensors[count:]
    device = like[0].device.type
    # Not torch.amp.is_autocast_available(device), which PyTorch 2.11 cannot trace.
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return tensors
    if not all(tensor is None or isinstance(tensor, torch.Tensor) for tensor in tensors):
        return tensors  # which is refused where it is used
    dtype, same = like[0].dtype, like
    if not mixed:
        for tensor in like:
            if tensor is not None:
                dtype = torch.promote_types(dtype, tensor.dtype)
        same = tuple(None if tensor is None else tensor.to(dtype) for tensor in like)
    fits = (dtype, torch.float32)
    return same + tuple(p if p is None or p.dtype in fits else p.float() for p in parameters)


def negative(function: str, dim: int, name: str, tensor: torch.Tensor) -> int:
    """The dimension counted from the last, so that leading ones may be added. ValueError for a wrong one."""
    if not isinstance(dim, int):
        try:
            dim = operator.index(dim)
        except TypeError:
            raise TypeError(f"{function}: dim is of type {type(dim).__name__}; expected an int") from None
    ndim = tensor.ndim
    if ndim == 0:
        raise ValueError(f"{function}: {name} is 0-D; expected at least 1 dimension, of which dim is one")
    if not -ndim <= dim < ndim:
        raise ValueError(f"{function}: dim is {dim} and {name} is {ndim}-D; expected one of -{ndim} to {ndim - 1}")
    return dim if dim < 0 else dim - ndim
