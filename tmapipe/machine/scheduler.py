"""The scheduler: in which order agents take their steps.

Warps run until they block. Policies:

- "fair": warps in turn, each until it blocks; engines take their steps in order whenever a warp has blocked.
- "random": after a few operations another warp or engine, drawn by the seed, goes on.
- "late": engines move only when no warp can, one step at a time, drawn by the seed: asynchronous work ends as late as it can.

Deterministic for a policy and a seed. A correct kernel gives the same result under all of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from tmapipe.errors import HazardError, PipelineError
from tmapipe.isa.ops import Agent, Flight
from tmapipe.machine.deadlock import deadlock
from tmapipe.machine.hazard import set_location
from tmapipe.machine.state import APPLY, WAITS, State

__all__ = ["POLICIES", "Scheduler", "Watcher"]

POLICIES = ("fair", "random", "late")

Watcher = Callable[[Agent, Any, Any], None]


class Scheduler:
    """Runs the warps' programs on *state* until all have returned and all engines are idle.

    programs: for each agent, an iterator of its operations, the last one `Exit`; watchers: called in order with (agent,
    operation, facts) after each transition; where: source line of a warp's present operation, asked for in errors only.
    `reached[agent]`: number of the transition before which a warp that blocked
    came to its present operation.
    """

    def __init__(
        self,
        state: State,
        programs: list[Iterator[Any]],
        policy: str = "fair",
        seed: int = 0,
        watchers: tuple[Watcher, ...] = (),
        max_steps: int = 50_000_000,
        where: Callable[[int], str | None] | None = None,
    ):
        self.state, self.programs, self.policy, self.watchers = state, programs, policy, watchers
        self.max_steps, self.where = max_steps, where
        self.random = random.Random(seed)
        self.current: list[Any] = [None] * len(programs)  # the operation that a warp will execute next, once fetched
        self.ready = list(range(len(programs)))
        self.blocked: dict[Hashable, list[int]] = {}  # key -> agents
        self.flights: list[Flight] = []  # with a step to take, oldest first
        self.step_count = 0
        self.reached = [-1] * len(programs)
        if seed:
            self.random.shuffle(self.ready)

    def run(self) -> None:
        """Raises `HazardError`, `DeadlockError`, or `PipelineError` when `max_steps` is not enough."""
        try:
            if self.policy == "fair":
                self._run_fair()
            else:
                self._run_drawn(late=self.policy == "late")
        except HazardError as error:
            agent = getattr(error, "agent", None)
            if self.where is not None and isinstance(agent, int):
                set_location(error, self.where(agent))
            raise
        if self.blocked:
            waiting = {agent: self.current[agent] for agents in self.blocked.values() for agent in agents}
            raise deadlock(self.state, waiting, self.where)

    # ---- policies -------------------------------------------------------------------------------------------------

    def _run_fair(self) -> None:
        while self.ready or self.flights:
            now, self.ready = self.ready, []
            for agent in now:
                self._advance(agent, self.max_steps)
                self._move_all()
            if not self.ready:
                self._move_all()

    def _move_all(self) -> None:
        """One step of every engine that can take one now."""
        flights, self.flights = self.flights, []
        for flight in flights:
            self._move(flight)

    def _run_drawn(self, late: bool) -> None:
        draw = self.random.random
        while True:
            warps, flights = len(self.ready), len(self.flights)
            if warps and (late or int(draw() * (warps + flights)) < warps):
                agent = self._take(self.ready, int(draw() * warps))
                if self._advance(agent, 1 + int(draw() * 8)):
                    self.ready.append(agent)
            elif flights:
                self._move(self._take(self.flights, int(draw() * flights)))
            else:
                return

    @staticmethod
    def _take(items: list[Any], i: int) -> Any:
        items[i], items[-1] = items[-1], items[i]
        return items.pop()

    # ---- steps ----------------------------------------------------------------------------------------------------

    def _advance(self, agent: int, budget: int) -> bool:
        """Executes up to *budget* operations of a warp. Returns whether it can go on (neither blocked nor returned)."""
        state, watchers, program = self.state, self.watchers, self.programs[agent]
        woken, started = state.woken, state.started
        op = self.current[agent]
        steps = 0
        try:
            while steps < budget:
                if op is None:
                    op = next(program, None)
                    if op is None:
                        return False
                kind = type(op)
                wait = WAITS.get(kind)
                if wait is not None and not wait.enabled(state, agent, op):
                    self.blocked.setdefault(wait.key(state, agent, op), []).append(agent)
                    self.reached[agent] = self.step_count + steps
                    return False
                facts = APPLY[kind](state, agent, op)
                for watcher in watchers:
                    watcher(agent, op, facts)
                steps += 1
                op = None
                if woken or started:
                    self._go_on()
            return True
        finally:
            self.current[agent] = op
            self._count(steps)

    def _move(self, flight: Flight) -> None:
        """One step of an engine."""
        state = self.state
        step = state.step_of(flight)
        assert step is not None, flight
        facts = APPLY[type(step)](state, flight, step)
        for watcher in self.watchers:
            watcher(flight, step, facts)
        self._count(1)
        self._go_on()

    def _go_on(self) -> None:
        """Takes up the warps whose operations may have become enabled, and flights with a step to take."""
        for key in self.state.woken:
            agents = self.blocked.pop(key, None)
            if agents:
                self.ready += agents
        self.state.woken.clear()
        self.flights += self.state.started
        self.state.started.clear()

    def _count(self, steps: int) -> None:
        self.step_count += steps
        if self.step_count > self.max_steps:
            raise PipelineError(
                f"stopped after {self.max_steps} operations of one cluster, the limit given as max_steps, before all warps "
                f"had returned{self._places()}. Fix: see that every loop of a body ends."
            )

    def _places(self) -> str:
        """Where the roles are."""
        if self.where is None:
            return ""
        found: dict[tuple[str, str], None] = {}
        for agent in range(len(self.programs)):
            line = self.where(agent)
            if line is not None:
                found.setdefault((self.state.layout.role(agent), line))
        return ": " + ", ".join(f"{role} is at {line}" for role, line in found) if found else ""
