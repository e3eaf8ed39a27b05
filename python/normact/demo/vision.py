# SPDX-License-Identifier: Apache-2.0
"""A small ResNet and a small UNet, each with PyTorch's norms and with normact's fused ones.

The nets take the class of their norms, so that both forms have the same parameters in the same order: with the same
seed they are the same net. What PyTorch does in two or three passes, `FusedBatchNorm` (norm, add, ReLU) and
`FusedGroupNorm` (norm, SiLU) do in one, forward and backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

import normact


class FusedBatchNorm(torch.autograd.Function):
    """``relu(batch_norm(x) + addend)`` on normact's raw functions; of the sum one bit an element is kept."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, addend: Any, module: Any) -> Any:
        """Returns y and, in training, updates the module's running statistics in the same pass."""
        out = normact.batch_norm(
            x,
            weight,
            bias,
            module.running_mean,
            module.running_var,
            num_batches_tracked=module.num_batches_tracked,
            training=module.training,
            momentum=module.momentum,
            eps=module.eps,
            addend=addend,
            activation="relu",
            return_stats=True,
            return_mask=True,
        )
        ctx.training, ctx.has_addend = module.training, addend is not None
        ctx.save_for_backward(x, weight, bias, out.mean, out.rstd, out.mask)
        return out.y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Any) -> Any:
        """One call gives the gradients of x, weight, bias and the addend."""
        x, weight, bias, mean, rstd, mask = ctx.saved_tensors
        grads = normact.batch_norm_backward(
            dy,
            x,
            weight,
            bias,
            mean=mean,
            rstd=rstd,
            training=ctx.training,
            mask=mask,
            activation="relu",
            return_daddend=ctx.has_addend,
        )
        return grads.dx, grads.dweight, grads.dbias, grads.daddend, None


class FusedGroupNorm(torch.autograd.Function):
    """``silu(group_norm(x))`` on normact's raw functions; the backward computes what silu was applied to again."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, bias: Any, groups: int, eps: float) -> Any:
        """Returns y, and saves what the backward reads."""
        out = normact.group_norm(x, groups, weight, bias, eps=eps, activation="silu", return_stats=True)
        ctx.groups = groups
        ctx.save_for_backward(x, weight, bias, out.mean, out.rstd)
        return out.y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Any) -> Any:
        """One call gives the gradients of x, weight and bias."""
        x, weight, bias, mean, rstd = ctx.saved_tensors
        grads = normact.group_norm_backward(dy, x, ctx.groups, weight, bias, mean=mean, rstd=rstd, activation="silu")
        return grads.dx, grads.dweight, grads.dbias, None, None


class BatchNormRelu(nn.BatchNorm2d):
    """PyTorch's batch norm, an addition if there is something to add, and ReLU."""

    def forward(self, input: Tensor, addend: Tensor | None = None) -> Tensor:
        """Three passes."""
        h = super().forward(input)
        return functional.relu(h if addend is None else h + addend)


class FusedBatchNormRelu(nn.BatchNorm2d):
    """The same in one pass."""

    def forward(self, input: Tensor, addend: Tensor | None = None) -> Tensor:
        """The autograd function is given the module for its running statistics."""
        return FusedBatchNorm.apply(input, self.weight, self.bias, addend, self)


class GroupNormSilu(nn.GroupNorm):
    """PyTorch's group norm and SiLU."""

    def forward(self, input: Tensor) -> Tensor:
        """Two passes."""
        return functional.silu(super().forward(input))


class FusedGroupNormSilu(nn.GroupNorm):
    """The same in one pass."""

    def forward(self, input: Tensor) -> Tensor:
        """PyTorch's module holds the parameters."""
        return FusedGroupNorm.apply(input, self.weight, self.bias, self.num_groups, self.eps)


def _conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, bias: bool = False) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=bias)


class Block(nn.Module):
    """A ResNet's block: two convolutions, each with a batch norm, and what went in added before the last ReLU."""

    def __init__(self, norm: type[nn.BatchNorm2d], inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = _conv(inputs, outputs, stride=stride), norm(outputs)
        self.conv2, self.norm2 = _conv(outputs, outputs), norm(outputs)
        self.shortcut = _conv(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """BatchNorm-ReLU, then BatchNorm-Add-ReLU."""
        return self.norm2(self.conv2(self.norm1(self.conv1(x))), self.shortcut(x))


class ResNet(nn.Module):
    """Ten numbers for each image [images, 1, 8, 8]: how much it looks like each digit."""

    def __init__(self, norm: type[nn.BatchNorm2d]) -> None:
        super().__init__()
        self.stem, self.norm = _conv(1, 16), norm(16)
        self.blocks = nn.Sequential(Block(norm, 16, 16, 1), Block(norm, 16, 32, 2), Block(norm, 32, 64, 2))
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Stem, three blocks, mean over what is left of the image."""
        return self.head(self.blocks(self.norm(self.stem(x))).mean((2, 3)))


class UNet(nn.Module):
    """The noise in each image [images, 1, 8, 8]: down to 4 by 4 and up again, with a way across for the details."""

    def __init__(self, norm: type[nn.GroupNorm]) -> None:
        super().__init__()
        self.stem, self.norm0 = _conv(1, 16, bias=True), norm(4, 16)
        self.down, self.norm1 = _conv(16, 32, stride=2, bias=True), norm(8, 32)
        self.middle, self.norm2 = _conv(32, 32, bias=True), norm(8, 32)
        self.up, self.norm3 = _conv(32 + 16, 16, bias=True), norm(4, 16)
        self.last = _conv(16, 1, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """GroupNorm and SiLU after every convolution but the last."""
        fine = self.norm0(self.stem(x))
        coarse = self.norm2(self.middle(self.norm1(self.down(fine))))
        wide = functional.interpolate(coarse, scale_factor=2.0, mode="nearest")
        return self.last(self.norm3(self.up(torch.cat([wide, fine], 1))))
