# SPDX-License-Identifier: Apache-2.0
"""Array producers made by hand, to see what a consumer asks of them: DLPack of any version and device, no GPU needed.

The arrays on a "GPU" are empty, so nothing is ever read from their made-up memory.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

CPU, CUDA = 1, 2
READ_ONLY = 1


class DLTensor(ctypes.Structure):
    """DLPack's tensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    """DLPack before 1.0: capsule "dltensor"."""

    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class ManagedVersioned(ctypes.Structure):
    """DLPack from 1.0: capsule "dltensor_versioned"."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


class ExchangeTable(ctypes.Structure):
    """DLPack 1.3's C exchange table."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("managed_to_object", ctypes.c_void_p),
        ("tensor_from_object", ctypes.c_void_p),
        ("current_stream", ctypes.c_void_p),
    ]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


_NAMES = {name: ctypes.c_char_p(name) for name in (b"dltensor", b"dltensor_versioned", b"dlpack_exchange_api")}


def capsule(struct: ctypes.Structure, name: bytes) -> Any:
    """A capsule around memory that the caller keeps. It points to its name too, so that must stay where it is."""
    return _new_capsule(ctypes.addressof(struct), _NAMES[name], None)


class Producer:
    """An array with a hand-made __dlpack__ that writes down how it was called."""

    def __init__(
        self, values: np.ndarray, device: tuple[int, int] = (CPU, 0), version: tuple[int, int] | None = (1, 1)
    ):
        self.calls: list[dict[str, Any]] = []
        self.flags = 0
        self._values = values
        self._device = device
        self._version = version
        self._sizes = (ctypes.c_int64 * values.ndim)(*values.shape)
        self._tensor = DLTensor(
            values.ctypes.data, *device, values.ndim, 2, values.itemsize * 8, 1, self._sizes, None, 0
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **options: Any) -> Any:
        self.calls.append(options)
        if self._version is None:
            if "max_version" in options:
                raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
            self._managed: Any = Managed(self._tensor)
            return capsule(self._managed, b"dltensor")
        self._managed = ManagedVersioned(*self._version, flags=self.flags, tensor=self._tensor)
        return capsule(self._managed, b"dltensor_versioned")


class OldProducer(Producer):
    """Knows neither versions nor max_version."""

    def __init__(self, values: np.ndarray):
        super().__init__(values, version=None)


class ExchangeProducer(Producer):
    """An array on a "GPU" with the C exchange table; `stream` is its framework's current one."""

    stream = 0x1230
    asked = 0

    def __init__(self, values: np.ndarray):
        super().__init__(values, device=(CUDA, 0))


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
def _tensor_from_object(producer: ExchangeProducer, out: Any) -> int:
    ctypes.memmove(out, ctypes.addressof(producer._tensor), ctypes.sizeof(DLTensor))
    return 0


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def _current_stream(device_type: int, device_id: int, out: Any) -> int:
    assert (device_type, device_id) == (CUDA, 0)
    ExchangeProducer.asked += 1
    out[0] = ExchangeProducer.stream
    return 0


_TABLE = ExchangeTable(
    1,
    3,
    tensor_from_object=ctypes.cast(_tensor_from_object, ctypes.c_void_p),
    current_stream=ctypes.cast(_current_stream, ctypes.c_void_p),
)
ExchangeProducer.__dlpack_c_exchange_api__ = capsule(_TABLE, b"dlpack_exchange_api")  # type: ignore[attr-defined]
