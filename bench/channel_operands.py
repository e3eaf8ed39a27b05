# SPDX-License-Identifier: Apache-2.0
"""The tensors of a batch, group or instance norm, and what float64 gives for them; operands.py does the others.

What is worked on at a time is a slice of the channels (batch norm) or of the samples, since those depend on nothing
else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from bench.cases import Case
from bench.formulas import reference
from bench.operands import CHUNK, DTYPES, ROUNDOFF, Expectation, Operands
from bench.operations import LAYOUTS

# As operands.TERMS; a weight of up to 4 multiplies what a dx consists of.
TERMS = {"y": 8.0, "dx": 64.0, "daddend": 16.0}


def make(case: Case, device: str) -> Operands:
    op, forward, dtype = case.operation, case.direction == "forward", DTYPES[case.dtype]

    def images(normal: bool, layout: str = op.layout) -> Any:
        """A tensor of the case's shape; only x may lie elsewhere than in NCHW or NHWC."""
        n, c, *places = case.shape
        larger = {"slice": (n, 2 * c, *places), "crop": (n, c, *(size + 2 for size in places))}
        shape = (n, *places, c) if layout == "nhwc" else larger.get(layout, case.shape)
        tensor = (torch.randn if normal else torch.empty)(*shape, device=device, dtype=dtype)
        if layout == "crop":
            return tensor[(..., *(slice(1, -1) for _ in places))]
        return tensor.movedim(-1, 1) if layout == "nhwc" else tensor[:, :c]

    beside = op.layout if op.layout in LAYOUTS else "nchw"

    vector = {"device": device, "dtype": DTYPES[case.parameter_dtype]}
    statistic = {"device": device, "dtype": torch.float64 if case.dtype == "fp64" else torch.float32}
    o = Operands(images(True))
    o.weight, o.bias = (torch.randn(case.shape[1], **vector) for _ in range(2))
    o.mean, o.rstd = (torch.empty(case.statistics_shape, **statistic) for _ in range(2))
    o.addend = images(True, beside) if op.addend else None
    if op.mask:
        count = (math.prod(case.shape) + 7) // 8
        o.mask = torch.zeros((count, 1) if op.layout == "nhwc" else (count,), device=device, dtype=torch.uint8)
    if forward:
        o.y = images(False, beside)
        return o
    o.dy, o.dx = images(True, beside), images(False, beside)
    o.dweight, o.dbias = torch.empty_like(o.weight), torch.empty_like(o.bias)
    o.daddend = images(False, beside) if op.addend else None
    for part in _slices(case):
        mean, rstd = _statistics(case, _exact(o.x, part))
        o.mean[_of_statistics(case, part)], o.rstd[_of_statistics(case, part)] = mean, rstd
    if op.applied == "relu":
        _keep_off_the_corner(case, o)
    return o


def _keep_off_the_corner(case: Case, o: Operands) -> None:
    """No gradient comes in where rounding alone may decide whether h is positive; the mask holds where it is."""
    positive = torch.empty(case.shape, device=o.x.device, dtype=torch.bool) if case.operation.mask else None
    for part in _slices(case):
        h = _forward(case, o, part, False)
        o.dy[part].masked_fill_(h.abs() < 16 * ROUNDOFF[case.dtype], 0)
        if positive is not None:
            positive[part] = h > 0
    if positive is not None:
        if o.mask.ndim == 2:  # bits in the order of channels last
            positive = positive.movedim(1, -1)
        bits = torch.nn.functional.pad(positive.flatten(), (0, -positive.numel() % 8)).view(-1, 8)
        for bit in range(8):
            o.mask |= (bits[:, bit].to(torch.uint8) << bit).view_as(o.mask)


def _slices(case: Case) -> Iterator[Any]:
    """Of the channels for a batch norm, of the samples for the others; with few elements each."""
    axis = 1 if case.kind == "batch_norm" else 0
    count = case.shape[axis]
    step = max(1, CHUNK * count // math.prod(case.shape))
    for start in range(0, count, step):
        part = slice(start, min(start + step, count))
        yield (slice(None), part) if axis else part


def _exact(tensor: torch.Tensor, part: Any) -> torch.Tensor:
    """In float64 and NCHW: PyTorch 2.13 differentiates instance_norm of one sample in channels_last wrongly."""
    return tensor[part].double().contiguous()


def _of_channels(case: Case, part: Any) -> slice:
    return part[1] if case.kind == "batch_norm" else slice(None)


def _of_statistics(case: Case, part: Any) -> slice:
    return part[1] if case.kind == "batch_norm" else part


def _statistics(case: Case, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and 1 / sqrt(variance + eps) of a slice, in float64."""
    if case.kind == "batch_norm":
        sets = x.transpose(0, 1).flatten(1)
    else:
        sets = x.flatten(1).unflatten(1, (case.groups, -1))
    mean = sets.mean(-1)
    return mean, ((sets - mean[..., None]).square().mean(-1) + case.eps).rsqrt()


def _forward(case: Case, o: Operands, part: Any, activated: bool = True, **leaves: torch.Tensor) -> torch.Tensor:
    """y of a slice in float64, or what the activation is applied to."""
    channels = _of_channels(case, part)
    x = leaves.get("x", _exact(o.x, part))
    addend = leaves.get("addend", None if o.addend is None else _exact(o.addend, part))
    weight, bias = (leaves.get(name, getattr(o, name)[channels].double()) for name in ("weight", "bias"))
    return reference(case, activated=activated)(x, addend, weight, bias)[0]


def expectations(case: Case, o: Operands) -> Iterator[Expectation]:
    """As operands.check wants them."""
    if case.direction == "forward":
        for part in _slices(case):
            yield "y", part, _forward(case, o, part), TERMS["y"]
            for name, value in zip(("mean", "rstd"), _statistics(case, _exact(o.x, part)), strict=True):
                yield name, _of_statistics(case, part), value, 1.0
        return
    sums = {name: torch.zeros_like(getattr(o, name), dtype=torch.float64) for name in ("weight", "bias")}
    for part in _slices(case):
        channels = _of_channels(case, part)
        leaves = {"x": _exact(o.x, part), "weight": o.weight[channels].double(), "bias": o.bias[channels].double()}
        if o.addend is not None:
            leaves["addend"] = _exact(o.addend, part)
        leaves = {name: leaf.requires_grad_() for name, leaf in leaves.items()}
        with torch.enable_grad():
            y = _forward(case, o, part, **leaves)
        found = dict(zip(leaves, torch.autograd.grad(y, list(leaves.values()), _exact(o.dy, part)), strict=True))
        for name in ("x", "addend"):
            if name in found:
                yield f"d{name}", part, found[name], TERMS[f"d{name}"]
        for name, total in sums.items():
            total[channels] += found[name]
    added = math.prod(case.shape) // case.shape[1]
    for name, total in sums.items():
        yield f"d{name}", slice(None), total, max(added / 4, 1.0)
