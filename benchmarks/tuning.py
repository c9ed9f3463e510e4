"""How good are the estimates? Candidates of `tmapipe.tuning` on many problems: estimated and measured.

python -m benchmarks.tuning                      the twelve shapes and ten others that nothing was fitted on
python -m benchmarks.tuning --most 30 --shapes 2048x2048x2048
python -m benchmarks.tuning --fit                fits the constants to the stored results; needs SciPy, but no GPU

Writes ``benchmarks/results/tuning.json``, one row per candidate with its estimate. Prints, for each problem, the time of the
choice over the time of the fastest candidate.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from benchmarks.cli import add_options, gpu_of, method_of, settings
from benchmarks.gemm import SHAPES, checker, make_operands, shape
from benchmarks.results import OURS, Results, folder_of, read
from tmapipe.tuning import Candidate, Problem, candidates, estimate, ranked
from tmapipe.tuning.candidates import hinted
from tmapipe.tuning.compiling import build_all
from tmapipe.tuning.cost import FITTED, Constants, rested, times, together, work
from tmapipe.tuning.problem import H200

OTHERS = (
    "3072x3072x3072", "6144x6144x2048", "1536x8960x1536", "256x4096x4096", "64x14336x4096", "2048x512x8192",
    "5000x5000x1024", "12288x3072x1024", "768x768x768", "16384x1024x1024",
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=shape, nargs="+", metavar="MxNxK")
    parser.add_argument("--most", type=int, default=16, help="candidates a problem (default %(default)s)")
    parser.add_argument("--fit", action="store_true", help="fit the constants to the results kept")
    add_options(parser)
    args = parser.parse_args(argv)
    if args.fit:
        return fit(folder_of(args.out))
    gpu = gpu_of("tuning")
    if not gpu:
        return 2
    shapes = args.shapes or [shape(text) for text in (*SHAPES, *OTHERS)]
    problems = [Problem(*sizes) for sizes in shapes]
    results = Results("tuning", gpu, settings(args))
    wanted = {problem: ranked(problem, H200, args.most) for problem in problems}
    every = list(dict.fromkeys(candidate for few in wanted.values() for candidate, _ in few))
    schedules, errors = build_all(problems[0], every)
    print(f"{len(schedules)} of {len(every)} candidates compiled", *(f"{c}: {e}" for c, e in errors.items()), sep="\n")
    measure(wanted, schedules, results, args)
    print(f"written: {results.write(args.out)}")
    report(results.rows)
    return 0


def measure(wanted: dict[Problem, Any], schedules: dict[Candidate, Any], results: Results, args: Any) -> None:
    from tmapipe.gpu.launch import CudaClock

    clock = CudaClock(args.flush)
    for problem, few in wanted.items():
        a, b, out = make_operands(problem.m, problem.n, problem.k, "bf16", args.seed)
        check = checker(a, b, out, samples=16)
        runs = {c: functools.partial(schedules[c], a, b, out=out) for c, _ in few if c in schedules}
        errors = {c: check(run) for c, run in runs.items()}
        for candidate, timing in rested(
            {c: run for c, run in runs.items() if errors[c] < 1e-2}, clock, method_of(args)
        ).items():
            results.add(
                problem=_name(problem), dtype="bf16", peer="tmapipe", variant=str(candidate), us=timing.us,
                tflops=problem.flops / timing.us / 1e6, spread=timing.spread, rel_err=errors[candidate],
                estimated_us=estimate(problem, candidate, H200), candidate=_plain(candidate),
            )  # fmt: skip
        wrong = [f"{c} ({errors[c]:.1e})" for c in runs if not errors[c] < 1e-2]
        print(f"{problem}: {len(runs)} timed" + (f"; WRONG: {', '.join(wrong)}" if wrong else ""), flush=True)
        results.write(args.out)


def report(rows: list[dict[str, Any]]) -> None:
    """The heuristic's choice over the fastest, by problem and in geometric mean, apart for the shapes fitted on and others."""
    ratios: dict[str, float] = {}
    for problem in dict.fromkeys(row["problem"] for row in rows):
        mine = [row for row in rows if row["problem"] == problem]
        best, chosen = min(mine, key=lambda r: r["us"]), min(mine, key=lambda r: r["estimated_us"])
        ratios[problem] = chosen["us"] / best["us"]
        print(
            f"{problem:>18}  chosen {chosen['variant']:<44} {chosen['us']:8.1f} us (estimated {chosen['estimated_us']:8.1f})"
            f"  fastest {best['variant']:<44} {best['us']:8.1f} us  {ratios[problem]:.3f}"
        )
    for name, shapes in (("fitted on", SHAPES), ("others", OTHERS)):
        found = [math.log(ratios[s]) for s in shapes if s in ratios]
        if found:
            print(f"geometric mean, {name}: {math.exp(sum(found) / len(found)):.4f}")


#: Where each constant is looked for.
BOUNDS = {
    "clock": (1.4, 1.75), "boost": (0, 0.35), "l2": (4000, 12000), "again": (0, 1), "near": (0, 1), "readers": (2, 200),
    "apart": (0.2, 30), "torn16": (1, 3), "torn32": (1, 2.5), "shifted": (1, 3), "ingest": (50, 200), "issue": (30, 200),
    "reads": (0.5, 1), "writes": (0.3, 1), "scattered": (0, 0.2), "run": (0, 1),
    "launch": (2, 7), "joined": (0, 0.6), "alone": (0, 0.5),
    "fill": (0, 10), "stored": (6, 64), "waited": (1, 2), "piece": (0, 2.5), "partial": (0, 2), "ragged": (0, 2),
    "transposed": (1, 1.3), "add": (0.5, 8), "each": (0, 0.4), "parts": (1000, 8000), "exchanged": (3, 60),
    "merged": (0.955, 0.974), "smaller": (1, 1.03), "claim": (0.5, 1.6), "slot": (0, 400), "latency": (500, 3500),
    "held": (0, 0.95), "uneven": (0, 0.1), "box": (0, 40), "zero": (0, 4), "hidden": (1.5, 12), "loaded": (1.5, 12),
}  # fmt: skip
WORKED = np.arange(1, 6, 0.1)  # of which one is the factor on an epilogue that computes
STARTS, AROUND = 8, 0.05  # of searches, from today's constants and about so far from them
ROUNDS, STEP = 200, 1e-4  # of a search; how far it looks around
WEIGHTS = {"tuning": 6.0, "random": 1.0}  # of a problem, by suite
#: The run of `random` from which on candidates are those of today's space, and the weight of its problems.
ON_POLICY, FRESH = 4, 4.0
TWELVE, TWELVE_WEIGHT = 12, 6.0  # the run of `random` that has the twelve shapes, and its further weight
#: Microseconds that each launch took longer in a run of `random`, cuBLAS's too.
SLOW_LAUNCHES = {9: 1.4, 10: 1.4} | dict.fromkeys(range(17, 26), 1.2)
LIKE = 0.02  # in logarithms: estimates that are so close could as well be in the other order


def fit(folder: Path) -> int:
    """Prints the constants that serve best on the stored results: small errors of the estimates, above all near the fastest of
    a problem, and choices that cost little."""
    from scipy.optimize import minimize

    by_problem: dict[Any, list[Any]] = {}
    for one in stored(folder):
        by_problem.setdefault(one[0], []).append(one)
    known = [one for mine in by_problem.values() for one in mine]
    counts = np.array([len(mine) for mine in by_problem.values()])
    starts = np.cumsum(counts) - counts
    measured = np.log([us for _, _, _, us in known])
    least = np.minimum.reduceat(measured, starts)
    worth = np.array([_weight(group, len(mine)) for group, mine in by_problem.items()])
    weights = np.exp(2 * (np.repeat(least, counts) - measured)) * np.repeat((worth / counts) ** 0.5, counts)
    done = together(work(problem, candidate, H200) for _, problem, candidate, _ in known)

    low, high = np.array(list(BOUNDS.values())).T

    def made(parts: Any) -> Constants:
        return Constants(**dict(zip(BOUNDS, low + parts * (high - low), strict=True)))

    def cost(parts: Any) -> float:
        found = np.log(times(done, made(parts)))
        errors = np.average(np.minimum(abs(found - measured), 0.35), weights=weights)
        # how much longer the choice takes, in the mean over choices by estimates that are off by `LIKE`
        chances = np.exp((np.repeat(np.minimum.reduceat(found, starts), counts) - found) / LIKE)
        lost = np.add.reduceat(measured * chances, starts) / np.add.reduceat(chances, starts) - least
        return float(errors + 2 * np.average(lost, weights=worth))

    today = (np.array([getattr(FITTED, name) for name in BOUNDS]) - low) / (high - low)
    options = {"method": "L-BFGS-B", "bounds": [(0, 1)] * len(BOUNDS), "options": {"eps": STEP, "maxiter": ROUNDS}}
    moved = np.random.default_rng(7).normal(0, AROUND, (STARTS, len(BOUNDS)))
    moved[0] = 0
    found = min((minimize(cost, np.clip(today + by, 0, 1), **options) for by in moved), key=lambda end: end.fun)
    found = {name: float(f"{getattr(made(found.x), name):.3g}") for name in BOUNDS}
    best = attrs.evolve(FITTED, **found)
    best = attrs.evolve(best, worked=worked(folder, best))
    print(best)
    found = np.log(times(done, best))
    chosen = [measured[i : i + n][found[i : i + n].argmin()] for i, n in zip(starts, counts, strict=True)] - least
    print(f"{len(known)} measurements of {len(counts)} problems: mean error {abs(found - measured).mean():.3f}, "
          f"choice over fastest {math.exp(np.mean(chosen)):.4f}")  # fmt: skip
    return 0


def worked(folder: Path, constants: Constants) -> float:
    """Which factor on an epilogue that computes tells best how much longer a candidate takes with one than without."""
    from benchmarks.random_problems import candidate_of, problem_of

    us = {
        (*row["problem"].split(" ", 1), row["variant"]): row["us"]
        for row in read(folder / "random_epilogues.json")["rows"]
        if row["peer"] == OURS
    }
    both = [(name, text, took / us[name, "plain", text]) for (name, kind, text), took in us.items()
            if kind != "plain" and (name, "plain", text) in us]  # fmt: skip
    done = together(work(problem_of(name), candidate_of(text), H200) for name, text, _ in both)
    plain, slower = np.log(times(done, constants)), np.log([ratio for _, _, ratio in both])
    each = [np.log(times(done, attrs.evolve(constants, worked=factor), fused=True)) for factor in WORKED]
    return round(float(WORKED[np.argmin([abs(found - plain - slower).mean() for found in each])]), 1)


def _weight(group: Any, count: int) -> float:
    """Of a problem with *count* candidates: one alone tells nothing of choices."""
    suite, _, run = group
    weight = (FRESH if run and run >= ON_POLICY else WEIGHTS[suite]) * (TWELVE_WEIGHT if run == TWELVE else 1.0)
    return weight * min(1.0, (count - 1) / 4) + 1e-9


def stored(folder: Path) -> Iterator[tuple[Any, Problem, Candidate, float]]:
    """(suite, problem and run; the problem; a candidate; its microseconds) of the stored results of both suites, without
    candidates whose hints and boxes are not those that a candidate of this form has today. Hints for rows that share what
    memory delivers, which were given once, count as none where the operands are read in less than half of the time."""
    from benchmarks.random_problems import candidate_of, problem_of

    today: dict[Problem, dict[Any, set[Any]]] = {}
    for suite in ("tuning", "random"):
        for row in read(folder / f"{suite}.json")["rows"]:
            if row["peer"] != OURS or row["variant"].startswith("StreamK"):  # which is no candidate any more
                continue
            problem, candidate = problem_of(row["problem"], row["dtype"]), candidate_of(row["variant"])
            if problem not in today:
                today[problem] = {}
                for each in candidates(problem, H200):
                    today[problem].setdefault(_form(each), set()).add(_loads(problem, each))
            loads, run = _loads(problem, candidate), row.get("run")
            hints = dict(candidate.options).get("l2_hints", (None, None))
            if hints != loads[0] and problem.bytes / H200.memory / 1e3 > row["us"] / 2:
                continue
            if loads in today[problem].get(_form(candidate), {loads}):
                yield (suite, problem, run), problem, candidate, row["us"] - SLOW_LAUNCHES.get(run, 0.0)


def _form(candidate: Candidate) -> Any:
    return candidate.schedule, candidate.tile, candidate.cluster, candidate.accumulators


def _loads(problem: Problem, candidate: Candidate) -> Any:
    words = dict(candidate.options)
    hints = words.get("l2_hints", (None, None))
    return hinted(problem, hints), words.get("outside")


def _name(problem: Problem) -> str:
    return f"{problem.m}x{problem.n}x{problem.k}"


def _plain(candidate: Candidate) -> list[Any]:
    return [candidate.schedule, list(candidate.tile), list(candidate.cluster), [list(o) for o in candidate.options]]


if __name__ == "__main__":
    sys.exit(main())
