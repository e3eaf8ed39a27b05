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
from torch.nn import functional

from bench.cases import Case
from bench.contest import Build, MissingError, Run
from bench.operands import Operands, Outputs

Forward = Callable[..., tuple[torch.Tensor, torch.Tensor | None]]  # (x, residual, weight, bias) -> (y, sum)


def require(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:  # a half-installed package may fail in any way
        raise MissingError(f"{module}: {error}".splitlines()[0]) from error


def _forward_run(forward: Forward, o: Operands) -> Run:
    def run() -> Outputs:
        with torch.no_grad():
            y, total = forward(o.x, o.residual, o.weight, o.bias)
        return {"y": y, "residual": total}

    return run


def _autograd_run(forward: Forward, o: Operands) -> Run:
    """The backward that autograd recorded for `forward`.

    With a residual, x of the operands is already the sum, so it goes in as x + 0. Only the gradient of x is asked for,
    as that of the residual is the same tensor.
    """
    x, weight = o.x.detach().requires_grad_(), o.weight.detach().requires_grad_()
    bias = None if o.bias is None else o.bias.detach().requires_grad_()
    inputs = [x, weight] if bias is None else [x, weight, bias]
    zero = None if o.dresidual is None else torch.zeros_like(o.x)
    with torch.enable_grad():
        y, total = forward(x, zero, weight, bias)
    heads, gradients = ([y], [o.dy]) if total is None else ([y, total], [o.dy, o.dresidual])

    def run() -> Outputs:
        found = torch.autograd.grad(heads, inputs, gradients, retain_graph=True)
        return dict(zip(("dx", "dweight", "dbias"), found, strict=False))

    return run


def _run(forward: Forward, case: Case, o: Operands) -> Run:
    return _forward_run(forward, o) if case.direction == "forward" else _autograd_run(forward, o)


# ---- PyTorch --------------------------------------------------------------------------------------------------------


def _torch_forward(case: Case) -> Forward:
    shape, eps = (case.cols,), case.eps

    def forward(x, residual, weight, bias):
        total = None if residual is None else x + residual
        s = x if total is None else total
        if case.kind == "layer_norm":
            return functional.layer_norm(s, shape, weight, bias, eps), total
        return functional.rms_norm(s, shape, weight, eps), total

    return forward


def torch_eager(case: Case, o: Operands) -> Run:
    if case.kind == "layer_norm" and case.direction == "backward":
        return _torch_layer_norm_backward(case, o)
    return _run(_torch_forward(case), case, o)


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


def torch_compiled(case: Case, o: Operands) -> Run:
    if case not in _compiled:
        _compiled.clear()
        torch._dynamo.reset()  # no recompilation limit, no dynamic shapes learned from the last case
        functorch_config.donated_buffer = False  # a backward is replayed, so it keeps what it reads
        _compiled[case] = torch.compile(_torch_forward(case), dynamic=False)
    return _run(_compiled[case], case, o)


# ---- GPU libraries --------------------------------------------------------------------------------------------------


def liger(case: Case, o: Operands) -> Run:
    if case.op == "layer_norm":
        return _liger_layer_norm(case, o, require("liger_kernel.ops.layer_norm"))
    if case.op == "rms_norm":
        return _liger_rms_norm(case, o, require("liger_kernel.ops.rms_norm"))
    if case.op == "add_rms_norm":
        return _liger_add_rms_norm(case, o, require("liger_kernel.ops.fused_add_rms_norm"))
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
    ops = require("quack.rmsnorm")
    if case.op == "add_layer_norm":
        raise MissingError("QuACK has no add_layer_norm")
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
    module = require("apex.contrib.layer_norm").FastLayerNorm(case.cols, eps=case.eps).to(o.x)

    def forward(x, residual, weight, bias):
        return torch.func.functional_call(module, {"weight": weight, "bias": bias}, (x,)), None

    return _run(forward, case, o)


# ---- CPU libraries --------------------------------------------------------------------------------------------------


def jax_jit(case: Case, o: Operands) -> Run:
    jax = require("jax")
    jnp, from_dlpack = jax.numpy, jax.dlpack.from_dlpack
    if o.x.device.type == "cuda":
        raise MissingError("JAX is measured on the CPU only")

    def norm(x, residual, weight, bias):
        s = x if residual is None else x + residual
        s32 = s.astype(jnp.float32)
        mean = s32.mean(-1, keepdims=True) if case.kind == "layer_norm" else 0.0
        rstd = jax.lax.rsqrt(jnp.square(s32 - mean).mean(-1, keepdims=True) + case.eps)
        y = (s32 - mean) * rstd * weight.astype(jnp.float32)
        return (y if bias is None else y + bias.astype(jnp.float32)).astype(x.dtype), s

    def gradients(dy, dresidual, x, weight, bias):
        inputs = (x, weight) if bias is None else (x, weight, bias)
        _, pull = jax.vjp(lambda x, w, b=None: norm(x, None, w, b)[0], *inputs)
        dx, *rest = pull(dy)
        return (dx if dresidual is None else dx + dresidual, *rest)

    tensors = [o.x, o.residual, o.weight, o.bias] if o.dy is None else [o.dy, o.dresidual, o.x, o.weight, o.bias]
    arrays = [None if t is None else from_dlpack(t) for t in tensors]
    function = jax.jit(norm if o.dy is None else gradients)
    names = ("y", "residual") if o.dy is None else ("dx", "dweight", "dbias")
    if o.dy is None and o.residual is None:
        function = jax.jit(lambda *a: norm(*a)[:1])
    return lambda: dict(zip(names, jax.block_until_ready(function(*arrays)), strict=False))


def onednn(case: Case, o: Operands) -> Run:
    from bench import onednn as library

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
