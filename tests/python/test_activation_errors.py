# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of activations raise what a Python user expects, with a sentence, and nothing is written.

What is wrong with an array as such (its class, memory, dtype, autograd) is in test_errors.py; the same code reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import normact

X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
ROW = np.ones(4, np.float32)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        (
            {"kind": "gelo"},
            ValueError,
            "activation: kind is 'gelo'; expected one of identity, relu, relu6, .*hardsigmoid",
        ),
        ({"kind": 6}, ValueError, "activation: kind is 6; expected one of identity"),
        ({"kind": None}, ValueError, "activation: kind is None; expected one of identity"),
        ({"kind": []}, ValueError, r"activation: kind is \[\]; expected one of identity"),
        ({"bias": np.ones(3, np.float32)}, ValueError, r"activation: bias has shape \(3,\); expected \(4,\)"),
        ({"bias": ROW, "axis": 0}, ValueError, r"activation: bias has shape \(4,\); expected \(3,\)"),
        ({"bias": np.ones((1, 4), np.float32)}, ValueError, r"activation: bias has shape \(1, 4\); expected \(4,\)"),
        ({"bias": wide(ROW)}, ValueError, "activation: bias has dtype float64; expected float32"),
        ({"bias": 1.0}, TypeError, "activation: bias is of type float; expected an array"),
        ({"bias": ROW, "axis": 2}, ValueError, "activation: axis is 2; expected an axis of x"),
        ({"bias": ROW, "axis": -3}, ValueError, "activation: axis is -3; expected an axis of x"),
        ({"bias": ROW, "axis": 2**40}, ValueError, "activation: axis is 1099511627776; expected an axis"),
        ({"bias": ROW, "axis": 2**80}, ValueError, "activation: axis is 12[0-9]+; expected one of 64 bits"),
        ({"bias": ROW, "axis": (1,)}, TypeError, "activation: axis is of type tuple; expected an int"),
        ({"axis": None}, TypeError, "activation: axis is of type NoneType; expected an int"),
        ({"alpha": "big"}, TypeError, "activation: alpha is of type str; expected a number"),
        ({"kind": "elu", "alpha": np.inf}, ValueError, "activation: alpha is inf; expected a finite number for elu"),
        ({"kind": "leaky_relu", "alpha": np.nan}, ValueError, "activation: alpha is nan; expected a finite number"),
        ({"kind": "softplus", "beta": 0.0}, ValueError, "activation: beta is 0; expected a finite number greater"),
        ({"kind": "softplus", "beta": -1.0}, ValueError, "activation: beta is -1; expected a finite number greater"),
        ({"kind": "softplus", "threshold": np.nan}, ValueError, "activation: threshold is nan; expected a number"),
        ({"return_mask": True}, ValueError, "activation: mask is given with kind gelu; expected None, as only relu"),
        ({"stream": "main"}, TypeError, "activation: stream is of type str; expected a stream handle or"),
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items())[:40] if isinstance(value, dict) else "",
)
def test_forward_arguments(options: dict[str, Any], error: type[Exception], match: str):
    y, arguments = np.full_like(X, 7), {"kind": "gelu", **options}
    with pytest.raises(error, match=match):
        normact.activation(X, **arguments)
    with pytest.raises(error, match=match):
        normact.activation(X, out=(y,), **arguments)
    assert (y == 7).all(), "nothing is written"


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"dy": X[:2]}, ValueError, r"relu_backward: dy has shape \(2, 4\); expected \(3, 4\)"),
        ({"dy": wide(X)}, ValueError, "relu_backward: dy has dtype float64; expected float32"),
        ({"dy": None}, TypeError, "relu_backward: dy is of type NoneType; expected an array"),
        ({"x": 3}, TypeError, "relu_backward: x is of type int; expected an array"),
        ({"y": X}, ValueError, "relu_backward: x and y are given; expected exactly one of x, y and mask"),
        ({"x": None}, ValueError, "relu_backward: x, y and mask are None; expected exactly one of x, y and mask"),
        ({"mask": np.ones(2, np.uint8)}, ValueError, "relu_backward: x and mask are given; expected exactly one"),
        (
            {"x": None, "mask": np.ones(3, np.uint8)},
            ValueError,
            r"relu_backward: mask has shape \(3,\); expected \(2,\), a bit for each",
        ),
        ({"x": None, "mask": np.ones(4, np.uint8)[::2]}, ValueError, r"relu_backward: mask has strides \(2,\)"),
        ({"x": None, "mask": np.ones(2, bool)}, TypeError, "relu_backward: mask has dtype bool; expected uint8"),
        ({"x": None, "mask": X}, TypeError, "relu_backward: mask has dtype float32; expected uint8"),
        ({"bias": np.ones(3, np.float32)}, ValueError, r"relu_backward: bias has shape \(3,\); expected \(4,\)"),
        ({"out": (None, ROW)}, ValueError, "relu_backward: out.dbias is given, .*expected None"),
        ({"out": (None, None, None)}, ValueError, "relu_backward: out has 3 entries; expected at most 2: dx, dbias"),
        ({"out": np.empty((4, 3), np.float32)}, ValueError, r"relu_backward: dx has shape \(4, 3\); expected \(3, 4\)"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_backward_arguments(options: dict[str, Any], error: type[Exception], match: str):
    with pytest.raises(error, match=match):
        normact.relu_backward(**{"dy": X, "x": X, **options})


def test_the_function_is_named():
    with pytest.raises(TypeError, match="silu: x is of type list; expected an array"):
        normact.silu([1.0])
    with pytest.raises(TypeError, match="silu: x has dtype int32; expected float64, float32, float16 or bfloat16"):
        normact.silu(np.ones(3, np.int32))
    with pytest.raises(ValueError, match="mish_backward: x, y and mask are None; expected exactly one"):
        normact.mish_backward(X, None)
    with pytest.raises(ValueError, match="gelu: approximate is 'erf'; expected 'none' or 'tanh'"):
        normact.gelu(X, approximate="erf")
    with pytest.raises(ValueError, match="geglu_backward: approximate is None; expected 'none' or 'tanh'"):
        normact.geglu_backward(X, X, X, approximate=None)  # type: ignore[arg-type]


def test_autograd_is_named():
    x = torch.ones(3, 4, requires_grad=True)
    for call in (lambda: normact.gelu(x), lambda: normact.swiglu(x), lambda: normact.relu(torch.ones(4), out=x)):
        with pytest.raises(ValueError, match=r"(x|gate|y) requires grad.*no_grad.*detach"):
            call()
    with torch.no_grad():
        assert not normact.gelu(x).requires_grad


def test_jax_arrays_are_no_outputs():
    import jax

    for name, call in (
        ("y", lambda out: normact.gelu(X, out=out)),
        ("mask", lambda out: normact.relu(X, return_mask=True, out=(None, out))),
        ("y", lambda out: normact.glu(X, out=out)),
    ):
        with pytest.raises(TypeError, match=rf"{name} is of type \S+ArrayImpl, which is immutable"):
            call(jax.numpy.zeros((3, 4)))


def test_out_entries_are_checked():
    with pytest.raises(ValueError, match="relu: out.mask is given, but this call does not produce it"):
        normact.relu(X, out=(None, np.empty(2, np.uint8)))
    with pytest.raises(ValueError, match="relu: out has 3 entries; expected at most 2: y, mask"):
        normact.relu(X, out=(None, None, None))
    with pytest.raises(ValueError, match="swiglu: out has 2 entries; expected at most 1: y"):
        normact.swiglu(X, out=(None, None))
    with pytest.raises(ValueError, match=r"relu: mask has shape \(3,\); expected \(2,\)"):
        normact.relu(X, return_mask=True, out=(None, np.empty(3, np.uint8)))


def test_overlapping_outputs_are_refused():
    memory = np.arange(20, dtype=np.float32)
    before = memory.copy()
    with pytest.raises(ValueError, match="gelu: y .*overlap"):
        normact.gelu(memory[:16], out=memory[4:])
    with pytest.raises(ValueError, match="gelu_backward: dx .*overlap"):
        normact.gelu_backward(memory[:16], before[:16], out=memory[4:])
    with pytest.raises(ValueError, match="swiglu: y .*overlap"):
        normact.swiglu(memory, out=memory[:10])
    with pytest.raises(ValueError, match="swiglu_backward: d.*overlap"):
        normact.swiglu_backward(memory[:5], memory[5:10], memory[10:15], out=(memory[15:], memory[15:]))
    np.testing.assert_array_equal(memory, before)
    with pytest.raises(ValueError, match="relu: y "):
        normact.relu(torch.ones(3, 4), out=torch.empty(4).expand(3, 4))
    read_only = np.empty_like(X)
    read_only.setflags(write=False)
    with pytest.raises(ValueError, match="relu: y is read-only"):
        normact.relu(X, out=read_only)


PAIR = (ROW, ROW)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"kind": "swish"}, ValueError, "gated: kind is 'swish'; expected one of identity"),
        ({"layout": "packed"}, ValueError, "gated: layout is 'packed'; expected one of split, interleaved"),
        ({"layout": "separate"}, ValueError, "gated: layout is 'separate'; expected one of split, interleaved"),
        ({"gate": None}, TypeError, "gated: gate is of type NoneType; expected an array"),
        ({"up": "silu"}, TypeError, "gated: up is of type str; expected an array"),
        ({"up": X[:2]}, ValueError, r"gated: up has shape \(2, 4\); expected \(3, 4\)"),
        ({"up": wide(X)}, ValueError, "gated: up has dtype float64; expected float32"),
        ({"up": X, "bias": ROW}, TypeError, r"gated: bias is of type ndarray; expected a pair \(gate_bias, up_bias\)"),
        ({"up": X, "bias": (ROW,)}, TypeError, "gated: bias is a tuple of 1; expected a pair"),
        ({"up": X, "bias": (ROW, ROW[:3])}, ValueError, r"gated: up_bias has shape \(3,\); expected \(4,\)"),
        ({"bias": PAIR}, TypeError, "gated: bias is a tuple; expected one array, packed like gate"),
        ({"bias": ROW[:2]}, ValueError, r"gated: gate_bias has shape \(2,\); expected \(4,\)"),
        ({"axis": 0}, ValueError, "gated: gate has size 3 along axis 0; expected an even size"),
        ({"axis": 2}, ValueError, "gated: axis is 2; expected an axis of gate"),
        ({"axis": "last"}, TypeError, "gated: axis is of type str; expected an int"),
        ({"limit": -1.0}, ValueError, "gated: limit is -1; expected a number greater than 0"),
        ({"limit": np.nan}, ValueError, "gated: limit is nan; expected a number greater than 0"),
        ({"limit": "low"}, TypeError, "gated: limit is of type str; expected a number"),
        ({"up_offset": np.inf}, ValueError, "gated: up_offset is inf; expected a finite number"),
        ({"up_offset": None}, TypeError, "gated: up_offset is of type NoneType; expected a number"),
        ({"out": np.empty((3, 4), np.float32)}, ValueError, r"gated: y has shape \(3, 4\); expected \(3, 2\)"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_gated_arguments(options: dict[str, Any], error: type[Exception], match: str):
    with pytest.raises(error, match=match):
        normact.gated(**{"gate": X, **options})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dy": X}, r"gated_backward: dy has shape \(3, 4\); expected \(3, 2\)"),
        ({"up": X}, r"gated_backward: dy has shape \(3, 2\); expected \(3, 4\)"),
        ({"out": (None, ROW)}, "gated_backward: out.dbias is given, .*expected None"),
        ({"out": (None, None, None)}, "gated_backward: out has 3 entries; expected at most 2: dx, dbias"),
        ({"dy": X, "up": X, "out": (None, None, ROW)}, "gated_backward: out.dgate_bias is given, .*expected None"),
        ({"dy": X, "up": X, "out": (None,) * 5}, "gated_backward: out has 5 entries; expected at most 4: dgate, dup"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_gated_backward_arguments(options: dict[str, Any], match: str):
    with pytest.raises(ValueError, match=match):
        normact.gated_backward(**{"dy": X[:, :2], "gate": X, **options})


def test_row_variants_are_no_business_of_activations():
    with normact.row_variant("warp"), pytest.raises(NotImplementedError, match="gelu: .*row kernel"):
        normact.gelu(X)
