# SPDX-License-Identifier: Apache-2.0
"""Batch norm with the statistics of all processes of a group.

Two collectives a step: the moments of every process are gathered and merged in the order of ranks, each with its own
number of elements, and the backward's two sums a channel are added up. A process may have no elements at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from normact import batch_norm_parts as parts
from normact.activation_calls import FROM_OUTPUT
from normact.torch import fakes
from normact.torch.call import check_tensors
from normact.torch.channel_norms import kept_in, write_back
from normact.torch.channel_ops import BATCH_NORM_ADD_UPDATE
from normact.torch.functions import refusal
from normact.torch.inputs import check_tensor, matched

if TYPE_CHECKING:
    from torch import Tensor


def _gather(moments: Tensor, group: Any) -> Tensor:
    """The moments (3, C) of all processes, of shape (K, 3, C)."""
    found = moments.new_empty(dist.get_world_size(group), *moments.shape)
    if dist.get_backend(group) == "nccl":
        dist.all_gather_into_tensor(found, moments, group)
    else:
        dist.all_gather(list(found.unbind()), moments, group)
    return found


class _Synchronised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Any,
        addend: Any,
        weight: Any,
        bias: Any,
        running: tuple[Any, Any, Any],
        momentum: float | None,
        eps: float,
        activation: str | None,
        alpha: float | None,
        group: Any,
    ) -> Any:
        moments = _gather(parts.batch_norm_statistics(x), group)
        running_mean, running_var, batches = running
        merged = parts.batch_norm_merge(
            moments, running_mean, running_var, num_batches_tracked=batches, momentum=momentum, eps=eps
        )
        mean, rstd, *_ = merged
        ctx.act = {"activation": activation, "alpha": alpha}
        y = parts.batch_norm_apply(x, weight, bias, mean=mean, rstd=rstd, addend=addend, **ctx.act)
        ctx.has_addend, ctx.group = addend is not None, group
        kept = None, None
        if addend is not None and activation is not None:  # h comes from x again, and from the addend or from y alone
            kept = (None, y) if activation in FROM_OUTPUT else (addend, None)
        ctx.save_for_backward(x, weight, bias, mean, rstd, moments[:, 2].sum(0), *kept)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        if torch.is_grad_enabled():
            return _Once.apply(lambda: _gradients(ctx, dy.detach()), dy) + (None,) * 6
        return _gradients(ctx, dy) + (None,) * 6


def _gradients(ctx: Any, dy: Any) -> tuple[Any, ...]:
    """Those of x, addend, weight and bias; the last two are this process's own, as DDP averages them."""
    dy = dy.resolve_neg()
    x, weight, bias, mean, rstd, count, addend, y = ctx.saved_tensors
    inputs = {"mean": mean, "rstd": rstd, "addend": addend, "y": y, **ctx.act}
    sums = parts.batch_norm_reduce(dy, x, weight, bias, **inputs)
    dweight = None if weight is None else sums[0].to(weight.dtype, copy=True)
    dbias = None if bias is None else sums[1].to(bias.dtype, copy=True)
    dist.all_reduce(sums, group=ctx.group)
    dx, _, _, daddend = parts.batch_norm_input_gradient(
        dy, x, weight, bias, sums=sums, count=count, return_daddend=ctx.has_addend, **inputs
    )
    return dx, daddend, dweight, dbias


class _Once(torch.autograd.Function):
    """Gradients that are there, but not to be differentiated."""

    @staticmethod
    def forward(ctx: Any, compute: Any, dy: Any) -> Any:
        return compute()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise refusal("sync_batch_norm")


@torch.compiler.disable
def sync_batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    *,
    group: Any = None,
    num_batches_tracked: Tensor | None = None,
    addend: Tensor | None = None,
    activation: str | None = None,
    alpha: float | None = None,
) -> Tensor:
    """`batch_norm` in training over all processes of a group of `torch.distributed`.

    Every process of the group must call it, also with no elements. `torch.compile` breaks the graph here, as it does
    for PyTorch's own.

    Parameters
    ----------
    group : ProcessGroup, optional
        The processes; default is all.
    input, running_mean, running_var, weight, bias, momentum, eps, num_batches_tracked, addend, activation, alpha
        As in `batch_norm`.

    Returns
    -------
    y : Tensor
        As in `batch_norm`.

    Raises
    ------
    ValueError, TypeError, NotImplementedError
        As in `batch_norm`.
    RuntimeError
        `torch.distributed` is not initialised.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "sync_batch_norm: torch.distributed is not initialised; expected torch.distributed.init_process_group() "
            "to have run, or batch_norm"
        )
    name = "sync_batch_norm"
    check_tensor(name, "input", input)
    tensors = matched((input, addend, weight, bias), 2)
    running = kept_in(name, tensors[0], running_mean, running_var)
    states = (*running, num_batches_tracked)
    # Before the others are met: one process that raises there would leave them waiting.
    op = BATCH_NORM_ADD_UPDATE.op
    check_tensors(name, op.tensors, tensors + states)
    fakes.check(op, tensors + states, (True, eps, activation, alpha, momentum), name)
    y = _Synchronised.apply(*tensors, states, momentum, eps, activation, alpha, group)
    write_back((running_mean, running_var), running)
    return y
