# SPDX-License-Identifier: Apache-2.0
"""oneDNN as a rival on the CPU, through its C library (`pip install onednn-cpu-gomp`, or a system libdnnl).

Primitives are made once and only their execution is timed, the best case for oneDNN. Scale and shift are fp32.
The constants are those of dnnl_types.h, version 3.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import importlib.metadata
from collections.abc import Callable

import torch

from bench.cases import Case
from bench.contest import MissingError, Outputs
from bench.operands import Operands

CPU, IN_ORDER = 1, 1
FORWARD_TRAINING, BACKWARD = 64, 128
USE_SCALE, USE_SHIFT = 2, 4
TAGS = {1: 2, 2: 3}  # dnnl_a, dnnl_ab
TYPES = {torch.bfloat16: 2, torch.float32: 3}
ARGUMENTS = {"x": 1, "y": 17, "mean": 49, "variance": 50, "weight": 51, "bias": 52}
ARGUMENTS |= {"dx": 129, "dy": 145, "dweight": 255, "dbias": 256}


class _Argument(ctypes.Structure):
    _fields_ = [("index", ctypes.c_int), ("memory", ctypes.c_void_p)]


@functools.cache
def _library() -> ctypes.CDLL:
    paths = [ctypes.util.find_library("dnnl")]
    try:
        files = importlib.metadata.files("onednn-cpu-gomp") or []
        paths += [str(file.locate()) for file in files if file.name.startswith("libdnnl.so.")]
    except importlib.metadata.PackageNotFoundError:
        pass
    for path in filter(None, paths):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise MissingError("no libdnnl and no package onednn-cpu-gomp")


def _make(name: str, *arguments: object) -> ctypes.c_void_p:
    """Calls dnnl_<name>, which makes an object and returns a status."""
    made = ctypes.c_void_p()
    status = getattr(_library(), f"dnnl_{name}")(ctypes.byref(made), *arguments)
    if status:
        raise MissingError(f"oneDNN: dnnl_{name} returned status {status}")
    return made


@functools.cache
def _engine() -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
    engine = _make("engine_create", CPU, ctypes.c_size_t(0))
    return engine, _make("stream_create", engine, IN_ORDER)


def _description(tensor: torch.Tensor) -> ctypes.c_void_p:
    dims = (ctypes.c_int64 * 12)(*tensor.shape)
    return _make("memory_desc_create_with_tag", tensor.ndim, dims, TYPES[tensor.dtype], TAGS[tensor.ndim])


def _executor(primitive: ctypes.c_void_p, tensors: dict[str, torch.Tensor]) -> Callable[[], None]:
    engine, stream = _engine()
    arguments = (_Argument * len(tensors))()
    for slot, (name, tensor) in zip(arguments, tensors.items(), strict=True):
        memory = _make("memory_create", _description(tensor), engine, ctypes.c_void_p(tensor.data_ptr()))
        slot.index, slot.memory = ARGUMENTS[name], memory
    execute, wait = _library().dnnl_primitive_execute, _library().dnnl_stream_wait

    def run() -> None:
        if execute(primitive, stream, len(tensors), arguments) or wait(stream):
            raise RuntimeError("dnnl_primitive_execute failed")

    return run


def build(case: Case, o: Operands) -> Callable[[], Outputs]:
    if case.op != "layer_norm":
        raise MissingError(f"oneDNN 3.2 has no {case.op}" if case.family == "norm" else "only its norms are measured")
    if o.x.device.type != "cpu" or o.x.dtype not in TYPES:
        raise MissingError("oneDNN is measured on the CPU, in fp32 and bf16")
    _library()
    ctypes.CDLL("libgomp.so.1").omp_set_num_threads(torch.get_num_threads())  # not the OpenMP that PyTorch brings
    engine, _ = _engine()
    x, statistics = _description(o.x), _description(o.rstd)
    options = (ctypes.c_float(case.eps), USE_SCALE | USE_SHIFT)
    forward = "layer_normalization_forward_primitive_desc_create"
    forward_pd = _make(forward, engine, FORWARD_TRAINING, x, x, statistics, *options, None)
    weight, bias = o.weight.float(), o.bias.float()
    if case.direction == "forward":
        tensors = {"x": o.x, "weight": weight, "bias": bias, "y": torch.empty_like(o.x)}
        tensors |= {"mean": torch.empty_like(o.mean), "variance": torch.empty_like(o.rstd)}
        execute = _executor(_make("primitive_create", forward_pd), tensors)
    else:
        backward = "layer_normalization_backward_primitive_desc_create"
        backward_pd = _make(backward, engine, BACKWARD, x, x, x, statistics, *options, forward_pd, None)
        tensors = {"x": o.x, "dy": o.dy, "weight": weight, "bias": bias, "mean": o.mean}
        tensors |= {"variance": o.rstd.double().pow(-2).sub(case.eps).float(), "dx": torch.empty_like(o.x)}
        tensors |= {"dweight": torch.empty_like(weight), "dbias": torch.empty_like(bias)}
        execute = _executor(_make("primitive_create", backward_pd), tensors)

    def run() -> Outputs:
        execute()
        return tensors

    return run
