"""The verdict of the linear check on one concrete run: of a plan made by hand, a mutant, a program drawn at random."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.oracle.plain import run_checked
from tmapipe.check import Report
from tmapipe.check.deadlocks import ordered
from tmapipe.check.ring_uses import budget_findings
from tmapipe.plan.model import Plan

__all__ = ["check_program"]


def check_program(
    plan: Plan, entry: Callable[[Any], None], shapes: dict[str, tuple[int, ...]], clusters: int = 1, name: str = ""
) -> Report:
    """The verdict on one concrete run, for every interleaving of it.

    Clusters share no barriers, so each is checked by itself: all of them if there are up to four, else the first, which has
    the most tiles, and the last, which has the fewest.
    """
    started = time.perf_counter()
    found = list(budget_findings(plan))
    events = 0
    for cluster in range(clusters) if clusters <= 4 else (0, clusters - 1):
        run, steps = run_checked(plan, entry, shapes, cluster, clusters)
        found += run
        events += steps
    text = ", ".join(f"{n} {' x '.join(map(str, s))}" for n, s in shapes.items())
    return Report(
        name or plan.name, ordered(found), "this problem only", events, time.perf_counter() - started, (text,)
    )
