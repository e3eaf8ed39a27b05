# SPDX-License-Identifier: Apache-2.0
"""What is measured: named cases with the bytes that each cannot avoid moving. bench.groups has those that are run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.operations import OPERATIONS, Operation, Traffic

ITEM_BYTES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2}
MIB = 1 << 20
LARGE = 64 * MIB  # a tensor of this size or more is judged by the roofline targets
GROUP_COUNT = 32  # of group norms

OPS = tuple(OPERATIONS)
DIRECTIONS = ("forward", "backward")
Shape = tuple[int, ...]


@dataclass(frozen=True, order=True)
class Case:
    """One operation on y of this shape: row norms over the last axis, biases along it; of images (NCHW) both on axis 1,
    where the operation does not name others.

    The shape of batch, group and instance norms is that of NCHW, wherever the channels lie in memory.
    """

    op: str
    direction: str
    dtype: str
    shape: Shape

    def __post_init__(self) -> None:
        assert self.op in OPS and self.direction in DIRECTIONS and self.dtype in ITEM_BYTES
        assert self.direction == "backward" or not self.operation.from_output
        assert ITEM_BYTES[self.dtype] == 2 or not self.operation.mixed
        assert len(self.shape) >= 2 and min(self.shape) > 0

    @property
    def shape_text(self) -> str:
        return "x".join(map(str, self.shape))

    @property
    def name(self) -> str:
        return f"{self.op}/{self.direction}/{self.dtype}/{self.shape_text}"

    @property
    def operation(self) -> Operation:
        return OPERATIONS[self.op]

    @property
    def family(self) -> str:
        return self.operation.family

    @property
    def kind(self) -> str:
        """The function of normact: of a norm without its residual, of an activation without its bias."""
        return self.operation.function

    @property
    def residual(self) -> bool:
        return self.operation.residual

    @property
    def bias(self) -> bool:
        return self.operation.bias

    @property
    def eps(self) -> float:
        return 1e-6 if self.kind == "rms_norm" else 1e-5

    @property
    def images(self) -> bool:
        return len(self.shape) == 4

    @property
    def permuted(self) -> bool:
        """Whether it is a norm over other axes than the last."""
        return self.family == "norm" and self.axes != (len(self.shape) - 1,)

    @property
    def axis(self) -> int:
        """The axis of the parameters: that of the channels in NCHW, else the last."""
        return 1 if self.images or self.family == "channel" else -1

    @property
    def axes(self) -> Shape:
        """The axes that a norm is over, and those of the parameters."""
        return self.operation.axes or (self.axis % len(self.shape),)

    @property
    def rows(self) -> int:
        return math.prod(self.shape) // self.cols

    @property
    def cols(self) -> int:
        return math.prod(self.shape[axis] for axis in self.axes) if self.family == "norm" else self.shape[-1]

    @property
    def groups(self) -> int:
        """Of the channels, in group and instance norm."""
        return self.shape[1] if self.kind == "instance_norm" else GROUP_COUNT

    @property
    def statistics_shape(self) -> Shape:
        """Of each statistic."""
        if self.family != "channel":
            return tuple(size for axis, size in enumerate(self.shape) if axis not in self.axes)
        return (self.shape[1],) if self.kind == "batch_norm" else (self.shape[0], self.groups)

    @property
    def parameter_dtype(self) -> str:
        """fp32 in a batch norm of 16 bits, as everyone trains it, and beside a residual in fp32, as under autocast."""
        wide = self.operation.mixed or (self.kind == "batch_norm" and self.dtype != "fp64")
        return "fp32" if wide else self.dtype

    @property
    def sum_dtype(self) -> str:
        """Of a residual, of its sum and of their gradients."""
        return "fp32" if self.operation.mixed else self.dtype

    @property
    def set_bytes(self) -> int:
        """Of what is read and normalised together: in the backward dy too."""
        sets = self.shape[1] if self.kind == "batch_norm" else math.prod(self.statistics_shape)
        return self.traffic[0] * self.tensor_bytes // sets

    @property
    def input_shape(self) -> Shape:
        """Of x, which holds gate and up of a gated activation."""
        return (*self.shape[:-1], 2 * self.cols) if self.family == "gated" else self.shape

    @property
    def tensor_bytes(self) -> int:
        """Of y."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def traffic(self) -> Traffic:
        """How many tensors of y's size must be read, and how many written."""
        return self.operation.forward if self.direction == "forward" else self.operation.backward

    @property
    def compulsory_bytes(self) -> int:
        """Tensor passes, plus the parameters (or their gradients as well) and the statistics, each moved once.

        Every forward of a norm is the training form, which writes the statistics that its backward reads.
        """
        op, backward = self.operation, self.direction == "backward"
        given = op.weight + op.bias
        moved = given + (given > 0) * backward  # a backward reads the first and writes the gradients of all
        parameters = moved * math.prod(self.shape[axis] for axis in self.axes) * ITEM_BYTES[self.parameter_dtype]
        statistics = op.statistics * math.prod(self.statistics_shape) * (8 if self.dtype == "fp64" else 4)
        mask = math.prod(self.shape) // 8 if op.mask else 0
        return sum(self.traffic) * self.tensor_bytes + parameters + statistics + mask

    @property
    def band(self) -> str:
        """The class of column counts that a target speaks of; what has no rows has none."""
        if self.family != "norm":
            return "any"
        if self.operation.axes:
            return "axes"
        if self.images:
            return "channels"
        if self.cols % 2:
            return "odd"
        bounds = {256: "narrow", 16384: "wide", 262144: "huge"}
        return next((band for most, band in bounds.items() if self.cols <= most), "long")

    @classmethod
    def parse(cls, name: str) -> Case:
        op, direction, dtype, shape = name.split("/")
        return cls(op, direction, dtype, tuple(map(int, shape.split("x"))))
