"""Checks a schedule for every trip count: any number of output tiles of a CTA, and any number of steps of the inner loops.

Steps are tiles along dimensions that the output lacks, such as k of a GEMM. Either number may be 0.

1. Programs recorded for several problem sizes are shown to consist of a few segments (`segments`).
2. A set of states is shown to be closed under all segments (`closure`), so any number of tiles of any number of steps is safe.
3. One problem is run from beginning to end, with source lines, for findings that are only notes.

If 1 or 2 does not succeed, problems of growing size are run, until one shows what is wrong. If none does, the report says "up
to".
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tmapipe.check.budgets import budget_findings
from tmapipe.check.closure import Closure, close
from tmapipe.check.findings import Finding, Report
from tmapipe.check.problems import Problems, Shapes
from tmapipe.check.program import check_operations, limit_finding, ordered, run_checked
from tmapipe.check.relative import Program
from tmapipe.check.segments import NotRegular, Segments, segments_of
from tmapipe.dtypes import DType
from tmapipe.errors import PipelineError
from tmapipe.plan.model import Plan

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

__all__ = ["EVERY", "check_schedule"]

EVERY = "every trip count"
MAX_EVENTS = 500_000  # of all runs together; then the answer is "up to"


def check_schedule(
    schedule: Schedule, dtypes: Mapping[str, DType | str] | None = None, arch: str | None = None
) -> Report:
    """The verdict on *schedule* for every trip count, every interleaving and every CTA of a cluster."""
    started = time.perf_counter()
    plan = schedule.plan(dtypes, arch=arch)
    with _collector_at_rest():
        try:
            found, trips, events, runs = _searched(schedule, plan)
        except PipelineError as error:
            found, trips, events, runs = [limit_finding(error)], "no trip count", 0, ()
    return Report(
        plan.name, ordered([*budget_findings(plan), *found]), trips, events, time.perf_counter() - started, runs
    )


def _searched(schedule: Schedule, plan: Plan) -> tuple[list[Finding], str, int, tuple[str, ...]]:
    search = _Search(Problems(schedule, plan))
    trips = search.run()
    return search.found, trips, search.events, tuple(search.runs)


@contextlib.contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Turns the garbage collector off: everything that a check makes lives until its end."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Search:
    """The search for what is wrong with one schedule.

    found: findings of all runs; events: transitions executed; runs: in words, what was shown and how; suspects: (tiles, steps)
    of problems that may show what is wrong.
    """

    def __init__(self, problems: Problems):
        self.problems = problems
        self.found: list[Finding] = []
        self.events = 0
        self.runs: list[str] = []
        self.suspects: list[tuple[int, int]] = []  # (tiles, steps) of problems that may show what is wrong

    def run(self) -> str:
        """For which trip counts the findings hold."""
        problems = self.problems
        steps = problems.slots + 1 if problems.inner else 1
        self._no_tile(steps)
        if self._every_count():
            self._take(2 * problems.group, steps)
            return EVERY
        tiles, most = 0, 0
        for tiles, most in [*self.suspects, *self._sizes()]:
            if self._stopped:
                break
            self._take(tiles, most)
        for shapes in problems.uneven():
            if not self._stopped:
                self._add(shapes, problems.record(shapes))
        return f"up to {tiles} output tiles a CTA" + (f" of up to {most} steps each" if problems.inner else "")

    def _every_count(self) -> bool:
        """Whether a closed set of states shows every trip count.

        Tiles without steps are left out if they do harm and can only come from tensors without elements, which never reach a
        kernel (`Schedule.empty_value`).
        """
        problems = self.problems
        try:
            segments = segments_of(problems)
        except NotRegular as reason:
            self.runs.append(f"not shown for every trip count: {reason}")
            return False
        shown = self._close(segments)
        if not shown.closed and problems.inner and not segments.empty:
            shown = self._close(segments.without_empty())
            if shown.closed:
                self.runs.append("tiles of no steps: not, since tensors without elements never reach a kernel")
        self.runs.append(
            f"closed: {shown.states} states between segments"
            if shown.closed
            else f"not shown for every trip count: {shown.why}"
        )
        if not shown.closed and shown.tiles:
            self.suspects = [(len(shown.tiles), problems.steps_of(max(shown.tiles)))]
        return shown.closed

    def _close(self, segments: Segments) -> Closure:
        shown = close(self.problems, segments)
        self.events += shown.events
        return shown

    def _sizes(self) -> Iterator[tuple[int, int]]:
        """(tiles, steps) of the problems to run: small ones first, the largest last."""
        group, slots = self.problems.group, self.problems.slots
        if not self.problems.inner:
            yield from ((tiles, 1) for tiles in range(1, (2 * slots + 2) * group + 1))
            return
        yield from ((1, count) for count in range(1, 2 * slots + 3))
        steps = sorted({1, max(1, slots - 1), slots, slots + 1, 2 * slots + 2})
        for tiles in range(2, 2 * group + 2):
            for count in steps:
                yield tiles, count
        yield (slots + 2) * group, 1
        yield (slots + 2) * group, 2 * slots + 2

    @property
    def _stopped(self) -> bool:
        return any(not finding.kind.note for finding in self.found) or self.events > MAX_EVENTS

    def _no_tile(self, steps: int) -> None:
        """Runs the second of two clusters that share one tile: it gets none."""
        problems = self.problems
        found, events = run_checked(problems.plan, problems.entry, problems.shapes(1, steps), 1, 2)
        self.found += found
        self.events += events

    def _take(self, tiles: int, steps: int) -> None:
        """Runs one problem from beginning to end."""
        self._add(self.problems.shapes(tiles, steps), self.problems.programs(tiles, steps))
        self.runs.append(f"{tiles} output tiles a CTA" + (f" of {steps} steps" if self.problems.inner else ""))

    def _add(self, shapes: Shapes, programs: list[Program]) -> None:
        problems = self.problems
        found, events = check_operations(problems.layout, [program.ops for program in programs], shapes)
        if found:  # once more, with source lines
            found, events = run_checked(problems.plan, problems.entry, shapes)
        self.found += found
        self.events += events
