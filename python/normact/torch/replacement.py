# SPDX-License-Identifier: Apache-2.0
"""Puts normact's modules into a model in the place of PyTorch's."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from normact.torch.modules import REPLACEMENTS

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_DEVICES = ("cpu", "cuda", "meta")
# A leaf of another class with such a name is one that the reader of the report will ask about.
_WORDS = ("Norm", "GELU", "SiLU")


@dataclasses.dataclass
class Report:
    """What `replace` did; print it.

    Attributes
    ----------
    replaced : list of (str, str)
        Name of the module in the model, and of its class.
    left : list of (str, str, str)
        The same of what looks replaceable and is not, and why.
    """

    replaced: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    left: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"replaced {_count(self.replaced)}"]
        lines += [f"  {name or '(the model)'}: {kind}" for name, kind in self.replaced]
        if self.left:
            lines += [f"left {_count(self.left)}"]
            lines += [f"  {name or '(the model)'}: {kind} ({reason})" for name, kind, reason in self.left]
        return "\n".join(lines)


def _count(modules: list[Any]) -> str:
    end = ":" if modules else ""
    return f"{len(modules)} module{'' if len(modules) == 1 else 's'}{end}"


def replace(model: nn.Module) -> Report:
    """Swap the norms, GELU and SiLU of a model for normact's, in place.

    The very module objects stay, with their parameters, buffers, hooks, mode and device; only their class changes, to
    one with the same constructor and state_dict. So optimizers and checkpoints do not notice. But an output lies in
    memory as its input does: of a permuted one, where PyTorch's norms of rows give a contiguous tensor, ``.view()`` may
    have to become ``.reshape()``.

    Parameters
    ----------
    model : Module
        Any model; may be a norm itself.

    Returns
    -------
    Report
        What was replaced, and what was left and why. Subclasses are left, since their forward may be another.

    Examples
    --------
    >>> import torch
    >>> print(replace(torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.LocalResponseNorm(2))))
    replaced 1 module:
      0: LayerNorm
    left 1 module:
      1: LocalResponseNorm (normact has no such module)
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"replace: model is of type {type(model).__name__}; expected a torch.nn.Module")
    report = Report()
    for name, module in model.named_modules():
        kind = type(module)
        reason = _reason(module)
        if reason is not None:
            report.left.append((name, kind.__name__, reason))
        elif kind in REPLACEMENTS:
            module.__class__ = REPLACEMENTS[kind]
            report.replaced.append((name, kind.__name__))
    return report


def _reason(module: nn.Module) -> str | None:
    """Why a module is not replaced; None if it is, and for what nobody would expect to be."""
    kind = type(module)
    if kind.__module__.startswith("normact."):
        return None
    if kind not in REPLACEMENTS:
        return reason_of_class(module)
    if "forward" in vars(module):
        return "its forward was replaced on the instance"
    for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        if tensor.dtype not in _DTYPES and (tensor.is_floating_point() or tensor.is_complex()):
            return f"its {name} is {tensor.dtype}".replace("torch.", "")
        if tensor.device.type not in _DEVICES:
            return f"its {name} is on a device of type {tensor.device.type}"
    return None


def reason_of_class(module: nn.Module) -> str | None:
    """Why a module is not of a class that is replaced; None for what nobody would expect to be."""
    kind = type(module)
    if getattr(kind, "cls_to_become", None) in REPLACEMENTS:
        return "its size is not known before its first forward"
    base = next((base for base in kind.__mro__ if base in REPLACEMENTS), None)
    if base is not None:
        return f"a subclass of torch.nn.{base.__name__}, whose forward may be another"
    if next(module.children(), None) is None and any(word in kind.__name__ for word in _WORDS):
        return "normact has no such module" if kind.__module__.startswith("torch.") else "not a class of PyTorch"
    return None
