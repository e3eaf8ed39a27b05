# SPDX-License-Identifier: Apache-2.0
"""Run a norm of large_cases.py: right, nothing written beside its outputs, and whole norms with the same bits again,
in place, if it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

import normact
from large_cases import Arrays, Guarded, Layout, Problem, arrays, spoil_workspaces
from large_reference import Backward, Bounded, Forward, assert_close

Tensor = torch.Tensor


def outputs(problem: Problem, layout: Layout, given: Arrays, daddend: torch.dtype | None) -> list[Guarded | None]:
    """Where dx, dweight, dbias and daddend go."""
    flat = Layout(tuple(range(len(problem.axes))), (0,) * len(problem.axes), 1)
    parameters = [
        None if parameter is None else flat.empty(problem.parameter_shape, problem.parameters)
        for parameter in (given.weight, given.bias)
    ]
    more = None if daddend is None else layout.empty(problem.shape, daddend)
    return [layout.empty(problem.shape, problem.dtype), *parameters, more]


def tensors(guarded: Sequence[Guarded | None]) -> tuple[Tensor | None, ...]:
    return tuple(None if one is None else one.tensor for one in guarded)


def in_place(layout: Layout, dy: Tensor, gradients: Sequence[Guarded | None]) -> tuple[Tensor | None, ...]:
    """Where gradients go when that of the input takes dy's place, if it has a place for each element; laid out as
    before in any case, so that the plan is the same.
    """
    first, *others = tensors(gradients)
    return (first if layout.expanded else dy, *others)


def assert_untouched(guarded: Sequence[Guarded | None], where: str) -> None:
    for index, one in enumerate(guarded):
        if one is not None:
            one.assert_untouched(f"output {index} of {where}")


def assert_same_bits(found: Any, again: Any, problem: object) -> None:
    for name in found._fields:
        first, second = getattr(found, name), getattr(again, name)
        assert (first is None) == (second is None), f"{name} of {problem}"
        assert first is None or torch.equal(_bits(first), _bits(second)), f"{name} of {problem}: other bits again"


def _bits(tensor: Tensor) -> Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def check_forward(problem: Problem, want: Forward, found: Any) -> None:
    assert_close(problem.sets(found.y), want.y, f"y of {problem}")
    assert (found.mean is not None) == problem.norm.centred, f"mean of {problem}"
    if found.mean is not None:
        assert_close(found.mean, want.mean, f"mean of {problem}")
    assert_close(found.rstd, want.rstd, f"rstd of {problem}")


def check_gradients(problem: Problem, want: Backward, found: Any) -> None:
    assert_close(problem.sets(found.dx), want.dx, f"dx of {problem}")
    for name in ("dweight", "dbias"):
        gradient = getattr(found, name)
        assert (gradient is None) == (getattr(want, name) is None), f"{name} of {problem}"
        if gradient is not None:
            assert_close(gradient, getattr(want, name), f"{name} of {problem}")


def check_rows(problem: Problem, layout: Layout, other: Layout) -> None:
    given = arrays(problem, layout, other)
    parameters, options = (given.weight, given.bias), {"axis": problem.axes, "activation": problem.activation}
    total = None if problem.addend is None else layout.empty(problem.shape, problem.addend)
    out = [other.empty(problem.shape, problem.dtype), total, None, None]
    function = getattr(normact, problem.op)
    forward = {**options, "eps": problem.eps, "residual": given.addend, "return_stats": True}
    spoil_workspaces()
    found = function(given.x, *parameters, **forward, out=tensors(out))
    assert_untouched(out, str(problem))
    s = given.x
    if given.addend is not None:
        s, exactly = found.residual, given.x.double() + given.addend.double()
        assert torch.equal(s, exactly.to(s.dtype)), f"sum of {problem}"
    wide = problem.inputs(s, *parameters, None)
    want = problem.norm.forward(wide)
    check_forward(problem, want, found)

    statistics = {"rstd": found.rstd} if found.mean is None else {"mean": found.mean, "rstd": found.rstd}
    mixed = problem.addend not in (None, problem.dtype)
    grads = outputs(problem, other, given, problem.addend if mixed else None)
    backward = getattr(normact, f"{problem.op}_backward")
    options |= {**statistics, "dresidual": given.addend}
    spoil_workspaces()
    gradients = backward(given.dy, s, *parameters, **options, out=tensors(grads))
    assert_untouched(grads, f"the backward of {problem}")
    expected = problem.norm.backward(problem.sets(given.dy).double(), wide, want, training=True)
    if given.addend is not None:
        more, (dx, bound) = problem.sets(given.addend).double(), expected.dx
        expected = expected._replace(
            dx=Bounded(dx + more, bound + 4 * problem.norm.activation.u * (more.abs() + dx.abs()))
        )
    check_gradients(problem, expected, gradients)
    if mixed:
        assert_close(problem.sets(gradients.daddend), expected.dx, f"daddend of {problem}")
    grads = outputs(problem, other, given, problem.addend if mixed else None)
    out = in_place(other, given.dy, grads)
    assert_same_bits(gradients, backward(given.dy, s, *parameters, **options, out=out), problem)
    y = given.x if layout == other else other.empty(problem.shape, problem.dtype).tensor
    again = None
    if given.addend is not None and 0 in given.addend.stride():  # a sum that is made lies otherwise then
        again = layout.empty(problem.shape, given.addend.dtype).tensor
    assert_same_bits(found, function(given.x, *parameters, **forward, out=(y, again, None, None)), problem)


class Running(NamedTuple):
    mean: Tensor
    var: Tensor

    def copy(self) -> Running:
        return Running(self.mean.clone(), self.var.clone())


def running_of(problem: Problem) -> Running:
    """Running statistics before the call."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(problem.seed + 1)
    mean = torch.randn(problem.channels, generator=generator, dtype=problem.statistics) + problem.mean
    return Running(mean, torch.rand(problem.channels, generator=generator, dtype=problem.statistics) + 0.5)


def channel_call(problem: Problem, given: Arrays, running: Running, **options: Any) -> Any:
    parameters = (given.weight, given.bias)
    options |= {"eps": problem.eps, "activation": problem.activation, "return_stats": True}
    if problem.op == "group_norm":
        return normact.group_norm(given.x, problem.groups, *parameters, **options)
    if problem.op == "instance_norm":
        return normact.instance_norm(given.x, *parameters, *running, use_input_stats=problem.training, **options)
    options |= {"training": problem.training, "addend": given.addend, "return_mask": problem.slope_from == "mask"}
    return normact.batch_norm(given.x, *parameters, *running, **options)


def channel_backward(problem: Problem, given: Arrays, found: Any, **options: Any) -> Any:
    parameters = (given.weight, given.bias)
    options |= {"mean": found.mean, "rstd": found.rstd, "activation": problem.activation}
    if problem.op == "group_norm":
        return normact.group_norm_backward(given.dy, given.x, problem.groups, *parameters, **options)
    if problem.op == "instance_norm":
        options["use_input_stats"] = problem.training
        return normact.instance_norm_backward(given.dy, given.x, *parameters, **options)
    slope = {"x": {}, "y": {"y": found.y}, "mask": {"mask": getattr(found, "mask", None)}}[problem.slope_from]
    addend = given.addend if problem.slope_from == "x" else None
    options |= {**slope, "training": problem.training, "addend": addend, "return_daddend": problem.addend is not None}
    return normact.batch_norm_backward(given.dy, given.x, *parameters, **options)


def check_running(problem: Problem, want: Forward, before: Running, after: Running) -> None:
    count = want.xhat.values.numel() // want.mean.values.numel()
    variance = (want.rstd.values**-2 - problem.eps) * count / (count - 1)
    relative = 4 * (want.rstd.bound / want.rstd.values).amax() * count / (count - 1) + problem.norm.rounding
    news = (want.mean, Bounded(variance, relative * (variance + problem.eps)))
    for name, old, new, found in zip(("running_mean", "running_var"), before, news, after, strict=True):
        values, bound = (part.mean(0).flatten() if part.ndim == 4 else part for part in new)
        momentum = Bounded(
            0.9 * old + 0.1 * values, 0.1 * bound + 4 * problem.norm.activation.u * (old.abs() + values.abs())
        )
        assert_close(found, momentum, f"{name} of {problem}")


def told_from_y(problem: Problem, want: Forward) -> Forward:
    """A slope that is told from y sees what y was rounded to: up to half the smallest number is zero."""
    if problem.slope_from != "y":
        return want
    least = torch.finfo(problem.dtype).smallest_normal * torch.finfo(problem.dtype).eps / 2
    h, bound = want.h
    return want._replace(h=Bounded(h, torch.where((h > 0) & (h <= least), bound.clamp_min(least), bound)))


def check_channels(problem: Problem, layout: Layout, other: Layout) -> None:
    given, before = arrays(problem, layout, other), running_of(problem)
    running = before.copy()
    wide = problem.inputs(given.x, given.weight, given.bias, given.addend)
    if problem.training:
        want = problem.norm.forward(wide)
    else:
        mean, variance = (problem.parameter_sets(statistic) for statistic in before)
        want = problem.norm.from_statistics(wide, mean, torch.rsqrt(variance + problem.eps))
    rest = [None] * (3 if problem.op == "batch_norm" else 2)
    out = [other.empty(problem.shape, problem.dtype), *rest]
    spoil_workspaces()
    found = channel_call(problem, given, running, out=tensors(out))
    assert_untouched(out, str(problem))
    check_forward(problem, want, found)
    if problem.training and problem.op != "group_norm":
        check_running(problem, want, before, running)
    else:
        assert_same_bits(before, running, problem)

    grads = outputs(problem, other, given, problem.addend)
    grads = grads if problem.op == "batch_norm" else grads[:3]
    spoil_workspaces()
    gradients = channel_backward(problem, given, found, out=tensors(grads))
    assert_untouched(grads, f"the backward of {problem}")
    slopes = told_from_y(problem, want)
    expected = problem.norm.backward(problem.sets(given.dy).double(), wide, slopes, training=problem.training)
    check_gradients(problem, expected, gradients)
    if problem.addend is not None:
        assert_close(problem.sets(gradients.daddend), expected.dh, f"daddend of {problem}")
    out = in_place(other, given.dy, outputs(problem, other, given, problem.addend)[: len(grads)])
    assert_same_bits(gradients, channel_backward(problem, given, found, out=out), problem)
    as_x = layout == other and problem.slope_from != "mask"  # with a mask not every plan can
    y = given.x if as_x else other.empty(problem.shape, problem.dtype).tensor
    assert_same_bits(found, channel_call(problem, given, before.copy(), out=(y, *rest)), problem)


def check_parts(problem: Problem, layout: Layout, other: Layout) -> None:
    """A batch norm in parts, whose samples are divided between two; one of them may have none. Slopes from x or y."""
    given = arrays(problem, layout, other)
    cut = problem.shape[0] * 2 // 3
    wide = problem.inputs(given.x, given.weight, given.bias, given.addend)
    want = problem.norm.forward(wide)
    slopes = told_from_y(problem, want)
    expected = problem.norm.backward(problem.sets(given.dy).double(), wide, slopes, training=True)
    parts = (slice(0, cut), slice(cut, problem.shape[0]))
    spoil_workspaces()
    moments = torch.stack([normact.batch_norm_statistics(given.x[part]) for part in parts])
    merged = normact.batch_norm_merge(moments, eps=problem.eps)
    assert_close(merged.mean, want.mean, f"mean of {problem}")
    assert_close(merged.rstd, want.rstd, f"rstd of {problem}")

    y, dx, daddend = (other.empty(problem.shape, problem.dtype) for _ in range(3))
    options: dict[str, Any] = {"mean": merged.mean, "rstd": merged.rstd, "activation": problem.activation}
    parameters = (given.weight, given.bias)
    addends = [None if given.addend is None else given.addend[part] for part in parts]
    for part, addend in zip(parts, addends, strict=True):
        normact.batch_norm_apply(given.x[part], *parameters, **options, addend=addend, out=y.tensor[part])
    assert_close(problem.sets(y.tensor), want.y, f"y of {problem}")

    from_y = problem.slope_from == "y"
    sources: list[dict[str, Any]] = [
        {"y": y.tensor[part]} if from_y else {"addend": addend} for part, addend in zip(parts, addends, strict=True)
    ]
    inputs = [(given.dy[part], given.x[part], *parameters) for part in parts]
    spoil_workspaces()
    first, second = (normact.batch_norm_reduce(*of, **options, **s) for of, s in zip(inputs, sources, strict=True))
    sums = first + second
    for found, bounded, name in zip(sums, (expected.dweight, expected.dbias), ("dweight", "dbias"), strict=True):
        if bounded is not None:
            assert_close(found, bounded, f"{name} of {problem}")
    options |= {"sums": sums, "count": moments[:, 2].sum(0), "return_daddend": given.addend is not None}
    for part, of, slope in zip(parts, inputs, sources, strict=True):
        out = (dx.tensor[part], None, None, None if given.addend is None else daddend.tensor[part])
        normact.batch_norm_input_gradient(*of, **options, **slope, out=out)
    assert_close(problem.sets(dx.tensor), expected.dx, f"dx of {problem}")
    if given.addend is not None:
        assert_close(problem.sets(daddend.tensor), expected.dh, f"daddend of {problem}")
    assert_untouched((y, dx, daddend), str(problem))
