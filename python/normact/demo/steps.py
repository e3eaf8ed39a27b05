# SPDX-License-Identifier: Apache-2.0
"""Training steps of a net: eager, compiled, or captured in a CUDA graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_EAGER_STEPS = 3  # before a capture: they allocate what the graph then keeps, and let libraries choose kernels

Batch = tuple[Tensor, ...]


class Steps:
    """A net in training; each call is a step of SGD and leaves its loss in `losses`.

    An adaptive optimizer would divide by the size of the gradients, and so hide that they are wrong.
    """

    def __init__(
        self,
        net: nn.Module,
        loss: Callable[..., Tensor],
        batch: Callable[[int], Batch],
        rate: float,
        mode: str = "eager",
        autocast: torch.dtype | None = None,
    ) -> None:
        self.losses: list[float] = []
        self._batch, self._mode, self._autocast = batch, mode, autocast
        self._optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
        self._loss: Callable[..., Tensor] = lambda *given: loss(net, *given)
        if mode == "compiled":
            self._loss = torch.compile(self._loss)
        self._done = 0
        self._graph: Any = None
        self._inputs: Batch = ()
        self._result = torch.zeros(())

    def __call__(self) -> None:
        """The next step."""
        self.losses.append(self.run(self._batch(len(self.losses))).item())

    def run(self, batch: Batch) -> Tensor:
        """A step on a batch, not waited for; the loss."""
        self._done += 1
        if self._mode != "graphed":
            return self._step(batch)
        return self._beside(batch) if self._done <= _EAGER_STEPS else self._replay(batch)

    def _step(self, batch: Batch) -> Tensor:
        device = batch[0].device.type
        with contextlib.nullcontext() if self._autocast is None else torch.autocast(device, self._autocast):
            loss = self._loss(*batch)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def _beside(self, batch: Batch) -> Tensor:
        """On a stream of its own, as PyTorch wants it before a capture."""
        stream: Any = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loss = self._step(batch)
        torch.cuda.current_stream().wait_stream(stream)
        return loss

    def _replay(self, batch: Batch) -> Tensor:
        if self._graph is None:
            self._inputs = tuple(tensor.clone() for tensor in batch)
            self._optimizer.zero_grad(set_to_none=True)  # the graph makes gradients of its own
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._result = self._step(self._inputs)
        for kept, tensor in zip(self._inputs, batch):
            kept.copy_(tensor)
        self._graph.replay()
        return self._result


def compiler_error(device: str) -> str:
    """Why torch.compile does not work here, in a line; "" if it does. Asked without any of normact's operators."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device=device))
    except Exception as error:  # what is missing decides what is raised: a C++ compiler, Triton, headers
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return ""
