# SPDX-License-Identifier: Apache-2.0
"""The norms as layers of `flax.nnx`: subclasses of Flax's with the same arguments, parameters and statistics.

Checkpoints of Flax's layers load. Two arguments are new: `activation`, the kind of an activation that is applied
before the result is rounded, and its number `alpha`. Statistics are always float32 (float64 for float64) and exact:
`use_fast_variance` has no effect. The running ones are float32, as Flax's are, and an empty batch leaves them as they
are. `mask`, `axis_index_groups`, and an `axis_name` of any layer but BatchNorm, are refused.

>>> import jax.numpy as jnp
>>> from flax.nnx import Rngs
>>> from normact.jax import nnx
>>> layer = nnx.RMSNorm(8, rngs=Rngs(0))
>>> layer(jnp.ones((2, 8))).shape
(2, 8)
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx

from normact.jax import layers
from normact.jax.inputs import flag


def _value(parameter: Any) -> Any:
    return None if parameter is None else parameter[...]


def _promoted(module: Any, *arrays: Any) -> tuple[Any, ...]:
    """The arrays in the dtype that Flax computes in."""
    return module.promote_dtype(arrays, dtype=module.dtype)


class _Activated:
    """What all layers add to Flax's: the activation, and what is refused."""

    _synchronises = False

    def __init__(self, *args: Any, activation: str | None = None, alpha: float | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.activation, self.alpha = activation, alpha
        layer: Any = self
        axis_name = None if self._synchronises else layer.axis_name
        layers.refuse_unused(type(self).__name__, axis_name=axis_name, axis_index_groups=layer.axis_index_groups)


class LayerNorm(_Activated, nnx.LayerNorm):
    """`flax.nnx.LayerNorm` with an activation. The feature axes must be among the reduction axes."""

    def __call__(self, x: Any, *, mask: Any = None) -> Any:
        """The normalised x."""
        layers.refuse_unused("LayerNorm", mask=mask)
        x, scale, bias = _promoted(self, jnp.asarray(x), _value(self.scale), _value(self.bias))
        options = (self.reduction_axes, self.feature_axes, self.epsilon, x.dtype, self.activation, self.alpha)
        return layers.row("LayerNorm", x, scale, bias, *options)


class RMSNorm(_Activated, nnx.RMSNorm):
    """`flax.nnx.RMSNorm` with an activation. The feature axes must be among the reduction axes."""

    def __call__(self, x: Any, mask: Any = None) -> Any:
        """The normalised x."""
        layers.refuse_unused("RMSNorm", mask=mask)
        x, scale = _promoted(self, jnp.asarray(x), _value(self.scale))
        options = (self.reduction_axes, self.feature_axes, self.epsilon, x.dtype, self.activation, self.alpha)
        return layers.row("RMSNorm", x, scale, None, *options)


class GroupNorm(_Activated, nnx.GroupNorm):
    """`flax.nnx.GroupNorm` with an activation. The reduction axes, where given, must be the last ones."""

    def __call__(self, x: Any, *, mask: Any = None) -> Any:
        """The normalised x."""
        layers.refuse_unused("GroupNorm", mask=mask)
        x = jnp.asarray(x)
        layers.refuse_dimensions("GroupNorm", x, 2)
        channels = self.num_groups * self.group_size
        if x.shape[-1] != channels:
            raise ValueError(f"GroupNorm: x has {x.shape[-1]} channels; expected {channels}, as the layer has")
        x, scale, bias = _promoted(self, x, _value(self.scale), _value(self.bias))
        options = (self.reduction_axes, self.epsilon, x.dtype, self.activation, self.alpha)
        return layers.group(x, scale, bias, self.num_groups, -1, *options)


class InstanceNorm(_Activated, nnx.InstanceNorm):
    """`flax.nnx.InstanceNorm` with an activation. There is one feature axis."""

    def __call__(self, x: Any, *, mask: Any = None) -> Any:
        """The normalised x."""
        layers.refuse_unused("InstanceNorm", mask=mask)
        x = jnp.asarray(x)
        axis = layers.instance_axis(x, self.feature_axes)
        x, scale, bias = _promoted(self, x, _value(self.scale), _value(self.bias))
        options = (None, self.epsilon, x.dtype, self.activation, self.alpha)
        return layers.group(x, scale, bias, x.shape[axis], axis, *options)


class BatchNorm(_Activated, nnx.BatchNorm):
    """`flax.nnx.BatchNorm` with an activation; `axis_name` synchronises it. There is one feature axis."""

    _synchronises = True

    def __call__(self, x: Any, use_running_average: bool | None = None, *, mask: Any = None) -> Any:
        """The normalised x; in training `mean` and `var` are updated."""
        layers.refuse_unused("BatchNorm", mask=mask)
        inference = self.use_running_average if use_running_average is None else use_running_average
        if inference is None:
            raise ValueError("BatchNorm: use_running_average is None here and in the constructor; expected a bool")
        inference = flag("BatchNorm", "use_running_average", inference)
        arrays = (jnp.asarray(x), _value(self.scale), _value(self.bias), self.mean[...], self.var[...])
        x, scale, bias, *_ = _promoted(self, *arrays)
        axis = layers.single_axis("BatchNorm", "axis", self.axis, x.ndim)
        options = (axis, self.epsilon, x.dtype, self.activation, self.alpha)
        if inference:
            return layers.batch_inference(x, scale, bias, (self.mean[...], self.var[...]), *options)
        y, mean, variance = layers.batch_training(x, scale, bias, *options, self.axis_name)
        for state, new in ((self.mean, mean), (self.var, variance)):
            state[...] = layers.moving_average(state[...], new.astype(state[...].dtype), self.momentum, x)
        return y
