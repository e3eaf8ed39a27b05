# SPDX-License-Identifier: Apache-2.0
"""Keras' normalization layers on normact's kernels."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from normact.activation_calls import kind_number
from normact.keras.kernels import BACKEND, kernels

_DTYPES = ("float64", "float32", "float16", "bfloat16")
serializable = keras.saving.register_keras_serializable(package="normact")


class Activated:
    """What the layers add to those of Keras: an activation in the same pass."""

    def __init__(self, *args: Any, activation: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if activation is not None:
            kind_number(type(self).__name__, activation, "activation")  # raises for a wrong one
        self.activation = activation
        layer: Any = self
        layer.supports_jit = layer.supports_jit and BACKEND != "tensorflow"  # XLA cannot call back to Python

    def get_config(self) -> dict[str, Any]:
        """What Keras' layer has, and the activation if there is one."""
        parent: Any = super()
        return parent.get_config() | ({} if self.activation is None else {"activation": self.activation})

    def _activated(self, y: Any) -> Any:
        """The activation after Keras' own computation."""
        return y if self.activation is None else kernels.activation(y, self.activation)


def data(inputs: Any) -> Any:
    """The inputs as a tensor of a dtype that the kernels know; integers become what Keras makes of them."""
    x: Any = ops.convert_to_tensor(inputs)
    dtype = keras.backend.standardize_dtype(x.dtype)
    return x if dtype in _DTYPES else ops.cast(x, keras.backend.result_type(dtype, "float32"))


def parameter(x: Any, variable: Any, shape: tuple[int, ...] | None = None) -> Any:
    """The variable's value, or None: in the dtype of x or float32, float64 with that. As Keras, of what shape fits."""
    if variable is None:
        return None
    value: Any = kernels.value(variable)
    dtype = keras.backend.standardize_dtype(x.dtype)
    found, wide = keras.backend.standardize_dtype(value.dtype), statistic_dtype(x)
    if found not in (dtype, wide):
        value = ops.cast(value, wide)
    fits = shape is None or None in shape or tuple(value.shape) == shape
    return value if fits else ops.reshape(value, shape)


def statistic_dtype(x: Any) -> str:
    """The dtype of the statistics of x."""
    return "float64" if keras.backend.standardize_dtype(x.dtype) == "float64" else "float32"


def axes(x: Any, axis: Any) -> tuple[int, ...]:
    """The axes that are normalised over, from 0 in rising order."""
    given = axis if isinstance(axis, (list, tuple)) else [axis]
    return tuple(sorted(each % len(x.shape) for each in given))


@serializable
class LayerNormalization(Activated, keras.layers.LayerNormalization):
    """`keras.layers.LayerNormalization`, and `activation`, the kind of what is applied in the same pass.

    Weights and results are those of Keras' layer. Its deprecated `rms_scaling` is computed by Keras.

    Examples
    --------
    >>> import keras, numpy as np
    >>> layer = LayerNormalization(epsilon=0.0, activation="relu")
    >>> keras.ops.convert_to_numpy(layer(np.array([[1.0, 3.0]], "float32"))).tolist()
    [[0.0, 1.0]]
    """

    def call(self, inputs: Any) -> Any:
        """Any shape to the same."""
        if self.rms_scaling:
            return self._activated(super().call(inputs))
        return ops.cast(self.normalise(data(inputs), None), self.compute_dtype)

    def normalise(self, x: Any, residual: Any) -> Any:
        """The norm, with a residual the sum too."""
        over = axes(x, self.axis)
        shape = tuple(x.shape[each] for each in over)
        parameters = (parameter(x, self.gamma, shape), parameter(x, self.beta, shape))
        options: Any = {"axis": over, "eps": self.epsilon, "residual": residual, "activation": self.activation}
        return kernels.layer_norm(x, *parameters, **options)


@serializable
class RMSNormalization(Activated, keras.layers.RMSNormalization):
    """`keras.layers.RMSNormalization`, and `activation`, the kind of what is applied in the same pass.

    Weights and results are those of Keras' layer.

    Examples
    --------
    >>> import keras, numpy as np
    >>> keras.ops.convert_to_numpy(RMSNormalization(epsilon=0.0)(np.array([[-2.0, 2.0]], "float32"))).tolist()
    [[-1.0, 1.0]]
    """

    def call(self, x: Any) -> Any:
        """Any shape to the same."""
        return self.normalise(data(x), None)

    def normalise(self, x: Any, residual: Any) -> Any:
        """The norm, with a residual the sum too."""
        over = axes(x, self.axis)
        scale = parameter(x, self.scale, tuple(x.shape[each] for each in over))
        options: Any = {"axis": over, "eps": self.epsilon, "residual": residual, "activation": self.activation}
        return kernels.rms_norm(x, scale, None, **options)


@serializable
class GroupNormalization(Activated, keras.layers.GroupNormalization):
    """`keras.layers.GroupNormalization`, and `activation`, the kind of what is applied in the same pass.

    Weights and results are those of Keras' layer; ``groups=-1`` is instance norm.

    Examples
    --------
    >>> import keras, numpy as np
    >>> layer = GroupNormalization(2, epsilon=0.0)
    >>> keras.ops.convert_to_numpy(layer(np.array([[1.0, 3.0, 10.0, 30.0]], "float32"))).round(3).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """

    def call(self, inputs: Any) -> Any:
        """Shape ``(N, ...)`` with the channels at `axis` to the same."""
        x = data(inputs)
        parameters = (parameter(x, self.gamma), parameter(x, self.beta))
        options: Any = {"channel_axis": self.axis % len(x.shape), "eps": self.epsilon, "activation": self.activation}
        return ops.cast(kernels.group_norm(x, self.groups, *parameters, **options), self.compute_dtype)


@serializable
class BatchNormalization(Activated, keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization`, and `activation`, the kind of what is applied in the same pass.

    Weights and results are those of Keras' layer, the variance in `moving_variance` is not unbiased. What has no kernel
    is computed by Keras and activated then: training with a mask, with `renorm`, or `synchronized`, and of a batch with
    one value a channel.

    Examples
    --------
    >>> import keras, numpy as np
    >>> layer = BatchNormalization(momentum=0.5, epsilon=0.0, activation="relu")
    >>> keras.ops.convert_to_numpy(layer(np.array([[1.0], [3.0]], "float32"), training=True)).tolist()
    [[0.0], [1.0]]
    >>> keras.ops.convert_to_numpy(layer.moving_mean).tolist()
    [1.0]
    """

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Shape with the channels at `axis` to the same."""
        batch = training and self.trainable
        x = data(inputs)
        renorm = getattr(self, "renorm", False)  # older Keras has none
        if batch and (mask is not None or renorm or self.synchronized or _alone(x, self.axis)):
            return self._activated(super().call(inputs, training=training, mask=mask))
        parameters = (parameter(x, self.gamma), parameter(x, self.beta))
        options: Any = {"channel_axis": self.axis % len(x.shape), "eps": self.epsilon, "activation": self.activation}
        dtype = statistic_dtype(x)
        moving: list[Any] = [ops.cast(kernels.value(each), dtype) for each in (self.moving_mean, self.moving_variance)]
        if batch:
            y, *found = kernels.batch_norm_training(x, *parameters, **options)
            moved: Any = (self.moving_mean, self.moving_variance)
            for variable, old, new in zip(moved, moving, found):
                variable.assign(old * self.momentum + new * (1.0 - self.momentum))
        else:
            y = kernels.batch_norm(x, *parameters, *moving, **options)
        return ops.cast(y, self.compute_dtype)


def _alone(x: Any, axis: int) -> bool:
    """Whether a channel is known to have one value. (What only shows when a graph runs is its kernel's business.)"""
    sizes = [size for place, size in enumerate(x.shape) if place != axis % len(x.shape)]
    return all(size == 1 for size in sizes)
