# SPDX-License-Identifier: Apache-2.0
"""Whose threads do the work on a CPU: an OpenMP runtime's, where a framework has brought one, else our own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import normact
from devices import Device

pytestmark = pytest.mark.cpu

PREPARE = """
import os, threading
import numpy as np, torch
import normact
torch.set_num_threads(2)
normact.set_num_threads(2)
x = torch.randn(1024, 1024)
(x + x).sum()
def threads():
    return len(os.listdir("/proc/self/task"))
"""


def run(script: str) -> None:
    """In a process of its own, which must end within a minute."""
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", PREPARE + script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_threads_of_pytorch_are_used() -> None:
    run("""
before = threads()
y = normact.layer_norm(x)
assert threads() == before, (threads(), before)
torch.set_num_threads(1)  # whoever wants one thread of PyTorch's, but two of ours, gets a thread of ours
assert torch.equal(normact.layer_norm(x), y)
assert threads() == before + 1, (threads(), before)
""")


def test_a_forked_child_computes() -> None:
    """Where the runtime's threads are not."""
    run("""
y = normact.layer_norm(x).numpy()
child = os.fork()
if child == 0:
    again = normact.layer_norm(x.numpy())
    os._exit(0 if np.array_equal(again, y) else 1)
assert os.waitpid(child, 0)[1] == 0
""")


def test_a_forked_child_loads_the_library() -> None:
    """Where the runtime's threads are not, and no fork was seen."""
    pytest.importorskip("torch")
    script = """
import os, torch
torch.set_num_threads(2)
x = torch.randn(1024, 1024)
(x + x).sum()
child = os.fork()
if child == 0:
    import threading, time
    for _ in range(4): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
    import normact
    normact.set_num_threads(2)
    for _ in range(5): normact.layer_norm(x.numpy())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_threads_that_call_at_the_same_time() -> None:
    run("""
x = x.numpy()
y = normact.layer_norm(x)
right = []
def work():
    right.append(all(np.array_equal(normact.layer_norm(x), y) for _ in range(50)))
before = threads()
several = [threading.Thread(target=work) for _ in range(4)]
for each in several: each.start()
most = 0
while any(each.is_alive() for each in several): most = max(most, threads())
assert right == [True] * 4
assert most <= before + 4 + 1, (before, most)  # one of ours, and no team for each of them
""")


@pytest.mark.parametrize("op", ["layer_norm", "gelu"])
def test_either_threads_give_the_same_bits(device: Device, op: str) -> None:
    torch = pytest.importorskip("torch")
    x = device.array(np.random.default_rng(1).standard_normal((513, 1025)), "float32")
    before, ours = torch.get_num_threads(), normact.get_num_threads()
    found = []
    try:
        for theirs, count in ((2, 2), (1, 2), (1, 1)):
            torch.set_num_threads(theirs)
            normact.set_num_threads(count)
            found.append(device.bits(getattr(normact, op)(x)))
    finally:
        torch.set_num_threads(before)
        normact.set_num_threads(ours)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("function", [normact.set_num_threads, normact.set_sm_margin])
@pytest.mark.parametrize(
    ("count", "error", "found"),
    [
        ("2", TypeError, "of type str; expected an int"),
        (None, TypeError, "of type NoneType; expected an int"),
        (1.5, TypeError, "of type float; expected an int"),
        (2**40, ValueError, "1099511627776; expected one of 32 bits"),
        (10**30, ValueError, "10+; expected one of 64 bits"),
        (-1, ValueError, "-1; expected at least"),
    ],
)
def test_counts(function: Any, count: Any, error: type[Exception], found: str) -> None:
    before = normact.get_num_threads(), normact.get_sm_margin()
    with pytest.raises(error, match=f"^{function.__name__}: count is {found}"):
        function(count)
    assert (normact.get_num_threads(), normact.get_sm_margin()) == before
