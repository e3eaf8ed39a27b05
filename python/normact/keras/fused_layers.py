# SPDX-License-Identifier: Apache-2.0
"""Layers that do in one pass what takes Keras several."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from normact.keras.kernels import BACKEND, kernels
from normact.keras.layers import LayerNormalization, RMSNormalization, data, serializable

Shape = tuple[int | None, ...]


def _check_alike(layer: Any, name: str, shape: Shape, first: str, like: Shape) -> None:
    """ValueError if two shapes differ, as far as they are known."""
    if len(shape) == len(like) and all(None in (size, other) or size == other for size, other in zip(shape, like)):
        return
    raise ValueError(
        f"{type(layer).__name__}: {name} has shape {tuple(shape)}; expected {tuple(like)}, the shape of {first}"
    )


class _Add:
    """The norm of a sum."""

    def call(self: Any, inputs: Any, residual: Any) -> tuple[Any, Any]:
        """Two tensors of one shape; returns the norm of their sum, and the sum."""
        x, other = data(inputs), data(residual)
        dtype = keras.backend.result_type(x.dtype, other.dtype)
        found = self.normalise(ops.cast(x, dtype), ops.cast(other, dtype))
        y, total = (ops.cast(each, self.compute_dtype) for each in found)
        return y, total

    def compute_output_shape(self, inputs_shape: Shape, residual_shape: Shape) -> tuple[Shape, Shape]:
        """Both outputs have the shape of the inputs. ValueError if these differ."""
        _check_alike(self, "residual", residual_shape, "inputs", inputs_shape)
        return tuple(inputs_shape), tuple(inputs_shape)

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """Both outputs have the mask of the first input."""
        return None if previous_mask is None else (previous_mask, previous_mask)


@serializable
class AddLayerNormalization(_Add, LayerNormalization):
    """Layer norm of ``inputs + residual``: called with both, returns the norm, and the sum for the next residual.

    Constructor and weights are those of `LayerNormalization`.

    Examples
    --------
    >>> import keras, numpy as np
    >>> y, total = AddLayerNormalization()(np.ones((2, 4), "float32"), np.ones((2, 4), "float32"))
    >>> keras.ops.convert_to_numpy(total)[0].tolist(), keras.ops.convert_to_numpy(y)[0].tolist()
    ([2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0])
    """


@serializable
class AddRMSNormalization(_Add, RMSNormalization):
    """RMS norm of ``inputs + residual``: called with both, returns the norm, and the sum for the next residual.

    Constructor and weights are those of `RMSNormalization`.
    """


class _Gated(keras.layers.Layer):
    """A gated activation."""

    #: The activation of the gate.
    kind = ""

    def __init__(
        self, layout: str = "split", axis: int = -1, limit: float | None = None, up_offset: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        if layout not in ("split", "interleaved"):
            raise ValueError(f"{type(self).__name__}: layout is {layout!r}; expected 'split' or 'interleaved'")
        self.layout, self.axis, self.limit, self.up_offset = layout, axis, limit, up_offset
        self.supports_masking = True
        self.supports_jit = self.supports_jit and BACKEND != "tensorflow"

    def call(self, inputs: Any, up: Any = None) -> Any:
        """Two tensors of one shape, the gate first, or one packed along `axis`, which halves it."""
        gate, other = data(inputs), None if up is None else data(up)
        options: Any = {"layout": self.layout, "axis": self.axis, "limit": self.limit, "up_offset": self.up_offset}
        return kernels.gated(gate, other, self.kind, **options)

    def compute_output_shape(self, inputs_shape: Shape, up_shape: Shape | None = None) -> Shape:
        """That of the gate, or with half of what is packed. ValueError for shapes or an axis that do not fit."""
        shape, name = list(inputs_shape), type(self).__name__
        if not -len(shape) <= self.axis < len(shape):
            raise ValueError(f"{name}: axis is {self.axis} and inputs are {len(shape)}-D; expected one of their axes")
        if up_shape is not None:
            _check_alike(self, "up", up_shape, "inputs", inputs_shape)
            return tuple(shape)
        size = shape[self.axis]
        if size is not None:
            if size % 2:
                raise ValueError(f"{name}: inputs have {size} entries along axis {self.axis}; expected an even number")
            shape[self.axis] = size // 2
        return tuple(shape)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        own = {"layout": self.layout, "axis": self.axis, "limit": self.limit, "up_offset": self.up_offset}
        return super().get_config() | own


@serializable
class SwiGLU(_Gated):
    """``silu(gate) * up``; the arguments are those of `normact.swiglu`. No weights.

    Examples
    --------
    >>> import keras, numpy as np
    >>> keras.ops.convert_to_numpy(SwiGLU()(np.array([[0.0, 0.0, 3.0, 4.0]], "float32"))).tolist()
    [[0.0, 0.0]]
    """

    kind = "silu"


@serializable
class GEGLU(_Gated):
    """``gelu(gate) * up``; the arguments are those of `SwiGLU`. No weights."""

    kind = "gelu"
