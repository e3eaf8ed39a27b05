# SPDX-License-Identifier: Apache-2.0
"""``python -m normact bench``: a table of times in half a minute, beside PyTorch's where that is installed.

For an impression of a machine. The figures behind the project's claims come from the benchmarks of the source tree.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import normact

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = ((128, 128), (512, 768), (4096, 1024), (8192, 4096))
ROUNDS = 7
ROUND_SECONDS = 0.02

Operation = tuple[str, int, "Callable[[], object]", "Callable[[], object] | None"]


def medians(functions: list[Callable[[], object]], synchronize: Callable[[], object]) -> list[float]:
    """Seconds a call of each function, the functions taking turns; the queue of a GPU is filled, then waited for."""
    calls = []
    for function in functions:
        function()
        synchronize()
        start = time.perf_counter()
        function()
        synchronize()
        calls.append(max(1, int(ROUND_SECONDS / (time.perf_counter() - start))))
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(ROUNDS):
        for function, count, results in zip(functions, calls, times, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                function()
            synchronize()
            results.append((time.perf_counter() - start) / count)
    return [statistics.median(results) for results in times]


def numpy_operations(rows: int, cols: int) -> list[Operation]:
    """Name, tensor passes, our function, no rival."""
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, rows, cols), np.float32)
    weight, bias = rng.standard_normal((2, cols), np.float32)
    return _operations(x, dy, weight, bias)


def torch_operations(rows: int, cols: int, device: str) -> list[Operation]:
    """The same with PyTorch's own function; its backward is autograd's, with the graph made beforehand."""
    import torch
    from torch.nn import functional

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    x, dy = torch.randn(2, rows, cols, device=device, dtype=dtype)
    weight, bias = torch.randn(2, cols, device=device, dtype=dtype)
    ours = _operations(x, dy, weight, bias)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    layer = functional.layer_norm(leaves[0], (cols,), leaves[1], leaves[2])
    rms = functional.rms_norm(leaves[0], (cols,), leaves[1], eps=1e-6)
    theirs = (
        lambda: functional.layer_norm(x, (cols,), weight, bias),
        lambda: torch.autograd.grad(layer, leaves, dy, retain_graph=True),
        lambda: functional.rms_norm(x, (cols,), weight, eps=1e-6),
        lambda: torch.autograd.grad(rms, leaves[:2], dy, retain_graph=True),
    )
    return [(name, passes, our, their) for (name, passes, our, _), their in zip(ours, theirs, strict=True)]


def _operations(x: Any, dy: Any, weight: Any, bias: Any) -> list[Operation]:
    layer = normact.layer_norm(x, weight, bias, return_stats=True)
    rms = normact.rms_norm(x, weight, return_stats=True)
    return [
        ("layer_norm", 2, lambda: normact.layer_norm(x, weight, bias), None),
        (
            "layer_norm_backward",
            3,
            lambda: normact.layer_norm_backward(dy, x, weight, bias, mean=layer.mean, rstd=layer.rstd),
            None,
        ),
        ("rms_norm", 2, lambda: normact.rms_norm(x, weight), None),
        ("rms_norm_backward", 3, lambda: normact.rms_norm_backward(dy, x, weight, rstd=rms.rstd), None),
    ]


def main() -> int:
    """Prints the tables."""
    targets: list[tuple[str, Callable[[int, int], list[Operation]], Callable[[], object], int]] = [
        ("NumPy, float32, CPU", numpy_operations, lambda: None, 4)
    ]
    if importlib.util.find_spec("torch"):
        import torch

        targets.append(("PyTorch, float32, CPU", lambda r, c: torch_operations(r, c, "cpu"), lambda: None, 4))
        if torch.cuda.is_available() and normact.build_info()["cuda"]:
            name = f"PyTorch, bfloat16, {torch.cuda.get_device_name()}"
            targets.append((name, lambda r, c: torch_operations(r, c, "cuda"), torch.cuda.synchronize, 2))
    print("Medians of eager calls that make their outputs. GB/s counts each tensor once a read or write; caches help.")
    for title, operations, synchronize, itemsize in targets:
        print(f"\n{title}\n{'shape':>12}  {'operation':<20} {'us':>10} {'GB/s':>8} {'PyTorch us':>11} {'ratio':>6}")
        for shape in SHAPES:
            for name, passes, ours, theirs in operations(*shape):
                seconds = medians([ours] if theirs is None else [ours, theirs], synchronize)
                gbps = passes * shape[0] * shape[1] * itemsize / seconds[0] / 1e9
                rival = f"{seconds[1] * 1e6:11.1f} {seconds[1] / seconds[0]:6.2f}" if theirs else ""
                print(f"{shape[0]:>6}x{shape[1]:<5}  {name:<20} {seconds[0] * 1e6:10.1f} {gbps:8.1f} {rival}")
    return 0
