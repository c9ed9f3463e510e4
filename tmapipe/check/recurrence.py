"""Recurrence: whether two moments of a run have the same future, up to the place in the rings.

Compared are the machine's abstract state and the checker's: for everything that a later operation can be checked against (the
last accesses to each slot, what has counted in each mbarrier's present and last phases, waits, arrivals at peers), who knows
it. Stages are renamed by how far all warps have moved on in each array; phases count by their parity.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tmapipe.check.linear import LinearCheck
from tmapipe.check.slots import LOAD, MMA, STORE
from tmapipe.check.words import Places
from tmapipe.machine.state import State

__all__ = ["Moment"]

NEVER = np.iinfo(np.int32).max


class Moment:
    """A moment at which nothing is in flight. places: where the warps have come to."""

    def __init__(self, state: State, check: LinearCheck, places: Places):
        self.layout, self.places = check.layout, places.copy()
        self.settled = not (state.loads or state.stores or state.open_group)
        self.plain = _plain(state)
        self.bars = {bar: _barrier(state, check, bar) for bar in range(len(state.count))}
        self.queues = [list(queue) for queue in state.queues]
        self.facts = _facts(check)
        self.knowers, clocks = _knowers(check)
        index = np.array([fact[0] for fact in self.facts.values()], np.int64)
        least = np.array([fact[1] for fact in self.facts.values()], np.int64)
        self.knows = clocks[:, index] >= least if len(index) else clocks[:, :0] > 0

    def recurs(self, before: Moment) -> bool:
        """Whether this moment's future is that of *before*."""
        if not (self.settled and before.settled) or self.plain != before.plain:
            return False
        shifts = self.places.shifts_from(before.places)
        if shifts is None:
            return False
        rename = _Renaming(self.layout, shifts)
        for bar, (numbers, parity) in before.bars.items():
            place, flips = rename.bar(bar)
            if self.bars[place] != (numbers, parity ^ flips):
                return False
        queues = [[(m, rename.slot(a), rename.slot(b), who) for m, a, b, who in queue] for queue in before.queues]
        if self.queues != queues:
            return False
        facts = _positions(before.facts, rename, self.facts)
        knowers = _positions(before.knowers, rename, self.knowers)
        if facts is None or knowers is None:
            return False
        return bool((self.knows[np.ix_(knowers, facts)] == before.knows).all())


class _Renaming:
    """Stages of *before*, as they are called now."""

    def __init__(self, layout: Any, shifts: dict[str, int]):
        self.layout, self.shifts = layout, shifts

    def bar(self, bar: int) -> tuple[int, int]:
        """The mbarrier's flat index, and whether its parity flips."""
        cta, own = divmod(bar, self.layout.nbars)
        barrier, stage = self.layout.bars[own]
        place = stage + self.shifts.get(barrier.name, 0)
        base = cta * self.layout.nbars + self.layout.bar_base[barrier.name]
        return base + place % barrier.stages, place // barrier.stages & 1

    def slot(self, slot: int) -> int:
        cta, own = divmod(slot, self.layout.nslots)
        buffer, stage = self.layout.slots[own]
        place = (stage + self.shifts.get("slots of " + buffer.name, 0)) % buffer.stages
        return cta * self.layout.nslots + self.layout.slot_base[buffer.name] + place

    def key(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        """A fact's or a knower's key: its parts tagged "bar" or "slot" are renamed."""
        return tuple([self._part(part) for part in key])

    def _part(self, part: Any) -> Any:
        if isinstance(part, tuple) and len(part) == 2:
            if part[0] == "bar":
                return "bar", self.bar(part[1])[0]
            if part[0] == "slot":
                return "slot", self.slot(part[1])
        return part


def _positions(before: Any, rename: _Renaming, now: Any) -> list[int] | None:
    """For each key of *before*, where its renamed one stands in *now*; None if they are not the same keys."""
    where = {key: i for i, key in enumerate(now)}
    found = [where.get(rename.key(key)) for key in before]
    if len(found) != len(where) or None in found:
        return None
    return found  # type: ignore[return-value]


def _plain(state: State) -> tuple[Any, ...]:
    """What has nothing to do with places in rings."""
    layout = state.layout
    warps = []
    for agent in range(layout.agents):
        group = agent // layout.warps * layout.warpgroups + agent % layout.warps // 4
        seen = state.bar_seen[agent]
        warps.append(
            (
                state.issued[agent] - state.done[group],
                state.issued[agent] - state.awaited[agent],
                tuple([state.issued[agent] - bound for bound in state.bounds[agent]]),
                None if seen is None else (seen[0], state.bar_generation[seen[0]] - seen[1]),
                None if state.cluster_seen[agent] < 0 else state.cluster[1] - state.cluster_seen[agent],
            )
        )
    groups = tuple(sorted((t, tuple([(len(f), known) for f, known in g])) for t, g in state.groups.items()))
    lists = (state.bar_threads, state.bar_arrived, state.live, state.returned, state.unfenced, state.free_registers)
    return (*map(tuple, lists), tuple(state.registers), state.cluster[0], tuple(warps), groups)


def _barrier(state: State, check: LinearCheck, bar: int) -> tuple[tuple[Any, ...], int]:
    """An mbarrier's numbers and what its present phase has had; its parity."""
    now, done, before = (part[bar] for part in (check.phases.now, check.phases.done, check.phases.before))
    landed = tuple([phase is not None and phase.landed for phase in (now, done, before)])
    return (state.count[bar], state.pending[bar], state.tx[bar], landed, len(now.loose)), state.phase[bar] & 1


def _facts(check: LinearCheck) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Key -> (entry of a clock, least value with which the fact is known)."""
    clocks, facts = check.clocks, {}
    for place, history in enumerate(check.slots.history):
        for access in history.values():
            key = (("slot", place), access.kind, access.part)
            if access.kind == LOAD:
                landed = NEVER if access.number is None else access.number + 1
                facts[(*key, ("bar", access.bar))] = clocks.phases + access.bar, landed
            elif access.kind in (STORE, MMA):
                for agent, time in _ends(check, access):
                    facts[(*key, agent)] = agent, time
            else:
                agent, time = access.agent, access.time
                facts[(*key, agent, "executed")] = agent, time
                facts[(*key, agent, "published")] = clocks.published + agent, time
                facts[(*key, agent, "fenced")] = clocks.fenced + agent, time
    for bar, now in enumerate(check.phases.now):
        done, before = check.phases.done[bar], check.phases.before[bar]
        for name, phase in (("now", now), ("done", done), ("before", before)):
            for agent, time in (phase.by if phase is not None else {}).items():
                facts[("bar", bar), name, agent] = agent, time
        for agent, (time, _) in check.phases.waits[bar].items():
            facts[("bar", bar), "wait", agent] = agent, time
        phases = max((step.phase for step in done.steps if step.phase is not None), default=-1) + 1 if done else 0
        facts[("bar", bar), "last"] = clocks.phases + bar, phases
        facts[("bar", bar), "last but one"] = clocks.phases + bar, phases - 1
    for which, generation in check.barriers.latest.items():
        for agent, time in generation.by.items():
            facts["barrier", which, generation.complete, agent] = agent, time
    for (cta, agent), (time, _, _) in check.lifetimes.arrivals.items():
        facts["arrival", cta, agent] = agent, time
    for bar, (phase, _) in check.lifetimes.landings.items():
        facts[("bar", bar), "landing"] = clocks.phases + bar, phase + 1
    for time, step in check.lifetimes.inits.values():
        agent = step.agent  # type: ignore[assignment]
        least = max(time, *check.lifetimes.fences.get(agent, (0,)))
        facts["init", agent] = agent, max(least, facts.get(("init", agent), (0, 0))[1])
    return facts


def _ends(check: LinearCheck, access: Any) -> list[tuple[int, int]]:
    """(warp, time) of the waits that end an asynchronous read; NEVER where there is none yet."""
    if access.kind == STORE:
        agents, waits = [access.agent], check.slots.bulk_waits
    else:
        first = access.agent - access.agent % check.layout.warps % 4
        agents, waits = list(range(first, first + 4)), check.slots.mma_waits
    found = []
    for agent in agents:
        time = None if access.number is None else waits[agent].time(access.number)
        found.append((agent, NEVER if time is None else time))
    return found


def _knowers(check: LinearCheck) -> tuple[list[tuple[Any, ...]], Any]:
    """Everything that has a clock whose knowledge can still spread, and the clocks."""
    found: dict[tuple[Any, ...], Any] = {("warp", agent): clock for agent, clock in enumerate(check.clocks.of)}
    for agent in range(check.clocks.agents):  # what an arrival by all of its lanes would tell
        told = check.clocks.zero()
        check.clocks.release(agent, told, all_lanes=True)
        found["all lanes of", agent] = told
    for bar, now in enumerate(check.phases.now):
        found["present", ("bar", bar)] = now.clock
        done = check.phases.done[bar]
        if done is not None:
            found["complete", ("bar", bar)] = done.clock
    for which, generation in check.barriers.latest.items():
        found["barrier", which] = generation.clock
    for cta, clock in enumerate(check.lifetimes.exits):
        found["exit", cta] = clock
    for (group, serial), clock in check.slots.mma_issued.items():
        first = group // check.layout.warpgroups * check.layout.warps + group % check.layout.warpgroups * 4
        waited = min((w.upto[-1] if w.upto else 0) for w in check.slots.mma_waits[first : first + 4])
        latest = max(s for g, s in check.slots.mma_issued if g == group) if serial >= waited else 0
        if serial >= waited:
            found["mma", group, latest - serial] = clock
    return list(found), np.stack(list(found.values()))
