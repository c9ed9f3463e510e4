"""What `choose` takes for the twelve shapes, of this version and of another one, beside cuBLAS, in one process.

git worktree add ../before <commit>
python -m benchmarks.twelve --other ../before/tmapipe

Each version chooses by its own estimate. Short problems, whose times spread by 2 %, take eight times the rounds. Writes
``benchmarks/results/twelve.json``.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import os
import statistics
import sys
from typing import Any

import attrs

from benchmarks.cli import add_options, gpu_of, method_of, settings
from benchmarks.gemm import SHAPES, checker, make_operands, shape
from benchmarks.results import OURS, Results, print_table
from benchmarks.versions import OTHER, add_other, other_package
from tmapipe.tuning.cost import rested

BEFORE = "before"
SHORT = 1 << 34  # multiplications, some 50 us


def chosen(package: str) -> dict[str, tuple[Any, Any]]:
    """By shape: what `choose` of *package* takes, as a candidate and as a schedule that is compiled."""
    tuning = importlib.import_module(f"{package}.tuning")
    picks = {text: tuning.ranked(tuning.Problem(*shape(text)), most=1)[0][0] for text in SHAPES}
    built, errors = importlib.import_module(f"{package}.tuning.compiling").build_all(
        tuning.Problem(4096, 4096, 4096), list(dict.fromkeys(picks.values()))
    )
    if errors:
        raise RuntimeError(f"{package}: {errors}")
    return {text: (pick, built[pick]) for text, pick in picks.items()}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_other(parser)
    add_options(parser)
    args = parser.parse_args(argv)
    gpu = gpu_of("twelve")
    if not gpu:
        return 2
    import torch

    from tmapipe.gpu.launch import CudaClock

    other_package(parser, args.other)
    os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])  # for what compiles it
    versions = {OURS: chosen("tmapipe"), BEFORE: chosen(OTHER)}
    results, clock = Results("twelve", gpu, settings(args)), CudaClock(args.flush)
    body, logs = [], []
    for text in SHAPES:
        m, n, k = shape(text)
        a, b, out = make_operands(m, n, k, "bf16", args.seed)
        check = checker(a, b, out, samples=16)
        runs = {("cublas", "torch"): functools.partial(torch.mm, a, b.t(), out=out)}
        for peer, found in versions.items():
            runs[peer, str(found[text][0])] = functools.partial(found[text][1], a, b, out=out)
        errors = {key: check(run) for key, run in runs.items()}
        us, method = {}, method_of(args)
        if m * n * k < SHORT:
            method = attrs.evolve(method, rounds=8 * method.rounds, rest=min(method.rest, 0.02))
        for (peer, variant), timing in rested(runs, clock, method).items():
            us[peer] = timing.us
            results.add(
                problem=text, dtype="bf16", peer=peer, variant=variant, us=timing.us,
                tflops=2 * m * n * k / timing.us / 1e6, spread=timing.spread, rel_err=errors[peer, variant],
            )  # fmt: skip
        ratios = [us["cublas"] / us[BEFORE], us["cublas"] / us[OURS]]
        logs.append([math.log(ratio) for ratio in ratios])
        body.append(
            [text, *(f"{us[peer]:.1f}" for peer in ("cublas", BEFORE, OURS)), *(f"{ratio:.3f}" for ratio in ratios)]
        )
        results.write(args.out)
    means = [f"{math.exp(statistics.fmean(column)):.4f}" for column in zip(*logs, strict=True)]
    heads = ["problem", "cuBLAS, us", "before, us", "now, us", "before, of cuBLAS", "now, of cuBLAS"]
    print_table([*body, ["geometric mean", "", "", "", *means]], heads, "what `choose` takes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
