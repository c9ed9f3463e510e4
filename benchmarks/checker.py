"""How long a check takes, by the number of events: the table of docs/checker.md. Needs no GPU.

python -m benchmarks.checker
"""

from __future__ import annotations

import time
from typing import Any

from tmapipe import schedules
from tmapipe.check import check_program
from tmapipe.kernel import kernel_main

__all__ = ["main"]

CHECKS = {
    "Copy, every trip count": lambda: schedules.Copy(),
    "Gemm, cluster 2x1, every trip count": lambda: schedules.Gemm(),
    "Gemm, cluster 2x2, 5 stages, every trip count": lambda: schedules.Gemm((128, 128, 64), (2, 2), 5),
    "PingPong, cluster 2x2, 5 stages, every trip count": lambda: schedules.PingPong((128, 128, 64), (2, 2), 5),
}


def one_run(schedule: Any, k_tiles: int, output_tiles: int) -> tuple[int, float]:
    """(events, seconds) of one concrete problem on one cluster."""
    plan = schedule.plan()
    m, n, k = schedule.mma.a.tile[0], schedule.mma.b.tile[0], schedule.mma.a.tile[1]
    rows, columns = m * plan.cluster["m"], n * plan.cluster["n"] * output_tiles
    shapes = {"a": (1, rows, k * k_tiles), "b": (1, columns, k * k_tiles), "d": (1, rows, columns)}
    started = time.perf_counter()
    report = check_program(plan, lambda isa: kernel_main(isa, schedule), shapes)
    assert report.ok, str(report)
    return report.events, time.perf_counter() - started


def main() -> None:
    print("| check | events | seconds |\n| --- | --- | --- |")
    for name, make in CHECKS.items():
        report = make().check()
        print(f"| {name} | {report.events} | {report.seconds:.2f} |")
    gemm = schedules.Gemm((128, 128, 64), (2, 2), 5)
    for k_tiles in (8, 16, 32, 64, 128, 256):
        events, seconds = one_run(gemm, k_tiles, 3)
        print(f"| one run: Gemm, cluster 2x2, 5 stages, 3 output tiles, {k_tiles} k-tiles | {events} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
