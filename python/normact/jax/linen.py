# SPDX-License-Identifier: Apache-2.0
"""The norms as layers of `flax.linen`: subclasses of Flax's with the same arguments, parameters and statistics.

Checkpoints of Flax's layers load. Two arguments are new: `activation`, the kind of an activation that is applied
before the result is rounded, and its number `alpha`. Statistics are always float32 (float64 for float64) and exact:
`use_fast_variance` and `force_float32_reductions` have no effect. Those in `batch_stats` begin as float32, and become
float64 with the first batch of that; an empty batch leaves them as they are. `mask`, `axis_index_groups`, and an
`axis_name` of any layer but BatchNorm, are refused.

>>> import jax, jax.numpy as jnp
>>> from normact.jax import linen
>>> layer, x = linen.LayerNorm(activation="gelu"), jnp.ones((2, 8))
>>> variables = layer.init(jax.random.key(0), x)
>>> jax.tree.map(jnp.shape, variables)
{'params': {'bias': (8,), 'scale': (8,)}}
>>> layer.apply(variables, x).shape
(2, 8)
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen
from flax.linen import dtypes

from normact.jax import layers
from normact.jax.inputs import flag
from normact.jax.op import statistic_dtype


def _parameters(module: Any, shape: tuple[int, ...], use_bias: bool) -> tuple[Any, Any]:
    scale = module.param("scale", module.scale_init, shape, module.param_dtype) if module.use_scale else None
    bias = module.param("bias", module.bias_init, shape, module.param_dtype) if use_bias else None
    return scale, bias


def _dtype(module: Any, x: Any, scale: Any, bias: Any) -> Any:
    """Flax's rule for the result."""
    arrays = [array for array in (x, scale, bias) if array is not None]
    return dtypes.canonicalize_dtype(*arrays, dtype=module.dtype)


def _row(norm: str, module: Any, x: Any, mask: Any, use_bias: bool) -> Any:
    layers.refuse_unused(norm, mask=mask, axis_name=module.axis_name, axis_index_groups=module.axis_index_groups)
    x = jnp.asarray(x)
    features = layers.sorted_axes(norm, "feature_axes", module.feature_axes, x.ndim)
    scale, bias = _parameters(module, tuple(x.shape[axis] for axis in features), use_bias)
    return layers.row(
        norm,
        x,
        scale,
        bias,
        module.reduction_axes,
        module.feature_axes,
        module.epsilon,
        _dtype(module, x, scale, bias),
        module.activation,
        module.alpha,
    )


class LayerNorm(linen.LayerNorm):
    """`flax.linen.LayerNorm` with an activation. The feature axes must be among the reduction axes."""

    activation: str | None = None
    alpha: float | None = None

    @linen.compact
    def __call__(self, x: Any, *, mask: Any = None) -> Any:
        """The normalised x."""
        return _row("LayerNorm", self, x, mask, self.use_bias)


class RMSNorm(linen.RMSNorm):
    """`flax.linen.RMSNorm` with an activation. The feature axes must be among the reduction axes."""

    activation: str | None = None
    alpha: float | None = None

    @linen.compact
    def __call__(self, x: Any, *, mask: Any = None) -> Any:
        """The normalised x."""
        return _row("RMSNorm", self, x, mask, False)


class GroupNorm(linen.GroupNorm):
    """`flax.linen.GroupNorm` with an activation. The reduction axes, where given, must be the last ones."""

    activation: str | None = None
    alpha: float | None = None

    @linen.compact
    def __call__(self, x: Any, *, mask: Any = None) -> Any:
        """The normalised x."""
        unused = {"mask": mask, "axis_name": self.axis_name, "axis_index_groups": self.axis_index_groups}
        layers.refuse_unused("GroupNorm", **unused)
        x = jnp.asarray(x)
        groups = layers.number_of_groups(x, self.num_groups, self.group_size)
        scale, bias = _parameters(self, (x.shape[-1],), self.use_bias)
        axes = (-1,) if self.reduction_axes is None and x.ndim == 1 else self.reduction_axes  # one sample
        options = (axes, self.epsilon, _dtype(self, x, scale, bias), self.activation, self.alpha)
        return layers.group(x, scale, bias, groups, -1, *options)


class InstanceNorm(linen.InstanceNorm):
    """`flax.linen.InstanceNorm` with an activation. There is one feature axis."""

    activation: str | None = None
    alpha: float | None = None

    @linen.compact
    def __call__(self, x: Any, *, mask: Any = None) -> Any:
        """The normalised x."""
        unused = {"mask": mask, "axis_name": self.axis_name, "axis_index_groups": self.axis_index_groups}
        layers.refuse_unused("InstanceNorm", **unused)
        x = jnp.asarray(x)
        axis = layers.instance_axis(x, self.feature_axes)
        scale, bias = _parameters(self, (x.shape[axis],), self.use_bias)
        options = (None, self.epsilon, _dtype(self, x, scale, bias), self.activation, self.alpha)
        return layers.group(x, scale, bias, x.shape[axis], axis, *options)


class BatchNorm(linen.BatchNorm):
    """`flax.linen.BatchNorm` with an activation; `axis_name` synchronises it. There is one feature axis."""

    activation: str | None = None
    alpha: float | None = None

    @linen.compact
    def __call__(self, x: Any, use_running_average: bool | None = None, *, mask: Any = None) -> Any:
        """The normalised x; in training the statistics in `batch_stats` are updated."""
        layers.refuse_unused("BatchNorm", mask=mask, axis_index_groups=self.axis_index_groups)
        use_running_average = linen.merge_param("use_running_average", self.use_running_average, use_running_average)
        use_running_average = flag("BatchNorm", "use_running_average", use_running_average)
        x = jnp.asarray(x)
        axis = layers.single_axis("BatchNorm", "axis", self.axis, x.ndim)
        shape = (x.shape[axis],)
        mean = self.variable("batch_stats", "mean", lambda: jnp.zeros(shape, jnp.float32))
        variance = self.variable("batch_stats", "var", lambda: jnp.ones(shape, jnp.float32))
        scale, bias = _parameters(self, shape, self.use_bias)
        options = (axis, self.epsilon, _dtype(self, x, scale, bias), self.activation, self.alpha)
        if use_running_average:
            return layers.batch_inference(x, scale, bias, (mean.value, variance.value), *options)
        starting = self.is_initializing()
        found = layers.batch_training(x, scale, bias, *options, None if starting else self.axis_name)
        if not starting:
            wide = statistic_dtype(jnp.dtype(_dtype(self, x, None, None)))
            for state, new in zip((mean, variance), found[1:]):
                state.value = layers.moving_average(state.value, new.astype(wide), self.momentum, x)
        return found[0]
