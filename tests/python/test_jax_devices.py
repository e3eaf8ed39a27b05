# SPDX-License-Identifier: Apache-2.0
"""normact.jax on four devices of the CPU: right, where the arrays are, with no more communication than is needed."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import jax
import pytest

WORKER = pathlib.Path(__file__).parent / "jax_devices_worker.py"
NEW = tuple(int(part) for part in jax.__version__.split(".")[:2]) >= (0, 7)  # where Shardy is the partitioner

# Forward and gradient: how many sums over the devices are made. What has none of the first needs none.
SUMS = {
    "layer_norm": (0, 1),
    "layer_norm half": (0, 1),
    "add_layer_norm": (0, 1),
    "add_layer_norm half": (0, 1),
    "rms_norm over axis 1": (0, 1),
    "gelu": (0, 1),
    "gelu of columns": (0, 0),
    "relu": (0, 0),
    "swiglu": (0, 1),
    "geglu of columns": (0, 0),
    "group_norm": (0, 1),
    "batch_norm": (1, 2),
    "batch_norm alone": (1, 2),
    "batch_norm of channels": (0, 0),
    "batch_norm inference": (0, 1),
    "vmap": (0, 1),
    "batch_norm on two axes": (1, 2),
    "rms_norm on two axes": (0, 1),
    "silu on two axes": (0, 1),
    "explicit layer_norm": (0, 1),
    "explicit gelu": (0, 1),
    "explicit batch_norm": (1, 2),
    "explicit vmap": (0, 1),
}
# Their normalised axis, the samples of a mean over samples, or what a loop runs over, are divided: XLA gathers them.
GATHERED = ("rms_norm of columns", "instance_norm", "explicit vmap of batch_norm")
MAPPED = [
    f"shard_map {check} {label}"
    for check in ("checked", "unchecked")
    for label in ("layer_norm", "swiglu", "batch_norm", "vmap inside", "vmap outside")
]


@pytest.fixture(scope="module")
def reports() -> dict[str, Any]:
    found = subprocess.run([sys.executable, WORKER], capture_output=True, text=True, timeout=400)
    assert found.returncode == 0, found.stderr
    each = [json.loads(line) for line in found.stdout.splitlines()]
    return {report["name"]: report for report in each}


def test_every_check_ran(reports: dict[str, Any]) -> None:
    expected = {*SUMS, *GATHERED, *MAPPED}
    missing = expected - reports.keys()
    assert not reports.keys() - expected
    assert not missing or (not NEW and all(name.startswith("explicit") for name in missing))


def test_results_and_gradients_are_those_of_one_device(reports: dict[str, Any]) -> None:
    """Up to the order of the sums: some units in the last place of values of a few tens."""
    assert {name: report["error"] for name, report in reports.items() if report["error"] > 5e-5} == {}


@pytest.mark.parametrize("name", SUMS)
def test_nothing_is_gathered(reports: dict[str, Any], name: str) -> None:
    if name.startswith("explicit") and not NEW:
        pytest.skip("this JAX has no explicit meshes")
    report, (forward, backward) = reports[name], SUMS[name]
    for found in (report["forward"], report["backward"]):
        assert (found["all-gather"], found["all-to-all"], found["collective-permute"]) == (0, 0, 0)
    if NEW:  # before, XLA leaves sums apart that it could make together
        assert (report["forward"]["all-reduce"], report["backward"]["all-reduce"]) == (forward, backward)
    assert "'" in report["spec"], "y lies on one device"


@pytest.mark.parametrize("name", GATHERED)
def test_what_has_to_be_whole_is_gathered(reports: dict[str, Any], name: str) -> None:
    if name.startswith("explicit") and not NEW:
        pytest.skip("this JAX has no explicit meshes")
    assert reports[name]["forward"]["all-gather"] == 1
