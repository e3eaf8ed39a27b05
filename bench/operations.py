# SPDX-License-Identifier: Apache-2.0
"""The operations that can be measured: one row each, with all that the suite must know of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

# What one direction moves: tensors read, tensors written. A tensor is as large as the operation's y.
Traffic = tuple[int, int]


@dataclass(frozen=True)
class Operation:
    """`name` is what cases are called by; `function` the one of normact, whose gradient is `<function>_backward`."""

    name: str
    family: str  # norm, channel, pointwise, bias, gated
    function: str
    forward: Traffic
    backward: Traffic
    weight: bool = False
    bias: bool = False
    residual: bool = False
    mixed: bool = False  # the residual and its sum are fp32 beside an x of 16 bits, and so twice as large as y
    axes: tuple[int, ...] = ()  # that a norm is over; () where the shape tells it
    statistics: int = 0  # numbers a row that the forward writes and the backward reads
    layout: str = ""  # of a packed gated input, which is twice as wide as y; of images in LAYOUTS or AWAY
    addend: bool = False
    applied: str = ""  # the activation that ends a norm
    from_output: bool = False  # a backward that starts from y; it has no forward of its own

    @property
    def activation(self) -> str:
        """The pointwise function in it; none in a norm."""
        return {"swiglu": "silu", "geglu": "gelu"}.get(self.function, self.function)

    @property
    def mask(self) -> bool:
        """Whether one bit an element goes from the forward to the backward: in place of the addend."""
        return self.addend and self.applied == "relu"


def _norm(function: str, bias: bool, statistics: int) -> list[Operation]:
    """forward: x in, y out; with a residual also residual in, sum out. backward: dy, x in, dx out; with a residual
    also the gradient that reached the sum. Where these are fp32 beside x in 16 bits, each counts for two tensors, and
    the backward writes the residual's gradient too.
    """
    common = {"weight": True, "bias": bias, "statistics": statistics}
    plain = Operation(function, "norm", function, (1, 1), (2, 1), **common)
    activated = [replace(plain, name=f"{function}_{kind}", applied=kind) for kind in APPLIED]
    fused = replace(plain, name=f"add_{function}", forward=(2, 2), backward=(3, 1), residual=True)
    mixed = replace(fused, name=f"mixed_add_{function}", forward=(3, 3), backward=(5, 3), mixed=True)
    over = [replace(plain, name=f"{function}_over_{'_'.join(map(str, axes))}", axes=axes) for axes in AXES]
    return [plain, fused, mixed, *activated, *over]


def _channel(function: str, applied: str = "", addend: bool = False) -> list[Operation]:
    """forward: x, and an addend, in, y out; backward: dy, x in, dx, and daddend, out. Where what is normalised together
    does not fit on the chip x is read twice, in the backward dy too.
    """
    name = "_".join(part for part in (function, "add" if addend else "", applied) if part)
    more = int(addend)
    forward, backward = (1 + more, 1), (2, 1 + more)
    return [
        Operation(
            f"{name}_{layout}",
            "channel",
            function,
            forward,
            backward,
            weight=True,
            bias=True,
            statistics=2,
            layout=layout,
            addend=addend,
            applied=applied,
        )
        for layout in (*LAYOUTS, *AWAY)
    ]


AXES = ((1, 3), (0,))  # several of an image's that are not neighbours; the samples of each feature
LAYOUTS = ("nchw", "nhwc")
AWAY = ("slice", "crop")  # of x: half of the channels, the middle of the places; all else is NCHW
APPLIED = ("relu", "silu", "gelu")  # that end norms of rows
KINDS = ("identity", "relu", "relu6", "squared_relu", "leaky_relu", "elu", "gelu", "gelu_tanh", "quick_gelu", "silu")
KINDS += ("sigmoid", "tanh", "softplus", "mish", "hardswish", "hardsigmoid")
BIASED = tuple(f"bias_{kind}" for kind in ("relu", "gelu", "gelu_tanh", "silu"))
FROM_OUTPUT = ("sigmoid_from_y", "tanh_from_y")  # PyTorch has these two backwards from y alone
GATES = {"swiglu": "split", "geglu": "split", "swiglu_interleaved": "interleaved"}


def laid_out(names: Iterable[str], away: bool = False) -> list[str]:
    """The operations of these channel norms in both layouts, or of an x that lies elsewhere."""
    return [f"{name}_{layout}" for name in names for layout in (AWAY if away else LAYOUTS)]


def _all() -> list[Operation]:
    norms = _norm("layer_norm", bias=True, statistics=2) + _norm("rms_norm", bias=False, statistics=1)
    pointwise = [Operation(kind, "pointwise", kind, (1, 1), (2, 1)) for kind in KINDS]
    pointwise += [
        Operation(op, "pointwise", op.removesuffix("_from_y"), (1, 1), (2, 1), from_output=True) for op in FROM_OUTPUT
    ]
    biased = [Operation(op, "bias", op.removeprefix("bias_"), (1, 1), (2, 1), bias=True) for op in BIASED]
    gated = [
        Operation(op, "gated", op.removesuffix("_interleaved"), (2, 1), (3, 2), layout=layout)
        for op, layout in GATES.items()
    ]
    batch = _channel("batch_norm") + _channel("batch_norm", "relu") + _channel("batch_norm", "relu", addend=True)
    group = _channel("group_norm") + _channel("group_norm", "silu")
    return norms + pointwise + biased + gated + batch + group + _channel("instance_norm")


OPERATIONS = {operation.name: operation for operation in _all()}
