"""Checks a schedule for every trip count: any number of output tiles of a CTA, and all that its bodies decide on.

That is mostly the number of steps of the inner loops: tiles along dimensions that the output lacks, such as k of a GEMM. It
may also be where a tile lies, how its extents are rounded, an entry of a table, ... (`varying`).

1. Programs recorded for several kinds of tiles are shown to consist of a few segments (`segments`).
2. A set of states is shown to be closed under all segments (`closure`), so any number of tiles of any number of steps is safe.
3. One problem is run from beginning to end, with source lines, for findings that are only notes.

If 1 or 2 does not succeed, problems of growing size are run, until one shows what is wrong. If none does, the report says "up
to".
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from tmapipe.check.budgets import budget_findings
from tmapipe.check.closure import close
from tmapipe.check.filled import look_at_slots
from tmapipe.check.findings import Finding, Report
from tmapipe.check.linear import LinearCheck
from tmapipe.check.outputs import Outputs, look_at_outputs
from tmapipe.check.overrides import placed
from tmapipe.check.problems import Problems
from tmapipe.check.program import ordered, refused, run_checked
from tmapipe.check.search import FEW, Problem, problems_near
from tmapipe.check.segments import NotRegular, segments_of
from tmapipe.dtypes import DType
from tmapipe.errors import InputError, PipelineError, UnsafeError
from tmapipe.machine import Layout
from tmapipe.machine.locate import line_of
from tmapipe.machine.varying_names import NAMES_LOCK
from tmapipe.plan.model import Plan
from tmapipe.program.trace import trace
from tmapipe.prove.joint import prove

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

__all__ = ["EVERY", "check_schedule", "require_safe"]

EVERY = "every trip count"
MAX_EVENTS = 500_000  # of all runs together, without those of a proof; then the answer is "up to"
NAMED = 4  # numbers that vary, in a report
FIRST = 12  # sizes that are looked at before problems that differ in what bodies decide on


def check_schedule(
    schedule: Schedule, dtypes: Mapping[str, DType | str] | None = None, arch: str | None = None
) -> Report:
    """The verdict on *schedule* for every trip count, every interleaving and every CTA of a cluster."""
    started = time.perf_counter()
    plan = schedule.plan(dtypes, arch=arch)
    with NAMES_LOCK, _collector_at_rest():
        try:
            report = _searched(schedule, plan)
        except PipelineError as error:
            report = Report(plan.name, tuple(refused(error, LinearCheck(Layout(plan), {}))), "no trip count")
    found = placed(schedule, plan, ordered([*budget_findings(plan), *report.findings]))
    return attrs.evolve(report, findings=found, seconds=time.perf_counter() - started)


def require_safe(schedule: Schedule, dtypes: Mapping[str, DType | str] | None = None) -> Report | None:
    """The gate before the compiler: the report on a schedule, or None if it is not to be checked (`Schedule.checked` is False,
    or TMAPIPE_CHECK=0 in the environment).

    It is asked each time before a schedule is compiled for launching, and remembers nothing. A compiled kernel is kept by the
    schedule that it was compiled for, and two schedules that look alike may differ in a helper function, a closure or an
    attribute that their bodies read.

    Raises:
        UnsafeError: It can hang, race or corrupt. The message is the report.
    """
    if not schedule.checked or os.environ.get("TMAPIPE_CHECK", "1") == "0":
        return None
    report = check_schedule(schedule, dtypes)
    if not report.ok:
        raise UnsafeError(str(report))
    return report


def _searched(schedule: Schedule, plan: Plan) -> Report:
    problems = Problems(schedule, plan)
    problems.check_state()
    search = _Search(problems)
    trips = search.run()
    left = [store.name for store in plan.stores if store.name not in problems.decisions.stored]
    safe = all(finding.kind.note for finding in search.found)
    if left and safe:
        fix = "store it in the body of its role, or leave the stage out"
        raise InputError(left[0], None, f"is an output of {plan.name} that no body stores", fix)
    outputs = look_at_outputs(problems) if safe else Outputs()
    found = (*search.found, *outputs.findings, *(look_at_slots(problems) if safe else ()))
    return Report(
        plan.name,
        found,
        trips,
        search.events,
        runs=tuple(search.runs),
        problem=search.wrong,
        outputs=outputs.open,
        partly=outputs.partly,
    )


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

    found: findings of all runs; wrong: the problem of which they are; events: transitions executed; proofs: those of them
    that were in proofs; runs: in words, what was shown and how; failed: a problem in which a body fails, and how; size:
    (tiles, steps) of the last problem of growing size.
    """

    def __init__(self, problems: Problems):
        self.problems = problems
        self.found: list[Finding] = []
        self.wrong: Problem | None = None
        self.events = self.proofs = 0
        self.runs: list[str] = []
        self.failed = ""
        self.size = 0, 0
        self.proved = False

    def run(self) -> str:
        """For which trip counts the findings hold."""
        problems = self.problems
        problems.vary()
        for problem in self._first_look():
            self._add(problem, given=False)
        if self._stopped:
            return "no trip count"
        every = self._every_count()
        steps = problems.slots + 1 if problems.inner else 1
        self._add(Problem(problems.shapes(1, steps), 1, 2))  # the second of two clusters that share one tile gets none
        if every:
            self._take(2 * problems.group, steps)
            if self.proved or not problems.vary():  # nothing new has been decided on
                return EVERY
        sizes = self._sizes()
        for size in sizes[:FIRST]:
            self._take(*size)
        for problem in self._uneven():
            self._add(problem)
        for problem in problems_near(problems) if self._decides else ():
            self._add(problem, given=False)
        for size in sizes[FIRST:]:
            self._take(*size)
        tiles, most = self.size
        found = f"up to {tiles} output tiles a CTA" + (f" of up to {most} steps each" if problems.inner else "")
        return found + self._not_varied()

    def _first_look(self) -> Iterator[Problem]:
        """A few small problems: what is wrong mostly shows in one of them."""
        yield from (Problem(self.problems.shapes(1, steps)) for steps in ((1, 2) if self.problems.inner else (1,)))
        if self._decides:
            yield from itertools.islice(problems_near(self.problems, FEW), FIRST // 4)

    @property
    def _decides(self) -> bool:
        """Whether bodies decide on more than one number of steps."""
        kinds = self.problems.kinds
        return bool(kinds.open) or len(kinds.keys) > 1 or not all(map(self.problems.is_steps, kinds.keys))

    def _not_varied(self) -> str:
        kinds = self.problems.kinds
        failed = f"; {self.failed}" if self.failed else ""
        if not self._decides:
            return failed
        texts = kinds.open or [each.text for each in kinds.variations]
        others = [f"{len(texts) - NAMED} others"] if len(texts) > NAMED else []
        few = "" if kinds.open else ", beyond a few values"
        return "; not varied: " + "; ".join([*texts[:NAMED], *others]) + few + failed

    def _every_count(self) -> bool:
        """Whether a closed set of states shows every trip count."""
        problems = self.problems
        proof = prove(trace(problems.schedule, problems.plan))
        self.events += proof.events
        self.proofs += proof.events
        if proof.closed:
            self.proved = True
            self.runs.append(f"closed: {proof.states} states between iterations")
            return True
        self.runs.append(f"not shown by the program: {proof.why}")
        try:
            segments = segments_of(problems)
        except NotRegular as reason:
            self.runs.append(f"not shown for every trip count: {reason}")
            return False
        shown = close(problems, segments)
        self.events += shown.events
        closed = f"closed: {shown.states} states between segments"
        self.runs.append(closed if shown.closed else f"not shown for every trip count: {shown.why}")
        return shown.closed

    def _sizes(self) -> list[tuple[int, int]]:
        """(tiles, steps) of the problems to run: small ones first, the largest last."""
        group, slots = self.problems.group, self.problems.slots
        most, long = 2 * slots + 2, (slots + 2) * group
        if not self.problems.inner:
            return [(tiles, 1) for tiles in range(1, most * group + 1)]
        steps = sorted({1, max(1, slots - 1), slots, slots + 1, most})
        some = itertools.product(range(2, 2 * group + 2), steps)
        return [*((1, count) for count in range(1, most + 1)), *some, (long, 1), (long, most)]

    @property
    def _stopped(self) -> bool:
        return any(not finding.kind.note for finding in self.found) or self.events - self.proofs > MAX_EVENTS

    def _uneven(self) -> list[Problem]:
        """Problems with several tiles along dimensions before the tile's, such as the parts of a split k.

        Their tiles can take different numbers of steps, or none.
        """
        problems = self.problems
        if len(problems.dims) < 3 or not problems.inner or problems.group > 1:
            return []
        return [Problem(problems.shapes(1, steps, outer=3)) for steps in (1, 2, 5)]

    def _take(self, tiles: int, steps: int) -> None:
        """Runs one problem from beginning to end."""
        if not self._stopped:
            self.size = tiles, steps
            self._add(Problem(self.problems.shapes(tiles, steps)))
            self.runs.append(f"{tiles} output tiles a CTA" + (f" of {steps} steps" if self.problems.inner else ""))

    def _add(self, problem: Problem, given: bool = True) -> None:
        """Runs one problem. *given*: whether every schedule takes it, so that a body that fails is an error."""
        if self._stopped:
            return
        problems = self.problems

        def make(layout: Layout, agent: int, emit: Callable[[Any], None]) -> Any:
            cluster, clusters = problem.cluster, problem.clusters
            return problems.isa(layout, agent, cluster, clusters, problem.shapes, emit, tables=problem.tables)

        try:
            with problems.recording():
                found, events = run_checked(
                    problems.plan, problems.entry, problem.shapes, problem.cluster, problem.clusters, make=make
                )
        except Exception as error:
            if given:
                raise
            said = error if isinstance(error, PipelineError) else f"{error}. At {line_of(error)}."
            said = f"a body fails with {problem.text}: {said}"
            self.failed = self.failed or said  # maybe no problem is like this
            self.runs.append(said)
            return
        self.found += found
        self.events += events
        if any(not finding.kind.note for finding in found):
            self.runs.append(f"wrong: {problem.text}")
            self.wrong = problem
