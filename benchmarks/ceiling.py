"""Where the time of a GEMM goes: the same kernel with one part removed.

python -m benchmarks.ceiling
python -m benchmarks.ceiling --shapes 8192x8192x512 --rounds 8

* without loads: each CTA loads its first slots (random normal data) and then none. Barriers, wgmma, epilogue and stores stay.
  The copies and all waiting for memory are gone. This is the ceiling of the GPU at this tile.
* without stores: results are converted and written to shared memory, and stay there.

Measured are the schedule that `tmapipe.tuning.choose` takes, and 128 x 256 x 64 in clusters of 2 x 1. The results of these
kernels are wrong and are not read. Writes ``benchmarks/results/ceiling.json``.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import Any

from benchmarks.cli import add_options, finish, gpu_of, method_of, settings
from benchmarks.gemm import PEAK_TFLOPS, make_operands, shape
from benchmarks.results import Results
from tmapipe.tuning.cost import rested

SHAPES = ("8192x8192x8192", "4096x4096x4096", "16384x4096x4096", "4096x14336x4096", "4096x4096x14336", "8192x8192x512")
TYPES = {"a": "bf16", "b": "bf16", "d": "bf16"}


def registers(*initial: int) -> Any:
    """Integers of a thread that the kernel changes, as registers."""
    import cutlass.cute as cute
    from cutlass import Int32

    made = cute.make_rmem_tensor((len(initial),), Int32)
    for i, value in enumerate(initial):
        made[i] = Int32(value)
    return made


def without_loads() -> type:
    """An instruction set that arms and fills as many slots as the ring has, and hands the later ones on as they are."""
    import cutlass
    from cutlass import Boolean, Int32

    from tmapipe.gpu import control
    from tmapipe.gpu.isa import GpuIsa

    class WithoutLoads(GpuIsa):
        def __init__(self, *arguments: Any):
            super().__init__(*arguments)
            self.filled = registers(0)

        def mbarrier_arrive_expect_tx(self, barrier: Any, stage: Any, nbytes: int) -> None:
            self.filled[0] = self.filled[0] + 1
            armed = cutlass.select_(self._loads(barrier.stages), Int32(nbytes), Int32(0))
            super().mbarrier_arrive_expect_tx(barrier, stage, armed)

        def tma_load(self, load: Any, stage: Any, at: Any, barrier: Any, *operands: Any, **options: Any) -> None:
            copy = functools.partial(super().tma_load, load, stage, at, barrier, *operands, **options)
            control.when(self._loads(barrier.stages), copy)

        def _loads(self, stages: int) -> Boolean:
            return self.filled[0] <= stages

    return WithoutLoads


def without_stores() -> type:
    """A GPU backend whose stores are empty groups."""
    from tmapipe.gpu.isa import GpuIsa

    class WithoutStores(GpuIsa):
        def tma_store(self, *operands: Any, **options: Any) -> None:
            pass

    return WithoutStores


BACKENDS = {"without loads": without_loads, "without stores": without_stores}


def removed(schedule: Any, part: str) -> Any:
    """*schedule*, to be launched for matrices of bf16, without one of the parts named in `BACKENDS`."""
    from tmapipe.gpu.build import build
    from tmapipe.gpu.launch import adopt

    plan = schedule.plan(TYPES)
    ranks = dict.fromkeys(plan.arguments, 2)
    adopt(schedule, build(schedule, plan, ranks, backend=BACKENDS[part]()), ranks)
    return schedule


def variants(m: int, n: int, k: int) -> dict[tuple[str, str], Any]:
    """(candidate, "whole" or what is removed) -> schedule."""
    from tmapipe.tuning import Candidate, Problem, ranked

    problem = Problem(m, n, k)
    found = {}
    for candidate in dict.fromkeys((ranked(problem, most=1)[0][0], Candidate("Gemm", (128, 256), (2, 1)))):
        found[str(candidate), "whole"] = candidate.build(problem)
        found.update({(str(candidate), part): removed(candidate.build(problem), part) for part in BACKENDS})
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=shape, nargs="+", metavar="MxNxK", default=[shape(text) for text in SHAPES])
    add_options(parser)
    args = parser.parse_args(argv)
    gpu = gpu_of("ceiling")
    if not gpu:
        return 2
    from tmapipe.gpu.launch import CudaClock

    results = Results("ceiling", gpu, settings(args))
    clock = CudaClock(args.flush)
    for m, n, k in args.shapes:
        a, b, out = make_operands(m, n, k, "bf16", args.seed)
        runs = {key: functools.partial(made, a, b, out=out) for key, made in variants(m, n, k).items()}
        timings = rested(runs, clock, method_of(args))
        for (name, part), timing in timings.items():
            speed = 2e-6 * m * n * k / timing.us
            of_ceiling = timings[name, "without loads"].us / timing.us
            results.add(
                problem=f"{m}x{n}x{k}", dtype="bf16", peer="tmapipe", variant=f"{name}, {part}", us=timing.us,
                tflops=speed, spread=timing.spread, mode="rested", fraction_of_peak=speed / PEAK_TFLOPS["bf16"],
                fraction_of_ceiling=of_ceiling,
            )  # fmt: skip
            line = f"{m}x{n}x{k}  {name:<40} {part:<18} {timing.us:8.1f} us {speed:7.1f} TFLOP/s"
            print(f"{line}  {of_ceiling:.3f} of the ceiling", flush=True)
        results.write(args.out)
    return finish(results, args, "tflops", [])


if __name__ == "__main__":
    sys.exit(main())
