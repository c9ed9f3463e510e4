"""What sums of rows and columns cost beside a GEMM, and x x^T by halves beside torch.mm; suite `byproducts`.

python -m benchmarks.byproducts --seed 0x1234abcd           12 random problems, and five products with themselves
python -m benchmarks.byproducts --compile 3                 only compiles number 3 of the kernels, for later runs
python -m benchmarks.byproducts --report                    prints the stored results; needs no GPU

Random problems in bf16: m, n and k log-uniform from 256 to 32768, multiples of 8, of 2e10 to 4e12 FLOP. `Gemm` as it is made
without arguments, plain, with sums of rows or columns of d, and with sums of a over k or over m. fraction_of_plain is the time
of the plain one over this one's. Of x x^T, n x n of k, it is the time of torch.mm over this one's. Each result is compared
with torch's. All variants of a problem run in one process, rested, in random order.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import tmapipe as tp
from benchmarks.cli import add_options, gpu_of, method_of, settings
from benchmarks.random_problems import log_uniform
from benchmarks.results import OURS, Results, folder_of, print_table, read
from tmapipe.epilogue import ColumnSum, Epilogue, OperandSum, RowSum
from tmapipe.schedules import Gemm, SymmetricGemm
from tmapipe.tuning.cost import rested

SUITE = "byproducts"
COUNT, LEAST, MOST = 12, 2e10, 4e12
SQUARES = ((4096, 4096), (8192, 8192), (5120, 2048), (6144, 6144), (16384, 1024))  # n, k of x x^T
WRONG = 1e-2


def _of(kind: type) -> Any:
    return Gemm(epilogue=Epilogue(lambda acc: {"d": acc, "sums": acc}, outputs={"sums": kind()}))


def _of_a(over: str) -> Any:
    return Gemm(a=tp.Operand(sums={"sums": OperandSum(over)}))


#: By name: what makes the schedule, and the sums in torch, of a, b and d in fp32.
KINDS: dict[str, tuple[Callable[[], Any], Callable[..., Any] | None]] = {
    "plain": (Gemm, None),
    "rows of d": (lambda: _of(RowSum), lambda a, b: a @ b.sum(0)),
    "columns of d": (lambda: _of(ColumnSum), lambda a, b: a.sum(0) @ b.T),
    "a over k": (lambda: _of_a("k"), lambda a, b: a.sum(1)),
    "a over m": (lambda: _of_a("m"), lambda a, b: a.sum(0)),
}
SYMMETRIC: dict[str, Callable[[], Any]] = {
    "PingPong 128x128 1x1": SymmetricGemm,
    "Gemm 128x256 2x1": lambda: SymmetricGemm((128, 256, 64), (2, 1), mainloop=tp.mainloop.Cooperative()),
}


def drawn(seed: int) -> list[tuple[int, int, int]]:
    """(m, n, k) of the problems of a seed."""
    rng, found = random.Random(seed), list[tuple[int, int, int]]()
    while len(found) < COUNT:
        m, n, k = (log_uniform(rng, 256, 32768, 8) for _ in range(3))
        if LEAST <= 2 * m * n * k <= MOST and (m, n, k) not in found:
            found.append((m, n, k))
    return found


def error_of(found: Any, want: Any) -> float:
    """||found - want|| / ||want||; NaN if an element is."""
    return float((found.double() - want.double()).norm() / want.double().norm())


def measure(
    problem: str,
    runs: dict[tuple[str, str], Callable[[], Any]],
    errors: dict[tuple[str, str], float],
    plain: tuple[str, str],
    flops: float,
    context: tuple[Any, Results, argparse.Namespace],
) -> None:
    """Adds a row for each of *runs* that is right; *plain* is the one that the others are compared with."""
    clock, results, args = context
    for key, error in errors.items():
        if not error < WRONG:
            print(f"{problem} {' '.join(key)}: WRONG, relative error {error:.1e}", flush=True)
            del runs[key]
    timings = rested(runs, clock, method_of(args))
    for (peer, variant), timing in timings.items():
        results.add(
            problem=problem, dtype="bf16", peer=peer, variant=variant, us=timing.us, spread=timing.spread,
            tflops=flops / timing.us / 1e6, rel_err=errors[peer, variant],
            fraction_of_plain=timings[plain].us / timing.us if (peer, variant) != plain else None,
        )  # fmt: skip
    print(problem, ", ".join(f"{key[1]} {timing.us:.1f}" for key, timing in timings.items()), flush=True)


def of_sums(sizes: tuple[int, int, int], made: dict[str, Any], context: Any, place: str = "cuda") -> None:
    """Measures *made*, of `KINDS`, on one problem."""
    import torch

    m, n, k = sizes
    a, b = (torch.randn(rows, k, device=place).bfloat16() for rows in (m, n))
    runs, errors = dict[tuple[str, str], Callable[[], Any]](), dict[tuple[str, str], float]()
    want = a.float() @ b.float().T
    for kind, schedule in made.items():
        out = torch.full((m, n), math.nan, device=place, dtype=torch.bfloat16)
        run = functools.partial(schedule, a, b, out=out)
        found, sums = run(), KINDS[kind][1]
        pairs = [(found, want)] if sums is None else [(found[0], want), (found[1], sums(a.double(), b.double()))]
        runs[OURS, kind], errors[OURS, kind] = run, max(error_of(*pair) for pair in pairs)
    measure(f"{m}x{n}x{k}", runs, errors, (OURS, "plain"), 2.0 * m * n * k, context)


def of_squares(n: int, k: int, made: dict[str, Any], context: Any, place: str = "cuda") -> None:
    """Measures *made*, of `SYMMETRIC`, and torch.mm on x x^T of x [n, k]. FLOPs are those of the whole product."""
    import torch

    x = torch.randn(n, k, device=place).bfloat16()
    runs, errors = dict[tuple[str, str], Callable[[], Any]](), dict[tuple[str, str], float]()
    want = x.float() @ x.float().T
    for variant, schedule in {**made, "mm": None}.items():
        out = torch.full((n, n), math.nan, device=place, dtype=torch.bfloat16)
        key = (OURS if schedule else "torch", variant)
        runs[key] = (
            functools.partial(schedule, x, out=out) if schedule else functools.partial(torch.mm, x, x.T, out=out)
        )
        runs[key]()
        errors[key] = error_of(out, want) if schedule is None or torch.equal(out, out.T) else math.nan
    measure(f"x x^T {n}x{n}x{k}", runs, errors, ("torch", "mm"), 2.0 * n * n * k, context)


def report(rows: list[dict[str, Any]]) -> None:
    """By variant: its speed, of the plain one's or of torch.mm's."""
    body = []
    for variant in dict.fromkeys(row["variant"] for row in rows):
        found = [row["fraction_of_plain"] for row in rows if row["variant"] == variant and "fraction_of_plain" in row]
        if found:
            mean = math.exp(statistics.fmean(map(math.log, found)))
            body.append([variant, len(found), f"{mean:.3f}", f"{min(found):.3f}", sum(each < 0.95 for each in found)])
    print_table(body, ["", "problems", "mean", "least", "under 0.95"], "speed, of the plain GEMM's or of torch.mm's")


def options(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to end (default %(default)s)")
    parser.add_argument("--compile", type=int, metavar="N", help="only compile kernel number N")
    parser.add_argument("--report", action="store_true", help="only print the stored results")
    add_options(parser)
    parser.set_defaults(rounds=4, batch=6, rest=0.1)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    if args.report:
        report(read(folder_of(args.out) / f"{SUITE}.json")["rows"])
        return 0
    gpu = gpu_of(SUITE)
    if not gpu:
        return 2
    import torch

    from tmapipe.gpu.launch import CudaClock

    makers = {**{kind: make for kind, (make, _) in KINDS.items()}, **SYMMETRIC}
    if args.compile is not None:
        a = torch.zeros(512, 256, device="cuda", dtype=torch.bfloat16)
        list(makers.values())[args.compile]()(a, a)
        return 0
    ends = time.monotonic() + args.seconds
    results = Results(SUITE, gpu, {**settings(args), "seed": f"{args.seed:#010x}"})
    context = CudaClock(args.flush), results, args
    made = {name: make() for name, make in makers.items()}
    for n, k in SQUARES:
        of_squares(n, k, {name: made[name] for name in SYMMETRIC}, context)
    for sizes in drawn(args.seed):
        if time.monotonic() > ends:
            break
        of_sums(sizes, {name: made[name] for name in KINDS}, context)
        results.write(args.out)
    report(results.rows)
    print(f"written: {results.write(args.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
