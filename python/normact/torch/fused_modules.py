# SPDX-License-Identifier: Apache-2.0
"""Modules that do in one pass what takes PyTorch several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from normact.torch import activations, channel_norms, gates, norms
from normact.torch.modules import BatchNorm2d, GroupNorm, LayerNorm, RMSNorm

if TYPE_CHECKING:
    from torch import Tensor


class AddLayerNorm(LayerNorm):
    """Layer norm of ``input + residual``; constructor and state_dict of `torch.nn.LayerNorm`.

    The residual may be float32 beside an input in 16 bits, as under autocast: the norm has the dtype of the input, the
    sum that of the residual, and neither is rounded on the way.

    Examples
    --------
    >>> import torch
    >>> norm = AddLayerNorm(4)
    >>> y, total = norm(torch.ones(2, 4), torch.ones(2, 4))
    >>> total[0].tolist(), y[0].tolist()
    ([2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0])
    """

    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Returns the norm and the sum, both of the shape of input."""
        return norms.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps, residual=residual)


class AddRMSNorm(RMSNorm):
    """RMS norm of ``input + residual``; constructor and state_dict of `torch.nn.RMSNorm`. Dtypes: `AddLayerNorm`."""

    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Returns the norm and the sum, both of the shape of input."""
        return norms.rms_norm(input, self.normalized_shape, self.weight, self.eps, residual=residual)


class BiasGELU(nn.Module):
    """``gelu(input + bias)`` with a learnt bias: put it behind a ``Linear(..., bias=False)``.

    Parameters
    ----------
    num_features : int
        The size of input along `dim`.
    approximate : {"none", "tanh"}
        As in `torch.nn.GELU`.
    dim : int
        The dimension that the bias runs along.
    """

    def __init__(
        self, num_features: int, approximate: str = "none", dim: int = -1, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.num_features, self.approximate, self.dim = num_features, approximate, dim
        self.bias = nn.Parameter(torch.zeros(num_features, device=device, dtype=dtype))

    def forward(self, input: Tensor) -> Tensor:
        """Any shape to the same."""
        return activations.gelu(input, self.approximate, bias=self.bias, dim=self.dim)

    def extra_repr(self) -> str:
        """Shown by print()."""
        return f"{self.num_features}, approximate={self.approximate!r}, dim={self.dim}"


class _Gated(nn.Module):
    """A gated activation, of one packed tensor or of two."""

    def __init__(self, layout: str, dim: int, **options: Any) -> None:
        super().__init__()
        self.layout, self.dim, self.options = layout, dim, options

    def extra_repr(self) -> str:
        """Shown by print()."""
        named = {"layout": self.layout, "dim": self.dim, **self.options}
        return ", ".join(f"{name}={value!r}" for name, value in named.items())


class SwiGLU(_Gated):
    """``silu(gate) * up``; the parameters are those of `swiglu`."""

    def __init__(
        self, layout: str = "split", dim: int = -1, limit: float | None = None, up_offset: float = 0.0
    ) -> None:
        super().__init__(layout, dim, limit=limit, up_offset=up_offset)

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        """Two tensors of one shape, or one packed along `dim`."""
        return gates.swiglu(gate, up, layout=self.layout, dim=self.dim, **self.options)


class GEGLU(_Gated):
    """``gelu(gate) * up``; the parameters are those of `geglu`."""

    def __init__(self, approximate: str = "none", layout: str = "split", dim: int = -1) -> None:
        super().__init__(layout, dim, approximate=approximate)

    def forward(self, gate: Tensor, up: Tensor | None = None) -> Tensor:
        """Two tensors of one shape, or one packed along `dim`."""
        return gates.geglu(gate, up, layout=self.layout, dim=self.dim, **self.options)


class GroupNormSiLU(GroupNorm):
    """Group norm and SiLU, as in diffusion models; constructor and state_dict of `torch.nn.GroupNorm`."""

    def forward(self, input: Tensor) -> Tensor:
        """Shape ``(N, num_channels, ...)`` to the same."""
        return channel_norms.group_norm(input, self.num_groups, self.weight, self.bias, self.eps, activation="silu")


class BatchNormReLU2d(BatchNorm2d):
    """Batch norm and ReLU; constructor and state_dict of `torch.nn.BatchNorm2d`."""

    activation = "relu"


class BatchNormAddReLU2d(BatchNorm2d):
    """``relu(batch_norm(input) + addend)``, the end of a ResNet's block; as `torch.nn.BatchNorm2d` otherwise."""

    activation = "relu"

    def forward(self, input: Tensor, addend: Tensor) -> Tensor:  # type: ignore[override]
        """Both of shape ``(N, num_features, H, W)``, and so the result."""
        return self.normalise(input, addend)
