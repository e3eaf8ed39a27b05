# SPDX-License-Identifier: Apache-2.0
"""Copy kernels: one 16-byte load and store a thread and tensor, each block 4 KiB. Imported only where Triton is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

BLOCK = 1024  # int32 elements: 256 threads of 16 bytes


@triton.jit
def _stream(a, b, c, y, z, count, READS: tl.constexpr, WRITES: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    value = tl.load(a + index, mask=inside)
    if READS > 1:
        value = value ^ tl.load(b + index, mask=inside)
    if READS > 2:
        value = value ^ tl.load(c + index, mask=inside)
    tl.store(y + index, value, mask=inside)
    if WRITES > 1:
        tl.store(z + index, value, mask=inside)


def stream(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Writes the exclusive or of up to three tensors of int32 into one or two: a copy of one is a copy."""
    reads, writes, count = len(sources), len(targets), sources[0].numel()
    a, b, c = (*sources, *[sources[0]] * (3 - reads))
    y, z = (*targets, *[targets[0]] * (2 - writes))
    grid = (triton.cdiv(count, BLOCK),)
    kernel: Any = _stream  # what Triton declares of it differs from version to version
    kernel[grid](a, b, c, y, z, count, READS=reads, WRITES=writes, BLOCK=BLOCK, num_warps=8)
