# SPDX-License-Identifier: Apache-2.0
"""Waiting for a CUDA stream, for array libraries that cannot be told to. Called from _core; needs the driver alone."""

from __future__ import annotations

import ctypes

_STREAM_LEGACY = 1


def synchronize(device: int, stream: int) -> None:
    """Blocks until all work on a stream of the device is done."""
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()

    def check(name: str, *args: object) -> None:
        status = getattr(driver, name)(*args)
        if status != 0:
            raise RuntimeError(f"normact: {name} failed with CUDA error {status}")

    check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        check("cuCtxPushCurrent_v2", context)
        try:
            check("cuStreamSynchronize", ctypes.c_void_p(stream or _STREAM_LEGACY))
        finally:
            check("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
    finally:
        check("cuDevicePrimaryCtxRelease_v2", device)
