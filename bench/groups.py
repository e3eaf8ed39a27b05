# SPDX-License-Identifier: Apache-2.0
"""The shapes of models that are measured, and the groups of cases that they are run in."""

from __future__ import annotations

from collections.abc import Iterable

from bench.cases import DIRECTIONS, ITEM_BYTES, LARGE, MIB, Case, Shape
from bench.operations import APPLIED, AXES, BIASED, FROM_OUTPUT, GATES, KINDS, OPERATIONS, laid_out

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
WIDE_ODD = (9001, 12289, 30001, 50257, 100_003)  # more than a block holds; 50257 are GPT-2's tokens
LONG_ROWS = ((2, 2_097_152), (4, 802_816), (64, 802_816), (8, 401_408))  # whole images of 256x56x56 and others
COMMON = (1000,)  # a whole number of 16-byte vectors, but of no power of two
PLAIN = ("layer_norm", "rms_norm")
FUSED = ("add_layer_norm", "add_rms_norm")
MIXED = tuple(f"mixed_{name}" for name in FUSED)
ACTIVATED = tuple(f"{norm}_{kind}" for norm in PLAIN for kind in APPLIED)
OVER, OVER_SAMPLES = (tuple(n for n, operation in OPERATIONS.items() if operation.axes == axes) for axes in AXES)
ACTIVATED_WIDTHS = (256, 1024, 4096, 8192, 16384)


def rows_for(cols: int, dtype: str, at_least: int) -> int:
    """The smallest power of two of rows that makes a tensor of at least so many bytes."""
    rows = 1
    while rows * cols * ITEM_BYTES[dtype] < at_least:
        rows *= 2
    return rows


def each(ops: Iterable[str], dtypes: Iterable[str], shapes: Iterable[Shape]) -> list[Case]:
    return [
        Case(op, direction, dtype, shape)
        for dtype in dtypes
        for shape in shapes
        for op in ops
        for direction in DIRECTIONS
        if direction == "backward" or not OPERATIONS[op].from_output
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
    few = [(16384, 1024), (16384, 4096), (8192, 8192), (2048, 65536)]
    fused = ("add_rms_norm",)
    return (
        each(PLAIN, ("bf16",), bf16)
        + each(fused, ("bf16",), few)
        + each(PLAIN, ("fp32",), few)
        + each(fused, ("fp32",), few)
    )


def grid() -> list[Case]:
    """Batch sizes from one token to 131072 by model widths, in the three common types; no tensor above 1 GiB."""
    shapes = [(m, n) for m in (1, 8, 64, 512, 2048, 8192, 32768, 131072) for n in WIDE]
    cases = each(PLAIN + FUSED, ("bf16", "fp16", "fp32"), shapes)
    return [case for case in cases if case.tensor_bytes <= 1024 * MIB]


# ---- Activations: [tokens, width of the MLP] of models ----

TYPES = ("bf16", "fp32")
HIDDEN = {
    (16384, 3072): "BERT, GPT-2: 32 x 512 tokens",
    (8192, 4096): "BERT-large: 16 x 512",
    (16384, 4096): "ViT-L without class token: 64 x 256",
    (8192, 16384): "GPT-J",
    (197 * 128, 3072): "ViT-B: 128 images",
}
STAGES = ((64, 256, 56, 56), (64, 512, 28, 28), (64, 1024, 14, 14), (64, 2048, 7, 7))  # ResNet-50, NCHW
GATE_WIDTHS = {5504: "Llama 1B", 11008: "Llama 7B", 14336: "Llama 8B", 28672: "Llama 70B"}


def activations() -> list[Case]:
    """Every kind on a tensor of 64 MiB and one of 256 MiB."""
    sizes = ((4096, LARGE), (16384, 4 * LARGE))
    return [
        case for dtype in TYPES for case in each(KINDS, (dtype,), [(rows_for(n, dtype, size), n) for n, size in sizes])
    ]


def biased() -> list[Case]:
    """bias_gelu on all shapes, its like on a narrow and a wide one; the bias of channels with relu."""
    few = [(16384, 3072), (8192, 16384)]
    others = [op for op in BIASED if op not in ("bias_gelu", "bias_relu")]
    return each(("bias_gelu",), TYPES, HIDDEN) + each(others, TYPES, few) + each(("bias_relu",), TYPES, STAGES)


def gated() -> list[Case]:
    """The fewest tokens, in powers of two, that make y LARGE."""
    shapes = {dtype: [(rows_for(n, dtype, LARGE), n) for n in GATE_WIDTHS] for dtype in TYPES}
    split = [case for dtype in TYPES for case in each(("swiglu", "geglu"), (dtype,), shapes[dtype])]
    return split + [case for dtype in TYPES for case in each(("swiglu_interleaved",), (dtype,), shapes[dtype][2:3])]


IMAGES = ((64, 256, 56, 56), (32, 96, 224, 224))  # norms of the channels of every pixel, as in ConvNeXt
# Samples of so many features: more than a tile holds, so that they are read twice.
SAMPLES = ((200_000, 256), (60_000, 1_000), (60_000, 1_001), (16_384, 4_096))
# Its last stages, tiny and large, and one of xlarge: planes that are not whole packs in 16 bits.
SMALL_IMAGES = ((64, 384, 14, 14), (64, 768, 7, 7), (64, 768, 14, 14), (64, 1536, 7, 7), (256, 1024, 14, 14))


FEW = ("relu", "gelu", "gelu_tanh", "silu", "bias_gelu", "swiglu")
SMALL_ACTIVATIONS = [(1, 4096), (128, 1024), (197, 3072), (1024, 4096)]
CPU_ACTIVATIONS = [(128, 1024), (4096, 4096)]  # in cache, in memory
SMOKE_ACTIVATIONS = ("gelu", "hardswish", "bias_silu", *GATES)


# ---- Batch, group and instance norm ----

RESNET = ((64, 112, 112), (256, 56, 56), (512, 28, 28), (1024, 14, 14), (2048, 7, 7))  # ResNet-50: stem and stages
BATCHES = (32, 64, 256)
BATCH_NORMS = ("batch_norm", "batch_norm_relu", "batch_norm_add_relu")
GROUP_NORMS = ("group_norm", "group_norm_silu")
GROUP_SHAPES = {
    (8, 320, 64, 64): "UNet of Stable Diffusion, outermost",
    (8, 640, 32, 32): "its second level",
    (8, 1280, 16, 16): "its third",
    (8, 1280, 32, 32): "SDXL",
    (2, 128, 512, 512): "VAE decoder, outermost",
    (2, 512, 64, 64): "VAE, innermost",
    (32, 512, 16, 16): "UNet of DDPM",
    (1, 128, 20, 256, 256): "VAE of video",
}
INSTANCE_SHAPES = ((8, 64, 256, 256), (8, 256, 64, 64), (2, 32, 128, 128, 128))  # style transfer, nnU-Net
SMALL_SETS = ((131072, 128, 1, 1), (8192, 256, 4, 4), (4096, 96, 7, 7))  # nodes of a graph, points, patches
CPU_CHANNEL_SHAPES = ((2, 64, 32, 32), (8, 256, 14, 14), (32, 64, 56, 56))  # 0.5 MiB in fp32, 1.5 MiB, 25 MiB


def batch_norms() -> list[Case]:
    shapes = [(n, *stage) for n in BATCHES for stage in RESNET]
    return each(laid_out(BATCH_NORMS), ("bf16",), shapes) + each(laid_out(BATCH_NORMS[:1]), ("fp32",), shapes[5:10])


def group_norms() -> list[Case]:
    instance = each(laid_out(("instance_norm",)), ("bf16",), INSTANCE_SHAPES)
    return each(laid_out(GROUP_NORMS), ("bf16",), GROUP_SHAPES) + instance


def layouts() -> list[Case]:
    """x lies elsewhere than what is beside it."""
    names = laid_out((*BATCH_NORMS[:2], *GROUP_NORMS, "instance_norm"), away=True)
    return each(names, ("bf16", "fp32"), ((64, 256, 28, 28), (64, 2048, 7, 7), (8, 320, 64, 64)))


def cut_planes() -> list[Case]:
    """Planes that are not whole packs, or not in 16 bits."""
    names = [name for name in laid_out(GROUP_NORMS) if name.endswith("nchw")]
    return each(names, TYPES, ((64, 2048, 7, 7), (64, 1024, 14, 14), (8, 1280, 14, 14), (32, 256, 17, 17)))


def cpu_channel() -> list[Case]:
    every = [*BATCH_NORMS, *GROUP_NORMS, "instance_norm"]
    return each(laid_out(every), ("fp32", "bf16"), CPU_CHANNEL_SHAPES)


# ---- Groups ----

SMOKE_SHAPES = [(128, 1024), (1024, 1001)]
MIXED_WIDTHS = (768, 1024, 2048, 4096, 5120, 8192, 12288, 16384, 4097)
SMALL_SHAPES = [(1, 4096), (8, 4096), (128, 128), (128, 1024), (128, 8192), (8192, 128), (4096, 768), (16 * 1024, 256)]
CPU_SHAPES = [(128, 128), (128, 1024), (512, 768), (512, 1000), (511, 257), (1024, 1001)]
CPU_SHAPES += [(16384, 256), (4096, 768), (2048, 4096)]
CPU_IMAGES = ((32, 96, 56, 56), (8, 256, 56, 56))

GROUPS = {
    "smoke": lambda: (
        each((*PLAIN, *FUSED, *ACTIVATED[1:4]), ("bf16", "fp32"), SMOKE_SHAPES) + each(MIXED, ("bf16",), SMOKE_SHAPES)
    ),
    "roofline": lambda: large(PLAIN, [*WIDE, *NARROW, *HUGE, *COMMON, *ODD]),
    "wide_odd": lambda: large(PLAIN, WIDE_ODD),
    "core": lambda: large(PLAIN, CORE),
    "activated": lambda: large(ACTIVATED, ACTIVATED_WIDTHS),
    "activated_odd": lambda: large(ACTIVATED, ODD),
    "residual": lambda: large(FUSED, [128, 1024, 4096, 8192, 16384, 65536, 4097]),
    "mixed": lambda: each(MIXED, ("bf16",), [(rows_for(n, "bf16", LARGE), n) for n in MIXED_WIDTHS]),
    "small": lambda: each(PLAIN, ("bf16", "fp32"), SMALL_SHAPES),
    "peers": peers,
    "images": lambda: each(PLAIN, TYPES, IMAGES),
    "axes": lambda: each(OVER, TYPES, IMAGES),
    "samples": lambda: each(OVER_SAMPLES, TYPES, SAMPLES),
    "small_images": lambda: each(PLAIN, TYPES, SMALL_IMAGES),
    "cpu_images": lambda: each(PLAIN, ("fp32", "bf16"), CPU_IMAGES),
    "cpu": lambda: each(PLAIN, ("fp32", "bf16"), CPU_SHAPES) + each(FUSED, ("fp32",), [(128, 1024), (4096, 768)]),
    "grid": grid,
    "activations": activations,
    "bias": biased,
    "gated": gated,
    "batch_norm": batch_norms,
    "group_norm": group_norms,
    "layouts": layouts,
    "cut_planes": cut_planes,
    "long_rows": lambda: each(PLAIN, TYPES, LONG_ROWS),
    "small_sets": lambda: each(laid_out(GROUP_NORMS), ("bf16", "fp32"), SMALL_SETS),
    "cpu_channel": cpu_channel,
    "smoke_channel": lambda: (
        each(laid_out((*BATCH_NORMS, *GROUP_NORMS, "instance_norm")), TYPES, [(3, 64, 9, 7)])
        + each(laid_out(("batch_norm_add_relu",), away=True), TYPES, [(3, 64, 9, 7)])
    ),
    "small_activations": lambda: each(FEW, TYPES, SMALL_ACTIVATIONS),
    "cpu_activations": lambda: each((*KINDS, *FROM_OUTPUT, *BIASED, *GATES), ("fp32", "bf16"), CPU_ACTIVATIONS),
    "smoke_activations": lambda: (
        each(SMOKE_ACTIVATIONS, TYPES, [(128, 1024)]) + each(("bias_relu",), TYPES, [(2, 16, 28, 28)])
    ),
}


def cases_of(groups: Iterable[str]) -> list[Case]:
    """The cases of the groups in order, each once."""
    return list(dict.fromkeys(case for group in groups for case in GROUPS[group]()))
