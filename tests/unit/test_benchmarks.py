"""The benchmarks' method, statistics, results and SASS reader: with a clock that needs no GPU."""

import argparse
import importlib
import itertools
import json
import math
import pathlib
import re
import subprocess
import sys

import attrs
import pytest

import tmapipe as tp
from benchmarks import cases, checker, cli, copy, gemm, ours, peer_quack, peers
from benchmarks.compare import Problem, compare
from benchmarks.results import Results, best, commit, print_table
from benchmarks.results import read as read_results
from benchmarks.sass_loops import innermost, loops, parse
from benchmarks.sustained import estimate_seconds, sustained
from tmapipe import tuning
from tmapipe.gpu.build import Resources
from tmapipe.tuning.cost import Method, Timing, rested, screen

METHOD = Method(rounds=6, batch=8, rest=0.3, preheat=3.0, hot=0.25, seed=0)


class FakeClock:
    """Launches take what `us` says of them, and a little more the longer the device has not rested; nothing sleeps."""

    def __init__(self, us, heat=0.0):
        self.us, self.heat, self.log, self.load = us, heat, [], 0

    def rest(self, seconds):
        self.log.append(("rest", seconds))
        self.load = 0

    def batch(self, run, launches):
        name = run()
        self.log.append((name, launches))
        self.load += 1
        return [self.us[name] * (1 + self.heat * self.load)] * launches

    def span(self, run, seconds):
        name = run()
        self.log.append((name, seconds))
        return self.us[name]


def named(*names):
    return {name: (lambda name=name: name) for name in names}


# ---- measure --------------------------------------------------------------------------------------------------------


def test_every_batch_is_rested_and_every_round_has_every_variant():
    clock = FakeClock({"a": 10.0, "b": 20.0, "c": 30.0})
    timings = rested(named("a", "b", "c"), clock, METHOD)
    warm_up, rounds = clock.log[:3], clock.log[3:]
    assert warm_up == [("a", 1), ("b", 1), ("c", 1)]
    assert rounds[0::2] == [("rest", 0.3)] * 18
    order = [name for name, launches in rounds[1::2] if launches == 8]
    per_round = [order[i : i + 3] for i in range(0, 18, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in per_round)
    assert len({tuple(one) for one in per_round}) > 1  # shuffled anew in each
    assert {name: timing.us for name, timing in timings.items()} == {"a": 10.0, "b": 20.0, "c": 30.0}


def test_the_order_depends_on_the_seed_alone():
    def order(seed):
        clock = FakeClock({"a": 1.0, "b": 1.0, "c": 1.0})
        rested(named("a", "b", "c"), clock, attrs.evolve(METHOD, seed=seed))
        return clock.log

    assert order(1) == order(1) != order(2)


def test_a_rested_time_does_not_depend_on_the_place_in_the_queue():
    clock = FakeClock({"a": 10.0, "b": 10.0}, heat=0.1)  # a second batch without a rest would take 12
    assert [timing.us for timing in rested(named("a", "b"), clock, METHOD).values()] == [pytest.approx(11.0)] * 2


def test_a_batch_counts_by_its_median_and_a_round_by_the_median_of_rounds():
    class Outliers(FakeClock):
        def batch(self, run, launches):
            return [100.0, *super().batch(run, launches)][:launches]

    assert rested(named("a"), Outliers({"a": 10.0}), METHOD)["a"].us == 10.0
    timing = Timing.of([10.0, 11.0, 12.0, 13.0, 1000.0])
    assert timing.us == 12.0
    assert timing.spread == pytest.approx((13.0 - 11.0) / 12.0)  # p75 and p25 of five values are the second and fourth
    assert Timing.of([7.0]).spread == 0.0


def test_sustained_preheats_and_pairs_the_ratios_within_a_round():
    class Drift(FakeClock):
        def span(self, run, seconds):
            time = super().span(run, seconds)
            return time * (1 + len([entry for entry in self.log if entry[1] == 0.25]) // 2)  # doubles, triples, ...

    clock = Drift({"a": 10.0, "b": 20.0})
    method = attrs.evolve(METHOD, rounds=40)
    timings = sustained(named("a", "b"), clock, method, "a")
    assert clock.log[:2] == [("a", 1.5), ("b", 1.5)]
    assert all(seconds == 0.25 for _, seconds in clock.log[2:])
    assert timings["a"].ratio == 1.0
    assert timings["b"].ratio == pytest.approx(0.5, rel=0.1)


def test_screening_keeps_the_fastest_and_the_pinned_in_their_order():
    clock = FakeClock({"a": 40.0, "b": 20.0, "c": 30.0, "d": 10.0})
    assert screen(named("a", "b", "c", "d"), clock, 2, pinned=["a"]) == ["a", "b", "d"]
    assert screen(named("a", "b"), FakeClock({}), 2) == ["a", "b"]  # nothing to choose: nothing is timed


def test_screening_keeps_what_it_cannot_tell_apart():
    times = {"a": 10.0, "b": 10.1, "c": 10.2, "d": 10.21, "e": 10.0, "f": 10.05}
    assert screen(named(*times), FakeClock(times), 1) == ["a", "e"], "no more than twice as many"
    assert screen(named(*times), FakeClock(times), 2) == ["a", "b", "e", "f"]
    assert screen(named(*"bcd"), FakeClock(times), 1) == ["b", "c"]


def test_the_estimate():
    assert estimate_seconds(8, METHOD) == pytest.approx(6 * 8 * (0.3 + 8 * 1.6e-3 + 2e-3))
    assert estimate_seconds(8, METHOD, hot=True) == 3.0 + 6 * 8 * 0.25


# ---- compare --------------------------------------------------------------------------------------------------------


def make_problem(errors=None, **kwargs):
    errors = errors or {}
    return Problem("8x8x8", "bf16", 1e6, "tflops", 100.0, lambda run: errors.get(run(), 1e-3), **kwargs)


def run_compare(names, us, problem=None, **kwargs):
    results = Results("gemm", "fake", versions={}, commit="0")
    candidates = {key: (lambda key=key: "/".join(key)) for key in names}
    failed = compare(problem or make_problem(), candidates, FakeClock(us), METHOD, results, **kwargs)
    return results.rows, failed


def test_rows_have_speed_and_fractions():
    us = {"cublas/mm": 0.02, "quack/x": 0.025, "tmapipe/g": 0.0125}
    rows, failed = run_compare([tuple(key.split("/")) for key in us], us)
    assert not failed
    ours = best(rows, peer="tmapipe")
    assert ours["tflops"] == pytest.approx(1e6 / 0.0125 / 1e6)
    assert ours["fraction_of_peak"] == pytest.approx(0.8)
    assert ours["fraction_of_best_peer"] == pytest.approx(0.02 / 0.0125)
    assert best(rows, peer="cublas")["fraction_of_best_peer"] == 1.0
    assert {"problem", "dtype", "peer", "variant", "us", "tflops", "rel_err", "spread", "mode"} <= set(ours)


@pytest.mark.parametrize("error", [0.5, math.nan, math.inf])
def test_a_wrong_result_is_left_out_and_named(error):
    us = {"cublas/mm": 1.0, "tmapipe/g": 0.1}
    rows, failed = run_compare([("cublas", "mm"), ("tmapipe", "g")], us, make_problem({"tmapipe/g": error}))
    assert [row["peer"] for row in rows] == ["cublas"]
    assert len(failed) == 1 and failed[0].startswith("tmapipe g: 8x8x8: WRONG")


def test_a_variant_that_raises_is_left_out_and_named():
    def check(run):
        if run() == "quack/x":
            raise ValueError("no such tile\nand more")
        return 0.0

    problem = attrs.evolve(make_problem(), check=check)
    rows, failed = run_compare([("cublas", "mm"), ("quack", "x")], {"cublas/mm": 1.0}, problem)
    assert [row["peer"] for row in rows] == ["cublas"]
    assert failed == ["quack x: 8x8x8: ValueError: no such tile"]


def test_each_peer_and_each_accumulation_is_screened_by_itself():
    names = [("cublas", f"{kind} {i}") for kind in ("fast", "promoted") for i in range(4)]
    us = {"/".join(name): 1.0 + i for i, name in enumerate(names)}
    rows, _ = run_compare(names, us, keep=1, pinned=[("cublas", "fast 3")])
    assert [row["variant"] for row in rows] == ["fast 0", "fast 3", "promoted 0"]
    assert [row["accumulate"] for row in rows] == ["fast", "fast", "promoted"]
    assert all(row["fraction_of_best_peer"] == 1.0 for row in rows if row["variant"].endswith("0"))


def test_sustained_takes_the_best_of_each_peer():
    us = {"cublas/mm": 2.0, "quack/x": 4.0, "quack/y": 3.0}
    rows, _ = run_compare([tuple(key.split("/")) for key in us], us, sustained_too=True)
    hot = [row for row in rows if row["mode"] == "sustained"]
    assert [(row["variant"], row["ratio_to_baseline"]) for row in hot] == [("mm", 1.0), ("y", pytest.approx(2 / 3))]
    assert hot[0]["baseline"] == "cublas mm"


# ---- results --------------------------------------------------------------------------------------------------------


def make_results(**kwargs):
    return Results("gemm", "fake", {"rounds": 6}, versions={"python": "3"}, commit="abc", **kwargs)


def add_row(results, problem="8x8x8", **kwargs):
    row = {"dtype": "bf16", "peer": "tmapipe", "variant": "g", "us": 1.23456789, "tflops": 1.0, "rel_err": 1e-3}
    return results.add(problem=problem, **{**row, **kwargs})


def test_the_common_form(tmp_path):
    results = make_results()
    add_row(results, accumulate=None)
    path = results.write(tmp_path / "new")
    read = read_results(path)
    assert path.name == "gemm.json"
    assert {"suite", "date", "gpu", "versions", "commit", "rows"} <= set(read)
    assert read["rows"][0]["us"] == 1.23457  # six digits
    assert "accumulate" not in read["rows"][0]  # None says nothing
    assert [p.name for p in path.parent.iterdir()] == ["gemm.json"]


def test_kept_results_are_small():
    assert sum(path.stat().st_size for path in (ROOT / "benchmarks" / "results").glob("*.json")) < 2 << 20


def test_a_row_without_a_required_field_is_refused():
    with pytest.raises(ValueError, match="lacks variant"):
        make_results().add(problem="8x8x8", dtype="bf16", peer="tmapipe", us=1.0)


def test_resume_keeps_rows_of_the_same_software_only(tmp_path):
    old = make_results()
    add_row(old)
    add_row(old, problem="16x16x16")
    old.write(tmp_path)
    new = make_results()
    new.resume(tmp_path)
    new.drop(problem="8x8x8", dtype="bf16")
    assert [row["problem"] for row in new.rows] == ["16x16x16"]
    with pytest.raises(ValueError, match="commit"):
        attrs.evolve(make_results(), commit="other").resume(tmp_path)
    make_results().resume(tmp_path / "nothing there")


def test_the_commit_can_be_given(monkeypatch):
    monkeypatch.setenv("TMAPIPE_COMMIT", "1234")
    assert commit() == "1234"


def test_a_table_needs_no_package(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "tabulate", None)
    print_table([["a", 1], ["bbb", None]], ["name", "n"], "Title")
    assert capsys.readouterr().out.splitlines() == ["", "Title", "name  n", "----  -", "a     1", "bbb"]


# ---- suites ---------------------------------------------------------------------------------------------------------


class CpuClock(FakeClock):
    """Really runs what it is given; made-up times."""

    def __init__(self):
        super().__init__({})
        self.ticks = itertools.count(1)

    def batch(self, run, launches):
        run()
        return [float(next(self.ticks))] * launches

    def span(self, run, seconds):
        run()
        return float(next(self.ticks))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8"])
def test_the_gemm_suite_end_to_end_on_the_cpu(dtype, tmp_path, capsys):
    argv = ["--shapes", "64x48x32", "--dtype", dtype, "--peers", "cublas", "--sustained", "--out", str(tmp_path)]
    assert gemm.run_suite(gemm.options(argv), CpuClock(), "fake H200", "cpu") == 0
    suite = "gemm_fp8" if dtype == "fp8" else "gemm"
    read = read_results(tmp_path / f"{suite}.json")
    assert read["suite"] == suite and read["gpu"] == "fake H200"
    assert {row["mode"] for row in read["rows"]} == {"rested", "sustained"}
    assert {row.get("accumulate") for row in read["rows"]} == ({"fast", "promoted"} if dtype == "fp8" else {None})
    assert all(0 < row["rel_err"] < 5e-3 and row["problem"] == "64x48x32" for row in read["rows"])
    assert "64x48x32" in capsys.readouterr().out


def test_the_grouped_suite_end_to_end_on_the_cpu(tmp_path):
    from benchmarks import grouped

    argv = ["--problems", "100x64x64/3", "--rounds", "2", "--out", str(tmp_path)]
    assert grouped.run_suite(grouped.options(argv), CpuClock(), "fake H200", "cpu") == 0
    rows = read_results(tmp_path / "grouped.json")["rows"]
    assert {(row["problem"], row["peer"]) for row in rows} == {
        ("100x64x64/3", "tmapipe"),
        ("100x64x64/3", "torch"),
        ("100x64x64", "tmapipe"),
    }
    assert all(0 < row["rel_err"] < 5e-3 for row in rows)


def test_cases_are_measured_and_wrong_results_left_out(tmp_path):
    torch = pytest.importorskip("torch")

    def make(device):
        x, out = torch.arange(48.0, device=device).view(6, 8), torch.full((8, 6), math.nan, device=device)

        def part():
            out[1:] = x.T[1:]  # the first row is left as it was
            return out

        runs = {("tmapipe", "all"): lambda: out.copy_(x.T), ("tmapipe", "part"): part, ("torch", "clone"): x.T.clone}
        return runs, x.T

    case = cases.Case("6x8", "fp32", 2.0 * 48 * 4, make, limit=0.0)
    parser = argparse.ArgumentParser()
    cli.add_options(parser)
    args = parser.parse_args(["--out", str(tmp_path)])
    args.problems = ["6x8"]
    assert cases.run_cases("transpose", [case], args, CpuClock(), "fake H200", "cpu") == 1
    rows = read_results(tmp_path / "transpose.json")["rows"]
    assert {(row["peer"], row["variant"]) for row in rows} == {("tmapipe", "all"), ("torch", "clone")}
    assert all(row["rel_err"] == 0 and row["gbps"] > 0 and row["fraction_of_peak"] > 0 for row in rows)


def test_the_gemm_check_sees_an_unwritten_element_and_a_wrong_one():
    torch = pytest.importorskip("torch")
    a, b, out = gemm.make_operands(16, 24, 32, "bf16", 0, "cpu")
    check = gemm.checker(a, b, out)
    right = (a.double() @ b.double().t()).bfloat16()
    assert check(lambda: out.copy_(right)) < 5e-3
    assert math.isnan(check(lambda: out[:-1].copy_(right[:-1])))
    wrong = right.clone()
    wrong[3, 5] += 100
    assert check(lambda: out.copy_(wrong)) > 1e-2
    again = gemm.make_operands(16, 24, 32, "bf16", 0, "cpu")
    assert torch.equal(a, again[0]) and torch.equal(b, again[1]) and not torch.equal(a[:16], b[:16])


def test_the_copy_check_compares_bits():
    torch = pytest.importorskip("torch")
    x = torch.tensor([[1.0, float("nan"), -0.0, 3.0]], dtype=torch.bfloat16)
    y = torch.empty_like(x)
    check = copy.checker(x, y)
    assert check(lambda: y.copy_(x)) == 0.0
    assert math.isnan(check(lambda: y.copy_(x.abs())))
    assert check(copy.variants("torch", x, y)["copy_"]) == 0.0


def test_options():
    assert gemm.shape("128x256x64") == (128, 256, 64)
    for text in ("128x256", "ax2x3", "0x1x1"):
        with pytest.raises(argparse.ArgumentTypeError):
            gemm.shape(text)
    assert len(gemm.SHAPES) == 12 and all(gemm.shape(text) for text in (*gemm.SHAPES, *gemm.SHAPES_FP8))
    with pytest.raises(SystemExit):
        gemm.options(["--dtype", "fp8", "bf16"])
    args = gemm.options(["--skip", "128x256", "--rest", "0.1"])
    assert cli.method_of(args).rest == 0.1
    assert list(cli.kept({("quack", "128x256 x"): 0, ("quack", "64x64"): 1}, args)) == [("quack", "64x64")]


def test_split_k_is_tried_where_tiles_leave_the_device_idle():
    assert peer_quack.splits(512, 512, 65536, (128, 256), 132) == [2, 4, 8, 16]  # 8 tiles
    assert peer_quack.splits(1024, 1024, 1024, (128, 128), 132) == [2]  # 64 tiles
    assert peer_quack.splits(8192, 8192, 512, (128, 256), 132) == []
    parts = [candidate.parts for candidate in ours.candidates(tuning.Problem(512, 512, 65536), every=False)]
    assert parts[0] == 8 and 1 not in parts[:4]  # 16 tiles of 128 x 128
    assert {candidate.parts for candidate in ours.candidates(tuning.Problem(8192, 8192, 8192), every=True)} == {1}


def test_ours_are_the_candidates_of_the_estimate_and_the_one_pinned():
    problem = tuning.Problem(1024, 1024, 1024)
    few = ours.candidates(problem, every=False)
    assert few[:2] == [candidate for candidate, _ in tuning.ranked(problem, most=2)]
    assert str(few[-1]) in ours.PINNED and len(few) == ours.FEW + 1


def test_an_absent_peer_is_named(monkeypatch, capsys):
    monkeypatch.setitem(peers.PEERS, "nobody", "benchmarks.no_such_module")
    assert peers.prepare("nobody", None, None, None) == {}
    assert "nobody: absent (ModuleNotFoundError" in capsys.readouterr().out


# ---- SASS -----------------------------------------------------------------------------------------------------------

LISTING = """
.text.kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/               @P3 BRA `(.L_load) ;
.L_tile:
        /*0020*/                   IMAD.MOV.U32 R7, RZ, RZ, R3 ;
.L_k:
        /*0030*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR12], R8 ;
        /*0040*/              @!P0 BRA `(.L_retry) ;
.L_go:
        /*0050*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR16], R24 ;
        /*0060*/                   UMOV UR17, 0x40000040 ;
        /*0070*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR16], R24, gsb0 ;
        /*0080*/               @P1 BRA `(.L_k) ;
        /*0090*/                   UTMASTG.3D [UR20], [UR18], desc[URZ] ;
        /*00a0*/               @P2 BRA `(.L_tile) ;
        /*00b0*/                   EXIT ;
.L_load:
        /*00c0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R5+URZ], R4 ;
        /*00d0*/              @!P0 BRA `(.L_load) ;
        /*00e0*/               @P4 BRA `(.L_skip) ;
        /*00f0*/                   UTMALDG.3D [UR32], [UR24], desc[URZ] ;
        /*0100*/                   UTMALDG.3D.MULTICAST [UR8], [UR26], UR20, desc[URZ] ;
.L_skip:
        /*0110*/               @P1 BRA `(.L_load) ;
        /*0120*/                   EXIT ;
.L_retry:
        /*0130*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R9+URZ], R8 ;
        /*0140*/              @!P0 BRA `(.L_retry) ;
        /*0150*/                   BRA `(.L_go) ;
.L_end:
        /*0160*/                   BRA `(.L_end);
"""


def test_loops_are_found_from_control_flow_and_retries_out_of_line_are_left_out():
    instructions, labels = parse(LISTING)
    assert len(instructions) == 23 and instructions[1].guard == "@P3" and instructions[1].target == ".L_load"
    found = loops(instructions, labels)
    math_loop = innermost(found, "[HQI]GMMA")
    # The retry's jump back to .L_go is no loop: .L_go does not dominate it. Nor is the loop over tiles the innermost.
    assert [i.opcode.split(".")[0] for i in math_loop.instructions] == ["SYNCS", "BRA", "HGMMA", "UMOV", "HGMMA", "BRA"]
    assert math_loop.count("HGMMA") == 2 and math_loop.opcodes()["BRA"] == 2
    # A wait that spins in line is counted once, and so is what only an elected warp does.
    load_loop = innermost(found, "UTMALDG")
    assert [i.opcode.split(".")[0] for i in load_loop.instructions] == [
        "SYNCS",
        "BRA",
        "BRA",
        "UTMALDG",
        "UTMALDG",
        "BRA",
    ]
    assert innermost(found, "LDGSTS") is None


def test_a_kernel_is_read_by_ktiles():
    sass = pytest.importorskip("benchmarks.sass")
    used = Resources(registers=168, spill_bytes=0, shared_bytes=0)
    kernel = sass.read(LISTING, used, gmmas=1, loads=2)
    assert kernel.ktiles == {"math": 2.0, "load": 1.0}
    assert kernel.size == 23
    sass.report({"ours": kernel})


def test_stamps_are_summed_up():
    from benchmarks import stamps

    ctas = []
    for late in (0, 100, 400):  # nanoseconds
        words = [0] * stamps.WORDS
        for i, nanoseconds in enumerate((0, 600, 2000, 1800, 2800, 3500)):
            words[i], words[i + stamps.CLOCKS] = 5000 + late + nanoseconds, 7 * late + 2 * nanoseconds
        ctas.append(words)
    found = stamps.medians(ctas)
    assert found["start"] == 0.1 and found["first full slot"] == 1.9 and found["end"] == 3.6
    assert found["GHz"] == 2.0


PRINTED = """==PROF== Connected to process 467
variant SplitK 128x128 1x2 parts 8
"ID","Kernel Name","gpu__time_duration.sum","lts__t_sectors_srcunit_tex.sum","l1tex__m_xbar2l1tex_read_bytes.sum",\
"lts__t_sectors_srcunit_ltcfabric.sum","dram__bytes_read.sum"
"","","ns","sector","byte","sector","byte"
"0","kernel_multiply","75,072","12,648,380","536,870,912","3,971,189","134,259,200"
"1","kernel_add","6,464","278,528","8,388,608","150,836","8,406,016"
""".replace("\\\n", "")  # as ncu printed it on an H200, less columns


def test_requests_are_summed_over_the_kernels():
    from benchmarks.l2_requests import counted

    found = counted(PRINTED)
    assert found["kernels"] == ["kernel_multiply", "kernel_add"]
    assert found["request_sectors"] == 12_648_380 + 278_528 and found["dram_read_bytes"] == 134_259_200 + 8_406_016
    assert abs(found["us_at_base_clock"] - 81.536) < 1e-9
    assert found["fraction"] == 32 * 12_926_908 / 545_259_520
    with pytest.raises(ValueError, match="no kernel"):
        counted("==ERROR== no permission")


# ---- attention ---------------------------------------------------------------------------------------------------


def test_problems_of_attention():
    """As many as are wanted, drawn alike from the same seed, within their bounds."""
    from benchmarks.attention import LEAST_FLOP, MOST_BYTES, MOST_FLOP, PARTS, cases, drawn

    found = list(cases("abcdef12"))
    assert [sum(case.part == part for case in found) for part in PARTS] == [20, 8, 24, 6, 3]
    assert len({case.name for case in found}) == len(found)
    of_seed = [case for case in found if case.part == "drawn"]
    assert of_seed == list(drawn("abcdef12")) != list(drawn("abcdef13"))
    for case in of_seed:
        assert LEAST_FLOP <= case.flop <= MOST_FLOP and case.bytes <= MOST_BYTES
        assert case.heads % case.groups == 0 and 1 <= case.heads // case.groups <= 8 and case.heads <= 64
    window = next(case for case in found if case.form == "window 512")
    assert window.seen == 512 * 8192 - 512 * 511 / 2


def test_a_run_of_attention_is_merged(monkeypatch, tmp_path):
    """As the next run, of which the page then has its tables."""
    from benchmarks import attention, page
    from benchmarks.results import Results, read, text_of

    whole = tmp_path / "attention.json"
    whole.write_text(text_of({**read(attention.RESULTS), "rows": read(attention.RESULTS)["rows"][:3]}))
    monkeypatch.setattr(attention, "RESULTS", whole)
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    run = Results("attention", "a GPU", commit="0123456789")
    for part, problem, peer, variant, rate in (
        ("forms", "p plain causal", "tmapipe", "of", {"tflops": 600.0}),
        ("forms", "p softcap causal", "tmapipe", "of", {"tflops": 570.0}),
        ("decode", "q", "tmapipe", "of", {"gbps": 4000.0}),
        ("decode", "q", "tmapipe", "Copy", {"gbps": 4100.0}),
        ("drawn", "r", "tmapipe", "of", {"tflops": 600.0}),
        ("drawn", "r", "cuDNN", "default", {"tflops": 500.0}),
    ):
        run.add(problem=problem, dtype="bf16", peer=peer, variant=variant, part=part, us=1.0, **rate)
    run.write(tmp_path / "new")
    attention.main(["--merge", str(tmp_path / "new" / "attention.json")])
    rows = read(whole)["rows"]
    assert len(rows) == 9 and [row["commit"] for row in rows[3:]] == ["0123456"] * 6
    assert {row["run"] for row in rows[3:]} == {1 + max(row["run"] for row in rows[:3])}
    assert "| p softcap causal | 570 | 0.95 |" in page.TABLES["attention-forms"]()
    assert "| q | nan | 4100 | 4000 | 0.98 |" in page.TABLES["attention-decode"]()
    assert "| r | 500 | 600 | 1.20 |" in page.TABLES["attention-drawn"]()


@pytest.mark.parametrize(
    "part, form, d, causal, more",
    [("forms", "mask", 64, "start", {}), ("drawn", "plain", 64, "end", {"s": 90})],
)
def test_attention_is_measured_against_float64(part, form, d, causal, more):
    """On the CPU model: our result is right, and a wrong one is seen."""
    import torch

    from benchmarks.attention import Case, errors_of, ours

    case = Case(part, 1, 2, 1, 72, more.get("s", 72), d, causal, form)
    given = case.tensors("cpu")
    o, *lse = found if isinstance(found := ours(case, given)(), tuple) else (found,)
    off, of_lse = errors_of(o, lse[0] if lse else None, case, **given)
    assert off < 1e-2 and (of_lse is None or of_lse < 1e-3) and (of_lse is None) == (part == "forms")
    assert errors_of(torch.roll(o, 1, 2), None, case, **given)[0] > 0.1


# ---- command lines --------------------------------------------------------------------------------------------------

ROOT = pathlib.Path(__file__).parents[2]
MODULES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
PROGRAMS = [name for name in MODULES if "__main__" in (ROOT / "benchmarks" / f"{name}.py").read_text()]
ON_A_GPU = [
    "attention",
    "attention_variants",
    "ceiling",
    "conv2d",
    "copy",
    "dequant",
    "epilogue",
    "gather",
    "gemm",
    "grouped",
    "host_time",
    "kernels",
    "l2_requests",
    "programs",
    "random_epilogues",
    "random_kernels",
    "random_problems",
    "random_rows",
    "random_views",
    "row_kernels",
    "rows",
    "stamps",
    "transpose",
    "tuning",
    "twelve",
    "versions",
]


def test_which_are_programs():
    assert sorted([*ON_A_GPU, "checker", "page", "plot", "sass"]) == PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_help(name, capsys):
    with pytest.raises(SystemExit) as info:
        importlib.import_module(f"benchmarks.{name}").main(["--help"])
    assert info.value.code == 0 and "usage:" in capsys.readouterr().out


@pytest.mark.parametrize("name", ON_A_GPU)
def test_without_a_gpu_they_say_so(name, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert importlib.import_module(f"benchmarks.{name}").main([]) == 2
    assert f"no GPU here: benchmarks.{name} " in capsys.readouterr().out


def test_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "benchmarks.plot", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "--mode" in done.stdout


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda path: path.stem)
def test_kept_results_are_readable(path):
    if path.stem.split("_")[0] in (
        "boxes",
        "deciding",
        "fuzz",
        "mutants",
        "reality",
        "right",
        "robust",
    ):  # of another form
        assert json.loads(path.read_text())
    else:
        read = read_results(path)
        assert read["suite"] == path.stem.removesuffix("_sustained") and read["rows"]


def test_checks_are_timed(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(checker, "REPEATS", 1)
    monkeypatch.setattr(checker, "EVERY", {"Copy": checker.EVERY["Copy"]})
    monkeypatch.setattr(checker, "K_TILES", (8,))
    checker.main(["--out", str(tmp_path)])
    rows = read_results(tmp_path / "checker.json")["rows"]
    assert [row["verdict"] == "safe" for row in rows] == [True, True, False, True]
    assert "Copy" in capsys.readouterr().out


@pytest.mark.parametrize("backend", ["stamps", "without loads", "without stores"])
def test_backends_that_measure_still_compile(backend):
    from benchmarks import ceiling, stamps
    from tmapipe.gpu.build import build

    schedule = tp.schedules.Gemm((64, 64, 64), (1, 1))
    made = stamps.stamped(address=0, consumer=1) if backend == "stamps" else ceiling.BACKENDS[backend]()
    plan = schedule.plan(dict.fromkeys("abd", "bf16"), arch="sm_90a")
    ptx = build(schedule, plan, keep=True, backend=made).ptx
    assert ("globaltimer" in ptx) == (backend == "stamps")
    assert (".bulk_group" in ptx) == (backend != "without stores")


def test_the_tables_of_the_pages_are_those_of_the_result_files():
    from benchmarks import page

    text = "".join(each.read_text() for each in page.PAGES)
    assert page.filled(text) == text, "run python -m benchmarks.page"
    assert set(re.findall(r"<!-- table ([\w-]+) -->", text)) == set(page.TABLES)
    changed = text.replace("| 8192x8192x8192 | 794 |", "| 8192x8192x8192 | 795 |", 1)
    assert changed != text == page.filled(changed)


def test_the_plot_of_the_performance_page_is_that_of_the_result_files():
    from benchmarks import page, plot

    drawn = page.PAGES[0].parents[1] / "img" / "performance.svg"
    assert plot.mark(page.groups()) in drawn.read_text(), "run python -m benchmarks.page --plot"
    assert plot.mark({"a": [1.0]}) != plot.mark({"a": [1.001]})


def test_drawn_kernels_are_right_on_the_cpu(capsys):
    """One of each suite, small; what is drawn follows from the seed."""
    from benchmarks import random_kernels

    for name, draw in random_kernels.SUITES.items():
        cases = draw(7, random_kernels.SMALL)
        assert [case.name for case in cases] == [case.name for case in draw(7, random_kernels.SMALL)]
        assert len(cases) == {"kernels": 120, "copies": 40, "products": 20}[name]
        assert name == "products" or random_kernels.rehearse(cases[1:2]) == 0
    assert "relative error" in capsys.readouterr().out
