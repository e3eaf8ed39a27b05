# SPDX-License-Identifier: Apache-2.0
"""Batch, group and instance norm with PyTorch's arguments, differentiable. Channels are dimension 1."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from normact.torch.call import call
from normact.torch.channel_ops import (
    BATCH_NORM,
    BATCH_NORM_ADD,
    BATCH_NORM_ADD_UPDATE,
    BATCH_NORM_UPDATE,
    GROUP_NORM,
    INSTANCE_NORM_UPDATE,
)
from normact.torch.inputs import check_tensor, matched
from normact.torch.op import statistic_dtype

if TYPE_CHECKING:
    from torch import Tensor


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    activation: str | None = None,
    alpha: float | None = None,
) -> Tensor:
    """`torch.nn.functional.group_norm` with an activation in the same pass.

    Parameters
    ----------
    input : Tensor
        float64, float32, float16 or bfloat16, of shape ``(N, C, ...)``; contiguous, channels_last or any strides.
    num_groups : int
        Divides C.
    weight, bias : Tensor, optional
        Of shape ``(C,)``; the dtype of input, or float32 beside 16 bits.
    eps : float
        Added to the variance.
    activation, alpha
        As in `layer_norm`.

    Returns
    -------
    y : Tensor
        Shape, dtype, device and memory layout of input, also under autocast.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `layer_norm`.

    Examples
    --------
    >>> import torch
    >>> group_norm(torch.tensor([[1.0, 3.0, 10.0, 30.0]]), 2, eps=0.0).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """
    check_tensor("group_norm", "input", input)
    return call(GROUP_NORM, matched((input, weight, bias)), (num_groups, eps, activation, alpha))


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    activation: str | None = None,
    alpha: float | None = None,
) -> Tensor:
    """`torch.nn.functional.instance_norm` with an activation in the same pass.

    Parameters, results and errors are those of `batch_norm`; the statistics are of each sample, or without
    `use_input_stats` the running ones. ValueError also for one value a channel of a sample.

    Examples
    --------
    >>> import torch
    >>> instance_norm(torch.tensor([[[1.0, 3.0], [10.0, 30.0]]]), eps=0.0).tolist()
    [[[-1.0, 1.0], [-1.0, 1.0]]]
    """
    name = "instance_norm"
    check_tensor(name, "input", input)
    tensors = matched((input, weight, bias))
    if not use_input_stats:
        running = kept_in(name, input, running_mean, running_var)
        return call(BATCH_NORM, tensors + running, (False, eps, activation, alpha))
    if input.ndim < 2:
        raise ValueError(f"{name}: input is {input.ndim}-D; expected at least 2 dimensions, (N, C, ...)")
    options = (input.shape[1] or 1, eps, activation, alpha)
    running = kept_in(name, input, running_mean, running_var)
    if math.prod(input.shape[2:]) == 1:
        raise ValueError(
            f"{name}: input has shape {tuple(input.shape)}, one value a channel of a sample; expected more than one"
        )
    if running_mean is None and running_var is None:
        return call(GROUP_NORM, tensors, options)
    y = call(INSTANCE_NORM_UPDATE, tensors + running, (*options, momentum))
    write_back((running_mean, running_var), running)
    return y


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    *,
    num_batches_tracked: Tensor | None = None,
    addend: Tensor | None = None,
    activation: str | None = None,
    alpha: float | None = None,
) -> Tensor:
    """`torch.nn.functional.batch_norm`, and what may be done in the same pass.

    With the statistics of the batch in training, the running ones else::

        y = act((input - mean) / sqrt(var + eps) * weight + bias + addend)

    Parameters
    ----------
    input : Tensor
        float64, float32, float16 or bfloat16, of shape ``(N, C, ...)``; contiguous, channels_last or any strides.
    running_mean, running_var : Tensor or None
        Of shape ``(C,)``; float32 (float64 for float64), others are converted. Updated in place in training.
    weight, bias : Tensor, optional
        Of shape ``(C,)``; the dtype of input, or float32 beside 16 bits.
    training : bool
        Whether the statistics are those of the batch.
    momentum : float, optional
        The weight of this batch in the running statistics; None for ``1 / num_batches_tracked``.
    eps : float
        Added to the variance.
    num_batches_tracked : Tensor, optional
        int64, of shape ``()``; counted up in training beside running statistics.
    addend : Tensor, optional
        Shape and dtype of input; added before the activation. With "relu" the end of a ResNet's block.
    activation, alpha
        As in `layer_norm`.

    Returns
    -------
    y : Tensor
        Shape, dtype, device and memory layout of input, also under autocast.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `layer_norm`; ValueError also for one value a channel in training.

    Examples
    --------
    >>> import torch
    >>> batch_norm(torch.tensor([[1.0], [3.0]]), None, None, training=True, eps=0.0, activation="relu").tolist()
    [[0.0], [1.0]]
    """
    check_tensor("batch_norm", "input", input)
    if addend is None:
        tensors, plain, updating = matched((input, weight, bias)), BATCH_NORM, BATCH_NORM_UPDATE
    else:
        tensors, plain, updating = matched((input, addend, weight, bias), 2), BATCH_NORM_ADD, BATCH_NORM_ADD_UPDATE
    running = kept_in("batch_norm", tensors[0], running_mean, running_var)
    options = (bool(training), eps, activation, alpha)
    if not training or (running_mean is None and running_var is None):
        return call(plain, tensors + running, options)
    y = call(updating, (*tensors, *running, num_batches_tracked), (*options, momentum))
    write_back((running_mean, running_var), running)
    return y


def kept_in(function: str, input: Any, mean: Any, variance: Any) -> tuple[Any, Any]:
    """Running statistics in the dtype that the library keeps them in: themselves, or copies."""
    dtype = statistic_dtype(input.dtype)
    return _kept(function, "running_mean", mean, dtype), _kept(function, "running_var", variance, dtype)


def _kept(function: str, name: str, statistic: Any, dtype: Any) -> Any:
    if statistic is None:
        return None
    check_tensor(function, name, statistic)
    if statistic.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{function}: {name} requires a gradient, which a running statistic has none of; expected a "
            "tensor that does not"
        )
    if statistic.dtype is dtype:
        return statistic
    if not statistic.is_floating_point():
        raise TypeError(
            f"{function}: {name} has dtype {str(statistic.dtype).removeprefix('torch.')}; expected a "
            "floating-point one, of which rounding leaves something"
        )
    return statistic.to(dtype)


def write_back(given: tuple[Any, ...], used: tuple[Any, ...]) -> None:
    """Copies what was updated to where it came from."""
    for each, new in zip(given, used):
        if each is not new:
            each.copy_(new)
