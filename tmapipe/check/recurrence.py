"""Recurrence: whether what goes well from one moment of a run goes well from a later one, up to the place in the rings.

Compared are the machine's abstract state, which must be equal, and the checker's: for everything that a later operation can be
checked against (the last accesses to each slot, what has counted in each mbarrier's present and last phases, waits, arrivals
at peers), who knows it. Stages are renamed by how far all warps have moved on in each array; phases count by their parity.
Every rule asks that something be known, so at the later moment more may be known, and not less.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tmapipe.check.linear import LinearCheck
from tmapipe.check.slots import LOAD, MMA, STORE
from tmapipe.check.words import Places, Renaming
from tmapipe.machine.ops import MbarWait, TmaLoad
from tmapipe.machine.state import State

__all__ = ["Moment"]

NEVER = np.iinfo(np.int32).max
Key = tuple[Any, ...]


class Moment:
    """A moment at which nothing is in flight. places: where the warps have come to; moves on with the run after this. Moments
    can be compared once their runs are over."""

    def __init__(self, state: State, check: LinearCheck, places: Places):
        self.layout, self.places, self.end = check.layout, places.copy(), places
        self.settled = not (state.loads or state.stores or state.open_group)
        self.plain = _plain(state)
        self.phase = list(state.phase)
        self.bars = {bar: _barrier(state, check, bar) for bar in range(len(state.count))}
        self.queues = [list(queue) for queue in state.queues]
        self.arrivers = check.barriers.arrivers
        facts, knowers = _facts(state, check), _knowers(check)
        self.facts, self.knowers = list(facts), list(knowers)
        index = np.array([entry for entry, _ in facts.values()], np.int64)
        least = np.array([least for _, least in facts.values()], np.int64)
        self.knows = np.stack(list(knowers.values()))[:, index] >= least
        self.relevant: tuple[set[int], list[int], list[int]] | None = None

    def recurs(self, before: Moment) -> bool:
        """Whether all that goes well from *before* goes well from here."""
        if not (self.settled and before.settled) or self.plain != before.plain:
            return False
        shifts = self.places.shifts_from(before.places, before.end)
        if shifts is None:
            return False
        rename = Renaming(self.layout, shifts)
        past, facts, _ = self._relevant()
        for bar, (numbers, last_but_one, parity) in before.bars.items():
            place, flips = rename.bar(bar)
            own_numbers, own_last_but_one, own_parity = self.bars[place]
            if own_numbers != numbers or own_parity != parity ^ flips:
                return False
            if place in past and own_last_but_one != last_but_one:
                return False
        queues = [[(m, rename.slot(a), rename.slot(b), who) for m, a, b, who in queue] for queue in before.queues]
        if self.queues != queues:
            return False
        known_before = {_renamed(rename, fact): i for i, fact in enumerate(before.facts)}
        columns = [known_before.get(_tagged(self.facts[i])) for i in facts]
        mine = {key: i for i, key in enumerate(self.knowers)}
        theirs = before._relevant()[2]
        rows = [mine.get(_renamed(rename, before.knowers[i])) for i in theirs]
        if None in columns or None in rows:
            return False
        now, then = self.knows[np.ix_(rows, facts)], before.knows[np.ix_(theirs, columns)]  # type: ignore[arg-type]
        return bool((now >= then).all())

    def _relevant(self) -> tuple[set[int], list[int], list[int]]:
        """mbarriers whose last but one phase still matters; facts that not everyone who could be checked against them knows;
        knowers from which someone can still learn."""
        if self.relevant is not None:
            return self.relevant
        where = {fact: i for i, fact in enumerate(self.facts)}
        waiters, users = _waiters(self.layout, self.end), _users(self.layout, self.end)
        past: set[int] = set()
        present: set[int] = set()
        for bar, phase in enumerate(self.phase):
            for name, late, shown in (("last", present, 0), ("last but one", past, 1)):
                agents = waiters.get(bar, ())
                if phase > shown and not self.knows[agents, where["bar", bar, name]].all():
                    late.add(bar)
        facts = [i for i, fact in enumerate(self.facts) if self._matters(fact, i, past, users)]
        knowers = [i for i, key in enumerate(self.knowers) if key[0] != "complete" or key[1][1] in present]
        self.relevant = past, facts, knowers
        return self.relevant

    def _matters(self, fact: Key, column: int, past: set[int], users: dict[int, list[int]]) -> bool:
        if fact[0] == "bar":
            return fact[2] not in ("before", "last but one") or fact[1] in past
        if fact[0] == "slot":
            return not self.knows[users.get(fact[1], []), column].all()
        if fact[0] == "barrier":
            return not self.knows[sorted(self.arrivers.get(fact[1], ())), column].all()
        return True


# ---- what is compared ---------------------------------------------------------------------------------------------------


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
    lists: tuple[Any, ...] = (state.bar_threads, state.bar_arrived, state.live, state.returned, state.unfenced)
    registers = tuple(state.free_registers), tuple(state.registers)
    return (*[tuple(each) for each in lists], registers, state.cluster[0], tuple(warps), groups)


def _barrier(state: State, check: LinearCheck, bar: int) -> tuple[tuple[Any, ...], bool, int]:
    """An mbarrier's numbers, and whether bytes landed in its present and last phase; in the last but one; its parity."""
    now = check.phases.now[bar]
    landed = [phase is not None and phase.landed for phase in (now, check.phases.done[bar], check.phases.before[bar])]
    numbers = state.count[bar], state.pending[bar], state.tx[bar], len(now.loose), *landed[:2]
    return numbers, landed[2], state.phase[bar] & 1


def _facts(state: State, check: LinearCheck) -> dict[Key, tuple[int, int]]:
    """Key -> (entry of a clock, least value with which the fact is known)."""
    clocks = check.clocks
    facts: dict[Key, tuple[int, int]] = {}
    for place, history in enumerate(check.slots.history):
        for access in history.values():
            key: Key = ("slot", place, access.kind, access.part)
            if access.kind == LOAD:
                landed = NEVER if access.number is None else access.number + 1
                facts[(*key, ("bar", access.bar))] = clocks.phases + access.bar, landed
            elif access.kind in (STORE, MMA):
                facts.update({(*key, agent): (agent, time) for agent, time in _ends(check, access)})
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


def _knowers(check: LinearCheck) -> dict[Key, Any]:
    """Everything that has a clock whose knowledge can still spread: key -> clock. The warps come first, by number."""
    found: dict[Key, Any] = {("warp", agent): clock for agent, clock in enumerate(check.clocks.of)}
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
    latest: dict[int, int] = {}
    for group, serial in check.slots.mma_issued:
        latest[group] = max(serial, latest.get(group, 0))
    for group, last in latest.items():
        first = group // check.layout.warpgroups * check.layout.warps + group % check.layout.warpgroups * 4
        waited = min((w.upto[-1] if w.upto else 0) for w in check.slots.mma_waits[first : first + 4])
        for serial in range(waited, last + 1):
            found["wgmma", group, last - serial] = check.slots.mma_issued[group, serial]
    return found


# ---- who is concerned ---------------------------------------------------------------------------------------------------


def _waiters(layout: Any, end: Places) -> dict[int, list[int]]:
    """By mbarrier of the cluster: the warps that wait for it in some part of the run."""
    found: dict[int, list[int]] = {}
    for agent, sort, array in end.at:
        if sort is MbarWait:
            first = agent // layout.warps * layout.nbars + layout.bar_base[array]
            for stage in range(layout.plan.barrier(array).stages):
                found.setdefault(first + stage, []).append(agent)
    return found


def _users(layout: Any, end: Places) -> dict[int, list[int]]:
    """By slot of the cluster: the warps that access it, or one that shares bytes with it, in some part of the run. Who
    accesses one slot of a buffer accesses all slots that the others who access this one do."""
    found: dict[int, list[int]] = {}
    for (agent, sort, array), stages in end.touched.items():
        if not array.startswith("slots of "):
            continue
        name = array.removeprefix("slots of ")
        for others in [s for (_, _, other), s in end.touched.items() if other == array for _ in range(2)]:
            stages = stages | others if stages & others else stages
        for cta in range(layout.ctas) if sort[0] is TmaLoad else (agent // layout.warps,):
            for stage in stages:
                for alias in layout.aliases[layout.slot_base[name] + stage]:
                    found.setdefault(cta * layout.nslots + alias, []).append(agent)
    return found


# ---- names of keys ------------------------------------------------------------------------------------------------------


def _tagged(key: Key) -> Key:
    """A fact's key, with the barrier or slot that it begins with as one part."""
    return ((key[0], key[1]), *key[2:]) if key[0] in ("bar", "slot") else key


def _renamed(rename: Renaming, key: Key) -> Key:
    """A fact's or a knower's key, its barriers and slots renamed."""
    return tuple([_renamed_part(rename, part) for part in _tagged(key)])


def _renamed_part(rename: Renaming, part: Any) -> Any:
    if isinstance(part, tuple) and len(part) == 2:
        if part[0] == "bar":
            return "bar", rename.bar(part[1])[0]
        if part[0] == "slot":
            return "slot", rename.slot(part[1])
    return part
