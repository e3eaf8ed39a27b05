# SPDX-License-Identifier: Apache-2.0
"""What this installation is, and how much of a machine it may take: CPU threads, multiprocessors of a GPU."""

from __future__ import annotations

import pathlib
import platform

from normact import _core

_LIBRARY_FACTS = ("version", "cuda", "cuda_architectures", "compiler", "cpu_isa")


def build_info() -> dict[str, str]:
    """Facts about this build and machine.

    Returns
    -------
    dict
        ``version``; ``cuda``, the toolkit's version, or "" for a build without CUDA; ``cuda_architectures``;
        ``compiler``; ``cpu_isa``, the instruction set in use; ``python``; ``extension``, the file of the module.

    Examples
    --------
    >>> build_info()["version"] == __import__("normact").__version__
    True
    """
    facts = {name: _core.build_info(name) or "" for name in _LIBRARY_FACTS}
    return facts | {"python": platform.python_version(), "extension": str(_core.__file__)}


def get_include() -> str:
    """The folder to compile C and C++ programs with: it holds ``normact/normact.h``."""
    return str(_prefix() / "include")


def cmake_dir() -> str:
    """The folder that ``find_package(normact)`` looks for: ``cmake -Dnormact_DIR=<this>``."""
    return str(_prefix() / "lib" / "cmake" / "normact")


def _prefix() -> pathlib.Path:
    # In an editable installation the Python files are in the source tree, and the module where the library is.
    return pathlib.Path(_core.__file__).resolve().parent


def set_num_threads(count: int) -> None:
    """Set the number of threads that work on the CPU is spread over; results do not depend on it.

    Calls of the process's first thread use those of an OpenMP runtime that is there, as PyTorch's is, if it has as
    many; else they are the library's own.

    Raises
    ------
    ValueError
        If count is less than 1.
    TypeError
        If count is no int.
    """
    _core.set_num_threads(count)


def get_num_threads() -> int:
    """The number of threads that work on the CPU is spread over."""
    return _core.get_num_threads()


def set_sm_margin(count: int) -> None:
    """Set the number of multiprocessors that persistent kernels leave free on a GPU, for what runs beside them.

    Kernels that stay on the GPU for a whole tensor, as most backwards and channel norms have, take all
    multiprocessors; some start only when they have got them. What overlaps with them, a kernel of NCCL above all, waits
    as long, or they wait for it. With a margin they take so many fewer. Kernels of many short blocks know no margin:
    they give way anyway.

    The setting is the process's: it holds for all frameworks and threads, from the next call on; a CUDA graph keeps
    what it was captured with. Sums may be taken in another order than without a margin, so last bits may differ. 0, the
    default, leaves none free.

    Raises
    ------
    ValueError
        If count is less than 0.
    TypeError
        If count is no int.

    Examples
    --------
    >>> set_sm_margin(16)
    >>> get_sm_margin()
    16
    >>> set_sm_margin(0)
    """
    _core.set_sm_margin(count)


def get_sm_margin() -> int:
    """The number of multiprocessors that persistent kernels leave free on a GPU."""
    return _core.get_sm_margin()
