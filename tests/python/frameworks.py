# SPDX-License-Identifier: Apache-2.0
"""The array libraries, as far as a test needs them: arrays of given numbers, and what is in an array."""

from __future__ import annotations

import os
from typing import Any

import ml_dtypes
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

DTYPES = ("float32", "float16", "bfloat16")
CPU = 1  # DLPack's number


class Numpy:
    """NumPy; bfloat16 is ml_dtypes'."""

    def array(self, values: np.ndarray, dtype: str) -> Any:
        return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)

    def address(self, array: Any) -> int:
        return array.ctypes.data

    def dtype(self, array: Any) -> str:
        return array.dtype.name

    def values(self, array: Any) -> np.ndarray:
        return np.asarray(array).astype(np.float64)


class Torch(Numpy):
    """PyTorch."""

    def array(self, values: np.ndarray, dtype: str) -> Any:
        import torch

        return torch.from_numpy(values.copy()).to(getattr(torch, dtype))

    def address(self, array: Any) -> int:
        return array.data_ptr()

    def dtype(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def values(self, array: Any) -> np.ndarray:
        return array.double().numpy()


class Jax(Numpy):
    """JAX, on the CPU also where its default is a GPU."""

    def array(self, values: np.ndarray, dtype: str) -> Any:
        import jax

        return jax.numpy.asarray(values, dtype=dtype, device=jax.devices("cpu")[0])

    def address(self, array: Any) -> int:
        return array.unsafe_buffer_pointer()


class Tensorflow(Numpy):
    """TensorFlow."""

    def array(self, values: np.ndarray, dtype: str) -> Any:
        import tensorflow as tf

        return tf.cast(tf.constant(values), dtype)

    def address(self, array: Any) -> int:
        import tensorflow as tf

        return np.from_dlpack(tf.bitcast(array, "int16" if array.dtype.size == 2 else "int32")).ctypes.data


FRAMEWORKS = {"numpy": Numpy, "torch": Torch, "jax": Jax, "tensorflow": Tensorflow}


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)
