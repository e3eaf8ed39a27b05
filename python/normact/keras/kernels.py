# SPDX-License-Identifier: Apache-2.0
"""The functions that the layers call, on the tensors of the backend that Keras has.

They have the signatures of normact's own functions as far as the layers use them; `batch_norm` is that in inference,
and `batch_norm_training` returns ``(y, mean, variance)`` of a batch, the variance as Keras wants it, not unbiased.
"""

from __future__ import annotations

import importlib
from typing import Any

import keras

_MODULES = {
    "tensorflow": "normact.keras.tensorflow_kernels",
    "torch": "normact.keras.torch_kernels",
    "jax": "normact.keras.jax_kernels",
}

BACKEND = keras.backend.backend()


def _module() -> Any:
    if BACKEND not in _MODULES:
        raise ImportError(f"normact.keras: the backend of Keras is {BACKEND}; expected one of {', '.join(_MODULES)}")
    return importlib.import_module(_MODULES[BACKEND])


kernels = _module()
