"""The linear check: one run of the machine, watched with vector clocks, decides every interleaving.

A clock is an array of integers, three parts side by side:

    events    for each warp: how many of its events lie in one's past
    fenced    for each warp: how many of its events lie before some proxy fence that lies in one's past
    phases    for each mbarrier of the cluster: how many of its phases are known to be complete

Clocks join (elementwise maximum) where the hardware orders: an arrival into the phase it counts in, a completed phase into
whoever waits for it, the CTA's, the named and the cluster's barriers. A TMA load carries its issuer's clock to the phase that
its bytes count in. `docs/checker.md` has the argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tmapipe.check.findings import Event, Finding, Kind
from tmapipe.machine import ops
from tmapipe.machine.layout import Layout
from tmapipe.machine.ops import Flight

__all__ = ["LinearCheck"]

Clock = np.ndarray


class Access(NamedTuple):
    """One access to a slot. proxy: "generic" or "async"; agent, time: the warp's event that made or issued it; bar, phase:
    a load's, whose completion ends it; part: of a slot dealt over warps, (cut, number, of)."""

    write: bool
    proxy: str
    what: str
    agent: int
    time: int
    order: int
    where: str | None
    bar: int = -1
    phase: int = -1
    part: tuple[str, int, int] | None = None


class LinearCheck:
    """Watches one run: pass `watch` as the scheduler's watcher, then call `finish`. `findings` then has what is wrong, each
    thing once for each pair of source lines."""

    def __init__(self, layout: Layout, shapes: dict[str, tuple[int, ...]]):
        self.layout, self.shapes = layout, shapes
        self.warps, self.bars = layout.agents, layout.ctas * layout.nbars
        size = 2 * self.warps + self.bars
        self.clock = [np.zeros(size, np.int64) for _ in range(self.warps)]
        self.time = [0] * self.warps
        self.gathering = [np.zeros(size, np.int64) for _ in range(self.bars)]  # of the present phase
        self.landed = [False] * self.bars  # whether bytes have landed in the present phase
        self.complete: list[list[Clock]] = [[] for _ in range(self.bars)]
        self.waits: list[list[tuple[int, int, int, Any]]] = [[] for _ in range(self.bars)]
        self.barriers: dict[tuple[Any, int], Clock] = {}  # (which, generation) -> clock of those that arrived
        self.flights: dict[Flight, tuple[Clock, int, Any]] = {}
        self.history: list[dict[Any, Access]] = [{} for _ in range(layout.ctas * layout.nslots)]
        self.retired: dict[tuple[int, int], int] = {}  # (issuer, serial of a store) -> time of the wait that freed it
        self.wgmma_done: list[list[tuple[int, int]]] = [[] for _ in range(self.warps)]  # (serials below, time)
        self.stores: dict[int, list[list[int]]] = {}
        self.uncommitted: dict[int, list[int]] = {}
        self.inits: dict[int, tuple[int, int]] = {}
        self.init_fence: dict[int, list[int]] = {}
        self.last_fence = [-1] * self.warps
        self.last_generic = [-1] * self.warps
        self.known_at_fence: list[Any] = [None] * self.warps
        self.armed_by: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.remote: dict[tuple[int, int], tuple[int, str]] = {}
        self.remote_load: dict[int, tuple[int, int, Any]] = {}
        self.exit_clock = [np.zeros(size, np.int64) for _ in range(layout.ctas)]
        self.last_issue: dict[int, Any] = {}  # the warp's last asynchronous operation
        self.order = 0
        self.findings: dict[Any, Finding] = {}
        self.users = _users(layout)
        self.handlers: dict[type, Callable[[Any, Any, Any], None]] = {
            ops.MbarInit: self._init,
            ops.FenceMbarInit: self._fence_init,
            ops.MbarWait: self._wait,
            ops.MbarArrive: self._arrive,
            ops.MbarArriveCluster: self._arrive,
            ops.MbarArriveTx: self._arrive,
            ops.MbarExpectTx: self._arrive,
            ops.BarArrive: self._bar_arrive,
            ops.BarWait: self._bar_wait,
            ops.ClusterArrive: self._cluster_arrive,
            ops.ClusterWait: self._cluster_wait,
            ops.FenceProxyAsync: self._fence,
            ops.TmaLoad: self._load,
            ops.LoadComplete: self._landed,
            ops.TmaStore: self._store,
            ops.BulkCommit: self._commit,
            ops.BulkWait: self._bulk_wait,
            ops.Wgmma: self._wgmma,
            ops.WgmmaWait: self._wgmma_wait,
            ops.SlotRead: self._generic,
            ops.SlotWrite: self._generic,
            ops.Exit: self._exit,
        }

    def watch(self, agent: Any, op: Any, facts: Any) -> None:
        """One transition of the machine, in the order of execution."""
        self.order += 1
        handler = self.handlers.get(type(op))
        if handler is not None:
            if type(agent) is int:
                self.time[agent] += 1
                self.clock[agent][agent] = self.time[agent]
            handler(agent, op, facts)

    # ---- mbarriers ------------------------------------------------------------------------------------------------

    def _init(self, agent: int, op: Any, facts: Any) -> None:
        self.inits[agent // self.layout.warps * self.layout.nbars + op.bar] = (agent, self.time[agent])

    def _fence_init(self, agent: int, op: Any, facts: Any) -> None:
        self.init_fence.setdefault(agent, []).append(self.time[agent])

    def _usable(self, agent: Any, op: Any, bar: int, clock: Clock, far: bool) -> None:
        """The barrier's initialization lies in the past; for a peer's or the async proxy's use, with the fence between."""
        init = self.inits.get(bar)
        if init is None:
            return
        by, time = init
        if not far:
            ok = clock[by] >= time
        else:
            ok = any(time < fence <= clock[by] for fence in self.init_fence.get(by, ()))
        if not ok:
            missing = "fence.mbarrier_init and a cluster barrier" if far else "a CTA or cluster barrier"
            self._find(
                Kind.INIT_NOT_VISIBLE,
                f"{self._who(agent)} uses {self._bar(bar)} while nothing makes its initialization visible there",
                f"put {missing} between the initialization and the first use",
                (agent, op),
                bar=bar,
            )

    def _wait(self, agent: int, op: Any, phase: int) -> None:
        bar = agent // self.layout.warps * self.layout.nbars + op.bar
        clock = self.clock[agent]
        self._usable(agent, op, bar, clock, far=False)
        ring, roles = self.users.get(op.bar, ("", ()))
        if ring and self.layout.role(agent) not in roles:
            self._find(
                Kind.TAIL_OWNER,
                f"{self._who(agent)} waits for {self._bar(bar)} of ring {ring}, which {' and '.join(roles)} waits for",
                "let only the role that owns this phase of the ring wait for it, also in the tail",
                (agent, op),
                bar=bar,
            )
        if phase > 0 and not self._knows(clock, bar, phase - 1):
            self._find(
                Kind.LAPPED_WAIT,
                f"{self._who(agent)} waits for phase {phase} of {self._bar(bar)} (parity {op.parity}) without knowing that "
                f"phase {phase - 1} is complete, so the wait can return two phases early",
                "wait for every phase of the barrier in turn",
                (agent, op),
                bar=bar,
                phase=phase,
            )
        if phase >= 0:
            np.maximum(clock, self.complete[bar][phase], out=clock)
            place = 2 * self.warps + bar
            if clock[place] <= phase:
                clock[place] = phase + 1
        self.waits[bar].append((phase, agent, self.time[agent], op))

    def _knows(self, clock: Clock, bar: int, phase: int) -> bool:
        """Whether the completion of *phase* lies in the clock's past: by a wait, or every contribution to it does."""
        return phase < 0 or clock[2 * self.warps + bar] > phase or bool((clock >= self.complete[bar][phase]).all())

    def _arrive(self, agent: int, op: Any, facts: Any) -> None:
        own = agent // self.layout.warps
        clock = self.clock[agent]
        if type(op) is ops.MbarArrive and len(facts) > 1:
            bar = own * self.layout.nbars + op.bar
            count = self.layout.bars[op.bar][0].count
            self._find(
                Kind.SURPLUS_ARRIVAL,
                f"{op.lanes.bit_count()} lanes of {self._who(agent)} arrive at {self._bar(bar)}, whose count is {count}: they "
                f"complete phase {facts[0].phase} and count on in the next",
                "let one lane arrive, or count the lanes",
                (agent, op),
                bar=bar,
                phase=facts[0].phase,
            )
        for counted in facts:
            bar = counted.cta * self.layout.nbars + counted.bar
            far = counted.cta != own
            self._usable(agent, op, bar, clock, far)
            if far and getattr(op, "scope", "cluster") != "cluster":
                self._find(
                    Kind.SCOPE,
                    f"{self._who(agent)} arrives at {self._bar(bar)} with CTA scope, which orders nothing for a peer",
                    "arrive with cluster scope",
                    (agent, op),
                    bar=bar,
                )
            if far:
                self.remote[counted.cta, agent] = (self.time[agent], self._bar(bar))
            if counted.nbytes > 0:
                self.armed_by.setdefault((bar, counted.phase), []).append((agent, self.time[agent]))
            self._count(agent, op, counted, bar, clock)

    def _count(self, agent: Any, op: Any, counted: Any, bar: int, clock: Clock) -> None:
        """One contribution to the present phase, which must not be able to count in the phase before."""
        if not self._knows(clock, bar, counted.phase - 1):
            count = self.layout.bars[counted.bar][0].count
            self._find(
                Kind.EARLY_ARRIVAL,
                f"{self._who(agent)} {self._verb(op)} {self._bar(bar)} for phase {counted.phase}, but can do so before phase "
                f"{counted.phase - 1} is complete (count {count})",
                "let it wait for the phase before, or check the barrier's count and bytes",
                (agent, op),
                bar=bar,
                phase=counted.phase,
            )
        np.maximum(self.gathering[bar], clock, out=self.gathering[bar])
        if counted.nbytes < 0:
            self.landed[bar] = True
        if counted.completed:
            self._completed(bar, counted.phase)

    def _completed(self, bar: int, phase: int) -> None:
        done = self.gathering[bar]
        if self.landed[bar]:
            done[2 * self.warps + bar] = phase + 1
        self.complete[bar].append(done)
        self.gathering[bar] = np.zeros_like(done)
        self.landed[bar] = False
        for seen, agent, time, op in self.waits[bar]:
            if seen == phase - 1 and done[agent] < time:
                self._find(
                    Kind.LAPPED_WAIT,
                    f"{self._bar(bar)} can complete phase {phase} before {self._who(agent)} has seen phase {seen}, whose wait "
                    f"(parity {op.parity}) then misses it",
                    "let the waiter arrive in every phase that it waits for",
                    (agent, op),
                    bar=bar,
                    phase=phase,
                )
        self.waits[bar] = [wait for wait in self.waits[bar] if wait[0] >= phase]

    # ---- other barriers and fences --------------------------------------------------------------------------------

    def _bar_arrive(self, agent: int, op: Any, facts: Any) -> None:
        self._join((agent // self.layout.warps, op.id), facts[0], agent)

    def _bar_wait(self, agent: int, op: Any, generation: int) -> None:
        self._take((agent // self.layout.warps, op.id), generation, agent)

    def _cluster_arrive(self, agent: int, op: Any, facts: Any) -> None:
        self._join("cluster", facts[0], agent)

    def _cluster_wait(self, agent: int, op: Any, generation: int) -> None:
        self._take("cluster", generation, agent)

    def _join(self, which: Any, generation: int, agent: int) -> None:
        clock = self.barriers.get((which, generation))
        self.barriers[which, generation] = (
            self.clock[agent].copy() if clock is None else np.maximum(clock, self.clock[agent])
        )

    def _take(self, which: Any, generation: int, agent: int) -> None:
        clock = self.barriers.get((which, generation))
        if clock is not None:
            np.maximum(self.clock[agent], clock, out=self.clock[agent])

    def _fence(self, agent: int, op: Any, facts: Any) -> None:
        clock, n = self.clock[agent], self.warps
        if self.last_fence[agent] >= 0 and self.last_generic[agent] < self.last_fence[agent]:
            self._find(
                Kind.REDUNDANT_FENCE,
                f"{self._who(agent)} fences twice without an access between",
                "drop the second fence",
                (agent, op),
            )
        self.last_fence[agent] = self.time[agent]
        np.maximum(clock[n : 2 * n], clock[:n], out=clock[n : 2 * n])

    # ---- slots ----------------------------------------------------------------------------------------------------

    def _generic(self, agent: int, op: Any, facts: Any) -> None:
        write = type(op) is ops.SlotWrite
        self.last_generic[agent] = self.time[agent]
        what = f"{self._who(agent)} {'writes' if write else 'reads'}"
        access = Access(
            write, "generic", what, agent, self.time[agent], self.order, op.where, part=(op.split, op.part, op.parts)
        )
        self._access(agent // self.layout.warps, op.slot, access, self.clock[agent], op)

    def _load(self, agent: int, op: Any, facts: Any) -> None:
        clock = self.clock[agent].copy()
        self._inside(agent, op)
        self.last_issue[agent] = op
        for flight in facts:
            self.flights[flight] = (clock, op.slot, op)

    def _inside(self, agent: int, op: Any) -> None:
        """A load starts inside its tensor; along a cluster's axis, the CTA at the cluster's origin does."""
        load = self.layout.loads[op.load]
        shape = self.shapes.get(load.argument, ())
        for dim, start, extent, step in zip(load.dims, op.at, shape, load.tile, strict=False):
            reach = step * (self.layout.plan.cluster.get(dim, 1) - 1)
            if start - reach >= max(extent, 1) or start < 0:
                self._find(
                    Kind.OUT_OF_RANGE,
                    f"{self._who(agent)} loads {load.name} from {dim} = {start} on, but the tensor ends at {extent}",
                    "issue no load past the end",
                    (agent, op),
                    slot=self.layout.slot_name(op.slot),
                )

    def _landed(self, flight: Flight, op: Any, facts: Any) -> None:
        clock, slot, issue = self.flights.pop(flight)
        agent = flight.issuer
        for counted in facts:
            bar = counted.cta * self.layout.nbars + counted.bar
            own = agent // self.layout.warps
            self._usable(agent, issue, bar, clock, far=True)
            armed = self.armed_by.get((bar, counted.phase), ())
            if own == counted.cta and not any(clock[by] >= time for by, time in armed):
                self._find(
                    Kind.COPY_BEFORE_ARM,
                    f"{self._who(agent)} starts a copy to {self._bar(bar)} that nothing orders after the arming of its bytes",
                    "arm the barrier before the copy",
                    (agent, issue),
                    bar=bar,
                    phase=counted.phase,
                )
            what = f"a TMA load by {self._who(agent)} writes"
            access = Access(
                True,
                "async",
                what,
                agent,
                int(clock[agent]),
                self.order,
                issue.where,
                bar=bar,
                phase=counted.phase,
                part=("shares", issue.share, issue.shares),
            )
            self._access(counted.cta, slot, access, clock, issue)
            self.remote_load[bar] = (counted.phase, agent, issue)
            self._count(agent, issue, counted, bar, clock)

    def _store(self, agent: int, op: Any, flight: Any) -> None:
        self.last_issue[agent] = op
        self.uncommitted.setdefault(agent, []).append(flight.serial)
        what = f"a TMA store by {self._who(agent)} reads"
        access = Access(False, "async", what, agent, self.time[agent], self.order, op.where, phase=flight.serial)
        self._access(agent // self.layout.warps, op.slot, access, self.clock[agent], op)

    def _commit(self, agent: int, op: Any, facts: Any) -> None:
        self.stores.setdefault(agent, []).append(self.uncommitted.pop(agent, []))

    def _bulk_wait(self, agent: int, op: Any, groups: int) -> None:
        for group in self.stores.get(agent, [])[:groups]:
            for serial in group:
                self.retired.setdefault((agent, serial), self.time[agent])
            group.clear()

    def _wgmma(self, agent: int, op: Any, facts: Any) -> None:
        flight, _ = facts
        self.last_issue[agent] = op
        for slot in {op.a, op.b}:
            what = f"wgmma by {self._who(agent)} reads"
            access = Access(
                False, "async", what, agent, self.time[agent], self.order, op.where, bar=-2, phase=flight.serial
            )
            self._access(agent // self.layout.warps, slot, access, self.clock[agent], op)

    def _wgmma_wait(self, agent: int, op: Any, serials: int) -> None:
        self.wgmma_done[agent].append((serials, self.time[agent]))

    def _access(self, cta: int, slot: int, access: Access, clock: Clock, op: Any) -> None:
        for alias in self.layout.aliases[slot]:
            history = self.history[cta * self.layout.nslots + alias]
            for key, before in list(history.items()):
                if not (before.write or access.write):
                    continue
                if alias == slot and _disjoint(before.part, access.part):
                    continue
                kind = self._ordered(before, access, clock)
                if kind is not None:
                    self._conflict(kind, before, access, cta, slot, alias, op)
                elif access.write and alias == slot and _covers(access.part, before.part):
                    del history[key]
        key = (access.write, access.proxy, access.agent, access.part, access.bar if access.bar < 0 else 0)
        if access.proxy == "async" and not access.write:
            key = (*key, access.phase)
        self.history[cta * self.layout.nslots + slot][key] = access

    def _ordered(self, before: Access, access: Access, clock: Clock) -> Kind | None:
        """None if *before* lies in the past of *access* (whose issuer's clock is *clock*), else what is wrong."""
        if before.proxy == "generic":
            if clock[before.agent] < before.time:
                return Kind.RACE
            fenced = clock[self.warps + before.agent] >= before.time
            return Kind.PROXY if access.proxy == "async" and not fenced else None
        if before.write:
            return None if clock[2 * self.warps + before.bar] > before.phase else Kind.RACE
        if before.bar == -2:
            times = [time for serials, time in self.wgmma_done[before.agent] if serials > before.phase]
            return None if times and clock[before.agent] >= times[0] else Kind.RACE
        time = self.retired.get((before.agent, before.phase))
        return None if time is not None and clock[before.agent] >= time else Kind.STORE_SOURCE_REUSED

    def _conflict(self, kind: Kind, before: Access, access: Access, cta: int, slot: int, alias: int, op: Any) -> None:
        name, other = self.layout.slot_name(slot), self.layout.slot_name(alias)
        at = f"{name} of CTA {cta}" if self.layout.ctas > 1 else name
        shared = f", which shares bytes with {other}," if alias != slot else ""
        if kind is Kind.PROXY:
            message = (
                f"{access.what} {at}{shared} after {before.what} it by ordinary accesses, without a proxy fence between"
            )
            fix = "put fence.proxy.async after the access by threads, before the synchronization"
        elif kind is Kind.STORE_SOURCE_REUSED:
            message = f"{access.what} {at}{shared} while {before.what} it: no wait_group.read lies between"
            fix = "wait for the store's group (.read) before the slot is handed on"
        else:
            message = f"{access.what} {at}{shared} while {before.what} {other}: nothing orders the two"
            fix = "let the second wait for the first, through the barrier that hands the slot on"
        self._find(kind, message, fix, (access.agent, op), slot=at, first=before)

    # ---- exit -----------------------------------------------------------------------------------------------------

    def _exit(self, agent: int, op: Any, facts: Any) -> None:
        cta = agent // self.layout.warps
        np.maximum(self.exit_clock[cta], self.clock[agent], out=self.exit_clock[cta])

    def finish(self) -> None:
        """After the run: no CTA can have left while a peer still signalled it or wrote to it."""
        for (cta, agent), (time, name) in self.remote.items():
            if self.exit_clock[cta][agent] < time:
                self._find(
                    Kind.EXITED_PEER,
                    f"CTA {cta} can leave before {self._who(agent)} arrives at {name}",
                    "let the CTA wait for its peers' last arrivals (the ring's tail) before it leaves",
                    (agent, None),
                )
        for bar, (phase, agent, issue) in self.remote_load.items():
            cta = bar // self.layout.nbars
            if self.exit_clock[cta][2 * self.warps + bar] <= phase:
                self._find(
                    Kind.IN_FLIGHT_AT_EXIT,
                    f"CTA {cta} can leave before a TMA load by {self._who(agent)} has landed there: nothing waits for phase "
                    f"{phase} of {self._bar(bar)}",
                    "wait for every load before the CTA leaves",
                    (agent, issue),
                    bar=bar,
                )

    # ---- findings -------------------------------------------------------------------------------------------------

    def _who(self, agent: Any) -> str:
        return self.layout.agent_name(agent)

    def _bar(self, bar: int) -> str:
        name = self.layout.bar_name(bar)
        return f"{name} of CTA {bar // self.layout.nbars}" if self.layout.ctas > 1 else name

    @staticmethod
    def _verb(op: Any) -> str:
        return "completes bytes on" if isinstance(op, ops.TmaLoad) else "arrives at"

    def _find(
        self,
        kind: Kind,
        message: str,
        fix: str,
        last: tuple[Any, Any],
        *,
        bar: int | None = None,
        slot: str | None = None,
        phase: int | None = None,
        first: Access | None = None,
    ) -> None:
        agent, op = last
        where = getattr(op, "where", None)
        role = self.layout.role(agent) if isinstance(agent, int) else "?"
        name = self.layout.bar_name(bar).split("[")[0] if bar is not None else (slot or "").split("[")[0]
        key = (kind, role, where, name, first and self.layout.role(first.agent), first and first.where)
        if key in self.findings:
            return
        cta = agent // self.layout.warps
        events = []
        if first is not None:
            events.append(
                Event(
                    first.order,
                    first.agent // self.layout.warps,
                    self._who(first.agent),
                    first.what,
                    first.where,
                    slot=slot,
                )
            )
        events.append(
            Event(
                self.order, cta, self._who(agent), message, where, None if bar is None else self._bar(bar), slot, phase
            )
        )
        places = tuple(dict.fromkeys(p for p in (first and first.where, where) if p))
        agents = tuple(dict.fromkeys([*([self._who(first.agent)] if first else []), self._who(agent)]))
        self.findings[key] = Finding(
            kind, message, fix, agents, places, None if bar is None else self._bar(bar), slot, phase, tuple(events)
        )


def _users(layout: Layout) -> dict[int, tuple[str, tuple[str, ...]]]:
    """mbarrier (of a CTA) -> (ring, the roles of the phase that waits for it)."""
    users = {}
    for ring in layout.plan.rings:
        for phase, barrier in enumerate(ring.barriers):
            roles = ring.phases[(phase + 1) % len(ring.phases)]
            for stage in range(barrier.stages):
                users[layout.bar_base[barrier.name] + stage] = (ring.name, roles)
    return users


def _covers(one: tuple[str, int, int] | None, other: tuple[str, int, int] | None) -> bool:
    """Whether a part takes in another: the whole does, and each part itself."""
    return one is None or one[2] == 1 or one == other


def _disjoint(one: tuple[str, int, int] | None, other: tuple[str, int, int] | None) -> bool:
    """Parts of the same cut with different numbers."""
    if one is None or other is None:
        return False
    return one[0] == other[0] and one[2] == other[2] and one[1] != other[1]
