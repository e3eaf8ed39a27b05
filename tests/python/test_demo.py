# SPDX-License-Identifier: Apache-2.0
"""`python -m normact demo`: its pieces, the whole run, and that it notices when the encoders do not agree."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys

import pytest
import torch

import normact
from normact import channel_calls, demo
from normact.demo import terminal

needs_model = pytest.mark.skipif(bool(demo.missing_packages()), reason="pip install normact[demo]")
needs_digits = pytest.mark.skipif(bool(demo.missing_packages("vision")), reason="pip install normact[demo]")


@pytest.fixture(autouse=True)
def one_thread():
    """PyTorch's threads spin while they wait for each other: on a busy machine that takes minutes."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


@pytest.fixture(scope="module")
def encoders():
    from normact.demo import model

    return model.load("cpu")


def test_demo_whole_run(tmp_path):
    missing = demo.missing_packages()
    if missing:
        pytest.skip(f"the demo's packages are not installed: {missing}")
    plot = tmp_path / "losses.png"
    command = [sys.executable, "-m", "normact", "demo", "--steps", "6", "--plot", str(plot)]
    result = subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\033" not in result.stdout  # no terminal, no colours
    assert float(re.search(r"smallest cosine ([\d.]+)", result.stdout)[1]) >= 0.99999
    assert float(re.search(r"difference of the losses ([\d.e+-]+)", result.stdout)[1]) < 1e-3
    # Each query's first answer is the sentence that a person would choose.
    for query, answer in (("bread rise", "Yeast"), ("head hurts", "migraine"), ("insects", "Bees"), ("photos", "copy")):
        lines = result.stdout.splitlines()
        asked = next(index for index, line in enumerate(lines) if query in line)
        assert answer in lines[asked + 1]
    if importlib.util.find_spec("matplotlib"):
        assert plot.read_bytes().startswith(b"\x89PNG")


def one_percent_off(function):
    def wrong(*args, **kwargs):
        out = function(*args, **kwargs)
        if isinstance(out, torch.Tensor):
            return out * 1.01
        return out._replace(**{out._fields[0]: out[0] * 1.01})

    return wrong


@needs_model
def test_demo_sees_a_wrong_forward(encoders, monkeypatch, capsys):
    from normact.demo import run

    assert run.show_agreement(encoders, "cpu")
    monkeypatch.setattr(normact, "layer_norm", one_percent_off(normact.layer_norm))
    assert not run.show_agreement(encoders, "cpu")
    assert "FAIL" in capsys.readouterr().out


@needs_model
def test_demo_sees_a_wrong_backward(monkeypatch, capsys, tmp_path):
    from normact.demo import model, run

    monkeypatch.setattr(normact, "layer_norm_backward", one_percent_off(normact.layer_norm_backward))
    assert not run.show_training(model.load("cpu"), "cpu", 3, str(tmp_path / "losses.png"))
    assert "FAIL" in capsys.readouterr().out


@needs_model
@pytest.mark.parametrize("part", ["show_agreement", "show_training"])
def test_demo_exit_status(monkeypatch, part):
    from normact.demo import run

    for name in ("show_agreement", "show_search", "show_time", "show_training"):
        monkeypatch.setattr(run, name, lambda *args, passed=name != part: passed)
    assert demo.main(["--device", "cpu"]) == 1


@needs_model
def test_demo_replaces_every_norm(encoders):
    assert encoders.norms == 13
    assert not any(isinstance(module, torch.nn.LayerNorm) for module in encoders.fused.modules())
    names = [name for name, _ in encoders.original.named_parameters()]
    assert [name for name, _ in encoders.fused.named_parameters()] == names


@needs_model
def test_demo_norm_gradients():
    from normact.demo import model

    generator = torch.Generator().manual_seed(0)
    original = torch.nn.LayerNorm(48, dtype=torch.float64)
    with torch.no_grad():
        for parameter in original.parameters():
            parameter.copy_(torch.randn(48, generator=generator, dtype=torch.float64))
    norm = model.Norm(original)
    x, residual = (
        torch.randn(3, 5, 48, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2)
    )
    dy = torch.randn(3, 5, 48, generator=generator, dtype=torch.float64)
    inputs = (x, residual, original.weight, original.bias)
    torch.testing.assert_close(norm(x, residual), original(x + residual), rtol=1e-12, atol=1e-12)
    expected = torch.autograd.grad(original(x + residual), inputs, dy)
    found = torch.autograd.grad(norm(x, residual), inputs, dy)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


@needs_model
def test_demo_gelu_gradients():
    from normact.demo import model

    generator = torch.Generator().manual_seed(0)
    x, bias, dy = (
        torch.randn(size, generator=generator, dtype=torch.float64) for size in ((3, 5, 48), (48,), (3, 5, 48))
    )
    x.requires_grad_(True)
    bias.requires_grad_(True)
    original, fused = torch.nn.functional.gelu(x + bias), model.FusedBiasGelu.apply(x, bias)
    torch.testing.assert_close(fused, original, rtol=1e-12, atol=1e-12)
    expected, found = (torch.autograd.grad(y, (x, bias), dy) for y in (original, fused))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


# ---- Images ----


@needs_digits
def test_vision_whole_run(tmp_path):
    """Few steps: enough for losses to part if anything were wrong, too few to read well."""
    plot = tmp_path / "losses.png"
    result = subprocess.run(
        [sys.executable, "-m", "normact", "demo", "vision", "--steps", "8", "--plot", str(plot)],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    differences = re.findall(r"difference of the losses ([\d.e+-]+)", result.stdout)
    assert len(differences) == 2 and all(float(each) < 1e-9 for each in differences)
    assert re.search(r"Accuracy on 397 digits held out: PyTorch [\d.]+%, normact [\d.]+%", result.stdout)
    before, *after = re.search(r"Noise .*: ([\d.]+) before, PyTorch ([\d.]+), normact ([\d.]+)", result.stdout).groups()
    assert after[0] == after[1] < before
    if importlib.util.find_spec("matplotlib"):
        assert plot.read_bytes().startswith(b"\x89PNG")


@needs_digits
@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("batch_forward", "show_resnet"),
        ("batch_backward", "show_resnet"),
        ("group_forward", "show_unet"),
        ("group_backward", "show_unet"),
    ],
)
def test_vision_sees_a_wrong_norm(name, part, monkeypatch, capsys):
    from normact.demo import vision_run

    monkeypatch.setattr(channel_calls, name, one_percent_off(getattr(channel_calls, name)))
    monkeypatch.setattr(vision_run, "ROUNDS", 1)
    _, passed = getattr(vision_run, part)(vision_run.load("cpu"), "cpu", 3)
    assert not passed
    assert "FAIL" in capsys.readouterr().out


@needs_digits
@pytest.mark.parametrize("part", ["show_resnet", "show_unet"])
def test_vision_exit_status(monkeypatch, tmp_path, part):
    from normact.demo import vision_run

    losses = ([1.0, 0.5], [1.0, 0.5])
    for name in ("show_resnet", "show_unet"):
        monkeypatch.setattr(vision_run, name, lambda *args, passed=name != part: (losses, passed))
    assert demo.main(["vision", "--device", "cpu", "--plot", str(tmp_path / "losses.png")]) == 1


def test_demo_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(demo, "REQUIRED", {"text": ("torch", "no_such_package"), "vision": ("no_such_images",)})
    assert demo.main([]) == 2
    assert capsys.readouterr().err == "The demo needs no_such_package: pip install 'normact[demo]'\n"
    assert demo.main(["vision"]) == 2
    assert capsys.readouterr().err == "The demo needs no_such_images: pip install 'normact[demo]'\n"


def test_demo_refuses_a_gpu_that_is_not_there(monkeypatch, capsys):
    if demo.missing_packages():
        pytest.skip("pip install normact[demo]")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert demo.main(["--device", "cuda"]) == 2
    assert "PyTorch finds no GPU" in capsys.readouterr().err


def test_chart_marks_where_curves_part():
    first, second = [4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.0, 3.0]
    lines = terminal.chart(first, second, ("one", "two"), height=5)
    cells = [line.split("│")[1] if "│" in line else line.split("|")[1] for line in lines[:5]]
    assert [sum(row[column] != " " for row in cells) for column in range(4)] == [1, 1, 1, 2]
    assert float(lines[0].split()[0]) == 4.0
    assert float(lines[4].split()[0]) == 0.0


def test_chart_of_constant_curves():
    assert all(math.isfinite(float(line.split()[0])) for line in terminal.chart([0.0] * 3, [0.0] * 3, ("a", "b"))[:10])


def test_chart_of_a_diverged_curve():
    lines = terminal.chart([2.0, 1.0], [2.0, math.nan], ("a", "b"), height=3)
    assert [len(line[10:].replace(" ", "")) for line in lines[:3]] == [2, 1, 0]
