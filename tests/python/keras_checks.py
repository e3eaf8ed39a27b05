# SPDX-License-Identifier: Apache-2.0
"""What test_keras.py runs in a process of its own for each backend: KERAS_BACKEND=... python keras_checks.py.

Prints a JSON object: the name of each check and what went wrong, or nothing. Keras' own layers are what ours are held
against; both compute in the same precision, so that they differ by rounding.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

CHECKS: dict[str, Callable[..., None]] = {}
TOLERANCE = {"float64": 1e-10, "float32": 2e-5, "mixed_float16": 4e-3, "mixed_bfloat16": 3e-2}


def check(function: Callable[..., None]) -> Callable[..., None]:
    """Registers a check: a function of the module keras and of normact.keras."""
    CHECKS[function.__name__] = function
    return function


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def numpy_of(keras: Any, value: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(keras.ops.cast(value, "float64"))


def close(found: np.ndarray, want: np.ndarray, tolerance: float, what: str = "") -> None:
    np.testing.assert_allclose(
        found, want, rtol=tolerance, atol=tolerance * max(1.0, float(np.abs(want).max())), err_msg=what
    )


#: Layer, its arguments, the shape of its input.
LAYERS: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("LayerNormalization", {}, (4, 6)),
    ("LayerNormalization", {"axis": [1, 2], "epsilon": 1e-2}, (3, 4, 5)),
    ("LayerNormalization", {"axis": [-1, 1], "scale": False}, (3, 5, 2, 5)),
    ("LayerNormalization", {"axis": [3, 1]}, (3, 2, 4, 5)),
    ("RMSNormalization", {}, (4, 6)),
    ("RMSNormalization", {"axis": [1, 2], "epsilon": 1e-2}, (3, 4, 5)),
    ("GroupNormalization", {"groups": 2}, (3, 5, 4)),
    ("GroupNormalization", {"groups": 3, "axis": 1, "center": False}, (2, 6, 3, 4)),
    ("GroupNormalization", {"groups": -1, "scale": False}, (2, 3, 4, 5)),
    ("BatchNormalization", {}, (8, 5)),
    ("BatchNormalization", {"axis": 1, "momentum": 0.7, "epsilon": 1e-2}, (4, 3, 5, 2)),
    ("BatchNormalization", {"scale": False, "center": False}, (4, 3, 5)),
    ("BatchNormalization", {}, (1, 5)),
]


#: The same; with PyTorch Keras' own layer fails on these, taking the axis for the last.
NOT_TORCH: list[tuple[str, dict[str, Any], tuple[int, ...]]] = [
    ("LayerNormalization", {"axis": 1, "center": False}, (3, 4, 5)),
]


def layers_of(keras: Any) -> list[tuple[str, dict[str, Any], tuple[int, ...]]]:
    return LAYERS if keras.backend.backend() == "torch" else LAYERS + NOT_TORCH


def pair(
    keras: Any, nk: Any, name: str, arguments: dict[str, Any], shape: tuple[int, ...], **more: Any
) -> tuple[Any, Any]:
    """Ours and Keras', with the same weights."""
    ours, theirs = getattr(nk, name)(**arguments, **more), getattr(keras.layers, name)(**arguments)
    for layer in (ours, theirs):
        layer.build(shape)
        layer.set_weights([0.5 + np.abs(random(*weight.shape)) for weight in layer.get_weights()])
    return ours, theirs


@check
def results(keras: Any, nk: Any) -> None:
    """In training and inference, under several policies: results, their dtypes, and moving statistics."""
    before = keras.config.dtype_policy()
    for policy, tolerance in TOLERANCE.items():
        if policy == "float64" and keras.backend.backend() != "tensorflow":
            continue  # JAX has it only where the whole process has; with PyTorch Keras computes it in float32
        keras.config.set_dtype_policy(policy)
        for name, arguments, shape in layers_of(keras)[:: 1 if policy == "float32" else 3]:
            ours, theirs = pair(keras, nk, name, arguments, shape)
            x = keras.ops.cast(random(*shape), keras.config.dtype_policy().compute_dtype)
            for training in (True, False) if name == "BatchNormalization" else (None,):
                given = {} if training is None else {"training": training}
                found, want = ours(x, **given), theirs(x, **given)
                what = f"{name} {arguments} {policy} {training}"
                assert found.dtype == want.dtype and tuple(found.shape) == shape, what
                close(numpy_of(keras, found), numpy_of(keras, want), tolerance, what)
            for mine, weight in zip(ours.get_weights(), theirs.get_weights(), strict=True):
                close(mine, weight, min(tolerance, 2e-5), f"weights of {name} {arguments} {policy}")
    keras.config.set_dtype_policy(before)


@check
def activations(keras: Any, nk: Any) -> None:
    for name, arguments, shape in layers_of(keras):
        ours, theirs = pair(keras, nk, name, arguments, shape, activation="silu")
        given = {"training": True} if name == "BatchNormalization" else {}
        found, want = ours(random(*shape), **given), keras.ops.silu(theirs(random(*shape), **given))
        close(numpy_of(keras, found), numpy_of(keras, want), TOLERANCE["float32"], f"{name} {arguments}")


def model(keras: Any, layers: Any) -> Any:
    """All norms in a row, with the same weights in every call."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5, 4, 8))
    h = keras.layers.Conv2D(8, 3, padding="same")(inputs)
    h = keras.layers.ReLU()(layers.BatchNormalization()(h))
    h = layers.LayerNormalization(axis=[1, 2, 3])(layers.GroupNormalization(4)(h))
    h = layers.RMSNormalization()(layers.LayerNormalization()(h))
    h = layers.BatchNormalization(axis=1, momentum=0.9)(h)
    h = keras.layers.Dense(3)(keras.layers.Flatten()(h))
    made = keras.Model(inputs, layers.BatchNormalization()(h))
    made.compile(keras.optimizers.SGD(0.1), "mse")
    return made


def data() -> tuple[np.ndarray, np.ndarray]:
    return random(6, 5, 4, 8), random(6, 3)


@check
def training(keras: Any, nk: Any) -> None:
    """Steps of fit(), every second of a single sample, and prediction, as with Keras' own layers."""
    ours, theirs = model(keras, nk), model(keras, keras.layers)
    options: dict[str, Any] = {"batch_size": 5, "epochs": 2, "verbose": 0, "shuffle": False}
    losses = [each.fit(*data(), **options).history["loss"] for each in (ours, theirs)]
    close(np.array(losses[0]), np.array(losses[1]), 1e-5, "losses")
    for mine, weight in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        close(mine, weight, 1e-5, "weights")
    close(ours.predict(data()[0], verbose=0), theirs.predict(data()[0], verbose=0), 1e-4)


@check
def gradients_of_inputs(keras: Any, nk: Any) -> None:
    """One step on a layer that stands before the norm."""
    for name, arguments, shape in layers_of(keras)[1::4]:
        weights = []
        for layers in (nk, keras.layers):
            keras.utils.set_random_seed(3)
            inputs = keras.Input(shape[1:])
            h = keras.layers.Dense(shape[-1])(inputs)
            made = keras.Model(inputs, getattr(layers, name)(**arguments)(h))
            made.compile(keras.optimizers.SGD(1.0), "mse", run_eagerly=keras.backend.backend() == "tensorflow")
            made.train_on_batch(random(*shape), 2 * random(*shape) ** 2)
            weights.append(made.get_weights())
        for mine, weight in zip(*weights, strict=True):
            close(mine, weight, 1e-4, f"{name} {arguments}")


@check
def files(keras: Any, nk: Any) -> None:
    """Weights go both ways, whole models and configurations come back."""
    ours, theirs = model(keras, nk), model(keras, keras.layers)
    x = data()[0]
    with tempfile.TemporaryDirectory() as folder:
        for source, target in ((ours, theirs), (theirs, ours)):
            source.set_weights([weight + 0.1 for weight in source.get_weights()])
            source.save_weights(f"{folder}/a.weights.h5")
            target.load_weights(f"{folder}/a.weights.h5")
            for mine, weight in zip(source.get_weights(), target.get_weights(), strict=True):
                np.testing.assert_array_equal(mine, weight)
        ours.save(f"{folder}/a.keras")
        again = keras.models.load_model(f"{folder}/a.keras")
    np.testing.assert_array_equal(again.predict(x, verbose=0), ours.predict(x, verbose=0))
    assert [type(layer) for layer in again.layers] == [type(layer) for layer in ours.layers]
    for name, arguments, shape in layers_of(keras):
        mine, other = pair(keras, nk, name, arguments, shape)
        assert {**mine.get_config(), "name": ""} == {**other.get_config(), "name": ""}, name
        active = getattr(nk, name)(**arguments, activation="gelu")
        assert type(active).from_config(active.get_config()).activation == "gelu", name


@check
def masks_and_frozen_layers(keras: Any, nk: Any) -> None:
    """What Keras computes for us, and a layer that is not trainable, which infers."""
    x, mask = random(4, 6, 5), random(4, 6) > 0
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"mask": mask, "training": True}),
        ({}, {"mask": mask, "training": False}),
        ({"renorm": True}, {"training": True}),
        ({"renorm": True}, {"training": False}),
        ({"trainable": False}, {"training": True}),
    ]
    for arguments, options in cases:
        ours, theirs = pair(keras, nk, "BatchNormalization", arguments, x.shape, activation="relu")
        given = {key: keras.ops.convert_to_tensor(value) if key == "mask" else value for key, value in options.items()}
        found, want = ours(x, **given), keras.ops.relu(theirs(x, **given))
        close(numpy_of(keras, found), numpy_of(keras, want), 2e-5, f"{arguments} {list(options)}")
        for mine, weight in zip(ours.get_weights(), theirs.get_weights(), strict=True):
            close(mine, weight, 2e-5, f"weights {arguments} {list(options)}")
    words = keras.layers.Embedding(9, 5, mask_zero=True)(np.array([[1, 2, 0], [3, 0, 0]]))
    assert numpy_of(keras, nk.LayerNormalization()(words)._keras_mask).tolist() == [[1, 1, 0], [1, 0, 0]]
    for each in nk.AddRMSNormalization()(words, words):
        assert numpy_of(keras, each._keras_mask).tolist() == [[1, 1, 0], [1, 0, 0]]


@check
def fused(keras: Any, nk: Any) -> None:
    """In a model, which trains, is saved and comes back; and against the same in Keras' words."""
    x, residual = random(4, 6), np.abs(random(4, 6))
    for name in ("LayerNormalization", "RMSNormalization"):
        ours, theirs = getattr(nk, f"Add{name}")(), getattr(keras.layers, name)()
        y, total = ours(x, residual)
        close(numpy_of(keras, total), x + residual, 1e-6)
        close(numpy_of(keras, y), numpy_of(keras, theirs(x + residual)), 2e-5)
    silu, gelu = (
        (lambda v: numpy_of(keras, keras.ops.silu(v))),
        (lambda v: numpy_of(keras, keras.ops.gelu(v, approximate=False))),
    )
    close(numpy_of(keras, nk.SwiGLU()(x)), silu(x[:, :3]) * x[:, 3:], 2e-5)
    close(numpy_of(keras, nk.SwiGLU()(x, residual)), silu(x) * residual, 2e-5)
    close(numpy_of(keras, nk.GEGLU("interleaved")(x)), gelu(x[:, ::2]) * x[:, 1::2], 2e-5)
    close(numpy_of(keras, nk.GEGLU(axis=0)(x)), gelu(x[:2]) * x[2:], 2e-5)

    inputs = keras.Input((6,))
    y, total = nk.AddRMSNormalization(activation="silu")(keras.layers.Dense(6)(inputs), inputs)
    y, _ = nk.AddLayerNormalization()(y, total)
    made = keras.Model(inputs, nk.SwiGLU(limit=3.0)(keras.layers.Dense(8)(y)))
    assert made.output_shape == (None, 4)
    made.compile("adam", "mse")
    losses = made.fit(x, random(4, 4), epochs=5, verbose=0).history["loss"]
    assert losses[-1] < losses[0], losses
    with tempfile.TemporaryDirectory() as folder:
        made.save(f"{folder}/a.keras")
        again = keras.models.load_model(f"{folder}/a.keras")
    np.testing.assert_array_equal(again.predict(x, verbose=0), made.predict(x, verbose=0))


@check
def errors(keras: Any, nk: Any) -> None:
    for make, match in (
        (lambda: nk.LayerNormalization(activation="gulu"), "LayerNormalization: activation is 'gulu'; expected one of"),
        (lambda: nk.SwiGLU("halves"), "SwiGLU: layout is 'halves'; expected 'split' or 'interleaved'"),
        (lambda: nk.GroupNormalization(3)(random(2, 4)), "Number of groups"),
        (lambda: nk.SwiGLU()(random(2, 5)), "gate"),
        (
            lambda: nk.SwiGLU()(keras.Input((5,))),
            "SwiGLU: inputs have 5 entries along axis -1; expected an even number",
        ),
        (lambda: nk.GEGLU(axis=9)(keras.Input((5,))), "GEGLU: axis is 9 and inputs are 2-D; expected one of"),
        (lambda: nk.GEGLU()(keras.Input((5,)), keras.Input((4,))), "GEGLU: up has shape (None, 4); expected (None, 5)"),
        (
            lambda: nk.AddRMSNormalization()(keras.Input((3, 5)), keras.Input((5,))),
            "AddRMSNormalization: residual has shape (None, 5); expected (None, 3, 5), the shape of inputs",
        ),
    ):
        try:
            make()
        except Exception as error:  # of the backend's own kind
            assert match in str(error), error
        else:
            raise AssertionError(f"no error: {match}")


@check
def compilation(keras: Any, nk: Any) -> None:
    """XLA is left out where it cannot call back to Python, and used elsewhere."""
    layers = (nk.LayerNormalization(), nk.SwiGLU())
    assert all(layer.supports_jit == (keras.backend.backend() != "tensorflow") for layer in layers)


@check
def examples(keras: Any, nk: Any) -> None:
    import doctest
    import importlib

    for name in ("normact.keras", "normact.keras.layers", "normact.keras.fused_layers"):
        module = importlib.import_module(name)
        assert doctest.testmod(module).failed == 0, name
    assert all(getattr(nk, name).__doc__ for name in nk.__all__)


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras

    import normact.keras as nk

    found: dict[str, str] = {}
    output, sys.stdout = sys.stdout, sys.stderr
    for name, function in CHECKS.items():
        try:
            function(keras, nk)
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
    json.dump(found, output)
    output.flush()  # what a framework does at the end of the process may leave it unwritten


if __name__ == "__main__":
    main()
