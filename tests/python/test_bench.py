# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite: what it counts, checks, records, reports and compares. Timings themselves are not asserted."""

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import compare, groups, plots, records, report, targets
from bench.cases import OPS, Case
from bench.copies import CopyCurve
from bench.timing import Sample, cpu_samples, rotation

MIB = 1 << 20


# ---- cases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # x, y; weight, bias; mean, rstd
        ("layer_norm/forward/bf16/8x16", 2 * 8 * 16 * 2 + 2 * 16 * 2 + 2 * 8 * 4),
        # dy, x, dx; weight, dweight, dbias; mean, rstd
        ("layer_norm/backward/fp32/8x16", 3 * 8 * 16 * 4 + 3 * 16 * 4 + 2 * 8 * 4),
        # x, y; weight; rstd
        ("rms_norm/forward/fp64/8x16", 2 * 8 * 16 * 8 + 16 * 8 + 8 * 8),
        # dy, x, dx; weight, dweight; rstd
        ("rms_norm/backward/fp16/8x16", 3 * 8 * 16 * 2 + 2 * 16 * 2 + 8 * 4),
        # x, residual, y, sum; weight, bias; mean, rstd
        ("add_layer_norm/forward/fp32/8x16", 4 * 8 * 16 * 4 + 2 * 16 * 4 + 2 * 8 * 4),
        # dy, sum, gradient of the sum, dx; weight, dweight; rstd
        ("add_rms_norm/backward/bf16/8x16", 4 * 8 * 16 * 2 + 2 * 16 * 2 + 8 * 4),
        # x, y, and twice as large residual, sum; fp32 weight, bias; mean, rstd
        ("mixed_add_layer_norm/forward/bf16/8x16", 2 * 8 * 16 * (2 + 4) + 2 * 16 * 4 + 2 * 8 * 4),
        # dy, dx, and twice as large sum, gradient of the sum, that of the residual; fp32 weight, dweight; rstd
        ("mixed_add_rms_norm/backward/bf16/8x16", 8 * 16 * (2 * 2 + 3 * 4) + 2 * 16 * 4 + 8 * 4),
        # x, y
        ("gelu/forward/bf16/8x16", 2 * 8 * 16 * 2),
        # dy, x, dx
        ("gelu/backward/fp32/8x16", 3 * 8 * 16 * 4),
        # x, y; bias
        ("bias_silu/forward/fp32/8x16", 2 * 8 * 16 * 4 + 16 * 4),
        # dy, x, dx; bias, dbias of the channels
        ("bias_relu/backward/bf16/4x8x5x5", 3 * 4 * 8 * 25 * 2 + 2 * 8 * 2),
        # gate and up, y
        ("swiglu/forward/bf16/8x16", 3 * 8 * 16 * 2),
        # dy, gate and up, their gradients
        ("swiglu_interleaved/backward/fp32/8x16", 5 * 8 * 16 * 4),
    ],
)
def test_compulsory_bytes(name, expected):
    case = Case.parse(name)
    assert case.name == name
    assert case.compulsory_bytes == expected


def test_roofline_group_is_the_grid_of_the_targets():
    found = groups.cases_of(["roofline"])
    assert all(case.tensor_bytes >= 64 * MIB for case in found)
    assert all(case.tensor_bytes < 256 * MIB for case in found), "rows are the fewest that reach the size"
    columns = {case.cols for case in found if case.band == "wide"}
    assert {768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 12288, 16384} <= columns
    assert {case.cols for case in found if case.band == "huge"} == {32768, 65536, 131072, 262144}
    assert {case.cols for case in found if case.band == "narrow"} == {64, 128, 256}
    assert {case.cols for case in found if case.band == "odd"} == {33, 65, 127, 129, 255, 1001, 4097, 8191}
    assert {case.cols for case in groups.cases_of(["wide_odd"]) if case.band == "odd"} == set(groups.WIDE_ODD)
    for case in found:  # both directions of both norms in both types
        for op in ("layer_norm", "rms_norm"):
            assert any(c.op == op and c.direction != case.direction and c.cols == case.cols for c in found)


def test_activation_groups_are_those_of_the_targets():
    found = groups.cases_of(["activations"])
    assert {case.op for case in found} == set(groups.KINDS)
    for dtype in ("bf16", "fp32"):
        for direction in ("forward", "backward"):
            sizes = [c.tensor_bytes for c in found if c.op == "mish" and (c.dtype, c.direction) == (dtype, direction)]
            assert sorted(sizes) == [64 * MIB, 256 * MIB]
    gates = groups.cases_of(["gated"])
    assert {case.cols for case in gates} == {5504, 11008, 14336, 28672}
    assert all(case.tensor_bytes >= 64 * MIB and case.input_shape[-1] == 2 * case.cols for case in gates)
    images = [case for case in groups.cases_of(["bias"]) if len(case.shape) == 4]
    assert {case.op for case in images} == {"bias_relu"} and {case.axis for case in images} == {1}
    cpu = groups.cases_of(["cpu_activations"])
    assert {case.op for case in cpu} == set(groups.KINDS) | set(groups.FROM_OUTPUT) | set(groups.BIASED) | set(
        groups.GATES
    )
    assert len(groups.cases_of(["activations", "bias", "gated"])) <= 220, "a minute on a fast GPU"


def test_every_operation_is_in_a_group_and_every_kind_is_an_operation():
    normact = pytest.importorskip("normact")
    assert tuple(normact._core.ACTIVATIONS) == groups.KINDS
    assert {case.op for name in groups.GROUPS for case in groups.cases_of([name])} == set(OPS)


def test_groups_hold_distinct_cases_and_unions_hold_each_once():
    for name in groups.GROUPS:
        found = groups.cases_of([name])
        assert len(found) == len(set(found)) > 0
    both = groups.cases_of(["smoke", "peers", "smoke"])
    assert len(both) == len(set(both)) == len(set(groups.cases_of(["smoke"])) | set(groups.cases_of(["peers"])))


# ---- timing and the copy curve --------------------------------------------------------------------------------------


def test_rotation_exceeds_four_times_the_cache():
    l2 = 50 * MIB
    assert rotation(128 * MIB, l2) == 2  # 256 MiB
    assert rotation(16 * MIB, l2) * 16 * MIB >= 4 * l2 > (rotation(16 * MIB, l2) - 1) * 16 * MIB
    assert rotation(1, l2) == 512  # bounded


def test_sample_statistics():
    sample = Sample((4.0, 1.0, 2.0, 3.0, 5.0))
    assert sample.median == 3.0
    assert sample.spread == pytest.approx((4.5 - 1.5) / 2 / 3.0)


def test_cpu_samples_take_turns_and_time_every_contestant():
    order = []
    found = cpu_samples({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, samples=3)
    assert set(found) == {"a", "b"}
    assert all(len(sample.us) == 3 and sample.median > 0 for sample in found.values())
    turns = [name for name, before in zip(order[10:], order[9:], strict=False) if name != before]
    assert turns == ["a", "b", "a", "b", "a", "b"]


def test_copy_curve_interpolates_and_extrapolates():
    curve = CopyCurve([(100, 1.0, "memcpy"), (400, 4.0, "kernel"), (1600, 8.0, "kernel")])
    assert curve.us(10) == 1.0  # a launch is not free
    assert curve.us(400) == pytest.approx(4.0)
    assert curve.us(200) == pytest.approx(2.0)
    assert curve.us(800) == pytest.approx(math.sqrt(32))
    assert curve.us(3200) == pytest.approx(16.0)
    assert curve.roofline(400, 8.0) == pytest.approx(0.5)


# ---- records, targets, report, compare ------------------------------------------------------------------------------

RUN = {"mode": "gpu", "device": "Test GPU 1", "commit": "0123456789abcdef", "dirty": False, "versions": {"torch": "2"}}
RUN |= {"driver": "1", "cuda": "13.0", "cpus": 2, "date": "2026-01-01T00:00:00Z"}


def gpu_record(case: Case, R: float, rival: float, us: float = 100.0) -> dict:  # noqa: N803
    def one(r):
        return {"us": us * R / r, "spread": 0.01, "R": r, "samples": [us * R / r + i / 100 for i in range(-5, 6)]}

    contestants = {"normact": one(R), "torch": one(rival), "quack": {"missing": "quack: not installed"}}
    if case.family == "norm" and case.operation.applied:
        contestants["bare"] = one(0.97)
    return {"case": case.name, "bytes": case.compulsory_bytes, "R": R, "gbps": 1.0, "copy_us": us * R} | {
        "contestants": contestants
    }


def write_record(folder: Path, entries: list[dict], **run) -> Path:
    recorder = records.Recorder(folder, RUN | run)
    recorder.write("copy", {"points": [(1, 1.0, "memcpy")]})
    for item in entries:
        recorder.write("gpu", item)
    return recorder.path


def test_records_round_trip(tmp_path):
    path = write_record(tmp_path, [gpu_record(case, 0.96, 0.5) for case in groups.cases_of(["smoke"])])
    assert path == tmp_path / "test-gpu-1" / "2026-01-01-0123456789.jsonl"
    lines = records.read([path])
    assert [line["record"] for line in lines] == ["copy"] + ["gpu"] * len(groups.cases_of(["smoke"]))
    assert all(line["run"]["device"] == "Test GPU 1" for line in lines)
    orphan = tmp_path / "orphan.jsonl"
    orphan.write_text(json.dumps({"record": "gpu"}) + "\n")
    with pytest.raises(ValueError, match="before any line of kind 'run'"):
        records.read([orphan])


def test_targets_are_judged():
    grid, activated = groups.cases_of(["roofline", "images"]), groups.cases_of(["activated"])
    good = targets.judge([gpu_record(case, 0.96, 0.5) for case in grid + activated], "gpu")
    assert {v.mark for v in good} == {"pass"}
    assert sum(v.cells for v in good if v.target.metric is targets.roofline) == len(grid)
    slow = {case: 0.4 if case.cols == 4096 and case.direction == "forward" else 0.96 for case in grid}
    bad = targets.judge([gpu_record(case, r, 0.5) for case, r in slow.items()], "gpu")
    failed = {v.target.name for v in bad if v.mark == "FAIL"}
    assert failed == {
        "forward, 768..16384 columns, bf16",
        "forward, 768..16384 columns, fp32",
        "no cell slower than PyTorch (times faster)",
    }
    assert {v.mark for v in targets.judge([], "gpu")} == {"not measured"}
    assert all("worst 0.400" in line for line in targets.verdict_lines([v for v in bad if "768" in v.target.name]))
    bad = targets.judge([gpu_record(case, 0.4 if case.images else 0.96, 0.2) for case in grid], "gpu")
    slow = targets.judge([gpu_record(case, 0.9, 0.5) for case in activated], "gpu")
    failed = [v for v in slow if v.mark == "FAIL"]
    assert len(failed) == 4 and all("against the bare one" in v.target.name for v in failed)
    assert sum(v.cells for v in failed) == len(activated)
    of_images = {f"norms over axis 1 of images, {way}, {dtype}" for way in groups.DIRECTIONS for dtype in groups.TYPES}
    assert {v.target.name for v in bad if v.mark == "FAIL"} == of_images


def test_activation_targets_are_judged_apart_from_those_of_norms():
    grid = groups.cases_of(["activations", "bias", "gated"])

    def judged(R):  # noqa: N803
        found = [gpu_record(case, R, R / 1.6) for case in grid]
        for record in found:
            record["contestants"]["compile"] = record["contestants"]["torch"]
        return {v.target.name: v for v in targets.judge(found, "gpu")}

    good = judged(0.97)
    assert {v.mark for v in good.values()} == {"pass"}
    large = [case for case in grid if case.tensor_bytes >= 64 * MIB]
    assert sum(v.cells for v in good.values() if v.target.metric is targets.roofline) == len(large)
    bad = {name for name, v in judged(0.93).items() if v.mark == "FAIL"}
    where = ("activations forward", "activations backward", "bias and activation forward")
    where += ("gated activations forward", "gated activations backward")
    assert bad == {f"{name}, {dtype}" for name in where for dtype in ("bf16", "fp32")}
    goals = {name: v.target.goal for name, v in good.items()}
    assert goals["gelu against torch (times faster)"] == goals["gelu against compile (times faster)"] == 1.2
    assert goals["bias_gelu forward against compile (times faster)"] == 1.3
    assert goals["bias_gelu backward against compile (times faster)"] == 1.5
    norms = groups.cases_of(["roofline", "smoke_channel"])
    mixed = targets.judge([gpu_record(case, 0.96, 0.5) for case in grid + norms], "gpu")
    assert len(mixed) == len(targets.judge([], "gpu"))  # every target of both


def test_cpu_targets_of_activations():
    def record(name, faster, threads=1):
        contestants = {"normact-fresh": {"us": 10.0}, "normact": {"us": 9.0}, "torch": {"us": 10.0 * faster}}
        return {"case": name, "threads": threads, "contestants": contestants}

    lines = [
        record("gelu/forward/fp32/128x1024", 1.6),
        record("gelu/forward/fp32/128x1024", 0.5, threads=2),
        record("gelu/backward/fp32/128x1024", 2.2),
        record("gelu_tanh/forward/fp32/128x1024", 4.5),
        record("gelu_tanh/backward/fp32/128x1024", 4.5),
        record("bias_relu/forward/bf16/4096x4096", 0.9, threads=2),
    ]
    marks = {v.target.name: (v.mark, v.cells) for v in targets.judge(lines, "cpu")}
    assert marks == {
        "gelu forward, fp32 in cache, 1 thread (times faster)": ("pass", 1),
        "gelu backward, fp32 in cache, 1 thread (times faster)": ("FAIL", 1),
        "gelu_tanh both ways, fp32 in cache, 1 thread (times faster)": ("pass", 2),
        "no activation in memory slower than PyTorch (times faster)": ("FAIL", 1),
    }


def test_cpu_ratios_hold_like_against_like():
    contestants = {
        "normact": {"us": 4.0},
        "normact-fresh": {"us": 5.0},
        "torch": {"us": 10.0},
        "jax": {"missing": "why"},
    }
    record = {"contestants": contestants | {"onednn": {"us": 10.0, "preallocated": True}}}
    assert targets.times_faster(record, "torch") == 2.0
    assert targets.times_faster(record, "onednn") == 2.5
    assert targets.times_faster(record, "jax") is None
    assert targets.times_faster({"contestants": {"normact": {"us": 4.0}, "torch": {"us": 10.0}}}, "torch") == 2.5


def test_host_targets_are_upper_bounds():
    def host(us):
        contestants = {"normact out=": {"us": us}, "normact": {"us": 8.0}}
        return {"case": "layer_norm/forward/bf16/128x1024", "device": "cuda", "contestants": contestants}

    assert [v.mark for v in targets.judge([host(4.9)], "host")] == ["pass", "pass"]
    assert [v.mark for v in targets.judge([host(4.9), host(5.1)], "host")] == ["FAIL", "pass"]
    assert [v.mark for v in targets.judge([host(1.0) | {"device": "cpu"}], "host")] == ["not measured"] * 2


def test_report_shows_the_newest_numbers_and_every_kind(tmp_path):
    results, grid = tmp_path / "results", groups.cases_of(["roofline", "small"])
    write_record(results, [gpu_record(case, 0.5, 0.4) for case in grid])
    write_record(results, [gpu_record(case, 0.96, 0.5) for case in grid], date="2026-01-02T00:00:00Z")
    forced = {"date": "2026-01-03T00:00:00Z", "variant": "stream"}
    write_record(results, [gpu_record(case, 0.1, 0.1) for case in grid], **forced)
    page = tmp_path / "RESULTS.md"
    report.write_report(results, page, plot=False)
    text = page.read_text()
    assert "## Test GPU 1" in text
    assert "0.960" in text and "0.500" not in text and "0.100" not in text
    assert "quack is missing: quack: not installed" in text
    assert "FAIL" not in text
    assert text.count("| rms_norm | backward |") >= len([c for c in grid if c.name.startswith("rms_norm/backward")])
    again = page.read_text()
    report.write_report(results, page, plot=False)
    assert page.read_text() == again


def test_a_rival_that_was_not_part_of_the_last_run_keeps_its_numbers():
    def line(date, **us):
        found = {name: {"us": time} for name, time in us.items()} | {"quack": {"missing": "not installed"}}
        run = {"date": date}
        return {"record": "gpu", "case": "silu/forward/bf16/8x8", "run": run, "contestants": found}

    first, second, third = line("1", normact=9.0, torch=5.0, compile=3.0), line("2", normact=2.0, torch=4.0), line("0")
    for order in ([first, second, third], [third, second, first]):
        (newest,) = report.newest(order)
        found = {name: of.get("us") for name, of in newest["contestants"].items()}
        assert found == {"normact": 2.0, "torch": 4.0, "compile": 3.0, "quack": None}
    cpu = [{**each, "record": "cpu"} for each in (first, second)]  # there, all is held against the same process
    assert "compile" not in report.newest(cpu)[0]["contestants"]


def test_plots_are_drawn_from_the_records(tmp_path):
    pytest.importorskip("matplotlib")
    results = tmp_path / "results"
    write_record(results, [gpu_record(case, 0.96, 0.5) for case in groups.cases_of(["roofline", "small"])])
    report.write_report(results, tmp_path / "RESULTS.md")
    names = {path.name for path in (tmp_path / "plots" / "test-gpu-1").iterdir()}
    assert names == {"columns-bf16.svg", "columns-fp32.svg", "size-bf16.svg", "size-fp32.svg"}
    for name in names:
        assert f"(plots/test-gpu-1/{name})" in (tmp_path / "RESULTS.md").read_text()
        assert "layer_norm" not in name and (tmp_path / "plots" / "test-gpu-1" / name).stat().st_size > 1000


def cpu_record(case: Case, faster: float, threads: int) -> dict:
    def one(us):
        return {"us": us, "spread": 0.01, "samples": [us] * 5}

    contestants = {"normact": one(9.0), "normact-fresh": one(10.0), "torch": one(10.0 * faster)}
    contestants["jax"] = {"missing": "why"}
    return {"case": case.name, "bytes": 1, "threads": threads, "gbps": 1.0, "contestants": contestants}


def test_activations_are_reported_and_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    results, folder = tmp_path / "results", tmp_path / "plots" / "test-gpu-1"
    gpu = groups.cases_of(["activations", "bias", "gated", "small_activations"])
    path = write_record(results, [gpu_record(case, 0.97, 0.5) | {"R_mix": 0.951} for case in gpu])
    recorder = records.Recorder(results, RUN | {"mode": "cpu"})
    assert recorder.path == path
    for case in groups.cases_of(["cpu_activations"]):
        recorder.write("cpu", cpu_record(case, 2.0, 1))
    report.write_report(results, tmp_path / "RESULTS.md")
    names = {f"activations-{size}-{dtype}.svg" for size in ("large", "small") for dtype in ("bf16", "fp32")}
    names |= {f"cpu-activations-{size}-{dtype}-1.svg" for size in ("cache", "memory") for dtype in ("bf16", "fp32")}
    assert {path.name for path in folder.iterdir()} == names
    text = (tmp_path / "RESULTS.md").read_text()
    assert "| bias_relu | backward | bf16 | 64x256x56x56 |" in text
    assert "| swiglu | forward | fp32 | any |" in text
    assert "| R_mix |" in text and "| 0.951 |" in text
    assert "| gated activations backward, bf16 | 0.95 | 0.970 |" in text
    assert "layer_norm" not in text
    means = plots.means([gpu_record(case, 0.97, 0.5) | {"record": "gpu"} for case in gpu], ["gelu", "tanh"], "forward")
    assert means["normact"] == (pytest.approx([0.97, 0.97]), [0, 1])


def test_images_are_not_drawn_among_rows(tmp_path):
    image = gpu_record(Case("layer_norm", "forward", "bf16", (256, 1024, 14, 14)), 0.3, 0.1) | {"record": "gpu"}
    assert plots.draw([image], [], tmp_path) == []


def test_compare_tells_changes_from_noise(tmp_path, capsys):
    case, other, third = groups.cases_of(["smoke"])[:3]
    before = [gpu_record(case, 0.8, 0.5), gpu_record(other, 0.8, 0.5), gpu_record(third, 0.8, 0.5)]
    after = [gpu_record(case, 0.8, 0.5, us=100.001), gpu_record(other, 0.8, 0.5, us=80.0), gpu_record(third, 0.8, 0.5)]
    for item in after:
        item["copy_us"] = 80.0  # the same copy in both runs
    a, b = write_record(tmp_path / "a", before), write_record(tmp_path / "b", after)
    verdicts = {change.key[1]: change.verdict(0.01) for change in compare.changes(a, b)}
    assert verdicts == {case.name: "noise", other.name: "faster", third.name: "noise"}
    assert compare.main([str(a), str(b)]) == 0
    assert compare.main([str(b), str(a)]) == 1  # a slower case fails
    assert "1 SLOWER" in capsys.readouterr().out


def test_compare_measures_noise_on_the_rivals(tmp_path):
    grid = groups.cases_of(["smoke"])

    def drifting(sign):  # the same kernels, with clocks 4 % up or down from case to case
        found = [gpu_record(case, 0.8, 0.5) for case in grid]
        for i, record in enumerate(found):
            for values in record["contestants"].values():
                if "us" in values:
                    factor = 1 + sign * 0.02 * (-1) ** i
                    values["us"] *= factor
                    values["samples"] = [us * factor for us in values["samples"]]
        return found

    a, b = write_record(tmp_path / "a", drifting(1)), write_record(tmp_path / "b", drifting(-1))
    assert compare.noise_between(a, b) == pytest.approx((1.02 / 0.98) ** (3 * 1.4826) - 1)
    assert compare.main([str(a), str(b)]) == 0
    few = write_record(tmp_path / "few", drifting(1)[:3])
    assert compare.noise_between(a, few) is None


def test_rank_test():
    assert compare.rank_test([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6]) == 1.0
    assert compare.rank_test([1.0] * 5, [1.0] * 5) == 1.0
    assert compare.rank_test([1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 16]) == pytest.approx(0.0051, rel=0.02)
