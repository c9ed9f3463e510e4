"""Recurrence: whether all that goes well from one moment of a run goes well from another, up to the place in the rings.

Compared are the machine's abstract state, and what the checker knows: for everything that a later operation can be checked
against (the last accesses to each slot, what has counted in each mbarrier's present and last phases, waits, arrivals at
peers), who knows it. Stages are renamed by how far all warps have moved on in each array; phases count by their parity.

Every rule asks that something be known. So a moment is *covered* by another one if there is nothing to be known that was not
there, and whoever knew it there, directly or through a barrier that it will come by, knows it here.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from tmapipe.check.future import Future
from tmapipe.check.linear import LinearCheck
from tmapipe.check.places import CLUSTER, Places
from tmapipe.check.slots import LOAD, MMA, STORE
from tmapipe.check.words import Renaming
from tmapipe.machine.state import State

__all__ = ["Moment"]

NEVER = np.iinfo(np.int32).max
Key = tuple[Any, ...]


class Moment:
    """A moment of a run that does not go on: state, check; places: where the warps have come to; future: what may come."""

    def __init__(self, state: State, check: LinearCheck, places: Places, future: Future):
        self.state, self.check, self.places, self.future = state, check, places, future
        self.layout = check.layout

    @property
    def settled(self) -> bool:
        """Whether nothing is in flight, uncommitted or armed without an arrival."""
        state = self.state
        return not (state.loads or state.stores or state.open_group or any(p.loose for p in self.check.phases.now))

    def covered_by(self, other: Moment) -> bool:
        """Whether all that goes well from *other* goes well from here."""
        if self.plain != other.plain or not self._less_pending(other):
            return False
        shifts = self.places.shifts_from(other.places, self.future.live)
        if shifts is None:
            return False
        rename, back = (Renaming(self.layout, {array: n * by for array, by in shifts.items()}) for n in (1, -1))
        queues = [
            [(m, rename.slots[a], rename.slots[b], who) for m, a, b, who in queue] for queue in other.state.queues
        ]
        if [list(queue) for queue in self.state.queues] != queues:
            return False
        for bar in range(len(other.state.count)):
            place, flips = rename.bars[bar]
            (mine, landed), (theirs, their_landed) = self._barrier(place), other._barrier(bar)
            if mine[:-1] != theirs[:-1] or mine[-1] != theirs[-1] ^ flips:
                return False
            matters = True, True, place in self.past
            if any(a and b and not c for a, b, c in zip(matters, landed, their_landed, strict=True)):
                return False
        return self._knows_as_much(other, rename, back)

    # ---- the machine's state --------------------------------------------------------------------------------------

    @cached_property
    def plain(self) -> tuple[Any, ...]:
        """What must be the same and has nothing to do with places in rings."""
        state, layout = self.state, self.layout
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
        lists: tuple[Any, ...] = (state.bar_threads, state.bar_arrived, state.live, state.returned)
        registers = tuple(state.free_registers), tuple(state.registers)
        return (*[tuple(each) for each in lists], registers, state.cluster[0], tuple(warps))

    def _less_pending(self, other: Moment) -> bool:
        """Accumulators written without a wgmma fence, and bulk groups not waited for: some of those there are, the latest."""
        if any(own and not their for own, their in zip(self.state.unfenced, other.state.unfenced, strict=True)):
            return False
        for thread, groups in self.state.groups.items():
            own, theirs = (
                [(len(flights), known) for flights, known in each]
                for each in (groups, other.state.groups.get(thread, ()))
            )
            if own != theirs[len(theirs) - len(own) :] or len(own) > len(theirs):
                return False
        return True

    def _barrier(self, bar: int) -> tuple[tuple[int, ...], tuple[bool, bool, bool]]:
        """An mbarrier's numbers, its parity last; whether bytes landed in its present, last and last but one phase."""
        state, phases = self.state, self.check.phases
        now, done, before = phases.now[bar], phases.done[bar], phases.before[bar]
        landed = now.landed, done is not None and done.landed, before is not None and before.landed
        return (state.count[bar], state.pending[bar], state.tx[bar], state.phase[bar] & 1), landed

    # ---- what is known --------------------------------------------------------------------------------------------

    def _knows_as_much(self, other: Moment, rename: Renaming, back: Renaming) -> bool:
        columns = self.open_facts
        their_columns = [other.fact_index.get(_renamed(back, self.facts[i])) for i in columns]
        if None in their_columns:
            return False
        keys = [_renamed(rename, other.knowers[i]) for i in other.open_knowers]
        rows = [self.knower_index.get(key, -1) for key in keys]
        needed = other.knows[np.ix_(other.open_knowers, their_columns)]  # type: ignore[arg-type]
        known = self.knows[np.ix_(rows, columns)]
        known[np.array(rows, np.int64) < 0] = False
        for i in np.flatnonzero((known < needed).any(1)):
            if keys[i][0] != "complete":
                return False
            # those who wait for it and know it already do not learn it there
            waiters = self.future.waiters.get(keys[i][1], [])
            if not (known[i] | self.knows[np.ix_(waiters, columns)].all(0) | ~needed[i]).all():
                return False
        return True

    @cached_property
    def _fact_table(self) -> dict[Key, tuple[int, int]]:
        return _facts(self.state, self.check)

    @cached_property
    def facts(self) -> list[Key]:
        return list(self._fact_table)

    @cached_property
    def fact_index(self) -> dict[Key, int]:
        return {fact: i for i, fact in enumerate(self.facts)}

    @cached_property
    def knower_index(self) -> dict[Key, int]:
        return {key: i for i, key in enumerate(self.knowers)}

    @cached_property
    def _knower_table(self) -> dict[Key, Any]:
        return _knowers(self.state, self.check)

    @cached_property
    def knowers(self) -> list[Key]:
        return list(self._knower_table)

    @cached_property
    def knows(self) -> Any:
        """Which knower knows which fact."""
        entries = np.array([entry for entry, _ in self._fact_table.values()], np.int64)
        least = np.array([least for _, least in self._fact_table.values()], np.int64)
        return np.stack(list(self._knower_table.values()))[:, entries] >= least

    @cached_property
    def past(self) -> set[int]:
        """mbarriers whose last but one phase still matters: someone who waits for it does not know that it is complete."""
        waiters, where = self.future.waiters, self.fact_index
        return {
            bar
            for bar, phase in enumerate(self.state.phase)
            if phase > 1 and not self.knows[waiters.get(bar, []), where["bar", bar, "last but one"]].all()
        }

    @cached_property
    def open_knowers(self) -> list[int]:
        """Those from which someone can still learn: not complete phases of which all who wait for them know all."""
        return [i for i, key in enumerate(self.knowers) if key[0] != "complete" or self._teaches(i, key[1])]

    def _teaches(self, row: int, bar: int) -> bool:
        known = self.knows[self.future.waiters.get(bar, [])].all(0)
        return bool((self.knows[row] & ~known).any())

    @cached_property
    def open_facts(self) -> list[int]:
        """Facts that someone who could be checked against them does not know. A fact that all warps know is known to all who
        come after."""
        known = self.knows[: self.layout.agents].all(0)
        return [i for i, fact in enumerate(self.facts) if not known[i] and self._matters(fact, i)]

    def _matters(self, fact: Key, column: int) -> bool:
        if fact[0] == "bar":
            return fact[2] not in ("before", "last but one") or fact[1] in self.past
        if fact[0] == "slot":
            return not self.knows[self.future.users.get(fact[1], []), column].all()
        if fact[0] == "barrier":
            return not self.knows[self.future.arrivers.get(fact[1], []), column].all()
        return True


# ---- its tables ---------------------------------------------------------------------------------------------------------


def _facts(state: State, check: LinearCheck) -> dict[Key, tuple[int, int]]:
    """Key -> (entry of a clock, least value with which the fact is known)."""
    clocks = check.clocks
    facts: dict[Key, tuple[int, int]] = {}
    for place, history in enumerate(check.slots.history):
        for access in history.values():
            key: Key = ("slot", place, access.kind, access.part)
            if access.kind == LOAD:
                landed = NEVER if access.number is None else access.number + 1
                facts[(*key, access.bar)] = clocks.phases + access.bar, landed
            elif access.kind in (STORE, MMA):
                facts.update(_ends(state, check, key, access))
            else:
                agent, time = access.agent, access.time
                facts[(*key, agent, "executed")] = agent, time
                facts[(*key, agent, "published")] = clocks.published + agent, time
                facts[(*key, agent, "fenced")] = clocks.fenced + agent, time
    for bar, now in enumerate(check.phases.now):
        done, before = check.phases.done[bar], check.phases.before[bar]
        for name, phase in (("now", now), ("done", done), ("before", before)):
            for agent, time in (phase.by if phase is not None else {}).items():
                facts["bar", bar, name, agent] = agent, time
        for agent, (time, _) in check.phases.waits[bar].items():
            facts["bar", bar, "wait", agent] = agent, time
        facts["bar", bar, "last"] = clocks.phases + bar, state.phase[bar]
        facts["bar", bar, "last but one"] = clocks.phases + bar, state.phase[bar] - 1
    for which, generation in check.barriers.latest.items():
        for agent, time in generation.by.items():
            facts["barrier", which, generation.complete, agent] = agent, time
    for (cta, agent), (time, _, _) in check.lifetimes.arrivals.items():
        facts["arrival", cta, agent] = agent, time
    for bar, (number, _) in check.lifetimes.landings.items():
        facts["bar", bar, "landing"] = clocks.phases + bar, number + 1
    for time, step in check.lifetimes.inits.values():
        by: int = step.agent  # type: ignore[assignment]
        least = max(time, *check.lifetimes.fences.get(by, (0,)))
        facts["init", by] = by, max(least, facts.get(("init", by), (0, 0))[1])
    return facts


def _ends(state: State, check: LinearCheck, key: Key, access: Any) -> dict[Key, tuple[int, int]]:
    """The waits that end an asynchronous read, by warp; where there is none yet, which of its groups or wgmmas it is, counted
    from the latest."""
    if access.kind == STORE:
        agents, waits = [access.agent], check.slots.bulk_waits
        latest = state.committed[32 * access.agent + access.step.op.lanes.bit_length() - 1]
    else:
        first = access.agent - access.agent % check.layout.warps % 4
        agents, waits = list(range(first, first + 4)), check.slots.mma_waits
        latest = state.issued[access.agent]
    found = {}
    for agent in agents:
        time = None if access.number is None else waits[agent].time(access.number)
        if time is None:
            found[(*key, agent, latest - access.number)] = agent, NEVER
        else:
            found[(*key, agent)] = agent, time
    return found


def _knowers(state: State, check: LinearCheck) -> dict[Key, Any]:
    """Everything that has a clock whose knowledge can still spread: key -> clock. The warps come first, by number."""
    found: dict[Key, Any] = {("warp", agent): clock for agent, clock in enumerate(check.clocks.of)}
    for agent in range(check.clocks.agents):  # what an arrival by all of its lanes would tell
        told = check.clocks.zero()
        check.clocks.release(agent, told, all_lanes=True)
        found["all lanes of", agent] = told
    for bar, now in enumerate(check.phases.now):
        if now.by or now.landed:
            found["present", bar] = now.clock
        done = check.phases.done[bar]
        if done is not None:
            found["complete", bar] = done.clock
    arrived = {seen[0] for seen in state.bar_seen if seen is not None}
    arrived |= {CLUSTER} if any(seen >= 0 for seen in state.cluster_seen) else set()
    for which, generation in check.barriers.latest.items():
        if which in arrived or not generation.complete:
            found["barrier", which] = generation.clock
    for cta, clock in enumerate(check.lifetimes.exits):
        if clock.any():
            found["exit", cta] = clock
    for (group, serial), clock in check.slots.mma_issued.items():
        if check.slots.may_be_awaited(group, serial):
            first = group // check.layout.warpgroups * check.layout.warps + group % check.layout.warpgroups * 4
            found["wgmma", group, state.issued[first] - serial] = clock
    return found


def _renamed(rename: Renaming, key: Key) -> Key:
    """A fact's or a knower's key, its barriers and slots renamed."""
    kind = key[0]
    if kind == "slot":
        if key[2] == LOAD:
            return "slot", rename.slots[key[1]], LOAD, key[3], rename.bars[key[4]][0]
        return "slot", rename.slots[key[1]], *key[2:]
    if kind == "bar" or kind == "present" or kind == "complete":
        return kind, rename.bars[key[1]][0], *key[2:]
    return key
