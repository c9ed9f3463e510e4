"""The limit of this GPU at a tile: the same kernel with its loads removed, wgmma on whatever lies in the slots.

python -m benchmarks.ceiling
python -m benchmarks.ceiling --shapes 8192x8192x8192 --rounds 8

Each CTA loads its first slots (random normal data) and then none: barriers, wgmma, epilogue and stores are those of the
kernel itself, only the copies are gone, and with them all waiting for memory. Its results are wrong, and are not read.
Writes ``benchmarks/results/ceiling.json``: the kernel, its ceiling, and the one as a fraction of the other.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.cli import add_options, finish, method_of, settings
from benchmarks.gemm import PEAK_TFLOPS, make_operands, shape
from benchmarks.results import Results
from tmapipe.timing import rested

LARGE = ("8192x8192x8192", "4096x4096x4096", "16384x4096x4096", "4096x14336x4096", "4096x4096x14336")


def without_loads(schedule: Any) -> Any:
    """*schedule*, to be launched for matrices of bf16, with copies into its first slots only."""
    import cutlass
    from cutlass import Boolean, Int32

    from tmapipe.gpu.build import build
    from tmapipe.gpu.isa import GpuIsa
    from tmapipe.gpu.launch import adopt

    class Resident(GpuIsa):
        """As many slots are armed and filled as the ring has; the later ones are handed on with what they hold."""

        def __init__(self, *arguments: Any):
            super().__init__(*arguments)
            self.filled = self.cells(0)

        def mbarrier_arrive_expect_tx(self, barrier: Any, stage: Any, nbytes: int) -> None:
            self.filled[0] = self.filled[0] + 1
            nbytes = cutlass.select_(self._loads(barrier.stages), Int32(nbytes), Int32(0))
            super().mbarrier_arrive_expect_tx(barrier, stage, nbytes)

        def tma_load(
            self, load: Any, stage: Any, at: Sequence[Any], barrier: Any, mask: Any = None, share: Any = 0
        ) -> None:
            copy = functools.partial(super().tma_load, load, stage, at, barrier, mask, share)
            self.when(self._loads(barrier.stages), copy)

        def _loads(self, stages: int) -> Boolean:
            return self.filled[0] <= stages

    plan = schedule.plan({"a": "bf16", "b": "bf16", "d": "bf16"})
    adopt(
        schedule,
        build(schedule, plan, dict.fromkeys(plan.arguments, 2), reading=Resident),
        dict.fromkeys(plan.arguments, 2),
    )
    return schedule


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=shape, nargs="+", metavar="MxNxK", default=[shape(text) for text in LARGE])
    add_options(parser)
    args = parser.parse_args(argv)
    import torch

    if not torch.cuda.is_available():
        print("no GPU here: benchmarks.ceiling measures kernels on one")
        return 2
    from tmapipe.gpu.clock import CudaClock
    from tmapipe.schedules import Gemm

    make = functools.partial(Gemm, (128, 256, 64), (2, 1), 4)
    variants = {"Gemm 128x256x64 cluster 2x1": make(), "the same without loads": without_loads(make())}
    results = Results("ceiling", torch.cuda.get_device_name(), settings(args))
    clock = CudaClock(args.flush)
    for m, n, k in args.shapes:
        a, b, out = make_operands(m, n, k, "bf16", args.seed)
        runs = {name: functools.partial(schedule, a, b, out=out) for name, schedule in variants.items()}
        timings = rested(runs, clock, method_of(args))
        flops = 2e-6 * m * n * k
        ceiling = flops / timings["the same without loads"].us
        for name, timing in timings.items():
            speed = flops / timing.us
            results.add(
                problem=f"{m}x{n}x{k}", dtype="bf16", peer="tmapipe", variant=name, us=timing.us, tflops=speed,
                spread=timing.spread, mode="rested", fraction_of_peak=speed / PEAK_TFLOPS["bf16"],
                fraction_of_ceiling=speed / ceiling,
            )  # fmt: skip
            print(f"{m}x{n}x{k}  {name:<32} {speed:7.1f} TFLOP/s  {speed / ceiling:.3f} of the ceiling", flush=True)
        results.write(args.out)
    return finish(results, args, "tflops", [])


if __name__ == "__main__":
    sys.exit(main())
