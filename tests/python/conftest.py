# SPDX-License-Identifier: Apache-2.0
"""The `device` fixture, and what needs a GPU.

Every test that takes `device` runs once per array library and device that is there. Tests marked `cuda` need a GPU
and a build with CUDA; elsewhere they are deselected (not skipped), and the header says so.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator

import hypothesis
import pytest

import devices

# A compiled graph that an earlier build of normact left on the disk may call operators as they were then.
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
# Else JAX takes three quarters of a GPU's memory, from the other workers of a run and from PyTorch, at its first array.
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"

# The same examples in each run: a failure in CI is a failure here.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=100)
hypothesis.settings.register_profile("search", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("normact")
    group.addoption("--device", help="comma-separated subset of numpy, torch-cpu, torch-cuda (default: all there are)")
    group.addoption(
        "--one-cpu-library",
        action="store_true",
        help="run a test that has other parameters, too, with numpy or with torch-cpu, whichever its name draws",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda: needs an NVIDIA GPU and a build of normact with CUDA")
    there = devices.available()
    wanted = (config.getoption("--device") or ",".join(there)).split(",")
    missing = [name for name in wanted if name not in there]
    if missing:
        raise pytest.UsageError(f"--device {','.join(missing)}: not there; there are {', '.join(there)}")
    config.stash[_DEVICES] = {name: there[name] for name in wanted}


_DEVICES = pytest.StashKey[dict]()


def pytest_report_header(config: pytest.Config) -> str:
    import normact

    info = normact.build_info()
    names = list(config.stash[_DEVICES])
    without = "" if "torch-cuda" in names else "; tests marked cuda are deselected"
    return (
        f"normact {normact.__version__} (cuda: {info['cuda'] or 'none'}, cpu_isa: {info['cpu_isa']}), "
        f"devices: {', '.join(names)}{without}"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" not in metafunc.fixturenames:
        return
    names = list(metafunc.config.stash[_DEVICES])
    if metafunc.definition.get_closest_marker("cuda"):
        names = [name for name in names if name == "torch-cuda"] or ["torch-cuda"]
    elif metafunc.definition.get_closest_marker("cpu"):
        names = [name for name in names if name != "torch-cuda"]
    metafunc.parametrize("device", names, indirect=True, scope="session")


def _is_drawn(item: pytest.Item) -> bool:
    """Whether its name draws the CPU library that it is for, of two which run the same kernels."""
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    library = parameters.get("device")
    if library not in ("numpy", "torch-cpu") or len(parameters) == 1:
        return True
    return library == ("numpy", "torch-cpu")[zlib.crc32(item.nodeid.replace(library, "", 1).encode()) % 2]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    names = config.stash[_DEVICES]
    one = config.getoption("--one-cpu-library") and {"numpy", "torch-cpu"} <= names.keys()
    gone = [
        item
        for item in items
        if ("torch-cuda" not in names and item.get_closest_marker("cuda")) or (one and not _is_drawn(item))
    ]
    if gone:
        config.hook.pytest_deselected(items=gone)
        left_out = set(gone)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> devices.Device:
    return request.config.stash[_DEVICES][request.param]()


@pytest.fixture
def needs_gpu_bytes() -> Iterator[Callable[[int], None]]:
    """Skips the test unless so many bytes of GPU memory, and 1 GiB, are free.

    What PyTorch has cached goes back to the card before and after: the workers of a run share it.
    """
    import torch

    def needs(nbytes: int) -> None:
        torch.cuda.empty_cache()
        need = nbytes + (1 << 30)
        if torch.cuda.mem_get_info()[0] < need:
            pytest.skip(f"needs {need >> 30} GiB of free GPU memory")

    yield needs
    torch.cuda.empty_cache()


@pytest.fixture(params=["layer_norm", "rms_norm"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param
