# SPDX-License-Identifier: Apache-2.0
"""normact.torch is documented, its examples run, and it is imported on request only."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import normact.torch

MODULES = ["normact.torch", *(f"normact.torch.{each.name}" for each in pkgutil.iter_modules(normact.torch.__path__))]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_public_names_are_documented() -> None:
    for name in normact.torch.__all__:
        assert inspect.getdoc(getattr(normact.torch, name)), name


def test_normact_alone_does_not_import_torch() -> None:
    program = "import sys, normact; assert 'torch' not in sys.modules and 'normact.torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
