# SPDX-License-Identifier: Apache-2.0
"""How arrays reach the library: without a copy, by the right protocol, on the right stream, and back to the owner."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
import types
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import normact
import producers
from normact import _core


def reference(x: np.ndarray) -> np.ndarray:
    """rms_norm without eps, in float64."""
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True))


def described(x: Any) -> tuple[int, tuple[int, ...], tuple[int, ...] | None]:
    """Address, shape and strides, as the library sees them."""
    address, _, _, _, _, shape, strides = _core.describe(x)
    return address, shape, strides


def test_producers_without_a_shape():
    """Serve where all outputs are given; a function that has to count channels says so."""
    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    empty = lambda *shape: np.empty(shape, np.float32)  # noqa: E731

    y, mask = empty(4, 6), np.empty(3, np.uint8)
    want = normact.relu(x, return_mask=True)
    normact.relu(producers.Producer(x), return_mask=True, out=(y, mask))
    np.testing.assert_array_equal(y, want.y)
    np.testing.assert_array_equal(mask, want.mask)

    want = normact.group_norm(x, 2, return_stats=True)
    found = normact.group_norm(producers.Producer(x), 2, return_stats=True, out=(empty(4, 6), empty(4, 2), empty(4, 2)))
    for name in ("y", "mean", "rstd"):
        np.testing.assert_array_equal(getattr(found, name), getattr(want, name))

    options: dict[str, Any] = dict(training=True, activation="relu", return_mask=True, return_stats=True)
    want = normact.batch_norm(x, **options)
    out = empty(4, 6), empty(6), empty(6), np.empty(3, np.uint8)
    found = normact.batch_norm(producers.Producer(x), **options, out=out)
    for name in ("y", "mean", "rstd", "mask"):
        np.testing.assert_array_equal(getattr(found, name), getattr(want, name))

    with pytest.raises(
        TypeError, match=r"^instance_norm: x is of type .*Producer, which has no shape; expected an array"
    ):
        normact.instance_norm(producers.Producer(x.reshape(2, 2, 6)), out=empty(2, 2, 6))


# ---- Without a copy ----


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced", "reversed", "expanded", "offset"])
def test_numpy_views_are_seen_as_they_are(layout: str):
    base = np.arange(60, dtype=np.float32).reshape(6, 10)
    view = {
        "contiguous": base,
        "transposed": base.T,
        "sliced": base[::2, 1:7:3],
        "reversed": base[::-1, ::-1],
        "expanded": np.broadcast_to(base[0], (4, 10)),
        "offset": base.reshape(-1)[7:],
    }[layout]
    strides = tuple(s // 4 for s in view.strides)
    assert described(view) == (view.ctypes.data, view.shape, strides)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "sliced", "expanded", "scalar"])
def test_torch_views_are_seen_as_they_are(layout: str):
    base = torch.arange(60, dtype=torch.float32).reshape(6, 10)
    view = {
        "contiguous": base,
        "transposed": base.T,
        "sliced": base[::2, 1:7:3],
        "expanded": base[0].expand(4, 10),
        "scalar": base[2, 3],
    }[layout]
    assert described(view) == (view.data_ptr(), tuple(view.shape), view.stride())


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        (np.dtype(np.float64), (2, 64)),
        (np.dtype(np.float32), (2, 32)),
        (np.dtype(np.float16), (2, 16)),
        (np.dtype(ml_dtypes.bfloat16), (4, 16)),
    ],
)
def test_numpy_dtypes(dtype: np.dtype, code: tuple[int, int]):
    x = np.zeros((2, 3), dtype)
    address, device, _, *found, shape, _ = _core.describe(x)
    assert (address, device, tuple(found), shape) == (x.ctypes.data, producers.CPU, code, x.shape)


def test_inputs_and_outputs_are_used_in_place():
    memory = np.arange(1, 13, dtype=np.float32)
    x = memory.reshape(3, 4)
    expected = reference(x)
    assert normact.rms_norm(x, eps=0.0, out=x) is x
    np.testing.assert_allclose(memory.reshape(3, 4), expected, rtol=1e-6)


def test_writes_are_seen_through_another_framework():
    memory = np.zeros((3, 4), np.float32)
    x = torch.arange(1.0, 13.0).reshape(3, 4)
    normact.rms_norm(x, eps=0.0, out=torch.from_numpy(memory))
    np.testing.assert_allclose(memory, reference(x.numpy()), rtol=1e-6)


def test_frameworks_may_be_mixed_on_one_device():
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    weight = torch.full((4,), 2.0)
    y = normact.rms_norm(x, weight, eps=0.0)
    assert type(y) is np.ndarray
    np.testing.assert_allclose(y, 2 * reference(x), rtol=1e-6)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("layout", ["C", "transposed", "sliced"])
def test_outputs_have_the_layout_of_dense_inputs(framework: str, layout: str):
    module: Any = np if framework == "numpy" else torch
    base = module.ones((4, 6, 8), dtype=module.float32)
    x = {"C": base, "transposed": base.swapaxes(0, 1), "sliced": base[:, :, :5]}[layout]
    y = normact.rms_norm(x, axis=-1)
    assert type(y) is type(x)
    if layout == "sliced":
        assert described(y)[2] == (30, 5, 1)
    else:
        assert described(y)[2] == described(x)[2]


# ---- The protocol ----


def test_versioned_producers_are_asked_once_and_for_the_newest_version():
    x = producers.Producer(np.ones((2, 4), np.float32))
    assert described(x)[1:] == ((2, 4), None)
    assert x.calls == [{"max_version": (1, 3)}]


def test_older_producers_are_asked_again_without_a_version():
    first, second = (producers.OldProducer(np.ones((2, 4), np.float32)) for _ in range(2))
    assert described(first)[1] == (2, 4)
    assert described(second)[1] == (2, 4)
    assert first.calls == [{"max_version": (1, 3)}, {}]
    assert second.calls == [{}], "what was learnt about the type is kept"


def test_a_newer_major_version_is_refused():
    x = producers.Producer(np.ones((2, 4), np.float32), version=(2, 0))
    with pytest.raises(TypeError, match="x speaks DLPack 2; expected 1"):
        _core.describe(x)


def test_null_strides_mean_contiguous():
    values = np.arange(1, 9, dtype=np.float32).reshape(2, 4)
    out = np.empty_like(values)
    normact.rms_norm(producers.Producer(values), eps=0.0, out=out)
    np.testing.assert_allclose(out, reference(values), rtol=1e-6)


def test_read_only_flag_forbids_writing_alone():
    values = np.ones((2, 4), np.float32)
    x = producers.Producer(values)
    x.flags = producers.READ_ONLY
    normact.rms_norm(x, out=np.empty_like(values))
    with pytest.raises(ValueError, match="y is read-only"):
        normact.rms_norm(values, out=x)
    assert (values == 1).all()


def test_read_only_numpy_arrays_are_inputs_but_no_outputs():
    x = np.ones((2, 4), np.float32)
    x.flags.writeable = False
    y = normact.rms_norm(x)
    assert y.flags.writeable
    with pytest.raises(ValueError, match="rms_norm: y is read-only; expected a writable array"):
        normact.rms_norm(y, out=x)
    assert (x == 1).all()


def test_read_only_bfloat16_is_no_output():
    x = np.ones((2, 4), ml_dtypes.bfloat16)
    x.flags.writeable = False
    assert normact.rms_norm(x).dtype == x.dtype
    with pytest.raises(ValueError, match="y is read-only"):
        normact.rms_norm(x.copy(), out=x)


def test_other_producers_need_out():
    with pytest.raises(TypeError, match="an output like a producers.Producer cannot be made; .*out="):
        normact.rms_norm(producers.Producer(np.ones((2, 4), np.float32)))


# ---- Streams: producers on a made-up GPU, with empty arrays ----


@pytest.fixture(autouse=True)
def nobody_waits_for_made_up_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a driver would follow the made-up handle."""
    monkeypatch.setattr("normact._driver.synchronize", lambda device, stream: None)


@contextlib.contextmanager
def call_may_fail():
    """What is asked of the producers is the same in a build without CUDA and on a machine without a driver."""
    with contextlib.suppress(NotImplementedError, RuntimeError, OSError):
        yield


def on_gpu(*shape: int) -> producers.Producer:
    return producers.Producer(np.empty(shape or (0, 4), np.float32), device=(producers.CUDA, 0))


def streams_of(*arrays: producers.Producer) -> list[list[int | None]]:
    return [[call.get("stream") for call in array.calls] for array in arrays]


def test_cpu_producers_hear_of_no_stream():
    x = producers.Producer(np.ones((2, 4), np.float32))
    normact.rms_norm(x, out=np.empty((2, 4), np.float32), stream=0x1230)
    assert streams_of(x) == [[None]]


def test_unknown_producers_are_put_on_the_legacy_stream():
    x, y = on_gpu(), on_gpu()
    with call_may_fail():
        normact.rms_norm(x, out=y)
    assert streams_of(x, y) == [[1], [1]]


@pytest.mark.parametrize(("handle", "number"), [(0, 1), (1, 1), (0x1230, 0x1230)])
def test_explicit_stream_wins(handle: int, number: int):
    x, y = on_gpu(), on_gpu()
    with call_may_fail():
        normact.rms_norm(x, out=y, stream=handle)
    assert streams_of(x, y) == [[number], [number]]


@pytest.mark.parametrize(
    "stream",
    [
        types.SimpleNamespace(__cuda_stream__=lambda: (0, 0x1230)),
        types.SimpleNamespace(__cuda_stream__=(0, 0x1230)),
        types.SimpleNamespace(cuda_stream=0x1230),
        types.SimpleNamespace(ptr=0x1230),
    ],
    ids=["cuda_stream_method", "cuda_stream_tuple", "torch", "cupy"],
)
def test_stream_objects(stream: Any):
    x = on_gpu()
    with call_may_fail():
        normact.rms_norm(x, out=on_gpu(), stream=stream)
    assert streams_of(x) == [[0x1230]]


def test_exchange_table_gives_the_stream_and_needs_no_call():
    x, y = (producers.ExchangeProducer(np.empty((0, 4), np.float32)) for _ in range(2))
    asked = producers.ExchangeProducer.asked
    with call_may_fail():
        normact.rms_norm(x, out=y)
    assert streams_of(x, y) == [[], []]
    assert producers.ExchangeProducer.asked == asked + 1, "the current stream is asked for once a call"


def test_strangers_wait_for_the_stream_of_the_first_array():
    x, weight, y = producers.ExchangeProducer(np.empty((0, 4), np.float32)), on_gpu(4), on_gpu()
    with call_may_fail():
        normact.rms_norm(x, weight, out=y)
    assert streams_of(x, weight, y) == [[], [0x1230], [0x1230]]


def test_exchange_producer_on_another_stream_is_made_to_wait():
    x, y = (producers.ExchangeProducer(np.empty((0, 4), np.float32)) for _ in range(2))
    with call_may_fail():
        normact.rms_norm(x, out=y, stream=0x4560)
    assert streams_of(x, y) == [[0x4560], [0x4560]]


def test_cupy_runs_on_its_current_stream_without_an_event(monkeypatch: pytest.MonkeyPatch):
    cuda = types.ModuleType("cupy.cuda")
    cuda.get_current_stream = lambda device_id: types.SimpleNamespace(ptr=0x7890)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    ndarray = type("ndarray", (producers.Producer,), {"__module__": "cupy"})
    x, y = (ndarray(np.empty((0, 4), np.float32), device=(producers.CUDA, 0)) for _ in range(2))
    weight = on_gpu(4)
    with call_may_fail():
        normact.rms_norm(x, weight, out=y)
    assert streams_of(x, weight, y) == [[-1], [0x7890], [-1]]


def test_tensorflow_is_given_no_stream():
    names = {"__module__": "tensorflow.python.framework.ops", "__qualname__": "EagerTensor"}
    base = type("Tensor", (producers.Producer,), {"__module__": "tensorflow.python.framework.tensor"})
    x = type("EagerTensor", (base,), names)(np.empty((0, 4), np.float32), device=(producers.CUDA, 0))
    with call_may_fail():
        normact.rms_norm(x, out=on_gpu())
    assert x.calls == [{"max_version": (1, 3)}]


# ---- Lifetime, threads ----


def test_arrays_are_given_back_when_the_call_ends():
    class Owned(producers.Producer):
        pass

    x = Owned(np.ones((2, 4), np.float32))
    gone = weakref.ref(x)
    normact.rms_norm(x, out=np.empty((2, 4), np.float32))
    del x
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
def test_calls_leave_no_references_behind(make: Any):
    x, weight, y = make((2, 4)), make(4), make((2, 4))
    counts = [sys.getrefcount(array) for array in (x, weight, y)]
    for _ in range(100):
        normact.layer_norm(x, weight, out=y)
        with pytest.raises(ValueError, match="eps"):
            normact.layer_norm(x, weight, out=y, eps=-1.0)
    assert [sys.getrefcount(array) for array in (x, weight, y)] == counts


def test_many_array_types_are_served():
    """The record of types is bounded; types beyond it still work."""
    for number in range(100):
        x = type(f"Array{number}", (producers.Producer,), {})(np.full((1, 2), number + 1.0, np.float32))
        out = np.empty((1, 2), np.float32)
        normact.rms_norm(x, eps=0.0, out=out)
        np.testing.assert_allclose(out, 1.0, rtol=1e-6)


def test_other_threads_run_during_the_work():
    x = np.ones((4096, 4096), np.float32)
    y = np.empty_like(x)
    moments: list[float] = []
    stop = threading.Event()

    def tick():
        while not stop.is_set():
            moments.append(time.perf_counter())
            time.sleep(0.0002)

    threads = normact.get_num_threads()
    normact.set_num_threads(1)
    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        start = time.perf_counter()
        for _ in range(5):
            normact.layer_norm(x, out=y)
        end = time.perf_counter()
    finally:
        stop.set()
        ticker.join()
        normact.set_num_threads(threads)
    # A thread that could run only between the calls would be seen a few times at most.
    assert sum(start < moment < end for moment in moments) > 12


def test_threads_do_not_disturb_each_other():
    values = [np.random.default_rng(seed).standard_normal((64, 96)).astype(np.float32) for seed in range(8)]
    expected = [normact.layer_norm(x) for x in values]
    wrong: list[int] = []

    def work(index: int):
        for _ in range(50):
            if not np.array_equal(normact.layer_norm(values[index]), expected[index]):
                wrong.append(index)
            with pytest.raises(ValueError, match=rf"weight.*\({index + 1},\)"):
                normact.layer_norm(values[index], np.ones(index + 1, np.float32))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
