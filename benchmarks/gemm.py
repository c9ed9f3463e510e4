"""GEMM beside its peers: ``out[m, n] = sum over k of a[m, k] * b[n, k]``; suites `gemm` (bf16, fp16) and `gemm_fp8`.

python -m benchmarks.gemm                                         the twelve shapes, bf16, all peers
python -m benchmarks.gemm --shapes 4096x4096x4096 --sustained --dtype fp16
python -m benchmarks.gemm --dtype fp8 --every
python -m benchmarks.gemm --peers tmapipe cublas cutlass --rounds 10

All variants of a problem run in one process on the same random normal data. Each writes to an output filled with NaN, which is
checked against float64 on random rows and columns. `tmapipe.tuning.compiling` says how it is measured.
"""

from __future__ import annotations

import os
import sys

if not __package__:  # run as a file: its folder would hide Python's own `copy`
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import argparse
import itertools
import time
from typing import Any

from benchmarks import ours, peers
from benchmarks.cli import add_options, finish, gpu_of, kept, method_of, settings
from benchmarks.compare import Problem, compare
from benchmarks.results import Results
from benchmarks.tables import print_problem

SHAPES = (
    "8192x8192x8192", "4096x4096x4096", "2048x2048x2048", "1024x1024x1024", "16384x4096x4096", "4096x14336x4096",
    "4096x4096x14336", "128x8192x8192", "8192x8192x512", "512x512x65536", "4104x4104x4104", "1000x3000x2008",
)  # fmt: skip
SHAPES_FP8 = (
    "8192x8192x8192", "4096x4096x4096", "4096x14336x4096", "2048x2048x2048", "8192x8192x512", "128x8192x8192",
)  # fmt: skip
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn"}
PEAK_TFLOPS = {"bf16": 989.0, "fp16": 989.0, "fp8": 1979.0}  # datasheet of H100 SXM and H200, dense


def shape(text: str) -> tuple[int, int, int]:
    """(m, n, k) of "MxNxK"."""
    try:
        m, n, k = (int(part) for part in text.lower().split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no MxNxK, e.g. 4096x4096x4096") from None
    if min(m, n, k) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: sizes are positive")
    return m, n, k


def options(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=shape, nargs="+", metavar="MxNxK", help="default: those of the suite's table")
    parser.add_argument("--dtype", choices=DTYPES, nargs="+", default=["bf16"], help="fp8 is e4m3 with bf16 out")
    parser.add_argument("--peers", choices=peers.PEERS, nargs="+", default=list(peers.PEERS))
    add_options(parser)
    args = parser.parse_args(argv)
    if "fp8" in args.dtype and len(args.dtype) > 1:
        parser.error("fp8 is a suite of its own: run it by itself")
    return args


def main(argv: list[str] | None = None) -> int:
    args = options(argv)
    gpu = gpu_of("gemm")
    if not gpu:
        return 2
    from tmapipe.gpu.launch import CudaClock

    return run_suite(args, CudaClock(args.flush), gpu, "cuda")


def run_suite(args: argparse.Namespace, clock: Any, gpu: str, device: str) -> int:
    """Measures every problem of *args* with *clock*; the exit status. Results are written after each problem."""
    fp8 = args.dtype == ["fp8"]
    results = Results("gemm_fp8" if fp8 else "gemm", gpu, settings(args))
    if args.append:
        results.resume(args.out)
    started, failed = time.monotonic(), []
    shapes = args.shapes or [shape(text) for text in (SHAPES_FP8 if fp8 else SHAPES)]
    problems = list(itertools.product(args.dtype, shapes))
    if "tmapipe" in args.peers:
        ours.warm(
            [(m, n, k, DTYPES[dtype], "bf16" if fp8 else DTYPES[dtype]) for dtype, (m, n, k) in problems], args.every
        )
    for dtype, (m, n, k) in problems:
        name = f"{m}x{n}x{k}"
        print(f"\n{name} {dtype} ({time.monotonic() - started:.0f} s so far)", flush=True)
        a, b, out = make_operands(m, n, k, dtype, args.seed, device)
        problem = Problem(name, dtype, 2.0 * m * n * k, "tflops", _peak(gpu, dtype), checker(a, b, out))
        results.drop(problem=name, dtype=dtype)
        by_peer = {peer: peers.prepare(peer, a, b, out, every=args.every) for peer in args.peers}
        candidates = kept({(peer, name): run for peer in by_peer for name, run in by_peer[peer].items()}, args)
        pinned = [(peer, name) for peer, name in candidates if name in peers.module_of(peer).PINNED]
        failed += compare(
            problem, candidates, clock, method_of(args), results,
            keep=args.keep, pinned=pinned, sustained_too=args.sustained,
        )  # fmt: skip
        results.write(args.out)
        print_problem(results, problem)
    return finish(results, args, "tflops", failed)


def make_operands(m: int, n: int, k: int, dtype: str, seed: int, device: str = "cuda") -> tuple[Any, Any, Any]:
    """a (m, k) and b (n, k), random normal from a fixed seed, and an output (m, n): bf16 for fp8, else of their type."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    kind = getattr(torch, DTYPES[dtype])
    first = torch.bfloat16 if dtype == "fp8" else kind
    a, b = (torch.randn(rows, k, generator=generator, device=device, dtype=first).to(kind) for rows in (m, n))
    return a, b, torch.empty(m, n, device=device, dtype=first)


def checker(a: Any, b: Any, out: Any, samples: int = 64) -> Any:
    """A function that poisons *out* with NaN, runs a variant, and returns ||out - ref|| / ||ref|| over *samples* random
    rows and as many columns, ref in float64. NaN if an element of the whole output was left unwritten."""
    import torch

    generator = torch.Generator(a.device).manual_seed(1)
    rows, columns = (
        torch.randperm(size, generator=generator, device=a.device)[:samples] for size in (a.shape[0], b.shape[0])
    )
    by_row = _rows(a, rows) @ _wide(b).t()
    by_column = _wide(a) @ _rows(b, columns).t()
    norm = (by_row.square().sum() + by_column.square().sum()).sqrt()

    def check(run: Any) -> float:
        out.fill_(float("nan"))
        run()
        if bool(torch.isnan(out).any()):
            return float("nan")
        wrong = (out[rows].double() - by_row).square().sum() + (out[:, columns].double() - by_column).square().sum()
        return float(wrong.sqrt() / norm)

    return check


def _wide(tensor: Any) -> Any:
    return tensor.float().double()


def _rows(tensor: Any, rows: Any) -> Any:
    """float64 copies of some rows; fp8 tensors are indexed as bytes, since torch does not index all of their types."""
    import torch

    if tensor.element_size() == 1:
        return _wide(tensor.view(torch.uint8)[rows].view(tensor.dtype))
    return _wide(tensor[rows])


def _peak(gpu: str, dtype: str) -> float | None:
    return PEAK_TFLOPS[dtype] if any(name in gpu for name in ("H100", "H200")) else None


if __name__ == "__main__":
    sys.exit(main())
