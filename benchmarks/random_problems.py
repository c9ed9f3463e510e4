"""GEMM on problems drawn at random, beside cuBLAS; suite `random`.

python -m benchmarks.random_problems --seed 7 --count 100                  what `choose` takes, beside cuBLAS
python -m benchmarks.random_problems --seed 7 --look 3                     and after a look at up to three candidates
python -m benchmarks.random_problems --seed 7 --candidates 8               eight candidates that differ, to fit the estimate
python -m benchmarks.random_problems --problems FILE --add "SplitK 64x64 1x2 parts 4"
python -m benchmarks.random_problems --peers cublas quack cutlass --majors kk
python -m benchmarks.random_problems --report --runs 14 16                 prints the stored results; needs no GPU

A problem's kernels are compiled in other processes while earlier problems are measured. All variants of a problem run in one
process on the same data, in random order, rested; each result is checked against float64. With ``--seconds`` it ends after
that time; with ``--append`` the next run goes on with the problems that are left. FILE has a JSON object a line, with
"problem" as "MxNxK:kk" (majors of a and b) and "dtype". Other GPUs than an H200 have suites of their own, as `random_h100`.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import math
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from benchmarks import peers
from benchmarks.cli import add_options, gpu_of, guarded, method_of, settings
from benchmarks.results import OURS, Results, folder_of, print_table, read
from tmapipe.tuning import Candidate, Device, Problem, candidates, estimate
from tmapipe.tuning.compiling import compile_each, jobs_of, load
from tmapipe.tuning.cost import METHOD, estimates, fastest, rested, screen
from tmapipe.tuning.tuner import unsure

DTYPES = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8_e4m3"}
OUT = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}
MULTIPLES = (8, 8, 8, 16, 16, 64, 128)
MOST_FLOPS, MOST_BYTES = 4e12, 4e9  # of a problem
FURTHER = 1.7  # estimated time, over the least one, up to which candidates are drawn
WRONG = 2e-2


# ---- problems -----------------------------------------------------------------------------------------------------------


def draw(seed: int, count: int, dtypes: Sequence[str] = ("bf16",), majors: str = "any") -> list[Problem]:
    """*count* problems: m, n and k log-uniform, multiples of 8 or more; outputs from 16 x 16 to 65536 x 8192 or 8192 x 65536,
    k from 64 to 65536. Every eighth has a batch. *majors*: "kk", or "any": two thirds of them "kk".
    """
    rng = random.Random(seed)
    found: list[Problem] = []
    while len(found) < count:
        kind = rng.choice(dtypes)
        least = 16 if kind == "fp8" else 8
        multiple = max(least, rng.choice(MULTIPLES))
        long, short = log_uniform(rng, 16, 65536, multiple), log_uniform(rng, 16, 8192, multiple)
        m, n = (long, short) if rng.random() < 0.5 else (short, long)
        k = log_uniform(rng, 64, 65536, max(least, rng.choice(MULTIPLES)))
        batch = rng.choice((2, 3, 4, 8, 16)) if rng.random() < 1 / 8 and kind != "fp8" else 1
        sides = ("k", "k") if kind == "fp8" or majors == "kk" or rng.random() < 2 / 3 else rng.choice(ROWS)
        problem = Problem(m, n, k, DTYPES[kind], OUT[kind], batch, sides)
        if problem.flops <= MOST_FLOPS and problem.bytes <= MOST_BYTES:
            found.append(problem)
    return found


ROWS = (("k", "n"), ("m", "k"), ("m", "n"))


def log_uniform(rng: random.Random, least: int, most: int, multiple: int) -> int:
    """A multiple of *multiple*, at least one."""
    size = math.exp(rng.uniform(math.log(least), math.log(most)))
    return max(multiple, round(size / multiple) * multiple)


def name_of(problem: Problem) -> str:
    """As "MxNxK:kk", or "LxMxNxK:kk" with a batch."""
    sizes = [problem.m, problem.n, problem.k]
    return "x".join(map(str, [problem.batch] * (problem.batch > 1) + sizes)) + ":" + "".join(problem.majors)


def problem_of(name: str, dtype: str = "bf16") -> Problem:
    """The problem of such a name."""
    sizes, _, majors = name.partition(":")
    *batch, m, n, k = map(int, sizes.split("x"))
    of_a, of_b = majors or "kk"
    return Problem(m, n, k, DTYPES[dtype], OUT[dtype], *(batch or [1]), (of_a, of_b))


def dtype_name(problem: Problem) -> str:
    return next(name for name, dtype in DTYPES.items() if dtype == problem.dtype.name)


# ---- candidates ---------------------------------------------------------------------------------------------------------


def candidate_of(text: str) -> Candidate:
    """The candidate that is written *text*, as `str` writes it."""
    schedule, tile, cluster, *words = text.split(maxsplit=3)
    m, n, along_m, along_n = (int(size) for pair in (tile, cluster) for size in pair.split("x"))
    options, rest = [], words[0] if words else ""
    while rest:
        word, _, rest = rest.partition(" ")
        end = rest.index(")") + 1 if rest.startswith("(") else len(rest.split(" ")[0])
        options.append(
            (word, rest[:end] if rest[:end].isidentifier() and rest[:end] != "False" else ast.literal_eval(rest[:end]))
        )
        rest = rest[end:].lstrip()
    return Candidate(schedule, (m, n), (along_m, along_n), tuple(options))


def varied(problem: Problem, device: Device, count: int, seed: int = 0) -> list[Candidate]:
    """*count* candidates: what `choose` takes, then the next ones by estimate that differ, then some at random."""
    every = list(candidates(problem, device))
    us = dict(zip(every, estimates(problem, every, device), strict=True))
    order = sorted(every, key=us.__getitem__)
    found: list[Candidate] = []
    forms = set()
    for candidate in order:
        if len(found) >= max(1, 2 * count // 3):
            break
        form = candidate.schedule, candidate.tile, candidate.accumulators
        twin = len(found) == 1 and _inside(candidate) == _inside(found[0])
        if (twin or form not in forms) and candidate.can_be_built(problem):
            forms.add(form)
            found.append(candidate)
    others = [c for c in order if c not in found and us[c] < FURTHER * us[found[0]]]
    for candidate in random.Random(f"{seed} {problem}").sample(others, len(others)):
        if len(found) >= count:
            break
        if candidate.can_be_built(problem):
            found.append(candidate)
    return found


def _inside(candidate: Candidate) -> Candidate:
    """The same, whatever it says of rows outside of the tensors."""
    return attrs.evolve(candidate, options=tuple(pair for pair in candidate.options if pair[0] != "outside"))


class Ahead:
    """Compiles candidates for problems, in the order given, in processes that run beside the measurements."""

    def __init__(self, wanted: dict[Problem, list[Candidate]], jobs: int | None):
        self.folder = tempfile.TemporaryDirectory(prefix="tmapipe-random-", ignore_cleanup_errors=True)
        self.jobs, self.groups = jobs, {}
        for problem, few in wanted.items():
            _, known = self.groups.setdefault(_group(problem), (problem, {}))
            known.update(dict.fromkeys(few))
        self.errors: dict[Any, str] = {}
        self.schedules: dict[Any, Any] = {}
        self.changed = threading.Event()
        threading.Thread(target=self._compile, daemon=True).start()

    def _compile(self) -> None:
        for number, (group, (problem, few)) in enumerate(self.groups.items()):
            folder = Path(self.folder.name, str(number))
            folder.mkdir()

            def done(index: int, error: str, group: Any = group, few: Sequence[Candidate] = tuple(few)) -> None:
                self.errors[group, few[index]] = error
                self.changed.set()

            compile_each(jobs_of(problem, list(few)), folder, self.jobs, done)

    def ready(self, problem: Problem, few: Iterable[Candidate]) -> bool:
        """Whether all of *few* are compiled, or have failed."""
        return all((_group(problem), candidate) in self.errors for candidate in few)

    def schedule(self, problem: Problem, candidate: Candidate) -> Any:
        """The schedule, ready to launch. Raises `RuntimeError` if it did not compile."""
        from tmapipe.gpu.build import Compiled
        from tmapipe.gpu.launch import adopt

        group = _group(problem)
        if self.errors[group, candidate]:
            raise RuntimeError(self.errors[group, candidate])
        if (group, candidate) not in self.schedules:
            number, index = list(self.groups).index(group), list(self.groups[group][1]).index(candidate)
            made = candidate.build(problem)
            made.checked = False  # the process that compiled it has proved it
            plan = made.plan(candidate.dtypes(problem))
            code = load(Path(self.folder.name, str(number)), index)
            adopt(made, Compiled(plan, code), candidate.ranks(problem))
            self.schedules[group, candidate] = made
        return self.schedules[group, candidate]


def _group(problem: Problem) -> tuple[Any, ...]:
    """What a kernel is compiled for."""
    return problem.dtype.name, problem.out.name, problem.majors, problem.batch > 1


# ---- measuring ----------------------------------------------------------------------------------------------------------


def data_of(problem: Problem, seed: int, device: str = "cuda") -> tuple[Any, Any, Any]:
    """a [m, k] and b [n, k], random normal, and an output; with a batch, in three dimensions."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    lead = (problem.batch,) if problem.batch > 1 else ()
    kind = getattr(torch, problem.dtype.torch)

    def normal(rows: int, major: str) -> Any:
        height, width = (rows, problem.k) if major == "k" else (problem.k, rows)
        first = kind if kind.itemsize > 1 else torch.bfloat16
        made = torch.randn(*lead, height, width, generator=generator, device=device, dtype=first).to(kind)
        return made if major == "k" else made.mT

    a, b = normal(problem.m, problem.majors[0]), normal(problem.n, problem.majors[1])
    out = torch.empty(*lead, problem.m, problem.n, device=device, dtype=getattr(torch, problem.out.torch))
    return a, b, out


def checker(a: Any, b: Any, out: Any, samples: int = 16) -> Callable[[Callable[[], object]], float]:
    """As `benchmarks.gemm.checker`, for any majors, and for the first and the last matrix of a batch."""
    from benchmarks import gemm

    def whole(a: Any, b: Any, out: Any) -> Callable[[Callable[[], object]], float]:
        return gemm.checker(a, b, out, samples=min(samples, out.shape[0], out.shape[1]))

    if a.ndim == 2:
        return whole(a, b, out)
    ends = [whole(a[i], b[i], out[i]) for i in (0, -1)]

    def check(run: Callable[[], object]) -> float:
        out.fill_(float("nan"))
        run()
        return float("nan") if bool(out.isnan().any()) else max(end(run) for end in ends)

    return check


def blas(a: Any, b: Any, out: Any) -> Callable[[], object]:
    """cuBLAS, as torch calls it; for fp8 cuBLASLt with fast accumulation."""
    import torch

    if a.element_size() == 1:
        one = torch.ones((), device=a.device)
        options = {"scale_a": one, "scale_b": one, "out_dtype": out.dtype, "use_fast_accum": True}
        return functools.partial(torch._scaled_mm, a, b.mT, out=out, **options)
    return functools.partial(torch.mm if a.ndim == 2 else torch.bmm, a, b.mT, out=out)


def measure(
    problem: Problem, few: list[Candidate], ahead: Any, clock: Any, results: Results, args: Any, device: Device,
    place: str = "cuda",
) -> None:  # fmt: skip
    """Adds a row for each variant that is right: cuBLAS, other peers, and *few*, of which the first is what was chosen."""
    a, b, out = data_of(problem, args.seed, place)
    check = checker(a, b, out)
    runs: dict[tuple[str, str], Callable[[], object]] = {("cublas", "torch"): blas(a, b, out)}
    said: list[str] = []
    for candidate in few:
        try:
            runs[OURS, str(candidate)] = functools.partial(ahead.schedule(problem, candidate), a, b, out=out)
        except RuntimeError as error:
            said.append(f"{candidate}: {error}")
    if problem.batch == 1 and problem.majors == ("k", "k"):
        for peer in args.peers:
            if peer != "cublas":
                runs |= {(peer, name): run for name, run in peers.prepare(peer, a, b, out).items()}
    errors: dict[tuple[str, str], float] = {}
    for key, run in list(runs.items()):
        try:
            errors[key] = check(run)
            if not errors[key] < WRONG:
                raise RuntimeError(f"WRONG, relative error {errors[key]:.2e}")
        except Exception as error:
            clock.rest(0.0)  # raises if the device itself is lost
            said.append(f"{' '.join(key)}: {(str(error).splitlines() or [''])[0][:200]}")
            del runs[key]
    for peer in args.peers:
        mine = {key: run for key, run in runs.items() if key[0] == peer}
        for key in set(mine) - set(screen(mine, clock, args.keep)) if peer != "cublas" else ():
            del runs[key]
    looked = _looked(problem, runs, args, clock, device)
    estimated = {str(candidate): estimate(problem, candidate, device) for candidate in few}
    for (peer, variant), timing in rested(runs, clock, method_of(args)).items():
        results.add(
            problem=name_of(problem), dtype=dtype_name(problem), peer=peer, variant=variant, us=timing.us,
            tflops=problem.flops / timing.us / 1e6, spread=timing.spread, rel_err=errors[peer, variant],
            estimated_us=estimated.get(variant), chosen=True if variant == str(few[0]) else None,
            looked=args.look if variant == looked else None,
        )  # fmt: skip
    line = _ratios(results.rows, name_of(problem), dtype_name(problem))
    print(
        f"{problem}: {line}" + "".join(f"\n    left out: {text}" for text in said),
        flush=True,
    )


def _looked(problem: Problem, runs: dict[Any, Any], args: Any, clock: Any, device: Device) -> str:
    """What ``choose(problem, look=args.look)`` takes; "" without a look."""
    few = [str(candidate) for candidate in unsure(problem, device, args.look)] if args.look > 1 else []
    if not few or any((OURS, text) not in runs for text in few):
        return ""
    if len(few) == 1:
        return few[0]
    method = attrs.evolve(METHOD, rest=min(args.rest, METHOD.rest))
    return str(fastest({text: runs[OURS, text] for text in few}, clock, method)[0][0])


# ---- reports ------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Line:
    """One problem's times (microseconds), or None: of cuBLAS, of the best of other peers, of what was chosen, of the best, and
    of what was chosen after a look at some."""

    name: str
    cublas: float | None
    peer: float | None
    chosen: float | None
    best: float | None
    chose: str = ""
    fastest: str = ""
    looked: float | None = None


def lines(rows: Iterable[dict[str, Any]]) -> list[Line]:
    """One for each problem, and for each run in which it was measured: cards differ."""
    by_problem: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows:
        by_problem.setdefault((row["problem"], row["dtype"], row.get("run", 1)), []).append(row)
    found = []
    for (name, dtype, _), mine in by_problem.items():
        ours = sorted((row for row in mine if row["peer"] == OURS), key=lambda row: row["us"])
        chosen = next((row for row in ours if row.get("chosen")), None)
        cublas = min((row["us"] for row in mine if row["peer"] == "cublas"), default=None)
        others = min((row["us"] for row in mine if row["peer"] not in (OURS, "cublas")), default=None)
        first = ours[0] if ours else None
        chose, fastest = chosen["variant"] if chosen else "", first["variant"] if first else ""
        times = cublas, others, chosen and chosen["us"], first and first["us"]
        looked = next((row["us"] for row in ours if row.get("looked")), None)
        found.append(Line(f"{name} {dtype}", *times, chose, fastest, looked))
    return found


def report(rows: Iterable[dict[str, Any]]) -> None:
    """Prints geometric means, quantiles and the worst ten."""
    every = lines(rows)
    views = (
        ("chosen, of cuBLAS", lambda e: e.cublas and e.chosen and e.cublas / e.chosen),
        ("chosen after a look, of cuBLAS", lambda e: e.cublas and e.looked and e.cublas / e.looked),
        ("the best measured, of cuBLAS", lambda e: e.cublas and e.best and e.cublas / e.best),
        ("chosen, of the best measured", lambda e: e.best and e.chosen and e.best / e.chosen),
        ("chosen, of the best peer", lambda e: e.peer and e.chosen and min(e.peer, e.cublas or e.peer) / e.chosen),
    )
    body = []
    for text, ratio in views:
        found = sorted(value for value in map(ratio, every) if value)
        if found:
            mean = math.exp(statistics.fmean(map(math.log, found)))
            marks = [found[min(len(found) - 1, int(part * len(found)))] for part in (0, 0.05, 0.25, 0.5, 0.75)]
            under = [f"{sum(value < limit for value in found)}" for limit in (0.9, 0.95, 1)]
            body.append([text, len(found), f"{mean:.3f}", *(f"{mark:.3f}" for mark in marks), *under])
    heads = ["", "problems", "mean", "least", "5 %", "25 %", "median", "75 %", "< 0.90", "< 0.95", "< 1"]
    print_table(body, heads, "speed, by problem")
    known = [each for each in every if each.cublas and each.chosen]
    worst = sorted(known, key=lambda each: each.cublas / each.chosen)[:10]
    table = [[e.name, f"{e.cublas / e.chosen:.3f}", f"{e.cublas:.1f}", f"{e.chosen:.1f}", e.chose, f"{e.best:.1f}", e.fastest]
             for e in worst]  # fmt: skip
    print_table(table, ["problem", "of cuBLAS", "cuBLAS, us", "chosen, us", "", "best, us", ""], "the worst ten")


def _ratios(rows: list[dict[str, Any]], name: str, dtype: str) -> str:
    (line,) = lines(row for row in rows if (row["problem"], row["dtype"]) == (name, dtype))
    if not line.cublas or not line.chosen or not line.best:
        return "not whole"
    return f"cuBLAS {line.cublas:.1f}, chosen {line.chosen:.1f} ({line.cublas / line.chosen:.3f}), best {line.best:.1f}"


# ---- the command line ---------------------------------------------------------------------------------------------------


def options(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="problems to draw (default %(default)s)")
    parser.add_argument("--problems", type=Path, metavar="FILE", help="problems of a file, before those that are drawn")
    parser.add_argument("--dtype", choices=DTYPES, nargs="+", default=["bf16"])
    parser.add_argument("--majors", choices=("any", "kk"), default="any")
    parser.add_argument("--candidates", type=int, default=1, metavar="N", help="of ours (default: what `choose` takes)")
    parser.add_argument("--look", type=int, default=1, metavar="N", help="also what `choose(look=N)` takes")
    parser.add_argument("--add", nargs="+", default=[], type=candidate_of, metavar="TEXT", help="further candidates")
    parser.add_argument("--peers", choices=peers.PEERS, nargs="+", default=["cublas"])
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to end (default %(default)s)")
    parser.add_argument("--jobs", type=int, help="compiling processes")
    parser.add_argument("--report", action="store_true", help="only print the stored results")
    parser.add_argument("--runs", type=int, nargs="+", help="which of them (default: all)")
    add_options(parser)
    parser.set_defaults(rounds=3, batch=6, rest=0.1)
    return parser.parse_args(argv)


def problems_of(args: argparse.Namespace) -> list[Problem]:
    """Those of the file, then those that are drawn; majors and types as asked for."""
    found: list[Problem] = []
    if args.problems:
        rows = [json.loads(line) for line in args.problems.read_text().splitlines() if line.strip()]
        found = [problem_of(row["problem"], row.get("dtype", "bf16")) for row in rows]
        found = [each for each in found if args.majors == "any" or each.majors == ("k", "k")]
    return list(dict.fromkeys([*found, *draw(args.seed, args.count, args.dtype, args.majors)]))


def suite_of(gpu: str, stem: str = "random") -> str:
    """The suite *stem*, and the name of its file, of problems measured on *gpu*."""
    model = next((word.lower() for word in gpu.split() if any(map(str.isdigit, word))), "other")
    return stem if model == "h200" else f"{stem}_{model}"


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    if args.report:
        for path in sorted(folder_of(args.out).glob("random*.json")):
            kept = read(path)
            if kept["suite"] == suite_of(kept["gpu"]):
                print(kept["gpu"])
                report(row for row in kept["rows"] if not args.runs or row.get("run", 1) in args.runs)
        return 0
    if not gpu_of("random_problems"):
        return 2
    ends = guarded(args.seconds)
    from tmapipe.gpu.launch import CudaClock
    from tmapipe.tuning.tuner import device_of

    device = device_of()
    results = Results(suite_of(device.name), device.name, settings(args))
    if args.append:
        results.resume(args.out)
    known = {(row["problem"], row["dtype"]) for row in results.rows}
    left = [each for each in problems_of(args) if (name_of(each), dtype_name(each)) not in known]
    wanted = {}
    for each in left:
        added = [candidate for candidate in args.add if candidate.can_be_built(each)]
        looks = unsure(each, device, args.look) if args.look > 1 else []
        wanted[each] = list(dict.fromkeys([*varied(each, device, args.candidates, args.seed), *looks, *added]))
    ahead, clock = Ahead(wanted, args.jobs), CudaClock(args.flush)
    print(f"{len(wanted)} problems, {sum(len(few) for _, few in ahead.groups.values())} kernels to compile", flush=True)
    while left and time.monotonic() < ends:
        ready = next((each for each in left if ahead.ready(each, wanted[each])), None)
        if ready is None:
            ahead.changed.wait(0.5)
            ahead.changed.clear()
            continue
        left.remove(ready)
        measure(ready, wanted[ready], ahead, clock, results, args, device)
        results.write(args.out)
    report(results.rows)
    print(f"{len(left)} problems left; written: {results.write(args.out)}", flush=True)
    ahead.folder.cleanup()
    os._exit(0)  # does not wait for processes that still compile: they end with their current kernel


if __name__ == "__main__":
    sys.exit(main())
