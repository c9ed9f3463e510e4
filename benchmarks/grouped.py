"""Grouped GEMM, as in a mixture of experts, beside torch's.

python -m benchmarks.grouped
python -m benchmarks.grouped --problems 16384x4096x2048/64 --rounds 8

A problem MxNxK/G: M rows are distributed over G groups as by a softmax router (random sizes, from few to several times the
mean). Each group has a weight [N, K] of its own; bf16 in and out; the ends of the groups lie on the device. Peer:
torch._grouped_mm. Ours: `GroupedGemm` with several mainloops, tiles and clusters. MxNxK beside it is a `Gemm` with one weight
for all rows, which shows what the groups cost. Every result is compared with float64 on random rows. Writes
``benchmarks/results/grouped.json``.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Callable
from typing import Any

from benchmarks import compare as compared
from benchmarks import gemm
from benchmarks.cli import add_options, finish, gpu_of, kept, method_of, settings
from benchmarks.results import OURS, Results
from benchmarks.tables import print_problem

PROBLEMS = ("16384x4096x4096/8", "16384x4096x2048/64", "8192x2048x4096/128", "1024x4096x4096/32")
CANDIDATES = (
    ("Cooperative", (128, 256, 64), (1, 1)),
    ("Cooperative", (128, 256, 64), (1, 2)),
    ("PingPong", (128, 192, 64), (1, 2)),
    ("PingPong", (128, 128, 64), (1, 2)),
    ("PingPong", (64, 256, 64), (1, 2)),
    ("PingPong", (64, 128, 64), (1, 2)),
)
SAMPLES = 64  # rows of the output that are checked

Problem = tuple[int, int, int, int]


def problem_of(text: str) -> Problem:
    """(m, n, k, groups) of MxNxK/G."""
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)/(\d+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not MxNxK/G")
    m, n, k, groups = map(int, found.groups())
    return m, n, k, groups


def make_operands(problem: Problem, seed: int, device: str = "cuda") -> tuple[Any, Any, Any]:
    """Random normal rows and weights, and where each group's rows end."""
    import torch

    m, n, k, groups = problem
    torch.manual_seed(seed)
    shares = torch.softmax(torch.randn(groups, device=device), 0)
    sizes = torch.bincount(torch.multinomial(shares, m, replacement=True), minlength=groups)
    a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    b = torch.randn(groups, n, k, device=device, dtype=torch.bfloat16)
    return a, b, sizes.cumsum(0).to(torch.int32)


@functools.cache
def schedule(kind: str, tile: tuple[int, int, int], cluster: tuple[int, int]) -> Any:
    """One for all problems, so that it is compiled once."""
    import tmapipe as tp

    return tp.schedules.GroupedGemm(tile, cluster, mainloop=getattr(tp.mainloop, kind)())


def variants(a: Any, b: Any, ends: Any, out: Any) -> dict[tuple[str, str], Callable[[], Any]]:
    """(peer, variant) -> a run that returns its output: ours *out*, torch's a new one."""
    import torch

    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    for kind, tile, cluster in CANDIDATES:
        name = f"{kind} {tile[0]}x{tile[1]}x{tile[2]} {cluster[0]}x{cluster[1]}"
        runs[OURS, name] = functools.partial(schedule(kind, tile, cluster), a, b, ends, out=out)
    transposed = b.mT
    runs["torch", "_grouped_mm"] = lambda: torch._grouped_mm(a, transposed, offs=ends)
    return runs


def checker(a: Any, b: Any, ends: Any, out: Any) -> Callable[[Callable[[], Any]], float]:
    """A function that poisons *out* with NaN, runs a variant, and returns ||result - ref|| / ||ref|| over random rows, ref in
    float64. NaN if an element of the whole result was left unwritten."""
    import torch

    rows = torch.randperm(a.shape[0], device=a.device)[:SAMPLES]
    groups = torch.searchsorted(ends.long(), rows, right=True)
    reference = torch.stack([b[g].double() @ a[row].double() for row, g in zip(rows, groups, strict=True)])

    def check(run: Callable[[], Any]) -> float:
        out.fill_(float("nan"))
        result = run()
        if bool(torch.isnan(result).any()):
            return float("nan")
        return float((result[rows].double() - reference).norm() / reference.norm())

    return check


def options(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = [problem_of(text) for text in PROBLEMS]
    parser.add_argument("--problems", type=problem_of, nargs="+", metavar="MxNxK/G", default=default)
    add_options(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    gpu = gpu_of("grouped")
    if not gpu:
        return 2
    from tmapipe.gpu.launch import CudaClock

    return run_suite(args, CudaClock(args.flush), gpu, "cuda")


def run_suite(args: argparse.Namespace, clock: Any, gpu: str, device: str) -> int:
    """Measures every problem of *args* with *clock*; the exit status. Results are written after each problem."""
    import tmapipe as tp

    results, failed, whole = Results("grouped", gpu, settings(args)), [], tp.schedules.Gemm()
    peak = gemm.PEAK_TFLOPS["bf16"]
    for m, n, k, groups in args.problems:
        a, b, ends = make_operands((m, n, k, groups), args.seed, device)
        out = a.new_empty(m, n)
        plain = {(OURS, "Gemm 128x256x64 2x1"): functools.partial(whole, a, b[0], out=out)}
        for name, candidates, check in (
            (f"{m}x{n}x{k}/{groups}", variants(a, b, ends, out), checker(a, b, ends, out)),
            (f"{m}x{n}x{k}", plain, gemm.checker(a, b[0], out)),
        ):
            problem = compared.Problem(name, "bf16", 2.0 * m * n * k, "tflops", peak, check)
            failed += compared.compare(
                problem, kept(candidates, args), clock, method_of(args), results,
                keep=args.keep, sustained_too=args.sustained,
            )  # fmt: skip
            print_problem(results, problem)
        results.write(args.out)
    return finish(results, args, "tflops", failed)


if __name__ == "__main__":
    sys.exit(main())
