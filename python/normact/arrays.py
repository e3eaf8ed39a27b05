# SPDX-License-Identifier: Apache-2.0
"""What differs between the array libraries when a function makes its outputs.

A `Family` makes arrays like a given one with the library's own allocator. Libraries are told by the type of the array
and never imported before the caller has done so.

NumPy, PyTorch and CuPy arrays are made, written and returned. JAX and TensorFlow arrays are immutable, so the memory
is written before they own it:

- on the CPU it is ours, 64-byte aligned (JAX would copy it otherwise, TensorFlow abort), and handed over by DLPack;
- on a GPU it is a new array of the library that nobody else has seen. Neither library tells its stream, so such a call
  runs on the legacy default stream and returns when its work is done.
"""

from __future__ import annotations

import abc
import contextlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from normact import _core

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEGACY_STREAMS = (0, 1)


def _half_shape(x: Any, axis: int) -> tuple[int, ...]:
    shape = list(x.shape)
    shape[axis] //= 2
    return tuple(shape)


def half_of(x: Any, axis: int) -> Any:
    """A view of the first half of x along an axis."""
    return x[(slice(None),) * (axis % len(x.shape)) + (slice(x.shape[axis] // 2),)]


class Family:
    """Arrays of a library that normact can read and write but not make."""

    def empty_like(self, x: Any, /) -> Any:
        """An uninitialised array with the shape, dtype, device and, as far as possible, memory layout of x."""
        raise TypeError(
            f"an output like a {type(x).__module__}.{type(x).__qualname__} cannot be made; expected an array of "
            "NumPy, PyTorch, JAX, TensorFlow or CuPy, or all outputs given in out="
        )

    def empty_stats(self, x: Any, shape: tuple[int, ...]) -> Any:
        """The same for a statistic of x: this shape, float32 (float64 for float64)."""
        return self.empty_like(x)  # raises

    def moments(self, x: Any, shape: tuple[int, ...], mean: Any, rstd: Any) -> tuple[Any, Any]:
        """Both statistics of x, as they are given or the same for what is None."""
        return (
            self.empty_stats(x, shape) if mean is None else mean,
            self.empty_stats(x, shape) if rstd is None else rstd,
        )

    def empty_half(self, x: Any, axis: int) -> Any:
        """The same with half the size along an axis."""
        return self.empty_like(x)  # raises

    def empty_bytes(self, x: Any, count: int) -> Any:
        """The same for so many uint8."""
        return self.empty_like(x)  # raises

    def stride(self, x: Any, axis: int) -> int | None:
        """In elements, where that is known."""
        return None

    def writable(self, x: Any) -> Any:
        """x itself, or of what is immutable a copy to write to, which hand_over() then gives away."""
        return x

    #: Whether hand_over() does anything.
    hands_over = False

    def hand_over(self, array: Any, x: Any) -> Any:
        """What the caller gets for an array made here, once it is written. None stays None."""
        return array

    @contextlib.contextmanager
    def on_stream(self, x: Any, stream: Any, function: str) -> Iterator[int | None]:
        """Yields the handle to work on; None means that it has been made the library's current stream."""
        yield stream_handle(stream, function)


class _Numpy(Family):
    def empty_like(self, x: Any) -> Any:
        return np.empty_like(x, subok=False)

    def empty_stats(self, x: Any, shape: tuple[int, ...]) -> Any:
        return np.empty(shape, np.float64 if x.dtype == np.float64 else np.float32)

    def empty_half(self, x: Any, axis: int) -> Any:
        return self.empty_like(half_of(x, axis))

    def empty_bytes(self, x: Any, count: int) -> Any:
        return np.empty(count, np.uint8)

    def stride(self, x: Any, axis: int) -> int | None:
        return x.strides[axis] // x.itemsize


class _Torch(Family):
    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._float32, self._float64 = torch.float32, torch.float64
        self.empty_like = torch.empty_like  # itself: a method around it would be a tenth of its time

    def empty_stats(self, x: Any, shape: tuple[int, ...]) -> Any:
        dtype = self._float64 if x.dtype is self._float64 else self._float32
        # PyTorch reads single sizes in half of the time that a torch.Size takes.
        return x.new_empty(*shape, dtype=dtype) if shape else x.new_empty(shape, dtype=dtype)

    def empty_half(self, x: Any, axis: int) -> Any:
        # The strides of both are in the order of x's; a view takes as long again as the allocation. What is not strided
        # DLPack refuses.
        if x.layout is not self._torch.strided or x.is_contiguous():
            return x.new_empty(_half_shape(x, axis))
        return self.empty_like(half_of(x, axis))

    def empty_bytes(self, x: Any, count: int) -> Any:
        return x.new_empty(count, dtype=self._torch.uint8)

    def stride(self, x: Any, axis: int) -> int | None:
        return x.stride(axis)

    @contextlib.contextmanager
    def on_stream(self, x: Any, stream: Any, function: str) -> Iterator[int | None]:
        handle = stream_handle(stream, function)
        if not x.is_cuda:
            yield None
            return
        cuda = self._torch.cuda
        if handle in _LEGACY_STREAMS:
            stream = cuda.default_stream(x.device)
        elif not isinstance(stream, cuda.Stream):
            stream = cuda.ExternalStream(handle, device=x.device)
        with cuda.stream(stream):  # outputs and workspace then belong to this stream too
            yield None


class _Cupy(Family):
    def __init__(self) -> None:
        import cupy

        self._cupy = cupy

    def empty_like(self, x: Any) -> Any:
        with x.device:
            return self._cupy.empty_like(x)

    def empty_stats(self, x: Any, shape: tuple[int, ...]) -> Any:
        with x.device:
            return self._cupy.empty(shape, np.float64 if x.dtype == np.float64 else np.float32)

    def empty_half(self, x: Any, axis: int) -> Any:
        return self.empty_like(half_of(x, axis))

    def empty_bytes(self, x: Any, count: int) -> Any:
        with x.device:
            return self._cupy.empty(count, np.uint8)

    def stride(self, x: Any, axis: int) -> int | None:
        return x.strides[axis] // x.itemsize

    @contextlib.contextmanager
    def on_stream(self, x: Any, stream: Any, function: str) -> Iterator[int | None]:
        handle = stream_handle(stream, function)
        cuda = self._cupy.cuda
        with x.device, cuda.Stream.null if handle in _LEGACY_STREAMS else cuda.ExternalStream(handle):
            yield None


class _Unseen:
    """A new array of an immutable library, lent for writing before anybody has seen it."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        # No max_version: a versioned capsule would carry the read-only flag. TensorFlow takes no stream at all.
        return self.array.__dlpack__() if stream is None else self._on_gpu(stream)

    def _on_gpu(self, stream: int) -> Any:
        try:
            return self.array.__dlpack__(stream=stream)
        except RuntimeError:  # TensorFlow, which waits for its work instead
            return self.array.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class _Immutable(Family, abc.ABC):
    """The common part of JAX and TensorFlow."""

    def empty_like(self, x: Any) -> Any:
        return self._empty(x, tuple(x.shape), x.dtype.name)

    def empty_stats(self, x: Any, shape: tuple[int, ...]) -> Any:
        return self._empty(x, shape, "float64" if x.dtype.name == "float64" else "float32")

    def empty_half(self, x: Any, axis: int) -> Any:
        return self._empty(x, _half_shape(x, axis), x.dtype.name)  # a part of x would be a copy

    def empty_bytes(self, x: Any, count: int) -> Any:
        return self._empty(x, (count,), "uint8")

    hands_over = True

    def writable(self, x: Any) -> Any:
        if x.__dlpack_device__()[0] != _CPU:
            return _Unseen(self.copy_on_gpu(x))
        buffer = _core.empty(tuple(x.shape), x.dtype.name)
        np.from_dlpack(buffer)[...] = np.asarray(x)  # type: ignore[arg-type]
        return buffer

    def hand_over(self, array: Any, x: Any) -> Any:
        if isinstance(array, _Unseen):
            return array.array
        return None if array is None else self.take_over(array, x)

    def _empty(self, x: Any, shape: tuple[int, ...], dtype: str) -> Any:
        try:
            device = x.__dlpack_device__()[0]
        except BufferError:  # an array on several devices, which the call itself refuses with a sentence
            device = _CPU
        return _core.empty(shape, dtype) if device == _CPU else _Unseen(self.empty_on_gpu(x, shape, dtype))

    @abc.abstractmethod
    def empty_on_gpu(self, x: Any, shape: tuple[int, ...], dtype: str) -> Any: ...

    @abc.abstractmethod
    def copy_on_gpu(self, x: Any) -> Any: ...

    @abc.abstractmethod
    def take_over(self, buffer: Any, x: Any) -> Any: ...


_CPU = 1  # DLPack's number


class _Jax(_Immutable):
    def __init__(self) -> None:
        import jax

        self._jax = jax

    def empty_on_gpu(self, x: Any, shape: tuple[int, ...], dtype: str) -> Any:
        return self._jax.numpy.empty(shape, dtype, device=x.device).block_until_ready()

    def copy_on_gpu(self, x: Any) -> Any:
        return self._jax.numpy.array(x, copy=True).block_until_ready()

    def take_over(self, buffer: Any, x: Any) -> Any:
        array = self._jax.dlpack.from_dlpack(buffer)
        return array if array.device == x.device else self._jax.device_put(array, x.device)


class _Tensorflow(_Immutable):
    def __init__(self) -> None:
        import tensorflow

        self._tensorflow = tensorflow

    def empty_on_gpu(self, x: Any, shape: tuple[int, ...], dtype: str) -> Any:
        tf = self._tensorflow
        with tf.device(x.device):
            return tf.raw_ops.Empty(shape=list(shape), dtype=tf.as_dtype(dtype))

    def copy_on_gpu(self, x: Any) -> Any:
        return self._tensorflow.raw_ops.DeepCopy(x=x)

    def take_over(self, buffer: Any, x: Any) -> Any:
        tf = self._tensorflow
        array = tf.experimental.dlpack.from_dlpack(buffer.__dlpack__())
        if array.device == x.device:
            return array
        with tf.device(x.device):  # another of the CPU's logical devices
            return tf.identity(array)


_CLASSES = {"numpy": _Numpy, "torch": _Torch, "cupy": _Cupy, "jax": _Jax, "tensorflow": _Tensorflow, "other": Family}
_families: dict[type, Family] = {}
_MOST_FAMILIES = 32


def family_of(x: Any, function: str, name: str = "x") -> Family:
    """The family of an array, found out once per type. Raises TypeError if x is no array that can be used."""
    family = _families.get(type(x))
    if family is None:
        family = _CLASSES[_core.framework_of(x, function, name)]()
        if len(_families) < _MOST_FAMILIES:  # a program that makes types without end does not make us keep them
            _families[type(x)] = family
    return family


#: What an array is made as that must be handed over.
_LENT = frozenset((_Unseen, type(_core.empty((0,), "uint8"))))


def handed_over(
    done: tuple[Any, ...], given: tuple[Any, ...], likes: tuple[Any, ...], function: str
) -> tuple[Any, ...]:
    """What the caller gets for outputs that were given, or made each like another array; None stays None."""
    return tuple(
        array if array is theirs or type(array) not in _LENT else family_of(like, function).hand_over(array, like)
        for array, theirs, like in zip(done, given, likes, strict=True)
    )


# ---- What the bindings call: the likes of other libraries than PyTorch ----


def make_like(x: Any, function: str, name: str) -> Any:
    """An uninitialised array with the shape, dtype, device and, as far as possible, memory layout of x."""
    return family_of(x, function, name).empty_like(x)


def make_statistic(x: Any, shape: tuple[int, ...], function: str, name: str) -> Any:
    """The same for a statistic of x."""
    return family_of(x, function, name).empty_stats(x, shape)


def make_bytes(x: Any, count: int) -> Any:
    """The same for so many uint8."""
    return family_of(x, "make_bytes").empty_bytes(x, count)


def mask_bytes(x: Any) -> int:
    """The bytes of one bit for each element of x; of what has no shape 0, as nothing is made like it."""
    try:
        return (math.prod(x.shape) + 7) // 8
    except AttributeError:
        return 0


def stream_handle(stream: Any, function: str) -> int:
    """The CUDA stream handle of an int or of any library's stream object; `function` is what a message names."""
    if isinstance(stream, int):
        return stream
    protocol: Any = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version_and_handle: Any = protocol() if callable(protocol) else protocol
        return int(version_and_handle[1])
    for attribute in ("cuda_stream", "ptr"):  # PyTorch, CuPy
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    kind = type(stream).__name__
    raise TypeError(f"{function}: stream is of type {kind}; expected a stream handle or a stream object")
