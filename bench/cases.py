# SPDX-License-Identifier: Apache-2.0
"""What is measured: named cases with the bytes that each cannot avoid moving, and the groups they are run in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ITEM_BYTES = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2}
MIB = 1 << 20
LARGE = 64 * MIB  # a tensor of this size or more is judged by the roofline targets

OPS = ("layer_norm", "rms_norm", "add_layer_norm", "add_rms_norm")
DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True, order=True)
class Case:
    """One operation on a rows x cols matrix, normalised over the columns, with weight (and bias for layer norms)."""

    op: str
    direction: str
    dtype: str
    rows: int
    cols: int

    def __post_init__(self) -> None:
        assert self.op in OPS and self.direction in DIRECTIONS and self.dtype in ITEM_BYTES
        assert self.rows > 0 and self.cols > 0

    @property
    def name(self) -> str:
        return f"{self.op}/{self.direction}/{self.dtype}/{self.rows}x{self.cols}"

    @property
    def kind(self) -> str:
        """The norm without its residual: layer_norm or rms_norm."""
        return self.op.removeprefix("add_")

    @property
    def residual(self) -> bool:
        return self.op.startswith("add_")

    @property
    def bias(self) -> bool:
        return self.kind == "layer_norm"

    @property
    def eps(self) -> float:
        return 1e-5 if self.kind == "layer_norm" else 1e-6

    @property
    def tensor_bytes(self) -> int:
        return self.rows * self.cols * ITEM_BYTES[self.dtype]

    @property
    def passes(self) -> int:
        """How often a tensor of x's size must cross the memory bus.

        forward: x in, y out; with a residual also residual in, sum out. backward: dy, x in, dx out; with a residual
        also the gradient that reached the sum.
        """
        if self.residual:
            return 4
        return 2 if self.direction == "forward" else 3

    @property
    def compulsory_bytes(self) -> int:
        """Tensor passes, plus the parameters (or their gradients as well) and the statistics, each moved once.

        Every forward is the training form, which writes the statistics that its backward reads.
        """
        parameters = (2 if self.bias else 1) * self.cols * ITEM_BYTES[self.dtype]
        statistics = (2 if self.kind == "layer_norm" else 1) * self.rows * (8 if self.dtype == "fp64" else 4)
        if self.direction == "backward":  # reads the weight, writes the gradients of weight and bias
            parameters += self.cols * ITEM_BYTES[self.dtype]
        return self.passes * self.tensor_bytes + parameters + statistics

    @property
    def band(self) -> str:
        """The class of column counts that a target speaks of."""
        if self.cols % 2:
            return "odd"
        return "narrow" if self.cols <= 256 else "wide" if self.cols <= 16384 else "huge"

    @classmethod
    def parse(cls, name: str) -> Case:
        op, direction, dtype, shape = name.split("/")
        rows, cols = shape.split("x")
        return cls(op, direction, dtype, int(rows), int(cols))


# Column counts and the models that have them.
NARROW = {64: "GPT-2 head", 128: "Llama, Qwen3 query/key norm", 256: "Gemma head"}
WIDE = {
    768: "BERT, GPT-2, ViT-B",
    1024: "BERT-large, ViT-L",
    1536: "Qwen2 1.5B",
    2048: "Llama 1B, Gemma 2B",
    2560: "Phi-2, Qwen3 4B",
    3072: "Llama 3B, Gemma 7B",
    4096: "Llama 8B, Mistral 7B",
    5120: "Llama 13B, Qwen3 32B",
    6144: "Mixtral 8x22B, Grok",
    8192: "Llama 70B",
    12288: "GPT-3",
    16384: "Llama 405B",
}
HUGE = (32768, 65536, 131072, 262144)
CORE = (64, 128, 768, 1024, 4096, 8192, 16384, 65536, 262144, 1000, 4097)  # where slow-starting rivals are measured
ODD = (33, 65, 127, 129, 255, 1001, 4097, 8191)
COMMON = (1000,)  # a whole number of 16-byte vectors, but of no power of two
PLAIN = ("layer_norm", "rms_norm")
FUSED = ("add_layer_norm", "add_rms_norm")


def rows_for(cols: int, dtype: str, at_least: int) -> int:
    """The smallest power of two of rows that makes a tensor of at least so many bytes."""
    rows = 1
    while rows * cols * ITEM_BYTES[dtype] < at_least:
        rows *= 2
    return rows


def each(ops: Iterable[str], dtypes: Iterable[str], shapes: Iterable[tuple[int, int]]) -> list[Case]:
    return [
        Case(op, direction, dtype, rows, cols)
        for dtype in dtypes
        for rows, cols in shapes
        for op in ops
        for direction in DIRECTIONS
    ]


def large(ops: Iterable[str], cols: Iterable[int]) -> list[Case]:
    """bf16 and fp32 cases of LARGE tensors; twice that from 32768 columns on, so that rows still fill a GPU."""
    return [
        case
        for dtype in ("bf16", "fp32")
        for n in cols
        for case in each(ops, (dtype,), [(rows_for(n, dtype, LARGE * (2 if n > 16384 else 1)), n)])
    ]


def peers() -> list[Case]:
    """The shapes on which the rivals have been surveyed; they mix sizes on purpose."""
    bf16 = [(16384, 256), (131072, 64), (65536, 128), (32768, 768), (16384, 1024), (16384, 4096), (8192, 8192)]
    bf16 += [(4096, 16384), (2048, 65536), (256, 262144), (32768, 1000), (8192, 4097), (128, 1024), (128, 8192)]
    both = [(16384, 1024), (16384, 4096), (8192, 8192), (2048, 65536)]
    fused = ("add_rms_norm",)
    return (
        each(PLAIN, ("bf16",), bf16)
        + each(fused, ("bf16",), both)
        + each(PLAIN, ("fp32",), both)
        + each(fused, ("fp32",), both)
    )


def grid() -> list[Case]:
    """Batch sizes from one token to 131072 by model widths, in the three common types; no tensor above 1 GiB."""
    shapes = [(m, n) for m in (1, 8, 64, 512, 2048, 8192, 32768, 131072) for n in WIDE]
    cases = each(PLAIN + FUSED, ("bf16", "fp16", "fp32"), shapes)
    return [case for case in cases if case.tensor_bytes <= 1024 * MIB]


SMALL_SHAPES = [(1, 4096), (8, 4096), (128, 128), (128, 1024), (128, 8192), (8192, 128), (4096, 768), (16 * 1024, 256)]
CPU_SHAPES = [(128, 128), (128, 1024), (512, 768), (512, 1000), (511, 257), (1024, 1001)]
CPU_SHAPES += [(16384, 256), (4096, 768), (2048, 4096)]

GROUPS = {
    "smoke": lambda: each(PLAIN + FUSED, ("bf16", "fp32"), [(128, 1024), (1024, 1001)]),
    "roofline": lambda: large(PLAIN, [*WIDE, *NARROW, *HUGE, *COMMON, *ODD]),
    "core": lambda: large(PLAIN, CORE),
    "residual": lambda: large(FUSED, [128, 1024, 4096, 8192, 16384, 65536, 4097]),
    "small": lambda: each(PLAIN, ("bf16", "fp32"), SMALL_SHAPES),
    "peers": peers,
    "cpu": lambda: each(PLAIN, ("fp32", "bf16"), CPU_SHAPES) + each(FUSED, ("fp32",), [(128, 1024), (4096, 768)]),
    "grid": grid,
}


def cases_of(groups: Iterable[str]) -> list[Case]:
    """The cases of the groups in order, each once."""
    return list(dict.fromkeys(case for group in groups for case in GROUPS[group]()))
