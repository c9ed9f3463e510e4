"""When each CTA of a GEMM starts, loads, multiplies and ends: time stamps taken inside the kernel.

python -m benchmarks.stamps
python -m benchmarks.stamps --shapes 2048x2048x2048

Takes the schedule that `tmapipe.tuning.choose` takes, for problems of one wave. The loader and the first consumer warp store
``%globaltimer`` and ``%clock64`` at some points. These stores cost some 0.3 us. Prints medians over the CTAs, in microseconds
since the first CTA's start, and the clock in the mainloop.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from benchmarks.ceiling import TYPES, registers
from benchmarks.cli import gpu_of
from benchmarks.gemm import make_operands, shape
from benchmarks.results import print_table

SHAPES = ("1024x1024x1024", "1000x3000x2008", "2048x2048x2048")
PLACES = ("start", "first load", "last load", "first full slot", "last full slot", "end")
WORDS = 16  # of a CTA: its places' nanoseconds, then its clocks
CLOCKS = 8


def stamped(address: int, consumer: int) -> type:
    """A GPU backend that writes time stamps to the array of int64 at *address*, `WORDS` per CTA.

    Args:
        address: in global memory
        consumer: the warp whose waits are stamped
    """
    import cutlass.cute as cute
    from cutlass import Int64

    from tmapipe.gpu import control
    from tmapipe.gpu.isa import GpuIsa

    class Stamped(GpuIsa):
        def __init__(self, *arguments: Any):
            super().__init__(*arguments)
            self.seen = registers(0, 0)
            self.number, _, _ = cute.arch.block_idx()
            self._note("start", self.warp == 0)

        def tma_load(self, *operands: Any, **options: Any) -> None:
            self._note("first load", self.seen[0] == 0)
            self.seen[0] = 1
            super().tma_load(*operands, **options)
            self._note("last load", self.warp >= 0)

        def mbarrier_wait(self, barrier: Any, stage: Any, parity: Any) -> None:
            super().mbarrier_wait(barrier, stage, parity)
            mine = self.warp == consumer
            self._note("first full slot", mine & (self.seen[1] == 0))
            self.seen[1] = 1
            self._note("last full slot", mine)

        def bulk_wait_group(self, pending: int, read: bool) -> None:
            super().bulk_wait_group(pending, read)
            if not read:
                self._note("end", self.warp == consumer)

        def _note(self, place: str, condition: Any) -> None:
            def write() -> None:
                pointer = cute.make_ptr(Int64, Int64(address), cute.AddressSpace.gmem, assumed_align=8)
                words = cute.make_tensor(pointer, cute.make_layout(1 << 20))
                at = self.number * WORDS + PLACES.index(place)
                words[at] = Int64(cute.arch.globaltimer())
                words[at + CLOCKS] = Int64(cute.arch.clock64())

            control.when((self.lane == 0) & condition, write)

    return Stamped


def medians(stamps: list[list[int]]) -> dict[str, float]:
    """Medians over the CTAs: point -> microseconds since the first start, and "GHz" of the mainloop."""
    began = min(words[0] for words in stamps)
    found = {name: statistics.median(words[i] - began for words in stamps) / 1e3 for i, name in enumerate(PLACES)}
    first, last = PLACES.index("first full slot"), PLACES.index("last full slot")
    rates = [(words[last + CLOCKS] - words[first + CLOCKS]) / max(1, words[last] - words[first]) for words in stamps]
    return {**found, "GHz": statistics.median(rates)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=shape, nargs="+", metavar="MxNxK", default=[shape(text) for text in SHAPES])
    args = parser.parse_args(argv)
    if not gpu_of("stamps"):
        return 2
    import torch

    from tmapipe.gpu.build import build
    from tmapipe.gpu.launch import CudaClock, adopt
    from tmapipe.tuning import Problem, ranked

    clock, rows = CudaClock(), []
    for m, n, k in args.shapes:
        candidate, _ = ranked(Problem(m, n, k), most=1)[0]
        schedule = candidate.build(Problem(m, n, k))
        plan = schedule.plan(TYPES)
        stamps = torch.zeros(1 << 20, dtype=torch.int64, device="cuda")
        backend = stamped(stamps.data_ptr(), plan.role("math").first_warp)
        ranks = dict.fromkeys(plan.arguments, 2)
        adopt(schedule, build(schedule, plan, ranks, backend=backend), ranks)
        a, b, out = make_operands(m, n, k, "bf16", 0)
        for _ in range(3):
            stamps.zero_()
            clock.rest(0.1)
            (us,) = clock.batch(lambda made=schedule, a=a, b=b, out=out: made(a, b, out=out), 1)
        found = medians([words for words in stamps.view(-1, WORDS).tolist() if words[0]])
        rows.append([f"{m}x{n}x{k}", str(candidate), *(f"{value:.2f}" for value in found.values()), f"{us:.2f}"])
    print_table(rows, ["problem", "schedule", *PLACES, "GHz", "by events"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
