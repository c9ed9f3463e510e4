"""What fused epilogues cost, beside a plain GEMM, torch.compile and eager torch.

python -m benchmarks.epilogue
python -m benchmarks.epilogue --shapes 8192x8192x512 --rounds 8

Four problems, bf16 in and out: ``a b^T``; ``gelu(a b^T + bias)`` (the tanh form); ``a b^T + c``; ``silu(a b^T) * (a up^T)``,
which has twice the work. Ours: `Gemm` of 128 x 256 x 64 and `PingPong` of 128 x 128 x 64, each in clusters of 2 x 1, and of 1
x 2 by GPC; for the last problem `GatedGemm` of 128 x 128 x 64. torch.compile runs in its default mode, so its GEMM is
cuBLAS's.

Every result is compared with float64 on random rows. rel_err is ||out - ref|| / ||ref|| there. fraction_of_plain is the time
of the same schedule's plain GEMM over this one's. Writes ``benchmarks/results/epilogue.json``.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.cli import add_options, finish, gpu_of, kept, method_of, settings
from benchmarks.gemm import PEAK_TFLOPS, make_operands, shape
from benchmarks.results import Results
from tmapipe.tuning.compiling import rested

SHAPES = ("4096x4096x4096",)
SAMPLES = 64  # rows of the output that are checked
PROBLEMS = ("plain", "bias+gelu", "residual", "swiglu")


def schedules(problem: str) -> dict[str, Any]:
    """Our schedules for one problem, by name."""
    import tmapipe as tp

    by_gpc = {"tiles": tp.tiles.GpcTiles(tp.tiles.Snake(8))}
    if problem == "swiglu":
        return {
            "GatedGemm 128x128x64 2x1": tp.schedules.GatedGemm((128, 128, 64), (2, 1)),
            "GatedGemm 128x128x64 1x2 by GPC": tp.schedules.GatedGemm((128, 128, 64), (1, 2), **by_gpc),
        }
    kinds = tp.epilogue
    epilogue = {
        "plain": None,
        "bias+gelu": kinds.Epilogue(lambda acc, bias: tp.math.gelu(acc + bias), operands={"bias": kinds.PerColumn()}),
        "residual": kinds.Epilogue(lambda acc, c: acc + c, operands={"c": kinds.Matrix()}),
    }[problem]
    return {
        "Gemm 128x256x64 2x1": tp.schedules.Gemm((128, 256, 64), (2, 1), epilogue=epilogue),
        "Gemm 128x256x64 1x2 by GPC": tp.schedules.Gemm((128, 256, 64), (1, 2), epilogue=epilogue, **by_gpc),
        "PingPong 128x128x64 2x1": tp.schedules.PingPong((128, 128, 64), (2, 1), epilogue=epilogue),
        "PingPong 128x128x64 1x2 by GPC": tp.schedules.PingPong((128, 128, 64), (1, 2), epilogue=epilogue, **by_gpc),
    }


def expression(problem: str) -> Callable[..., Any]:
    """The problem in torch, as a function of a, b and the operand."""
    import torch

    gelu = functools.partial(torch.nn.functional.gelu, approximate="tanh")
    return {
        "plain": lambda a, b: a @ b.t(),
        "bias+gelu": lambda a, b, bias: gelu(a @ b.t() + bias),
        "residual": lambda a, b, c: a @ b.t() + c,
        "swiglu": lambda a, b, up: torch.nn.functional.silu(a @ b.t()) * (a @ up.t()),
    }[problem]


def variants(problem: str, a: Any, b: Any, operands: tuple[Any, ...]) -> dict[tuple[str, str], Callable[[], Any]]:
    """(peer, variant) -> a run that returns its output. The eager and compiled ones allocate theirs, as they are used."""
    import torch

    out = torch.empty(a.shape[0], b.shape[0], device=a.device, dtype=a.dtype)
    runs: dict[tuple[str, str], Callable[[], Any]] = {
        ("tmapipe", name): functools.partial(made, a, b, *operands, out=out)
        for name, made in schedules(problem).items()
    }
    written = expression(problem)
    runs["torch", "eager"] = functools.partial(written, a, b, *operands)
    if problem == "bias+gelu":
        runs["torch", "eager, addmm"] = lambda: torch.nn.functional.gelu(
            torch.addmm(operands[0], a, b.t()), approximate="tanh"
        )
    runs["torch.compile", "default"] = functools.partial(torch.compile(written), a, b, *operands)
    return runs


def relative_error(out: Any, problem: str, a: Any, b: Any, operands: tuple[Any, ...]) -> float:
    """Against float64 on random rows; NaN if any element of the output is."""
    import torch

    if bool(torch.isnan(out).any()):
        return float("nan")
    rows = torch.randperm(a.shape[0], device=a.device)[:SAMPLES]
    wide = [x[rows].double() if problem == "residual" else x.double() for x in operands]
    reference = expression(problem)(a[rows].double(), b.double(), *wide)
    return float((out[rows].double() - reference).norm() / reference.norm())


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=shape, nargs="+", metavar="MxNxK", default=[shape(text) for text in SHAPES])
    add_options(parser)
    args = parser.parse_args(argv)
    gpu = gpu_of("epilogue")
    if not gpu:
        return 2
    import torch

    from tmapipe.gpu.launch import CudaClock

    results, failed = Results("epilogue", gpu, settings(args)), []
    clock = CudaClock(args.flush)
    for m, n, k in args.shapes:
        a, b, c = make_operands(m, n, k, "bf16", args.seed)
        c.normal_()
        up = torch.randn_like(b)
        operands = {"plain": (), "bias+gelu": (c[0].clone(),), "residual": (c,), "swiglu": (up,)}
        runs = {
            (problem, *key): run
            for problem in PROBLEMS
            for key, run in kept(variants(problem, a, b, operands[problem]), args).items()
        }
        errors = {key: relative_error(run(), key[0], a, b, operands[key[0]]) for key, run in runs.items()}
        for key, error in errors.items():
            if not error < 1e-2:
                failed.append(f"{key[1]} {key[2]}: {key[0]} has a relative error of {error}")
        timings = rested({key: run for key, run in runs.items() if errors[key] < 1e-2}, clock, method_of(args))
        for (problem, peer, name), timing in timings.items():
            plain, products = timings.get(("plain", peer, name)), 2 if problem == "swiglu" else 1
            speed = products * 2e-6 * m * n * k / timing.us
            results.add(
                problem=f"{m}x{n}x{k} {problem}", dtype="bf16", peer=peer, variant=name, us=timing.us, tflops=speed,
                rel_err=errors[problem, peer, name], spread=timing.spread, mode="rested",
                fraction_of_peak=speed / PEAK_TFLOPS["bf16"], fraction_of_plain=plain.us / timing.us if plain else None,
            )  # fmt: skip
            line = f"{m}x{n}x{k}  {problem:<10} {peer:<14} {name:<24} {timing.us:8.1f} us {speed:7.1f} TFLOP/s"
            print(f"{line}  relative error {errors[problem, peer, name]:.1e}", flush=True)
        results.write(args.out)
    return finish(results, args, "tflops", failed)


if __name__ == "__main__":
    sys.exit(main())
