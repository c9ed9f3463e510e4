"""How kernels bound by memory are measured beside others: cases, workers that prepare them, a report.

Each kernel is called as a user calls it, without a number. Workers make the problems' tensors, compile all variants and
compare every result with torch's in fp32, side by side. Then the problems are measured one after the other, while all else
rests: the variants of one in one process, in random order, rested. The first problem of each kernel comes first.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import json
import math
import os
import select
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.cases import Case, checker, returning
from benchmarks.cli import add_options, gpu_of, kept, method_of, settings
from benchmarks.results import OURS, Results, print_table
from tmapipe.tuning.cost import rested

BYTES = 128 << 20  # of the largest tensor
LIMIT, SUMS = 1e-2, 1e-1  # relative errors; torch adds up bf16 in bf16
Runs = dict[tuple[str, str], Callable[[], Any]]
Made = tuple[Runs, Any]


def compiled_later(plain: Callable[..., Any]) -> Callable[..., Any]:
    """*plain* as torch compiles it, at its first call."""
    made: list[Callable[..., Any]] = []

    def call(*inputs: Any) -> Any:
        import torch

        if not made:  # one function is compiled for many problems
            limits = torch._dynamo.config
            limits.recompile_limit = limits.accumulated_recompile_limit = 1024
            made.append(torch.compile(plain, dynamic=False))
        return made[0](*inputs)

    return call


def _variants(ours: Callable[[], Any], plain: Callable[..., Any], *inputs: Any, compiled: bool = True) -> Made:
    """Ours, torch's as it is and compiled, and what comes out in fp32."""

    runs: Runs = {(OURS, "called"): ours, ("torch", "eager"): functools.partial(plain, *inputs)}
    if compiled:
        runs["torch", "compile"] = functools.partial(compiled_later(plain), *inputs)
    return runs, plain(*(x.float() if x.is_floating_point() else x for x in inputs))


def device_of() -> str:
    """Where tensors of problems lie: on the GPU if there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def some(*shape: int, dtype: str = "bfloat16") -> Any:
    """A tensor of random numbers."""
    import torch

    return torch.randn(shape, device=device_of(), dtype=getattr(torch, dtype))


def elementwise(rows: int, columns: int, dtype: str = "bfloat16") -> Made:
    """A gated unit with a bias: two matrices and a row are read."""
    import torch

    import tmapipe as tp

    x, gate, bias = (some(*shape, dtype=dtype) for shape in ((rows, columns), (rows, columns), (columns,)))
    kernel = tp.schedules.Elementwise(lambda x, gate, bias: x * tp.math.silu(gate) + bias)
    ours = functools.partial(kernel, x, gate, bias, out=torch.empty_like(x))
    return _variants(ours, lambda x, gate, bias: x * torch.nn.functional.silu(gate) + bias, x, gate, bias)


def rotary(shape: tuple[int, ...], pairs: bool, dtype: str = "bfloat16") -> Made:
    """[batch, positions, heads, columns], or with heads before positions where there are fewer of them."""
    import torch

    import tmapipe as tp

    x, first = some(*shape), shape[1] > shape[2]
    angles = 9 * torch.rand(max(shape[1:3]), shape[3] // 2, device=device_of())
    cos, sin = (each.to(getattr(torch, dtype)) for each in (angles.cos(), angles.sin()))
    cos, sin = (each[:, None] if first else each for each in (cos, sin))

    def plain(x: Any, cos: Any, sin: Any) -> Any:
        one, two = (x[..., ::2], x[..., 1::2]) if pairs else x.chunk(2, -1)
        both = one * cos - two * sin, two * cos + one * sin
        found = torch.stack(both, -1).flatten(-2) if pairs else torch.cat(both, -1)
        return found.to(x.dtype)

    ours = functools.partial(tp.schedules.Rotary(pairs), x, cos, sin, out=torch.empty_like(x))
    runs, want = _variants(ours, plain, x, cos, sin)
    try:
        from quack.rotary import apply_rotary
    except ImportError as error:
        print(f"  quack: absent ({error})")
    else:
        seen, tables = x if first else x.transpose(1, 2), [each.flatten(0, -2) for each in (cos, sin)]

        def quack() -> Any:
            found = apply_rotary(seen, *tables, interleaved=pairs)
            return found if first else found.transpose(1, 2)

        runs["quack", "apply_rotary"] = quack
    return runs, want


def transpose(shape: tuple[int, ...], dims: tuple[int, ...], dtype: str = "bfloat16") -> Made:
    """Dimensions in another order."""
    import torch

    import tmapipe as tp

    x = some(*shape, dtype=dtype)
    out = torch.empty([shape[dim] for dim in dims], device=x.device, dtype=x.dtype)
    ours = functools.partial(tp.schedules.Transpose(dims), x, out=out)
    runs, want = _variants(ours, lambda x: x.permute(dims).contiguous(), x)
    other = torch.empty_like(out)
    runs["torch", "copy_"] = returning(lambda: other.copy_(x.permute(dims)), other)
    return runs, want


def products(batch: int, m: int, n: int, k: int, explore: int = 0) -> Made:
    """Batches of small products by what `choose` takes after a look at four candidates. With a number to *explore*: by what
    `choose` takes without a look, by so many likely candidates, and by candidates of several CTAs a multiprocessor."""
    import torch

    import tmapipe as tp

    a, b = some(batch, m, k), some(batch, n, k)
    problem, out = tp.tuning.Problem.of(a, b), torch.empty(batch, m, n, device=a.device, dtype=a.dtype)
    ours = functools.partial(tp.tuning.choose(problem, look=1 if explore else None), a, b, out=out)
    runs, want = _variants(ours, lambda a, b: torch.bmm(a, b.mT), a, b, compiled=False)
    every = [candidate for candidate, _ in tp.tuning.ranked(problem)] if explore else []
    for candidate in dict.fromkeys([*every[:explore], *(each for each in every if each.share > 1)]):
        runs[OURS, str(candidate)] = functools.partial(candidate.build(problem), a, b, out=out)
    return runs, want


# ---- workers ---------------------------------------------------------------------------------------------------------
#
# The first process starts workers, `work`, and writes a line of JSON to the standard input of each: what it prepares, until
# when, and the file that is locked while something is timed. A worker says "ready" with the numbers of what it has prepared.
# Then each number that it reads is measured, and answered with rows.

FREE = 40 << 30  # bytes of the device, under which a prepared problem gives its tensors back
GRACE = 25.0  # seconds that a worker has for the problem that it is at


def check_of(want: Any) -> Callable[[Callable[[], Any]], float]:
    """What says how far a run's result is from *want*, which may say that itself."""
    return want if callable(want) else checker(want)


def prepared(case: Case, args: argparse.Namespace) -> tuple[Runs, dict[tuple[str, str], float]]:
    """The variants of a case that are right, and their errors. All is compiled then."""
    import torch

    torch.manual_seed(args.seed)
    runs, want = case.make("cuda")
    runs, check, errors = kept(dict(runs), args), check_of(want), {}
    for key in sorted(runs, key=lambda key: key[0] == OURS):  # ours may be tuned: others are compiled by then
        try:
            errors[key] = check(runs[key])
            if not errors[key] < case.limit:
                raise RuntimeError(f"WRONG, relative error {errors[key]:.2e}")
        except Exception as error:  # any: a peer's
            torch.cuda.synchronize()  # raises if the device itself is lost
            print(f"  left out: {case.name} {' '.join(key)}: {(str(error).splitlines() or [''])[0][:160]}", flush=True)
            runs.pop(key)
    return runs, errors


def measured(
    case: Case, runs: Runs, errors: dict[tuple[str, str], float], clock: Any, args: Any
) -> list[dict[str, Any]]:
    """A row for each variant; that of ours which comes first is what is chosen without a number."""
    first = next((key for key in runs if key[0] == OURS), None)
    return [
        {
            "problem": case.name, "dtype": case.dtype, "peer": key[0], "variant": key[1], "us": timing.us,
            "gbps": case.work / timing.us / 1e3, "spread": timing.spread, "rel_err": errors[key],
            "chosen": True if key == first else None,
        }
        for key, timing in rested(runs, clock, method_of(args)).items()
    ]  # fmt: skip


def work(cases: Sequence[Case], args: argparse.Namespace) -> int:
    """A worker."""
    import torch

    from tmapipe.gpu.launch import CudaClock

    said = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what compilers print is no answer
    mine, until, lock = json.loads(sys.stdin.readline())
    timed = CudaClock.batch

    def alone(clock: CudaClock, run: Callable[[], object], launches: int) -> list[float]:
        with open(lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            return timed(clock, run, launches)

    CudaClock.batch = alone  # tuning, which some kernels do at their first call, has the same clock
    ready: dict[int, Any] = {}
    for number in mine:
        if time.monotonic() > until:
            break
        try:
            made = prepared(cases[number], args)
            torch.cuda.empty_cache()
            ready[number] = made if torch.cuda.mem_get_info()[0] > FREE else None
            del made
            torch.cuda.empty_cache()
        except Exception as error:  # any: the others are measured
            print(f"  left out: {cases[number].name}: {type(error).__name__}: {str(error)[:160]}", flush=True)
            torch.cuda.synchronize()
    clock = CudaClock(args.flush)
    said.write(json.dumps(list(ready)) + "\n")
    for line in sys.stdin:
        number = int(line)
        made = ready.pop(number) or prepared(cases[number], args)
        said.write(json.dumps(measured(cases[number], *made, clock, args)) + "\n")
        del made
        torch.cuda.empty_cache()
    return 0


class Worker:
    """A process that prepares and measures.

    Args:
        command: The process.
        mine: Numbers of cases.
        until: When it ends to prepare, by `time.monotonic`.
        lock: The file that is locked.
    """

    def __init__(self, command: Sequence[str], mine: Sequence[int], until: float, lock: str):
        alone = dict.fromkeys(("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS"), "1")
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=os.environ | alone, **pipes)
        self._say([list(mine), until, lock])
        self.ready: list[int] | None = None
        guard = threading.Timer(max(1.0, until + GRACE - time.monotonic()), self._late)
        guard.daemon = True
        guard.start()

    def _late(self) -> None:
        if self.ready is None and not select.select([self.process.stdout], [], [], 0)[0]:  # nor has it answered
            self.process.kill()

    def _say(self, what: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()

    def _hear(self) -> list[Any]:
        """Its answer; nothing if it has ended."""
        assert self.process.stdout is not None
        return list(json.loads(self.process.stdout.readline() or "[]"))

    def await_ready(self) -> list[int]:
        """Waits until the process has prepared its cases. Returns the numbers of those cases that are ready."""
        self.ready = self._hear()
        return self.ready

    def measure(self, number: int) -> list[dict[str, Any]]:
        """The rows of a case that is ready."""
        self._say(number)
        return self._hear()

    def end(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


# ---- suites ----------------------------------------------------------------------------------------------------------


def report(rows: Sequence[dict[str, Any]], title: str = "row and element-wise kernels") -> None:
    """Prints what is chosen beside the best peer of each problem and the best variant explored, and geometric means."""
    body, ratios = [], dict[str, list[float]]()
    for name, dtype in dict.fromkeys((row["problem"], row["dtype"]) for row in rows):
        each = sorted((r for r in rows if (r["problem"], r["dtype"]) == (name, dtype)), key=lambda row: row["us"])
        mine = next((row for row in each if row.get("chosen")), None)
        best = next((row for row in each if row["peer"] != OURS), None)
        beside, ratio = "", float("nan")
        if best and mine:
            ratio = best["us"] / mine["us"]
            for view in (name.split()[0], dtype, best["peer"], "all"):
                ratios.setdefault(view, []).append(ratio)
        if best:
            beside = f"{best['peer']} {best['variant']} {best['gbps']:.0f}"
        other = next((row for row in each if row["peer"] == OURS), mine)
        explored = f"{other['gbps']:.0f}: {other['variant']}" if other and other is not mine else ""
        said = (f"{mine['gbps']:.0f}", mine["variant"]) if mine else ("no result of ours", "")
        body.append([name, dtype, said[0], beside, f"{ratio:.3f}", said[1], explored])
    print_table(body, ["", "", "GB/s", "best peer", "ratio", "chosen", "best explored"], title)
    means = [[view, len(each), f"{math.exp(statistics.fmean(map(math.log, each))):.3f}", f"{min(each):.3f}",
              sum(value < 0.93 for value in each)] for view, each in ratios.items()]  # fmt: skip
    print_table(means, ["of the best peer", "cases", "mean", "least", "< 0.93"])


def rehearse(cases: Iterable[Case]) -> int:
    """Ours beside torch, wherever this runs; how many are wrong."""
    wrong = 0
    for case in cases:
        runs, want = case.make("cpu")
        try:
            error = check_of(want)(next(run for (peer, _), run in runs.items() if peer == OURS))
        except Exception as found:
            print(f"  {case.name}: {type(found).__name__}: {str(found)[:200]}")
            error = math.inf
        wrong += not error < case.limit
        print(f"{case.name} {case.dtype}: relative error {error:.2e}", flush=True)
    return wrong


def add_time(parser: argparse.ArgumentParser) -> None:
    """The options of suites that end after a while and go on later."""
    parser.add_argument("--problems", nargs="+", default=[""], help="those whose names begin so (default: all)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to end (default %(default)s)")
    parser.add_argument("--jobs", type=int, help="workers (default: one a core, at most 16)")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    add_options(parser)


def run_suites(suites: dict[str, list[Case]], args: argparse.Namespace, command: list[str], **method: Any) -> int:
    """Measures the cases of suites that *args* name and that have no result yet, and writes a file for each suite.

    Args:
        suites: Cases by the name of their suite.
        args: Of the command line.
        command: The module, and its arguments, which with --work is a worker.
        method: What else the files say of how it was measured.

    Returns:
        The exit status.
    """
    gpu = gpu_of(command[0].removeprefix("benchmarks."))
    if not gpu:
        return 2
    every = [(suite, case) for suite, cases in suites.items() for case in cases]
    if args.work:
        return work([case for _, case in every], args)
    started, files = time.monotonic(), {}
    for suite in suites:
        files[suite] = Results(suite, gpu, settings(args) | method)
        if args.append:
            files[suite].resume(args.out)
    known = {(suite, row["problem"], row["dtype"]) for suite, file in files.items() for row in file.rows}
    wanted = [
        number
        for number, (suite, case) in enumerate(every)
        if case.name.startswith(tuple(args.problems)) and (suite, case.name, case.dtype) not in known
    ]
    jobs = max(1, min(args.jobs or os.cpu_count() or 1, 16, len(wanted)))
    whole = [sys.executable, "-m", *command, "--work", "--flush", args.flush, "--seed", str(args.seed)]
    whole += ["--rounds", str(args.rounds), "--batch", str(args.batch), "--rest", str(args.rest)]
    whole += [text for skip in args.skip for text in ("--skip", skip)]
    with tempfile.NamedTemporaryFile() as lock:
        until = started + 0.7 * args.seconds
        workers = [Worker(whole, wanted[i::jobs], until, lock.name) for i in range(jobs)]
        of = {number: worker for worker in workers for number in worker.await_ready()}
        print(f"{len(of)} of {len(wanted)} compiled in {time.monotonic() - started:.0f} s", flush=True)
        for number in filter(of.__contains__, wanted):
            suite, case = every[number]
            if time.monotonic() - started > args.seconds:
                print(f"left for the next run, with --append: {case.name} and what follows")
                break
            for row in of[number].measure(number):
                files[suite].add(**row)
            files[suite].write(args.out)
        print(f"measured in {time.monotonic() - started:.0f} s", flush=True)
        for worker in workers:
            worker.end()
    for suite, file in files.items():
        report(file.rows, suite)
    return 0
