# SPDX-License-Identifier: Apache-2.0
"""What the interpreter does around a call: it ends, it imports in another way, it calls again from within."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import normact


def run(program: str) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).parent
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=120, check=False)


def test_it_ends_while_a_daemon_thread_computes() -> None:
    done = run("""
import threading, time
import numpy, normact

x = numpy.ones((64, 65536), numpy.float32)
y = numpy.empty_like(x)

def compute():
    while True:
        normact.silu(x, out=y)

threading.Thread(target=compute, daemon=True).start()
time.sleep(0.2)
""")
    assert done.returncode == 0, done.stderr


def test_first_calls_of_threads_under_an_import_hook() -> None:
    """One that lets another thread run in the middle of an import."""
    done = run("""
import builtins, threading, time
import numpy, normact

plain, together = builtins.__import__, threading.Barrier(4)

def slow(*args, **options):
    time.sleep(0.01)
    return plain(*args, **options)

def call():
    together.wait()
    normact.layer_norm(numpy.ones((4, 4), numpy.float32))

builtins.__import__ = slow
threads = [threading.Thread(target=call) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("done")
""")
    assert done.stdout == "done\n", done.stderr


class Producer:
    """An array of a type of its own."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


class Old(Producer):
    """One that knows nothing of versions."""

    def __dlpack__(self) -> Any:
        return self.array.__dlpack__()


class Calling(Producer):
    """One that uses the library while it is asked where it is."""

    def __dlpack_device__(self) -> Any:
        normact.relu(Old(np.ones(4, np.float32)), out=np.empty(4, np.float32))
        return super().__dlpack_device__()


def call_from_within() -> None:
    for i in range(40):
        normact.relu(type(f"Type{i}", (Producer,), {})(np.ones(4, np.float32)), out=np.empty(4, np.float32))
    x, y = np.array([-1.0, 2.0, -3.0, 4.0], np.float32), np.empty(4, np.float32)
    x.flags.writeable = False  # which only the new protocol can say
    normact.relu(Calling(x), out=y)
    np.testing.assert_array_equal(y, [0, 2, 0, 4])


def test_a_call_from_within_a_call() -> None:
    """Of types that are not remembered, as there are too many (of this process): neither is taken for the other."""
    done = run("import test_interpreter; test_interpreter.call_from_within()")
    assert done.returncode == 0, done.stderr
