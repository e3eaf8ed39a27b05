# SPDX-License-Identifier: Apache-2.0
"""Every instruction set that this machine has gives right results; NORMACT_CPU_ISA chooses it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import normact

X86 = ("baseline", "avx2", "avx512")


def available() -> list[str]:
    best = normact.build_info()["cpu_isa"]
    return list(X86[: X86.index(best) + 1]) if best in X86 else ["baseline", best]


def probe(isa: str, *command: str) -> subprocess.CompletedProcess[str]:
    here = Path(__file__).parent
    return subprocess.run(
        [sys.executable, *command],
        cwd=here,
        env={**os.environ, "NORMACT_CPU_ISA": isa},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("isa", available())
def test_forced_instruction_set(isa: str) -> None:
    result = probe(isa, "isa_probe.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-1] == isa


def test_unknown_instruction_set() -> None:
    """A name that is none is an error that says so, not some other instruction set."""
    result = probe("abacus", "-c", "import numpy, normact; normact.rms_norm(numpy.ones((2, 3), numpy.float32))")
    assert result.returncode == 1
    assert "NORMACT_CPU_ISA" in result.stderr
    assert "abacus" in result.stderr


def test_a_name_that_is_no_text() -> None:
    result = probe("\udcff", "-c", "import numpy, normact; normact.rms_norm(numpy.ones((2, 3), numpy.float32))")
    assert result.returncode == 1
    assert "ValueError: " in result.stderr and "NORMACT_CPU_ISA is " in result.stderr
