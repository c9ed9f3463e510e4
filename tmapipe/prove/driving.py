"""Operations of all warps, executed until each warp comes to something else: the machine's transitions, watched by the check.

The order is that of the machine's scheduler (policy "fair"). Operations come again and again here, so what is looked up by
their type is looked up once for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tmapipe.check.log import Step
from tmapipe.isa.effects import ArriveAt, declared
from tmapipe.isa.ops import Flight
from tmapipe.machine.state import APPLY, WAITS
from tmapipe.prove.positions import CLUSTER
from tmapipe.prove.recurrence import RunState
from tmapipe.prove.walker import Walker

MOST_OPERATIONS = 1_000_000  # between two boundaries


class TooMany(Exception):
    """More operations than are looked at before warps come to a loop of open count, or to their end."""


class Doing:
    """An operation of one warp. wait: of the machine, if it can block; apply: its transition; rules: of the check; moves: its
    places, as (sort, stage, stages)."""

    __slots__ = ("apply", "moves", "op", "rules", "wait")

    def __init__(self, agent: int, op: Any, state: RunState):
        kind = type(op)
        self.op, self.wait, self.apply, self.rules = op, WAITS.get(kind), APPLY[kind], state.check.rules[kind]
        positions = state.positions
        self.moves = [((agent, sort, array), stage, around) for sort, array, stage, around in positions.places(op)]
        meets = None if self.moves else declared(kind).effect(ArriveAt)
        if meets is not None:
            positions.arrivals.add((agent, getattr(op, meets.barrier) if meets.barrier else CLUSTER))
        for key, stage, _ in self.moves:
            positions.touched.setdefault(key, set()).add(stage)


class Driver:
    """Executes the operations of warps in one proof. known: by warp and `id`, what is known of operations, which it keeps."""

    def __init__(self, agents: int):
        self.known: list[dict[int, Doing]] = [{} for _ in range(agents)]

    def run(self, walkers: list[Walker], state: RunState, decide: Callable[[Any], Any], skip: Any) -> list[Any]:
        """Goes on until nobody can. Returns, by warp, what it has come to, as of `Walker.go_on`; None if it is blocked.

        Args:
            walkers: The warps.
            state: Of the machine, the check and the positions, which goes on.
            decide: Says how a condition has been decided.
            skip: Called with a walker and positions when it may have moved on in a ring without operations.
        """
        self.walkers, self.state, self.decide, self.skip = walkers, state, decide, skip
        self.stops: list[Any] = [None] * len(walkers)
        self.blocked: dict[Any, list[int]] = {}
        self.ready, self.flights = list(range(len(walkers))), list[Flight]()
        self.limit = state.check.log.order + MOST_OPERATIONS
        state.positions.moved()
        while self.ready or self.flights:
            now, self.ready = self.ready, []
            for agent in now:
                self._advance(agent)
                if self.flights:
                    self._move_all()
            if self.flights and not self.ready:
                self._move_all()
        return self.stops

    def _advance(self, agent: int) -> None:
        """Executes operations of a warp until it blocks, or comes to something else."""
        walker, run = self.walkers[agent], self.state
        state, check, known = run.state, run.check, self.known[agent]
        queue, log, clocks, positions = walker.queue, check.log, check.clocks, run.positions
        woken, started, at, skipped = state.woken, state.started, positions.at, positions.skipped
        time, clock = clocks.time, clocks.of[agent]
        while True:
            if not queue:
                stop = walker.go_on(self.decide)
                if walker.skips:
                    self.skip(walker, positions)
                if stop is not None:
                    self.stops[agent] = stop
                    return
            op = queue[0]
            doing = known.get(id(op))
            if doing is None:
                doing = known[id(op)] = Doing(agent, op, run)
            wait = doing.wait
            if wait is not None and not wait.enabled(state, agent, op):
                self.blocked.setdefault(wait.key(state, agent, op), []).append(agent)
                return
            facts = doing.apply(state, agent, op)
            queue.popleft()
            log.order += 1
            time[agent] = clock[agent] = now = time[agent] + 1
            if doing.rules:
                step = Step(log.order, agent, op, None, "", now)
                for rule, effect in doing.rules:
                    rule(check, effect, step, facts)
            for key, stage, around in doing.moves:
                at[key] = (stage - skipped.get(key[::2], 0)) % around if skipped else stage
            if woken or started:
                self._go_on()
            if log.order > self.limit:
                raise TooMany

    def _move_all(self) -> None:
        """One step of every engine that can take one now."""
        flights, self.flights = self.flights, []
        state, watch = self.state.state, self.state.check.watch
        for flight in flights:
            step = state.step_of(flight)
            watch(flight, step, APPLY[type(step)](state, flight, step))
            self._go_on()

    def _go_on(self) -> None:
        """Takes up the warps whose operations may have become enabled, and flights with a step to take."""
        state = self.state.state
        for key in state.woken:
            agents = self.blocked.pop(key, None)
            if agents:
                self.ready += agents
        state.woken.clear()
        self.flights += state.started
        state.started.clear()
