"""The checker's own oracle: every interleaving of a small program, on the machine, without clocks.

Agents are the warps of one cluster with their recorded operations, and the loads in flight. A state is the machine's state and
each warp's place in its program. Reported is every kind of failure that some interleaving reaches:

- what the machine refuses (surplus arrivals, bytes below zero, use before initialization, returning with work in flight, ...);
- no agent can take a step, and not all have returned: deadlock;
- a wait that sees different phases, or an arrival, arming, landing or barrier arrival that counts in different phases, in
  different interleavings: each operation must mean the same in all of them;
- two conflicting accesses to a slot under way at the same time (`explore_accesses` says when one is, `explore_conflicts`
  whether);
- a barrier used from afar before its initialization has been fenced; a remote arrival of too small a scope.

Stores' and wgmmas' own progress is part of those intervals, so the machine ends them at once. setmaxnreg makes warps wait for
each other but orders no memory, so programs with it are searched once with those waits, for deadlocks, and once without.
`reduce` leaves out interleavings that differ only in the order of operations that commute (`explore_reduce`). Reaching the
limit is reported, and is not a pass. `docs/internals/appendix-checker.md` compares the oracle with the linear check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs

from tests.oracle.explore_accesses import FENCES, KNOWN, LOADS, NEVER, Classes
from tests.oracle.explore_conflicts import Conflicts
from tests.oracle.explore_copies import Places, async_bits
from tests.oracle.explore_meanings import Meanings
from tests.oracle.explore_programs import WarpProgram, inits
from tests.oracle.explore_reduce import commutes, landing_commutes
from tests.oracle.plain import record
from tests.oracle.states import snapshot
from tmapipe.errors import HazardError
from tmapipe.isa import ops
from tmapipe.isa.ops import Flight, LoadComplete
from tmapipe.model import Layout, State
from tmapipe.model.layout import Kind
from tmapipe.plan.model import Plan

__all__ = ["Exploration", "explore", "explore_program"]

LIMIT = 100_000
LOAD_COMPLETE = LoadComplete()
Path = Any  # (path before, agent, index of the operation), or None


@attrs.frozen
class Exploration:
    """kinds: failures that some interleaving reaches; states: places where interleavings part, that were looked at; steps:
    transitions executed; complete: whether nothing was left out because of a limit; example: the steps that lead to the first
    failure found, as (agent's name, operation)."""

    kinds: frozenset[Kind]
    states: int
    steps: int
    complete: bool
    example: tuple[tuple[str, str], ...] = ()

    @property
    def ok(self) -> bool | None:
        """Whether no interleaving goes wrong; None if the limit came before the answer."""
        if self.kinds:
            return False
        return True if self.complete else None


def explore(
    plan: Plan | Layout,
    programs: Sequence[Sequence[Any]],
    *,
    limit: int = LIMIT,
    reduce: bool = True,
    first_only: bool = False,
) -> Exploration:
    """All interleavings of *programs* (by agent, as `tests.oracle.plain.record` makes them).

    limit: transitions after which it gives up; reduce: leave out interleavings that cannot differ; first_only: stop at the
    first failure.
    """
    layout = plan if isinstance(plan, Layout) else Layout(plan)
    return _Explorer(layout, programs, limit, reduce, first_only).run()


def explore_program(
    plan: Plan,
    entry: Callable[[Any], None],
    shapes: dict[str, tuple[int, ...]],
    cluster: int = 0,
    clusters: int = 1,
    **options: Any,
) -> Exploration:
    """All interleavings of one cluster of a program as `check_program` takes it."""
    layout = Layout(plan)
    try:
        programs = record(plan, entry, shapes, cluster, clusters, layout=layout)
    except HazardError as error:  # a stage that does not exist, say
        return Exploration(frozenset({_kind_of(error)}), 0, 0, True, (("", str(error)),))
    return explore(layout, programs, **options)


class _Stop(Exception):
    pass


class _Explorer:
    def __init__(self, layout: Layout, programs: Sequence[Sequence[Any]], limit: int, reduce: bool, first_only: bool):
        new = {type(op).__name__ for program in programs for op in program if type(op) not in KNOWN}
        if new:
            raise TypeError(
                f"the oracle does not know {', '.join(sorted(new))}: explore_accesses.KNOWN lists what it does"
            )
        self.layout, self.limit, self.reduce, self.first_only = layout, limit, reduce, first_only
        self.classes = Classes(layout, programs)
        self.programs = [WarpProgram(layout, self.classes, a, p) for a, p in enumerate(programs)]
        self.ops = programs
        self.registers_block = True
        self.kinds: set[Kind] = set()
        self.meanings = Meanings(layout)
        self.steps = 0
        self.states = 0
        self.example: tuple[tuple[str, str], ...] = ()
        self.inits = inits(layout, programs)
        self.conflicts = Conflicts(layout, self.classes, self.programs)

    def run(self) -> Exploration:
        complete = True
        try:
            self._search()
            if any(isinstance(op, ops.SetMaxNreg) for program in self.ops for op in program):
                self.registers_block = False
                self._search()
        except _Stop:
            complete = self.first_only and bool(self.kinds)
        return Exploration(frozenset(self.kinds), self.states, self.steps, complete, self.example)

    # ---- search ---------------------------------------------------------------------------------------------------

    def _search(self) -> None:
        state, at = State(self.layout), Places([0] * self.layout.agents)
        for agent in range(self.layout.agents):
            if not self._run_local(state, at, agent, None):
                return
        for agent in range(self.layout.agents):
            self._check_accesses(state, at, agent, None)
        stack: list[tuple[State, Places, Path, Any]] = [(state, at, None, None)]
        seen: set[Any] = set()
        while stack:
            state, at, path, first = stack.pop()
            if first is not None:
                state, at = state.copy(), at.copy()
                path = self._step(state, at, first, path)
                if path is None:
                    continue
            while True:
                enabled = self._enabled(state, at)
                if not enabled:
                    self._check_end(state, at, path)
                    break
                chosen = enabled[0] if len(enabled) == 1 else self._alone(state, at, enabled)
                if chosen is None:
                    key = (snapshot(state), at.key())
                    if key not in seen:
                        seen.add(key)
                        self.states += 1
                        stack += [(state, at, path, one) for one in enabled]
                    break
                path = self._step(state, at, chosen, path)
                if path is None:
                    break

    def _enabled(self, state: State, at: list[int]) -> list[int | Flight]:
        found: list[int | Flight] = []
        for agent, program in enumerate(self.programs):
            position = at[agent]
            if position < program.end:
                op = program.visible[position].op
                if state.enabled(agent, op) or (isinstance(op, ops.SetMaxNreg) and not self.registers_block):
                    found.append(agent)
        return found + list(state.loads)

    def _alone(self, state: State, at: list[int], enabled: list[int | Flight]) -> int | Flight | None:
        """One of *enabled* that commutes with whatever the others can do before it; None if there is none."""
        if not self.reduce:
            return None
        for agent in enabled:
            if isinstance(agent, int):
                visible = self.programs[agent].visible[at[agent]]
                if commutes(state, self.classes, self.programs, at, agent, visible):
                    return agent
            else:
                bit = self.conflicts.flight_bit(state, agent)
                bit |= self.classes.mark("landing") if agent.kind == "cp.async" else 0
                if landing_commutes(state, self.classes, self.programs, at, agent, bit):
                    return agent
        return None

    # ---- steps ----------------------------------------------------------------------------------------------------

    def _step(self, state: State, at: Places, agent: int | Flight, path: Path) -> Path:
        """Executes the agent's next operation and the local ones that follow it. None if the path ends in a failure."""
        self.steps += 1
        if self.steps > self.limit:
            raise _Stop
        if not isinstance(agent, int):
            path = (path, agent, 0)
            record = state.loads[agent]
            facts = self._apply(state, agent, LOAD_COMPLETE, path)
            if facts is _REFUSED:
                return None
            at.landed(agent, record)
            self._fail_all(self.meanings.landed(agent, facts[0].phase), path)
            return path
        visible = self.programs[agent].visible[at[agent]]
        path = (path, agent, visible.index)
        for bar in visible.far:
            self._check_init(state, at, bar, path)
        for bar, _, _ in visible.bars:
            self._check_near(state, agent, bar, path)
        at.tell(agent)
        self._check_fresh(at, agent, visible.op, path)
        facts = self._apply(state, agent, visible.op, path)
        if facts is _REFUSED:
            return None
        self._fail_all(self.meanings.of(agent, visible.index, visible.op, facts), path)
        at[agent] += 1
        if not self._run_local(state, at, agent, path):
            return None
        self._check_accesses(state, at, agent, path)
        if isinstance(visible.op, LOADS):
            for other in range(self.layout.agents):
                if other != agent:
                    self._check_accesses(state, at, other, path)
        return path

    def _run_local(self, state: State, at: Places, agent: int, path: Path) -> bool:
        for index, op in self.programs[agent].local[at[agent]]:
            self._look_at(at, agent, index, path)
            self._check_fresh(at, agent, op, path)
            if isinstance(op, FENCES):
                at.fence(agent)
            if self._apply(state, agent, op, (path, agent, index)) is _REFUSED:
                return False
        position = at[agent]
        if position < self.programs[agent].end:  # a TMA load is looked at here, before its turn
            self._look_at(at, agent, self.programs[agent].visible[position].index, path)
        return True

    def _look_at(self, at: list[int], agent: int, index: int, path: Path) -> None:
        """Whether an operation comes too early after others of its own warp."""
        accesses = self.programs[agent].accesses
        if index in accesses.wrong:
            self._fail(accesses.wrong[index], (path, agent, index))
        if index in accesses.after_mma and self.conflicts.own_mma(at, agent, index):
            self._fail(Kind.RACE, (path, agent, index))

    def _check_fresh(self, at: Places, agent: int, op: Any, path: Path) -> None:
        """Whether the async proxy accesses what threads have copied without a fence between."""
        if at.fresh and at.is_fresh(self.classes, agent, async_bits(self.classes, agent, op)):
            self._fail(Kind.PROXY, path)

    def _apply(self, state: State, agent: int | Flight, op: Any, path: Path) -> Any:
        try:
            facts = state.apply(agent, op)
        except HazardError as error:
            self._fail(_kind_of(error), path)
            return _REFUSED
        if state.started:
            started = list(state.started)
            state.started.clear()
            for flight in started:
                while flight.kind in ("store", "wgmma") and (step := state.step_of(flight)) is not None:
                    state.apply(flight, step)
            state.started.clear()
        state.woken.clear()
        return facts

    # ---- what must not be -----------------------------------------------------------------------------------------

    def _check_accesses(self, state: State, at: list[int], agent: int, path: Path) -> None:
        self._fail_all(self.conflicts.of(state, at, agent), path)

    def _check_init(self, state: State, at: list[int], bar: int, path: Path) -> None:
        if state.count[bar] and bar in self.inits:
            agent, index, _ = self.inits[bar]
            program, position = self.programs[agent], at[agent]
            if index == NEVER or (position < program.end and program.visible[position].index <= index):
                self._fail(Kind.INIT_NOT_VISIBLE, path)

    def _check_near(self, state: State, agent: int, bar: int, path: Path) -> None:
        init = self.inits.get(bar)
        if init and state.count[bar] and agent != init.agent and not init.told:
            self._fail(Kind.INIT_NOT_VISIBLE, path)

    def _check_end(self, state: State, at: list[int], path: Path) -> None:
        blocked = [a for a, program in enumerate(self.programs) if at[a] < program.end]
        if blocked:
            waits = [self.programs[a].visible[at[a]].op for a in blocked]
            registers = any(isinstance(op, ops.SetMaxNreg) for op in waits)
            self._fail(Kind.REGISTERS if registers else Kind.DEADLOCK, path)

    def _fail_all(self, kinds: Iterable[Kind], path: Path) -> None:
        for kind in kinds:
            self._fail(kind, path)

    def _fail(self, kind: Kind, path: Path) -> None:
        self.kinds.add(kind)
        if not self.example:
            self.example = self._told(path)
        if self.first_only:
            raise _Stop

    def _told(self, path: Path) -> tuple[tuple[str, str], ...]:
        steps = []
        while path is not None:
            path, agent, index = path
            op = self.ops[agent][index] if isinstance(agent, int) else LOAD_COMPLETE
            steps.append((self.layout.agent_name(agent), str(op)))
        return tuple(reversed(steps))


_REFUSED = object()


def _kind_of(error: Any) -> Kind:
    kind: Kind = getattr(error, "kind", Kind.RACE)
    return kind
