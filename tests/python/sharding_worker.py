# SPDX-License-Identifier: Apache-2.0
"""One process of the tests of DTensor: `python sharding_worker.py RANK RANKS FILE`.

Whatever has samples is divided along dimension 0 into parts of different sizes, parameters are whole everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import normact.torch as nt
import ranks
import torch_cases

# Sums over the samples are added up in another order; they are of some ten numbers of size 1.
BOUND: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-13}
WORDS = ("layer_norm", "rms_norm", "relu", "gelu", "gated", "group_norm")
CASES = [case for case in torch_cases.FEW if case.name.startswith(WORDS)]
assert len(CASES) == 9


def seeds(found: Any) -> list[torch.Tensor]:
    return [torch.linspace(-1, 2, y.numel(), dtype=torch.float64).reshape(y.shape) for y in torch_cases.outputs(found)]


def compare(ours: Callable[..., Any], tensors: list[torch.Tensor], mesh: Any, first: Placement) -> None:
    """Forward and backward on parts and on the whole; and that nothing is sent meanwhile."""
    want = torch_cases.outputs(ours(*tensors))
    dys = seeds(want)
    want_grads = torch.autograd.grad(want, tensors, dys)
    rest = [Replicate()] * (mesh.ndim - 1)

    def placed(tensor: torch.Tensor) -> DTensor:
        return distribute_tensor(tensor.detach(), mesh, [first if tensor.ndim > 1 else Replicate(), *rest])

    given = [placed(tensor).requires_grad_() for tensor in tensors]
    parts = [placed(dy) for dy in dys]
    with CommDebugMode() as sent:
        found: Any = torch_cases.outputs(ours(*given))
        grads: Any = torch.autograd.grad(found, given, parts)
    assert sent.get_total_counts() == 0, sent.get_comm_counts()
    for y, theirs in zip(found, want, strict=True):
        assert y.placements == (first, *rest)
        torch.testing.assert_close(y.full_tensor(), theirs, **BOUND)
    for grad, tensor, theirs in zip(grads, tensors, want_grads, strict=True):
        assert grad.placements == (first if tensor.ndim > 1 else Partial(), *rest), grad.placements
        torch.testing.assert_close(grad.full_tensor(), theirs, **BOUND)


def check_case(case: torch_cases.Case) -> Callable[[], None]:
    def check() -> None:
        size = dist.get_world_size()
        compare(case.ours, case.tensors(), init_device_mesh("cpu", (size,)), Shard(0))
        compare(case.ours, case.tensors(), init_device_mesh("cpu", (size, 1)), Shard(0))

    return check


def other_dimensions() -> None:
    """All along which is neither parameter nor norm: of an activation also the last, as in tensor parallelism."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x, up = (torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    compare(nt.gelu, [x], mesh, Shard(2))
    compare(nt.swiglu, [x, up], mesh, Shard(2))
    compare(nt.swiglu, [x], mesh, Shard(1))
    compare(lambda x: nt.layer_norm(x, 4), [x], mesh, Shard(1))


def gathered() -> None:
    """Along the columns of a norm PyTorch gathers, as for its own."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = torch.randn(3, 4, dtype=torch.float64)
    y = nt.rms_norm(distribute_tensor(x, mesh, [Shard(1)]), 4)
    assert isinstance(y, DTensor)
    torch.testing.assert_close(y.full_tensor(), nt.rms_norm(x, 4), **BOUND)


def batch_norm() -> None:
    """Samples are divided in inference; in training that is refused, as it would gather them."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    norm = nt.BatchNorm2d(4).double()
    x = torch.randn(5, 4, 3, 2, dtype=torch.float64)
    norm(x)
    norm.eval()
    want = norm(x)
    state: dict[str, Any] = {
        name: distribute_tensor(tensor, mesh, [Replicate()]) for name, tensor in norm.state_dict().items()
    }
    part = distribute_tensor(x, mesh, [Shard(0)])
    with CommDebugMode() as sent:
        y = torch.func.functional_call(norm, state, part)
    assert sent.get_total_counts() == 0
    assert y.placements == (Shard(0),)
    torch.testing.assert_close(y.full_tensor(), want, **BOUND)
    norm.train()
    try:
        torch.func.functional_call(norm, state, part)
    except Exception as error:
        assert "expected Replicate, as the statistics are those of all samples" in str(error), error
    else:
        raise AssertionError("gathered")
    torch.func.functional_call(norm, state, distribute_tensor(x, mesh, [Replicate()]))


def compiled() -> None:
    """torch.compile sees the operators on the parts."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x, weight = (torch.randn(shape, dtype=torch.float64) for shape in ((5, 4), (4,)))

    def step(x: Any, weight: Any) -> Any:
        return nt.silu(nt.rms_norm(x, 4, weight))

    inputs = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
    want = torch.autograd.grad(step(*inputs).square().sum(), inputs)
    parts = [distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(weight, mesh, [Replicate()])]
    parts = [part.requires_grad_() for part in parts]
    y = torch.compile(step, backend="aot_eager", fullgraph=True)(*parts)
    assert y.placements == (Shard(0),)
    grads: Any = torch.autograd.grad(y.square().sum(), parts)
    for grad, theirs in zip(grads, want, strict=True):
        torch.testing.assert_close(grad.full_tensor(), theirs, **BOUND)


def float32_stream() -> None:
    """A residual of float32 beside rows in 16 bits: the parts' rows have the bits of the whole's."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x, stream, weight = torch.randn(5, 8).bfloat16(), torch.randn(5, 8), torch.randn(8)
    whole = [each.clone().requires_grad_() for each in (x, stream, weight)]
    rows = [Shard(0), Shard(0), Replicate()]
    parts = [distribute_tensor(each, mesh, [at]).requires_grad_() for each, at in zip((x, stream, weight), rows)]
    dys = [torch.randn(5, 8).bfloat16(), torch.randn(5, 8)]
    seeds = [distribute_tensor(dy, mesh, [Shard(0)]) for dy in dys]
    want = nt.rms_norm(whole[0], 8, whole[2], residual=whole[1])
    with CommDebugMode() as sent:
        found: Any = nt.rms_norm(parts[0], 8, parts[2], residual=parts[1])
        grads: Any = torch.autograd.grad(found, parts, seeds)
    assert sent.get_total_counts() == 0, sent.get_comm_counts()
    want_grads = torch.autograd.grad(want, whole, dys)
    for part, theirs in zip((*found, *grads[:2]), (*want, *want_grads[:2]), strict=True):
        assert part.placements == (Shard(0),)
        assert part.dtype == theirs.dtype
        assert torch.equal(part.full_tensor(), theirs)
    assert grads[2].placements == (Partial(),)
    torch.testing.assert_close(grads[2].full_tensor(), want_grads[2], rtol=1e-5, atol=1e-5)


CHECKS = {case.name: check_case(case) for case in CASES} | {
    check.__name__: check for check in (other_dimensions, gathered, batch_norm, compiled, float32_stream)
}

if __name__ == "__main__":
    torch.manual_seed(0)
    ranks.main(CHECKS)
