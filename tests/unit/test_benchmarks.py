"""The benchmarks' method, statistics, results and SASS reader: with a clock that needs no GPU."""

import argparse
import itertools
import math
import time

import attrs
import numpy as np
import pytest

from benchmarks import cases, cli, copy, gemm, mlp, ours, peer_quack, peers, predicted
from benchmarks.compare import Problem, compare
from benchmarks.results import Results, best, commit, print_table
from benchmarks.results import read as read_results
from benchmarks.sustained import estimate_seconds, sustained
from tmapipe import schedules, tuning
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


def test_a_loop_counts_what_the_host_does():
    waits = []
    clock = mlp.Loop(lambda: waits.append(time.sleep(0.01)))  # of which each loop has one
    (us,) = clock.batch(lambda: time.sleep(0.002), 2)
    assert 2000 + 10_000 / (2 * mlp.STEPS) <= us < 20_000 and len(waits) == 2


def test_layers_are_compiled_at_their_first_step_alone(monkeypatch):
    torch = pytest.importorskip("torch")
    from tmapipe import torch as ops

    monkeypatch.setattr(mlp, "FEATURES", 32)
    monkeypatch.setattr(mlp, "HIDDEN", 64)
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda module, **how: compiled.append(how.get("mode")) or module)
    monkeypatch.setattr(ops, "fallbacks", dict)
    runs, want = mlp.make(16, "cpu")
    assert not compiled and len(runs) == 6
    for key in (("torch", "eager"), ("torch", "reduce-overhead")):
        for _ in range(2):
            assert cases.checker(want)(runs[key]) < mlp.LIMIT
    assert compiled == ["reduce-overhead"]
    monkeypatch.setattr(ops, "fallbacks", lambda: {"linear: tensors on cpu": 1})
    with pytest.raises(RuntimeError, match="fell back"):
        runs["tmapipe", "eager"]()


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


# ---- attention ---------------------------------------------------------------------------------------------------


def test_problems_of_attention():
    """As many as are wanted, drawn alike from the same seed, within their bounds."""
    from benchmarks.attention import LEAST_FLOP, MOST_BYTES, MOST_FLOP, PARTS, cases, drawn

    found = list(cases("abcdef12"))
    assert [sum(case.part == part for case in found) for part in PARTS] == [20, 8, 24, 7, 3]
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
    assert "| q |  | 4100 | 4000 | 0.98 |" in page.TABLES["attention-decode"]()
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


def test_stamps_are_timed_beside_the_same_kernel(monkeypatch):
    """With the same tensors: what a call of a `Copy` launches copies joined rows, in other tiles."""
    launched = []

    class Launcher:
        def __init__(self, schedule, bound, stamps=()):
            self.about = schedule, bound, list(stamps)

        def launch(self, tensors):
            launched.append((*self.about, [id(each) for each in tensors]))

    monkeypatch.setattr("tmapipe.calling.launcher_for", Launcher)
    schedule = schedules.Copy((2, 256), 4)
    bound = schedule.bind(np.zeros((8, 512), np.int32))
    for run in predicted.launches(schedule, bound, [1 << 20, 4]).values():
        run()
    tensors = [id(each) for each in bound.tensors.values()]
    assert launched == [(schedule, bound, [1 << 20, 4], tensors), (schedule, bound, [], tensors)]
    assert set(predicted.launches(schedule, bound, [1 << 20, 4], beside=False)) == {"stamped"}
