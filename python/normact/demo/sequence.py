# SPDX-License-Identifier: Apache-2.0
"""A small GPT and a small ViT, each of plain PyTorch modules and of normact's.

The nets take their parts, so that both forms have the same parameters in the same order: with the same seed they are
the same net. The residual stream is added in the norm that reads it next: `AddRMSNorm` and `AddLayerNorm` do in one
pass what PyTorch does in two, as do `SwiGLU` and `BiasGELU` behind the first product of a feed-forward half.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import normact.torch as nt


class PlainAddRMSNorm(nn.RMSNorm):
    """The sum, and its RMS norm."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Two passes."""
        total = x + residual
        return super().forward(total), total


class PlainAddLayerNorm(nn.LayerNorm):
    """The sum, and its layer norm."""

    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Two passes."""
        total = input + residual
        return super().forward(total), total


class PlainSwiGLU(nn.Module):
    """SiLU of the first half, times the second."""

    def forward(self, input: Tensor) -> Tensor:
        """Two passes."""
        gate, up = input.chunk(2, -1)
        return functional.silu(gate) * up


class PlainBiasGELU(nn.Module):
    """GELU of the sum with a learnt bias."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, input: Tensor) -> Tensor:
        """Two passes."""
        return functional.gelu(input + self.bias)


class Parts(NamedTuple):
    """What a net is made of besides products and attention."""

    norm: Callable[[int], nn.Module]  # of the width; forward(x, residual) -> norm, sum
    activation: Callable[[int], nn.Module]  # of its features
    gated: bool  # whether the activation takes twice its features


GPT_PARTS = (
    Parts(PlainAddRMSNorm, lambda features: PlainSwiGLU(), True),
    Parts(nt.AddRMSNorm, lambda features: nt.SwiGLU(), True),
)
VIT_PARTS = (
    Parts(PlainAddLayerNorm, PlainBiasGELU, False),
    Parts(nt.AddLayerNorm, nt.BiasGELU, False),
)


class Size(NamedTuple):
    """Of a net and of its batches."""

    width: int
    layers: int
    heads: int
    length: int  # of a sequence
    batch: int  # sequences


class Block(nn.Module):
    """Attention and a feed-forward half. What the last half gave is added to the residual stream by the next norm."""

    def __init__(self, parts: Parts, size: Size, causal: bool) -> None:
        super().__init__()
        width, hidden = size.width, (8 if parts.gated else 12) * size.width // 3
        self.heads, self.causal = size.heads, causal
        self.norm1, self.norm2 = parts.norm(width), parts.norm(width)
        self.to_heads, self.from_heads = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.first = nn.Linear(width, hidden * (2 if parts.gated else 1), bias=False)
        self.activation, self.last = parts.activation(hidden), nn.Linear(hidden, width, bias=False)

    def attend(self, x: Tensor) -> Tensor:
        """[batch, length, width] to the same."""
        batch, length, width = x.shape
        q, k, v = self.to_heads(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.from_heads(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        """What is still to be added to the residual stream, and the stream."""
        h, stream = self.norm1(x, stream)
        h, stream = self.norm2(self.attend(h), stream)
        return self.last(self.activation(self.first(h))), stream


class Trunk(nn.Module):
    """Blocks and the last norm."""

    def __init__(self, parts: Parts, size: Size, causal: bool) -> None:
        super().__init__()
        self.position = nn.Parameter(0.02 * torch.randn(size.length, size.width))
        self.blocks = nn.ModuleList([Block(parts, size, causal) for _ in range(size.layers)])
        self.norm = parts.norm(size.width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] to the same; the positions begin the residual stream."""
        stream = self.position.expand_as(x)
        for block in self.blocks:
            x, stream = block(x, stream)
        return self.norm(x, stream)[0]


class GPT(nn.Module):
    """For each byte [batch, length] the logits of the next: [batch, length, 256]."""

    def __init__(self, parts: Parts, size: Size) -> None:
        super().__init__()
        self.embed, self.trunk = nn.Embedding(256, size.width), Trunk(parts, size, causal=True)
        self.head = nn.Linear(size.width, 256, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        """Every position sees those before it."""
        return self.head(self.trunk(self.embed(text)))


class ViT(nn.Module):
    """For each image [batch, 1, 8, 8] ten numbers: how much it looks like each digit. Its words are 2 x 2 pixels."""

    def __init__(self, parts: Parts, size: Size) -> None:
        super().__init__()
        self.embed, self.trunk = nn.Linear(4, size.width), Trunk(parts, size, causal=False)
        self.head = nn.Linear(size.length * size.width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """All words are read."""
        words = images.unfold(2, 2, 2).unfold(3, 2, 2).reshape(len(images), -1, 4)
        return self.head(self.trunk(self.embed(words)).flatten(1))
