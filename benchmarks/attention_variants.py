"""Variants of `tp.schedules.Attention` beside FlashAttention's CuTe kernel and cuDNN, in one process; suite `attention`.

python -m benchmarks.attention_variants                      tiles fetched ahead, bands of heads, blocks of keys
python -m benchmarks.attention_variants --lengths 4096 --cases d128c

All kernels are compiled first, in as many processes as there are cores, into the cache on disk. The first result of a problem
is compared with float64 on sampled rows, the others with it. A row is printed as it is measured; with --append, those that
the file has are not measured again.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.attention import TOKENS, WIDTH, Case, cudnn, errors_of
from benchmarks.cli import add_options, gpu_of, kept, method_of, settings
from benchmarks.programs import flash
from benchmarks.results import OURS, Results
from tmapipe.schedules import Attention
from tmapipe.tiles.dynamic import DynamicTiles
from tmapipe.tiles.persistent import Backwards
from tmapipe.tuning.cost import rested

CASES = {"d128": (128, False), "d128c": (128, True), "d64": (64, False), "d64c": (64, True)}
LENGTHS = (1024, 2048, 4096, 8192, 16384)


def variants(d: int, causal: bool, length: int) -> Iterator[dict[str, Any]]:
    """Options of `schedule_of` that are compared."""
    if not causal:
        for each in (0, 1, 2):
            yield {"ahead": each}
        if d == 128 and length >= 8192:
            yield from ({"ahead": each, "tile": (128, 1, 176)} for each in (0, 2))
        return
    rows = 128 if d == 128 or length <= 1024 else 192
    tile = {} if rows == (128 if d == 128 else 192) else {"tile": (rows, 1, 128)}
    band = max(1, 256 * rows // length)
    for each in (band // 2, band, 2 * band, 4 * band):
        if 1 <= each <= WIDTH // d:
            yield {"ahead": 0, "band": each, **tile}
    yield {"ahead": 1, "band": min(band, WIDTH // d), **tile}
    yield {"ahead": 2, "band": min(band, WIDTH // d), **tile}


@functools.cache
def schedule_of(d: int, causal: bool, band: int = 1, ahead: int = 2, **options: Any) -> Attention:
    made = Attention(d, causal="start" if causal else None, tiles=DynamicTiles(Backwards(band), ahead), **options)
    made.checked = False  # checked on a CPU
    return made


def problems(args: argparse.Namespace) -> Iterator[tuple[str, int, bool, int, list[dict[str, Any]]]]:
    for length in args.lengths:
        for case in args.cases:
            if f"{case}:{length}" in args.without:
                continue
            d, causal = CASES[case]
            found = [each for each in variants(d, causal, length) if not args.only or args.only in text_of(each)]
            yield case, d, causal, length, found


def text_of(options: dict[str, Any]) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, x)) if isinstance(x, tuple) else x}" for name, x in options.items())


def compile_some(args: argparse.Namespace) -> None:
    """Compiles each of the kernels whose number is this process's."""
    from tmapipe.gpu.kernels import kernel_for

    done: list[Any] = []
    for _, d, causal, _, options in problems(args):
        for each in options:
            if (key := (d, causal, each)) not in done:
                done.append(key)
                if len(done) % args.processes == args.compile:
                    schedule = schedule_of(d, causal, **each)
                    kernel_for(schedule, schedule.plan(), dict.fromkeys("qkvo", 4))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--without", nargs="*", default=[], help="such as d64:1024")
    parser.add_argument("--only", help="text that names of variants contain")
    parser.add_argument("--seconds", type=float, default=1e9, help="no problem begins later")
    parser.add_argument("--compile", type=int, help="only compiles, as this one of --processes")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    add_options(parser)
    args = parser.parse_args(argv)
    if args.compile is not None:
        compile_some(args)
        return 0
    gpu = gpu_of("attention_variants")
    if not gpu:
        return 2
    begun = time.monotonic()
    given = sys.argv[1:] if argv is None else argv
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.attention_variants", *given]
            + ["--processes", str(args.processes), "--compile", str(i)]
        )
        for i in range(args.processes)
    ]
    import torch

    from tmapipe.gpu.launch import CudaClock

    for d in {CASES[case][0] for case in args.cases if "FlashAttention" not in args.skip}:  # meanwhile
        y = torch.randn(1, 2, 256, d, device="cuda").bfloat16()
        for causal in (False, True):
            for run in flash(y.unsqueeze(2), y, y, causal).values():
                run()
    failed = [f"process {i} ended with {code}" for i, each in enumerate(workers) if (code := each.wait())]
    print(f"compiled after {time.monotonic() - begun:.0f} s", flush=True)
    results, clock = Results("attention", gpu, settings(args)), CudaClock(args.flush)
    if args.append:
        results.resume(args.out)
    for case, d, causal, length, options in problems(args):
        if time.monotonic() - begun > args.seconds:
            failed.append(f"{case} {length} not reached")
            continue
        failed += measure(d, length, causal, options, clock, args, results)
    print(*failed, sep="\n")
    return int(bool(failed))


def measure(
    d: int, length: int, causal: bool, options: list[dict[str, Any]], clock: Any, args: Any, results: Results
) -> list[str]:
    """Times one problem. Returns what was wrong."""
    import torch

    batch, heads = TOKENS // length, WIDTH // d
    problem = f"{batch}x{heads}x{length}x{d}{' causal' if causal else ''}"
    done = {(row["peer"], row["variant"]) for row in results.rows if row["problem"] == problem}
    q, k, v = (torch.randn(batch, heads, length, d, device="cuda").bfloat16() for _ in range(3))
    out, failed = torch.empty_like(q), []
    peers = {(n, "default"): run for n, run in flash(q.unsqueeze(2), k, v, causal).items()}
    runs: dict[tuple[str, str], Any] = dict(peers)
    runs["cuDNN", "default"] = cudnn(q, k, v, causal)
    runs = kept(runs, args)
    for each in options:
        schedule = schedule_of(d, causal, **each)
        runs[OURS, text_of(each)] = lambda schedule=schedule: schedule(q, k, v, out=out)
    wanted, errors = None, {}
    for key, run in list(runs.items()):
        try:
            found = run().reshape(q.shape)
        except Exception as error:
            failed.append(f"{problem} {key}: {type(error).__name__}: {error}")
            del runs[key]
            continue
        if wanted is None:
            case = Case("rows", batch, heads, heads, length, length, d, "start" if causal else None)
            wanted, errors[key] = found.float(), errors_of(found, None, case, q, k, v)[0]
            off = errors[key]
        else:
            off = float((found.float() - wanted).norm() / wanted.norm())
        if not off < 1e-2:
            failed.append(f"{problem} {' '.join(key)} is off by {off}")
            del runs[key]
    timed = {key: getattr(run, "timed", run) for key, run in runs.items() if key not in done}
    flop = 4.0 * batch * heads * length * length * d * (0.5 if causal else 1)
    for (peer, variant), timing in rested(timed, clock, method_of(args)).items():
        speed = flop / timing.us * 1e-6
        row = {"us": timing.us, "tflops": speed, "spread": timing.spread, "mode": "rested", "rounds": args.rounds}
        results.add(
            problem=problem, dtype="bf16", peer=peer, variant=variant, rel_err=errors.get((peer, variant)), **row
        )
        print(f"{problem:<24} {peer:<20} {variant:<32} {timing.us:9.1f} us {speed:7.1f}", flush=True)
    results.write(args.out)
    return failed


if __name__ == "__main__":
    sys.exit(main())
