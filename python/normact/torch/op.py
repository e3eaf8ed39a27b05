# SPDX-License-Identifier: Apache-2.0
"""What PyTorch is told of an operation: one `Op`, from which all ways of calling it are made.

An `Op` names the tensors, the options and the outputs of an operation and says how the library's raw functions are
called, forward and backward. `functions` makes autograd functions of it, `library` the operators that
`torch.compile` and `torch.export` see, `call` picks one of these. A new operation is one more entry of a table
(`row_ops`, `pointwise_ops`, `channel_ops`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from normact.outputs import Joined, Wanted


class Quick(NamedTuple):
    """The fast ways of an operation without the interpreter in between (`bindings/torch_norm.cpp`)."""

    #: (*tensors, options) -> what the caller gets, where no gradient is wanted.
    direct: Callable[..., Any]
    #: (ctx, *tensors, options) -> what the caller gets: the autograd function's forward.
    forward: Callable[..., Any]
    #: (places, wanted, others, resolved) -> a method of ctx, (*grads) -> a gradient or None for each argument. places:
    #: of each argument that of its gradient, from 1 on, or 0; wanted: `Op.wanted`; others: the backward that it falls
    #: back on; resolved: (*grads), of gradients that are refused those that are not, or None, or it raises an error.
    backward: Callable[..., Any]


Tensors = tuple[Any, ...]  # torch.Tensor, or None for an optional one that is not there
Options = tuple[Any, ...]
Shapes = tuple[Sequence[Any] | None, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Op:
    """An operation. Names that end in "?" are those of tensors that may be None.

    All callables take the tensors, and the options, as one tuple each in the order that is named here.
    """

    name: str
    #: What goes in, and what else the caller says, as in a schema: "float eps".
    tensors: tuple[str, ...]
    options: tuple[str, ...]
    #: What comes out: first what the caller gets and may differentiate, then what the backward reads.
    outputs: tuple[str, ...]
    returned: int
    #: What the backward reads of the tensors and outputs. `saves` picks it: (tensors, outputs, options) -> tensors.
    saved: tuple[str, ...]
    saves: Callable[[Tensors, Tensors, Options], Tensors]
    #: The backward's results, each by the names in `saved` of what it looks like: the first of them that is there.
    #: It has none for a name that is not there. "dy" is the gradient of the first output, which always is.
    gradients: tuple[tuple[str, ...], ...]
    #: For each tensor the place of its gradient among these, or None.
    gradient_of: tuple[int | None, ...]
    #: (tensors, options, keep) -> all outputs; without `keep` at least those that the caller gets. With `JOINED` both
    #: statistics may be one tensor in the place of mean, and rstd None; so are they then saved for the backward.
    forward: Callable[[Tensors, Options, bool | Joined], Tensors]
    #: (gradients of what the caller got, saved, options, wanted) -> the gradients. One that does not exist is None, one
    #: that is not wanted may be.
    backward: Callable[[Tensors, Tensors, Options, Wanted], Tensors]
    #: (tensors, options) -> all outputs, uninitialised, of the right shape, dtype and strides.
    empty: Callable[[Tensors, Options], Tensors]
    #: (tensors, options) -> the shape that each tensor has to have, or None for any. Raises for wrong options. Only
    #: tensors without memory are checked by it (`fakes`); of others the library has its own checks.
    shapes: Callable[[Tensors, Options], Shapes]
    #: The tensors that may have any number of further leading dimensions, which then all outputs have: a vmap over them
    #: is one call. None: it is a call for each.
    leading: tuple[str, ...] = ()
    #: How many of the last tensors are updated in place. The operator is a function that returns their new values.
    states: int = 0
    #: For DTensor: which dimensions of the first tensor may be divided among processes, each computing its part alone,
    #: (ndim, names of the tensors that are there, options) -> dimensions; None for an operation over the whole batch.
    #: `divided` names the tensors and outputs that have these dimensions; all others are whole on each process.
    divisible: Callable[[int, tuple[str, ...], Options], Iterable[int] | None] = lambda ndim, names, options: None
    divided: tuple[str, ...] = ()
    #: (options) -> what messages name, if that is not the operator.
    function: Callable[[Options], str] | None = None
    #: Its fast ways in C++, if it has them; else `functions` makes them of `forward`, `saves` and `backward`.
    quick: Quick | None = None

    def called(self, options: Options) -> str:
        """What messages name."""
        return self.function(options) if self.function else self.name

    def wanted(self, needs: tuple[bool, ...]) -> Wanted:
        """Which gradients are wanted, if these tensors need theirs."""
        return tuple(
            any(need for need, place in zip(needs, self.gradient_of) if place == gradient)
            for gradient in range(len(self.gradients))
        )

    def present(self, saved: Tensors, wanted: Wanted) -> list[bool]:
        """Which gradients the backward operator returns."""
        there = {name.rstrip("?") for name, tensor in zip(self.saved, saved) if tensor is not None} | {"dy"}
        return [want and not there.isdisjoint(names) for names, want in zip(self.gradients, wanted)]

    def like(self, gradient: int, seeds: Tensors, saved: Tensors) -> Any:
        """The tensor that a gradient looks like, or None if it does not exist."""
        by_name = {name.rstrip("?"): tensor for name, tensor in zip(self.saved, saved)} | {"dy": seeds[0]}
        return next((by_name[n] for n in self.gradients[gradient] if by_name[n] is not None), None)

    def split(self, args: tuple[Any, ...]) -> tuple[Tensors, Options]:
        """Tensors and options of the arguments of the operator."""
        return args[: len(self.tensors)], args[len(self.tensors) :]

    def split_backward(self, args: tuple[Any, ...]) -> tuple[Tensors, Tensors, Options, Wanted]:
        """Gradients, saved tensors, options, and what is wanted, of the arguments of the backward operator."""
        end = self.returned + len(self.saved)
        return args[: self.returned], args[self.returned : end], args[end:-1], args[-1]


def statistic_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the statistics of a tensor."""
    return torch.float64 if dtype is torch.float64 else torch.float32
