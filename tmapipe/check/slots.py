"""The rules of slots: two accesses to the same bytes, at least one a write, are ordered. And fences that order nothing."""

from __future__ import annotations

import functools
import linecache
from bisect import bisect_right
from collections.abc import Collection, Container, Iterator
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from tmapipe import isa as effects
from tmapipe.check import FindingLog, Step
from tmapipe.check.phases import Clock, Clocks, FactName, Known, Rules, knows
from tmapipe.isa import Group, Proxy, proxy_of
from tmapipe.isa.ops import Flight, TmaLoadThrough
from tmapipe.model.layout import Kind
from tmapipe.model.run import bar_name, slot_name, who
from tmapipe.model.state import State

if TYPE_CHECKING:
    from tmapipe.model.layout import Layout


# ---- accesses --------------------------------------------------------------------------------------------------------
#
# Accesses to slots, and waits for asynchronous accesses.


#: What an access does. ASYNC_*: raw code of threads through the async proxy, which has waited for the access to end.
READ, WRITE, LOAD, STORE, MMA, ASYNC_READ, ASYNC_WRITE, COPY, SEND, REDUCE = range(10)
DOES = (
    "{who} reads",
    "{who} writes",
    "a TMA load issued by {who} writes",
    "a TMA store issued by {who} reads",
    "a wgmma issued by {who} reads",
    "raw code of {who} reads",
    "raw code of {who} writes",
    "a cp.async issued by {who} writes",
    "a copy to a peer issued by {who} reads",
    "a reduction issued by {who} changes",
)
WRITES = (WRITE, LOAD, ASYNC_WRITE, COPY, REDUCE)
THREADS, RAW = (READ, WRITE), (ASYNC_READ, ASYNC_WRITE)
GENERIC = (*THREADS, COPY)
COUNTED = (LOAD, COPY, SEND, REDUCE)  # accesses whose end counts on an mbarrier
Part = tuple[str, int, int]  # how the slot is cut, which part, of how many
WHOLE: Part = ("whole", 0, 1)


def part_of(effect: effects.Access, op: Any) -> Part:
    """The part of a slot that threads access."""
    return (getattr(op, effect.cut), getattr(op, effect.part), getattr(op, effect.parts)) if effect.parts else WHOLE


class SlotAccess:
    """One access to a slot.

    kind: one of the above; agent, time: the warp that made or issued it, and when; part: of the slot; slot: its number in the
    CTA; number: of what ends the access: the phase of a load, the bulk group of a store, the serial of a wgmma (None: not
    known yet); bar: the mbarrier on which the end of the access counts, or -1.
    """

    __slots__ = ("agent", "bar", "kind", "number", "part", "slot", "step", "time")

    def __init__(self, kind: int, part: Part, step: Step, slot: int):
        self.kind, self.part, self.step, self.slot = kind, part, step, slot
        self.agent, self.time = step.agent, step.time
        self.number: int | None = None
        self.bar = -1


class Waits:
    """The waits of one thread or warp, each as (n, step): all groups, or wgmmas, with smaller numbers than n are over. Waits
    that have covered no more than an earlier wait are left out."""

    __slots__ = ("found",)

    def __init__(self, found: tuple[tuple[int, Step], ...] = ()):
        self.found = found

    def add(self, upto: int, step: Step) -> None:
        if upto > self.upto:
            self.found = (*self.found, (upto, step))

    def copy(self) -> Waits:
        return Waits(self.found)

    @property
    def upto(self) -> int:
        """How many groups or wgmmas are over."""
        return self.found[-1][0] if self.found else 0

    def first(self, number: int | None) -> Step | None:
        """The first wait that covers *number*."""
        i = len(self.found) if number is None else bisect_right(self.found, number, key=itemgetter(0))
        return self.found[i][1] if i < len(self.found) else None


# ---- races -----------------------------------------------------------------------------------------------------------
#
# The report of two unordered accesses: their agents, the bytes, the missing order, and the fix.


def report_race(slots: Slots, kind: Kind, before: SlotAccess, access: SlotAccess, slot: int, other: int) -> None:
    """Reports that *access*, to the slot at flat index *slot*, conflicts with *before*, to the slot at *other* (the same, or
    aliased).
    """
    log, layout = slots.log, slots.layout
    owner: Step | None = None
    if kind is Kind.STORE_SOURCE_REUSED:
        owner = _foreign_wait(slots, before, access)
        kind = Kind.GROUP_OWNER if owner is not None else kind
    name, alias = slot_name(layout, slot), slot_name(layout, other)
    first, second = _does(layout, before), _does(layout, access)
    same = "it" if slot == other else f"{alias}, which lies in the same bytes"
    text, fix, blame = _texts(slots, kind, before, access, f"{second} {name}", f"{first} {same}", owner)
    end = slots.bulk_waits[before.agent].first(before.number) if before.kind == STORE else None  # for the timeline
    extra = [step for step in (owner, end) if step is not None]
    log.add(kind, text, fix, access.step, before.step, *extra, slot=slot, blame=blame)


def _texts(
    slots: Slots, kind: Kind, before: SlotAccess, access: SlotAccess, second: str, first: str, owner: Step | None
) -> tuple[str, str, Step]:
    """What happens, what to change, and at which step."""
    layout, clocks = slots.layout, slots.clocks
    role, later, issuer = layout.role(before.agent), layout.role(access.agent), who(layout, before.agent)
    array, then, while_ = layout.slots[access.slot][0].name, f"{second} after {first}", f"{second} while {first}"
    clock = clocks.of[access.agent]
    bar = bar_name(layout, before.bar) if before.bar >= 0 else ""
    bars = bar.split("[")[0]
    if kind is Kind.PROXY:
        text = f"{second} through the async proxy after {first} through the generic proxy, and no proxy fence"
        if before.kind == COPY:
            fix = f"let {later} execute fence_proxy_async after it has waited for {bars}"
            return f"{text} lies between", fix, access.step
        text += f" of {role} lies between"
        fix = f"execute fence_proxy_async after its access to {array}, before the synchronization that hands it on"
    elif owner is not None:
        text = f"{while_}: {who(layout, owner.agent)} waits for bulk groups, but the store's group belongs to {issuer}, and "
        text += "wait_group covers only the calling thread's own"
        return text, f"let {issuer}, which commits the group, wait for it (bulk_wait_group)", before.step
    elif kind is Kind.STORE_SOURCE_REUSED:
        text = f"{while_}: no wait_group.read for that store lies between"
        fix = f"wait for the store's group (bulk_wait_group(..., read=True)) before it hands {array} on"
    elif before.agent == access.agent and before.kind in THREADS and access.kind in THREADS:
        lanes = "with the elements distributed over lanes in another way"
        text = f"{then}, {lanes}, and nothing orders the lanes of one warp"
        fix = f"{'execute warp_sync' if _alone(layout, role) else 'call k.sync()'} between the two"
    elif before.kind not in (STORE, MMA, *COUNTED) and clock[before.agent] >= before.time:
        if any(known[clocks.published + before.agent] >= before.time for known in clocks.of):  # some warp knows it
            text = f"{then}, but the signals between are relaxed, or came before that warp's lanes were synchronized: they "
            text += "order what is executed, not these accesses"
            fix = f'synchronize its lanes after its access to {array}, then signal without scope="relaxed"'
        else:
            text = f"{then}, but only one lane of that warp is ordered before it: the others' accesses are not"
            fix = f"execute warp_sync between its access to {array} and the signal of one lane"
            if before.kind in THREADS and access.kind not in GENERIC and clocks.fence[before.agent] < before.time:
                text += f", and no proxy fence of {role} lies between"
                fix = f"execute fence_proxy_async, then warp_sync, after its access to {array}, before one lane goes on"
    elif before.kind == MMA:
        text = f"{while_}: no wgmma_wait for that group lies between"
        fix = f"wait for the wgmma's group (wgmma_wait) before it releases {array}"
    elif before.kind == SEND:
        what = "copy has read it"
        fix = f"the peer has waited for {bars}: until the slot is free again"
        if isinstance(before.step.op, TmaLoadThrough):
            what, fix = "load is over", f"a role that has waited for {bars} releases {array}, as one of its consumers"
        return f"{while_}: nothing makes it wait until the {what}", f"let {later} wait until {fix}", access.step
    elif before.kind not in COUNTED:
        return f"{while_}: nothing orders the two", _ordered(layout, before.agent, access.agent, array), access.step
    elif (access.kind, access.agent, None) == (before.kind, before.agent, before.number):
        fix = f"let {role} load {array} once a slot (each part of it once), and enter another slot for the next tile"
        return f"{while_}: the first one's bytes may still be on their way", fix, access.step
    else:
        phase = f" (phase {before.number} of {bar})" if before.number is not None else ""
        text = f"{while_}: nothing makes it wait until the bytes have landed{phase}"
        return text, f"let {later} wait for {bars} before it touches {array}", access.step
    return text, f"let {role} {fix}", before.step


def _does(layout: Layout, access: SlotAccess) -> str:
    through = access.kind == SEND and isinstance(access.step.op, TmaLoadThrough)
    says = "a TMA load issued by {who} reads" if through else DOES[access.kind]
    return says.format(who=who(layout, access.agent))


def _alone(layout: Layout, role: str) -> bool:
    """Whether it is a role of one warp, or of warps that no plan names."""
    return role == "idle" or layout.plan.role(role).warps == 1


def _ordered(layout: Layout, first: int, second: int, array: str) -> str:
    """How two accesses by threads are ordered by what a body can do."""
    role, later = layout.role(first), layout.role(second)
    if role != later or _alone(layout, role) or first // layout.warps != second // layout.warps:
        return f"let {later} wait until {role} is done with {array}: for a slot that it hands on then, or by k.sync in both"
    of = layout.plan.role(role)
    if of.team(first % layout.warps) != of.team(second % layout.warps):
        return f"let the teams of {role} do this in turns: `with k.<name>.turn()` of a Turnstile({role}, stores=({array},))"
    return f"let {role} call k.sync() between the two"


def _foreign_wait(slots: Slots, before: SlotAccess, access: SlotAccess) -> Step | None:
    """A wait for bulk groups after the store and before the access, by a warp that has no groups of its own."""
    clock: Any = slots.clocks.of[access.agent]
    for agent in slots.layout.cta_warps(slots.layout.cta_of(before.agent)):
        wait = slots.idle_waits.get(agent) if agent != before.agent else None
        if wait is not None and clock[agent] >= wait.time and wait.order > before.step.order:
            return wait
    return None


# ---- slots -----------------------------------------------------------------------------------------------------------
#
# An access is over for a later one if the past of the later one has this:
#
# threads read or write   the access, published by all lanes of its warp; for the async proxy, their proxy fence after it, too
# raw, by async proxy     the access, published by all lanes of its warp
# TMA load writes         a wait for the phase that its bytes complete
# cp.async writes         a wait for the phase that its lanes complete; for the async proxy, a proxy fence after that, too
# copy to a peer reads    a wait for the phase of the peer's barrier that its bytes complete
# TMA store reads         the issuing thread's wait_group(.read) for its group
# wgmma reads             a wgmma wait_group for its group, by one of the warpgroup's warps
#
# Of each slot the last access of each kind and agent is kept: what is ordered after it is ordered after earlier ones.


History = dict[Any, dict[int, dict[Any, SlotAccess]]]  # by cut and part, as of `_cut`


def _every(history: History) -> Iterator[dict[Any, SlotAccess]]:
    return chain.from_iterable(parts.values() for parts in history.values())


class Slots(Rules):
    """The accesses to all slots of a cluster, and the waits that end the asynchronous ones."""

    kept = ("bulk_waits", "mma_waits", "mma_issued", "idle_waits", "async_slots", "covering")
    in_flight = ("flights", "copied")

    def __init__(self, clocks: Clocks, log: FindingLog):
        super().__init__(clocks, log)
        layout = log.layout
        self.history: list[History] = [{} for _ in range(layout.ctas * layout.nslots)]  # by slot
        self.own: set[int] = set()  # slots whose history no copy shares
        self.flights: dict[Flight, list[SlotAccess]] = {}
        self.bulk_waits = [Waits() for _ in range(layout.agents)]
        self.mma_waits = [Waits() for _ in range(layout.agents)]
        self.mma_issued: dict[tuple[int, int], Clock] = {}  # (warpgroup, serial) -> what its four issues have executed
        self.idle_waits: dict[int, Step] = {}  # of warps with no groups that could have been waited for
        self.async_slots: set[int] = set()  # of a CTA, that TMA or wgmma touch
        self.covering: dict[int, set[Part]] = {}  # place -> parts that copies have been started to, until they are all
        self.copied: dict[tuple[int, int], set[int]] = {}  # (mbarrier, phase) -> slots that cp.async has written then

    def copy(self, clocks: Clocks) -> Slots:
        """As in `Rules`: histories are shared until one of the two changes them."""
        other: Slots = super().copy(clocks)
        other.history, other.own, self.own = list(self.history), set(), set()
        return other

    def _own(self, place: int) -> History:
        """The history of a slot, which is about to change."""
        if place not in self.own:
            self.own.add(place)
            parts = self.history[place].items()
            self.history[place] = {cut: {i: dict(known) for i, known in each.items()} for cut, each in parts}
        return self.history[place]

    def facts(self, state: State, by_all: list[int]) -> Iterator[tuple[FactName, Known]]:
        for slot, history in enumerate(self.history):
            for access in chain.from_iterable(known.values() for known in _every(history)):
                ends = self._ends(access) if access.kind in (STORE, MMA) else {}
                over = _known_by_waits(ends) if ends else self.over(access)
                fenced = access.kind in GENERIC
                if not fenced and None not in ends.values() and knows(by_all, over):
                    continue
                by = access.bar if access.kind in COUNTED else next(iter(ends), access.agent)
                key: FactName = ("slot", slot, access.kind, access.part, by)
                yield key, over
                if fenced:
                    yield (*key, "fenced"), self.fenced(access)
                for agent, wait in ends.items():
                    if wait is None:  # it will be for the groups or wgmmas up to one counted from the latest
                        thread = access.step.thread if access.kind == STORE else agent
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
        kind = (THREADS if proxy is Proxy.GENERIC else RAW)[effect.write]
        part = part_of(effect, op)
        access = SlotAccess(kind, part, step, slot)
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
            access = SlotAccess(kind, part, step, slot)
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
        """One of the four warps of a warpgroup issues a wgmma."""
        key = flight.issuer, flight.serial
        if key not in self.mma_issued:
            self.mma_issued[key] = self.clocks.zero()
        self.clocks.join_executed(self.clocks.of[agent], self.mma_issued[key])

    def _covered(self, place: int, part: Part) -> None:
        """Copies to a part of a slot have been started. With those to its last part, all that was accessed before is over for
        whoever comes after the copies, though their arrivals release nothing: the copies themselves came after it.
        """
        started = self.covering.setdefault(place, set())
        if part in started:
            started.clear()
        started.add(part)
        if len(started) == part[2]:
            for known in _every(self._own(place)):
                for key in [key for key, access in known.items() if access.kind != COPY]:
                    del known[key]
            started.clear()

    def landed(self, flight: Flight, phase: int) -> None:
        """The end of a load or copy has been counted in *phase*."""
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

    def _access(self, cta: int, access: SlotAccess, by: int) -> None:
        """An access to a slot of *cta*. by: the agent that makes accesses of this kind one after another, of which the last is
        kept."""
        layout, slot = self.layout, access.slot
        base = cta * layout.nslots
        clock = self.clocks.of[access.agent]
        writes, (cut, which) = access.kind in WRITES, _cut(access.part)
        own = self._own(base + slot)
        for alias in layout.aliases[slot]:
            for other, parts in self.history[base + alias].items():
                touched: Collection[dict[Any, SlotAccess]] = parts.values()
                if other == cut and alias == slot:  # the other parts are other bytes
                    touched = (parts[which],) if which in parts else ()
                for of, before, known in [(*each, part) for part in touched for each in part.items()]:
                    if (not writes and before.kind not in WRITES) or before.kind == access.kind == REDUCE:
                        continue
                    kind = self.order(before, access, clock)
                    if kind is not None:
                        report_race(self, kind, before, access, base + slot, base + alias)
                    elif before.kind == SEND and access.kind == WRITE and alias == slot:
                        del known[of]  # whoever writes next comes after this write, and so after that read
        own.setdefault(cut, {}).setdefault(which, {})[access.part[0], access.kind, by] = access

    def order(self, before: SlotAccess, access: SlotAccess, clock: Clock) -> Kind | None:
        """None if *before* is over for *access*, which happens, or is issued, with *clock*; else what is wrong."""
        if before.agent == access.agent and before.kind not in (STORE, MMA, *COUNTED):
            same = before.part == access.part and before.slot == access.slot and access.kind in THREADS
            if before.kind in RAW or same:  # each thread its own elements
                return None
        if not knows(clock, self.over(before)):
            return Kind.STORE_SOURCE_REUSED if before.kind == STORE else Kind.RACE
        crossing = before.kind in GENERIC and access.kind not in GENERIC
        return Kind.PROXY if crossing and not knows(clock, self.fenced(before)) else None

    def over(self, access: SlotAccess) -> Known:
        """What tells that an access is over."""
        if access.kind in COUNTED:
            return () if access.number is None else ((self.clocks.phases + access.bar, access.number + 1),)
        if access.kind in (STORE, MMA):
            return _known_by_waits(self._ends(access))
        return ((self.clocks.published + access.agent, access.time),)

    def fenced(self, access: SlotAccess) -> Known:
        """What tells that a proxy fence came after an access by threads, or by their copies."""
        if access.kind == COPY:
            return () if access.number is None else ((self.clocks.handed_on + access.bar, access.number + 1),)
        return ((self.clocks.fenced + access.agent, access.time),)

    def _ends(self, access: SlotAccess) -> dict[int, Step | None]:
        """By warp, the wait that ended a store, or a wgmma: the wait of any of the warpgroup's four warps."""
        if access.kind == STORE:
            return {access.agent: self.bulk_waits[access.agent].first(access.number)}
        four = self.layout.group_warps(self.layout.group_of(access.agent)) if access.kind == MMA else ()
        return {agent: self.mma_waits[agent].first(access.number) for agent in four}


def _known_by_waits(ends: dict[int, Step | None]) -> Known:
    return tuple([(agent, wait.time) for agent, wait in ends.items() if wait is not None])


@functools.cache
def _cut(part: Part) -> tuple[tuple[str, int], int]:
    """How a slot is cut, however a part is distributed over lanes; and which part of that this is."""
    return (part[0].split("/")[0], part[2]), part[1]


# ---- fences ----------------------------------------------------------------------------------------------------------
#
# Proxy fences that order nothing are reported as notes.


class Fences:
    """Proxy fences, by source line.

    A line is redundant if, each time that the run came by, the warp had not accessed any slot that TMA or wgmma access, in
    this run or another one of the program, since its last fence.
    """

    def __init__(self, clocks: Clocks, log: FindingLog, slots: Slots):
        self.clocks, self.log, self.slots = clocks, log, slots
        self.touched: list[set[int]] = [set() for _ in range(clocks.agents)]  # slots since the last fence
        self.lines: dict[Any, tuple[set[int], Step]] = {}

    def access(self, agent: int, slot: int) -> None:
        self.touched[agent].add(slot)

    def fence(self, step: Step) -> None:
        agent, where = step.agent, step.op.where
        again = self.clocks.fence[agent] == step.time - 1  # the same line, once more at once
        self.clocks.fence_proxy(agent)
        key = (self.log.layout.role(agent), where, again) if where else (agent, step.time)
        self.lines.setdefault(key, (set(), step))[0].update(self.touched[agent])
        self.touched[agent].clear()

    def finish(self, through_async: Container[str]) -> None:
        """After a run. through_async: names of what TMA or wgmma access in other runs."""
        layout = self.log.layout
        touched = self.slots.async_slots | {i for i in range(layout.nslots) if layout.slots[i][0].name in through_async}
        wanted = {alias for slot in touched for alias in layout.aliases[slot]}
        for covered, step in self.lines.values():
            if covered & wanted:
                continue
            names = ", ".join(dict.fromkeys(layout.slots[slot][0].name for slot in sorted(covered)))
            why = f"only threads touch {names}" if names else "it has touched no slot since its last fence"
            text = f"the proxy fence of {who(layout, step.agent)} orders nothing: {why}"
            fix = "none: a `with` block put it there, and it does no harm"
            self.log.add(Kind.REDUNDANT_FENCE, text, "drop this fence" if _asked_for(step.op.where) else fix, step)


def _asked_for(where: str | None) -> bool:
    """Whether the source line itself asks for the fence."""
    path, _, line = (where or ":0").rpartition(":")
    return where is None or "fence" in linecache.getline(path, int(line))
