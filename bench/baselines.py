# SPDX-License-Identifier: Apache-2.0
"""The rivals. Each builds, for a case and one set of operands, the call that its own users would make.

A rival that is not installed, or that has no such operation, raises MissingError; the record says so. All outputs are
allocated by the rival, since none of them (but oneDNN) takes them from the caller.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from types import ModuleType

import torch
import torch._functorch.config as functorch_config

from bench.cases import Case
from bench.contest import Build, MissingError, Run
from bench.formulas import ACTIVATIONS, BACKWARDS, Forward, composed
from bench.operands import Operands, Outputs


def require(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:  # a half-installed package may fail in any way
        raise MissingError(f"{module}: {error}".splitlines()[0]) from error


def _last_axis_only(case: Case, library: str) -> None:
    if case.permuted:
        raise MissingError(f"{library} normalises the last axis only")


def _forward_run(forward: Forward, o: Operands) -> Run:
    def run() -> Outputs:
        with torch.no_grad():
            y, total = forward(o.x, o.residual if o.addend is None else o.addend, o.weight, o.bias)
        return {"y": y, "residual": total}

    return run


def _autograd_run(forward: Forward, o: Operands) -> Run:
    """The backward that autograd recorded for `forward`.

    With a residual, x of the operands is already the sum, so it goes in as x + 0. Only the gradient of x is asked for,
    as that of the residual is the same tensor; of an addend, which is added after the norm, both are, and of a residual
    in another dtype than x, where the sum is 0 + the residual.
    """
    named = {"x": o.x, "weight": o.weight, "bias": o.bias, "addend": o.addend}
    if o.dx is not None and o.dx.dtype != o.x.dtype:
        named |= {"x": torch.zeros_like(o.dx), "addend": o.x}
    inputs = {name: t.detach().requires_grad_() for name, t in named.items() if t is not None}
    zero = None if o.dresidual is None else torch.zeros_like(o.x)
    with torch.enable_grad():
        y, total = forward(inputs["x"], inputs.get("addend", zero), inputs.get("weight"), inputs.get("bias"))
    heads, gradients = ([y], [o.dy]) if total is None else ([y, total], [o.dy, o.dresidual])

    def run() -> Outputs:
        found = torch.autograd.grad(heads, list(inputs.values()), gradients, retain_graph=True)
        return {f"d{name}": gradient for name, gradient in zip(inputs, found, strict=True)}

    return run


def _run(forward: Forward, case: Case, o: Operands) -> Run:
    return _forward_run(forward, o) if case.direction == "forward" else _autograd_run(forward, o)


# ---- PyTorch --------------------------------------------------------------------------------------------------------


def torch_eager(case: Case, o: Operands) -> Run:
    if case.op in ("layer_norm", "add_layer_norm") and case.direction == "backward" and not case.permuted:
        return _torch_layer_norm_backward(case, o)
    if case.family == "pointwise" and case.direction == "backward" and case.kind in BACKWARDS:
        return _torch_activation_backward(case, o)
    return _run(composed(case), case, o)


def _torch_activation_backward(case: Case, o: Operands) -> Run:
    """The operator that autograd would call, without autograd's own time."""
    backward = BACKWARDS[case.kind]
    y = o.x if case.operation.from_output else ACTIVATIONS[case.kind](o.x)
    return lambda: {"dx": backward(o.dy, o.x, y)}


def _torch_layer_norm_backward(case: Case, o: Operands) -> Run:
    """The operator that autograd would call, without autograd's own time."""
    backward = torch.ops.aten.native_layer_norm_backward.default
    mean, rstd = o.mean.unsqueeze(1), o.rstd.unsqueeze(1)
    if o.x.device.type == "cpu" and o.x.dtype in (torch.bfloat16, torch.float16):
        mean, rstd = mean.to(o.x.dtype), rstd.to(o.x.dtype)  # what its CPU forward saves
    mask = [True, True, True]

    def run() -> Outputs:
        dx, dweight, dbias = backward(o.dy, o.x, [case.cols], mean, rstd, o.weight, o.bias, mask)
        if o.dresidual is not None:
            dx = dx + o.dresidual
        return {"dx": dx, "dweight": dweight, "dbias": dbias}

    return run


_compiled: dict[Case, Forward] = {}  # of the case in hand; sets of operands share one compilation


def _refuse_from_output(case: Case) -> None:
    """For rivals whose backward is what their framework derives from the forward."""
    if case.operation.from_output:
        raise MissingError("derives its backward from x")


def torch_compiled(case: Case, o: Operands) -> Run:
    _refuse_from_output(case)
    if case not in _compiled:
        _compiled.clear()
        torch._dynamo.reset()  # no recompilation limit, no dynamic shapes learned from the last case
        functorch_config.donated_buffer = False  # a backward is replayed, so it keeps what it reads
        _compiled[case] = torch.compile(composed(case), dynamic=False)
    return _run(_compiled[case], case, o)


# ---- GPU libraries --------------------------------------------------------------------------------------------------


def liger(case: Case, o: Operands) -> Run:
    _last_axis_only(case, "Liger-Kernel")
    if case.op == "layer_norm":
        return _liger_layer_norm(case, o, require("liger_kernel.ops.layer_norm"))
    if case.op == "rms_norm":
        return _liger_rms_norm(case, o, require("liger_kernel.ops.rms_norm"))
    if case.op == "add_rms_norm":
        return _liger_add_rms_norm(case, o, require("liger_kernel.ops.fused_add_rms_norm"))
    if case.family != "norm":
        raise MissingError(f"no benchmark of {case.op} calls Liger-Kernel")
    raise MissingError(f"Liger-Kernel has no {case.op}")


def _liger_layer_norm(case: Case, o: Operands, ops: ModuleType) -> Run:
    if case.direction == "forward":
        return lambda: {"y": ops.layer_norm_forward(o.x, o.weight, o.bias, case.eps)[0]}
    names = ("dx", "dweight", "dbias")
    return lambda: dict(zip(names, ops.layer_norm_backward(o.dy, o.x, o.weight, o.bias, o.mean, o.rstd), strict=True))


def _liger_rms_norm(case: Case, o: Operands, ops: ModuleType) -> Run:
    def forward():
        return ops.rms_norm_forward(o.x, o.weight, case.eps, 0.0, "llama", None)

    if case.direction == "forward":
        return lambda: {"y": forward()[0]}
    _, _, rstd, block, warps, mode = forward()
    dy = o.dy.clone()  # overwritten with dx, which is Liger's default; the check looks at the first call only

    def run() -> Outputs:
        dx, dweight = ops.rms_norm_backward(dy, o.x, o.weight, rstd, 0.0, mode, block, warps, True, None)
        return {"dx": dx, "dweight": dweight}

    return run


def _liger_add_rms_norm(case: Case, o: Operands, ops: ModuleType) -> Run:
    def forward(residual):
        return ops.fused_add_rms_norm_forward(o.x, residual, o.weight, case.eps, 0.0, "llama")

    if case.direction == "forward":
        return lambda: dict(zip(("y", "residual"), forward(o.residual), strict=False))
    _, total, rstd, block, warps, stages, mode = forward(torch.zeros_like(o.x))

    def run() -> Outputs:
        dx, _, dweight = ops.fused_add_rms_norm_backward(
            o.dy, o.dresidual, total, o.weight, rstd, 0.0, mode, block, warps, stages, False
        )
        return {"dx": dx, "dweight": dweight}

    return run


def quack(case: Case, o: Operands) -> Run:
    if case.family != "norm" or case.operation.mixed:
        raise MissingError(f"no benchmark of {case.op} calls QuACK")
    _last_axis_only(case, "QuACK")
    ops = require("quack.rmsnorm")
    if case.op == "add_layer_norm" or case.operation.applied:
        raise MissingError(f"QuACK has no {case.op}")
    forward = case.direction == "forward"
    if case.op == "layer_norm":  # takes fp32 parameters only
        weight, bias = o.weight.float(), o.bias.float()
        if forward:
            return lambda: {"y": ops.layernorm_fwd(o.x, weight, bias, case.eps, return_rstd=True, return_mean=True)[0]}
        names = ("dx", "dweight", "dbias")
        return lambda: dict(zip(names, ops.layernorm_bwd(o.x, weight, o.dy, o.rstd, o.mean), strict=True))
    if forward:
        kwargs = {"residual": o.residual, "eps": case.eps, "store_rstd": True}
        return lambda: dict(zip(("y", "residual"), ops.rmsnorm_fwd(o.x, o.weight, **kwargs), strict=False))
    return lambda: dict(zip(("dx", "dweight"), ops.rmsnorm_bwd(o.x, o.weight, o.dy, o.rstd, o.dresidual), strict=False))


def apex(case: Case, o: Operands) -> Run:
    if case.op != "layer_norm":
        raise MissingError(f"Apex FastLayerNorm has no {case.op}")
    _last_axis_only(case, "Apex")
    module = require("apex.contrib.layer_norm").FastLayerNorm(case.cols, eps=case.eps).to(o.x)

    def forward(x, residual, weight, bias):
        return torch.func.functional_call(module, {"weight": weight, "bias": bias}, (x,)), None

    return _run(forward, case, o)


# ---- CPU libraries --------------------------------------------------------------------------------------------------


def jax_jit(case: Case, o: Operands) -> Run:
    jax = require("jax")
    if o.x.device.type == "cuda":
        raise MissingError("JAX is measured on the CPU only")
    if case.family == "channel" or case.operation.mixed:
        raise MissingError(f"no benchmark of {case.op} calls JAX")
    _refuse_from_output(case)
    forward = _jax_norm(case, jax) if case.family == "norm" else _jax_activation(case, jax)
    given = {"x": o.x, "weight": o.weight, "bias": o.bias}
    given = {name: jax.dlpack.from_dlpack(t) for name, t in given.items() if t is not None}
    if case.direction == "forward":
        function, arrays = jax.jit(forward), given
        if o.residual is not None:
            arrays = arrays | {"residual": jax.dlpack.from_dlpack(o.residual)}
        return lambda: dict(zip(("y", "residual"), jax.block_until_ready(function(**arrays)), strict=False))
    dy, dresidual = (None if t is None else jax.dlpack.from_dlpack(t) for t in (o.dy, o.dresidual))

    def gradients(dy, dresidual, given):
        _, pull = jax.vjp(lambda given: forward(**given)[0], given)
        (found,) = pull(dy)
        return found if dresidual is None else found | {"x": found["x"] + dresidual}

    function = jax.jit(gradients)

    def run() -> Outputs:
        found = jax.block_until_ready(function(dy, dresidual, given))
        return {f"d{name}": gradient for name, gradient in found.items()}

    return run


def _jax_norm(case: Case, jax: ModuleType) -> Callable[..., tuple]:
    jnp = jax.numpy
    act = _jax_function(case.operation.applied or "identity", jax)
    of_parameters = [size if axis in case.axes else 1 for axis, size in enumerate(case.shape)]

    def norm(x, weight, bias=None, residual=None):
        s = x if residual is None else x + residual
        s32 = s.astype(jnp.float32)
        mean = s32.mean(case.axes, keepdims=True) if case.kind == "layer_norm" else 0.0
        rstd = jax.lax.rsqrt(jnp.square(s32 - mean).mean(case.axes, keepdims=True) + case.eps)
        y = (s32 - mean) * rstd * weight.astype(jnp.float32).reshape(of_parameters)
        y = act((y if bias is None else y + bias.astype(jnp.float32).reshape(of_parameters)).astype(x.dtype))
        return (y,) if residual is None else (y, s)

    return norm


def _jax_function(kind: str, jax: ModuleType) -> Callable:
    nn, jnp = jax.nn, jax.numpy
    own = {
        "identity": jnp.copy,
        "squared_relu": lambda x: jnp.square(nn.relu(x)),
        "gelu": lambda x: nn.gelu(x, approximate=False),
        "gelu_tanh": lambda x: nn.gelu(x, approximate=True),
        "quick_gelu": lambda x: x * nn.sigmoid(1.702 * x),
        "tanh": jnp.tanh,
        "hardswish": nn.hard_swish,
        "hardsigmoid": nn.hard_sigmoid,
    }
    return own[kind] if kind in own else getattr(nn, kind)


def _jax_activation(case: Case, jax: ModuleType) -> Callable[..., tuple]:
    jnp, layout = jax.numpy, case.operation.layout
    act = _jax_function(case.operation.activation, jax)
    trailing = (1,) * (len(case.shape) - 1 - case.axis % len(case.shape))

    def activation(x, bias=None):
        if layout:
            gate, up = jnp.split(x, 2, -1) if layout == "split" else (x[..., 0::2], x[..., 1::2])
            return (act(gate) * up,)
        return (act(x if bias is None else x + bias.reshape(-1, *trailing)),)

    return activation


def onednn(case: Case, o: Operands) -> Run:
    from bench import onednn as library

    _last_axis_only(case, "oneDNN")
    return library.build(case, o)


RIVALS: dict[str, Build] = {
    "torch": torch_eager,
    "compile": torch_compiled,
    "liger": liger,
    "quack": quack,
    "apex": apex,
    "jax": jax_jit,
    "onednn": onednn,
}
DISTRIBUTIONS = ("torch", "triton", "liger-kernel", "quack-kernels", "apex", "jax", "onednn-cpu-gomp", "numpy")


def versions() -> dict[str, str | None]:
    """Of every package that a rival comes from; None where it is not installed."""
    found: dict[str, str | None] = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
