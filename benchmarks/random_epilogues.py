"""What fused epilogues cost on problems drawn at random; suite `random_epilogues`.

python -m benchmarks.random_epilogues --seed 7 --count 20

``a b^T`` plain; ``gelu(a b^T + bias)``; ``a b^T + c``; ``a b^T * scale``, of rows: what `choose` takes for each, beside
torch.compile with dynamic sizes. All variants of a problem run in one process, rested; each result is checked against float64.
fraction_of_plain is the time of the plain one over this one's.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.cli import add_options, gpu_of, method_of, settings
from benchmarks.random_problems import data_of, draw, name_of
from benchmarks.results import OURS, Results, print_table
from tmapipe.epilogue import Epilogue, Matrix, PerColumn, PerRow
from tmapipe.math import gelu
from tmapipe.tuning import Candidate, Device, Problem
from tmapipe.tuning.compiling import build_all
from tmapipe.tuning.cost import rested
from tmapipe.tuning.tuner import likely

KINDS = {
    "plain": Epilogue(),
    "bias+gelu": Epilogue(lambda acc, bias: gelu(acc + bias), operands={"bias": PerColumn()}),
    "residual": Epilogue(lambda acc, c: acc + c, operands={"c": Matrix()}),
    "row-scaled": Epilogue(lambda acc, scale: acc * scale, operands={"scale": PerRow()}),
}
SAMPLES = 32  # rows of the output that are checked
WRONG = 1e-2


def expression(kind: str) -> Any:
    """The epilogue *kind* in torch, as a function of a, b and the operand."""
    import torch

    tanh = functools.partial(torch.nn.functional.gelu, approximate="tanh")
    return {
        "plain": lambda a, b: a @ b.t(),
        "bias+gelu": lambda a, b, bias: tanh(a @ b.t() + bias),
        "residual": lambda a, b, c: a @ b.t() + c,
        "row-scaled": lambda a, b, scale: (a @ b.t()) * scale[:, None],
    }[kind]


def operand_of(kind: str, problem: Problem, place: str) -> tuple[Any, ...]:
    import torch

    shape = {
        "plain": None,
        "bias+gelu": (problem.n,),
        "residual": (problem.m, problem.n),
        "row-scaled": (problem.m,),
    }[kind]
    return () if shape is None else (torch.randn(shape, device=place, dtype=torch.bfloat16),)


def error_of(run: Any, kind: str, a: Any, b: Any, operand: tuple[Any, ...]) -> float:
    """Of *run*, against float64 on random rows; NaN if any element of the output is."""
    import torch

    out = run()
    if bool(out.isnan().any()):
        return float("nan")
    rows = torch.randperm(a.shape[0], device=a.device)[:SAMPLES]
    some = [x[rows] if x.shape[0] == a.shape[0] and kind != "bias+gelu" else x for x in operand]
    right = expression(kind)(a[rows].double(), b.double(), *(x.double() for x in some))
    return float((out[rows].double() - right).norm() / right.norm())


def choices(problems: list[Problem], device: Device) -> dict[tuple[Problem, str], Candidate]:
    """What `choose` takes, by problem and kind."""
    return {(each, kind): likely(each, device, 1, KINDS[kind])[0] for each in problems for kind in KINDS}


def measure(
    problem: Problem, made: dict[str, tuple[Candidate, Any]], compiled: Any, clock: Any, results: Results, args: Any,
    place: str = "cuda",
) -> None:  # fmt: skip
    """Adds the rows of *problem*: ours are *made*, by kind."""
    import torch

    a, b, _ = data_of(problem, args.seed, place)
    runs, errors = {}, {}
    for kind, (candidate, schedule) in made.items():
        operand = operand_of(kind, problem, place)
        out = torch.full((problem.m, problem.n), float("nan"), device=place, dtype=torch.bfloat16)
        runs[kind, OURS, str(candidate)] = functools.partial(
            schedule, a, b, **dict(zip(KINDS[kind].operands, operand, strict=True)), out=out
        )
        runs[kind, "torch.compile", "default"] = functools.partial(compiled[kind], a, b, *operand)
        for key in list(runs)[-2:]:
            errors[key] = error_of(runs[key], kind, a, b, operand)
            if not errors[key] < WRONG:
                print(f"{problem} {' '.join(key)}: WRONG, relative error {errors[key]:.1e}", flush=True)
                del runs[key]
    timings = rested(runs, clock, method_of(args))
    plain = next((timing.us for key, timing in timings.items() if key[:2] == ("plain", OURS)), None)
    for (kind, peer, variant), timing in timings.items():
        ours = peer == OURS
        results.add(
            problem=f"{name_of(problem)} {kind}", dtype="bf16", peer=peer, variant=variant, us=timing.us,
            tflops=problem.flops / timing.us / 1e6, spread=timing.spread, rel_err=errors[kind, peer, variant],
            fraction_of_plain=plain / timing.us if ours and plain else None,
        )  # fmt: skip
        print(f"{problem} {kind} {peer} {variant}: {timing.us:.1f} us", flush=True)


def report(rows: list[dict[str, Any]]) -> None:
    """By kind: the time of the plain one, and of torch.compile's, over ours."""
    body = []
    for kind in KINDS:
        mine = {row["problem"]: row for row in rows if row["problem"].endswith(f" {kind}") and row["peer"] == OURS}
        theirs = {row["problem"]: row["us"] for row in rows if row["peer"] == "torch.compile"}
        views = {
            "of plain": [row["fraction_of_plain"] for row in mine.values() if "fraction_of_plain" in row],
            "of torch.compile": [theirs[name] / row["us"] for name, row in mine.items() if name in theirs],
        }
        for text, found in views.items():
            if found:
                mean = math.exp(statistics.fmean(map(math.log, found)))
                under = sum(value < (0.97 if text == "of plain" else 1) for value in found)
                body.append([kind, text, len(found), f"{mean:.3f}", f"{min(found):.3f}", under])
    heads = ["", "speed", "problems", "mean", "least", "under 0.97 of plain, or 1"]
    print_table(body, heads, "fused epilogues on random problems")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20, help="problems to draw (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=3600.0, help="when to end (default %(default)s)")
    parser.add_argument("--jobs", type=int, help="compiling processes")
    add_options(parser)
    parser.set_defaults(rounds=3, batch=6, rest=0.1)
    args = parser.parse_args(argv)
    if not gpu_of("random_epilogues"):
        return 2
    import torch

    from tmapipe.gpu.launch import CudaClock
    from tmapipe.tuning.tuner import device_of

    ends, device = time.monotonic() + args.seconds, device_of()
    drawn = draw(args.seed, 2 * args.count, majors="kk")
    problems = [each for each in drawn if each.batch == 1][: args.count]
    chosen = choices(problems, device)
    compiled = {kind: torch.compile(expression(kind), dynamic=True) for kind in KINDS}
    results, clock = Results("random_epilogues", device.name, settings(args)), CudaClock(args.flush)
    built = {}
    with ThreadPoolExecutor() as pool:
        jobs = max(1, (args.jobs or os.cpu_count() or 1) // len(KINDS))
        making = {
            kind: pool.submit(
                build_all,
                problems[0],
                list(dict.fromkeys(chosen[each, kind] for each in problems)),
                jobs,
                epilogue=epilogue,
            )
            for kind, epilogue in KINDS.items()
        }
        a, b, _ = data_of(problems[0], args.seed)
        for kind in KINDS:  # torch compiles at the first call
            compiled[kind](a, b, *operand_of(kind, problems[0], "cuda"))
        for kind, made in making.items():
            schedules, errors = made.result()
            built |= {(kind, candidate): schedule for candidate, schedule in schedules.items()}
            print(*(f"left out: {kind} {which}: {error}" for which, error in errors.items()), sep="\n", flush=True)
    for problem in problems:
        if time.monotonic() > ends:
            break
        ours = {kind: (chosen[problem, kind], built.get((kind, chosen[problem, kind]))) for kind in KINDS}
        measure(problem, {kind: pair for kind, pair in ours.items() if pair[1]}, compiled, clock, results, args)
        results.write(args.out)
    report(results.rows)
    print(f"written: {results.write(args.out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
