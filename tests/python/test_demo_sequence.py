# SPDX-License-Identifier: Apache-2.0
"""`python -m normact demo gpt` and `vit`, with tiny nets: eager, compiled, and that they notice a wrong kernel."""

from __future__ import annotations

import functools
import importlib.util
import pathlib
import re
from typing import Any

import pytest
import torch

from normact import demo
from normact.demo import sequence, sequence_run, steps
from normact.torch import norms

TINY = {
    "gpt": {"cpu": sequence.Size(width=16, layers=1, heads=2, length=12, batch=2)},
    "vit": {"cpu": sequence.Size(width=16, layers=1, heads=2, length=16, batch=4)},
}
WHAT = [
    "gpt",
    pytest.param(
        "vit", marks=pytest.mark.skipif(bool(demo.missing_packages("vit")), reason="pip install normact[demo]")
    ),
]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small nets, and a compiler that needs no C++."""
    monkeypatch.setattr(sequence_run, "SIZES", TINY)
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    torch._dynamo.reset()


@pytest.mark.parametrize("what", WHAT)
def test_whole_run(what: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "losses.png"
    assert demo.main([what, "--device", "cpu", "--steps", "12", "--plot", str(plot)]) == 0, capsys.readouterr().out
    printed = capsys.readouterr().out
    found = re.search(r"difference of the losses of 4 runs: ([\d.e+-]+)", printed)
    assert found and float(found[1]) < 1e-5
    for mode in ("eager", "compiled"):
        assert re.search(rf"^  {mode} +[\d,]+ +[\d,]+ +[\d.]+x$", printed, re.MULTILINE)
    assert "graphed: CUDA graphs need a GPU" in printed
    if importlib.util.find_spec("matplotlib"):
        assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_sees_a_wrong_norm(direction: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = norms.call

    def wrong(*args: Any) -> Any:
        out = right(*args)
        y, *rest = out if isinstance(out, tuple) else (out,)
        if direction == "forward":
            return (y * 1.01, *rest) if rest else y * 1.01
        y.register_hook(lambda dy: dy * 1.01)
        return out

    monkeypatch.setattr(norms, "call", wrong)
    assert not sequence_run.show(sequence_run.gpt("cpu"), "cpu", 6, ("eager",))[1]
    assert "FAIL" in capsys.readouterr().out


def test_both_forms_have_the_same_weights() -> None:
    for parts, net in ((sequence.GPT_PARTS, sequence.GPT), (sequence.VIT_PARTS, sequence.ViT)):
        plain, ours = (net(each, TINY["vit"]["cpu"]).state_dict() for each in parts)
        assert list(plain) == list(ours)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no C++ compiler\nand more")

    monkeypatch.setattr(torch, "compile", broken)
    assert steps.compiler_error("cpu") == "no C++ compiler"
    assert list(sequence_run.usable("cpu", demo.MODES)) == ["eager"]
    assert "compiled: torch.compile does not work here: no C++ compiler" in capsys.readouterr().out


def test_wrong_mode(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(["gpt", "--modes", "eager,fast"])
    assert "expected some of eager,compiled,graphed, found eager,fast" in capsys.readouterr().err
