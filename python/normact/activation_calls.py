# SPDX-License-Identifier: Apache-2.0
"""From a public function of `normact.activations` to the library: makes the outputs that are not given."""

from __future__ import annotations

from typing import Any, NamedTuple

from normact import _core
from normact.arrays import family_of, workspace
from normact.outputs import ALL, Wanted, check_unwanted, unpack

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
) -> Any:
    """A forward; the arguments are those of `normact.activation`, `function` is what messages name."""
    number = kind_number(function, kind)
    alpha, beta, threshold = numbers(kind, alpha, beta, threshold)
    simple = stream is None and not return_mask
    if simple and out is not None and not isinstance(out, tuple):  # the shortest way
        _core.activation_forward(function, number, x, bias, out, None, axis, alpha, beta, threshold, None, workspace)
        return out
    args = (function, number, x, bias, axis, alpha, beta, threshold, return_mask, out)
    if stream is None:
        return _forward_on(*args, None)
    with family_of(x, function).on_stream(x, stream) as handle:
        return _forward_on(*args, handle)


def _forward_on(
    function: str,
    number: int,
    x: Any,
    bias: Any,
    axis: int,
    alpha: Any,
    beta: Any,
    threshold: Any,
    return_mask: bool,
    out: Any,
    handle: int | None,
) -> Any:
    given = y, mask = unpack(function, out, ActivationOutput._fields)
    if mask is not None:
        check_unwanted(function, given, ActivationOutput._fields, (True, return_mask))
    family = family_of(x, function)
    if y is None:
        y = family.empty_like(x)
    if return_mask and mask is None:
        mask = family.empty_mask(x)
    _core.activation_forward(function, number, x, bias, y, mask, axis, alpha, beta, threshold, handle, workspace)
    if family.hands_over:
        y = y if y is given[0] else family.hand_over(y, x)
        mask = mask if mask is given[1] else family.hand_over(mask, x)
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
) -> ActivationGrads:
    """A backward; the arguments are those of `normact.activation_backward`, `function` is what messages name."""
    number = kind_number(function, kind)
    alpha, beta, threshold = numbers(kind, alpha, beta, threshold)
    if bias is None and stream is None and out is not None and not isinstance(out, tuple):  # the shortest way
        _core.activation_backward(
            function, number, dy, x, None, y, mask, out, None, axis, alpha, beta, threshold, None, workspace
        )
        return ActivationGrads(out, None)
    args = (function, number, dy, x, y, mask, bias, axis, alpha, beta, threshold, wanted, out)
    if stream is None:
        return _backward_on(*args, None)
    with family_of(dy, function, "dy").on_stream(dy, stream) as handle:
        return _backward_on(*args, handle)


def _backward_on(
    function: str,
    number: int,
    dy: Any,
    x: Any,
    y: Any,
    mask: Any,
    bias: Any,
    axis: int,
    alpha: Any,
    beta: Any,
    threshold: Any,
    wanted: Wanted,
    out: Any,
    handle: int | None,
) -> ActivationGrads:
    given = dx, dbias = unpack(function, out, ActivationGrads._fields)
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
    if dx is not given[0]:
        dx = family.hand_over(dx, like)
    if dbias is not given[1]:
        dbias = family_of(bias, function, "bias").hand_over(dbias, bias)
    return ActivationGrads(dx, dbias)
