# SPDX-License-Identifier: Apache-2.0
"""How the operators `torch.ops.normact.*` run on the parts of a `DTensor`: a strategy for each, made from its `Op`.

A dimension that an operation treats place by place may be divided: each process computes its part, and nothing is
exchanged. Parameters are whole on all processes, and their gradients come as sums that are still to be added up
(`Partial`). What cannot be divided is gathered by PyTorch, or refused where that would hide an all-gather.
"""

from __future__ import annotations

import itertools
import sys
import threading
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from normact.torch.op import Op, Options, Tensors

_waiting: list[tuple[Op, Any, Any]] = []
_lock = threading.Lock()


def add(op: Op, forward: Any, backward: Any) -> None:
    """Both operators get their strategies as soon as there is a DTensor."""
    _waiting.append((op, forward, backward))


def register() -> bool:
    """Registers what waits if the caller has imported DTensor, which takes a second and so is not done here."""
    if _waiting and "torch.distributed.tensor" in sys.modules:
        with _lock:
            while _waiting:
                op, forward, backward = _waiting[-1]
                _register(forward, _forward_rules(op))
                _register(backward, _backward_rules(op))
                _waiting.pop()
    return not _waiting


# torch.compile runs it while it traces: torch.compiler.assume_constant_result, which would import the compiler.
register._dynamo_marked_constant = True  # type: ignore[attr-defined]


# A rule has placements of the outputs and of the tensors among the arguments, for one dimension of the mesh.
Rule = tuple[list[Any], list[Any]]


def _register(operator: Any, rules: Callable[[tuple[Any, ...]], list[Rule]]) -> None:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor import _op_schema as schema

    listed = isinstance(operator._schema.returns[0].type, torch.ListType)

    def strategy(call: Any) -> Any:
        args = tuple(_spec(arg) for arg in call.args_schema)
        single = len(operator._schema.returns) == 1 and not listed
        return schema.OpStrategy(
            [
                _spec_of(call, outputs, inputs, single)
                for outputs, inputs in _over_mesh(rules(args), call.get_mesh_from_args().ndim)
            ]
        )

    # All arguments tell calls apart, also None; as lists of options are among them, they are flattened first.
    DTensor._op_dispatcher.sharding_propagator.register_op_strategy(
        operator, strategy, schema.RuntimeSchemaInfo(0, None, needs_pytree=True)
    )


def _spec(arg: Any) -> Any:
    """What is known of an argument: of a DTensor its shape and placements."""
    return arg.strategies[0].output_spec if hasattr(arg, "strategies") else arg


def _over_mesh(rules: list[Rule], mesh_ndim: int) -> Any:
    """All ways to take a rule for each dimension of the mesh: for each output and input its placements."""
    for each in itertools.product(rules, repeat=mesh_ndim):
        yield tuple(list(zip(*part)) for part in zip(*each))


def _spec_of(call: Any, outputs: list[Any], inputs: list[Any], single: bool) -> Any:
    from torch.distributed.tensor import _op_schema as schema
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor._ops.utils import generate_redistribute_costs

    mesh, given = call.get_mesh_from_args(), call.args_strategy
    made = tuple(DTensorSpec(mesh, placements) for placements in outputs)
    read = [DTensorSpec(mesh, placements, tensor_meta=arg.tensor_meta) for placements, arg in zip(inputs, given)]
    costs = [generate_redistribute_costs(arg, spec) for arg, spec in zip(given, read)]
    return schema.OpSpec(made[0] if single else made, read, costs)


# ---- The rules, for any operation ----


def _forward_rules(op: Op) -> Callable[[tuple[Any, ...]], list[Rule]]:
    states = _bare(op.tensors[len(op.tensors) - op.states :])

    def rules(args: tuple[Any, ...]) -> list[Rule]:
        tensors, options = op.split(args)
        inputs, specs = _there(op.tensors, tensors)
        return [
            (_placements(op, op.outputs + states, dim), _placements(op, inputs, dim))
            for dim in _dims(op, inputs, specs, options)
        ]

    return rules


def _backward_rules(op: Op) -> Callable[[tuple[Any, ...]], list[Rule]]:
    from torch.distributed.tensor import Partial

    def rules(args: tuple[Any, ...]) -> list[Rule]:
        seeds, saved, options, wanted = op.split_backward(args)
        inputs, specs = _there(op.outputs[: op.returned] + op.saved, seeds + saved)
        made = tuple(names[0] for names, there in zip(op.gradients, op.present(saved, wanted)) if there)
        found: list[Rule] = []
        for dim in _dims(op, inputs, specs, options):
            grads = _placements(op, made, dim)
            if dim is not None:
                grads = [each if name in op.divided else Partial() for each, name in zip(grads, made)]
            found.append((grads, _placements(op, inputs, dim)))
        return found

    return rules


def _bare(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.rstrip("?") for name in names)


def _there(names: tuple[str, ...], tensors: Tensors) -> tuple[tuple[str, ...], Tensors]:
    """Names and tensors of those that are there."""
    found = [(name, tensor) for name, tensor in zip(_bare(names), tensors) if tensor is not None]
    return tuple(name for name, _ in found), tuple(tensor for _, tensor in found)


def _placements(op: Op, names: tuple[str, ...], dim: int | None) -> list[Any]:
    from torch.distributed.tensor import Replicate, Shard

    return [Replicate() if dim is None or name not in op.divided else Shard(dim) for name in names]


def _dims(op: Op, names: tuple[str, ...], specs: Tensors, options: Options) -> list[int | None]:
    """The dimensions that may be divided, and None for none of them."""
    from torch.distributed.tensor import Shard

    dims = op.divisible(len(specs[0].shape), names, options)
    if dims is None:
        for name, spec in zip(names, specs):
            if any(isinstance(placement, Shard) for placement in spec.placements):
                raise NotImplementedError(
                    f"{op.name}: {name} is a DTensor with the placements {tuple(spec.placements)}; expected Replicate, "
                    "as the statistics are those of all samples, or SyncBatchNorm on the parts (DTensor.to_local)"
                )
    return [None, *(dims or ())]
