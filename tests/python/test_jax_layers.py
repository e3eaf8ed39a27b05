# SPDX-License-Identifier: Apache-2.0
"""The layers for Flax beside Flax's own: parameters, results, statistics and gradients are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flax")

import jax
import jax.numpy as jnp
from flax import linen, nnx

import normact.jax as nj
import normact.jax.linen
import normact.jax.nnx
from jax_checks import enable_x64

nl: Any = normact.jax.linen
nn: Any = normact.jax.nnx
X = jnp.asarray(np.random.default_rng(3).standard_normal((4, 5, 6, 8)) * 2 + 1, "float32")

LINEN = [
    ("LayerNorm", {}),
    ("LayerNorm", {"reduction_axes": (1, 2, 3), "epsilon": 1e-3}),
    ("LayerNorm", {"reduction_axes": (1, -1), "feature_axes": (1, -1)}),
    ("LayerNorm", {"use_bias": False}),
    ("RMSNorm", {}),
    ("RMSNorm", {"use_scale": False}),
    ("GroupNorm", {"num_groups": 4}),
    ("GroupNorm", {"num_groups": None, "group_size": 2, "reduction_axes": (-2, -1)}),
    ("InstanceNorm", {}),
    ("InstanceNorm", {"feature_axes": 1}),
    ("BatchNorm", {"use_running_average": False}),
    ("BatchNorm", {"use_running_average": True, "axis": 1}),
]
NNX = [
    ("LayerNorm", {}),
    ("RMSNorm", {}),
    ("GroupNorm", {"num_groups": 4}),
    ("InstanceNorm", {}),
    ("BatchNorm", {"momentum": 0.8}),
    ("BatchNorm", {"use_running_average": True}),
    ("BatchNorm", {"use_scale": False, "use_bias": False}),
    ("BatchNorm", {"use_scale": False, "use_bias": False, "use_running_average": True}),
    ("BatchNorm", {"param_dtype": jnp.bfloat16}),
]
DTYPES = [(None, "float32"), (None, "bfloat16"), ("bfloat16", "float32")]
every_dtype = pytest.mark.parametrize(("dtype", "input_dtype"), DTYPES)


def identifier(value: Any) -> str:
    return "-".join(map(str, value.values())) if isinstance(value, dict) else str(value)


def assert_close(ours: Any, theirs: Any) -> None:
    """Flax rounds each step to float32; where the result is bfloat16, both round it to that once."""
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for found, want in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert found.dtype == want.dtype
        bound = 2**-7 if found.dtype == jnp.bfloat16 else 1e-5
        np.testing.assert_allclose(np.asarray(found, "f8"), np.asarray(want, "f8"), rtol=bound, atol=bound)


@every_dtype
@pytest.mark.parametrize(("name", "options"), LINEN, ids=identifier)
def test_linen(name: str, options: dict[str, Any], dtype: Any, input_dtype: str) -> None:
    x = X.astype(input_dtype)
    theirs, ours = (getattr(module, name)(dtype=dtype, **options) for module in (linen, nl))
    variables = theirs.init(jax.random.key(1), x)
    assert_close(ours.init(jax.random.key(1), x), variables)
    drawn = np.random.default_rng(4)
    variables = jax.tree.map(lambda leaf: leaf + jnp.asarray(drawn.uniform(size=leaf.shape), leaf.dtype), variables)
    mutable = ["batch_stats"] if name == "BatchNorm" else []
    assert_close(ours.apply(variables, x, mutable=mutable), theirs.apply(variables, x, mutable=mutable))


@every_dtype
@pytest.mark.parametrize(("name", "options"), NNX, ids=identifier)
def test_nnx(name: str, options: dict[str, Any], dtype: Any, input_dtype: str) -> None:
    x = X.astype(input_dtype)
    theirs, ours = (getattr(module, name)(8, dtype=dtype, rngs=nnx.Rngs(0), **options) for module in (nnx, nn))
    drawn = np.random.default_rng(4)
    state = jax.tree.map(lambda leaf: leaf + jnp.asarray(drawn.uniform(size=leaf.shape), leaf.dtype), nnx.state(theirs))
    for layer in (theirs, ours):
        nnx.update(layer, state)
    found, want = ours(x), theirs(x)
    if dtype is not None and options.get("use_running_average"):
        # Flax rounds the running statistics to bfloat16 too, which moves x - mean by units of mean.
        np.testing.assert_allclose(np.asarray(found, "f8"), np.asarray(want, "f8"), rtol=2**-5, atol=2**-5)
    else:
        assert_close(found, want)
    assert_close(nnx.to_pure_dict(nnx.state(ours)), nnx.to_pure_dict(nnx.state(theirs)))


@pytest.mark.parametrize("shape", [(0, 6, 8), (4, 0, 8), (0, 0, 8)])
@pytest.mark.parametrize("axes", [None, (-1,), (-2, -1), (0, 1, 2)])
def test_group_norm_of_nothing(shape: tuple[int, ...], axes: Any) -> None:
    x, options = jnp.zeros(shape), {"num_groups": 4, "reduction_axes": axes}
    assert nn.GroupNorm(8, rngs=nnx.Rngs(0), **options)(x).shape == shape
    assert nl.GroupNorm(**options).init_with_output(jax.random.key(0), x)[0].shape == shape


@pytest.mark.parametrize("axes", [None, (0,)])
def test_group_norm_of_one_sample(axes: Any) -> None:
    """Linen's of one axis; Flax's nnx refuses it."""
    x, options = X[0, 0, 0], {"num_groups": 4, "reduction_axes": axes}
    found, want = (m.GroupNorm(**options).init_with_output(jax.random.key(0), x) for m in (nl, linen))
    assert_close(found, want)
    with pytest.raises(ValueError, match=r"^GroupNorm: x has 1 dimensions; expected at least 2"):
        nn.GroupNorm(8, num_groups=4, rngs=nnx.Rngs(0))(x)


@pytest.mark.parametrize("name", ["LayerNorm", "BatchNorm"])
def test_gradients(name: str) -> None:
    options = {"use_running_average": False} if name == "BatchNorm" else {}
    theirs, ours = (getattr(module, name)(**options) for module in (linen, nl))
    variables = theirs.init(jax.random.key(1), X)

    def loss(layer: Any, variables: Any, x: Any) -> Any:
        found = layer.apply(variables, x, mutable=["batch_stats"])[0]
        return jnp.sin(3 * found).sum()

    found, want = (
        jax.jit(jax.grad(lambda v, x, layer=layer: loss(layer, v, x), argnums=(0, 1)))(variables, X)
        for layer in (ours, theirs)
    )
    for ours_leaf, theirs_leaf in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(ours_leaf, theirs_leaf, rtol=1e-3, atol=1e-3)


def test_batch_norm_of_one_value_a_channel() -> None:
    """As a batch that only shows the shapes has it."""
    x = jnp.asarray([[1.0, -2.0, 3.0]])
    results = []
    for layers in (nl, linen):
        layer = layers.BatchNorm(use_running_average=False)
        variables = layer.init(jax.random.key(0), x)
        apply = lambda x, layer=layer, v=variables: layer.apply(v, x, mutable=["batch_stats"])  # noqa: E731
        y, updates = apply(x)
        gradient = jax.grad(lambda x, apply=apply: (apply(x)[0] * x).sum())(x)
        results.append((y, updates["batch_stats"], gradient))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6), *results)


def test_batch_norm_of_nothing() -> None:
    """What has no statistics does not move the running ones."""
    x, layer = jnp.ones((0, 3)), nn.BatchNorm(3, rngs=nnx.Rngs(0))
    assert layer(x).shape == (0, 3)
    variables = nl.BatchNorm(use_running_average=False).init(jax.random.key(0), jnp.ones((2, 3)))
    kept = nl.BatchNorm(use_running_average=False).apply(variables, x, mutable=["batch_stats"])[1]["batch_stats"]
    for mean, variance in ((layer.mean[...], layer.var[...]), (kept["mean"], kept["var"])):
        np.testing.assert_array_equal(mean, np.zeros(3))
        np.testing.assert_array_equal(variance, np.ones(3))


@pytest.mark.parametrize("dtype", [None, "float32", "float64"])
def test_dtypes_of_statistics(dtype: Any) -> None:
    """They are those of Flax: float64 for what is computed in that, but for nnx."""
    with enable_x64(True):
        x = np.asarray(X[..., :3], "float64")
        results, states = [], []
        for layers in (nl, linen):
            layer = layers.BatchNorm(use_running_average=False, dtype=dtype)
            variables = layer.init(jax.random.key(0), x)
            results.append(layer.apply(variables, x, mutable=["batch_stats"]))
        for layers in (nn, nnx):
            layer = layers.BatchNorm(3, dtype=dtype, rngs=nnx.Rngs(0))
            states.append((layer(x), layer.mean[...], layer.var[...]))
        assert_close(*results)
        assert_close(*states)


def test_batch_norm_of_members_of_a_mapped_batch() -> None:
    x = X.reshape(-1, 8)
    results = []
    for layers in (nl, linen):
        layer = layers.BatchNorm(use_running_average=False, axis_name="batch")
        variables = layers.BatchNorm(use_running_average=True).init(jax.random.key(0), x)
        member = lambda x, layer=layer, v=variables: layer.apply(v, x, mutable=["batch_stats"])[0]  # noqa: E731
        results.append(jax.vmap(member, axis_name="batch")(x))
    np.testing.assert_allclose(*results, rtol=2e-5, atol=2e-5)


def test_an_activation_is_applied_inside() -> None:
    layer = nl.BatchNorm(use_running_average=False, activation="relu")
    plain = nl.BatchNorm(use_running_average=False)
    variables = plain.init(jax.random.key(0), X)
    found, _ = layer.apply(variables, X, mutable=["batch_stats"])
    want, _ = plain.apply(variables, X, mutable=["batch_stats"])
    np.testing.assert_array_equal(found, nj.relu(want))
    ours, theirs = nn.LayerNorm(8, rngs=nnx.Rngs(0), activation="gelu"), nnx.LayerNorm(8, rngs=nnx.Rngs(0))
    assert_close(ours(X), jax.nn.gelu(theirs(X), approximate=False))


def test_nnx_layers_train() -> None:
    """Under nnx.jit and nnx.grad, with statistics that are updated."""
    layer = nn.BatchNorm(8, rngs=nnx.Rngs(0), activation="silu")

    @nnx.jit
    def step(layer: Any, x: Any) -> Any:
        return nnx.grad(lambda layer, x: jnp.square(layer(x)).sum())(layer, x)

    gradients = step(layer, X)
    assert {leaf.shape for leaf in jax.tree.leaves(gradients)} == {(8,)}
    assert np.abs(np.asarray(layer.mean[...])).min() > 0


def test_batch_norm_over_a_mapped_axis() -> None:
    """Both kinds of layers, and Flax's own, on a divided batch."""
    parts = X.reshape(2, 2, 5, 6, 8)
    layers = [module.BatchNorm(use_running_average=False, axis_name="part") for module in (nl, linen)]
    variables = linen.BatchNorm(use_running_average=False).init(jax.random.key(1), X)
    found, want = (
        jax.vmap(lambda x, layer=layer: layer.apply(variables, x, mutable=["batch_stats"]), axis_name="part")(parts)
        for layer in layers
    )
    assert_close(found, want)


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        (lambda: nl.LayerNorm(axis_name="i"), r"^LayerNorm: axis_name is 'i'; expected None"),
        (lambda: nl.BatchNorm(use_running_average=True, axis_index_groups=[[0]]), r"^BatchNorm: axis_index_groups is"),
        (lambda: nl.LayerNorm(reduction_axes=(1,)), r"^LayerNorm: feature_axes is -1 and reduction_axes is \(1,\)"),
        (lambda: nl.GroupNorm(4, reduction_axes=(1, 3)), r"^GroupNorm: reduction_axes is \(1, 3\); expected the last"),
        (lambda: nl.GroupNorm(4, group_size=2), r"^GroupNorm: num_groups is 4 and group_size is 2"),
        (
            lambda: nl.BatchNorm(use_running_average=True, axis=(1, 2)),
            r"^BatchNorm: axis is \(1, 2\); expected one",
        ),
        (lambda: nl.GroupNorm(None, group_size=0), r"^GroupNorm: group_size is 0; expected a divisor of 8"),
        (lambda: nl.GroupNorm(None, group_size=-4), r"^GroupNorm: group_size is -4; expected a divisor of 8"),
        (lambda: nl.InstanceNorm(feature_axes=0), r"^InstanceNorm: feature_axes is 0, which counts samples"),
    ],
)
def test_what_the_kernels_do_not_have_is_refused(layer: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        layer().init(jax.random.key(0), X)


def test_too_few_dimensions() -> None:
    for layer, x, least in ((nl.GroupNorm(4), X[0, 0, 0, 0], 1), (nl.InstanceNorm(), X[0, 0, 0], 2)):
        name, found = type(layer).__name__, f"x has {x.ndim} dimensions; expected at least {least}"
        with pytest.raises(ValueError, match=f"^{name}: {found}"):
            layer.init(jax.random.key(0), x)


def test_a_flag_is_no_traced_value() -> None:
    variables = nl.BatchNorm(use_running_average=True).init(jax.random.key(0), X)
    layer, sentence = (
        nn.BatchNorm(8, rngs=nnx.Rngs(0)),
        r"^BatchNorm: use_running_average is of type .*Tracer; expected",
    )
    with pytest.raises(TypeError, match=sentence):
        jax.jit(lambda flag: nl.BatchNorm().apply(variables, X, use_running_average=flag))(True)
    with pytest.raises(TypeError, match=sentence):
        nnx.jit(lambda layer, flag: layer(X, use_running_average=flag))(layer, True)


def test_nnx_group_norm_knows_its_channels() -> None:
    """Also without parameters that would have their number."""
    layer = nn.GroupNorm(16, num_groups=None, group_size=8, use_bias=False, use_scale=False, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"^GroupNorm: x has 8 channels; expected 16, as the layer has"):
        layer(X)


def test_nnx_refuses_the_same() -> None:
    with pytest.raises(ValueError, match=r"^RMSNorm: axis_name is 'i'; expected None"):
        nn.RMSNorm(8, axis_name="i", rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"^LayerNorm: mask is of shape \(.*\); expected None"):
        nn.LayerNorm(8, rngs=nnx.Rngs(0))(X, mask=X > 0)
