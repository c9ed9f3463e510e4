"""`tp.schedules.Attention` beside FlashAttention's CuTe kernel and cuDNN: 16,384 tokens of 2,048 elements; suite `attention`.

python -m benchmarks.attention
python -m benchmarks.attention --lengths 4096 16384 --rounds 4
python -m benchmarks.attention --lengths --decode        one query, 8 heads a group, 1 GiB of keys and values, beside `Copy`

Every result is compared with float64 on sampled rows. Writes ``benchmarks/results/attention.json``.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.cli import add_options, finish, gpu_of, kept, method_of, settings
from benchmarks.programs import flash
from benchmarks.results import OURS, Results
from tmapipe.schedules import Attention, Copy
from tmapipe.tuning.compiling import rested

TOKENS, WIDTH, SAMPLED = 16384, 2048, 48


def error_of(o: Any, q: Any, k: Any, v: Any, causal: bool) -> float:
    """||o - want|| / ||want|| over sampled rows, in float64."""
    draw, off, all_ = random.Random(1), 0.0, 0.0
    for _ in range(SAMPLED):
        b, h, i = (draw.randrange(extent) for extent in q.shape[:3])
        end = i + 1 if causal else k.shape[2]
        scores = (k[b, h, :end].double() @ q[b, h, i].double()) / math.sqrt(q.shape[3])
        want = scores.softmax(0) @ v[b, h, :end].double()
        off += float((o[b, h, i].double() - want).square().sum())
        all_ += float(want.square().sum())
    return math.sqrt(off / all_)


def cudnn(q: Any, k: Any, v: Any, causal: bool) -> Callable[[], Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def run() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def measure(d: int, length: int, causal: bool, clock: Any, args: argparse.Namespace, results: Results) -> list[str]:
    """Times one problem. Returns what was wrong."""
    import torch

    batch, heads = TOKENS // length, WIDTH // d
    q, k, v = (torch.randn(batch, heads, length, d, device="cuda").bfloat16() for _ in range(3))
    out = torch.empty_like(q)
    ours = Attention.of(q, k, causal="start" if causal else None)
    found: dict[tuple[str, str], Any] = {
        (OURS, "of"): lambda: ours(q, k, v, out=out),
        ("cuDNN", "default"): cudnn(q, k, v, causal),
    }
    of_groups = q.unsqueeze(2)
    found |= {(name, "default"): run for name, run in flash(of_groups, k, v, causal).items()}
    errors = {key: error_of(run().reshape(q.shape), q, k, v, causal) for key, run in kept(found, args).items()}
    problem = f"{batch}x{heads}x{length}x{d}{' causal' if causal else ''}"
    failed = [f"{problem} {' '.join(key)} is off by {error}" for key, error in errors.items() if not error < 1e-2]
    right = {key: getattr(run, "timed", run) for key, run in found.items() if errors.get(key, 1) < 1e-2}
    flop = 4.0 * batch * heads * length * length * d * (0.5 if causal else 1)
    for (peer, variant), timing in rested(right, clock, method_of(args)).items():
        speed = flop / timing.us * 1e-6
        results.add(
            problem=problem, dtype="bf16", peer=peer, variant=variant, us=timing.us, tflops=speed, spread=timing.spread,
            rel_err=errors[peer, variant], mode="rested",
        )  # fmt: skip
        print(f"{problem:<24} {peer:<20} {timing.us:9.1f} us {speed:7.1f} TFLOP/s", flush=True)
    results.write(args.out)
    return failed


def decode(clock: Any, args: argparse.Namespace, results: Results) -> list[str]:
    """Times one query with 1 GiB of keys and values: GB/s of what is read, and of what `Copy` reads and writes."""
    import torch

    failed, x = [], torch.randn(1 << 14, 1 << 14, device="cuda").bfloat16()
    y, copy = torch.empty_like(x), Copy()
    for batch, groups, length, d in ((8, 8, 32768, 128), (64, 8, 4096, 128), (16, 8, 32768, 64)):
        q = torch.randn(batch, 8 * groups, 1, d, device="cuda").bfloat16()
        k, v = (torch.randn(batch, groups, length, d, device="cuda").bfloat16() for _ in range(2))
        ours, out = Attention.of(q, k), torch.empty_like(q)
        runs = {
            (OURS, "of"): lambda q=q, k=k, v=v, ours=ours, out=out: ours(q, k, v, out=out),
            (OURS, "Copy"): lambda: copy(x, out=y),
            ("torch", "default"): lambda q=q, k=k, v=v: torch.nn.functional.scaled_dot_product_attention(
                q, k, v, enable_gqa=True
            ),
        }
        problem = f"decode {batch}x{8 * groups}/{groups}x{length}x{d}"
        wanted = runs["torch", "default"]().float()
        off = float((runs[OURS, "of"]().float() - wanted).norm() / wanted.norm())
        failed += [f"{problem} is off by {off}"] if not off < 1e-2 else []
        for (peer, variant), timing in rested(kept(runs, args), clock, method_of(args)).items():
            size = 2 * x.nbytes if variant == "Copy" else k.nbytes + v.nbytes
            speed = {"gbps": size / timing.us * 1e-3, "us": timing.us, "spread": timing.spread}
            results.add(problem=problem, dtype="bf16", peer=peer, variant=variant, mode="rested", **speed)
            print(f"{problem:<32} {peer} {variant:<10} {timing.us:9.1f} us {speed['gbps']:7.0f} GB/s", flush=True)
    results.write(args.out)
    return failed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="*", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--decode", action="store_true", help="also one query with many keys")
    add_options(parser)
    args = parser.parse_args(argv)
    gpu = gpu_of("attention")
    if not gpu:
        return 2
    from tmapipe.gpu.launch import CudaClock

    results, failed, clock = Results("attention", gpu, settings(args)), [], CudaClock(args.flush)
    for length in args.lengths:
        for d in (128, 64):
            for causal in (False, True):
                failed += measure(d, length, causal, clock, args, results)
    if args.decode:
        failed += decode(clock, args, results)
    return finish(results, args, "tflops", failed)


if __name__ == "__main__":
    sys.exit(main())
