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
from bisect import bisect_right
from typing import Any

from tmapipe.check.clocks import Clock, Clocks
from tmapipe.check.findings import Kind
from tmapipe.check.log import FindingLog, Step
from tmapipe.check.races import report_race
from tmapipe.isa import effects
from tmapipe.isa.effects import Group, Proxy, proxy_of
from tmapipe.isa.ops import Flight

__all__ = ["COPY", "LOAD", "MMA", "READ", "SEND", "STORE", "WRITE", "Access", "Slots"]

READ, WRITE, LOAD, STORE, MMA, ASYNC_READ, ASYNC_WRITE, COPY, SEND = range(9)
WRITES = (WRITE, LOAD, ASYNC_WRITE, COPY)
GENERIC = (READ, WRITE, COPY)
Part = tuple[str, int, int]  # how the slot is cut, which part, of how many
WHOLE: Part = ("whole", 0, 1)


class Access:
    """One access to a slot.

    kind: one of the above (ASYNC_*: by raw code, which has waited for its end); agent, time: the warp that made or issued it;
    part: of the slot; slot: its number in the CTA; number: what ends it, a load's phase, a store's bulk group or a wgmma's
    serial (None: not known yet); bar: of a load.
    """

    __slots__ = ("agent", "bar", "kind", "number", "part", "slot", "step", "time")

    def __init__(
        self, kind: int, time: int, part: Part, step: Step, slot: int, bar: int = -1, number: int | None = None
    ):
        self.kind, self.time, self.part, self.step, self.slot = kind, time, part, step, slot
        self.agent: int = step.agent  # type: ignore[assignment]
        self.bar, self.number = bar, number


class Waits:
    """Up to which number (groups, serials) one thread or warp has waited, and when."""

    __slots__ = ("steps", "times", "upto")

    def __init__(self) -> None:
        self.upto: list[int] = []
        self.times: list[int] = []
        self.steps: list[Step] = []

    def add(self, upto: int, time: int, step: Step) -> None:
        if not self.upto or upto > self.upto[-1]:
            self.upto.append(upto)
            self.times.append(time)
            self.steps.append(step)

    def copy(self) -> Waits:
        other = Waits()
        other.upto, other.times, other.steps = list(self.upto), list(self.times), list(self.steps)
        return other

    def time(self, number: int) -> int | None:
        """When the first wait that covers *number* returned."""
        i = bisect_right(self.upto, number)
        return self.times[i] if i < len(self.times) else None


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
        self.idle_waits: dict[int, tuple[int, Step]] = {}  # of warps with no groups that could have been waited for
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
        first = group // self.layout.warpgroups * self.layout.warps + group % self.layout.warpgroups * 4
        return serial >= min((w.upto[-1] if w.upto else 0) for w in self.mma_waits[first : first + 4])

    # ---- accesses -------------------------------------------------------------------------------------------------

    def access(self, agent: int, op: Any, effect: effects.Access) -> Proxy:
        """Threads of the warp, or raw code of theirs through the async proxy, read or write a part of a slot. Returns the
        proxy.
        """
        slot, proxy = getattr(op, effect.slot), proxy_of(effect.proxy, op)
        kind = (
            (WRITE if effect.write else READ)
            if proxy is Proxy.GENERIC
            else (ASYNC_WRITE if effect.write else ASYNC_READ)
        )
        if proxy is Proxy.ASYNC:
            self.async_slots.add(slot)
        part = WHOLE if effect.mask else (op.split, op.part, op.parts)
        access = Access(kind, self.clocks.time[agent], part, Step(self.log.order, agent, op), slot)
        cta = getattr(op, effect.mask).bit_length() - 1 if effect.mask else agent // self.layout.warps
        self._access(cta, slot, access, (kind, agent))
        return proxy

    def start(self, agent: int, op: Any, effect: effects.Start, flights: tuple[Flight, ...]) -> None:
        """Asynchronous work starts to read or write a slot."""
        slot = getattr(op, effect.slot)
        if effect.proxy is Proxy.ASYNC:
            self.async_slots.add(slot)
        if effect.until.group is Group.WGMMA:
            self._start_mma(agent, op, slot, flights[0])
        elif effect.until.group is Group.BULK:
            self._start_store(agent, op, slot, flights[0])
        else:
            self._start_load(agent, op, slot, effect, flights)

    def _start_load(self, agent: int, op: Any, slot: int, effect: effects.Start, flights: tuple[Flight, ...]) -> None:
        """A load starts to write the slot of each of its destinations, or to read its own CTA's slot."""
        shares = getattr(op, effect.shares) if effect.shares else 1
        part = ("shares", getattr(op, effect.share), shares) if shares > 1 else WHOLE
        kind = SEND if not effect.write else LOAD if effect.proxy is Proxy.ASYNC else COPY
        step, time = Step(self.log.order, agent, op), self.clocks.time[agent]
        for flight in flights:
            bar = flight.cta * self.layout.nbars + getattr(op, effect.until.bar)
            access = Access(kind, time, part, step, slot, bar)
            self.flights.setdefault(flight, []).append(access)
            self._access(flight.cta if effect.write else agent // self.layout.warps, slot, access, (kind, bar))
            if kind == COPY:
                self._covered(flight.cta * self.layout.nslots + slot, part)

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

    def _start_store(self, agent: int, op: Any, slot: int, flight: Flight) -> None:
        access = Access(STORE, self.clocks.time[agent], WHOLE, Step(self.log.order, agent, op), slot)
        self.flights[flight] = [access]
        self._access(flight.cta, slot, access, (STORE, agent))

    def commit(self, facts: tuple[int, tuple[Flight, ...]]) -> None:
        """Stores get the number of their group."""
        number, flights = facts
        for flight in flights:
            self.flights.pop(flight)[0].number = number

    def bulk_wait(self, agent: int, op: Any, groups: int) -> None:
        """Groups 0 .. groups - 1 of the thread have been read."""
        step = Step(self.log.order, agent, op)
        if groups:
            self.bulk_waits[agent].add(groups, self.clocks.time[agent], step)
        else:
            self.idle_waits.setdefault(agent, (self.clocks.time[agent], step))

    def _start_mma(self, agent: int, op: Any, slot: int, flight: Flight) -> None:
        """One warp of the four issues a wgmma, which from now on may read the slot."""
        time, step = self.clocks.time[agent], Step(self.log.order, agent, op)
        issued = self.mma_issued.get((flight.issuer, flight.serial))
        if issued is None:
            issued = self.mma_issued[flight.issuer, flight.serial] = self.clocks.zero()
        self.clocks.execute(agent, issued)
        access = Access(MMA, time, WHOLE, step, slot, number=flight.serial)
        self._access(flight.cta, slot, access, (MMA, flight.issuer))

    def mma_wait(self, agent: int, op: Any, serials: int) -> None:
        """For this warp, the warpgroup's wgmmas 0 .. serials - 1 are complete, so all four warps have issued them."""
        group = agent // self.layout.warps * self.layout.warpgroups + agent % self.layout.warps // 4
        issued = self.mma_issued.get((group, serials - 1))
        if issued is not None:
            self.clocks.acquire(agent, issued)
        self.mma_waits[agent].add(serials, self.clocks.time[agent], Step(self.log.order, agent, op))

    # ---- the rule -------------------------------------------------------------------------------------------------

    def _access(self, cta: int, slot: int, access: Access, key: Any) -> None:
        layout = self.layout
        base = cta * layout.nslots
        clock = self.clocks.of[access.agent]
        writes = access.kind in WRITES
        for alias in layout.aliases[slot]:
            for part, known in self.history[base + alias].items():
                if alias == slot and _disjoint(part, access.part):
                    continue
                over = []
                for of, before in known.items():
                    if not writes and before.kind not in WRITES:
                        continue
                    kind = self.order(before, access, clock)
                    if kind is not None:
                        report_race(self, kind, before, access, base + slot, base + alias)
                    elif before.kind == SEND and access.kind == WRITE and alias == slot:
                        over.append(of)  # whoever writes next comes after this write, and so after that read
                for of in over:
                    del known[of]
        self.history[base + slot].setdefault(access.part, {})[key] = access

    def order(self, before: Access, access: Access, clock: Clock) -> Kind | None:
        """None if *before* is over for *access*, which happens, or is issued, with *clock*; else what is wrong."""
        clocks = self.clocks
        kind, agent = before.kind, before.agent
        if kind in (LOAD, COPY, SEND):
            if before.number is None or clock[clocks.phases + before.bar] <= before.number:
                return Kind.RACE
            late = kind == COPY and access.kind not in GENERIC
            return Kind.PROXY if late and clock[clocks.handed_on + before.bar] <= before.number else None
        if kind == STORE:
            return None if self._seen(self.bulk_waits[agent], before, clock) else Kind.STORE_SOURCE_REUSED
        if kind == MMA:
            four = range(agent - agent % self.layout.warps % 4, agent - agent % self.layout.warps % 4 + 4)
            return None if any(self._seen(self.mma_waits[a], before, clock, a) for a in four) else Kind.RACE
        if kind in (ASYNC_READ, ASYNC_WRITE) and agent == access.agent:
            return None
        if access.kind in GENERIC:
            same = before.part == access.part and before.slot == access.slot and access.kind != COPY
            if agent == access.agent and same:  # each thread its own elements
                return None
            return None if clock[clocks.published + agent] >= before.time else Kind.RACE
        if clock[clocks.published + agent] < before.time:
            return Kind.RACE
        return None if kind not in (READ, WRITE) or clock[clocks.fenced + agent] >= before.time else Kind.PROXY

    @staticmethod
    def _seen(waits: Waits, before: Access, clock: Clock, agent: int | None = None) -> bool:
        if before.number is None:
            return False
        time = waits.time(before.number)
        return time is not None and bool(clock[before.agent if agent is None else agent] >= time)


@functools.cache
def _disjoint(one: Part, other: Part) -> bool:
    """Parts of the same cut with different numbers, however a part is distributed over lanes."""
    return one[1] != other[1] and one[2] == other[2] and one[0].split("/")[0] == other[0].split("/")[0]
