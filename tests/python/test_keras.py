# SPDX-License-Identifier: Apache-2.0
"""normact.keras on each backend that Keras may have: keras_checks.py, in one process for each."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

from keras_checks import CHECKS

BACKENDS = ["tensorflow", "torch", "jax"]
PROGRAM = pathlib.Path(__file__).with_name("keras_checks.py")


@functools.cache
def run(backend: str) -> dict[str, str]:
    environment = os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_keras(backend: str, check: str) -> None:
    if importlib.util.find_spec(f"normact.{backend}") is None:
        pytest.skip(f"there is no normact.{backend}")
    problem = run(backend)[check]
    assert not problem, problem


def test_other_backends_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import normact.keras"],
        env=os.environ | {"KERAS_BACKEND": "numpy"},
        capture_output=True,
        text=True,
    )
    assert "ImportError: normact.keras: the backend of Keras is numpy; expected one of tensorflow" in done.stderr


def test_normact_alone_imports_neither() -> None:
    program = "import sys, normact; assert not {'keras', 'tensorflow', 'normact.tensorflow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
