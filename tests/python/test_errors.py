# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments raise the exception that a Python user expects, with a sentence, and nothing is written."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import normact
from normact import _core

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

X = np.arange(1, 13, dtype=np.float32).reshape(3, 4)


def x_torch() -> torch.Tensor:
    return torch.from_numpy(X.copy())


class Subclass(torch.Tensor):
    """A user's tensor class: what it adds to the memory is unknown."""


class WrapperSubclass(torch.Tensor):
    """A tensor without memory of its own, as DTensor is."""

    @classmethod
    def __torch_dispatch__(cls, *_args: Any, **_kwargs: Any) -> Any:
        raise AssertionError("nothing may be computed on it")


def wrapper() -> torch.Tensor:
    return torch.Tensor._make_wrapper_subclass(WrapperSubclass, (3, 4), dtype=torch.float32)


# ---- What is no usable array ----


@pytest.mark.parametrize(
    "value", [[[1.0, 2.0]], 1.0, "x", object(), np.float32(1.0)], ids=lambda value: type(value).__name__
)
def test_other_objects_are_refused(value: Any):
    name = type(value).__name__
    with pytest.raises(TypeError, match=rf"layer_norm: x is of type (numpy\.)?{name}; expected an array"):
        normact.layer_norm(value)
    with pytest.raises(TypeError, match=rf"layer_norm: weight is of type (numpy\.)?{name}; expected an array"):
        normact.layer_norm(X, value)
    with pytest.raises(TypeError, match=rf"layer_norm: y is of type (numpy\.)?{name}; expected an array"):
        normact.layer_norm(X, out=value)


def test_none_is_refused_where_an_array_is_needed():
    with pytest.raises(TypeError, match="layer_norm: x is of type NoneType; expected an array"):
        normact.layer_norm(None)
    with pytest.raises(TypeError, match="rms_norm: x is of type NoneType; expected an array"):
        normact.rms_norm(None, out=X.copy())
    with pytest.raises(TypeError, match="rms_norm_backward: rstd is of type NoneType; expected an array"):
        normact.rms_norm_backward(X, X, rstd=None)


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        ("int32", "int32"),
        ("uint8", "uint8"),
        ("bool", "bool"),
        ("complex64", "complex64"),
        ("complex128", "complex128"),
    ],
)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_dtypes_are_named(dtype: str, text: str, framework: str):
    module: Any = np if framework == "numpy" else torch
    x = module.ones((3, 4), dtype=getattr(module, dtype))
    sentence = f"rms_norm: x has dtype {text}; expected float64, float32, float16 or bfloat16"
    with pytest.raises(TypeError, match=sentence):
        normact.rms_norm(x)


def test_fp8_is_named():
    with pytest.raises(TypeError, match=r"x has dtype 8-bit DLPack type code \d+; expected float64"):
        normact.rms_norm(torch.ones(3, 4).to(torch.float8_e4m3fn))


def test_byte_swapped_numpy_is_refused():
    with pytest.raises(TypeError, match="rms_norm: x is a numpy.ndarray that its __dlpack__ does not hand out") as info:
        normact.rms_norm(X.astype(">f4"))
    assert info.value.__cause__ is not None, "NumPy's own reason is kept"


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("make", [np.matrix, np.ma.array], ids=["matrix", "masked"])
def test_numpy_subclasses_are_refused(make: Any):
    with pytest.raises(TypeError, match=r"x is of type numpy\.\S+; expected a numpy\.ndarray; numpy\.asarray\(\)"):
        normact.rms_norm(make(X))


def test_memory_maps_are_arrays(tmp_path: Any):
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=X.shape)
    x[:] = X
    np.testing.assert_array_equal(normact.rms_norm(x), normact.rms_norm(X))


# ---- PyTorch tensors that are more, or less, than their memory ----


@pytest.mark.parametrize("name", ["x", "weight", "bias", "residual", "y"])
def test_requires_grad_is_refused_while_gradients_are_recorded(name: str):
    tensors: dict[str, Any] = {
        "x": x_torch(),
        "weight": torch.ones(4),
        "bias": torch.zeros(4),
        "residual": x_torch(),
        "y": torch.empty(3, 4),
    }
    expected = normact.layer_norm(**{key: tensors[key] for key in ("x", "weight", "bias", "residual")}).y
    tensors[name].requires_grad_()
    tensors["out"] = (tensors.pop("y"),)
    with pytest.raises(ValueError, match=rf"layer_norm: {name} requires grad.*no_grad.*detach.*normact\.torch"):
        normact.layer_norm(**tensors)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.equal(normact.layer_norm(**tensors).y, expected)


def test_parameters_are_tensors():
    weight = torch.nn.Parameter(torch.full((4,), 2.0))
    with torch.no_grad():
        y = normact.rms_norm(x_torch(), weight)
        grads = normact.rms_norm_backward(x_torch(), x_torch(), weight, rstd=torch.ones(3))
    assert type(y) is torch.Tensor
    assert type(grads.dweight) is torch.Tensor
    assert not grads.dweight.requires_grad
    assert torch.equal(y, 2 * normact.rms_norm(x_torch()))


def test_negative_bit_is_refused():
    x = torch.view_as_complex(torch.ones(3, 4, 2)).conj().imag
    assert x.is_neg()
    with pytest.raises(ValueError, match=r"rms_norm: x has its negative bit set.*\.resolve_neg\(\)"):
        normact.rms_norm(x)
    with pytest.raises(ValueError, match="rms_norm: y has its negative bit set"):
        normact.rms_norm(x_torch(), out=torch.ops.aten._neg_view(torch.empty(3, 4)))
    assert (normact.rms_norm(x.resolve_neg()) < 0).all()


def test_conjugate_bit_is_refused():
    with pytest.raises(TypeError, match="rms_norm: x has dtype complex64"):
        normact.rms_norm(torch.ones(3, 4, dtype=torch.complex64).conj())


@pytest.mark.parametrize(
    "make", [lambda: x_torch().as_subclass(Subclass), wrapper], ids=["subclass", "wrapper_without_memory"]
)
def test_tensor_subclasses_are_refused(make: Any):
    with pytest.raises(TypeError, match=r"x is of type \S*Subclass; expected a torch\.Tensor or Parameter"):
        normact.rms_norm(make())
    with pytest.raises(TypeError, match=r"y is of type \S*Subclass"):
        normact.rms_norm(x_torch(), out=make())


def test_fake_tensors_are_refused():
    with FakeTensorMode():
        x = torch.ones(3, 4)
    with pytest.raises(TypeError, match=r"x is of type \S*FakeTensor; expected a torch\.Tensor"):
        normact.rms_norm(x)


@pytest.mark.parametrize(
    "make",
    [
        lambda: x_torch().to_sparse(),
        lambda: torch.ones(3, 4, device="meta"),
        lambda: torch.quantize_per_tensor(x_torch(), 0.1, 0, torch.qint8),
        lambda: x_torch().to_mkldnn(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
    ids=["sparse", "meta", "quantized", "mkldnn", "nested"],
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_tensors_that_are_no_dense_memory_are_refused(make: Any):
    with pytest.raises((TypeError, ValueError), match="rms_norm: x "):
        normact.rms_norm(make(), out=torch.empty(3, 4))


def test_functorch_wrappers_are_refused():
    y = torch.zeros(4)

    def through(x: torch.Tensor) -> torch.Tensor:
        normact.rms_norm(x, out=y)
        return x.sum()

    for transform in (torch.func.vmap, torch.func.grad):
        with pytest.raises((TypeError, ValueError), match="rms_norm: x "):
            transform(through)(x_torch() if transform is torch.func.vmap else x_torch()[0])
    assert (y == 0).all()


# ---- JAX and TensorFlow ----


def test_jax_tracers_are_refused():
    import jax

    for transform in (jax.jit, jax.vmap, lambda f: jax.grad(lambda x: f(x).sum())):
        with pytest.raises(TypeError, match=r"x is of type \S*Tracer; expected a jax\.Array with a value"):
            transform(normact.rms_norm)(jax.numpy.asarray(X))


def test_jax_arrays_are_no_outputs():
    import jax

    y = jax.numpy.zeros((3, 4))
    with pytest.raises(TypeError, match=r"rms_norm: y is of type \S+ArrayImpl, which is immutable"):
        normact.rms_norm(X, out=y)
    assert not y.any()


def test_tensorflow_variables_and_symbols_are_refused():
    import tensorflow as tf

    with pytest.raises(TypeError, match=r"x is of type \S+Variable; expected an eager tensor; .*\.value\(\)"):
        normact.rms_norm(tf.Variable(tf.constant(X)))
    with pytest.raises(
        TypeError, match=r"x is of type \S+SymbolicTensor; expected an eager tensor.*normact\.tensorflow"
    ):
        tf.function(normact.rms_norm, autograph=False)(tf.constant(X))


def test_tensorflow_strings_are_refused():
    """TensorFlow itself ends the process when it is asked for their memory."""
    import tensorflow as tf

    with pytest.raises(TypeError, match="gelu: x has dtype string; expected float64, float32, float16 or bfloat16"):
        normact.gelu(tf.constant(["a", "b"]))
    with pytest.raises(TypeError, match="layer_norm: weight has dtype variant; expected float64"):
        normact.layer_norm(
            tf.constant(X), tf.raw_ops.EmptyTensorList(element_shape=[1], max_num_elements=2, element_dtype=tf.float32)
        )


def test_tensorflow_tensors_are_no_outputs():
    import tensorflow as tf

    y = tf.zeros((3, 4))
    with pytest.raises(TypeError, match=r"rms_norm: y is of type \S+EagerTensor, which is immutable"):
        normact.rms_norm(X, out=y)
    assert not np.any(y)


def test_interrupts_stay_what_they_are():
    """They are not taken for an argument of the wrong type."""

    class Interrupted:
        def __float__(self):
            raise KeyboardInterrupt

        __dlpack__ = __dlpack_device__ = __index__ = __float__

    interrupted: Any = Interrupted()
    for call in (
        lambda: normact.layer_norm(X, eps=interrupted),
        lambda: normact.group_norm(X, interrupted),
        lambda: normact.relu(interrupted, out=X.copy()),
    ):
        with pytest.raises(KeyboardInterrupt):
            call()


# ---- Values, shapes, out= ----


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"weight": np.ones(5, np.float32)}, ValueError, r"layer_norm: weight has shape \(5,\); expected \(4,\)"),
        ({"bias": np.ones((4, 1), np.float32)}, ValueError, r"layer_norm: bias has shape \(4, 1\); expected \(4,\)"),
        ({"weight": np.ones(4, np.float64)}, ValueError, "layer_norm: weight has dtype float64; expected float32"),
        ({"residual": X[:2]}, ValueError, r"layer_norm: residual has shape \(2, 4\); expected"),
        ({"residual": X.astype(np.float64)}, ValueError, "layer_norm: residual has dtype float64; expected"),
        ({"eps": float("nan")}, ValueError, "layer_norm: eps is nan; expected"),
        ({"eps": -1e-5}, ValueError, "layer_norm: eps is -1e-05; expected"),
        ({"eps": "small"}, TypeError, "layer_norm: eps is of type str; expected a number"),
        ({"eps": 10**400}, ValueError, "layer_norm: eps is an int that no float holds; expected a number"),
        ({"weight_offset": None}, TypeError, "layer_norm: weight_offset is of type NoneType; expected a number"),
        ({"weight_offset": 1.0}, ValueError, "layer_norm: weight_offset is 1 but weight is None; expected"),
        ({"axis": 2}, ValueError, r"layer_norm: axis\[0\] is 2; expected an axis of x, which has 2 dimensions"),
        ({"axis": (1, -1)}, ValueError, r"layer_norm: axis\[1\] is -1, an axis that is already given"),
        ({"axis": ()}, ValueError, "layer_norm: axis has no entries; expected at least one axis"),
        ({"axis": 0, "weight": np.ones(4, np.float32)}, ValueError, r"weight has shape \(4,\); expected \(3,\)"),
        ({"axis": "last"}, TypeError, "layer_norm: axis is of type str; expected an int or a tuple of ints"),
        ({"axis": None}, TypeError, "layer_norm: axis is of type NoneType"),
        ({"axis": (1.5,)}, TypeError, "layer_norm: axis is of type float"),
        ({"axis": "last", "return_stats": True}, TypeError, "layer_norm: axis is of type str"),
        ({"axis": 7, "return_stats": True}, ValueError, r"layer_norm: axis\[0\] is 7; expected an axis of x"),
        ({"stream": "main"}, TypeError, "layer_norm: stream is of type str; expected a stream handle or"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_forward_arguments(options: dict[str, Any], error: type[Exception], match: str):
    y = np.full_like(X, 7)
    with pytest.raises(error, match=match):
        normact.layer_norm(X, **options)
    with pytest.raises(error, match=match):
        normact.layer_norm(X, out=(y,), **options)
    assert (y == 7).all(), "nothing is written"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dy": X[:2]}, r"layer_norm_backward: dy has shape \(2, 4\)"),
        ({"mean": np.ones(4, np.float32)}, r"layer_norm_backward: mean has shape \(4,\); expected \(3,\)"),
        ({"rstd": np.ones(3, np.float16)}, "layer_norm_backward: rstd has dtype float16; expected float32"),
        ({"dresidual": X.T}, "layer_norm_backward: dresidual has shape"),
        ({"weight": np.ones(3, np.float32)}, r"layer_norm_backward: weight has shape \(3,\)"),
        ({"bias": np.ones(3, np.float32)}, r"layer_norm_backward: bias has shape \(3,\); expected \(4,\)"),
        ({"bias": np.ones(4, np.float16)}, "layer_norm_backward: bias has dtype float16; expected float32"),
        (
            {"bias": np.ones(3, np.float32), "out": (None, None, np.ones(4, np.float32))},
            r"layer_norm_backward: bias has shape \(3,\)",
        ),
        ({"out": (None, None, None, X)}, "layer_norm_backward: out.daddend is given, .*expected None"),
        ({"out": (None, np.ones(4, np.float32))}, "layer_norm_backward: out.dweight is given, .*expected None"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_backward_arguments(options: dict[str, Any], match: str):
    stats = normact.layer_norm(X, return_stats=True)
    with pytest.raises(ValueError, match=match):
        normact.layer_norm_backward(**({"dy": X, "x": X, "mean": stats.mean, "rstd": stats.rstd} | options))


def test_out_entries_are_checked():
    y, stats = np.empty_like(X), np.empty(3, np.float32)
    with pytest.raises(ValueError, match="layer_norm: out.rstd is given, but this call does not produce it"):
        normact.layer_norm(X, out=(y, None, None, stats))
    with pytest.raises(ValueError, match="rms_norm: out.mean is given"):
        normact.rms_norm(X, out=(y, None, stats, None), return_stats=True)
    with pytest.raises(ValueError, match="layer_norm: out.residual is given"):
        normact.layer_norm(X, out=(y, y))
    with pytest.raises(ValueError, match="layer_norm: out has 5 entries; expected at most 4: y, residual, mean, rstd"):
        normact.layer_norm(X, out=(y, None, None, None, None))


def test_out_entries_are_used():
    made = normact.layer_norm(X, residual=X, return_stats=True)
    given = normact.NormOutput(*(np.empty_like(array) for array in made))
    output = normact.layer_norm(X, residual=X, return_stats=True, out=given)
    assert all(mine is theirs for mine, theirs in zip(output, given, strict=True))
    for array, expected in zip(output, made, strict=True):
        np.testing.assert_array_equal(array, expected)
    rstd = np.empty(3, np.float32)
    assert normact.layer_norm(X, return_stats=True, out=(None, None, None, rstd)).rstd is rstd
    np.testing.assert_array_equal(rstd, normact.layer_norm(X, return_stats=True).rstd)


def test_overlapping_output_is_refused():
    memory = np.arange(20, dtype=np.float32)
    before = memory.copy()
    with pytest.raises(ValueError, match="layer_norm: y .*overlap"):
        normact.layer_norm(memory[:16].reshape(4, 4), out=memory[4:].reshape(4, 4))
    np.testing.assert_array_equal(memory, before)


def test_expanded_output_is_refused():
    with pytest.raises(ValueError, match="layer_norm: y "):
        normact.layer_norm(x_torch(), out=torch.empty(4).expand(3, 4))


def test_row_variant_is_checked_and_put_back():
    with pytest.raises(ValueError, match="row_variant: name is 'fastest'; expected one of auto, warp"):
        with normact.row_variant("fastest"):
            pass
    with pytest.raises(KeyError), normact.row_variant("warp"):
        raise KeyError
    assert _core.set_row_variant(0) == 0


def test_thread_count_is_checked():
    before = normact.get_num_threads()
    with pytest.raises(ValueError, match="set_num_threads: count is 0; expected at least 1"):
        normact.set_num_threads(0)
    assert normact.get_num_threads() == before


def test_margin_is_checked():
    with pytest.raises(ValueError, match="set_sm_margin: count is -1; expected at least 0"):
        normact.set_sm_margin(-1)
    with pytest.raises(TypeError):
        normact.set_sm_margin("16")  # pyright: ignore[reportArgumentType]
    assert normact.get_sm_margin() == 0
