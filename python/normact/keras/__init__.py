# SPDX-License-Identifier: Apache-2.0
"""Keras 3 layers on the kernels, with TensorFlow, PyTorch or JAX as Keras' backend.

`LayerNormalization`, `RMSNormalization`, `GroupNormalization` and `BatchNormalization` are subclasses of Keras' own:
with the same constructor, weights (files of weights go both ways) and results, and one more argument, `activation`, for
what is applied in the same pass. `AddLayerNormalization`, `AddRMSNormalization`, `SwiGLU` and `GEGLU` do in one pass
what takes Keras several. Needs Keras 3.9 or later.

With TensorFlow `compile(jit_compile="auto")`, the default, leaves XLA out for a model with these layers, and a call
inside `tf.function` costs what `normact.tensorflow` says.

>>> import keras, normact.keras
>>> model = keras.Sequential([keras.layers.Dense(8), normact.keras.LayerNormalization(activation="gelu")])
>>> model(keras.random.normal((2, 4))).shape == (2, 8)
True
"""

from normact.keras.fused_layers import GEGLU, AddLayerNormalization, AddRMSNormalization, SwiGLU
from normact.keras.layers import BatchNormalization, GroupNormalization, LayerNormalization, RMSNormalization

__all__ = [
    "AddLayerNormalization",
    "AddRMSNormalization",
    "BatchNormalization",
    "GEGLU",
    "GroupNormalization",
    "LayerNormalization",
    "RMSNormalization",
    "SwiGLU",
]
