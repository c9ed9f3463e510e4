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
from typing import Any

from tmapipe.check import accesses
from tmapipe.check.accesses import COPY, LOAD, MMA, REDUCE, SEND, STORE, WHOLE, WRITE, WRITES, Access, Part, Wait, Waits
from tmapipe.check.clocks import Clock, Clocks
from tmapipe.check.findings import Kind
from tmapipe.check.log import FindingLog, Step
from tmapipe.check.races import report_race
from tmapipe.isa import effects
from tmapipe.isa.effects import Group, Proxy, proxy_of
from tmapipe.isa.ops import Flight

__all__ = ["Slots"]


class Slots:
    """The accesses to all slots of a cluster, and the waits that end the asynchronous ones."""

    def __init__(self, clocks: Clocks, log: FindingLog):
        layout = log.layout
        self.clocks, self.log, self.layout = clocks, log, layout
        self.history: list[dict[Part, dict[Any, Access]]] = [{} for _ in range(layout.ctas * layout.nslots)]
        self.flights: dict[Flight, list[Access]] = {}
        self.bulk_waits = [Waits() for _ in range(layout.agents)]
        self.mma_waits = [Waits() for _ in range(layout.agents)]
        self.mma_issued: dict[tuple[int, int], Clock] = {}  # (warpgroup, serial) -> what its four issues have executed
        self.idle_waits: dict[int, Wait] = {}  # of warps with no groups that could have been waited for
        self.async_slots: set[int] = set()  # of a CTA, that TMA or wgmma touch
        self.covering: dict[int, set[Part]] = {}  # place -> parts that copies have been started to, until they are all
        self.copied: dict[tuple[int, int], set[int]] = {}  # (mbarrier, phase) -> slots that cp.async has written then

    def take(self, other: Slots) -> None:
        """Copies *other*, in which nothing is in flight, to go on independently."""
        self.history = [{part: dict(known) for part, known in history.items()} for history in other.history]
        self.bulk_waits = [waits.copy() for waits in other.bulk_waits]
        self.mma_waits = [waits.copy() for waits in other.mma_waits]
        self.mma_issued = {key: clock.copy() for key, clock in other.mma_issued.items() if other.may_be_awaited(*key)}
        self.idle_waits, self.async_slots = dict(other.idle_waits), set(other.async_slots)
        self.covering = {place: set(parts) for place, parts in other.covering.items()}

    def may_be_awaited(self, group: int, serial: int) -> bool:
        """Whether a later wait can still return for this wgmma: not if all four warps have returned for a later one."""
        return serial >= min(self.mma_waits[agent].upto for agent in self.layout.group_warps(group))

    # ---- accesses -------------------------------------------------------------------------------------------------

    def access(self, agent: int, op: Any, effect: effects.Access) -> Proxy:
        """Threads of the warp, or raw code of theirs through the async proxy, read or write a part of a slot. Returns the
        proxy.
        """
        slot, proxy = getattr(op, effect.slot), proxy_of(effect.proxy, op)
        if proxy is Proxy.ASYNC:
            self.async_slots.add(slot)
        kind = (accesses.THREADS if proxy is Proxy.GENERIC else accesses.RAW)[effect.write]
        part = WHOLE if effect.mask else (op.split, op.part, op.parts)
        access = Access(kind, self.clocks.time[agent], part, Step(self.log.order, agent, op), slot)
        cta = getattr(op, effect.mask).bit_length() - 1 if effect.mask else self.layout.cta_of(agent)
        self._access(cta, access, agent)
        return proxy

    def start(self, agent: int, op: Any, effect: effects.Start, flights: tuple[Flight, ...]) -> None:
        """Asynchronous work starts to read or write a slot: the own CTA's, or those of its destinations."""
        slot, until = getattr(op, effect.slot), effect.until
        if effect.proxy is Proxy.ASYNC:
            self.async_slots.add(slot)
        counted = SEND if not effect.write else LOAD if effect.proxy is Proxy.ASYNC else COPY
        counted = REDUCE if effect.reduces else counted
        kind = counted if until.group is None else MMA if until.group is Group.WGMMA else STORE
        shares = getattr(op, effect.shares) if effect.shares else 1
        part = ("shares", getattr(op, effect.share), shares) if shares > 1 else WHOLE
        step, time = Step(self.log.order, agent, op), self.clocks.time[agent]
        for flight in flights:
            access = Access(kind, time, part, step, slot)
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

    def bulk_wait(self, agent: int, op: Any, groups: int) -> None:
        """Groups 0 .. groups - 1 of the thread have been read."""
        wait = Wait(groups, self.clocks.time[agent], Step(self.log.order, agent, op))
        if groups:
            self.bulk_waits[agent].add(wait)
        else:
            self.idle_waits.setdefault(agent, wait)

    def mma_wait(self, agent: int, op: Any, serials: int) -> None:
        """For this warp, the warpgroup's wgmmas 0 .. serials - 1 are complete, so all four warps have issued them."""
        issued = self.mma_issued.get((self.layout.group_of(agent), serials - 1))
        if issued is not None:
            self.clocks.acquire(agent, issued)
        self.mma_waits[agent].add(Wait(serials, self.clocks.time[agent], Step(self.log.order, agent, op)))

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
        clocks = self.clocks
        kind, agent = before.kind, before.agent
        if kind in accesses.COUNTED:
            if before.number is None or clock[clocks.phases + before.bar] <= before.number:
                return Kind.RACE
            late = kind == COPY and access.kind not in accesses.GENERIC
            return Kind.PROXY if late and clock[clocks.handed_on + before.bar] <= before.number else None
        if kind == STORE:
            return None if _seen(self.bulk_waits[agent], before, clock, agent) else Kind.STORE_SOURCE_REUSED
        if kind == MMA:
            four = self.layout.group_warps(self.layout.group_of(agent))
            return None if any(_seen(self.mma_waits[a], before, clock, a) for a in four) else Kind.RACE
        if kind in accesses.RAW and agent == access.agent:
            return None
        if access.kind in accesses.GENERIC:
            same = before.part == access.part and before.slot == access.slot and access.kind != COPY
            if agent == access.agent and same:  # each thread its own elements
                return None
            return None if clock[clocks.published + agent] >= before.time else Kind.RACE
        if clock[clocks.published + agent] < before.time:
            return Kind.RACE
        return None if kind in accesses.RAW or clock[clocks.fenced + agent] >= before.time else Kind.PROXY


def _seen(waits: Waits, before: Access, clock: Clock, agent: int) -> bool:
    """Whether one of these waits, of *agent*, has ended the access before."""
    wait = None if before.number is None else waits.first(before.number)
    return wait is not None and bool(clock[agent] >= wait.time)


@functools.cache
def _disjoint(one: Part, other: Part) -> bool:
    """Parts of the same cut with different numbers, however a part is distributed over lanes."""
    return one[1] != other[1] and one[2] == other[2] and one[0].split("/")[0] == other[0].split("/")[0]
