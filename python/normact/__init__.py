# SPDX-License-Identifier: Apache-2.0
"""Fused forward and backward normalization and activation kernels for GPUs and CPUs.

The functions take and return the arrays of NumPy, PyTorch, JAX, TensorFlow and CuPy without a copy. Importing normact
needs NumPy alone.

>>> import numpy as np, normact
>>> normact.layer_norm(np.array([1.0, 2.0, 3.0]), eps=0.0).round(4).tolist()
[-1.2247, 0.0, 1.2247]
"""

from normact.activation_calls import ActivationGrads, ActivationOutput
from normact.activation_options import (
    elu,
    elu_backward,
    gelu,
    gelu_backward,
    leaky_relu,
    leaky_relu_backward,
    relu,
    relu_backward,
    softplus,
    softplus_backward,
)
from normact.activations import (
    activation,
    activation_backward,
    gelu_tanh,
    gelu_tanh_backward,
    hardsigmoid,
    hardsigmoid_backward,
    hardswish,
    hardswish_backward,
    identity,
    identity_backward,
    mish,
    mish_backward,
    quick_gelu,
    quick_gelu_backward,
    relu6,
    relu6_backward,
    sigmoid,
    sigmoid_backward,
    silu,
    silu_backward,
    squared_relu,
    squared_relu_backward,
    tanh,
    tanh_backward,
)
from normact.batch_norm_parts import (
    BatchNormMerged,
    batch_norm_apply,
    batch_norm_input_gradient,
    batch_norm_merge,
    batch_norm_reduce,
    batch_norm_statistics,
)
from normact.batch_norms import batch_norm, batch_norm_backward
from normact.channel_calls import BatchNormOutput, GroupNormOutput
from normact.gated_calls import GatedGrads
from normact.gates import (
    gated,
    gated_backward,
    geglu,
    geglu_backward,
    glu,
    glu_backward,
    reglu,
    reglu_backward,
    swiglu,
    swiglu_backward,
)
from normact.group_norms import group_norm, group_norm_backward, instance_norm, instance_norm_backward
from normact.info import (
    build_info,
    cmake_dir,
    get_include,
    get_num_threads,
    get_sm_margin,
    set_num_threads,
    set_sm_margin,
)
from normact.norm import layer_norm, layer_norm_backward, rms_norm, rms_norm_backward, row_variant
from normact.norm_calls import NormGrads, NormOutput

__version__ = build_info()["version"]

__all__ = [
    "ActivationGrads",
    "ActivationOutput",
    "BatchNormMerged",
    "BatchNormOutput",
    "GatedGrads",
    "GroupNormOutput",
    "NormGrads",
    "NormOutput",
    "__version__",
    "activation",
    "activation_backward",
    "batch_norm",
    "batch_norm_apply",
    "batch_norm_backward",
    "batch_norm_input_gradient",
    "batch_norm_merge",
    "batch_norm_reduce",
    "batch_norm_statistics",
    "build_info",
    "cmake_dir",
    "elu",
    "elu_backward",
    "gated",
    "gated_backward",
    "geglu",
    "geglu_backward",
    "gelu",
    "gelu_backward",
    "gelu_tanh",
    "gelu_tanh_backward",
    "get_include",
    "get_num_threads",
    "get_sm_margin",
    "glu",
    "glu_backward",
    "group_norm",
    "group_norm_backward",
    "hardsigmoid",
    "hardsigmoid_backward",
    "hardswish",
    "hardswish_backward",
    "identity",
    "identity_backward",
    "instance_norm",
    "instance_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "leaky_relu",
    "leaky_relu_backward",
    "mish",
    "mish_backward",
    "quick_gelu",
    "quick_gelu_backward",
    "reglu",
    "reglu_backward",
    "relu",
    "relu6",
    "relu6_backward",
    "relu_backward",
    "rms_norm",
    "rms_norm_backward",
    "row_variant",
    "set_num_threads",
    "set_sm_margin",
    "sigmoid",
    "sigmoid_backward",
    "silu",
    "silu_backward",
    "softplus",
    "softplus_backward",
    "squared_relu",
    "squared_relu_backward",
    "swiglu",
    "swiglu_backward",
    "tanh",
    "tanh_backward",
]
