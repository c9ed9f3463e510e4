"""Grouped GEMM, as in a mixture of experts, beside torch's.

python -m benchmarks.grouped
python -m benchmarks.grouped --problems 16384x4096x2048/64 --rounds 8

A problem MxNxK/G: M rows dealt to G groups, as a softmax router would (random sizes, from few to several times the mean), each
group with a weight [N, K] of its own; bf16 in and out; the groups' ends lie on the device. Peer: torch._grouped_mm. Ours:
`GroupedGemm` with several tiles and clusters; fraction_of_plain: the time of a `Gemm` with one weight for all rows, over this
one's: what the groups cost. Every result is compared with float64 on random rows. Writes ``benchmarks/results/grouped.json``.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.cli import add_options, finish, kept, method_of, settings
from benchmarks.gemm import PEAK_TFLOPS
from benchmarks.results import Results
from tmapipe.timing import rested

PROBLEMS = ("16384x4096x4096/8", "16384x4096x2048/64", "8192x2048x4096/128", "1024x4096x4096/32")
CANDIDATES = (
    ((128, 256, 64), (1, 2)),
    ((128, 256, 64), (2, 1)),
    ((128, 192, 64), (1, 2)),
    ((128, 128, 64), (1, 2)),
    ((64, 256, 64), (1, 1)),
    ((64, 256, 64), (1, 2)),
)
PLAIN = "plain", "Gemm 128x256x64 2x1"
SAMPLES = 64  # rows of the output that are checked

Problem = tuple[int, int, int, int]


def problem_of(text: str) -> Problem:
    """(m, n, k, groups) of MxNxK/G."""
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)/(\d+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not MxNxK/G")
    m, n, k, groups = map(int, found.groups())
    return m, n, k, groups


def make_operands(problem: Problem, seed: int) -> tuple[Any, Any, Any]:
    """Random normal rows and weights, and where each group's rows end."""
    import torch

    m, n, k, groups = problem
    torch.manual_seed(seed)
    shares = torch.softmax(torch.randn(groups, device="cuda"), 0)
    sizes = torch.bincount(torch.multinomial(shares, m, replacement=True), minlength=groups)
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(groups, n, k, device="cuda", dtype=torch.bfloat16)
    return a, b, sizes.cumsum(0).to(torch.int32)


def variants(a: Any, b: Any, ends: Any) -> dict[tuple[str, str], Callable[[], Any]]:
    """(peer, variant) -> a run that returns its output."""
    import torch

    import tmapipe as tp

    out = torch.empty(a.shape[0], b.shape[1], device=a.device, dtype=a.dtype)
    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    for tile, cluster in CANDIDATES:
        gemm = tp.schedules.GroupedGemm(tile, cluster)
        name = f"{tile[0]}x{tile[1]}x{tile[2]} {cluster[0]}x{cluster[1]}"
        runs["tmapipe", name] = functools.partial(gemm, a, b, ends, out=out)
    runs[PLAIN] = functools.partial(tp.schedules.Gemm(), a, b[0], out=out)
    turned = b.mT
    runs["torch", "_grouped_mm"] = lambda: torch._grouped_mm(a, turned, offs=ends)
    return runs


def relative_error(out: Any, peer: str, a: Any, b: Any, ends: Any) -> float:
    """Against float64 on random rows."""
    import torch

    rows = torch.randperm(a.shape[0], device=a.device)[:SAMPLES]
    groups = torch.searchsorted(ends.long(), rows, right=True) * (peer != "plain")
    reference = torch.stack([b[g].double() @ a[row].double() for row, g in zip(rows, groups, strict=True)])
    return float((out[rows].double() - reference).norm() / reference.norm())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = [problem_of(text) for text in PROBLEMS]
    parser.add_argument("--problems", type=problem_of, nargs="+", metavar="MxNxK/G", default=default)
    add_options(parser)
    args = parser.parse_args(argv)
    import torch

    if not torch.cuda.is_available():
        print("no GPU here: benchmarks.grouped measures kernels on one")
        return 2
    from tmapipe.gpu.clock import CudaClock

    results, failed = Results("grouped", torch.cuda.get_device_name(), settings(args)), []
    clock = CudaClock(args.flush)
    for problem in args.problems:
        m, n, k, groups = problem
        a, b, ends = make_operands(problem, args.seed)
        runs = kept(variants(a, b, ends), args)
        errors = {key: relative_error(run(), key[0], a, b, ends) for key, run in runs.items()}
        for key, error in errors.items():
            if not error < 1e-2:
                failed.append(f"{key[0]} {key[1]}: {problem} has a relative error of {error}")
        timings = rested({key: run for key, run in runs.items() if errors[key] < 1e-2}, clock, method_of(args))
        plain = timings.pop(PLAIN)
        for (peer, name), timing in timings.items():
            speed = 2e-6 * m * n * k / timing.us
            results.add(
                problem=f"{m}x{n}x{k}/{groups}", dtype="bf16", peer=peer, variant=name, us=timing.us, tflops=speed,
                rel_err=errors[peer, name], spread=timing.spread, mode="rested",
                fraction_of_peak=speed / PEAK_TFLOPS["bf16"], fraction_of_plain=plain.us / timing.us,
            )  # fmt: skip
            line = f"{m}x{n}x{k}/{groups}  {peer:<8} {name:<22} {timing.us:8.1f} us {speed:7.1f} TFLOP/s"
            print(f"{line}  relative error {errors[peer, name]:.1e}", flush=True)
        results.write(args.out)
    return finish(results, args, "tflops", failed)


if __name__ == "__main__":
    sys.exit(main())
