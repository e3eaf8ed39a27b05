# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow is told of an operation: one `Op`, from which the eager way and that of graphs are made.

An `Op` names the tensors of an operation and says how the library's raw functions are called on eager tensors, forward
and backward. `call` makes the rest of it. A new operation is one more entry of a table (`row_ops`, `pointwise_ops`,
`channel_ops`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from normact.activation_calls import FROM_OUTPUT

Tensors = tuple[Any, ...]  # tf.Tensor, or None for an optional one that is not there
Options = tuple[Any, ...]
Wanted = tuple[bool, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Op:
    """An operation. All callables take the tensors, and the options, as one tuple each."""

    name: str
    #: What goes in: first what has a gradient. Names that end in "?" are those of tensors that may be None.
    tensors: tuple[str, ...]
    #: How many of them have a gradient.
    differentiable: int
    #: How many outputs the caller gets; behind these come what the backward reads, and the new values of the states.
    returned: int
    #: (tensors, options, keep) -> all outputs of eager tensors; without `keep` what the backward reads may be missing
    #: if there are no states.
    forward: Callable[[Tensors, Options, bool], Tensors]
    #: (tensors, outputs, options) -> what the backward reads.
    saves: Callable[[Tensors, Tensors, Options], Tensors]
    #: (gradients of what the caller got, saved, options, wanted) -> a gradient for each differentiable tensor; those
    #: that are not wanted, or whose tensor is not there, may be None.
    backward: Callable[[Tensors, Tensors, Options, Wanted], Tensors]
    #: (tensors, options) -> shape and dtype of all outputs with `keep`, as far as a graph knows them.
    empty: Callable[[Tensors, Options], tuple[tf.TensorSpec, ...]]
    #: How many of the last tensors are states. The operation is a function that returns their new values.
    states: int = 0


def goes_back_from_output(kind: Any) -> bool:
    """Whether the gradient of this activation reads its output. A kind that is no name is refused when it runs."""
    return isinstance(kind, str) and kind in FROM_OUTPUT


def statistic_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype of the statistics of a tensor."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def like(tensor: Any) -> tf.TensorSpec:
    """Shape and dtype of a tensor."""
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def statistic(x: Any) -> tf.TensorSpec:
    """The dtype of a statistic of x. Nobody asks for its shape."""
    return tf.TensorSpec(tf.TensorShape(None), statistic_dtype(x.dtype))  # type: ignore[arg-type]
