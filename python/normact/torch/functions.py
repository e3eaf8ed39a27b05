# SPDX-License-Identifier: Apache-2.0
"""The autograd functions of an `Op`.

`Eager` is the fast one. `Transformed` and `TransformedBackward` are for `torch.func`: such functions take three times
as long to call, so they are used only inside a transform.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import is_grad_enabled
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack
from torch.compiler import is_compiling

from normact import _core
from normact.outputs import JOINED
from normact.torch import library, sharding

if TYPE_CHECKING:
    from normact.outputs import Wanted
    from normact.torch.op import Op


class Calls(NamedTuple):
    """All ways to run an operation: operators, the direct call, that of the eager function, and under `torch.func`."""

    op: Op
    forward_op: Any
    backward_op: Any
    direct: Any
    eager: Any
    transformed: Any


def build(op: Op) -> Calls:
    """Makes and registers all that PyTorch needs of an operation."""
    forward_op, backward_op = library.register(op)

    def refuse(ctx: Any, *grads: Any) -> Any:
        raise refusal(op.name)

    once = _transformed_backward(op, backward_op, refuse)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tensors, options = op.split(inputs)
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*op.saves(tensors, outputs[: len(op.outputs)], options))
        ctx.options, ctx.dtype = options, tensors[0].dtype
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*outputs[op.returned :])

    backward = _backward(op, backward_op, once, plain=False)
    library.register_gradients(op, setup_context, backward, refuse)
    library.register_vmaps(op, vmap_rule(op, forward_op), loop_rule(backward_op))
    sharding.add(op, forward_op, backward_op)
    eager = _eager(op, _backward(op, backward_op, once, plain=True))
    direct = op.quick.direct if op.quick else _direct(op)
    return Calls(op, forward_op, backward_op, direct, eager, _transformed(op, forward_op, setup_context, backward))


def refusal(name: str) -> NotImplementedError:
    """The error about a second derivative."""
    return NotImplementedError(
        f"normact.torch: {name} was differentiated twice, and its backward has no gradient of its own; expected a "
        "loss without gradients in it (no gradient penalty, no Hessian), or PyTorch's own function"
    )


def batched_refusal(name: str) -> NotImplementedError:
    """The error about gradients that `torch.autograd` batches itself."""
    return NotImplementedError(
        f"normact.torch: {name} was given a batch of gradients (is_grads_batched=True or vectorize=True), which only "
        "PyTorch's own operations take; expected one gradient at a time, or torch.func.vmap, jacrev or vjp"
    )


def _backward(op: Op, backward_op: Any, once: Any, plain: bool) -> Any:
    """The backward of an autograd function: a gradient for each tensor that needs one, and None for each option.

    Of `plain` tensors, where nothing watches, memory is worked on directly; their options are one tuple.
    """
    run, returned, count = op.backward, op.returned, 1 if plain else len(op.options)
    resolved = _resolver(op)
    is_plain, in_forward_mode = _core.torch_is_plain, _core.torch_in_forward_mode
    mean = op.saved.index("mean") if "mean" in op.saved else None
    placed = operator.itemgetter(*_places(op, count))
    wanted_of: dict[tuple[bool, ...], Wanted] = {}

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        saved, options, needs = ctx.saved_tensors, ctx.options, ctx.needs_input_grad
        wanted = wanted_of.get(needs)
        if wanted is None:
            wanted = wanted_of[needs] = op.wanted(needs)
        grads = grads[:returned]
        if grads[0] is None:
            other = next((grad for grad in grads if grad is not None), None)
            if other is None:
                return (None,) * (len(op.tensors) + count)
            grads = (torch.zeros_like(other, dtype=ctx.dtype), *grads[1:])
        direct = plain and not is_compiling() and not is_grad_enabled() and not in_forward_mode()
        if direct and is_plain():
            try:
                found = run(grads, saved, options, wanted)
            except (TypeError, ValueError):
                again = resolved(*grads)
                if again is None:
                    raise
                found = run(again, saved, options, wanted)
        else:
            if mean is not None and saved[mean + 1] is None:  # joined by _eager
                saved = (*saved[:mean], *saved[mean].unbind(), *saved[mean + 2 :])
            inside = peek_interpreter_stack() is not None and not is_compiling()
            made = iter((once.apply if inside else backward_op)(*grads, *saved, *options, wanted))
            found = [next(made) if there else None for there in op.present(saved, wanted)]
        return placed((None, *found))

    return backward


def _direct(op: Op) -> Any:
    """A function of the tensors and a tuple of the options: the raw function, and nothing else."""
    run, returned = op.forward, op.returned

    def direct(*args: Any) -> Any:
        outputs = run(args[:-1], args[-1], False)
        return outputs[0] if returned == 1 else outputs[:returned]

    return direct


def _places(op: Op, options: int) -> tuple[int, ...]:
    """Where the gradient of each argument is: from 1 on, or 0, for none and for so many options."""
    return *(0 if place is None else place + 1 for place in op.gradient_of), *(0,) * options


def _resolver(op: Op) -> Any:
    """A function of the gradients that the library has refused; others do not pay for it.

    It returns them as the library takes them, or None if they have nothing that can be helped.
    """

    def resolved(*grads: Any) -> Any:
        there = [grad for grad in grads if grad is not None]
        if any(is_legacy_batchedtensor(grad) for grad in there):
            raise batched_refusal(op.name) from None
        # That of an imaginary part may be negated; subclasses drop what they add to their memory.
        if not any(grad.is_neg() or type(grad) not in library.PLAIN for grad in there):
            return None
        return tuple(None if grad is None else grad.resolve_neg().as_subclass(torch.Tensor) for grad in grads)

    return resolved


def _recorded(op: Op) -> Any:
    """The forward of the fast autograd function. The statistics stay inside: PyTorch would have to wrap outputs."""
    run, saves, returned = op.forward, op.saves, op.returned

    def forward(ctx: Any, *args: Any) -> Any:
        tensors, options = args[:-1], args[-1]
        outputs = run(tensors, options, JOINED)
        # What save_for_backward() and set_materialize_grads() do.
        ctx.to_save = saves(tensors, outputs, options)
        ctx.materialize_grads = False
        ctx.options = options
        if returned > 1:  # a gradient of the first may be missing
            ctx.dtype = tensors[0].dtype
        return outputs[0] if returned == 1 else outputs[:returned]

    return forward


def _eager(op: Op, backward: Any) -> Any:
    """A function of the tensors and a tuple of the options, as short as can be.

    It is called without what `Function.apply` does for `torch.func`, where it is not used: that is a quarter of the
    time. And its backward is where PyTorch looks, which else would look for it in the time of two allocations.
    """
    quick = op.quick
    made = _function(op, f"Normact_{op.name}", forward=quick.forward if quick else _recorded(op), backward=backward)
    if quick:
        made._backward_cls.apply = quick.backward(_places(op, 1), op.wanted, backward, _resolver(op))
    else:
        made._backward_cls.apply = backward
    base: Any = super(torch.autograd.Function, made)
    return base.apply


def _transformed(op: Op, forward_op: Any, setup_context: Any, backward: Any) -> Any:
    made = _function(
        op,
        f"NormactTransformed_{op.name}",
        forward=library.guarded(forward_op),
        setup_context=setup_context,
        backward=backward,
        vmap=vmap_rule(op, lambda *args: made.apply(*args)),
    )
    return made


def _transformed_backward(op: Op, backward_op: Any, refuse: Any) -> Any:
    guarded = library.guarded(backward_op)
    once = _function(
        op,
        f"NormactTransformedBackward_{op.name}",
        forward=lambda *args: tuple(guarded(*args)),
        setup_context=lambda ctx, inputs, output: None,
        backward=refuse,
        vmap=loop_rule(lambda *args: once.apply(*args)),
    )
    return once


def _function(op: Op, name: str, **methods: Any) -> Any:
    def jvp(ctx: Any, *tangents: Any) -> Any:
        options = getattr(ctx, "options", None)  # which a backward's has not
        raise library.forward_refusal(op.name if options is None else op.called(options))

    methods["jvp"] = jvp
    return type(name, (torch.autograd.Function,), {key: staticmethod(value) for key, value in methods.items()})


# ---- vmap ----


def loop_rule(call: Any) -> Any:
    """A vmap that is one call for each member of the batch: right for everything, such as gradients per sample.

    For a batch of none it is one call with zeros, which shows what the results look like.
    """

    def rule(info: Any, in_dims: Any, *args: Any) -> tuple[Any, Any]:
        size = info.batch_size

        def member(arg: Any, dim: Any, i: int) -> Any:
            if not isinstance(dim, int):
                return arg
            return arg.select(dim, i) if size else arg.sum(dim, dtype=arg.dtype)

        rows = [call(*(member(arg, dim, i) for arg, dim in zip(args, in_dims))) for i in range(max(size, 1))]
        if isinstance(rows[0], torch.Tensor):
            return torch.stack(rows)[:size], 0
        kind = type(rows[0])
        stacked = kind(torch.stack(parts)[:size] for parts in zip(*rows))
        return stacked, kind(0 for _ in stacked)

    return rule


def vmap_rule(op: Op, call: Any) -> Any:
    """A vmap that is one call if only tensors are batched that take further leading dimensions."""
    leading = [name.rstrip("?") in op.leading for name in op.tensors]
    loop = loop_rule(call)

    def rule(info: Any, in_dims: Any, *args: Any) -> tuple[Any, Any]:
        tensors, options = op.split(args)
        dims = in_dims[: len(tensors)]
        if any(isinstance(dim, int) and not may for dim, may in zip(dims, leading)):
            return loop(info, in_dims, *args)
        moved = [
            _leading(tensor, dim, info.batch_size) if may else tensor
            for tensor, dim, may in zip(tensors, dims, leading)
        ]
        outputs = call(*moved, *options)
        return outputs, 0 if isinstance(outputs, torch.Tensor) else (0,) * len(outputs)

    return rule


def _leading(tensor: Any, dim: int | None, size: int) -> Any:
    """The tensor with the batch as its first dimension."""
    if tensor is None:
        return None
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
