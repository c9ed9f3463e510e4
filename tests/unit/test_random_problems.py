"""The benchmark of random problems: what it draws, measures and reports, without a GPU."""

import argparse
import threading
import time
from collections import Counter
from typing import ClassVar

import attrs
import pytest

from benchmarks import dequant, random_epilogues, random_problems, random_rows, random_views, row_kernels
from benchmarks import tuning as fitting
from benchmarks.results import Results
from tests.sweeps import sample
from tmapipe import tuning
from tmapipe.tuning import cost


def test_random_problems_are_those_of_the_seed():
    drawn = random_problems.draw(3, 400, ("bf16", "fp16", "fp8"))
    assert drawn == random_problems.draw(3, 400, ("bf16", "fp16", "fp8")) != random_problems.draw(4, 400)
    assert drawn[:100] == random_problems.draw(3, 100, ("bf16", "fp16", "fp8"))
    for each in drawn:
        name, dtype = random_problems.name_of(each), random_problems.dtype_name(each)
        assert random_problems.problem_of(name, dtype) == each
        least = 16 if dtype == "fp8" else 8
        assert not (each.m % least or each.n % least or each.k % least) and min(each.m, each.n) >= 16 and each.k >= 64
    shares = [sum(map(test, drawn)) / len(drawn) for test in (
        lambda p: p.majors == ("k", "k"), lambda p: p.batch > 1, lambda p: p.dtype.bytes == 1, lambda p: p.m > p.n,
        lambda p: not p.m % 64,
    )]  # fmt: skip
    assert 0.6 < shares[0] < 0.9 and 0.04 < shares[1] < 0.15 and 0.25 < shares[2] < 0.42, shares
    assert 0.4 < shares[3] < 0.6 and shares[4] > 0.25, shares
    assert {each.majors for each in random_problems.draw(3, 50, majors="kk")} == {("k", "k")}


def test_candidates_are_read_as_they_are_written():
    for problem in random_problems.draw(5, 20):
        for candidate in sample(tuning.candidates(problem, tuning.problem.H200), 3):
            assert random_problems.candidate_of(str(candidate)) == candidate


def test_varied_candidates_begin_with_the_choice_and_differ():
    problem = tuning.Problem(552, 672, 15672)
    found = random_problems.varied(problem, tuning.problem.H200, 8)
    assert len(set(found)) == 8 and found == random_problems.varied(problem, tuning.problem.H200, 8)
    assert found[0] == tuning.ranked(problem, most=1)[0][0]
    assert len({(candidate.schedule, candidate.tile) for candidate in found[:5]}) >= 4


class Instant:
    """A clock by which each launch takes as long as its result says: 10 us, or what `times` has."""

    def __init__(self):
        self.launches = 0

    def rest(self, seconds):
        pass

    def batch(self, run, launches):
        run()
        self.launches += launches
        return [10.0] * launches


class Compiled:
    """Schedules that run on the model; those of "Gemm 128x64" fail."""

    def schedule(self, problem, candidate):
        if candidate.tile == (128, 64):
            raise RuntimeError("does not compile")
        made = candidate.build(problem)
        return made if candidate.tile != (64, 128) else lambda a, b, out: out.fill_(1.0)


@pytest.mark.parametrize("name, dtype", [("72x80x96:kk", "bf16"), ("2x72x80x64:kn", "fp16"), ("72x64x96:mn", "bf16")])
def test_measuring_a_random_problem(name, dtype, capsys):
    problem = random_problems.problem_of(name, dtype)
    few = [tuning.Candidate("Gemm", tile, (1, 1)) for tile in ((64, 64), (128, 64), (64, 128))]
    results, args = Results("random", "fake", versions={}, commit="0"), random_problems.options([])
    random_problems.measure(problem, few, Compiled(), Instant(), results, args, tuning.problem.H200, "cpu")
    assert [(row["peer"], row["variant"]) for row in results.rows] == [
        ("cublas", "torch"),
        ("tmapipe", "Gemm 64x64 1x1"),
    ]
    cublas, mine = results.rows
    assert (mine["problem"], mine["dtype"], mine["chosen"]) == (name, dtype, True) and "chosen" not in cublas
    assert 0 < mine["rel_err"] < 1e-2 and mine["estimated_us"] > 1
    said = capsys.readouterr().out
    assert "Gemm 128x64 1x1: does not compile" in said and "Gemm 64x128 1x1: WRONG" in said and "(1.000)" in said


def test_a_look_takes_what_was_measured_to_be_the_fastest():
    class Timed(Instant):
        def batch(self, run, launches):
            run()
            return [5.0 if getattr(run, "func", None) is second else 10.0] * launches

    problem = random_problems.problem_of("72x80x96:kk")
    few = random_problems.unsure(problem, tuning.problem.H200, 2)
    schedules = {candidate: candidate.build(problem) for candidate in few}
    second = schedules[few[1]]
    found = argparse.Namespace(schedule=lambda problem, candidate: schedules[candidate])
    results, args = Results("random", "fake", versions={}, commit="0"), random_problems.options(["--look", "2"])
    random_problems.measure(problem, few, found, Timed(), results, args, tuning.problem.H200, "cpu")
    assert {row["variant"]: row["looked"] for row in results.rows if "looked" in row} == {str(few[1]): 2}
    (line,) = random_problems.lines(results.rows)
    assert (line.cublas, line.chosen, line.looked) == (10.0, 10.0, 5.0)


def test_epilogues_of_a_random_problem(capsys):
    problem = random_problems.problem_of("72x80x96:kk")
    few = random_epilogues.choices([problem], tuning.problem.H200)
    kinds = random_epilogues.KINDS
    made = {kind: (few[problem, kind], few[problem, kind].build(problem, kinds[kind])) for kind in kinds}
    made["residual"] = few[problem, "residual"], lambda a, b, c, out: out.fill_(1.0)
    compiled = {kind: random_epilogues.expression(kind) for kind in kinds}
    results, args = (
        Results("random_epilogues", "fake", versions={}, commit="0"),
        argparse.Namespace(seed=1, rounds=1, batch=1, rest=0.0),
    )
    random_epilogues.measure(problem, made, compiled, Instant(), results, args, "cpu")
    ours = {row["problem"].split()[1]: row for row in results.rows if row["peer"] == "tmapipe"}
    assert set(ours) == {"plain", "bias+gelu", "row-scaled"} and all(
        row["fraction_of_plain"] == 1 for row in ours.values()
    )
    assert all(0 < row["rel_err"] < 1e-2 for row in results.rows) and len(results.rows) == 7
    assert "residual tmapipe" in capsys.readouterr().out
    random_epilogues.report(results.rows)
    assert "row-scaled" in capsys.readouterr().out


def test_a_report_of_random_problems(capsys):
    rows = [
        {"problem": name, "dtype": "bf16", "peer": peer, "variant": variant, "us": us, **more}
        for name, peer, variant, us, more in (
            ("8x8x8:kk", "cublas", "torch", 10.0, {}),
            ("8x8x8:kk", "tmapipe", "x", 20.0, {"chosen": True}),
            ("8x8x8:kk", "tmapipe", "y", 8.0, {}),
            ("8x8x16:kk", "cublas", "torch", 10.0, {}),
            ("8x8x16:kk", "quack", "q", 9.0, {}),
            ("8x8x16:kk", "tmapipe", "x", 5.0, {"chosen": True}),
        )
    ]
    random_problems.report(rows)
    table = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "chosen, of cuBLAS 2 1.000 0.500 0.500 0.500 2.000 2.000 1 1 1" in table
    assert any(line.startswith("chosen, of the best peer 1 1.800") for line in table)
    assert any(line.startswith("8x8x8:kk bf16 0.500") and line.endswith("8.0 y") for line in table)


def test_the_factor_on_epilogues_that_compute_is_found(tmp_path):
    """From times of the same candidates with and without one; others tell nothing."""
    results = Results("random_epilogues", "fake", versions={}, commit="0")
    right = attrs.evolve(cost.FITTED, worked=2.2)
    for name in ("4096x4096x256:kk", "1024x1024x1024:kk"):
        problem = random_problems.problem_of(name)
        few = random_problems.varied(problem, tuning.problem.H200, 3)
        for kind, constants in (("plain", cost.FITTED), ("residual", right)):
            for candidate in few[kind == "plain" :]:
                us = cost.estimate(problem, candidate, tuning.problem.H200, constants, fused=kind != "plain")
                results.add(problem=f"{name} {kind}", dtype="bf16", peer="tmapipe", variant=str(candidate), us=us)
    results.write(tmp_path)
    assert fitting.worked(tmp_path, cost.FITTED) == 2.2


def test_a_report_of_stored_results(tmp_path, capsys):
    """Each GPU has a file; runs can be picked."""
    for gpu in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
        results = Results(random_problems.suite_of(gpu), gpu, versions={}, commit="0")
        for run, us in ((1, 20.0), (2, 5.0)):
            for peer, variant, took, chosen in (("cublas", "torch", 10.0, None), ("tmapipe", "x", us, True)):
                results.add(
                    problem="8x8x8:kk", dtype="bf16", peer=peer, variant=variant, us=took, chosen=chosen, run=run
                )
        results.write(tmp_path)
    assert {path.stem for path in tmp_path.glob("*.json")} == {"random", "random_h100"}
    Results("random_epilogues", "NVIDIA H200", versions={}, commit="0").write(tmp_path)
    assert random_problems.main(["--report", "--out", str(tmp_path), "--runs", "2"]) == 0
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in said if line.startswith(("NVIDIA", "chosen, of cuBLAS"))] == [
        line
        for gpu in ("NVIDIA H200", "NVIDIA H100 80GB HBM3")
        for line in (gpu, "chosen, of cuBLAS 1 2.000 2.000 2.000 2.000 2.000 2.000 0 0 0")
    ]


def test_kernels_are_compiled_ahead(monkeypatch):
    """Once for all problems of a kind; a problem is ready when all of its candidates are done."""
    seen, go = [], threading.Event()

    def compile_each(jobs, folder, processes, done):
        candidates, (problem, *_) = [job.args[0] for job in jobs], {job.args[1] for job in jobs}
        seen.append((problem, tuple(candidates), processes))
        assert folder.is_dir()
        for i in range(len(jobs)):
            go.wait(5)
            done(i, "bad" if i else "")

    monkeypatch.setattr(random_problems, "compile_each", compile_each)
    one, two, other = (random_problems.problem_of(name) for name in ("64x64x64:kk", "64x128x64:kk", "64x64x64:mn"))
    x, y = (tuning.Candidate("Gemm", (64, n), (1, 1)) for n in (64, 128))
    ahead = random_problems.Ahead({one: [x], two: [x, y], other: [y]}, 3)
    assert not ahead.ready(one, [x])
    go.set()
    ends = time.monotonic() + 5
    while not ahead.ready(other, [y]) and time.monotonic() < ends:
        ahead.changed.wait(0.01)
    assert seen == [(one, (x, y), 3), (other, (y,), 3)] and ahead.ready(two, [x, y])
    with pytest.raises(RuntimeError, match="bad"):
        ahead.schedule(two, y)


def test_problems_of_a_file_come_first(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text('{"problem": "8x16x64:kk"}\n{"problem": "8x16x64:mn", "dtype": "fp16"}\n')
    options = ["--problems", str(path), "--count", "3", "--seed", "2"]
    found = random_problems.problems_of(random_problems.options(options))
    assert list(map(random_problems.name_of, found[:2])) == ["8x16x64:kk", "8x16x64:mn"] and len(found) == 5
    assert found[2:] == random_problems.draw(2, 3)
    found = random_problems.problems_of(random_problems.options([*options, "--majors", "kk"]))
    assert list(map(random_problems.name_of, found[:1])) == ["8x16x64:kk"] and len(found) == 4


# ---- rows of random lengths ---------------------------------------------------------------------------------------------


def test_lengths_of_rows_are_drawn():
    cases = random_rows.draw(7)
    assert cases == random_rows.draw(7) != random_rows.draw(8) and len(cases) == 80
    lengths = [case.length for case in cases if case.kernel == "softmax"]
    assert all(64 <= n <= 262144 for n in lengths) and sum(n % 8 == 0 for n in lengths) == 20
    assert {case.dtype for case in cases} == {"bf16", "fp32"}
    for case in cases[::7]:
        few = random_rows.forms_of(case, 2)
        assert few[0] != few[-1] and random_rows.forms_of(case, 1) == few[:1]
        schedule, dtypes = random_rows.schedule_of(case, few[0])
        assert schedule.plan(dtypes).smem_bytes < 228 << 10
        assert len(set(map(random_rows.text_of, random_rows.forms_of(case, 5)))) == 5


def test_a_report_of_rows(capsys):
    row = {"problem": "softmax 100", "dtype": "bf16", "variant": "x", "gbps": 1.0}
    rows = [{**row, "peer": "tmapipe", "us": 8.0, "chosen": True}, {**row, "peer": "quack", "us": 6.0}]
    row_kernels.report([*rows, {**row, "problem": "softmax 96", "peer": "torch", "us": 1.0}])
    said = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "softmax 1 0.750 0.750 1" in said and any("no result of ours" in line for line in said)


def test_views_are_those_of_the_seed():
    found = random_views.drawn(3)
    assert found == random_views.drawn(3) and found != random_views.drawn(4)
    kinds = Counter(view.kind for view in found)
    assert kinds == random_views.COUNTS and Counter(view.kind for view in found[:41]) == {
        kind: count / 4 for kind, count in kinds.items()
    }
    of_k = [view for view in found if view.kind == "along k"]
    assert sum(view.problem.m < 16 for view in of_k) >= 10 and {view.further for view in found} == {0, 8, 64}
    assert all(2e9 <= view.problem.flops <= 4e12 and view.problem.n % 8 == view.problem.k % 8 == 0 for view in found)
    assert {view.problem.majors for view in found if view.kind != "along k"} == {("k", "k"), *random_problems.ROWS}


def view_of(name, further=8):
    problem = random_problems.problem_of(name)
    return random_views.View("along k", random_views.aligned(problem, further), further)


def test_views_lie_in_wider_tensors():
    a, b, out, whole = random_views.data_of(view_of("37x24x40:kn"), 1, "cpu")
    assert a.shape == (37, 40) and a.stride() == (48, 1)
    assert b.shape == (24, 40) and b.stride() == (1, 32)
    assert out.shape == (37, 24) and out.stride() == (32, 1) and out.storage_offset() == 8
    assert whole.shape == (38, 32) and whole.data_ptr() == out.data_ptr() - 16


@pytest.mark.parametrize("name, further", [("37x24x40:kk", 8), ("40x72x80:mn", 64), ("37x24x40:kn", 0)])
def test_views_are_what_users_pass(name, further):
    view = view_of(name, further)
    a, b, out, _ = random_views.data_of(view, 1, "cpu")
    seen = tuning.Problem.of(a, b, out)
    assert view.problem.rows_at[:2] == seen.rows_at[:2]
    assert view.problem.rows_at[2] == (16 if further else seen.rows_at[2])


def test_a_result_is_right_with_the_same_bits_and_nothing_beside():
    a, b, out, whole = random_views.data_of(view_of("16x8x64:kk"), 1, "cpu")
    check, bits = random_problems.checker(a, b, out), iter((0.0, 1.0))
    assert random_views.error_of(random_problems.blas(a, b, out), check, out, whole) < 1e-2
    with pytest.raises(RuntimeError, match="beside"):
        random_views.error_of(lambda: whole.fill_(1.0), check, out, whole)
    with pytest.raises(RuntimeError, match="other bits"):
        random_views.error_of(lambda: out.fill_(next(bits)), check, out, whole)


def test_measuring_a_view(capsys, monkeypatch):
    class Alone(Compiled):
        few: ClassVar = {}
        device = tuning.problem.H200

    view, (first, bad, wrong) = (
        view_of("37x80x96:kk"),
        (tuning.Candidate("Gemm", tile, (1, 1)) for tile in ((64, 64), (128, 64), (64, 128))),
    )
    Alone.few = {view: ([first, bad], [wrong])}
    Alone.schedule = lambda self, view, candidate: Compiled.schedule(self, view.problem, candidate)
    results, args = Results("random_views", "fake", versions={}, commit="0"), random_views.options(["--seed", "1"])
    random_views.measure(view, Alone(), Instant(), results, args, "cpu")
    assert [(row["peer"], row["variant"]) for row in results.rows] == [
        ("cublas", "torch"),
        ("tmapipe", "Gemm 64x64 1x1"),
    ]
    assert results.rows[1]["looked"] == 2 and results.rows[1]["problem"] == "37x80x96:kk+8"
    random_views.report(results.rows)
    said = capsys.readouterr().out
    assert "Gemm 128x64 1x1: does not compile" in said and "Gemm 64x128 1x1: WRONG" in said
    assert "along k, views" in said and "looks: 2.00" in said
    made = {"second": 2.0, "third": 3.0, "first": 1.0}

    def rested(runs, clock, method):
        return {key: random_views.Timing(made.get(key[1], 5.0), 0.0, (5.0,) * 4) for key in runs}

    monkeypatch.setattr(random_views, "rested", rested)
    monkeypatch.setattr(random_views.peers, "prepare", lambda peer, a, b, out: dict.fromkeys(made, blas(a, b, out)))
    args.peers, blas = ["quack"], random_problems.blas
    results.rows.clear()
    random_views.measure(view, Alone(), Instant(), results, args, "cpu")
    assert [row["variant"] for row in results.rows if row["peer"] == "quack"] == ["second", "first"]


def test_weights_of_few_bits(capsys):
    found = dequant.drawn(3)
    assert found == dequant.drawn(3) != dequant.drawn(4) and sum(each.m <= dequant.FEW for each in found) == 4
    assert all(dequant.forms(each) for each in found)
    results, args = Results("dequant", "fake", versions={}, commit="0"), random_problems.options([])
    problem = dequant.Quantized(9, 64, 128, *dequant.KINDS[1])
    job = dequant.job_of(problem, next(iter(dequant.forms(problem).values())))
    made = {"right": job[0], "wrong": lambda out, **given: out.fill_(1.0)}
    dequant.measure(problem, made, Instant(), results, args, "cpu")
    assert [row["variant"] for row in results.rows] == ["torch.mm of bf16", "right"]
    dequant.report(results.rows)
    said = capsys.readouterr().out
    assert "wrong: WRONG" in said and "up to 16 rows, best: 1 problems, 1.000" in said
