# SPDX-License-Identifier: Apache-2.0
"""Run the functions of normact.jax on the problems of the other tests, against the same expected values and bounds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.experimental
import numpy as np

import activation_checks
import channel_cases
import channel_checks
import checks
import normact.jax as nj
from activation_cases import GatedProblem, expected, gated_expected
from activation_cases import Problem as ActivationProblem
from cases import Problem as RowProblem
from cases import expected_backward_from, expected_forward
from devices import NUMPY_DTYPES, NumpyDevice

#: Makes float64 arrays possible for the time of a test.
enable_x64: Any = getattr(jax if hasattr(jax, "enable_x64") else jax.experimental, "enable_x64")  # noqa: B009


@contextlib.contextmanager
def quick_compilation() -> Iterator[None]:
    """XLA compiles a third faster without what makes its own operations fast."""
    name = "jax_disable_most_optimizations"
    before = jax.config.read(name)
    jax.config.update(name, True)
    yield
    jax.config.update(name, before)


class JaxDevice(NumpyDevice):
    """JAX arrays, where JAX puts them."""

    name = "jax"

    def array(self, values: np.ndarray, dtype: str) -> Any:
        return jax.numpy.asarray(super().array(values, dtype), dtype=NUMPY_DTYPES[dtype])


FROM_OUTPUT = ("relu", "sigmoid", "tanh")
JAX, NUMPY = JaxDevice(), NumpyDevice()


def assert_same_bits(found: Any, want: np.ndarray) -> None:
    """That JAX on a CPU gave what NumPy's arrays gave: it is the same kernel."""
    if jax.default_backend() == "cpu":
        np.testing.assert_array_equal(JAX.bits(found), NUMPY.bits(want))


def _run(function: Callable[..., Any], tensors: list[Any], seeds: list[Any]) -> tuple[tuple[Any, ...], list[Any]]:
    """The results of a jitted call, and the gradients of the tensors that are there."""
    there = [tensor is not None for tensor in tensors]

    def of_present(*present: Any) -> tuple[Any, ...]:
        each = iter(present)
        found = function(*(next(each) if given else None for given in there))
        return found if isinstance(found, tuple) else (found,)

    @jax.jit
    def step(present: list[Any], cotangents: list[Any]) -> Any:
        found, pull = jax.vjp(of_present, *present)
        rest = [jax.numpy.zeros_like(array) for array in found[len(cotangents) :]]
        return found, pull((*cotangents, *rest))

    found, gradients = step([tensor for tensor in tensors if tensor is not None], seeds)
    each = iter(gradients)
    return found, [next(each) if given else None for given in there]


def _compare(found: dict[str, Any], want: dict[str, Any], where: str) -> None:
    for name, array in found.items():
        if array is None:
            assert name not in want, where
            continue
        assert array.dtype.name == want[name].dtype, f"{name}; {where}"
        assert array.shape == want[name].values.shape, f"{name}; {where}"
        checks.assert_within(JAX.values(array), want[name], f"{name}; {where}")


def check_row(problem: RowProblem) -> None:
    given = checks.arrays(JAX, problem)
    function = getattr(nj, problem.kind)

    def norm(x: Any, weight: Any, bias: Any, residual: Any) -> Any:
        options = {"axis": problem.axis, "eps": problem.eps, "weight_offset": problem.weight_offset}
        return function(x, weight, bias, residual=residual, **options, **problem.activation_options)

    seeds = [given.dy] if given.residual is None else [given.dy, given.dresidual]
    found, gradients = _run(norm, [given.x, given.weight, given.bias, given.residual], seeds)
    where = f"{problem} {problem.activation_options}"
    names = ("y",) if given.residual is None else ("y", "residual")
    _compare(dict(zip(names, found, strict=True)), expected_forward(problem), where)
    # The backward reads the statistics that the kernel has found.
    own = checks.forward(problem, given, return_stats=True)
    np.testing.assert_array_equal(JAX.bits(found[0]), JAX.bits(own.y))
    mean = np.zeros(problem.row_shape) if own.mean is None else JAX.values(own.mean)
    want = expected_backward_from(problem, mean, JAX.values(own.rstd))
    dx, dweight, dbias, dresidual = gradients
    _compare({"dx": dx, "dweight": dweight, "dbias": dbias}, want, where)
    if problem.sums != problem.dtype:
        _compare({"daddend": dresidual}, want, where)
    elif dresidual is not None:
        np.testing.assert_array_equal(JAX.bits(dresidual), JAX.bits(dx))


def check_activation(problem: ActivationProblem) -> None:
    given = activation_checks.arrays(JAX, problem)
    kind = problem.kind

    def function(x: Any, bias: Any) -> Any:
        return nj.activation(x, kind.name, bias=bias, axis=problem.axis, **kind.numbers)

    (y,), (dx, dbias) = _run(function, [given.x, given.bias], [given.dy])
    if kind.name in FROM_OUTPUT:  # whose backward reads a rounded y
        _compare({"y": y}, expected(problem), str(problem))
        plain = activation_checks.arrays(NUMPY, problem)
        own = activation_checks.backward(problem, plain, y=activation_checks.forward(problem, plain))
        assert_same_bits(dx, own.dx)
        assert (dbias is None) == (own.dbias is None)
        if dbias is not None:
            assert_same_bits(dbias, own.dbias)
    else:
        _compare({"y": y, "dx": dx, "dbias": dbias}, expected(problem), str(problem))


def check_gated(problem: GatedProblem) -> None:
    given = activation_checks.gated_arrays(JAX, problem)
    pair = isinstance(given.bias, tuple)

    def function(gate: Any, up: Any, first: Any, second: Any) -> Any:
        bias = (first, second) if pair else first
        return nj.gated(gate, up, bias=bias, **activation_checks.gated_options(problem))

    biases = list(given.bias) if pair else [given.bias, None]
    (y,), (dgate, dup, *dbiases) = _run(function, [given.gate, given.up, *biases], [given.dy])
    if problem.packed:
        found = {"y": y, "dx": dgate, "dbias": dbiases[0]}
    else:
        found = {"y": y, "dgate": dgate, "dup": dup, "dgate_bias": dbiases[0], "dup_bias": dbiases[1]}
    _compare(found, gated_expected(problem), str(problem))


def channel_function(problem: channel_cases.Problem, running: tuple[Any, Any]) -> Callable[..., Any]:
    """The norm of a problem as a function of x, weight, bias and addend."""
    kind = problem.activation
    options: dict[str, Any] = {"channel_axis": problem.channel_axis, "eps": problem.eps}
    if kind is not None:
        options |= {"activation": kind.name, "alpha": kind.alpha}

    def function(x: Any, weight: Any, bias: Any, addend: Any) -> Any:
        if problem.op == "group_norm":
            return nj.group_norm(x, problem.num_groups, weight, bias, **options)
        kept: dict[str, Any] = options | {"momentum": problem.momentum}
        if problem.op == "instance_norm":
            return nj.instance_norm(x, weight, bias, *running, use_input_stats=problem.training, **kept)
        return nj.batch_norm(x, weight, bias, *running, training=problem.training, addend=addend, **kept)

    return function


def check_channel(problem: channel_cases.Problem) -> None:
    given = channel_checks.arrays(JAX, problem)
    function = channel_function(problem, (given.running_mean, given.running_var))
    found, gradients = _run(function, [given.x, given.weight, given.bias, given.addend], [given.dy])
    where = f"{problem} {problem.activation}"
    _compare({"y": found[0]}, channel_cases.expected_forward(problem), where)
    assert len(found) == (3 if problem.running and problem.training else 1), where
    if len(found) == 3:
        new: dict[str, Any] = dict(zip(("running_mean", "running_var"), found[1:], strict=True))
        _compare(new, channel_cases.expected_running(problem), where)
    own = channel_checks.forward(problem, channel_checks.arrays(NUMPY, problem), return_stats=True)
    assert_same_bits(found[0], own.y)
    want = channel_cases.expected_backward_from(problem, own.mean, own.rstd)
    names = ("dx", "dweight", "dbias", "daddend")
    _compare(dict(zip(names, gradients, strict=True)), want, where)
