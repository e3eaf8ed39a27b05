# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite's contestants and runs: what is checked before it is timed, ours and the rivals'."""

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import groups, records
from bench.cases import Case
from bench.copies import CopyCurve
from bench.timing import Sample

SMOKE = [c for c in groups.cases_of(["smoke", "smoke_activations"]) if c.rows < 1000]


@pytest.mark.parametrize("kind", groups.KINDS)
def test_formulas_are_the_reference(kind):
    """PyTorch's functions in float64, which check results here, against the tests' own reference."""
    torch = pytest.importorskip("torch")
    from bench import baselines, formulas, operands

    import reference_activation

    torch.manual_seed(0)
    case = Case(kind, "backward", "fp64", (64, 96))
    o = operands.make_operands(case, "cpu")
    numbers = ({"leaky_relu": 0.01}.get(kind, 1.0), 1.0, 20.0)
    x, dy = o.x.numpy(), o.dy.numpy()
    y, _ = formulas.reference(case)(o.x, None, None, None)
    assert y.numpy() == pytest.approx(getattr(reference_activation, kind)(x, *numbers), rel=1e-12, abs=1e-14)
    slope = getattr(reference_activation, f"{kind}_slope")(x, *numbers)
    exact, eager = baselines._autograd_run(formulas.reference(case), o), baselines.torch_eager(case, o)
    for call, rel in ((exact, 1e-12), (eager, 1e-7)):
        assert call()["dx"].numpy() == pytest.approx(dy * slope, rel=rel, abs=1e-14)


@pytest.mark.parametrize("name", groups.ACTIVATED)
def test_formulas_of_norms_with_activations(name):
    """The bare norm's and then the activation's; where relu's argument is about 0, no gradient comes in."""
    torch = pytest.importorskip("torch")
    from bench import formulas, operands

    torch.manual_seed(0)
    case = Case(name, "backward", "bf16", (64, 96))
    o = operands.make_operands(case, "cpu")
    o.x, o.weight, o.bias = (None if t is None else t.double() for t in (o.x, o.weight, o.bias))
    h, _ = formulas.reference(case, activated=False)(o.x, None, o.weight, o.bias)
    y, _ = formulas.reference(case)(o.x, None, o.weight, o.bias)
    assert torch.equal(y, formulas.EXACT[case.operation.applied](h))
    at_corner = h.abs() < 0.05
    assert at_corner.any() and bool((o.dy[at_corner] == 0).all()) == (case.operation.applied == "relu")


@pytest.mark.parametrize("name", groups.GATES)
def test_formulas_of_gates_are_the_reference(name):
    torch = pytest.importorskip("torch")
    from bench import baselines, formulas, operands

    import reference_activation

    torch.manual_seed(0)
    case = Case(name, "backward", "fp64", (16, 24))
    o = operands.make_operands(case, "cpu")
    x, dy, act, nothing = o.x.numpy(), o.dy.numpy(), case.operation.activation, (0.0, 1.0, 20.0)
    interleaved = case.operation.layout == "interleaved"
    gate, up = (x[:, 0::2], x[:, 1::2]) if interleaved else (x[:, :24], x[:, 24:])
    value = getattr(reference_activation, act)(gate, *nothing)
    slope = getattr(reference_activation, f"{act}_slope")(gate, *nothing)
    y, _ = formulas.reference(case)(o.x, None, None, None)
    assert y.numpy() == pytest.approx(reference_activation.gated(value, up, 0.0), rel=1e-12, abs=1e-14)
    dgate, dup = reference_activation.gated_slopes(value, slope, gate, up, up, math.inf, 0.0)
    dx = baselines._autograd_run(formulas.reference(case), o)()["dx"].numpy()
    found = (dx[:, 0::2], dx[:, 1::2]) if interleaved else (dx[:, :24], dx[:, 24:])
    assert found[0] == pytest.approx(dy * dgate, rel=1e-12, abs=1e-14)
    assert found[1] == pytest.approx(dy * dup, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("name", [c.name for c in SMOKE])
def test_rivals_are_right(name):
    """Where the suite has them: PyTorch everywhere, JAX on the CPU but of two dtypes; others have no activations."""
    torch = pytest.importorskip("torch")
    from bench import baselines, contest, operands

    torch.manual_seed(0)
    case = Case.parse(name)
    o = operands.make_operands(case, "cpu")
    rivals = ["torch"]
    try:
        import jax  # noqa: F401
    except ImportError:
        pass
    else:
        rivals += [] if case.operation.mixed else ["jax"]
    for rival in rivals:
        _, notes = contest.admit(baselines.RIVALS[rival], case, o)
        if case.dtype == "fp32" or case.family != "norm" and rival == "torch":  # in bfloat16 some round what they sum
            assert notes == {}, rival
    if case.family != "norm":
        for rival in ("liger", "quack", "apex", "onednn"):
            with pytest.raises(contest.MissingError):
                baselines.RIVALS[rival](case, o)


@pytest.mark.parametrize("name", [c.name for c in SMOKE])
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
            if output is None:
                continue
            kept = output.flatten()[3].clone()
            for wrong in (torch.nan, float(kept) + 0.05 * max(1.0, abs(float(kept)))):
                output.view(-1)[3] = wrong
                with pytest.raises(operands.WrongResultError, match=key):
                    operands.check(case, o, outputs)
            output.view(-1)[3] = kept


def test_gpu_record_of_a_case(monkeypatch):
    """The GPU run with its clock replaced: what is checked before timing, and what becomes of rivals that fail."""
    pytest.importorskip("torch")
    from bench import baselines, gpu

    class Replayed:
        """Runs the calls where a graph would be replayed."""

        def __init__(self, calls):
            self.calls, self.outputs = calls, [None] * len(calls)

        def replay(self):
            self.outputs = [call() for call in self.calls]

    def make_on_cpu(case, device):
        assert device == "cuda"
        return make_operands(case, "cpu")

    make_operands = gpu.make_operands
    monkeypatch.setattr(gpu, "GraphTimer", Replayed)
    monkeypatch.setattr(gpu, "make_operands", make_on_cpu)
    monkeypatch.setattr(gpu, "gpu_samples", lambda timers: {name: Sample((8.0, 10.0, 12.0)) for name in timers})
    case, curve = Case.parse("layer_norm/forward/fp32/16x64"), CopyCurve([(1, 5.0, "memcpy"), (1 << 40, 5.0, "memcpy")])
    off = lambda case, o: lambda: {"y": o.x + 1}  # noqa: E731
    monkeypatch.setitem(baselines.RIVALS, "liger", off)
    record = gpu.measure(case, ["torch", "liger", "apex"], curve, case.compulsory_bytes)
    assert record["sets"] == 4 and "R_mix" not in record
    mix = CopyCurve([(1, 4.0, "kernel"), (1 << 40, 4.0, "kernel")])
    for name in ("bias_relu/backward/bf16/2x8x4x4", "swiglu_interleaved/backward/fp32/16x64"):
        other = Case.parse(name)
        found = gpu.measure(other, ["torch"], curve, other.compulsory_bytes, mix)
        assert found["R"] == pytest.approx(0.5) and found["R_mix"] == pytest.approx(0.4)
        assert found["contestants"].keys() == {"normact", "torch"}
        assert "wrong" not in found["contestants"]["torch"] and name.split("/")[-1] in gpu.line_of(other, found)
    activated = Case.parse("rms_norm_silu/forward/bf16/16x64")
    found = gpu.measure(activated, [], curve, activated.compulsory_bytes)
    assert found["contestants"].keys() == {"normact", "bare"}
    assert record["R"] == record["contestants"]["torch"]["R"] == pytest.approx(0.5)
    assert record["contestants"]["torch"].keys() == {"us", "spread", "R", "samples"}
    assert "expected" in record["contestants"]["liger"]["wrong"] and "us" in record["contestants"]["liger"]
    assert "apex" in record["contestants"]["apex"]["missing"]
    assert "liger 0.500!" in gpu.line_of(case, record)

    monkeypatch.setattr(gpu.ours, "preallocated", lambda case, o: lambda: {"y": o.y, "mean": o.mean})  # does nothing
    with pytest.raises(gpu.WrongResultError, match="is nan"):
        gpu.measure(case, [], curve, case.compulsory_bytes)


def test_cpu_run_end_to_end(tmp_path, capsys):
    pytest.importorskip("torch")
    from bench import run

    arguments = ["cpu", "--groups", "smoke", "--filter", "fp32/128x1024", "--rivals", "torch,apex", "--threads", "1"]
    assert run.main([*arguments, "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "layer_norm forward, fp32 in cache, 1 thread" in out
    lines = records.read(tmp_path.glob("*/*.jsonl"))
    assert len(lines) == 14  # seven operations, two directions
    for line in lines:
        found = line["contestants"]
        assert found["normact"]["us"] > 0 and found["torch"]["us"] > 0 and "wrong" not in found["torch"]
        assert "missing" in found["apex"]
    assert run.main(["cpu", "--filter", "nothing at all", "--output", str(tmp_path)]) == 2
    capsys.readouterr()
    assert run.main([*arguments, "--time-limit", "0", "--output", str(tmp_path / "none")]) == 0
    assert "14 of 14 cases not run" in capsys.readouterr().out
    arguments = ["cpu", "--groups", "smoke_activations", "--filter", "fp32", "--rivals", "none", "--threads", "1"]
    assert run.main([*arguments, "--output", str(tmp_path / "activations")]) == 0
    out = capsys.readouterr().out
    assert "gelu forward, fp32 in cache, 1 thread" in out and "layer_norm" not in out
    assert len(records.read((tmp_path / "activations").glob("*/*.jsonl"))) == 14  # seven operations, two directions


def test_host_run_end_to_end(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("the run would measure the GPU")
    from bench import run

    assert run.main(["host", "--output", str(tmp_path)]) == 0
    lines = records.read(tmp_path.glob("*/*.jsonl"))
    assert {"normact out=", "normact", "torch", "normact, NumPy"} <= set(lines[0]["contestants"])
    assert {f"{name}, forward and backward" for name in ("torch", "normact.torch")} <= set(lines[0]["contestants"])
