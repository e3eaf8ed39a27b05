# SPDX-License-Identifier: Apache-2.0
"""From a public function of `normact.activations` to the library: makes the outputs that are not given."""

from __future__ import annotations

from typing import Any, NamedTuple

from normact import _core
from normact.arrays import family_of, handed_over, workspace
from normact.outputs import ALL, Wanted, check_unwanted, named, unpack

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
        with family_of(x, function).on_stream(x, stream) as found:
            return forward(function, kind, x, bias, axis, alpha, beta, threshold, return_mask, out, None, found)
    number = kind_number(function, kind)
    alpha, beta, threshold = numbers(kind, alpha, beta, threshold)
    if out is not None and not return_mask and not isinstance(out, tuple):  # the shortest way
        _core.activation_forward(function, number, x, bias, out, None, axis, alpha, beta, threshold, handle, workspace)
        return out
    given = y, mask = (None, None) if out is None else unpack(function, out, ActivationOutput._fields)
    if mask is not None:
        check_unwanted(function, given, ActivationOutput._fields, (True, return_mask))
    family = family_of(x, function)
    if y is None:
        y = family.empty_like(x)
    if return_mask and mask is None:
        mask = family.empty_mask(x)
    _core.activation_forward(function, number, x, bias, y, mask, axis, alpha, beta, threshold, handle, workspace)
    if family.hands_over:
        y, mask = handed_over((y, mask), given, (x, x), function)
    return ActivationOutput(y, mask) if return_mask else y


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
        with family_of(dy, function, "dy").on_stream(dy, stream) as found:
            return backward(function, kind, *arrays, *options, out, None, wanted, found)
    number = kind_number(function, kind)
    alpha, beta, threshold = numbers(kind, alpha, beta, threshold)
    if bias is None and out is not None and not isinstance(out, tuple):  # the shortest way
        _core.activation_backward(
            function, number, dy, x, None, y, mask, out, None, axis, alpha, beta, threshold, handle, workspace
        )
        return ActivationGrads(out, None)
    given = dx, dbias = (None, None) if out is None else unpack(function, out, ActivationGrads._fields)
    if dbias is not None:
        check_unwanted(function, given, ActivationGrads._fields, (True, bias is not None))
    # dx is laid out like the tensor that it is the gradient of, as far as that is at hand.
    name, like = ("x", x) if x is not None else ("y", y) if y is not None else ("dy", dy)
    family = family_of(like, function, name)
    if dx is None:
        dx = family.empty_like(like)
    if bias is not None and dbias is None and wanted[1]:
        dbias = family_of(bias, function, "bias").empty_like(bias)
    _core.activation_backward(
        function, number, dy, x, bias, y, mask, dx, dbias, axis, alpha, beta, threshold, handle, workspace
    )
    return named(ActivationGrads, handed_over((dx, dbias), given, (like, bias), function))
