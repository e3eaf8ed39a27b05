# SPDX-License-Identifier: Apache-2.0
"""Norms of up to some millions of elements as hypothesis draws them, and their tensors, on PyTorch's default device."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from large_reference import ACTIVATIONS, HALF_ULP, Activation, Inputs, Norm

ROWS, CHANNELS = ("layer_norm", "rms_norm"), ("batch_norm", "group_norm", "instance_norm")
DTYPES = tuple(HALF_ULP)
GUARD = 64  # elements around a tensor: so many that it begins in 16 bytes where its storage does
PLANES = ((1,), (7, 7), (14, 14), (15, 15), (28, 28), (56, 56), (112, 112), (224, 224), (4, 28, 28))


@dataclass(frozen=True)
class Layout:
    """Axes from the slowest to the fastest in memory, and elements left out: behind each of these, and in front; and
    axes over which an input that may be is the same, as a sum's gradient is.
    """

    order: tuple[int, ...]
    gaps: tuple[int, ...]
    offset: int
    expanded: tuple[int, ...] = dataclasses.field(default=(), compare=False)  # x and outputs are not

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Guarded:
        strides, step = [0] * len(shape), 1
        for axis, gap in zip(reversed(self.order), reversed(self.gaps), strict=True):
            strides[axis] = step
            step *= shape[axis] + gap
        storage = torch.full((GUARD + self.offset + step + GUARD,), math.nan, dtype=dtype)
        return Guarded(storage, storage.as_strided(shape, strides, GUARD + self.offset))

    def input(self, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        tensor = self.empty(tuple(values.shape), dtype).tensor.copy_(values)
        for axis in self.expanded:
            tensor = tensor.narrow(axis, 0, 1).expand(values.shape)
        return tensor


@dataclass(frozen=True)
class Guarded:
    """A tensor in a storage that is NaN around it."""

    storage: torch.Tensor
    tensor: torch.Tensor

    def assert_untouched(self, where: str) -> None:
        rest = self.storage.clone()
        rest.as_strided(self.tensor.shape, self.tensor.stride(), self.tensor.storage_offset()).fill_(math.nan)
        assert bool(rest.isnan().all()), f"{where} was written beside its elements"


def spoil_workspaces() -> None:
    """What PyTorch hands out next has numbers in it that are none of a call's own."""
    for bits_of_size in range(8, 24, 2):
        torch.full((1 << bits_of_size,), 3.0)


@dataclass(frozen=True)
class Problem:
    op: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]  # that are normalised (rows), or the channels'
    dtype: torch.dtype
    parameters: torch.dtype
    groups: int = 1  # of a group norm
    training: bool = True
    weight: bool = True
    bias: bool = True
    addend: torch.dtype | None = None  # a residual, if the op normalises rows
    activation: str | None = None
    slope_from: str = "x"  # y, mask
    mean: float = 0.0
    eps: float = 1e-5
    seed: int = 0

    @property
    def statistics(self) -> torch.dtype:
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def by_rows(self) -> bool:
        return self.op in ROWS

    @property
    def norm(self) -> Norm:
        """Over the dimensions of sets()."""
        over = (1,) if self.by_rows else (0, 2, 3) if self.op == "batch_norm" else (2, 3)
        return Norm(over, self.op != "rms_norm", self.eps, Activation(self.activation, self.dtype))

    def sets(self, tensor: torch.Tensor) -> torch.Tensor:
        """[rows, columns] or [samples, groups, channels of a group, places] of a tensor in the problem's shape."""
        if self.by_rows:
            ends = tuple(range(-len(self.axes), 0))
            return tensor.movedim(self.axes, ends).flatten(-len(self.axes)).reshape(-1, self.columns)
        moved = tensor.movedim(self.axes[0], 1)
        return moved.reshape(self.shape[0], *self.grouped, -1)

    def parameter_sets(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same of a weight or a bias, so that it broadcasts."""
        wide = tensor.double()
        return wide.reshape(1, -1) if self.by_rows else wide.reshape(1, *self.grouped, 1)

    def inputs(
        self, x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, addend: torch.Tensor | None
    ) -> Inputs:
        """The reference's."""
        return Inputs(
            self.sets(x).double(),
            None if weight is None else self.parameter_sets(weight),
            None if bias is None else self.parameter_sets(bias),
            None if addend is None else self.sets(addend).double(),
        )

    @property
    def columns(self) -> int:
        return math.prod(self.shape[axis] for axis in self.axes)

    @property
    def channels(self) -> int:
        return self.shape[self.axes[0]]

    @property
    def grouped(self) -> tuple[int, int]:
        """What is normalised together among the channels: so many, each of so many channels."""
        groups = self.groups if self.op == "group_norm" else self.channels
        return groups, self.channels // groups

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in self.axes)


@dataclass(frozen=True)
class Arrays:
    x: torch.Tensor
    dy: torch.Tensor
    addend: torch.Tensor | None
    weight: torch.Tensor | None
    bias: torch.Tensor | None


def arrays(problem: Problem, layout: Layout, other: Layout) -> Arrays:
    """x in one layout, dy and an addend in the other."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(problem.seed)

    def values(dtype: torch.dtype) -> torch.Tensor:
        return uneven(normal(problem.shape, dtype, generator), problem.seed)

    def parameter(wanted: bool) -> torch.Tensor | None:
        dtype = problem.parameters
        return normal(problem.parameter_shape, dtype, generator).to(dtype) if wanted else None

    return Arrays(
        layout.empty(problem.shape, problem.dtype).tensor.copy_(values(problem.dtype) + problem.mean),
        other.input(values(problem.dtype), problem.dtype),
        None if problem.addend is None else other.input(values(problem.addend), problem.addend),
        parameter(problem.weight),
        parameter(problem.bias),
    )


def normal(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """fp32, or of more digits where the dtype has them."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.randn(shape, generator=generator, dtype=wide)


def uneven(values: torch.Tensor, seed: int) -> torch.Tensor:
    """Larger at the end of some axes, so that a sum which leaves that out is seen to."""
    edge = torch.zeros_like(values, dtype=torch.bool)
    for axis in range(values.ndim):
        if seed >> axis & 1:
            edge.select(axis, -1).fill_(True)
    return torch.where(edge, 32 * values, values)


@st.composite
def sizes(draw: st.DrawFn, bits: int, *, fills: bool = False) -> int:
    """To 2^bits, as likely small as large (or half of that and more), and often a multiple of what packs and warps
    hold.
    """
    bits = max(bits, 0)
    size = draw(
        st.integers(1 << max(bits - 1, 0), 1 << bits) if fills else st.integers(1, 1 << draw(st.integers(0, bits)))
    )
    multiple = draw(st.sampled_from([1, 1, 2, 4, 8, 16, 32, 64]))
    return size if size < multiple else size // multiple * multiple


FILLS = st.sampled_from([True, True, False])


def totals(most: int) -> st.SearchStrategy[int]:
    """Elements of a problem, as a power of two: any, or large."""
    return st.one_of(st.integers(8, most), *[st.integers(most - 4, most)] * 2)


def bits(*counts: int) -> int:
    return (math.prod(counts) - 1).bit_length()


@st.composite
def layouts(draw: st.DrawFn, ndim: int) -> Layout:
    axes = tuple(range(ndim))
    last = (0, *range(2, ndim), 1) if ndim > 1 else axes
    order = draw(st.sampled_from([axes, axes, axes, last, last, last, None]))
    gap = st.sampled_from([0, 0, 0, 0, 0, 0, 1, 8])
    none = draw(st.booleans())
    return Layout(
        tuple(draw(st.permutations(axes))) if order is None else order,
        tuple(0 if none else draw(gap) for _ in axes),
        0 if none else draw(st.sampled_from([0, 0, 1, 4, 8])),
        draw(st.sampled_from([(), (), (), (), (0,), axes[1:], axes[-1:], axes])),
    )


def options(draw: st.DrawFn) -> dict[str, Any]:
    dtype = draw(st.sampled_from([*DTYPES[1:], *DTYPES]))
    statistics = torch.float64 if dtype == torch.float64 else torch.float32
    return {
        "dtype": dtype,
        "parameters": draw(st.sampled_from([dtype, statistics])),
        "weight": draw(st.booleans()) or draw(st.booleans()),
        "bias": draw(st.booleans()) or draw(st.booleans()),
        "activation": draw(st.one_of(st.none(), st.sampled_from(tuple(ACTIVATIONS)))),
        "mean": draw(st.sampled_from([0.0, 0.0, 3.0, -30.0])),
        "eps": draw(st.sampled_from([1e-6, 1e-5, 0.1])),
        "seed": draw(st.integers(0, 1 << 20)),
    }


@st.composite
def row_problems(draw: st.DrawFn, most: int) -> Problem:
    """Of 2^most elements or fewer, or of one sample."""
    given, total = options(draw), draw(totals(most))
    if draw(st.booleans()):
        columns = draw(sizes(min(20, most)))
        shape, axes = (draw(sizes(total - bits(columns), fills=draw(FILLS))), columns), (1,)
    else:
        planes = draw(st.sampled_from(PLANES[1:]))
        columns = draw(sizes(min(12, most - bits(*planes))))
        samples = draw(sizes(total - bits(columns, *planes), fills=draw(FILLS)))
        shape = (samples, columns, *planes)
        axes = draw(st.sampled_from([(1,), (1,), (1, 2), (0, 2), (1, len(shape) - 1), tuple(range(1, len(shape)))]))
    if draw(st.integers(0, 2)) == 0:
        sum_dtype = torch.float64 if given["dtype"] == torch.float64 else torch.float32
        given["addend"] = draw(st.sampled_from([given["dtype"], sum_dtype]))
    return Problem(draw(st.sampled_from(ROWS)), shape, axes, **given)


@st.composite
def channel_problems(draw: st.DrawFn, most: int, ops: tuple[str, ...] = CHANNELS) -> Problem:
    given, op, total = options(draw), draw(st.sampled_from(ops)), draw(totals(most))
    planes = draw(st.sampled_from(PLANES)) if draw(st.booleans()) else (draw(sizes(9)), draw(sizes(9)))
    channels = draw(sizes(min(11, most - bits(*planes))))
    samples = draw(sizes(min(14, total - bits(channels, *planes)), fills=draw(FILLS)))
    groups = draw(st.sampled_from([g for g in range(1, channels + 1) if channels % g == 0]))
    each = math.prod(planes) * (samples if op == "batch_norm" else channels // groups if op == "group_norm" else 1)
    given["training"] = op == "group_norm" or (each > 1 and draw(st.integers(0, 3)) > 0)
    if op == "batch_norm":
        given["addend"] = draw(st.sampled_from([None, given["dtype"]]))
        if given["activation"] == "relu":
            given["slope_from"] = draw(st.sampled_from(["x", "y", "mask"]))
    return Problem(op, (samples, channels, *planes), (1,), groups=groups, **given)


def part_problems(most: int) -> st.SearchStrategy[Problem]:
    """Batch norms in training."""
    return channel_problems(most, ("batch_norm",)).map(lambda problem: dataclasses.replace(problem, training=True))
