"""When each CTA of a GEMM starts, loads, multiplies and ends, by the stamps of its kernel (docs/timeline.md).

python -m benchmarks.stamps
python -m benchmarks.stamps --shapes 2048x2048x2048

Takes the schedule that `tmapipe.tuning.choose` takes, for problems of one wave. Prints medians over the CTAs, in microseconds
since the first CTA's start, and the clock of the multiprocessors.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from benchmarks.ceiling import TYPES
from benchmarks.cli import gpu_of
from benchmarks.gemm import make_operands, shape
from benchmarks.results import print_table
from tmapipe.plan.model import Plan

SHAPES = ("1024x1024x1024", "1000x3000x2008", "2048x2048x2048")
PLACES = ("start", "first load", "last load", "first full slot", "last full slot", "end")


def medians(plan: Plan, places: list[Any], rows: list[Any]) -> dict[str, float]:
    """Medians over the CTAs: point -> microseconds since the first start, and "GHz".

    Args:
        plan: Of a GEMM.
        places: Where its program stamps.
        rows: What its warps have written.
    """
    began, ring = min(row.began[0] for row in rows), plan.rings[0]
    rates = [row.ended[1] / max(1, row.ended[0] - row.began[0]) for row in rows]
    gigahertz, found = statistics.median(rates), {name: list[float]() for name in PLACES}
    warps = {plan.role(name).first_warp: name for name in ("load", "math")}
    for row in rows:
        role = warps.get(row.warp)
        wanted = {"load": "mbarrier_arrive_expect_tx", "math": "mbarrier_wait"}.get(role or "")
        at = {i for i, p in enumerate(places) if p.after and _about(p.node, wanted, ring.barriers[0])}
        clocks = [
            clock for number, clock in zip(row.numbers.tolist(), row.clocks.tolist(), strict=True) if number in at
        ]
        if role is None or not clocks:
            continue
        ends = ("first load", "last load") if role == "load" else ("first full slot", "last full slot")
        for name, clock in zip(ends, (clocks[0], clocks[-1]), strict=True):
            found[name].append(row.began[0] - began + clock / gigahertz)
        found["start"].append(row.began[0] - began)
        found["end"].append(row.ended[0] - began)
    return {**{name: statistics.median(times) / 1e3 for name, times in found.items()}, "GHz": gigahertz}


def _about(node: Any, method: str | None, barrier: Any) -> bool:
    return getattr(node, "method", None) == method and node.args[0] == barrier


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=shape, nargs="+", metavar="MxNxK", default=[shape(text) for text in SHAPES])
    args = parser.parse_args(argv)
    if not gpu_of("stamps"):
        return 2
    from tmapipe.gpu.launch import CudaClock
    from tmapipe.gpu.watchdog import EVERY
    from tmapipe.program import places, trace
    from tmapipe.timeline.stamped import launcher_of
    from tmapipe.tuning import Problem, ranked

    clock, lines = CudaClock(), []
    for m, n, k in args.shapes:
        candidate, _ = ranked(Problem(m, n, k), most=1)[0]
        schedule = candidate.build(Problem(m, n, k))
        plan = schedule.plan(TYPES)
        a, b, out = make_operands(m, n, k, "bf16", 0)
        bound = schedule.bind(a, b, out=out)
        launcher, stamps = launcher_of(schedule, bound, schedule.cluster_count(bound.shapes), EVERY)
        for _ in range(3):
            clock.rest(0.1)
            (us,) = clock.batch(lambda made=launcher, given=bound: made.launch(list(given.tensors.values())), 1)
        at = places(trace(schedule, plan))
        found = medians(plan, at, stamps.rows(at))
        lines.append([f"{m}x{n}x{k}", str(candidate), *(f"{value:.2f}" for value in found.values()), f"{us:.2f}"])
    print_table(lines, ["problem", "schedule", *PLACES, "GHz", "by events"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
