# SPDX-License-Identifier: Apache-2.0
"""The kernels as PyTorch's own: differentiable functions, drop-in modules, operators of `torch.compile`.

The functions have the arguments of `torch.nn.functional`, and a few more for what is done in the same pass. They give
gradients to every tensor, work under `torch.compile` (one operator each, no graph break), `torch.export`,
`torch.func`, autocast, activation checkpointing and CUDA graphs, and can be differentiated once, backwards. A gradient
that is taken by `torch.func` inside of a compiled function is refused by `torch.compile`; compile around it.

Under autocast they compute as always: in float32, with the result in the dtype of the input. PyTorch's norms would
return float32 there. Tensors that are added or multiplied (a residual, an addend, gate and up) take the widest of
their dtypes first, but for a float32 residual of a layer or RMS norm: it stays so beside an input in 16 bits, as does
the sum.

>>> import torch, normact.torch
>>> x = torch.randn(8, 512, requires_grad=True)
>>> normact.torch.layer_norm(x, 512).square().sum().backward()
>>> model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.LayerNorm(512), torch.nn.GELU())
>>> print(normact.torch.replace(model))
replaced 2 modules:
  1: LayerNorm
  2: GELU
"""

from typing import TYPE_CHECKING, Any

from normact.torch.activations import (
    activation,
    elu,
    gelu,
    gelu_tanh,
    hardsigmoid,
    hardswish,
    identity,
    leaky_relu,
    mish,
    quick_gelu,
    relu,
    relu6,
    sigmoid,
    silu,
    softplus,
    squared_relu,
    tanh,
)
from normact.torch.channel_norms import batch_norm, group_norm, instance_norm
from normact.torch.fused_modules import (
    GEGLU,
    AddLayerNorm,
    AddRMSNorm,
    BatchNormAddReLU2d,
    BatchNormReLU2d,
    BiasGELU,
    GroupNormSiLU,
    SwiGLU,
)
from normact.torch.gates import gated, geglu, glu, reglu, swiglu
from normact.torch.modules import (
    GELU,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
    SiLU,
    SyncBatchNorm,
)
from normact.torch.norms import layer_norm, rms_norm
from normact.torch.replacement import Report, replace

if TYPE_CHECKING:
    from normact.torch.sync import sync_batch_norm

__all__ = [
    "AddLayerNorm",
    "AddRMSNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "BatchNormAddReLU2d",
    "BatchNormReLU2d",
    "BiasGELU",
    "GEGLU",
    "GELU",
    "GroupNorm",
    "GroupNormSiLU",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "RMSNorm",
    "Report",
    "SiLU",
    "SwiGLU",
    "SyncBatchNorm",
    "activation",
    "batch_norm",
    "elu",
    "gated",
    "geglu",
    "gelu",
    "gelu_tanh",
    "glu",
    "group_norm",
    "hardsigmoid",
    "hardswish",
    "identity",
    "instance_norm",
    "layer_norm",
    "leaky_relu",
    "mish",
    "quick_gelu",
    "reglu",
    "relu",
    "relu6",
    "replace",
    "rms_norm",
    "sigmoid",
    "silu",
    "softplus",
    "squared_relu",
    "swiglu",
    "sync_batch_norm",
    "tanh",
]


def __getattr__(name: str) -> Any:
    """What is imported when it is asked for, as it imports PyTorch's compiler."""
    if name != "sync_batch_norm":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from normact.torch.sync import sync_batch_norm

    return sync_batch_norm
