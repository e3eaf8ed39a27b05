# SPDX-License-Identifier: Apache-2.0
"""normact.jax is documented, its examples run, and it is imported on request only."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import normact.jax

NAMES = ["normact.jax", *(f"normact.jax.{each.name}" for each in pkgutil.iter_modules(normact.jax.__path__))]


@pytest.mark.parametrize("name", NAMES)
def test_examples(name: str) -> None:
    if name.endswith(("linen", "nnx")):
        pytest.importorskip("flax")
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_public_names_are_documented() -> None:
    for name in normact.jax.__all__:
        assert inspect.getdoc(getattr(normact.jax, name)), name


def test_normact_alone_does_not_import_jax() -> None:
    program = "import sys, normact; assert 'jax' not in sys.modules and 'normact.jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_flax_is_imported_on_request_only() -> None:
    program = "import sys, normact.jax; assert 'flax' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
