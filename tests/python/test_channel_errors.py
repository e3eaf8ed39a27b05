# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of batch, group and instance norm raise what a Python user expects, with a sentence, and nothing is
written.

What is wrong with an array as such (its class, memory, dtype, autograd) is in test_errors.py; the same code reads it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import normact

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
C3 = np.ones(3, np.float32)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def name_of(value: Any) -> str:
    return "-".join(f"{k}={v}" for k, v in value.items())[:40] if isinstance(value, dict) else ""


COMMON = [
    ({"x": None}, TypeError, "x is of type NoneType; expected an array"),
    ({"x": [1.0]}, TypeError, "x is of type list; expected an array"),
    ({"x": np.ones((2, 3), np.int32)}, TypeError, "x has dtype int32; expected float64, float32, float16 or bfloat16"),
    ({"x": np.ones(3, np.float32)}, ValueError, r"x has shape \(3,\); expected at least 2 axes"),
    ({"weight": np.ones(4, np.float32)}, ValueError, r"weight has shape \(4,\); expected \(3,\)"),
    ({"weight": np.ones((3, 1), np.float32)}, ValueError, r"weight has shape \(3, 1\); expected \(3,\)"),
    ({"bias": wide(C3)}, ValueError, "bias has dtype float64; expected float32"),
    ({"bias": 1.0}, TypeError, "bias is of type float; expected an array"),
    ({"channel_axis": 3}, ValueError, "channel_axis is 3; expected an axis of x"),
    ({"channel_axis": -4}, ValueError, "channel_axis is -4; expected an axis of x"),
    ({"channel_axis": 2**40}, ValueError, "channel_axis is 1099511627776; expected an axis"),
    ({"channel_axis": (1,)}, TypeError, "channel_axis is of type tuple; expected an int"),
    ({"channel_axis": None}, TypeError, "channel_axis is of type NoneType; expected an int"),
    ({"eps": float("nan")}, ValueError, "eps is nan; expected"),
    ({"eps": -1e-5}, ValueError, "eps is -1e-05; expected"),
    ({"eps": "small"}, TypeError, "eps is of type str; expected a number"),
    ({"activation": "gelo"}, ValueError, "activation is 'gelo'; expected one of identity, relu, relu6"),
    ({"activation": 3}, ValueError, "activation is 3; expected one of identity"),
    ({"activation": "elu", "alpha": np.inf}, ValueError, "alpha is inf; expected a finite number for elu"),
    ({"activation": "elu", "alpha": "big"}, TypeError, "alpha is of type str; expected a number"),
    ({"stream": "main"}, TypeError, "stream is of type str; expected a stream handle or a stream object"),
    ({"out": X[:1].copy()}, ValueError, r"y has shape \(1, 3, 4\); expected \(2, 3, 4\)"),
    ({"out": wide(X)}, ValueError, "y has dtype float64; expected float32"),
]

BATCH = [
    ({"addend": X[:1]}, ValueError, r"addend has shape \(1, 3, 4\); expected \(2, 3, 4\)"),
    ({"addend": wide(X)}, ValueError, "addend has dtype float64; expected float32"),
    ({"running_mean": C3.copy()}, ValueError, "running_mean is given but running_var is None; expected both or none"),
    ({"running_var": C3.copy()}, ValueError, "running_var is given but running_mean is None; expected both or none"),
    (
        {"running_mean": C3.copy(), "running_var": wide(C3)},
        ValueError,
        "running_var has dtype float64; expected float32",
    ),
    ({"momentum": float("nan"), "running_mean": C3.copy(), "running_var": C3.copy()}, ValueError, "momentum is nan"),
    ({"momentum": "slow"}, TypeError, "momentum is of type str; expected a number"),
    (
        {"momentum": None, "running_mean": C3.copy(), "running_var": C3.copy()},
        ValueError,
        "num_batches_tracked is None; expected",
    ),
    ({"num_batches_tracked": np.zeros((), np.int32)}, TypeError, "num_batches_tracked has dtype int32; expected int64"),
    ({"num_batches_tracked": 3}, TypeError, "num_batches_tracked is of type int; expected an array"),
    ({"num_batches_tracked": np.zeros(2, np.int64)}, ValueError, r"num_batches_tracked has shape \(2,\); expected"),
    ({"return_mask": True}, ValueError, "mask is given with activation identity; expected None, as only relu"),
    (
        {"x": X[:1, :, :1], "out": None},
        ValueError,
        r"x has shape \(1, 3, 1\), one value a channel; expected more than one",
    ),
    ({"training": False}, ValueError, "running_mean .*needed in inference.* is None"),
    ({"out": (None, None, C3.copy())}, ValueError, "out.rstd is given, but this call does not produce it"),
    ({"out": (None,) * 5}, ValueError, "out has 5 entries; expected at most 4: y, mean, rstd, mask"),
]


@pytest.mark.parametrize(("options", "error", "match"), COMMON + BATCH, ids=name_of)
def test_batch_norm(options: dict[str, Any], error: type[Exception], match: str):
    y = np.full_like(X, 7)
    running = {"running_mean": C3.copy(), "running_var": C3.copy()} if "momentum" not in options else {}
    running = {} if {"running_mean", "running_var", "training"} & set(options) else running
    arguments = {"x": X, "training": True, "out": (y,), **running, **options}
    with pytest.raises(error, match=rf"(batch_norm: )?{match}"):
        normact.batch_norm(**arguments)
    assert (y == 7).all(), "nothing is written"
    assert all((array == 1).all() for array in running.values()), "nothing is written"


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        *COMMON,
        ({"num_groups": 2}, ValueError, "num_groups is 2; expected a divisor of 3"),
        ({"num_groups": 10**13, "return_stats": True}, ValueError, "num_groups is 10000000000000; expected a divisor"),
        ({"num_groups": 10**30}, ValueError, "num_groups is 10+; expected one of 64 bits"),
        ({"num_groups": 0}, ValueError, "num_groups is 0; expected at least 1"),
        ({"num_groups": -1}, ValueError, "num_groups is -1; expected at least 1"),
        ({"num_groups": 1.5}, TypeError, "num_groups is of type float; expected an int"),
        ({"num_groups": None}, TypeError, "num_groups is of type NoneType; expected an int"),
        ({"channel_axis": 0}, ValueError, "channel_axis is 0, axis 0 of x, which counts samples; expected another"),
        ({"channel_axis": -3}, ValueError, "channel_axis is -3, axis 0 of x, which counts samples"),
        ({"out": (None, None, C3.copy())}, ValueError, "out.rstd is given, but this call does not produce it"),
        ({"out": (None,) * 4}, ValueError, "out has 4 entries; expected at most 3: y, mean, rstd"),
        ({"out": (None, None, C3), "return_stats": True}, ValueError, r"rstd has shape \(3,\); expected \(2, 1\)"),
    ],
    ids=name_of,
)
def test_group_norm(options: dict[str, Any], error: type[Exception], match: str):
    y = np.full_like(X, 7)
    with pytest.raises(error, match=rf"(group_norm: )?{match}"):
        normact.group_norm(**{"x": X, "num_groups": 1, "out": (y,), **options})
    assert (y == 7).all(), "nothing is written"


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        *COMMON,
        (
            {"running_mean": C3.copy()},
            ValueError,
            "running_mean is given but running_var is None; expected both or none",
        ),
        ({"momentum": None}, TypeError, "momentum is of type NoneType; expected a number"),
        ({"use_input_stats": False}, ValueError, "running_mean .*needed in inference.* is None"),
        (
            {"x": X[:, :, :1], "out": None, "running_mean": C3.copy(), "running_var": C3.copy()},
            ValueError,
            r"x has shape \(2, 3, 1\), one value a channel of a sample; expected more than one",
        ),
    ],
    ids=name_of,
)
def test_instance_norm(options: dict[str, Any], error: type[Exception], match: str):
    y = np.full_like(X, 7)
    with pytest.raises(error, match=rf"(instance_norm: )?{match}"):
        normact.instance_norm(**{"x": X, "out": (y,), **options})
    assert (y == 7).all(), "nothing is written"


BACKWARD = [
    ({"dy": X[:1]}, ValueError, r"dy has shape \(1, 3, 4\); expected \(2, 3, 4\)"),
    ({"dy": wide(X)}, ValueError, "dy has dtype float64; expected float32"),
    ({"dy": None}, TypeError, "dy is of type NoneType; expected an array"),
    ({"mean": None}, TypeError, "mean is of type NoneType; expected an array"),
    ({"rstd": wide(C3)}, ValueError, "rstd has dtype float64; expected float32"),
    ({"weight": np.ones(4, np.float32)}, ValueError, r"weight has shape \(4,\); expected \(3,\)"),
    ({"out": (None, C3.copy())}, ValueError, "out.dweight is given, .*expected None"),
    ({"out": (None,) * 5}, ValueError, "out has 5 entries; expected at most 4: dx, dweight, dbias, daddend"),
    ({"out": X[:1].copy()}, ValueError, r"dx has shape \(1, 3, 4\); expected \(2, 3, 4\)"),
    ({"activation": "swish"}, ValueError, "activation is 'swish'; expected one of identity"),
]


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        *BACKWARD,
        ({"rstd": np.ones((2, 3), np.float32)}, ValueError, r"rstd has shape \(2, 3\); expected \(3,\)"),
        ({"addend": X[:1]}, ValueError, r"addend has shape \(1, 3, 4\); expected \(2, 3, 4\)"),
        ({"y": X}, None, ""),  # without an activation it is not needed, but right
        (
            {"activation": "relu", "y": X, "mask": np.zeros(3, np.uint8)},
            ValueError,
            "y and mask are given; expected at",
        ),
        ({"activation": "gelu", "y": X}, ValueError, "y is given with activation gelu, whose output does not tell"),
        ({"activation": "gelu", "mask": np.zeros(3, np.uint8)}, ValueError, "mask is given with activation gelu"),
        ({"activation": "relu", "mask": np.zeros(4, np.uint8)}, ValueError, r"mask has shape \(4,\); expected \(3,\)"),
        ({"activation": "relu", "mask": np.zeros(3, bool)}, TypeError, "mask has dtype bool; expected uint8"),
        ({"activation": "elu", "alpha": -1.0, "y": X}, ValueError, ".*alpha -1, whose output does not tell"),
        ({"out": (None, None, None, X.copy())}, ValueError, "out.daddend is given, .*expected None"),
    ],
    ids=name_of,
)
def test_batch_norm_backward(options: dict[str, Any], error: type[Exception] | None, match: str):
    arguments = {"dy": X, "x": X, "mean": C3, "rstd": C3, **options}
    if error is None:
        normact.batch_norm_backward(**arguments)
        return
    with pytest.raises(error, match=f"batch_norm_backward: {match}"):
        normact.batch_norm_backward(**arguments)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        *BACKWARD,
        ({"mean": C3}, ValueError, r"mean has shape \(3,\); expected \(2, 3\)"),
        ({"num_groups": 2}, ValueError, "num_groups is 2; expected a divisor of 3"),
        ({"out": (None, None, None, X.copy())}, ValueError, "out.daddend is given, .*expected None"),
    ],
    ids=name_of,
)
def test_group_norm_backward(options: dict[str, Any], error: type[Exception], match: str):
    stats = np.ones((2, 3), np.float32)
    with pytest.raises(error, match=f"group_norm_backward: {match}"):
        normact.group_norm_backward(**{"dy": X, "x": X, "num_groups": 3, "mean": stats, "rstd": stats, **options})


PARTS: list[tuple[Callable[..., Any], dict[str, Any], dict[str, Any], str]] = [
    (normact.batch_norm_statistics, {"x": X}, {"out": np.empty((2, 3), np.float32)}, r"moments has shape \(2, 3\)"),
    (normact.batch_norm_statistics, {"x": X}, {"channel_axis": 3}, "channel_axis is 3; expected an axis of x"),
    (
        normact.batch_norm_merge,
        {},
        {"moments": np.ones((3, 3), np.float32)},
        r"moments has shape \(3, 3\); expected \(",
    ),
    (normact.batch_norm_merge, {}, {"moments": np.ones((2, 2, 3), np.float32)}, r"moments has shape \(2, 2, 3\)"),
    (normact.batch_norm_merge, {}, {"moments": np.ones((0, 3, 3), np.float32)}, r"moments has shape \(0, 3, 3\)"),
    (normact.batch_norm_merge, {}, {"moments": np.ones((2, 3, 3), np.float16)}, "moments has dtype float16; expected"),
    (normact.batch_norm_merge, {"moments": X}, {"running_mean": C3}, "running_mean is given but running_var is None"),
    (normact.batch_norm_apply, {"x": X, "mean": C3}, {"rstd": C3[:2]}, r"rstd has shape \(2,\); expected \(3,\)"),
    (
        normact.batch_norm_apply,
        {"x": X, "mean": C3, "rstd": C3},
        {"return_mask": True},
        "mask is given with activation",
    ),
    (
        normact.batch_norm_reduce,
        {"dy": X, "x": X, "mean": C3, "rstd": C3},
        {"out": C3.copy()},
        r"sums has shape \(3,\); expected \(2, 3\)",
    ),
    (
        normact.batch_norm_input_gradient,
        {"dy": X, "x": X, "mean": C3, "rstd": C3, "sums": np.ones((2, 3), np.float32)},
        {"count": np.ones(2, np.float32)},
        r"count has shape \(2,\); expected",
    ),
    (
        normact.batch_norm_input_gradient,
        {"dy": X, "x": X, "mean": C3, "rstd": C3, "count": C3},
        {"sums": C3},
        r"sums has shape \(3,\); expected \(2, 3\)",
    ),
]


@pytest.mark.parametrize(("function", "given", "options", "match"), PARTS, ids=lambda v: getattr(v, "__name__", ""))
def test_parts(function: Callable[..., Any], given: dict[str, Any], options: dict[str, Any], match: str):
    if function is normact.batch_norm_merge and "moments" in given:
        given = {"moments": np.ones((2, 3, 3), np.float32)}
    with pytest.raises(ValueError, match=f"{function.__name__}: {match}"):
        function(**given, **options)


# ---- What may not be written to ----


@pytest.mark.parametrize("name", ["running_mean", "running_var", "num_batches_tracked"])
@pytest.mark.parametrize(("library", "make"), [("jax.numpy", "asarray"), ("tensorflow", "constant")])
def test_immutable_running_statistics(library: str, make: str, name: str):
    """JAX's and TensorFlow's arrays cannot be updated in place; the sentence says what can be done."""
    running = {"running_mean": C3.copy(), "running_var": C3.copy(), "num_batches_tracked": np.zeros((), np.int64)}
    frozen = getattr(importlib.import_module(library), make)(running[name])
    given: dict[str, Any] = running | {name: frozen}
    with pytest.raises(ValueError, match=rf"batch_norm: {name} is of type \S+, which is immutable.*batch_norm_merge"):
        normact.batch_norm(X, training=True, **given)
    del given["num_batches_tracked"]
    if name != "num_batches_tracked":
        with pytest.raises(ValueError, match=rf"instance_norm: {name} is of type \S+, which is immutable"):
            normact.instance_norm(X, **given)
    assert (running["running_mean"] == 1).all() and running["num_batches_tracked"] == 0


def test_read_only_running_statistics():
    frozen = C3.copy()
    frozen.setflags(write=False)
    with pytest.raises(ValueError, match="batch_norm: running_var is read-only; expected a writable array"):
        normact.batch_norm(X, None, None, C3.copy(), frozen, training=True)
    with pytest.raises(ValueError, match="batch_norm: running_mean is read-only; expected a writable array"):
        normact.batch_norm(X, None, None, frozen, C3.copy(), training=True)
    normact.batch_norm(X, None, None, frozen, frozen)  # reads them


def test_overlapping_outputs_are_refused():
    memory = np.arange(30, dtype=np.float32)
    before = memory.copy()
    x = memory[:24].reshape(2, 3, 4)
    shifted = memory[4:28].reshape(2, 3, 4)
    for call, name in (
        (lambda: normact.batch_norm(x, training=True, out=shifted), "y"),
        (lambda: normact.batch_norm(x, None, None, memory[:3], memory[6:9], training=True), "running_mean"),
        (lambda: normact.batch_norm(X, None, None, memory[:3], memory[2:5], training=True), "running_"),
        (lambda: normact.group_norm(x, 1, out=shifted), "y"),
        (lambda: normact.instance_norm(x, out=shifted), "y"),
        (lambda: normact.batch_norm_backward(x, X, mean=C3, rstd=C3, out=shifted), "dx"),
        (lambda: normact.batch_norm_backward(X, X, mean=C3, rstd=C3, addend=X, out=(x, None, None, x)), "d"),
    ):
        with pytest.raises(ValueError, match=rf": {name}.*overlap"):
            call()
    np.testing.assert_array_equal(memory, before)
    with pytest.raises(ValueError, match="group_norm: y "):
        normact.group_norm(torch.ones(2, 3, 4), 1, out=torch.empty(4).expand(2, 3, 4))


def test_autograd_is_named():
    x = torch.ones(2, 3, 4, requires_grad=True)
    for call in (
        lambda: normact.batch_norm(x, training=True),
        lambda: normact.group_norm(x, 3),
        lambda: normact.instance_norm(x),
    ):
        with pytest.raises(ValueError, match=r"x requires grad.*no_grad.*detach"):
            call()
    with torch.no_grad():
        assert not normact.group_norm(x, 3).requires_grad


def test_row_variants_are_no_business_of_channels():
    for call in (lambda: normact.batch_norm(X, training=True), lambda: normact.group_norm(X, 1)):
        with normact.row_variant("warp"), pytest.raises(NotImplementedError, match="_norm: .*row kernel"):
            call()


@pytest.mark.parametrize("x", [None, 3, "x", [[1.0, 2.0]]], ids=str)
def test_no_arrays_with_masks_and_statistics(x: Any):
    for call in (
        lambda: normact.relu(x, return_mask=True),
        lambda: normact.group_norm(x, 1, return_stats=True),
        lambda: normact.batch_norm(x, training=True, return_stats=True),
        lambda: normact.batch_norm(x, training=True, activation="relu", return_mask=True),
    ):
        with pytest.raises(TypeError, match=r"_norm: x is of type|^relu: x is of type"):
            call()
