"""What the suites `transpose`, `rows`, `conv2d` and `gather` share: cases, each of which is measured in its own tensors."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from benchmarks.cli import add_options, finish, gpu_of, kept, method_of, settings
from benchmarks.compare import Problem, compare
from benchmarks.results import Results
from benchmarks.tables import print_problem

__all__ = ["PEAK_GBPS", "Case", "checker", "main_of", "returning", "run_cases"]

PEAK_GBPS = {"H200": 4800.0, "H100": 3350.0}  # datasheet
ROWS = 4096  # compared at a time
Runs = Mapping[tuple[str, str], Callable[[], Any]]


@attrs.frozen
class Case:
    """Args:
    name: Of the problem.
    dtype: Of its tensors.
    work: Bytes read and written, or operations, of a launch.
    make: From a device, the variants by (peer, variant) and what a result is compared with. A variant returns its result.
    limit: The relative error from which a result is wrong.
    measure: "gbps" or "tflops".
    """

    name: str
    dtype: str
    work: float
    make: Callable[[str], tuple[Runs, Any]]
    limit: float = 1e-2
    measure: str = "gbps"


def main_of(
    name: str,
    description: str | None,
    cases: Sequence[Case],
    argv: list[str] | None,
    clock: Callable[[str], Any] | None = None,
) -> int:
    """The command line of the suite called *name*. clock: from --flush, what measures; None: a `CudaClock`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys(case.name for case in cases))
    parser.add_argument("--problems", nargs="+", default=names, metavar="PROBLEM", help=", ".join(names))
    add_options(parser)
    args = parser.parse_args(argv)
    gpu = gpu_of(name)
    if not gpu:
        return 2
    from tmapipe.gpu.launch import CudaClock

    return run_cases(name, cases, args, (clock or CudaClock)(args.flush), gpu, "cuda")


def run_cases(name: str, cases: Sequence[Case], args: argparse.Namespace, clock: Any, gpu: str, device: str) -> int:
    """Measures the cases that *args* name; the exit status. Results are written after each of them."""
    import torch

    results, failed = Results(name, gpu, settings(args)), []
    if args.append:
        results.resume(args.out)
    started = time.monotonic()
    for case in (case for case in cases if case.name in args.problems):
        print(f"\n{case.name} {case.dtype} ({time.monotonic() - started:.0f} s so far)", flush=True)
        torch.manual_seed(args.seed)
        runs, want = case.make(device)
        peak = next((gbps for kind, gbps in PEAK_GBPS.items() if kind in gpu and case.measure == "gbps"), None)
        problem = Problem(case.name, case.dtype, case.work, case.measure, peak, checker(want), case.limit)
        results.drop(problem=case.name, dtype=case.dtype)
        failed += compare(
            problem,
            kept(dict(runs), args),
            clock,
            method_of(args),
            results,
            keep=args.keep,
            sustained_too=args.sustained,
        )
        results.write(args.out)
        print_problem(results, problem)
        del runs, want, problem  # before the next tensors are made: they are large
    return finish(results, args, cases[0].measure, failed)


def checker(want: Any) -> Callable[[Callable[[], Any]], float]:
    """A function that runs a variant and returns ||result - want|| / ||want||, NaN if an element was left unwritten: it fills
    each result with NaN once it has seen it, for the next variant that has the same output."""
    import torch

    def check(run: Callable[[], Any]) -> float:
        result = run()
        sums = torch.zeros(2, dtype=torch.float64, device=want.device)
        for got, right in zip(
            result.split(ROWS), want.split(ROWS), strict=True
        ):  # a part at a time, for want of memory
            wide = right.float()
            sums += torch.stack([(got.float() - wide).norm().double() ** 2, wide.norm().double() ** 2])
        result.fill_(float("nan"))
        return float((sums[0] / sums[1]).sqrt())

    return check


def returning(run: Callable[[], object], out: Any) -> Callable[[], Any]:
    """*run*, which writes *out*, as a run that returns it."""

    def call() -> Any:
        run()
        return out

    return call
