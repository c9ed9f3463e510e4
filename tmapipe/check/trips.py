"""Checking a schedule for every trip count: which problems are run, and when they stand for all others.

Two numbers vary: T, the output tiles of a CTA, and K, the steps of the inner loops (tiles along dimensions that the output
lacks, such as k of a GEMM). For K = 1, 2, 3, ... the checker runs T = 0, 1, 2, ... until it has seen

- along T: the moment between two tiles recurs (`recurrence.Moment`), and the next tiles are the same words (`words`);
- along K: in each of these tiles, the moment before one more inner step recurs after it, and the words for K - 1 and K + 1 are
  those for K without that step and with it twice;
- where the tiles of one CTA can take different numbers of steps: the moment between tiles recurs after each kind of tile.

Then each larger T or K only repeats what has been checked. Where this is not seen, the report says "up to ...".
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tmapipe.check import runs
from tmapipe.check.budgets import budget_findings
from tmapipe.check.findings import Finding, Report
from tmapipe.check.problems import Problems
from tmapipe.check.program import ordered
from tmapipe.dtypes import DType

__all__ = ["EVERY", "check_schedule"]

EVERY = "every trip count"
MAX_EVENTS = 2_000_000  # of all runs together; then the answer is "up to"


def check_schedule(schedule: Any, dtypes: Mapping[str, DType | str] | None = None, arch: str | None = None) -> Report:
    """The verdict on *schedule* for every trip count, every interleaving and every CTA of a cluster."""
    started = time.perf_counter()
    plan = schedule.plan(dtypes, arch=arch)
    search = _Search(Problems(schedule, plan))
    trips = search.run()
    found = ordered([*budget_findings(plan), *search.found])
    return Report(plan.name, found, trips, search.events, time.perf_counter() - started, tuple(search.runs))


class _Search:
    """Runs problems until the recurrences are seen, something is wrong, or there are too many events."""

    def __init__(self, problems: Problems):
        self.problems = problems
        self.found: list[Finding] = []
        self.events = 0
        self.runs: list[str] = []

    def run(self) -> str:
        """For which trip counts the findings hold."""
        problems = self.problems
        self._take(0, problems.steps[0])
        seen: list[tuple[int, int]] = []  # by number of steps: (n, tiles): the moment after n of so many tiles recurs
        for i, steps in enumerate(problems.steps):
            recurring = self._along_tiles(i)
            if recurring is None:
                break
            n, groups, inner = recurring
            seen.append((n, groups * problems.group))
            self.runs.append(
                f"0 to {seen[-1][1]} output tiles a CTA" + (f" of {steps} steps" if problems.inner else "")
            )
            if inner or not problems.inner:
                if len(problems.inner) < 2 and self._tiles_may_differ(seen):
                    return EVERY
                break
        tiles = min([tiles for _, tiles in seen], default=0)
        steps = problems.steps[max(0, len(seen) - 1)]
        return f"up to {tiles} output tiles a CTA" + (f" of up to {steps} steps each" if problems.inner else "")

    @property
    def _stopped(self) -> bool:
        return any(not finding.kind.note for finding in self.found) or self.events > MAX_EVENTS

    def _along_tiles(self, i: int) -> tuple[int, int, bool] | None:
        """(n: the moment after n groups of tiles recurs; groups run; whether the inner steps recur in all their tiles). None
        if nothing recurs."""
        problems, group = self.problems, self.problems.group
        groups = max(2, -(-(problems.slots + 2) // (i + 1)) + 1)
        while groups * group <= problems.most_tiles and not self._stopped:
            made = runs.run_with_cuts(problems, groups * group, i)
            self._add(made)
            n = None if self._stopped else runs.recurring_tile(problems, made, groups, i)
            if n is not None:
                for tiles in range(1, (n + 1) * group):
                    if tiles != n * group and not self._stopped:
                        self._take(tiles, problems.steps[i])
                return None if self._stopped else (n, groups, made.inner_steps_recur(groups * group))
            groups *= 2
        return None

    def _tiles_may_differ(self, seen: list[tuple[int, int]]) -> bool:
        """Whether the tiles of a CTA all take the same number of inner steps, or else may come in any order."""
        uneven = runs.run_uneven(self.problems)
        for other in uneven:
            self._add(other.run)
        if self._stopped:
            return False
        return not any(other.uneven for other in uneven) or runs.any_tile_keeps(self.problems, seen, uneven)

    def _take(self, tiles: int, steps: int) -> None:
        self._add(runs.run(self.problems, tiles, steps))

    def _add(self, run: runs.Run) -> None:
        self.found += run.found
        self.events += run.events
