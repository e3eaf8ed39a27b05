# SPDX-License-Identifier: Apache-2.0
"""A small ResNet and a small UNet, each with PyTorch's norms and with normact's fused ones.

The nets take the class of their norms, so that both forms have the same parameters in the same order: with the same
seed they are the same net. What PyTorch does in two or three passes, `BatchNormAddReLU2d` and `GroupNormSiLU` of
`normact.torch` do in one, forward and backward.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

import normact.torch as nt


class BatchNormRelu(nn.BatchNorm2d):
    """PyTorch's batch norm, an addition if there is something to add, and ReLU."""

    def forward(self, input: Tensor, addend: Tensor | None = None) -> Tensor:
        """Three passes."""
        h = super().forward(input)
        return functional.relu(h if addend is None else h + addend)


class GroupNormSilu(nn.GroupNorm):
    """PyTorch's group norm and SiLU."""

    def forward(self, input: Tensor) -> Tensor:
        """Two passes."""
        return functional.silu(super().forward(input))


#: PyTorch's norms of a ResNet and normact's: behind the first convolution of a block, and at its end.
RESNET_NORMS = (BatchNormRelu, BatchNormRelu), (nt.BatchNormReLU2d, nt.BatchNormAddReLU2d)

Norms = tuple[type[nn.BatchNorm2d], type[nn.BatchNorm2d]]


def _conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, bias: bool = False) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=bias)


class Block(nn.Module):
    """A ResNet's block: two convolutions, each with a batch norm, and what went in added before the last ReLU."""

    def __init__(self, norms: Norms, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        norm, add_norm = norms
        self.conv1, self.norm1 = _conv(inputs, outputs, stride=stride), norm(outputs)
        self.conv2, self.norm2 = _conv(outputs, outputs), add_norm(outputs)
        self.shortcut = _conv(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """BatchNorm-ReLU, then BatchNorm-Add-ReLU."""
        return self.norm2(self.conv2(self.norm1(self.conv1(x))), self.shortcut(x))


class ResNet(nn.Module):
    """Ten numbers for each image [images, 1, 8, 8]: how much it looks like each digit."""

    def __init__(self, norms: Norms) -> None:
        super().__init__()
        self.stem, self.norm = _conv(1, 16), norms[0](16)
        self.blocks = nn.Sequential(Block(norms, 16, 16, 1), Block(norms, 16, 32, 2), Block(norms, 32, 64, 2))
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
