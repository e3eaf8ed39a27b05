# SPDX-License-Identifier: Apache-2.0
"""Fused forward and backward normalization and activation kernels for GPUs and CPUs.

The functions take and return the arrays of NumPy, PyTorch, JAX, TensorFlow and CuPy without a copy. Importing normact
needs NumPy alone.

>>> import numpy as np, normact
>>> normact.layer_norm(np.array([1.0, 2.0, 3.0]), eps=0.0).round(4).tolist()
[-1.2247, 0.0, 1.2247]
"""

from normact.info import build_info, cmake_dir, get_include, get_num_threads, set_num_threads
from normact.norm import layer_norm, layer_norm_backward, rms_norm, rms_norm_backward, row_variant
from normact.norm_calls import NormGrads, NormOutput

__version__ = build_info()["version"]

__all__ = [
    "NormGrads",
    "NormOutput",
    "__version__",
    "build_info",
    "cmake_dir",
    "get_include",
    "get_num_threads",
    "layer_norm",
    "layer_norm_backward",
    "rms_norm",
    "rms_norm_backward",
    "row_variant",
    "set_num_threads",
]
