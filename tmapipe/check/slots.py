"""Rules of the slots: two accesses to the same bytes, one of them a write, are ordered, with what their proxies need.

    first access           is over for a second one if the past of the second has ...
    threads read or write  the access, published by all lanes of its warp; and for the async proxy, their fence after it
    raw, by async proxy    the access, published by all lanes of its warp
    TMA load writes        the phase that its bytes complete, waited for
    cp.async writes        the phase that its lanes complete, waited for; and for the async proxy, a proxy fence after the wait
    a copy to a peer reads the phase of the peer's barrier that its bytes complete, waited for
    TMA store reads        the issuing thread's wait_group(.read) for its group
    wgmma reads            a wgmma wait_group for its group, by one of the warpgroup's warps

For each slot the last access of each kind and agent is kept: whatever is ordered after it is ordered after earlier ones.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from tmapipe.check import accesses
from tmapipe.check.accesses import (
    COPY,
    COUNTED,
    GENERIC,
    LOAD,
    MMA,
    REDUCE,
    SEND,
    STORE,
    WHOLE,
    WRITE,
    WRITES,
    Access,
    Part,
    Waits,
)
from tmapipe.check.clocks import Clock, Clocks, Known, knows
from tmapipe.check.findings import Kind
from tmapipe.check.log import FindingLog, Step
from tmapipe.check.races import report_race
from tmapipe.check.rules import Key, Rules
from tmapipe.isa import effects
from tmapipe.isa.effects import Group, Proxy, proxy_of
from tmapipe.isa.ops import Flight
from tmapipe.machine.state import State

__all__ = ["Slots"]


class Slots(Rules):
    """The accesses to all slots of a cluster, and the waits that end the asynchronous ones."""

    kept = ("bulk_waits", "mma_waits", "mma_issued", "idle_waits", "async_slots", "covering")

    def __init__(self, clocks: Clocks, log: FindingLog):
        super().__init__(clocks, log)
        layout = log.layout
        self.history: list[dict[Part, dict[Any, Access]]] = [{} for _ in range(layout.ctas * layout.nslots)]
        self.flights: dict[Flight, list[Access]] = {}
        self.bulk_waits = [Waits() for _ in range(layout.agents)]
        self.mma_waits = [Waits() for _ in range(layout.agents)]
        self.mma_issued: dict[tuple[int, int], Clock] = {}  # (warpgroup, serial) -> what its four issues have executed
        self.idle_waits: dict[int, Step] = {}  # of warps with no groups that could have been waited for
        self.async_slots: set[int] = set()  # of a CTA, that TMA or wgmma touch
        self.covering: dict[int, set[Part]] = {}  # place -> parts that copies have been started to, until they are all
        self.copied: dict[tuple[int, int], set[int]] = {}  # (mbarrier, phase) -> slots that cp.async has written then

    def take(self, other: Rules) -> None:
        super().take(other)
        assert isinstance(other, Slots)
        self.history = [{part: dict(known) for part, known in history.items()} for history in other.history]

    def facts(self, state: State) -> Iterator[tuple[Key, Known]]:
        for slot, history in enumerate(self.history):
            for access in (access for known in history.values() for access in known.values()):
                ends = self._ends(access)
                by = access.bar if access.kind in COUNTED else next(iter(ends), access.agent)
                key: Key = ("slot", slot, access.kind, access.part, by)
                yield key, self.over(access)
                if access.kind in GENERIC:
                    yield (*key, "fenced"), self.fenced(access)
                for agent, wait in ends.items():
                    if wait is None:  # it will be for the groups or wgmmas up to one counted from the latest
                        thread = 32 * agent + access.step.op.lanes.bit_length() - 1 if access.kind == STORE else agent
                        latest = state.committed[thread] if access.kind == STORE else state.issued[agent]
                        yield (*key, agent, latest - (access.number or 0)), ()

    # ---- accesses -------------------------------------------------------------------------------------------------

    def access(self, step: Step, effect: effects.Access) -> Proxy:
        """Threads of the warp, or raw code of theirs through the async proxy, read or write a part of a slot. Returns the
        proxy.
        """
        op, agent = step.op, step.agent
        slot, proxy = getattr(op, effect.slot), proxy_of(effect.proxy, op)
        if proxy is Proxy.ASYNC:
            self.async_slots.add(slot)
        kind = (accesses.THREADS if proxy is Proxy.GENERIC else accesses.RAW)[effect.write]
        part = WHOLE if effect.mask else (op.split, op.part, op.parts)
        access = Access(kind, part, step, slot)
        cta = getattr(op, effect.mask).bit_length() - 1 if effect.mask else self.layout.cta_of(agent)
        self._access(cta, access, agent)
        return proxy

    def start(self, step: Step, effect: effects.Start, flights: tuple[Flight, ...]) -> None:
        """Asynchronous work starts to read or write a slot: the own CTA's, or those of its destinations."""
        op, agent = step.op, step.agent
        slot, until = getattr(op, effect.slot), effect.until
        if effect.proxy is Proxy.ASYNC:
            self.async_slots.add(slot)
        counted = SEND if not effect.write else LOAD if effect.proxy is Proxy.ASYNC else COPY
        counted = REDUCE if effect.reduces else counted
        kind = counted if until.group is None else MMA if until.group is Group.WGMMA else STORE
        shares = getattr(op, effect.shares) if effect.shares else 1
        part = ("shares", getattr(op, effect.share), shares) if shares > 1 else WHOLE
        for flight in flights:
            access = Access(kind, part, step, slot)
            if kind == MMA:
                access.number, by = flight.serial, flight.issuer
                self._issue(agent, flight)
            else:
                self.flights.setdefault(flight, []).append(access)
                by = agent
            if kind == counted:
                by = access.bar = flight.cta * self.layout.nbars + getattr(op, until.bar)
            self._access(self.layout.cta_of(agent) if kind == SEND else flight.cta, access, by)
            if kind == COPY:
                self._covered(flight.cta * self.layout.nslots + slot, part)

    def _issue(self, agent: int, flight: Flight) -> None:
        """One warp of the four issues a wgmma."""
        key = flight.issuer, flight.serial
        if key not in self.mma_issued:
            self.mma_issued[key] = self.clocks.zero()
        self.clocks.execute(agent, self.mma_issued[key])

    def _covered(self, place: int, part: Part) -> None:
        """Copies to a part of a slot have been started. With those to its last part, all that was accessed before is over for
        whoever comes after the copies, though their arrivals release nothing: the copies themselves came after it.
        """
        started = self.covering.setdefault(place, set())
        if part in started:
            started.clear()
        started.add(part)
        if len(started) == part[2]:
            for known in self.history[place].values():
                for key in [key for key, access in known.items() if access.kind != COPY]:
                    del known[key]
            started.clear()

    def landed(self, flight: Flight, phase: int) -> None:
        """It has been counted in *phase*."""
        for access in self.flights.pop(flight):
            access.number = phase
            if access.kind == COPY:
                self.copied.setdefault((access.bar, phase), set()).add(access.slot)
                self.copied.pop((access.bar, phase - 2), None)

    def commit(self, facts: tuple[int, tuple[Flight, ...]]) -> None:
        """Stores get the number of their group."""
        number, flights = facts
        for flight in flights:
            self.flights.pop(flight)[0].number = number

    def bulk_wait(self, step: Step, groups: int) -> None:
        """Groups 0 .. groups - 1 of the thread have been read."""
        self.bulk_waits[step.agent].add(groups, step)
        if not groups:
            self.idle_waits.setdefault(step.agent, step)

    def mma_wait(self, step: Step, serials: int) -> None:
        """For this warp, the warpgroup's wgmmas 0 .. serials - 1 are complete, so all four warps have issued them."""
        group = self.layout.group_of(step.agent)
        issued = self.mma_issued.get((group, serials - 1))
        if issued is not None:
            self.clocks.acquire(step.agent, issued)
        self.mma_waits[step.agent].add(serials, step)
        over = min(self.mma_waits[agent].upto for agent in self.layout.group_warps(group))
        for key in [key for key in self.mma_issued if key[0] == group and key[1] < over]:
            del self.mma_issued[key]  # all four warps have returned for a later one

    # ---- the rule -------------------------------------------------------------------------------------------------

    def _access(self, cta: int, access: Access, by: int) -> None:
        """An access to a slot of *cta*. by: who makes those of its kind one after another, of which the last one is kept."""
        layout, slot = self.layout, access.slot
        base = cta * layout.nslots
        clock = self.clocks.of[access.agent]
        writes = access.kind in WRITES
        for alias in layout.aliases[slot]:
            for part, known in self.history[base + alias].items():
                if alias == slot and _disjoint(part, access.part):
                    continue
                over = []
                for of, before in known.items():
                    if (not writes and before.kind not in WRITES) or before.kind == access.kind == REDUCE:
                        continue
                    kind = self.order(before, access, clock)
                    if kind is not None:
                        report_race(self, kind, before, access, base + slot, base + alias)
                    elif before.kind == SEND and access.kind == WRITE and alias == slot:
                        over.append(of)  # whoever writes next comes after this write, and so after that read
                for of in over:
                    del known[of]
        self.history[base + slot].setdefault(access.part, {})[access.kind, by] = access

    def order(self, before: Access, access: Access, clock: Clock) -> Kind | None:
        """None if *before* is over for *access*, which happens, or is issued, with *clock*; else what is wrong."""
        if before.agent == access.agent and before.kind not in (STORE, MMA, *COUNTED):
            same = before.part == access.part and before.slot == access.slot and access.kind in accesses.THREADS
            if before.kind in accesses.RAW or same:  # each thread its own elements
                return None
        if not knows(clock, self.over(before)):
            return Kind.STORE_SOURCE_REUSED if before.kind == STORE else Kind.RACE
        crossing = before.kind in GENERIC and access.kind not in GENERIC
        return Kind.PROXY if crossing and not knows(clock, self.fenced(before)) else None

    def over(self, access: Access) -> Known:
        """What tells that an access is over."""
        if access.kind in COUNTED:
            return () if access.number is None else ((self.clocks.phases + access.bar, access.number + 1),)
        if access.kind in (STORE, MMA):
            return tuple((agent, wait.time) for agent, wait in self._ends(access).items() if wait is not None)
        return ((self.clocks.published + access.agent, access.time),)

    def fenced(self, access: Access) -> Known:
        """What tells that a proxy fence came after an access by threads, or by their copies."""
        if access.kind == COPY:
            return () if access.number is None else ((self.clocks.handed_on + access.bar, access.number + 1),)
        return ((self.clocks.fenced + access.agent, access.time),)

    def _ends(self, access: Access) -> dict[int, Step | None]:
        """By warp, the wait that ended a store, or a wgmma: any of those of its four warps."""
        if access.kind == STORE:
            return {access.agent: self.bulk_waits[access.agent].first(access.number)}
        four = self.layout.group_warps(self.layout.group_of(access.agent)) if access.kind == MMA else ()
        return {agent: self.mma_waits[agent].first(access.number) for agent in four}


@functools.cache
def _disjoint(one: Part, other: Part) -> bool:
    """Parts of the same cut with different numbers, however a part is distributed over lanes."""
    return one[1] != other[1] and one[2] == other[2] and one[0].split("/")[0] == other[0].split("/")[0]
