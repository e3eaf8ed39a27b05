# SPDX-License-Identifier: Apache-2.0
"""Record calls of the library, and repeat them side by side: by threads, on a GPU each on a stream of its own, and in
the branches of a CUDA graph. A call that is right alone must leave the same bits in company.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

import normact
from devices import capturing

Tensor = torch.Tensor
Function = Callable[..., Any]
BRANCHES = 3


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(part)


def bytes_of(tensor: Tensor) -> Tensor:
    """All that the tensor's storage holds, what lies around it included."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


class Memory:
    """Copies of storages, and tensors that lie in them as others do in the storages themselves."""

    def __init__(self, storages: dict[int, Tensor]):
        self.bytes = {address: storage.clone() for address, storage in storages.items()}

    @classmethod
    def of(cls, value: Any) -> Memory:
        return cls({tensor.untyped_storage().data_ptr(): bytes_of(tensor) for tensor in tensors_in(value)})

    def moved(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            storage = self.bytes[value.untyped_storage().data_ptr()].untyped_storage()
            place = torch.empty(0, dtype=value.dtype, device=value.device)
            return place.set_(storage, value.storage_offset(), value.shape, value.stride())
        if isinstance(value, (tuple, list)):
            return tuple(self.moved(part) for part in value)
        return {name: self.moved(part) for name, part in value.items()} if isinstance(value, dict) else value


@dataclass(frozen=True)
class Call:
    """A call, the memory of its arguments before it and after, and the outputs that it made itself."""

    function: Function
    arguments: Any
    before: Memory
    after: Memory
    made: Sequence[Tensor]

    @classmethod
    def record(cls, function: Function, arguments: Any) -> tuple[Any, Call]:
        before = Memory.of(arguments)
        result = function(*arguments[0], **arguments[1])
        return result, cls(function, arguments, before, Memory.of(arguments), cls._made(result, before))

    @staticmethod
    def _made(result: Any, given: Memory) -> list[Tensor]:
        news = (t for t in tensors_in(result) if t.untyped_storage().data_ptr() not in given.bytes)
        return [tensor.clone() for tensor in news]

    def differs(self) -> Tensor:
        """Whether the call leaves anything else when it is made again, as a tensor of one bool."""
        memory = Memory(self.before.bytes)
        positional, named = memory.moved(self.arguments)
        result = self.function(*positional, **named)
        given = {storage.untyped_storage().data_ptr() for storage in memory.bytes.values()}
        news = [t for t in tensors_in(result) if t.untyped_storage().data_ptr() not in given]
        pairs = [(memory.bytes[address], storage) for address, storage in self.after.bytes.items()]
        pairs += [(bytes_of(found), bytes_of(made)) for found, made in zip(news, self.made, strict=True)]
        return torch.stack([(found != wanted).any() for found, wanted in pairs]).any()


@contextlib.contextmanager
def recorded() -> Iterator[list[Call]]:
    """The calls that are made inside, but for those without a tensor."""
    calls: list[Call] = []

    def recording(function: Function) -> Function:
        def call(*positional: Any, **named: Any) -> Any:
            if not any(True for _ in tensors_in((positional, named))):
                return function(*positional, **named)
            result, made = Call.record(function, (positional, named))
            calls.append(made)
            return result

        return call

    functions = [getattr(normact, name) for name in normact.__all__]
    names = {f.__name__: recording(f) for f in functions if callable(f) and not isinstance(f, type)}
    with mock.patch.dict(vars(normact), names):
        yield calls


def _branches(calls: Sequence[Call], seed: int) -> list[list[Call]]:
    """All calls for each branch, in an order of its own."""
    shuffled = random.Random(seed)
    return [shuffled.sample(calls, len(calls)) for _ in range(BRANCHES)]


def _names(calls: Sequence[Call], differ: Sequence[Tensor]) -> list[str]:
    return [call.function.__name__ for call, other in zip(calls, differ, strict=True) if bool(other)]


def assert_same_bits_side_by_side(calls: Sequence[Call], seed: int) -> None:
    device, cuda = torch.get_default_device(), torch.get_default_device().type == "cuda"

    def branch(mine: Sequence[Call]) -> list[Tensor]:
        stream = torch.cuda.stream(torch.cuda.Stream()) if cuda else contextlib.nullcontext()
        with torch.device(device), stream:
            return [call.differs() for call in mine]

    branches = _branches(calls, seed)
    if cuda:
        torch.cuda.synchronize()
    with ThreadPoolExecutor(BRANCHES) as threads:
        found = list(threads.map(branch, branches))
    if cuda:
        torch.cuda.synchronize()
    for mine, differ in zip(branches, found, strict=True):
        assert not (wrong := _names(mine, differ)), f"other bits side by side: {wrong}"


def assert_same_bits_in_a_graph(calls: Sequence[Call], seed: int) -> None:
    """Of a CUDA graph with branches, replayed more than once."""
    branches, found = _branches(calls, seed), []
    graph = torch.cuda.CUDAGraph()
    with capturing(graph):
        whole = torch.cuda.current_stream()
        streams = [torch.cuda.Stream() for _ in branches]
        for mine, stream in zip(branches, streams, strict=True):
            stream.wait_stream(whole)
            with torch.cuda.stream(stream):
                found.append([call.differs() for call in mine])
        for stream in streams:
            whole.wait_stream(stream)
    for turn in range(2):
        graph.replay()
        torch.cuda.synchronize()
        for mine, differ in zip(branches, found, strict=True):
            assert not (wrong := _names(mine, differ)), f"other bits in replay {turn} of a graph: {wrong}"
