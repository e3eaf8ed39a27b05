# SPDX-License-Identifier: Apache-2.0
"""How a public function reaches the library: directly on eager tensors, by `tf.py_function` inside of a graph.

Both are one way but for `_direct` and `_traced`, which run a function of eager tensors where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from normact.tensorflow.op import like

try:
    from tensorflow.python.eager import record as _record
except ImportError:  # it is no part of TensorFlow's interface; without it every call is made ready for a gradient
    _record = None

if TYPE_CHECKING:
    from normact.tensorflow.op import Op, Options, Tensors, Wanted

    Function = Callable[[Tensors], Tensors]
    Specs = Callable[[], tuple[tf.TensorSpec, ...]]


def call(op: Op, tensors: Tensors, options: Options) -> Any:
    """Runs an operation: what the caller gets of it and behind that the new values of its states.

    One tensor or a tuple.

    - Eager, and nothing records gradients: nothing stands between the caller and the kernel.
    - Eager under a `tf.GradientTape`: a function with a custom gradient.
    - Inside `tf.function`: the same with a `tf.py_function` in it, forward and backward.
    """
    if tf.executing_eagerly():
        if not _recording():
            outputs = op.forward(tensors, options, False)
            return outputs[0] if len(outputs) == 1 else outputs
        outputs = _differentiable(op, _direct, tensors, options, _watched(op, tensors))
    else:
        # An eager tensor is captured here, once: only what belongs to the graph may the gradient of a branch or of a
        # loop read, as TensorFlow hands that on from the graph of the forward.
        tensors = tuple(None if tensor is None else tf.identity(tensor) for tensor in tensors)
        outputs = _differentiable(op, _traced, tensors, options, _there(op, tensors))
    return outputs[0] if len(outputs) == 1 else outputs


def _recording() -> bool:
    return _record is None or _record.could_possibly_record()


def _there(op: Op, tensors: Tensors) -> Wanted:
    return tuple(tensor is not None for tensor in tensors[: op.differentiable])


def _watched(op: Op, tensors: Tensors) -> Wanted:
    """Which gradients may be asked for: those that a tape watches. If it is none, something else is recording."""
    there = _there(op, tensors)
    if _record is None:
        return there
    watched = tuple(known and _record.should_record_backprop([tensor]) for known, tensor in zip(there, tensors))
    return watched if any(watched) else there


# ---- The two ways to run a function of eager tensors ----


def _direct(function: Function, tensors: Tensors, specs: Specs) -> Tensors:
    return function(tensors)


def _traced(function: Function, tensors: Tensors, specs: Specs) -> Tensors:
    """As an operation of the graph, without the gradient of its own, which would look on a tape that sees nothing."""
    expected = specs()
    given = [tensor for tensor in tensors if tensor is not None]
    found = tf.py_function(lambda *eager: function(_placed(tensors, eager)), given, [each.dtype for each in expected])
    for output, spec in zip(found, expected, strict=True):
        output.set_shape(spec.shape)
    return tuple(tf.stop_gradient(output) for output in found)


def _placed(tensors: Tensors, values: Any) -> Tensors:
    """The values in the places of the tensors that are there."""
    each = iter(values)
    return tuple(None if tensor is None else next(each) for tensor in tensors)


# ---- Gradients ----


def _differentiable(op: Op, run: Any, tensors: Tensors, options: Options, wanted: Wanted) -> Tensors:
    """The forward with its gradient. Custom gradients have no None among their arguments."""
    inputs, rest = tensors[: op.differentiable], tensors[op.differentiable :]
    states: list[Any] = []
    made: list[Any] = []  # all outputs
    saved: list[Any] = []

    @tf.custom_gradient
    def forward(*values: Any) -> Any:
        given = _placed(inputs, values) + rest
        outputs = run(lambda eager: op.forward(eager, options, True), given, lambda: op.empty(given, options))
        if op.states:
            states.extend(outputs[-sum(state is not None for state in given[-op.states :]) :])
        made.extend(outputs)
        saved.extend(op.saves(given, outputs, options))
        specs = tuple(like(each) for each, want in zip(given, wanted) if want)

        def backward(*grads: Any) -> list[Any]:
            seeds = tuple(_seed(grad, output) for grad, output in zip(grads, outputs))
            here = _direct if tf.executing_eagerly() else _traced  # a jacobian traces the gradient of an eager call
            found = iter(_gradients(op, here, seeds, tuple(saved), options, wanted, specs))
            each = [next(found) if want else None for want in wanted]
            return [gradient for gradient, tensor in zip(each, inputs, strict=True) if tensor is not None]

        # No tuple of one: TensorFlow takes its time over nests.
        return outputs[0] if op.returned == 1 else tuple(outputs[: op.returned]), backward

    found = forward(*(tensor for tensor in inputs if tensor is not None))
    # An output is kept as the caller has it. Of the one made inside no tape knows that it comes of the inputs: it would
    # take a gradient that is computed of that for a constant.
    made[: op.returned] = (found,) if op.returned == 1 else found
    saved[:] = op.saves(tensors, tuple(made), options)
    return (found, *states) if op.returned == 1 else (*found, *states)


def _seed(grad: Any, output: Any) -> Any:
    """The gradient of an output: of a gather it is no tensor, and of what is not used there may be none."""
    if isinstance(grad, tf.Tensor):
        return grad
    return tf.zeros_like(output) if grad is None else tf.convert_to_tensor(grad)


def _gradients(
    op: Op, run: Any, seeds: Tensors, saved: Tensors, options: Options, wanted: Wanted, specs: Any
) -> Tensors:
    """The gradients that are wanted. Differentiating them raises, where TensorFlow would take them for constants."""

    def backward(eager: Tensors) -> Tensors:
        found = op.backward(eager[: op.returned], eager[op.returned :], options, wanted)
        return tuple(gradient for gradient, want in zip(found, wanted, strict=True) if want)

    tensors = seeds + saved
    if run is _direct and not _recording():
        return backward(tensors)

    @tf.custom_gradient
    def once(*values: Any) -> Any:
        def refuse(*grads: Any) -> Any:
            raise NotImplementedError(
                f"normact.tensorflow: {op.name} was differentiated twice, and its backward has no gradient of its own; "
                "expected a loss without gradients in it (no gradient penalty, no Hessian, no forward mode), or "
                "TensorFlow's own function"
            )

        return run(backward, _placed(tensors, values), lambda: specs), refuse

    return once(*(tensor for tensor in tensors if tensor is not None))
