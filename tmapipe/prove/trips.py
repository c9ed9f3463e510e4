"""Checks a schedule for every trip count: any number of output tiles of a CTA, and all that its bodies decide on.

1. The program is traced, and shown to be safe from every state that can recur (`joint`).
2. One or two problems are run from beginning to end, with source lines, for findings that are only notes.

If 1 does not succeed, concrete problems are run, until one shows what is wrong: first those that fulfil what is decided
where the proof stops (`prove.solutions`), then others (`prove.search`). If none does, the report says "up to".
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import attrs

from tmapipe.check.budgets import budget_findings
from tmapipe.check.findings import Finding, Kind, Report
from tmapipe.check.linear import LinearCheck
from tmapipe.check.overrides import placed
from tmapipe.check.program import ordered, refused
from tmapipe.dtypes import DType
from tmapipe.errors import InputError, PipelineError, UnsafeError
from tmapipe.machine import Layout
from tmapipe.machine.describe import lines
from tmapipe.machine.locate import line_of
from tmapipe.program.trace import ONE_AT_A_TIME, Traced, trace
from tmapipe.prove.bodies import Bodies
from tmapipe.prove.endless import look_at_loops
from tmapipe.prove.joint import prove
from tmapipe.prove.outputs import Outputs, look_at_outputs
from tmapipe.prove.problem import Problem, Sizes, TooLarge, run_problem
from tmapipe.prove.search import Varying, problems
from tmapipe.prove.solutions import solutions
from tmapipe.prove.starts import uneven_starts

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

__all__ = ["EVERY", "check_schedule", "require_safe"]

EVERY = "every trip count"
MAX_EVENTS = 500_000  # of all problems that are run for errors; then the answer is "up to"
LARGE = 100_000  # operations of a problem that need not be looked at


def check_schedule(
    schedule: Schedule,
    dtypes: Mapping[str, DType | str] | None = None,
    arch: str | None = None,
    program: Traced | None = None,
) -> Report:
    """The verdict on *schedule* for every trip count, every interleaving and every CTA of a cluster. program: if it has been
    traced."""
    started = time.perf_counter()
    plan = schedule.plan(dtypes, arch=arch)
    with ONE_AT_A_TIME, _collector_at_rest():
        try:
            report = _Check(program or trace(schedule, plan)).report()
        except PipelineError as error:
            report = Report(plan.name, tuple(refused(error, LinearCheck(Layout(plan), {}))), "no trip count")
    found = placed(schedule, plan, ordered([*budget_findings(plan), *report.findings]))
    return attrs.evolve(report, findings=found, seconds=time.perf_counter() - started)


def require_safe(
    schedule: Schedule, dtypes: Mapping[str, DType | str] | None = None, program: Traced | None = None
) -> Report | None:
    """The gate before the compiler: the report on a schedule, or None if it is not to be checked (`Schedule.checked` is False,
    or TMAPIPE_CHECK=0 in the environment).

    It is asked each time before a schedule is compiled for launching, and remembers nothing. A compiled kernel is kept by the
    schedule that it was compiled for, and two schedules that look alike may differ in a helper function, a closure or an
    attribute that their bodies read. Arguments as of `check_schedule`.

    Raises:
        UnsafeError: It can hang, race or corrupt. The message is the report.
    """
    if not schedule.checked or os.environ.get("TMAPIPE_CHECK", "1") == "0":
        return None
    report = check_schedule(schedule, dtypes, program=program)
    if not report.ok:
        raise UnsafeError(str(report))
    return report


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


class _Check:
    """The check of one schedule.

    found: findings of all runs; wrong: the problem of which they are; events: transitions executed; runs: in words, what was
    shown and how; failed: a problem in which a body fails, and how; size: (tiles, steps) of the largest problem.
    """

    def __init__(self, program: Traced):
        self.program, self.schedule, self.plan = program, program.schedule, program.plan
        schedule, plan = self.schedule, self.plan
        self.bodies = Bodies(self.program)
        self.sizes = Sizes(schedule, plan)
        uneven = uneven_starts(self.bodies)
        self.varying = Varying(self.sizes, [*self.bodies.asked, *uneven])
        self.uneven = next(iter(uneven.values()), "")
        self.found: list[Finding] = []
        self.wrong: Problem | None = None
        self.events = self.in_problems = 0
        self.runs: list[str] = []
        self.failed = ""
        self.size = 0, 0

    def report(self) -> Report:
        """The verdict."""
        endings = look_at_loops(self.bodies)
        if endings.never:
            return Report(self.plan.name, endings.never, "no trip count")
        trips = self._trips(endings.open)
        left = [store.name for store in self.plan.stores if store.name not in self.bodies.stored]
        if left and self._safe:
            fix = "store it in the body of its role, or leave the stage out"
            raise InputError(left[0], None, f"is an output of {self.plan.name} that no body stores", fix)
        outputs = look_at_outputs(self.bodies) if self._safe else Outputs()
        return Report(
            self.plan.name,
            (*self.found, *outputs.findings),
            trips,
            self.events,
            runs=tuple(self.runs),
            problem=self.wrong,
            outputs=outputs.open,
            partly=outputs.partly,
        )

    @property
    def _safe(self) -> bool:
        return all(finding.kind.note for finding in self.found)

    def _trips(self, endless: str) -> str:
        """For which trip counts the findings hold. endless: a loop that is not known to end, in words, or empty."""
        proof = prove(self.program)
        self.events += proof.events
        if proof.closed and not self.uneven and not endless:
            self.runs.append(f"closed: {proof.states} states between iterations")
            self._run((problem, False) for problem in self._whole())  # of which none may be like a given one
            return EVERY if self._safe else "no trip count"
        why = proof.why or self.uneven or endless
        self.runs.append(f"not shown for every trip count: {why}")
        self._run(problems(self.sizes, self.varying, solutions(proof.facts, self.sizes)))
        if not self._safe:
            return "no trip count"
        tiles, steps = self.size
        found = f"up to {tiles} output tiles a CTA" + (f" of up to {steps} steps each" if self.varying.inner else "")
        return f"{found}; not shown: {why}" + (f"; {self.failed}" if self.failed else "")

    def _whole(self) -> Iterator[Problem]:
        """Some tiles, from beginning to end; where any number of clusters share tiles, also the second of two for one tile."""
        steps = self.sizes.slots + 1 if self.varying.inner else 1
        yield Problem(self.sizes.shapes(2 * self.sizes.group, steps), tables=self.varying.ones)
        one = self.sizes.shapes(1, steps)
        if self.schedule.spans(one) is None:
            yield Problem(one, 1, 2, self.varying.ones)

    def _run(self, given: Iterable[tuple[Problem, bool]]) -> None:
        """Runs problems from beginning to end, until one goes wrong. With each: whether every schedule takes it; then a body
        that fails is an error."""
        for problem, every in given:
            try:
                most = MAX_EVENTS if every else LARGE
                found, events, problem = run_problem(self.program, self.bodies.layout, problem, most)
            except TooLarge as error:
                if not every:
                    continue
                found, events = [_too_large(error)], 0
            except Exception as error:
                if every:
                    raise
                said = error if isinstance(error, PipelineError) else f"{error}. At {line_of(error)}."
                said = f"a body fails with {problem.text}: {said}"
                self.failed = self.failed or said  # maybe no problem is like this
                self.runs.append(said)
                continue
            self.found += found
            self.events += events
            self.in_problems += events
            self.size = max(self.size, problem.size)
            self.runs.append(("looked at " if self._safe else "wrong: ") + problem.text)
            if not self._safe:
                self.wrong = problem
            if not self._safe or self.in_problems > MAX_EVENTS:
                return


def _too_large(error: TooLarge) -> Finding:
    text = f"stopped after recording {MAX_EVENTS} operations (max_steps), at {error.where}"
    fix = "let each loop of a body end, or check a smaller problem"
    return Finding(Kind.LIMIT, text, fix, where=lines([error.where]))
