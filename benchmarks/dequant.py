"""GEMMs with weights of 8 or 4 bits beside cuBLAS with the same weights in bf16; suite `dequant`.

python -m benchmarks.dequant --seed 0x1234abcd                twelve problems; the seed is that of the measured commit
python -m benchmarks.dequant --seed 0x1234abcd --append       those that are left

A problem has up to 16 rows, where it is bound by reading the weights, or some hundreds to thousands. The form that
`choose_dequant` chooses and a few others are measured for each, all in one process on the same data, in random order, rested.
Each result is compared with the product in float64 on random rows and columns, and a second launch must make the same bits.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from benchmarks.cli import add_options, gpu_of, method_of, settings
from benchmarks.gemm import checker
from benchmarks.random_problems import log_uniform
from benchmarks.results import OURS, Results, print_table
from tmapipe.base.arithmetic import ceil_div
from tmapipe.schedules import DequantGemm, DequantGemv
from tmapipe.tuning.compiling import compile_each, ready
from tmapipe.tuning.cost import rested
from tmapipe.tuning.dequant import built_dequant, ranked_dequant

SUITE, COUNT, WRONG = "dequant", 12, 2e-2
KINDS = (
    ("int8", None, False),
    ("int4", 128, True),
    ("fp8_e4m3", None, False),
    ("int4", 64, False),
    ("uint4", 128, True),
)
FEW = 16  # rows of every third problem, at most
MOST, CHOSEN = 5, " chosen"  # forms of a problem; that of `choose_dequant`


@attrs.frozen
class Quantized:
    """A product of a [m, k] with weights [n, k]; arguments as of `DequantGemm`."""

    m: int
    n: int
    k: int
    weights: str
    group: int | None
    zeros: bool

    @property
    def name(self) -> str:
        more = f" groups of {self.group}" * bool(self.group) + " zeros" * self.zeros
        return f"{self.m}x{self.n}x{self.k} {self.weights}{more}"


def drawn(seed: int, count: int = COUNT) -> list[Quantized]:
    """*count* problems: n and k from 1024 to 16384, multiples of 128; m from 1 to 16, or from 64 to 8192."""
    rng = random.Random(f"dequant {seed}")
    found = []
    for i in range(count):
        m = log_uniform(rng, 1, FEW, 1) if i % 3 == 0 else log_uniform(rng, 64, 8192, 1)
        n, k = (log_uniform(rng, 1024, 16384, 128) for _ in range(2))
        found.append(Quantized(m, n, k, *KINDS[i % len(KINDS)]))
    return found


def forms(problem: Quantized) -> dict[str, Callable[[], DequantGemm]]:
    """What makes the forms that are measured, by name."""
    found: dict[str, Callable[[], DequantGemm]] = {}
    kinds = set()
    made = functools.partial(DequantGemm, problem.weights, group=problem.group, zeros=problem.zeros)
    shape = problem.m, problem.n, problem.k
    for form in ranked_dequant(shape, problem.weights, problem.group, problem.zeros):
        tile, cluster, parts, share, _ = form
        few = problem.m <= FEW
        kind = (*tile[1:], share, parts * (tile[1] % 64 > 0)) if few else (ceil_div(problem.m, tile[0]), *tile[1:])
        if kind not in kinds and len(kinds) < MOST:
            kinds.add(kind)
            name = f"{'x'.join(map(str, tile))} {'x'.join(map(str, cluster))} parts {parts}"
            name += (f" {share} CTAs" if share > 1 else "") + ("" if found else CHOSEN)
            found[name] = functools.partial(built_dequant, form, made)
    return found


def job_of(problem: Quantized, make: Callable[[], DequantGemm]) -> Any:
    """As `tmapipe.tuning.compiling.Job`."""
    made = make()
    apart = isinstance(made, DequantGemv)  # which takes k in parts
    dtypes, ranks = {"a": "bf16"}, {"a": 2 + apart, "b": 2 + apart}
    for name in ("scale", *(("zero",) if problem.zeros else ())):
        if name in made.declared.loads or not made.tiles.in_parts:
            dtypes[name], ranks[name] = "fp32", 2 + apart if problem.group else 1
    ranks["d"] = 3 if made.tiles.in_parts else 2
    return made, dtypes if made.tiles.in_parts else {**dtypes, "d": "bf16"}, ranks


def data_of(problem: Quantized, seed: int, device: str = "cuda") -> dict[str, Any]:
    """The tensors of a call, and "wide", the weights in bf16."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    random_of = functools.partial(torch.rand, generator=generator, device=device)
    shape = problem.n, problem.k
    a = torch.randn(problem.m, problem.k, generator=generator, device=device).to(torch.bfloat16)
    if problem.weights.startswith("fp8"):
        b = torch.randn(shape, generator=generator, device=device).to(
            getattr(torch, problem.weights.replace("fp8", "float8") + "fn")
        )
        wide = b.float()
    else:
        bits = 8 if problem.weights == "int8" else 4
        least = 0 if problem.weights == "uint4" else -(2 ** (bits - 1))
        values = torch.randint(least, least + 2**bits, shape, generator=generator, device=device)
        b, wide = values.to(torch.int8), values.float()
        b = DequantGemm(problem.weights).pack_int4(values) if bits == 4 else b
    several = (problem.k // problem.group, problem.n) if problem.group else (problem.n,)
    scale, zero = random_of(several) + 0.5, random_of(several) * 4

    def each(numbers: Any) -> Any:
        return numbers.T.repeat_interleave(problem.group, 1) if problem.group else numbers[:, None]

    wide = (wide - each(zero)) * each(scale) if problem.zeros else wide * each(scale)
    return {"a": a, "b": b, "scale": scale, "wide": wide.to(torch.bfloat16)} | ({"zero": zero} if problem.zeros else {})


def measure(
    problem: Quantized, made: dict[str, Any], clock: Any, results: Results, args: Any, place: str = "cuda"
) -> None:
    """Adds a row for cuBLAS and for each form that is right."""
    import torch

    given = data_of(problem, args.seed % 2**31, place)
    wide, out = given.pop("wide"), torch.empty(problem.m, problem.n, device=place, dtype=torch.bfloat16)
    check = checker(given["a"], wide, out, samples=min(16, problem.m))
    runs: dict[tuple[str, str], Callable[[], Any]] = {
        ("cublas", "torch.mm of bf16"): functools.partial(torch.mm, given["a"], wide.t(), out=out)
    }
    runs |= {(OURS, name): functools.partial(each, **given, out=out) for name, each in made.items()}
    errors = {}
    for key, run in list(runs.items()):
        errors[key] = check(run)
        first = out.clone()
        run()
        if not errors[key] < WRONG or not torch.equal(first, out):
            print(f"{problem.name} {' '.join(key)}: WRONG, relative error {errors[key]:.1e}, or other bits", flush=True)
            del runs[key]
    for (peer, variant), timing in rested(runs, clock, method_of(args)).items():
        results.add(
            problem=problem.name, dtype="bf16", peer=peer, variant=variant, us=timing.us, spread=timing.spread,
            tflops=2.0 * problem.m * problem.n * problem.k / timing.us / 1e6, rel_err=errors[peer, variant],
        )  # fmt: skip


def report(rows: list[dict[str, Any]]) -> None:
    """The best form of each problem beside cuBLAS, and geometric means for few rows and for many."""
    body, ratios = [], dict[tuple[bool, str], list[float]]()
    for name in dict.fromkeys(row["problem"] for row in rows):
        mine = sorted((r for r in rows if r["problem"] == name and r["peer"] == OURS), key=lambda r: r["us"])
        theirs = min((r["us"] for r in rows if r["problem"] == name and r["peer"] != OURS), default=math.nan)
        if mine:
            chosen = [row for row in mine if row["variant"].endswith(CHOSEN)]
            for how, rows_of in (("chosen", chosen), ("best", mine)):
                if rows_of:
                    key = int(name.split("x")[0]) <= FEW, how
                    ratios.setdefault(key, []).append(theirs / rows_of[0]["us"])
            of_chosen = f"{theirs / chosen[0]['us']:.3f}" if chosen else ""
            best = [f"{mine[0]['us']:.1f}", mine[0]["variant"], f"{theirs / mine[0]['us']:.3f}"]
            body.append([name, f"{theirs:.1f}", of_chosen, *best])
    print_table(body, ["problem", "cuBLAS bf16, us", "chosen", "best, us", "form", "best"], "speed, of cuBLAS's")
    for (few, how), found in sorted(ratios.items()):
        mean = math.exp(statistics.fmean(map(math.log, found)))
        rows_are = f"{'up to' if few else 'more than'} {FEW} rows, {how}"
        print(f"{rows_are}: {len(found)} problems, {mean:.3f}, least {min(found):.3f}")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to end (default %(default)s)")
    parser.add_argument("--jobs", type=int, help="compiling processes")
    add_options(parser)
    args = parser.parse_args(argv)
    gpu = gpu_of(SUITE)
    if not gpu:
        return 2
    from tmapipe.gpu.launch import CudaClock

    ends = time.monotonic() + args.seconds
    results = Results(SUITE, gpu, {**settings(args), "seed": f"{args.seed:#010x}"})
    if args.append:
        results.resume(args.out)
    known = {row["problem"] for row in results.rows}
    left = [problem for problem in drawn(args.seed) if problem.name not in known]
    every = [(problem, name, functools.partial(job_of, problem, make)) for problem in left
             for name, make in forms(problem).items()]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="tmapipe-dequant-") as folder:
        errors = compile_each([job for _, _, job in every], Path(folder), args.jobs)
        made: dict[Quantized, dict[str, Any]] = {}
        for index, (problem, name, job) in enumerate(every):
            if errors[index]:
                print(f"left out: {problem.name} {name}: {errors[index]}", flush=True)
            else:
                made.setdefault(problem, {})[name] = ready(job, Path(folder), index)
    clock = CudaClock(args.flush)
    for problem in left:
        if time.monotonic() > ends:
            break
        measure(problem, made.get(problem, {}), clock, results, args)
        results.write(args.out)
    report(results.rows)
    print(f"written: {results.write(args.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
