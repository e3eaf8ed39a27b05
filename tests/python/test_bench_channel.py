# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite on batch, group and instance norms: bytes, groups, operands, the float64 check, targets."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import groups, operations, records, targets
from bench.cases import Case

from channel_cases import packed

MIB = 1 << 20
SMOKE = [case.name for case in groups.cases_of(["smoke_channel"])]
N = 4 * 64 * 9  # elements of 4x64x3x3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # x, y; weight, bias of fp32; mean, rstd of channels
        ("batch_norm_nchw/forward/bf16/4x64x3x3", 2 * N * 2 + 2 * 64 * 4 + 2 * 64 * 4),
        # dy, x, dx; weight, dweight, dbias; mean, rstd
        ("batch_norm_relu_nhwc/backward/bf16/4x64x3x3", 3 * N * 2 + 3 * 64 * 4 + 2 * 64 * 4),
        # x, addend, y; weight, bias; mean, rstd; the mask
        ("batch_norm_add_relu_nhwc/forward/fp32/4x64x3x3", 3 * N * 4 + 2 * 64 * 4 + 2 * 64 * 4 + N // 8),
        # dy, x, dx, daddend; the mask in place of the addend
        ("batch_norm_add_relu_nchw/backward/bf16/4x64x3x3", 4 * N * 2 + 3 * 64 * 4 + 2 * 64 * 4 + N // 8),
        # x, y; weight, bias of bf16; mean, rstd of 4 * 32 groups
        ("group_norm_silu_nchw/forward/bf16/4x64x3x3", 2 * N * 2 + 2 * 64 * 2 + 2 * 4 * 32 * 4),
        # dy, x, dx; mean, rstd of 4 * 64 channels
        ("instance_norm_nhwc/backward/fp32/4x64x3x3", 3 * N * 4 + 3 * 64 * 4 + 2 * 4 * 64 * 4),
    ],
)
def test_compulsory_bytes(name, expected):
    case = Case.parse(name)
    assert case.name == name
    assert case.compulsory_bytes == expected


def test_groups_are_those_of_the_targets():
    batch = groups.cases_of(["batch_norm"])
    shapes = {case.shape for case in batch if case.dtype == "bf16"}
    assert shapes == {
        (n, c, h, h) for n in (32, 64, 256) for c, h in ((64, 112), (256, 56), (512, 28), (1024, 14), (2048, 7))
    }
    acts, layouts = ("", "_relu", "_add_relu"), ("nchw", "nhwc")
    assert {case.op for case in batch} == {f"batch_norm{act}_{layout}" for act in acts for layout in layouts}
    group = groups.cases_of(["group_norm"])
    assert "group_norm_silu_nchw/forward/bf16/1x128x20x256x256" in {case.name for case in group}
    assert all(case.shape[1] % case.groups == 0 for case in group)
    assert any(2 * MIB <= case.tensor_bytes <= 20 * MIB for case in group)
    assert any(case.tensor_bytes >= 64 * MIB and case.kind == "instance_norm" for case in group)


@pytest.mark.parametrize("name", SMOKE)
def test_operands_have_the_layout_and_no_gradient_at_the_corner(name):
    torch = pytest.importorskip("torch")
    from bench import operands
    from bench.formulas import reference

    torch.manual_seed(0)
    case = Case.parse(name)
    o = operands.make_operands(case, "cpu")
    form = torch.channels_last if case.operation.layout == "nhwc" else torch.contiguous_format
    for tensor in (o.x, o.y, o.dy, o.dx, o.addend, o.daddend):
        assert tensor is None or tuple(tensor.shape) == case.shape
        away = tensor is o.x and case.operation.layout in operations.AWAY
        assert tensor is None or tensor.is_contiguous(memory_format=form) != away
    assert o.weight.dtype == (torch.float32 if case.kind == "batch_norm" else o.x.dtype)
    if case.direction == "backward" and case.operation.applied == "relu":
        addend = None if o.addend is None else o.addend.double()
        h = reference(case, activated=False)(o.x.double(), addend, o.weight.double(), o.bias.double())[0]
        near = h.abs() < 1e-6
        assert (o.dy[near] == 0).all() and (o.dy != 0).float().mean() > 0.8
        if o.mask is not None:
            np.testing.assert_array_equal(o.mask.numpy(), packed((h > 0).numpy(), 1, case.operation.layout == "nhwc"))


@pytest.mark.parametrize("name", SMOKE)
def test_rivals_are_right(name):
    torch = pytest.importorskip("torch")
    from bench import baselines, contest, operands

    torch.manual_seed(0)
    case = Case.parse(name)
    o = operands.make_operands(case, "cpu")
    _, notes = contest.admit(baselines.RIVALS["torch"], case, o)
    assert notes == {}
    for rival in ("liger", "quack", "apex", "jax", "onednn"):
        with pytest.raises(contest.MissingError):
            baselines.RIVALS[rival](case, o)


@pytest.mark.parametrize("name", SMOKE)
def test_float64_check_accepts_us_and_catches_every_output(name):
    torch = pytest.importorskip("torch")
    from bench import operands, ours

    torch.manual_seed(0)
    case = Case.parse(name)
    o = operands.make_operands(case, "cpu")
    for build in ours.CONTESTANTS.values():
        o.poison()
        outputs = build(case, o)()
        operands.check(case, o, outputs)
        for key, output in outputs.items():
            if output is None or key == "mask":
                continue
            index = tuple(size // 2 for size in output.shape)
            kept = output[index].clone()
            for wrong in (torch.nan, float(kept) + 0.05 * max(1.0, abs(float(kept)))):
                output[index] = wrong
                with pytest.raises(operands.WrongResultError, match=key):
                    operands.check(case, o, outputs)
            output[index] = kept


def test_slices_cover_everything(monkeypatch):
    """Float64 copies are made of slices of the channels or the samples; what is checked is the same."""
    torch = pytest.importorskip("torch")
    from bench import channel_operands, operands, ours

    monkeypatch.setattr(channel_operands, "CHUNK", 1000)
    for name in SMOKE:
        torch.manual_seed(0)
        case = Case.parse(name)
        o = operands.make_operands(case, "cpu")
        o.poison()
        outputs = ours.preallocated(case, o)()
        operands.check(case, o, outputs)
        first = outputs["y" if case.direction == "forward" else "dx"]
        first[-1, -1, -1, -1] += 1
        with pytest.raises(operands.WrongResultError):
            operands.check(case, o, outputs)


def record(case: Case, R: float, torch_R: float, us: float = 100.0) -> dict:  # noqa: N803
    contestants = {
        "normact": {"us": us, "R": R},
        "torch": {"us": us * R / torch_R, "R": torch_R},
        "compile": {"us": us * R / (2.5 * torch_R), "R": 2.5 * torch_R},
    }
    return {"case": case.name, "R": R, "contestants": contestants}


def test_targets_are_judged():
    found = groups.cases_of(["batch_norm", "group_norm", "layouts"])
    good = targets.judge([record(case, 0.8, 0.1) for case in found], "gpu")
    assert {v.target.name for v in good if v.mark == "FAIL"} == set()
    assert all(v.cells for v in good if "beyond the chip" not in v.target.name), [
        v.target.name for v in good if not v.cells
    ]
    bad = {v.target.name: v.mark for v in targets.judge([record(case, 0.5, 0.2, 200.0) for case in found], "gpu")}
    failed = [
        "batch norm forward, on chip",
        "batch norm backward, on chip",
        "batch norm forward, larger, of two reads",
        "group, instance norm backward, 64 MiB and more",
        "batch norm against the best rival (times faster)",
        "batch norm against torch (times faster)",
        "group, instance norm against torch (times faster)",
        "group_norm_silu_nchw/forward/bf16/1x128x20x256x256, microseconds",
    ]
    assert all(bad[name] == "FAIL" for name in failed), bad


def test_two_reads_are_counted():
    """Where x is read twice, R = 2/3 of a forward and 3/5 of a backward is all that there is; less with an addend."""
    for name, share in (
        ("batch_norm_nchw/forward/bf16/256x64x112x112", 2 / 3),
        ("batch_norm_relu_nhwc/backward/bf16/256x64x112x112", 3 / 5),
        ("batch_norm_add_relu_nhwc/forward/bf16/256x64x112x112", 3 / 4),
        ("batch_norm_add_relu_nhwc/backward/bf16/256x64x112x112", 4 / 6),
    ):
        assert targets.of_two_reads({"case": name, "R": share}) == pytest.approx(1.0)


def test_cpu_run_end_to_end(tmp_path, capsys):
    pytest.importorskip("torch")
    from bench import run

    arguments = ["cpu", "--groups", "smoke_channel", "--filter", "fp32", "--rivals", "torch", "--threads", "1"]
    assert run.main([*arguments, "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "group_norm, NHWC (times faster)" in out and "layer_norm" not in out
    lines = records.read(tmp_path.glob("*/*.jsonl"))
    assert len(lines) == 28  # six operations in two layouts and one in two more, two directions
    assert all("wrong" not in line["contestants"]["torch"] for line in lines)
