# SPDX-License-Identifier: Apache-2.0
"""The operators `torch.ops.normact.*`: what `torch.compile`, `torch.export` and tensor subclasses see of an `Op`.

They are pure functions. An operation that updates tensors returns their new values behind its outputs, and `call`
copies these; the backward is an operator of its own that returns the gradients that exist and are wanted.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from normact.torch import fakes

if TYPE_CHECKING:
    from normact.torch.op import Op, Tensors

_LIBRARY = torch.library.Library("normact", "DEF")
_DEVICES = ("CPU", "CUDA")

#: The types that the raw functions take.
PLAIN = (torch.Tensor, torch.nn.Parameter)


def register(op: Op) -> tuple[Any, Any]:
    """Defines both operators of an operation and returns them: forward and backward."""
    forward, backward = op.name, f"{op.name}_backward"
    results = _names(op.outputs + tuple(name.rstrip("?") for name in op.tensors[len(op.tensors) - op.states :]))
    arguments = _names(op.tensors) + list(op.options)
    returns = results[0] if len(results) == 1 else f"({', '.join(results)})"
    _LIBRARY.define(f"{forward}({', '.join(arguments)}) -> {returns}")
    seeds = [f"Tensor{'?' if i else ''} d{name}" for i, name in enumerate(op.outputs[: op.returned])]
    arguments = seeds + _names(op.saved) + list(op.options) + ["bool[] wanted"]
    _LIBRARY.define(f"{backward}({', '.join(arguments)}) -> Tensor[]")
    _implement(op, forward, backward)
    namespace = torch.ops.normact
    return getattr(namespace, forward).default, getattr(namespace, backward).default


def _names(tensors: tuple[str, ...]) -> list[str]:
    return [f"Tensor? {name[:-1]}" if name.endswith("?") else f"Tensor {name}" for name in tensors]


def _implement(op: Op, forward: str, backward: str) -> None:
    def run(*args: Any) -> Any:
        tensors, options = op.split(_plain(args))
        _refuse_forward_mode(op.called(options))
        new = tuple(None if state is None else state.clone() for state in _states(op, tensors))
        outputs = op.forward(tensors[: len(tensors) - op.states] + new, options, True)
        return _returned(outputs + _filled(new, tensors[0]))

    def run_fake(*args: Any) -> Any:
        tensors, options = op.split(args)
        _refuse_forward_mode(op.called(options))
        fakes.check(op, tensors, options)
        new = tuple(None if state is None else torch.empty_like(state) for state in _states(op, tensors))
        return _returned(op.empty(tensors, options) + _filled(new, tensors[0]))

    def run_backward(*args: Any) -> list[Any]:
        grads, saved, options, wanted = op.split_backward(_plain(args))
        _refuse_forward_mode(op.called(options))
        found = op.backward(grads, saved, options, wanted)
        return [gradient for gradient, there in zip(found, op.present(saved, wanted)) if there]

    def run_backward_fake(*args: Any) -> list[Any]:
        seeds, saved, options, wanted = op.split_backward(args)
        _refuse_forward_mode(op.called(options))
        there = op.present(saved, wanted)
        return [torch.empty_like(op.like(gradient, seeds, saved)) for gradient in range(len(there)) if there[gradient]]

    for device in _DEVICES:
        _LIBRARY.impl(forward, run, device)
        _LIBRARY.impl(backward, run_backward, device)
    torch.library.register_fake(f"normact::{forward}", run_fake, lib=_LIBRARY)
    torch.library.register_fake(f"normact::{backward}", run_backward_fake, lib=_LIBRARY)


def _plain(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What reaches a kernel has memory: a subclass adds to it what the raw functions refuse to drop."""
    return tuple(
        arg.as_subclass(torch.Tensor) if isinstance(arg, torch.Tensor) and type(arg) not in PLAIN else arg
        for arg in args
    )


class _Guarded(threading.local):
    depth = 0


_guarded = _Guarded()


def guarded(operator: Any) -> Any:
    """The operator for an autograd function, which itself refuses what has a tangent."""

    def call(*args: Any) -> Any:
        _guarded.depth += 1
        try:
            return operator(*args)
        finally:
            _guarded.depth -= 1

    return call


def _refuse_forward_mode(function: str) -> None:
    """PyTorch calls the kernel of an operator that has no forward mode as if nothing had a tangent.

    Nor can a kernel tell whether something has: it refuses to work at all where tangents may be.
    """
    if forward_ad._current_level >= 0 and not _guarded.depth:
        raise forward_refusal(function)


def forward_refusal(name: str) -> NotImplementedError:
    """The error about forward mode."""
    return NotImplementedError(
        f"normact.torch: {name} was called in forward mode (torch.func.jvp, jacfwd, hessian, forward_ad), which it has "
        "none of; expected reverse mode, such as torch.func.vjp or jacrev"
    )


def _states(op: Op, tensors: Tensors) -> Tensors:
    return tensors[len(tensors) - op.states :]


def _filled(tensors: Tensors, like: Any) -> Tensors:
    """An operator's outputs cannot be None."""
    return tuple(like.new_empty(0) if tensor is None else tensor for tensor in tensors)


def _returned(outputs: Tensors) -> Any:
    return outputs[0] if len(outputs) == 1 else outputs


def register_gradients(op: Op, setup_context: Any, backward: Any, refuse: Any) -> None:
    """The autograd formula of the forward operator; the backward's refuses."""
    torch.library.register_autograd(f"normact::{op.name}", backward, setup_context=setup_context, lib=_LIBRARY)
    torch.library.register_autograd(f"normact::{op.name}_backward", refuse, lib=_LIBRARY)


def register_vmaps(op: Op, forward: Any, backward: Any) -> None:
    """What a vmap over the operators does: (info, in_dims, *args) -> (results, out_dims)."""
    torch.library.register_vmap(f"normact::{op.name}", forward, lib=_LIBRARY)
    torch.library.register_vmap(f"normact::{op.name}_backward", backward, lib=_LIBRARY)
