# SPDX-License-Identifier: Apache-2.0
"""Modules in the place of PyTorch's: the same constructors, parameters and state_dict, another forward."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from normact.torch import activations, channel_norms, norms

if TYPE_CHECKING:
    from torch import Tensor


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` on normact's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        """Shape ``(..., *normalized_shape)`` to the same."""
        return norms.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` on normact's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        """Shape ``(..., *normalized_shape)`` to the same."""
        return norms.rms_norm(input, self.normalized_shape, self.weight, self.eps)


class GELU(nn.GELU):
    """`torch.nn.GELU` on normact's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape to the same."""
        return activations.gelu(input, self.approximate)


class SiLU(nn.SiLU):
    """`torch.nn.SiLU` on normact's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        """Any shape to the same."""
        return activations.silu(input, self.inplace)


class GroupNorm(nn.GroupNorm):
    """`torch.nn.GroupNorm` on normact's kernels."""

    def forward(self, input: Tensor) -> Tensor:
        """Shape ``(N, num_channels, ...)`` to the same."""
        return channel_norms.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


# ---- Instance norm: PyTorch's forward, which also takes a single sample, calls this ----


class _InstanceNorm:
    def _apply_instance_norm(self: Any, input: Tensor) -> Tensor:
        return channel_norms.instance_norm(
            input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )


class InstanceNorm1d(_InstanceNorm, nn.InstanceNorm1d):
    """`torch.nn.InstanceNorm1d` on normact's kernels."""


class InstanceNorm2d(_InstanceNorm, nn.InstanceNorm2d):
    """`torch.nn.InstanceNorm2d` on normact's kernels."""


class InstanceNorm3d(_InstanceNorm, nn.InstanceNorm3d):
    """`torch.nn.InstanceNorm3d` on normact's kernels."""


# ---- Batch norm ----


class _BatchNorm:
    #: What y passes through, in the same pass.
    activation: str | None = None

    def forward(self: Any, input: Tensor) -> Tensor:
        """Shape ``(N, num_features, ...)`` to the same."""
        return self.normalise(input, None)

    def normalise(self: Any, input: Tensor, addend: Tensor | None) -> Tensor:
        """The forward with something added before the activation."""
        self._check_input_dim(input)
        arguments = self.arguments()
        training = self.training or (self.running_mean is None and self.running_var is None)
        return channel_norms.batch_norm(input, training=training, addend=addend, **arguments)

    def arguments(self: Any) -> dict[str, Any]:
        """What PyTorch's module makes of its attributes: buffers are updated in training if they are tracked."""
        tracked = self.training and self.track_running_stats
        used = tracked or not self.training
        batches = self.num_batches_tracked if tracked else None
        return {
            "running_mean": self.running_mean if used else None,
            "running_var": self.running_var if used else None,
            "weight": self.weight,
            "bias": self.bias,
            "momentum": 0.0 if self.momentum is None and batches is None else self.momentum,
            "eps": self.eps,
            "num_batches_tracked": batches,
            "activation": self.activation,
        }


class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` on normact's kernels."""


class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d` on normact's kernels."""


class BatchNorm3d(_BatchNorm, nn.BatchNorm3d):
    """`torch.nn.BatchNorm3d` on normact's kernels."""


class SyncBatchNorm(_BatchNorm, nn.modules.batchnorm._BatchNorm):
    """`torch.nn.SyncBatchNorm` on normact's kernels, on GPUs and CPUs: uneven and empty batches are merged rightly.

    Constructor and state_dict are PyTorch's. It is no subclass of PyTorch's module, since
    `DistributedDataParallel` refuses that one on CPUs.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        **options: Any,  # `bias`, in newer versions of PyTorch
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, **options)
        self.process_group = process_group

    def forward(self, input: Tensor, addend: Tensor | None = None) -> Tensor:
        """Shape ``(N, num_features, ...)`` to the same; an addend is added before the activation."""
        return self.normalise(input, addend)

    def normalise(self, input: Tensor, addend: Tensor | None) -> Tensor:
        """Over all processes in training, if there are several."""
        dist = torch.distributed
        together = self.training and dist.is_available() and dist.is_initialized()
        if not together or dist.get_world_size(self.process_group) == 1:
            return super().normalise(input, addend)
        from normact.torch import sync  # here, as it imports PyTorch's compiler: two seconds

        self._check_input_dim(input)
        arguments = {"group": self.process_group, "addend": addend, **self.arguments()}
        function: Any = sync.sync_batch_norm  # whose type is lost in its decorator
        return function(input, **arguments)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"SyncBatchNorm: input is {input.ndim}-D; expected at least 2 dimensions, (N, C, ...)")

    @classmethod
    def convert_sync_batchnorm(cls, module: nn.Module, process_group: Any = None) -> nn.Module:
        """Makes every batch norm of a model, PyTorch's and normact's, synchronous. In place; returns the model.

        Fused activations and addends stay. Subclasses, whose forward may be another, are left with a warning.

        Parameters
        ----------
        module : Module
            A batch norm, or what holds some.
        process_group : ProcessGroup, optional
            The processes; default is all.
        """
        from normact.torch.replacement import reason_of_class  # which knows all modules

        for name, each in module.named_modules():
            if not isinstance(each, nn.modules.batchnorm._BatchNorm) or isinstance(each, cls):
                continue
            kind = type(each)
            if kind not in REPLACEMENTS and not kind.__module__.startswith("normact."):
                place, reason = name or "the module itself", reason_of_class(each) or "not a class of PyTorch"
                warnings.warn(f"convert_sync_batchnorm: left {place}, a {kind.__name__}: {reason}", stacklevel=2)
                continue
            converted: Any = each
            activation = getattr(each, "activation", None)
            converted.__class__ = cls
            converted.process_group, converted.activation = process_group, activation
        return module


#: What `replace` puts in the place of what.
REPLACEMENTS: dict[type[nn.Module], type[nn.Module]] = {
    nn.LayerNorm: LayerNorm,
    nn.RMSNorm: RMSNorm,
    nn.GELU: GELU,
    nn.SiLU: SiLU,
    nn.GroupNorm: GroupNorm,
    nn.InstanceNorm1d: InstanceNorm1d,
    nn.InstanceNorm2d: InstanceNorm2d,
    nn.InstanceNorm3d: InstanceNorm3d,
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
    nn.SyncBatchNorm: SyncBatchNorm,
}
