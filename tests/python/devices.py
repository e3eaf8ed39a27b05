# SPDX-License-Identifier: Apache-2.0
"""Where a test runs: one object per array library and device, so that every test is written once.

A device turns NumPy values into its own arrays and back. Values travel as float64 (longdouble for none), which holds
every float16, bfloat16 and float32 exactly, so a test can speak of "the same numbers" on every device.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

NUMPY_DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


class NumpyDevice:
    """NumPy arrays on the CPU."""

    name = "numpy"
    is_cuda = False
    negative_strides = True

    def array(self, values: np.ndarray, dtype: str) -> Any:
        """A contiguous array of its own with these values."""
        return np.array(values, dtype=NUMPY_DTYPES[dtype], order="C")

    def integers(self, values: np.ndarray, dtype: str) -> Any:
        """The same of integers."""
        return np.array(values, dtype=dtype, order="C")

    def values(self, array: Any) -> np.ndarray:
        """The values as float64."""
        return np.asarray(array).astype(np.float64)

    def bits(self, array: Any) -> np.ndarray:
        """The values as unsigned integers of the same width, for bitwise comparison."""
        contiguous = np.array(array, order="C")
        return contiguous.view(f"u{contiguous.dtype.itemsize}")

    def dtype_name(self, array: Any) -> str:
        return array.dtype.name

    def broadcast(self, array: Any, shape: tuple[int, ...]) -> Any:
        return np.broadcast_to(array, shape)

    def strides(self, array: Any) -> tuple[int, ...]:
        """Strides in elements."""
        return tuple(stride // array.itemsize for stride in array.strides)

    def empty_like(self, array: Any) -> Any:
        return np.empty_like(array)


class TorchDevice:
    """PyTorch tensors on the CPU or a GPU."""

    negative_strides = False

    def __init__(self, device: str):
        import torch

        self._torch = torch
        self._device = torch.device(device)
        self.name = f"torch-{self._device.type}"
        self.is_cuda = self._device.type == "cuda"

    def array(self, values: np.ndarray, dtype: str) -> Any:
        # A copy: from_numpy would share memory with the caller's cached values.
        wide = self._torch.tensor(np.array(values, dtype=np.float64, order="C"))
        return wide.to(getattr(self._torch, dtype)).to(self._device)

    def integers(self, values: np.ndarray, dtype: str) -> Any:
        return self._torch.tensor(np.array(values, dtype=dtype)).to(self._device)

    def values(self, array: Any) -> np.ndarray:
        return array.detach().to(self._torch.float64).cpu().numpy()

    def bits(self, array: Any) -> np.ndarray:
        integers = {2: self._torch.int16, 4: self._torch.int32, 8: self._torch.int64}
        return array.contiguous().view(integers[array.element_size()]).cpu().numpy()

    def dtype_name(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def broadcast(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.expand(shape)

    def strides(self, array: Any) -> tuple[int, ...]:
        return tuple(array.stride())

    def empty_like(self, array: Any) -> Any:
        return self._torch.empty_like(array)


Device = NumpyDevice | TorchDevice


def capability() -> tuple[int, int]:
    """Of the GPU."""
    import torch

    return torch.cuda.get_device_capability()


def available() -> dict[str, Any]:
    """A constructor for each device that this machine and this build of normact can serve, by name."""
    found: dict[str, Any] = {"numpy": NumpyDevice}
    try:
        import torch
    except ImportError:
        return found
    found["torch-cpu"] = lambda: TorchDevice("cpu")
    import normact

    if torch.cuda.is_available() and normact.build_info()["cuda"]:
        found["torch-cuda"] = lambda: TorchDevice("cuda")
    return found


def capturing(graph: Any) -> Any:
    """Captures what this thread does in a with statement; JAX's threads, where it runs too, may allocate meanwhile."""
    import torch

    return torch.cuda.graph(graph, capture_error_mode="thread_local")
