"""GEMM on views of wider tensors, with any number of rows, beside cuBLAS; suite `random_views`.

python -m benchmarks.random_views --seed 0x1234abcd                  164 problems; the seed: the measured commit
python -m benchmarks.random_views --seed 0x1234abcd --append         those that are left
python -m benchmarks.random_views --candidates 8                     also eight candidates that differ, to fit the estimate
python -m benchmarks.random_views --peers quack cutlass              the first 24 along k, beside others than cuBLAS too
python -m benchmarks.random_views --report                           prints the stored results; needs no GPU

100 problems in bf16 with both operands along k, 40 of other majors, 24 in fp8, mixed evenly, so that a run that ends early has
measured a fair part. Half of those in bf16 have rows that lie 8 or 64 elements further apart than they are long, and an
output that begins 8 elements to the right. "chosen" is what the estimate alone takes, "looked" what `choose` takes on its own
GPU: it looks at up to four candidates.

All variants of a problem run in one process on the same data, in random order, with rests that are ten times as long as the
batches, `--rest` seconds at most. The look takes the fastest of a first round; the times are those of later rounds. A result
is right if it is near float64's, if a second launch makes the same bits, and if nothing beside the output has changed.
Of other peers than cuBLAS, those two variants are measured that are the fastest in a round before; suite `random_peers`.
Processes choose and compile for later problems meanwhile.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs

from benchmarks import peers
from benchmarks.cli import add_options, gpu_of, guarded, method_of, settings
from benchmarks.random_problems import (
    DTYPES,
    MOST_BYTES,
    MOST_FLOPS,
    OUT,
    ROWS,
    WRONG,
    blas,
    checker,
    dtype_name,
    log_uniform,
    name_of,
    suite_of,
    varied,
)
from benchmarks.results import OURS, Results, folder_of, print_table, read
from tmapipe.tuning import Candidate, Device, Problem, estimate
from tmapipe.tuning.compiling import ready
from tmapipe.tuning.cost import Timing, rested
from tmapipe.tuning.problem import LINE
from tmapipe.tuning.tuner import LOOKS, unsure

SUITE = "random_views"
WITH_PEERS, COUNT_WITH_PEERS = "random_peers", 24
COUNTS = {"along k": 100, "other majors": 40, "fp8": 24}
LEAST_FLOPS = 2e9
FEW = 10  # of so many problems one has less than 16 rows
FURTHER = (0, 0, 8, 64)  # elements by which rows lie further apart than they are long
WHICH = ("chosen", "looked", "best")  # of ours: by estimate; after a look; of all that were measured
GUARD = 1  # rows behind the output that nobody may write
AHEAD = 2  # problems in work, of each compiling process
KEPT = 2  # variants of each peer
LOOKING = 1  # rounds before those that are reported, by which one of ours is taken
RESTS, LEAST_REST = 10, 5e-3  # of a batch's time; and seconds


@attrs.frozen
class View:
    """A problem, and by how many elements rows of its tensors lie further apart than they are long."""

    kind: str
    problem: Problem
    further: int = 0

    @property
    def name(self) -> str:
        """As of `benchmarks.random_problems`, and "+8" or "+64"."""
        return name_of(self.problem) + (f"+{self.further}" if self.further else "")


# ---- problems -----------------------------------------------------------------------------------------------------------


def drawn(seed: int) -> list[View]:
    """The problems of a seed, in the order in which they are measured."""
    found = [
        ((index + 0.5) / count, order, view)
        for order, (kind, count) in enumerate(COUNTS.items())
        for index, view in enumerate(_of_kind(kind, seed, count))
    ]
    return [view for _, _, view in sorted(found, key=lambda each: each[:2])]


def _of_kind(kind: str, seed: int, count: int) -> list[View]:
    """m log-uniform from 1 to 65536, n and k from 64 to 65536, multiples of 8, of 2e9 to 4e12 FLOP. A tenth has less than 16
    rows. What is contiguous along m has a multiple of 8 rows; fp8 has n and k in multiples of 16."""
    rng = random.Random(f"{kind} {seed}")
    dtype, multiple = ("fp8", 16) if kind == "fp8" else ("bf16", 8)
    found: list[View] = []
    while len(found) < count:
        majors = rng.choice(ROWS) if kind == "other majors" else ("k", "k")
        few = len(found) % FEW == FEW - 1
        m = log_uniform(rng, 1, 15 if few else 65536, 8 if majors[0] == "m" else 1)
        n, k = (log_uniform(rng, 64, 65536, multiple) for _ in range(2))
        problem = Problem(m, n, k, DTYPES[dtype], OUT[dtype], 1, majors)
        if LEAST_FLOPS <= problem.flops <= MOST_FLOPS and problem.bytes <= MOST_BYTES:
            further = 0 if kind == "fp8" else rng.choice(FURTHER)
            found.append(View(kind, aligned(problem, further), further))
    return found


def aligned(problem: Problem, further: int) -> Problem:
    """The problem, with the alignment of rows that lie *further* apart than they are long."""
    if not further:
        return problem
    size = problem.dtype.bytes
    of_a, of_b = (
        problem.k if major == "k" else n for n, major in zip((problem.m, problem.n), problem.majors, strict=True)
    )
    rows = [math.gcd(LINE, (width + further) * size) for width in (of_a, of_b)]
    pitch = math.gcd(LINE, (problem.n + further) * problem.out.bytes)
    of_d = dict.fromkeys([math.gcd(pitch, 8 * size), pitch])
    return attrs.evolve(problem, aligned=(*rows, *of_d))


def data_of(view: View, seed: int, device: str = "cuda") -> tuple[Any, Any, Any, Any]:
    """a [m, k], b [n, k], random normal; the output; and the tensor that it is a view of, with a row more."""
    import torch

    problem, further = view.problem, view.further
    generator = torch.Generator(device).manual_seed(seed)
    kind = getattr(torch, problem.dtype.torch)

    def normal(rows: int, major: str) -> Any:
        height, width = (rows, problem.k) if major == "k" else (problem.k, rows)
        first = kind if kind.itemsize > 1 else torch.bfloat16
        made = torch.randn(height, width + further, generator=generator, device=device, dtype=first).to(kind)
        return made[:, :width] if major == "k" else made[:, :width].mT

    a, b = normal(problem.m, problem.majors[0]), normal(problem.n, problem.majors[1])
    shape = problem.m + GUARD, problem.n + further
    whole = torch.empty(shape, device=device, dtype=getattr(torch, problem.out.torch))
    start = min(8, further)
    return a, b, whole[: problem.m, start : start + problem.n], whole


def error_of(run: Callable[[], object], check: Callable[..., float], out: Any, whole: Any) -> float:
    """The relative error of *run*, which *check* finds. Raises `RuntimeError` if it writes beside the output, or other bits
    the second time."""
    import torch

    bits = whole.view(torch.int16)
    bits.fill_(0x7FC1)  # a NaN that no kernel makes
    run()
    beside, start = bits.clone(), out.storage_offset()
    beside[: out.shape[0], start : start + out.shape[1]] = 0x7FC1
    if not bool((beside == 0x7FC1).all()):
        raise RuntimeError("WRITES beside its output")
    first = out.clone()
    found = check(run)
    if not torch.equal(out.view(torch.int16), first.view(torch.int16)):
        raise RuntimeError("MAKES other bits the second time")
    return found


# ---- compiling ----------------------------------------------------------------------------------------------------------


def chosen_for(problem: Problem, device: Device, look: int, further: int) -> tuple[list[Candidate], list[Candidate]]:
    """What `choose` looks at, the least estimate first, and *further* candidates that differ."""
    looks = unsure(problem, device, look)
    return looks, [each for each in (varied(problem, device, further) if further > 1 else []) if each not in looks]


def compile_one(problem: Problem, candidate: Candidate, folder: Path, index: int) -> str:
    """Compiles into *folder* for `tmapipe.tuning.compiling.ready`; "", or what went wrong."""
    from tmapipe.gpu.build import build

    try:
        made = candidate.build(problem)
        compiled = build(made, made.plan(candidate.dtypes(problem)), candidate.ranks(problem))
        (folder / f"{index}.o").write_bytes(compiled.code.object)
    except Exception as error:  # any: it is reported, and the candidate left out
        return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
    return ""


class Ahead:
    """Chooses and compiles for views, in the order given, in processes that run beside the measurements."""

    def __init__(self, views: list[View], device: Device, look: int, further: int, jobs: int):
        self.folder = Path(tempfile.mkdtemp(prefix="tmapipe-views-"))
        self.device, self.look, self.further = device, look, further
        self.pool = multiprocessing.get_context("spawn").Pool(jobs)
        self.waiting, self.jobs = list(views)[::-1], jobs
        self.few: dict[View, tuple[list[Candidate], list[Candidate]]] = {}
        self.paths: dict[tuple[View, Candidate], int] = {}
        self.errors: dict[tuple[View, Candidate], str] = {}
        self.numbers = itertools.count()
        self.lock, self.begun, self.done = threading.Condition(), 0, 0
        with self.lock:
            self._begin()

    def _begin(self) -> None:
        while self.waiting and self.begun - self.done < AHEAD * self.jobs:
            view = self.waiting.pop()
            self.begun += 1
            arguments = view.problem, self.device, self.look, self.further
            self._send(chosen_for, arguments, functools.partial(self._chosen, view))

    def _send(self, function: Callable[..., Any], arguments: Any, then: Callable[[Any], None]) -> None:
        self.pool.apply_async(function, arguments, callback=then, error_callback=lambda error: print(f"LOST: {error}"))

    def _chosen(self, view: View, found: tuple[list[Candidate], list[Candidate]]) -> None:
        with self.lock:
            self.few[view] = found
            for candidate in (*found[0], *found[1]):
                index = self.paths[view, candidate] = next(self.numbers)
                arguments = view.problem, candidate, self.folder, index
                self._send(compile_one, arguments, functools.partial(self._compiled, view, candidate))

    def _compiled(self, view: View, candidate: Candidate, error: str) -> None:
        with self.lock:
            self.errors[view, candidate] = error
            if self.is_ready(view):
                self.done += 1
                self._begin()
                self.lock.notify_all()

    def is_ready(self, view: View) -> bool:
        return view in self.few and all((view, each) in self.errors for few in self.few[view] for each in few)

    def first(self, views: Iterable[View], seconds: float) -> View | None:
        """The first of *views* that is ready, after waiting for as many seconds."""
        with self.lock:
            self.lock.wait_for(lambda: any(map(self.is_ready, views)), max(0.0, seconds))
            return next(filter(self.is_ready, views), None)

    def schedule(self, view: View, candidate: Candidate) -> Any:
        """The schedule, ready to launch. Raises `RuntimeError` if it did not compile."""
        if self.errors[view, candidate]:
            raise RuntimeError(self.errors[view, candidate])
        problem = view.problem
        job = functools.partial(_job, problem, candidate)
        return ready(job, self.folder, self.paths[view, candidate])


def _job(problem: Problem, candidate: Candidate) -> Any:
    return candidate.build(problem), candidate.dtypes(problem), candidate.ranks(problem)


# ---- measuring ----------------------------------------------------------------------------------------------------------


def measure(view: View, ahead: Any, clock: Any, results: Results, args: Any, place: str = "cuda") -> None:
    """Adds a row for cuBLAS and each candidate that is right."""
    looks, more = ahead.few[view]
    problem, seed = view.problem, args.seed % 2**31
    a, b, out, whole = data_of(view, seed, place)
    check = checker(a, b, out)
    runs: dict[tuple[str, str], Callable[[], object]] = {("cublas", "torch"): blas(a, b, out)}
    for peer in args.peers:
        runs |= {(peer, name): run for name, run in peers.prepare(peer, a, b, out).items()}
    said: list[str] = []
    for candidate in (*looks, *more):
        try:
            runs[OURS, str(candidate)] = functools.partial(ahead.schedule(view, candidate), a, b, out=out)
        except RuntimeError as error:
            said.append(f"{candidate}: {error}")
    errors: dict[tuple[str, str], float] = {}
    for key, run in list(runs.items()):
        try:
            errors[key] = error_of(run, check, out, whole)
            if not errors[key] < WRONG:
                raise RuntimeError(f"WRONG, relative error {errors[key]:.2e}")
        except Exception as error:
            clock.rest(0.0)  # raises if the device itself is lost
            said.append(f"{' '.join(key)}: {(str(error).splitlines() or [''])[0][:200]}")
            del runs[key]
    estimated = {str(each): estimate(problem, each, ahead.device) for each in (*looks, *more)}
    rest = max(LEAST_REST, RESTS * args.batch * min(estimated.values()) * 1e-6)
    method = attrs.evolve(method_of(args), rounds=LOOKING + args.rounds, rest=min(args.rest, rest))
    for peer in args.peers:
        once = rested({key: run for key, run in runs.items() if key[0] == peer}, clock, attrs.evolve(method, rounds=1))
        for key in sorted(once, key=lambda each: once[each].us)[KEPT:]:
            del runs[key]
    timings = rested(runs, clock, method)
    right = {str(each): timings[OURS, str(each)] for each in looks if (OURS, str(each)) in runs}
    looked = min(right, key=lambda each: statistics.median(right[each].rounds[:LOOKING]), default="")
    for (peer, variant), both in timings.items():
        timing = Timing.of(both.rounds[LOOKING:])
        results.add(
            problem=view.name, dtype=dtype_name(problem), peer=peer, variant=variant, us=timing.us, kind=view.kind,
            spread=timing.spread, rel_err=errors[peer, variant], estimated_us=estimated.get(variant),
            chosen=True if variant == str(looks[0]) else None, looked=len(looks) if variant == looked else None,
        )  # fmt: skip
    (line,) = lines(row for row in results.rows if row["problem"] == view.name and row["kind"] == view.kind)
    print(f"{view.name} {line.text}" + "".join(f"\n    left out: {text}" for text in said), flush=True)


# ---- reports ------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Line:
    """One problem: times (microseconds) of the best peer and of `WHICH`, nan where there is none; what a look took."""

    name: str
    kind: str
    us: tuple[float, ...]
    looks: int
    taken: str
    fastest: str

    def ratio(self, which: str) -> float:
        """Speed, of the best peer's, of what is "chosen", "looked" or "best"."""
        return self.us[0] / self.us[1 + WHICH.index(which)]

    @property
    def text(self) -> str:
        return f"best peer {self.us[0]:.1f}" + "".join(f", {which} {self.ratio(which):.3f}" for which in WHICH)


def lines(rows: Iterable[dict[str, Any]]) -> list[Line]:
    by_problem: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        by_problem.setdefault((row["problem"], row["kind"]), []).append(row)
    found = []
    for (name, kind), mine in by_problem.items():
        ours = sorted((row for row in mine if row["peer"] == OURS), key=lambda row: row["us"])
        theirs = (row for row in mine if row["peer"] != OURS)
        peer = min(theirs, key=lambda row: row["us"], default=dict[str, Any]())
        chosen, looked = (next((row for row in ours if row.get(which)), {}) for which in ("chosen", "looked"))
        best = ours[0] if ours else {}
        times = (row.get("us", math.nan) for row in (peer, chosen, looked, best))
        words = looked.get("variant", ""), best.get("variant", "")
        found.append(Line(name, kind, tuple(times), looked.get("looked", 0), *words))
    return found


def report(rows: Iterable[dict[str, Any]]) -> None:
    """Prints geometric means and how many are slow, by kind, and the slowest."""
    every = lines(rows)
    kinds = {
        "along k, contiguous": [e for e in every if e.kind == "along k" and "+" not in e.name],
        "along k, views": [e for e in every if e.kind == "along k" and "+" in e.name],
        **{kind: [e for e in every if e.kind == kind] for kind in COUNTS},
    }
    body = []
    for (kind, mine), which in itertools.product(kinds.items(), WHICH):
        found = [e.ratio(which) for e in mine if not math.isnan(e.ratio(which))]
        if found:
            mean = math.exp(statistics.fmean(map(math.log, found)))
            under = [sum(value < limit for value in found) for limit in (0.9, 0.95, 1)]
            body.append([kind, which, len(mine), f"{mean:.3f}", f"{min(found):.3f}", *under, len(mine) - len(found)])
    heads = ["", "speed, of the best peer's", "problems", "mean", "least", "< 0.90", "< 0.95", "< 1", "not right"]
    print_table(body, heads, "speed, by problem")
    if every:
        print(f"looks: {statistics.fmean(e.looks for e in every):.2f} candidates in the mean")
    table = [
        [e.name, f"{e.ratio('looked'):.3f}", f"{e.us[0]:.1f}", f"{e.us[2]:.1f}", e.taken, f"{e.us[3]:.1f}", e.fastest]
        for e in sorted(every, key=lambda e: e.ratio("looked"))[:16]
    ]
    print_table(
        table, ["problem", "of the best peer", "best peer, us", "looked, us", "", "best, us", ""], "the slowest"
    )


# ---- the command line ---------------------------------------------------------------------------------------------------


def options(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--look", type=int, default=LOOKS, help="candidates that are looked at (default %(default)s)")
    parser.add_argument("--candidates", type=int, default=1, metavar="N", help="also so many that differ")
    parser.add_argument("--peers", nargs="+", default=[], choices=peers.PEERS, help="besides cuBLAS")
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to end (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compiling processes (default %(default)s)")
    parser.add_argument("--report", action="store_true", help="only print the stored results")
    add_options(parser)
    parser.set_defaults(rounds=3, batch=6, rest=0.1)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    suite = WITH_PEERS if args.peers else SUITE
    if args.report:
        report(read(folder_of(args.out) / f"{suite}.json")["rows"])
        return 0
    if not gpu_of(SUITE):
        return 2
    ends = guarded(args.seconds)
    from tmapipe.gpu.launch import CudaClock
    from tmapipe.tuning.tuner import device_of

    device = device_of()
    results = Results(suite_of(device.name, suite), device.name, {**settings(args), "seed": f"{args.seed:#010x}"})
    if args.append:
        results.resume(args.out)
    known = {(row["problem"], row["kind"]) for row in results.rows}
    views = drawn(args.seed)
    if args.peers:
        views = [view for view in views if view.kind == "along k"][:COUNT_WITH_PEERS]
    left = [view for view in views if (view.name, view.kind) not in known]
    ahead, clock = Ahead(left, device, args.look, args.candidates, args.jobs), CudaClock(args.flush)
    while left and (view := ahead.first(left, ends - time.monotonic())) and time.monotonic() < ends:
        left.remove(view)
        measure(view, ahead, clock, results, args)
        results.write(args.out)
    report(results.rows)
    print(f"{len(left)} problems left; written: {results.write(args.out)}", flush=True)
    ahead.pool.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
