"""Device-to-device copies beside their peers; suite `copy`, GB/s read and written.

python -m benchmarks.copy                          64 MiB to 4 GiB contiguous, and a sub-matrix of a wider array
python -m benchmarks.copy --problems 1GiB sub-bf16 --rounds 10

torch's copy_ is cudaMemcpy for contiguous tensors. "sub" copies columns 4096 to 12288 of a 16384 x 16384 matrix to a
contiguous 16384 x 8192 matrix. `tmapipe.tuning.compiling` says how it is measured.
"""

from __future__ import annotations

import os
import sys

if not __package__:  # run as a file: its folder would hide Python's own `copy`
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cli import add_options, finish, gpu_of, kept, method_of, settings
from benchmarks.compare import Problem, compare
from benchmarks.results import Results
from benchmarks.tables import print_problem

CONTIGUOUS = {"64MiB": 64 << 20, "256MiB": 256 << 20, "1GiB": 1 << 30, "4GiB": 4 << 30}
SUB = {"sub-bf16": "bf16", "sub-f32": "f32"}
DTYPES = {"bf16": "bfloat16", "f32": "float32"}
ROW = 8192  # elements of a row of the contiguous problems
PEAK_GBPS = {"H200": 4800.0, "H100": 3350.0}  # datasheet


def options(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*CONTIGUOUS, *SUB]
    parser.add_argument("--problems", choices=names, nargs="+", default=names)
    parser.add_argument(
        "--peers", choices=("torch", "triton", "tmapipe"), nargs="+", default=["torch", "triton", "tmapipe"]
    )
    add_options(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    gpu = gpu_of("copy")
    if not gpu:
        return 2
    from tmapipe.gpu.launch import CudaClock

    return run_suite(args, CudaClock(args.flush), gpu, "cuda")


def run_suite(args: argparse.Namespace, clock: Any, gpu: str, device: str) -> int:
    """Measures every problem of *args* with *clock*; the exit status. Results are written after each problem."""
    results = Results("copy", gpu, settings(args))
    if args.append:
        results.resume(args.out)
    started, failed = time.monotonic(), []
    peak = next((gbps for name, gbps in PEAK_GBPS.items() if name in gpu), None)
    for name in args.problems:
        x, y, dtype = make_operands(name, args.seed, device)
        title = name if name in CONTIGUOUS else f"{x.shape[0]}x{x.shape[1]} of {x.shape[0]}x{x.stride(0)}"
        print(f"\n{title} {dtype} ({time.monotonic() - started:.0f} s so far)", flush=True)
        problem = Problem(title, dtype, 2.0 * x.numel() * x.element_size(), "gbps", peak, checker(x, y), limit=0.0)
        results.drop(problem=title, dtype=dtype)
        candidates = kept({(p, v): run for p in args.peers for v, run in variants(p, x, y).items()}, args)
        failed += compare(
            problem, candidates, clock, method_of(args), results, keep=args.keep, sustained_too=args.sustained
        )
        results.write(args.out)
        print_problem(results, problem)
        del x, y, candidates, problem  # before the next pair is made: they are up to 4 GiB each
    return finish(results, args, "gbps", failed)


def variants(peer: str, x: Any, y: Any) -> dict[str, Callable[[], object]]:
    """The peer's variants; none, and a line that says why, if it is absent."""
    try:
        if peer == "torch":
            return {"copy_": functools.partial(y.copy_, x)}
        if peer == "triton":
            from benchmarks.peer_copy import triton_variants

            return triton_variants(x, y)
        from benchmarks.ours import copy_variants

        return copy_variants(x, y)
    except ImportError as error:
        print(f"  {peer}: absent ({error})")
        return {}


def make_operands(name: str, seed: int, device: str = "cuda") -> tuple[Any, Any, str]:
    """The source, random normal from a fixed seed, the destination, and the name of their type."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    dtype = SUB.get(name, "bf16")
    kind = getattr(torch, DTYPES[dtype])
    if name in SUB:
        x = torch.randn(16384, 16384, generator=generator, device=device, dtype=kind)[:, 4096:12288]
    else:
        rows = CONTIGUOUS[name] // (ROW * torch.empty((), dtype=kind).element_size())
        x = torch.randn(rows, ROW, generator=generator, device=device, dtype=kind)
    return x, torch.empty(x.shape, device=device, dtype=kind), dtype


def checker(x: Any, y: Any) -> Any:
    """A function that poisons *y* with NaN, runs a variant, and returns 0.0 if y is x bit by bit, else NaN."""
    import torch

    bits = {2: torch.int16, 4: torch.int32}[x.element_size()]

    def check(run: Any) -> float:
        y.fill_(float("nan"))
        run()
        return 0.0 if torch.equal(x.view(bits), y.view(bits)) else float("nan")

    return check


if __name__ == "__main__":
    sys.exit(main())
