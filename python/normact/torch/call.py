# SPDX-License-Identifier: Apache-2.0
"""How a public function reaches the library: the shortest way that PyTorch's state allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._C._functorch import peek_interpreter_stack
from torch.compiler import is_compiling

from normact import _core
from normact.torch import sharding

if TYPE_CHECKING:
    from normact.torch.functions import Calls
    from normact.torch.op import Options, Tensors

_torch_way, _RECORDED, _WATCHED = _core.torch_way, _core.RECORDED, _core.WATCHED


def call(calls: Calls, tensors: Tensors, options: Options) -> Any:
    """Runs an operation: what the caller gets of it, as one tensor or a tuple.

    - Under torch.compile and torch.export, under a mode that watches operations, for tensor subclasses and for tensors
      without memory: the operator.
    - Inside a transform of torch.func: its autograd function that knows them.
    - Where a gradient is wanted: the fast autograd function.
    - Else nothing stands between the caller and the kernel.
    """
    op = calls.op
    if is_compiling():
        sharding.register()
        return _functional(calls, calls.forward_op, tensors, options)
    way = _torch_way(tensors)
    if way == _WATCHED:
        check_tensors(op.called(options), op.tensors, tensors)
        sharding.register()
        inside = peek_interpreter_stack() is not None
        return _functional(calls, calls.transformed.apply if inside else calls.forward_op, tensors, options)
    try:
        return (calls.eager if way == _RECORDED else calls.direct)(*tensors, options)
    except (TypeError, RuntimeError):
        check_tensors(op.called(options), op.tensors, tensors)  # a nested tensor may be a plain torch.Tensor
        raise


def _functional(calls: Calls, function: Any, tensors: Tensors, options: Options) -> Any:
    """Through a function that returns the new values of what is updated."""
    op = calls.op
    outputs = function(*tensors, *options)
    if op.states:  # whose new values need no gradient: under torch.no_grad(), torch.export could not be saved
        for state, new in zip(tensors[len(tensors) - op.states :], outputs[len(op.outputs) :]):
            if state is not None:
                state.copy_(new)
    if len(op.outputs) + op.states == 1:
        return outputs
    return outputs[0] if op.returned == 1 else tuple(outputs[: op.returned])


def check_tensors(function: str, names: tuple[str, ...], tensors: Tensors) -> None:
    """TypeError if something is no tensor, nor of a subclass, or a nested one."""
    for name, tensor in zip(names, tensors):
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise not_a_tensor(function, name.rstrip("?"), tensor)
        if tensor is not None and tensor.is_nested:
            raise nested(function, name.rstrip("?"))


def nested(function: str, name: str) -> TypeError:
    """The error about a tensor whose rows are of several lengths."""
    return TypeError(
        f"{function}: {name} is a nested tensor; expected a dense one, such as its .values() for a norm of each row"
    )


def not_a_tensor(function: str, name: str, found: Any) -> TypeError:
    """The error about an argument that is no tensor."""
    kind = f"{type(found).__module__}.{type(found).__qualname__}"
    return TypeError(f"{function}: {name} is of type {kind}; expected a torch.Tensor")
