"""Whether everything that goes well from one state of a run goes well from another, up to the position in the rings.

Compared are the machine's abstract state and what the checker knows. That is, for every fact that a later operation can be
checked against (the last accesses to each slot, what has counted in the present and last phases of each mbarrier, waits,
arrivals at peers): who knows it. Stages are renamed by how far all warps have moved on in each array. Phases count by their
parity.

Every rule asks that something is known. So a state is *covered* by another one if it has no fact that the other lacks, and
whoever knew a fact there, directly or through a barrier that it will come by, knows it here.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tmapipe.check.future import Future
from tmapipe.check.linear import LinearCheck
from tmapipe.check.positions import CLUSTER, Positions
from tmapipe.check.relative import Renaming
from tmapipe.check.slots import COPY, LOAD, MMA, SEND, STORE
from tmapipe.machine.state import State
from tmapipe.machine.tensorcore import REGISTERS

__all__ = ["RunState"]

NEVER = np.iinfo(np.int32).max
Key = tuple[Any, ...]


class RunState:
    """The state of a run between two segments.

    state: the machine's; check: the checker's; positions: how far each warp is in its arrays; future: what may still come.
    """

    def __init__(self, state: State, check: LinearCheck, positions: Positions, future: Future):
        self.state, self.check, self.positions, self.future = state, check, positions, future
        self.layout = check.layout
        self.table: tuple[tuple[int, ...], _Table] | None = None  # see `_tables`

    @property
    def settled(self) -> bool:
        """Whether nothing is in flight, uncommitted, or armed without an arrival."""
        state = self.state
        return not (state.loads or state.stores or state.open_group or any(p.loose for p in self.check.phases.now))

    def covered_by(self, other: RunState) -> bool:
        """Whether everything that goes well from *other* goes well from here."""
        if self.plain != other.plain or not self._less_pending(other):
            return False
        lacking = self._lacking(other)
        if lacking is None:
            return False
        shifts = self.positions.shifts_from(other.positions, self.future.live)
        if shifts is None:
            return False
        rename = self.future.renaming(shifts)
        queues = [
            [(m, a if a == REGISTERS else rename.slots[a], rename.slots[b], who) for m, a, b, who in queue]
            for queue in other.state.queues
        ]
        if [list(queue) for queue in self.state.queues] != queues:
            return False
        for bar in range(len(other.state.count)):
            there, flips = rename.bars[bar]
            (mine, landed), (theirs, their_landed) = self.barriers[there], other.barriers[bar]
            if mine[:-1] != theirs[:-1] or mine[-1] != theirs[-1] ^ flips:
                return False
            matters = True, True, there in self.past
            if any(a and b and not c for a, b, c in zip(matters, landed, their_landed, strict=True)):
                return False
        return all(self._known_before(rename.bars[bar][0], facts) for bar, facts in lacking.items())

    # ---- the machine's state --------------------------------------------------------------------------------------

    @cached_property
    def plain(self) -> tuple[Any, ...]:
        """What must be equal and does not depend on positions in rings."""
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
                    tuple([(name, state.issued[agent] - serial) for name, serial in state.latest[agent]]),
                    None if seen is None else (seen[0], state.bar_generation[seen[0]] - seen[1]),
                    None if state.cluster_seen[agent] < 0 else state.cluster[1] - state.cluster_seen[agent],
                )
            )
        lists: tuple[Any, ...] = (state.bar_threads, state.bar_arrived, state.live, state.returned)
        registers = tuple(state.free_registers), tuple(state.registers), tuple(state.sets_ahead)
        return (*[tuple(each) for each in lists], registers, state.cluster[0], tuple(warps))

    def _less_pending(self, other: RunState) -> bool:
        """Whether what is pending is part of what is pending in *other*.

        That is accumulators without a wgmma fence, and the latest of the bulk groups that are not waited for.
        """
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

    @cached_property
    def barriers(self) -> list[tuple[tuple[int, ...], tuple[bool, bool, bool]]]:
        """Each mbarrier's numbers, its parity last; whether bytes landed in its present, last and last but one phase."""
        state, phases = self.state, self.check.phases
        found: list[tuple[tuple[int, ...], tuple[bool, bool, bool]]] = []
        for bar, (now, done, before) in enumerate(zip(phases.now, phases.done, phases.before, strict=True)):
            landed = now.landed, done is not None and done.landed, before is not None and before.landed
            found.append(((state.count[bar], state.pending[bar], state.tx[bar], state.phase[bar] & 1), landed))
        return found

    # ---- what is known --------------------------------------------------------------------------------------------

    def _lacking(self, other: RunState) -> dict[int, Any] | None:
        """What completed phases of mbarriers tell in *other* and not here, by mbarrier there; None if somebody or something
        else knows more there, or if there are fewer facts to be checked against."""
        mine, theirs = _tables(self, other)
        if (mine.open_facts & ~theirs.facts).any():
            return None
        lacking = theirs.needed & mine.unknown
        found = {}
        for i in np.flatnonzero(lacking.any(1)).tolist():
            kind, *who = other.knowers[other.knower_numbers.index(i)]
            if kind != "complete":
                return None
            found[who[0]] = lacking[i]
        return found

    def _known_before(self, bar: int, facts: Any) -> bool:
        """Whether all who wait for an mbarrier know these facts before, so that they do not learn them there."""
        assert self.table is not None
        rows = [self.knower_numbers[waiter] for waiter in self.future.waiters.get(bar, [])]
        return not (facts & np.bitwise_or.reduce(self.table[1].unknown[rows], axis=0)).any()

    @cached_property
    def fact_entries(self) -> dict[Key, tuple[int, int]]:
        return _facts(self.state, self.check)

    @cached_property
    def facts(self) -> list[Key]:
        return list(self.fact_entries)

    @cached_property
    def fact_index(self) -> dict[Key, int]:
        return {fact: i for i, fact in enumerate(self.facts)}

    @cached_property
    def fact_numbers(self) -> list[int]:
        """A number for each fact, the same at all states that differ only in how far the warps are."""
        return self._numbers(self.future.facts, self.facts)

    @cached_property
    def knower_numbers(self) -> list[int]:
        return self._numbers(self.future.knowers, self.knowers)

    def _numbers(self, known: dict[Key, int], keys: list[Key]) -> list[int]:
        return [known.setdefault(_renamed(self._from_here, key), len(known)) for key in keys]

    @cached_property
    def _from_here(self) -> Renaming:
        """To stages counted from where the warps are."""
        live = self.future.live
        at = self.positions.of(live)[0]
        return Renaming(
            self.layout,
            {
                (cta, array): -int(at[(waits if len(waits) else others)[0]])
                for ctas, array, _, waits, others in live.arrays
                for cta in ctas
            },
        )

    @cached_property
    def _knower_table(self) -> dict[Key, Any]:
        return _knowers(self.state, self.check)

    @cached_property
    def knowers(self) -> list[Key]:
        return list(self._knower_table)

    @cached_property
    def knows(self) -> Any:
        """Who knows which fact."""
        entries = np.array([entry for entry, _ in self.fact_entries.values()], np.int64)
        least = np.array([least for _, least in self.fact_entries.values()], np.int64)
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
        """Those from whom someone can still learn: a complete phase only if it tells a waiter something new."""
        return [i for i, key in enumerate(self.knowers) if key[0] != "complete" or self._teaches(i, key[1])]

    def _teaches(self, row: int, bar: int) -> bool:
        known = self.knows[self.future.waiters.get(bar, [])].all(0)
        return bool((self.knows[row] & ~known).any())

    @cached_property
    def open_facts(self) -> list[int]:
        """Facts that someone who could be checked against them does not know.

        A fact that all warps know is known to everything that comes after.
        """
        known = self.knows[: self.layout.agents].all(0)
        return [i for i in np.flatnonzero(~known).tolist() if self._matters(self.facts[i], i)]

    def _matters(self, fact: Key, column: int) -> bool:
        if fact[0] == "bar":
            return fact[2] not in ("before", "last but one") or fact[1] in self.past
        if fact[0] == "slot" or fact[0] == "barrier":
            return not self._checked(fact[0], fact[1])[column]
        return True

    def _checked(self, kind: str, which: int) -> Any:
        """By fact: whether all know it who are checked against facts of this slot or barrier of warps."""
        if (kind, which) not in self._all_know:
            agents = (self.future.users if kind == "slot" else self.future.arrivers).get(which, [])
            self._all_know[kind, which] = self.knows[agents].all(0)
        return self._all_know[kind, which]

    @cached_property
    def _all_know(self) -> dict[tuple[str, int], Any]:
        return {}


# ---- its tables ---------------------------------------------------------------------------------------------------------


class _Table(NamedTuple):
    """What is known, by number, eight facts a byte. facts: those there are; open_facts: those that matter; needed: by knower,
    what someone can still learn from it; unknown: by knower, what matters and it does not know."""

    facts: Any
    open_facts: Any
    needed: Any
    unknown: Any

    @staticmethod
    def of(run_state: RunState, knowers: int, facts: int) -> _Table:
        """For so many numbers of knowers and of facts."""
        rows, columns = np.array(run_state.knower_numbers), np.array(run_state.fact_numbers)
        bits = np.zeros((2 + len(rows), facts), bool)
        bits[0, columns] = bits[1, columns[run_state.open_facts]] = True
        bits[2:, columns] = run_state.knows
        there, matters, *_ = packed = np.packbits(bits, axis=-1)
        needed, unknown = np.zeros((knowers, facts // 8), np.uint8), np.tile(matters, (knowers, 1))
        needed[rows[run_state.open_knowers]] = packed[2:][run_state.open_knowers]
        unknown[rows] &= ~packed[2:]
        return _Table(there, matters, needed, unknown)


def _tables(*states: RunState) -> list[_Table]:
    """Of states of one run, for the same numbers."""
    for run_state in states:
        assert run_state.knower_numbers and run_state.fact_numbers  # all are numbered before they are counted
    future = states[0].future
    size = tuple(-(-len(numbers) // 256) * 256 for numbers in (future.knowers, future.facts))
    for run_state in states:
        if run_state.table is None or run_state.table[0] != size:
            run_state.table = size, _Table.of(run_state, *size)
    return [run_state.table[1] for run_state in states if run_state.table is not None]


def _facts(state: State, check: LinearCheck) -> dict[Key, tuple[int, int]]:
    """Fact -> (entry of a clock, least value with which the fact is known)."""
    clocks = check.clocks
    facts: dict[Key, tuple[int, int]] = {}
    for slot, history in enumerate(check.slots.history):
        for access in history.values():
            key: Key = ("slot", slot, access.kind, access.part)
            if access.kind in (LOAD, COPY, SEND):
                landed = NEVER if access.number is None else access.number + 1
                facts[(*key, access.bar)] = clocks.phases + access.bar, landed
                if access.kind == COPY:
                    facts[(*key, access.bar, "fenced")] = clocks.handed_on + access.bar, landed
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
    for (cta, bar), (number, _) in check.lifetimes.sent.items():
        facts["bar", bar, "sent", cta] = clocks.phases + bar, number + 1
    for time, step in check.lifetimes.inits.values():
        by: int = step.agent  # type: ignore[assignment]
        least = max(time, *check.lifetimes.fences.get(by, (0,)))
        facts["init", by] = by, max(least, facts.get(("init", by), (0, 0))[1])
    return facts


def _ends(state: State, check: LinearCheck, key: Key, access: Any) -> dict[Key, tuple[int, int]]:
    """The waits that end an asynchronous read, by warp.

    If there is none yet: which of its groups or wgmmas the read is, counted from the latest.
    """
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
    """Everything with a clock whose knowledge can still spread: key -> clock. The warps come first, by number."""
    found: dict[Key, Any] = {("warp", agent): clock for agent, clock in enumerate(check.clocks.of)}
    for agent in range(check.clocks.agents):  # what an arrival by all of its lanes would tell
        known = check.clocks.zero()
        check.clocks.release(agent, known, all_lanes=True)
        found["all lanes of", agent] = known
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
    """A fact's or a knower's key, with its barriers and slots renamed."""
    kind = key[0]
    if kind == "slot":
        if key[2] in (LOAD, COPY, SEND):
            return "slot", rename.slots[key[1]], key[2], key[3], rename.bars[key[4]][0], *key[5:]
        return "slot", rename.slots[key[1]], *key[2:]
    if kind == "bar" or kind == "present" or kind == "complete":
        return kind, rename.bars[key[1]][0], *key[2:]
    return key
