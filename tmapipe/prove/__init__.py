"""The check of a schedule for every trip count and shape: a proof, else a search for a problem that goes wrong.

The proof is in the other files of the package. Here are the problems that are searched, the report, and the verdicts that all
processes share.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from tmapipe.base import collector_at_rest, disk
from tmapipe.base.arithmetic import DType
from tmapipe.check import Finding, Report
from tmapipe.check.deadlocks import ordered, refused
from tmapipe.check.linear import LinearCheck, OutOfTime, doing, given, patience
from tmapipe.check.ring_uses import budget_findings, placed
from tmapipe.errors import InputError, PipelineError, UnsafeError
from tmapipe.model.layout import Layout, line_of
from tmapipe.program import ONE_AT_A_TIME, Traced, trace
from tmapipe.prove.bodies import Bodies, look_at_loops
from tmapipe.prove.joint import prove
from tmapipe.prove.outputs import Outputs, look_at_outputs, uneven_starts
from tmapipe.prove.outside import outside
from tmapipe.prove.problem import OF_CLUSTER, Problem, Sizes, TooLarge, run_problem, solutions
from tmapipe.prove.symbols import Sym, made, parts

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule


# ---- search ----------------------------------------------------------------------------------------------------------
#
# Concrete problems that may show an error: first problems in which the conditions hold that were decided where the proof
# stopped. Then small problems, in which each number that bodies compare takes the values at which a comparison turns: where a
# body asks `tile.m > 2`, three and four tiles along m. The search finds errors; that there are none, only the proof shows.


MOST_PROBLEMS = 160  # problems in which numbers that bodies decide on differ
FIRST = 12  # growing sizes that are looked at before these problems
FEW, ENTRIES = 8, 64  # entries of a table, in the first problems and in later ones
FARTHEST = 1000  # tiles along a dimension


class Varying:
    """The numbers on which bodies decide.

    dims: dimensions of which an extent or a coordinate decides; tables: tables of which an entry does; by_cluster: whether the
    number of the cluster, or of all clusters, does; far: the largest number of tiles with which a coordinate is compared;
    turning: by dimension, the extents at which a condition turns.
    """

    def __init__(self, sizes: Sizes, asked: Iterable[Any]):
        self.dims: set[str] = set()
        self.tables: set[str] = set()
        self.by_cluster, self.far = False, 0
        self.turning: dict[str, set[int]] = {}
        self._seen: set[Sym] = set()
        for each in asked:
            self._look(each)
        if self.dims & set(OF_CLUSTER):
            self.dims |= set(sizes.others)
        self.inner = tuple(dim for dim in sizes.others if dim in self.dims)
        self.anything = bool(self.tables) or self.by_cluster or bool(self.dims)

    @property
    def ones(self) -> dict[str, list[int]]:
        """The tables, with an entry of 1 each."""
        return {name: [1] for name in sorted(self.tables)}

    def _look(self, x: Any) -> None:
        if isinstance(x, tuple):
            for each in x:
                self._look(each)
        if not isinstance(x, Sym) or x in self._seen:
            return
        self._seen.add(x)
        if x.op == "leaf":
            kind = x.args[0]
            if kind in ("tile", "extent"):
                self.dims.add(x.args[1])
            elif kind == "entry":
                self.tables.add(x.args[1])
            elif kind == "of the launch":
                self.by_cluster = True
        elif x.op in ("ge", "eq"):
            constant, factors = parts(x.args[0])
            extents = [term for term in factors if term.op == "leaf" and term.args[0] == "extent"]
            if extents == [*factors]:
                for term in extents[:1]:
                    self.turning.setdefault(term.args[1], set()).add(abs(constant) // abs(factors[term]))
            if not extents:
                far = abs(constant) // min(map(abs, factors.values())) + 1
                self.far = max(self.far, far if far <= FARTHEST else 0)
        self._look(x.args)


def problems(sizes: Sizes, varying: Varying, solved: Iterable[Problem] = ()) -> Iterator[tuple[Problem, bool]]:
    """Problems to look at, each with whether every schedule takes it. solved: problems that fulfil what the proof decided."""
    for steps in (1, 2) if varying.inner else (1,):
        yield Problem(sizes.shapes(1, steps), tables=varying.ones), True
    yield from ((attrs.evolve(each, tables={**varying.ones, **each.tables}), False) for each in solved)
    yield from ((each, False) for each in itertools.islice(_near(sizes, varying, FEW), FIRST // 4))
    grown = _sizes(sizes, varying)
    for tiles, steps in grown[:FIRST]:
        yield Problem(sizes.shapes(tiles, steps), tables=varying.ones, size=(tiles, steps)), True
    if len(sizes.dims) > 2 and varying.inner and sizes.group == 1:
        # several tiles along dimensions before the tile's, such as the parts of a split k: of different steps, or none
        yield from ((Problem(sizes.shapes(1, steps, 3), tables=varying.ones), True) for steps in (1, 2, 5))
    yield from ((each, False) for each in _near(sizes, varying, ENTRIES))
    for tiles, steps in grown[FIRST:]:
        yield Problem(sizes.shapes(tiles, steps), tables=varying.ones, size=(tiles, steps)), True


def _sizes(sizes: Sizes, varying: Varying) -> list[tuple[int, int]]:
    """Output tiles of a CTA and steps of each tile, of problems of growing size."""
    group, slots = sizes.group, sizes.slots
    most, long = 2 * slots + 2, (slots + 2) * group
    if not varying.inner:
        return [(tiles, 1) for tiles in range(1, most * group + 1)]
    steps = sorted({1, max(1, slots - 1), slots, slots + 1, most})
    some = itertools.product(range(2, 2 * group + 2), steps)
    return [*((1, count) for count in range(1, most + 1)), *some, (long, 1), (long, most)]


def _near(sizes: Sizes, varying: Varying, entries: int) -> Iterator[Problem]:
    """Problems that differ in the numbers on which bodies decide, small ones first. entries: of each table."""
    if not varying.anything:
        return
    choices = {dim: _extents(sizes, dim, varying) for dim in (*sizes.dims, *sizes.others)}
    tables = list(_tables(sizes, varying.tables))
    clusters = [(c, of) for of in ((1, 2, 3) if varying.by_cluster else (1,)) for c in range(of)]
    names = list(choices)
    if sum(len(each) > 1 for each in choices.values()) > 2:
        choices = {name: each[:6] for name, each in choices.items()}
    every = itertools.product(*(range(len(choices[name])) for name in names), range(len(tables)), range(len(clusters)))
    for at in sorted(every, key=lambda at: (sum(at), at))[:MOST_PROBLEMS]:
        extents = {name: choices[name][i] for name, i in zip(names, at, strict=False)}
        cluster, of = clusters[at[-1]]
        extents[sizes.along] *= of
        for table in tables[at[-2]]:
            extents.setdefault(sizes.plan.dims[table][0], entries)
        yield Problem(sizes.plan.shapes(extents), cluster, of, tables[at[-2]])


def _extents(sizes: Sizes, dim: str, varying: Varying) -> list[int]:
    """Extents to try along a dimension: of whole tiles, and of tiles of which the last is not whole."""
    tiles = sizes.tiles(dim)
    unit = max(tiles, default=1) * sizes.plan.cluster.get(dim, 1)
    usual = 2 * sizes.group if dim == sizes.along else 1
    if dim not in varying.dims:
        return [usual * unit]
    far, turning = varying.far, sorted(each for each in varying.turning.get(dim, ()) if each <= FARTHEST * unit)
    whole = [*range(1, 5), sizes.slots + 1, sizes.slots + 2, 2 * sizes.slots + 2, far - 1, far, far + 2, 2 * far]
    ragged = [unit + 1, unit // 2, 2 * unit - 1, 2 * unit + 1, *tiles]
    both = [usual * unit, *itertools.chain.from_iterable(itertools.zip_longest([n * unit for n in whole], ragged))]
    near = [each + more for each in turning for more in (0, 1, -1)]
    return list(dict.fromkeys(extent for extent in [*both[:1], *near, *both] if extent and extent > 0))


def _tables(sizes: Sizes, names: set[str]) -> Iterator[dict[str, Any]]:
    """Entries to try: all the same, in turn 0, 1, 2, and even numbers, such as where parts of two begin."""
    if not names:
        yield {}
        return
    for value in (1, 0, 2, 3, sizes.slots + 1):
        yield {name: [value] * ENTRIES for name in names}
    for iteration in range(3):
        yield {name: [(i + j + iteration) % 3 for i in range(ENTRIES)] for j, name in enumerate(sorted(names))}
    yield {name: [2 * i for i in range(ENTRIES)] for name in names}


# ---- check -----------------------------------------------------------------------------------------------------------
#
# 1. The program is traced, and shown to be safe from every state that can recur (`joint`).
# 2. One or two problems are run from beginning to end, with source lines, for findings that are only notes.
#
# If 1 does not succeed, concrete problems are run until one goes wrong. If none does, the report says "up to n tiles".


EVERY = "every trip count"
MAX_EVENTS = 500_000  # transitions of all problems that are run for errors
LARGE = 100_000  # operations beyond which a problem that not every schedule takes is passed over
#: Errors that the numbers of a problem can lead to. Others come from outside, such as from a handler of a signal, and pass.
ERRORS = (PipelineError, ArithmeticError, LookupError, TypeError, ValueError)


def check_schedule(
    schedule: Schedule,
    dtypes: Mapping[str, DType | str] | None = None,
    arch: str | None = None,
    program: Traced | None = None,
    seconds: float | None = None,
) -> Report:
    """The verdict on *schedule* for every trip count, every interleaving and every CTA of a cluster.

    Args:
        schedule: What is checked.
        dtypes: As of `Schedule.plan`.
        arch: Likewise.
        program: Of the schedule, if it has been traced.
        seconds: How long the check may take; by default what TMAPIPE_CHECK_SECONDS says, or as long as it needs.
    """
    started = time.perf_counter()
    limit = given(seconds)
    plan = schedule.plan(dtypes, arch=arch)
    with ONE_AT_A_TIME, collector_at_rest():
        try:
            program = program or trace(schedule, plan)
            with patience(plan.name, limit):
                report = _Check(program).report()
        except PipelineError as error:
            report = Report(plan.name, tuple(refused(error, LinearCheck(Layout(plan), {}))), "no trip count")
        except OutOfTime as error:
            report = Report(plan.name, (), f"up to 0 output tiles a CTA; not shown: {error}", unfinished=True)
        finally:
            made.clear()
    found = placed(schedule, plan, ordered([*budget_findings(plan), *report.findings]))
    return attrs.evolve(report, findings=found, seconds=time.perf_counter() - started)


def require_safe(
    schedule: Schedule, dtypes: Mapping[str, DType | str] | None = None, program: Traced | None = None
) -> Report | None:
    """The gate before the compiler: the report on a schedule, or None if it is not to be checked (`Schedule.checked` is False,
    or TMAPIPE_CHECK=0 in the environment).

    It remembers nothing: two schedules that look alike may differ in a helper function, a closure or an attribute that their
    bodies read. Arguments as of `check_schedule`.

    Raises:
        UnsafeError: It can hang, race or corrupt. The message is the report.
    """
    if not schedule.checked or os.environ.get("TMAPIPE_CHECK", "1") == "0":
        return None
    report = check_schedule(schedule, dtypes, program=program)
    if not report.ok:
        raise UnsafeError(str(report))
    return report


class _Check:
    """The check of one schedule.

    found: findings of all runs; wrong: the problem that has them; events: transitions executed; runs: in words, what was shown
    and how; outside: in words, loads that are not shown to start inside; failed: in words, a problem in which a body fails, or
    that is too large; size: (tiles, steps) of the largest problem; unfinished: whether the time was over before all was looked
    at.
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
        self.outside: list[str] = []
        self.failed = ""
        self.size = 0, 0
        self.unfinished = False

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
        outputs = self._outputs() if self._safe else Outputs()
        return Report(
            self.plan.name,
            (*self.found, *outputs.findings),
            trips,
            self.events,
            runs=tuple(self.runs),
            problem=self.wrong,
            outputs=(*outputs.open, *self.outside),
            partly=outputs.partly,
            unfinished=self.unfinished,
        )

    def _outputs(self) -> Outputs:
        try:
            with doing(lambda: "looking at outputs"):
                return look_at_outputs(self.bodies)
        except OutOfTime as error:
            self.unfinished = True
            return Outputs(open=(f"outputs are not looked at: {error}",))

    @property
    def _safe(self) -> bool:
        return all(finding.kind.note for finding in self.found)

    def _trips(self, endless: str) -> str:
        """For which trip counts the verdict holds. endless: a loop that is not known to end, in words, or empty."""
        proof = prove(self.program)
        self.events += proof.events
        self.unfinished = proof.unfinished
        if proof.closed and not self.uneven and not endless:
            self.runs.append(f"closed: {proof.states} states between iterations")
            # of which none may be like a given one
            self._run((problem, False) for problem in itertools.chain(self._whole(), self._outside()))
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
        """A problem of some tiles; where any number of clusters share tiles, also the second of two clusters for one tile."""
        steps = self.sizes.slots + 1 if self.varying.inner else 1
        yield Problem(self.sizes.shapes(2 * self.sizes.group, steps), tables=self.varying.ones)
        one = self.sizes.shapes(1, steps)
        if self.schedule.spans(one) is None:
            yield Problem(one, 1, 2, self.varying.ones)

    def _outside(self) -> Iterator[Problem]:
        """A problem for each load that is not shown to start inside of its tensor, in which it may start outside."""
        for said, facts in outside(self.bodies):
            self.outside.append(said)
            yield from itertools.islice(solutions(facts, self.sizes, tries=1), 1)

    def _run(self, given: Iterable[tuple[Problem, bool]]) -> None:
        """Runs problems until one goes wrong. given: each problem, and whether every schedule takes it: then a body that fails
        is an error of the schedule."""
        for problem, every in given:
            try:
                most = MAX_EVENTS if every else LARGE
                with doing(functools.partial("looking for errors in {}".format, problem.text)):
                    found, events, problem = run_problem(self.program, self.bodies.layout, problem, most)
            except TooLarge as error:
                if not every:
                    continue
                said = f"with {problem.text} more than {most} operations come, the last at {error.where}"
                self.failed = self.failed or said
                self.runs.append(said)
                return  # later ones are no smaller
            except OutOfTime as error:
                self.unfinished = True
                self.runs.append(str(error))
                return
            except ERRORS as error:
                if every:
                    raise
                at = "" if isinstance(error, PipelineError) else f". At {line_of(error)}."
                said = f"a body fails with {problem.text}: {error}{at}"
                self.failed = self.failed or said  # maybe a call has no such problem
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


# ---- verdicts --------------------------------------------------------------------------------------------------------
#
# A kernel is proved once, for all processes and however many schedules it belongs to.


#: By identity of a kernel that was found safe in this process, the outputs of which some shapes store a part.
known: dict[str | None, tuple[str, ...]] = {}


def require_safe_once(
    schedule: Schedule, dtypes: Mapping[str, DType], program: Traced | None, identity: str | None
) -> tuple[str, ...]:
    """Does what `require_safe` does, unless this version of the library has found a kernel of this identity safe.

    Returns the names of outputs of which some shapes store a part.

    Args:
        program: The schedule's, if it could be traced.
        identity: As of `tmapipe.program.identity`; None: it is proved each time.

    Raises:
        UnsafeError: It can hang, race or corrupt. The message is the report.
    """
    if not schedule.checked or os.environ.get("TMAPIPE_CHECK", "1") == "0":
        return ()
    if identity in known:
        return known[identity]
    name = hashlib.sha256(f"{identity} {disk.library()}".encode()).hexdigest()
    found = None if identity is None else _kept(name)
    if found is None:
        report = require_safe(schedule, dtypes, program)
        found = () if report is None else report.partly
        if identity is None or report is None or report.unfinished:
            return found  # nothing to keep: more time may show an error
        disk.keep("verdicts", name, {"safe": True, "partly": found})
    known[identity] = found
    return found


def _kept(name: str) -> tuple[str, ...] | None:
    facts, _ = disk.recall("verdicts", name) or ({}, b"")
    partly = facts.get("partly")
    sound = facts.get("safe") is True and isinstance(partly, list) and all(isinstance(each, str) for each in partly)
    return tuple(partly) if sound and partly is not None else None
