"""Host time of a call: microseconds until a call returns, which launches and waits for nothing.

python -m benchmarks.host_time

The problems are so small that the GPU is always ahead. All calls take turns, some at a time, in one process; the least and the
middle time of a turn are kept. ratio is the middle time over that of torch.mm; of functions of rows, and of steps, which
are calls with their gradients, over that of torch's function. Writes ``benchmarks/results/host_time.json``.
"""

from __future__ import annotations

import argparse
import functools
import gc
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cli import gpu_of
from benchmarks.results import OURS, Results

M, N, K = 256, 256, 64
ROWS = 256, 1024
TURNS, CALLS = 60, 100


def cases(operators: bool = True) -> dict[tuple[str, str], Callable[[], Any]]:
    """By peer and variant: what is called. operators: also those of `tmapipe.torch`, which choose among compiled kernels."""
    import torch
    from torch.nn import functional

    import tmapipe as tp
    import tmapipe.torch as ops

    def half(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda").bfloat16()

    kinds, tile = tp.epilogue, ((128, 128, 64), (1, 1))
    biased = kinds.Epilogue(lambda acc, bias: acc + bias, operands={"bias": kinds.PerColumn()})
    added = kinds.Epilogue(lambda acc, c: acc + c, operands={"c": kinds.Matrix()})
    gemm, fetched = tp.schedules.Gemm(*tile), tp.schedules.Gemm(*tile, tiles=tp.tiles.DynamicTiles())
    with_bias, with_c = tp.schedules.Gemm(*tile, epilogue=biased), tp.schedules.Gemm(*tile, epilogue=added)
    copy, softmax = tp.schedules.Copy(), tp.schedules.Softmax()
    a, b, d, c, bias, x, y = half(M, K), half(N, K), half(M, N), half(M, N), half(N), half(M, N), half(M, N)
    t, rows = b.t(), half(4, M // 4, K)
    prepared = gemm.prepare(a, b, out=d)
    bare = prepared.launcher  # type: ignore[attr-defined]
    addresses, stream = [each.data_ptr() for each in (a, b, d)], torch.cuda.current_stream().cuda_stream
    launch, memory, packed = bare.packed.call, bare.packed.make(addresses), bare.packed
    memory[0][packed.stream] = stream
    _, arguments, result = memory
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm(a, b, out=d)
    found: dict[tuple[str, str], Callable[[], Any]] = {
        ("torch", "mm"): lambda: torch.mm(a, t),
        ("torch", "mm, out="): lambda: torch.mm(a, t, out=d),
        ("torch", "addmm"): lambda: torch.addmm(bias, a, t),
        ("torch", "copy_"): lambda: y.copy_(x),
        ("torch", "softmax"): lambda: torch.softmax(x, -1),
        ("torch", "linear"): lambda: functional.linear(a, b, bias),
        ("torch", "linear of three dimensions"): lambda: functional.linear(rows, b, bias),
        ("torch", "replay of a graph"): graph.replay,
        ("bare", "launch"): lambda: launch(packed.handle, arguments, packed.count, result),
        (OURS, "g(a, b)"): lambda: gemm(a, b),
        (OURS, "g(a, b, out=d)"): lambda: gemm(a, b, out=d),
        (OURS, "g(a, b), tiles fetched"): lambda: fetched(a, b),
        (OURS, "g(a, b, bias=)"): lambda: with_bias(a, b, bias=bias),
        (OURS, "g(a, b, c=)"): lambda: with_c(a, b, c=c),
        (OURS, "Copy"): lambda: copy(x),
        (OURS, "Copy, out="): lambda: copy(x, out=y),
        (OURS, "Softmax"): lambda: softmax(x),
        (OURS, "prepared"): prepared,
    }
    if operators:
        found |= {
            (OURS, "torch.gemm"): lambda: ops.gemm(a, b),
            (OURS, "torch.linear"): lambda: ops.linear(a, b, bias),
            (OURS, "torch.linear of three dimensions"): lambda: ops.linear(rows, b, bias),
        }
    return found


def steps() -> dict[tuple[str, str], Callable[[], Any]]:
    """By peer and variant: functions of rows and products by `tmapipe.torch` and by torch, forward where gradients are asked
    for, and forward and backward."""
    import torch
    from torch.nn import functional

    import tmapipe.torch as ops

    def half(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda").bfloat16().requires_grad_()

    (m, n), x, weight, bias = ROWS, half(*ROWS), half(ROWS[1]), half(ROWS[1])
    a, b, c, target = half(M, K), half(N, K), half(N), torch.randint(0, n, (m,), device="cuda")
    whole, narrow = torch.randn_like(x), torch.randn(M, N, device="cuda").bfloat16()
    # The function of ours, that of torch's, what both take, and the gradient.
    functions: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...], Any]] = {
        "softmax": (ops.softmax, lambda x: torch.softmax(x, -1), (x,), whole),
        "rms_norm": (ops.rms_norm, lambda x, w: functional.rms_norm(x, (n,), w, 1e-6), (x, weight), whole),
        "layer_norm": (ops.layer_norm, lambda x, w, b: functional.layer_norm(x, (n,), w, b), (x, weight, bias), whole),
        "cross_entropy": (ops.cross_entropy, functional.cross_entropy, (x, target), None),
        "linear": (ops.linear, functional.linear, (a, b, c), narrow),
        "gemm": (ops.gemm, lambda a, b: torch.mm(a, b.t()), (a, b), narrow),
    }

    def step(function: Callable[..., Any], given: tuple[Any, ...], grad: Any) -> Any:
        return torch.autograd.grad(function(*given), [each for each in given if each.requires_grad], grad)

    found: dict[tuple[str, str], Callable[[], Any]] = {}
    for name, (ours, theirs, given, grad) in functions.items():
        for peer, function in (("torch", theirs), (OURS, ours)):
            found[peer, f"{name}, forward"] = functools.partial(function, *given)
            found[peer, f"{name}, step"] = functools.partial(step, function, given, grad)
    return found


def measured(
    calls: dict[tuple[str, str], Callable[[], Any]], turns: int, synchronize: Callable[[], Any]
) -> dict[Any, list[float]]:
    """Microseconds a call, of each turn."""
    found: dict[Any, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    try:
        for turn in range(turns + 3):
            for name, call in calls.items():
                synchronize()
                began = time.perf_counter()
                for _ in range(CALLS):
                    call()
                took = time.perf_counter() - began
                if turn >= 3:
                    found[name].append(took / CALLS * 1e6)
    finally:
        gc.enable()
    return found


def main(argv: list[str] | None = None) -> int:
    """The entry point; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="FOLDER", help="where host_time.json goes (default: benchmarks/results)")
    parser.add_argument("--schedules", action="store_true", help="leave out the operators of tmapipe.torch")
    args = parser.parse_args(argv)
    gpu = gpu_of("host_time")
    if not gpu:
        return 2
    import torch

    with torch.no_grad():
        found = measured(cases(not args.schedules), TURNS, torch.cuda.synchronize)
    stepped = {} if args.schedules else measured(steps(), TURNS, torch.cuda.synchronize)
    results = Results("host_time", gpu, method={"turns": TURNS, "calls": CALLS})
    for (peer, variant), times in (found | stepped).items():
        us, least = statistics.median(times), min(times)
        row = {"problem": f"{M}x{N}x{K}", "dtype": "bf16", "peer": peer, "variant": variant}
        base = statistics.median(stepped.get(("torch", variant), found["torch", "mm"]))
        results.add(**row, us=us, least_us=least, ratio=us / base)
        print(f"{peer:10} {variant:36} {us:7.2f} {least:7.2f} {us / base:6.2f}")
    print(results.write(args.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
