# SPDX-License-Identifier: Apache-2.0
"""The handlers of the library, registered with XLA.

A handler that speaks a version which the runtime does not know makes the whole backend fail to start. So the version
that jaxlib's own header states is compared first: then a mismatch is an ImportError here, and JAX goes on working.
"""

from __future__ import annotations

import re
from pathlib import Path

import jax
from jaxlib.version import __version__ as jaxlib_version

from normact import _core

_HANDLERS = _core.xla_handlers()

#: The tensors of each function of the C API, in the order of its argument struct.
FIELDS: dict[str, tuple[str, ...]] = {name: fields for name, (fields, _) in _HANDLERS.items()}


def header_version(include_dir: str) -> tuple[int, int]:
    """The version of the foreign function interface that a jaxlib's header states. ImportError if it states none."""
    header = Path(include_dir) / "xla" / "ffi" / "api" / "c_api.h"
    text = header.read_text() if header.is_file() else ""
    found = [re.search(rf"^#define XLA_FFI_API_{part} (\d+)$", text, re.MULTILINE) for part in ("MAJOR", "MINOR")]
    if found[0] is None or found[1] is None:
        raise ImportError(
            f"normact.jax: {header} of jaxlib {jaxlib_version} does not state the version of XLA's foreign "
            "function interface; expected jaxlib 0.5 or newer"
        )
    return int(found[0].group(1)), int(found[1].group(1))


def check_version(include_dir: str) -> None:
    """Raises ImportError if the jaxlib that this folder belongs to cannot call our handlers."""
    major, minor = _core.XLA_FFI_VERSION
    found = header_version(include_dir)
    if found[0] != major or found[1] < minor:
        raise ImportError(
            f"normact.jax: jaxlib {jaxlib_version} speaks version {found[0]}.{found[1]} of XLA's foreign function "
            f"interface; expected {major}.{minor} or a later {major}.x, so no handler was registered"
        )


def target(name: str) -> str:
    """What XLA knows a function by."""
    return f"normact_{name}"


def register(include_dir: str) -> None:
    """Registers all handlers, for CPU and CUDA."""
    check_version(include_dir)
    for name, (_, platforms) in _HANDLERS.items():
        for platform, handler in platforms.items():
            jax.ffi.register_ffi_target(target(name), handler, platform=platform)


register(jax.ffi.include_dir())
