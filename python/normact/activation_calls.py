# SPDX-License-Identifier: Apache-2.0
"""From a public function of `normact.activations` to the library: makes the outputs that are not given."""

from __future__ import annotations

from typing import Any, NamedTuple

from normact import _core
from normact.arrays import family_of, mask_bytes
from normact.outputs import ALL, Wanted

KINDS = _core.ACTIVATIONS
#: The kinds whose gradients go back from their output: what comes next keeps that in any case, and x may go.
FROM_OUTPUT = frozenset(("relu", "sigmoid", "tanh"))
_ALPHA = {"leaky_relu": 0.01, "elu": 1.0}


class ActivationOutput(NamedTuple):
    """What an activation gives when its mask is asked for."""

    y: Any
    mask: Any


class ActivationGrads(NamedTuple):
    """What the backward of an activation, or of a packed gated one, gives; dbias is None without a bias."""

    dx: Any
    dbias: Any


# Of each output its name and that of the array which it is like.
_OUTPUTS = (("y", "x"), ("mask", "x"))
_GRADIENTS = {name: (("dx", name), ("dbias", "bias")) for name in ("x", "y", "dy")}
#: A forward of y alone.
_alone = _core.activation_alone(_OUTPUTS)


def kind_number(function: str, kind: Any, argument: str = "kind") -> int:
    """The library's number of a kind. ValueError for a name that is none."""
    number = KINDS.get(kind) if isinstance(kind, str) else None
    if number is None:
        raise ValueError(f"{function}: {argument} is {kind!r}; expected one of {', '.join(KINDS)}")
    return number


def numbers(kind: str, alpha: Any, beta: Any, threshold: Any) -> tuple[Any, Any, Any]:
    """The kind's own numbers in place of None."""
    return (
        _ALPHA.get(kind, 0.0) if alpha is None else alpha,
        1.0 if beta is None else beta,
        20.0 if threshold is None else threshold,
    )


def forward(
    function: str,
    kind: str,
    x: Any,
    bias: Any,
    axis: int,
    alpha: float | None,
    beta: float | None,
    threshold: float | None,
    return_mask: bool,
    out: Any,
    stream: Any,
    handle: int | None = None,
) -> Any:
    """A forward. `function` is what messages name.

    The other arguments are those of `normact.activation`, and the handle of the stream that `stream` has become.
    """
    if stream is not None:
        with family_of(x, function).on_stream(x, stream, function) as found:
            return forward(function, kind, x, bias, axis, alpha, beta, threshold, return_mask, out, None, found)
    number = kind_number(function, kind)
    alpha, beta, threshold = numbers(kind, alpha, beta, threshold)
    if not return_mask and not isinstance(out, tuple):
        return _alone(function, number, x, bias, axis, alpha, beta, threshold, out, handle)
    likes = x, mask_bytes(x) if return_mask else None
    done = y, mask = _core.outputs(function, out, _OUTPUTS, likes, None)
    _core.activation_forward(function, number, x, bias, y, mask, axis, alpha, beta, threshold, handle, out is None)
    found = _core.finish(ActivationOutput, done, out, _OUTPUTS, likes, function)
    return found if return_mask else found[0]


def backward(
    function: str,
    kind: str,
    dy: Any,
    x: Any,
    y: Any,
    mask: Any,
    bias: Any,
    axis: int,
    alpha: float | None,
    beta: float | None,
    threshold: float | None,
    out: Any,
    stream: Any,
    wanted: Wanted = ALL,
    handle: int | None = None,
) -> ActivationGrads:
    """A backward. `function` is what messages name.

    The other arguments are those of `normact.activation_backward`, and the handle of the stream that `stream` has
    become.
    """
    if stream is not None:
        arrays, options = (dy, x, y, mask, bias), (axis, alpha, beta, threshold)
        with family_of(dy, function, "dy").on_stream(dy, stream, function) as found:
            return backward(function, kind, *arrays, *options, out, None, wanted, found)
    number = kind_number(function, kind)
    alpha, beta, threshold = numbers(kind, alpha, beta, threshold)
    # dx is laid out like the tensor that it is the gradient of, as far as that is at hand.
    name, like = ("x", x) if x is not None else ("y", y) if y is not None else ("dy", dy)
    names, likes = _GRADIENTS[name], (like, bias)
    done = dx, dbias = _core.outputs(function, out, names, likes, wanted)
    fresh = out is None
    _core.activation_backward(
        function, number, dy, x, bias, y, mask, dx, dbias, axis, alpha, beta, threshold, handle, fresh
    )
    return _core.finish(ActivationGrads, done, out, names, likes, function)
