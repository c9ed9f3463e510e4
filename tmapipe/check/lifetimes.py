"""Rules of what must exist when it is used: initialized barriers, CTAs that have not exited, and the right scope and role.

- A barrier's initialization has been released to its users; to peers and the async proxy, with a fence.mbarrier_init after it.
- The last warp of a CTA returns only after every remote arrival at it, and after every load to it that some warp of it waited
for. - An arrival at a peer has cluster scope. Only the roles of a ring wait for its barriers.
"""

from __future__ import annotations

from typing import Any

from tmapipe.check.clocks import Clock, Clocks
from tmapipe.check.findings import Kind
from tmapipe.check.log import FindingLog, Step
from tmapipe.isa.effects import Scope, Start, declared
from tmapipe.isa.operands import Kind as OperandKind
from tmapipe.machine.describe import bar_name, who
from tmapipe.machine.layout import Layout

__all__ = ["Lifetimes"]


class Lifetimes:
    """Initializations, exits, and what reaches other CTAs."""

    def __init__(self, clocks: Clocks, log: FindingLog, shapes: dict[str, tuple[int, ...]]):
        self.clocks, self.log, self.layout, self.shapes = clocks, log, log.layout, shapes
        self.inits: dict[int, tuple[int, Step]] = {}  # mbarrier -> (time, step)
        self.fences: dict[int, list[int]] = {}  # warp -> times of fence.mbarrier_init
        self.visible: set[tuple[int, int, bool]] = set()  # (agent, mbarrier, far): shown once, true from then on
        self.exits: list[Clock] = [clocks.zero() for _ in range(self.layout.ctas)]  # joined over the CTA's warps
        self.arrivals: dict[tuple[int, int], tuple[int, int, Step]] = {}  # (CTA, peer's warp) -> time, mbarrier, step
        self.reads: dict[tuple[int, int], tuple[int, Step]] = {}  # (CTA, peer's warp) -> time, step
        self.landings: dict[int, tuple[int, Step]] = {}  # mbarrier -> last phase that bytes counted in, and their load
        self.sent: dict[
            tuple[int, int], tuple[int, Step]
        ] = {}  # (CTA, mbarrier) -> last phase that its slots' bytes counted in
        self.waiters = _waiters(self.layout)

    def take(self, other: Lifetimes) -> None:
        """Copies *other*, to go on independently."""
        self.reads = dict(other.reads)
        self.inits = dict(other.inits)
        self.fences = {agent: list(times) for agent, times in other.fences.items()}
        self.visible, self.exits = set(other.visible), [clock.copy() for clock in other.exits]
        self.arrivals, self.landings, self.sent = dict(other.arrivals), dict(other.landings), dict(other.sent)

    # ---- initialization -------------------------------------------------------------------------------------------

    def init(self, agent: int, op: Any, bar: int) -> None:
        """The warp initializes an mbarrier."""
        self.inits[bar] = self.clocks.time[agent], Step(self.log.order, agent, op)

    def fence_init(self, agent: int) -> None:
        self.fences.setdefault(agent, []).append(self.clocks.time[agent])

    def use(self, agent: int, op: Any, bar: int, far: bool) -> None:
        """A warp uses a barrier. far: from another CTA, or through the async proxy."""
        key = agent, bar, far
        if key in self.visible:
            return
        init = self.inits.get(bar)
        if init is None:
            return  # the machine says so
        time, step = init
        by: int = step.agent  # type: ignore[assignment]
        clock = self.clocks.of[agent]
        fenced = any(time <= fence <= clock[by] for fence in self.fences.get(by, ()))
        if fenced or (not far and (by == agent or clock[self.clocks.told + by] >= time)):
            self.visible.add(key)
            return
        fenced = any(time <= fence for fence in self.fences.get(by, ()))
        group = "cluster" if self.layout.ctas > 1 else "CTA"
        why = f"a {group} barrier" if fenced or not far else f"fence_mbarrier_init, and then a {group} barrier,"
        first = who(self.layout, by)
        use = "the TMA engine" if declared(type(op)).effect(Start) and far else who(self.layout, agent)
        text = (
            f"{use} uses {bar_name(self.layout, bar)}; nothing makes its initialization by {first} visible there",
            f"put {why} between the initialization and the first use",
        )
        self.log.add(Kind.INIT_NOT_VISIBLE, text, Step(self.log.order, agent, op), step, bar=bar)

    # ---- who may do what ------------------------------------------------------------------------------------------

    def wait(self, agent: int, op: Any, own: int) -> None:
        """Only a ring's own roles wait for its barriers. own: the mbarrier's number in the CTA."""
        ring, roles = self.waiters.get(own, ("", ()))
        if not ring or self.layout.role(agent) in roles:
            return
        name, flat = self.layout.bar_name(own), agent // self.layout.warps * self.layout.nbars + own
        text = (
            f"{who(self.layout, agent)} waits for {name} of ring {ring}, which belongs to {' and '.join(roles)}",
            f"leave the tail of {ring}, and every other wait for {name.split('[')[0]}, to {' or '.join(roles)}",
        )
        self.log.add(Kind.TAIL_OWNER, text, Step(self.log.order, agent, op), bar=flat)

    def arrive_far(self, agent: int, op: Any, bar: int, scope: Scope | None) -> None:
        """A remote arrival."""
        step = Step(self.log.order, agent, op)
        self.arrivals[bar // self.layout.nbars, agent] = self.clocks.time[agent], bar, step
        if scope is Scope.CTA:
            text = (
                f"{who(self.layout, agent)} arrives at {bar_name(self.layout, bar)}, a peer's barrier, with {scope.value} "
                "scope: what it did before need not be visible to the peer",
                "arrive with cluster scope (mbarrier.arrive.release.cluster)",
            )
            self.log.add(Kind.SCOPE, text, step, bar=bar)

    def read_far(self, agent: int, op: Any, cta: int) -> None:
        """A read of a slot of another CTA."""
        self.reads[cta, agent] = self.clocks.time[agent], Step(self.log.order, agent, op)

    def start_tile(self, agent: int, op: Any, part: str, at: tuple[int, ...], anywhere: bool) -> None:
        """A tile has a coordinate for each dimension, and a load starts inside its tensor, unless it may start *anywhere*;
        stores may, since nothing is written there.

        Along an axis of the cluster, this is asked of the CTA at the cluster's origin.
        """
        load, last = self.layout.loads.get(part), Step(self.log.order, agent, op)
        dims = (load or self.layout.stores[part]).dims
        if len(at) != len(dims):
            text = f"{who(self.layout, agent)} gives {len(at)} coordinates for a tile of {part}, which has {', '.join(dims)}"
            self.log.add(Kind.OUT_OF_RANGE, (text, "give one coordinate a dimension"), last)
        if load is None or anywhere:
            return
        shape = self.shapes.get(load.argument, ())
        for dim, start, extent, step in zip(load.dims, at, shape, load.span, strict=False):
            reach = step * (self.layout.plan.cluster.get(dim, 1) - 1)
            if not 0 <= start < max(extent, 1) + reach:
                text = (
                    f"{who(self.layout, agent)} loads {part} from {dim} = {start} on, but the tensor ends at {extent}"
                )
                fix = f"let the loop of {self.layout.role(agent)} end with the tensor, or guard the load"
                self.log.add(Kind.OUT_OF_RANGE, (text, fix), last)

    def landed(self, bar: int, phase: int, step: Step) -> None:
        """Bytes of a load were counted."""
        self.landings[bar] = phase, step
        if any(not start.write for start in declared(type(step.op)).all(Start)):
            self.sent[step.agent // self.layout.warps, bar] = phase, step  # type: ignore[operator]

    # ---- exit -----------------------------------------------------------------------------------------------------

    def exit(self, agent: int) -> None:
        self.clocks.release(agent, self.exits[agent // self.layout.warps], all_lanes=True)

    def finish(self) -> None:
        """After the run: whatever reached a CTA did so before its last warp returned."""
        for (cta, agent), (time, bar, step) in self.arrivals.items():
            barrier = self.layout.bars[bar % self.layout.nbars][0].name
            if self.exits[cta][agent] < time:
                text = (
                    f"CTA {cta} can leave before {who(self.layout, agent)} arrives at its {self.layout.bar_name(bar)}",
                    f"let a warp of each CTA wait for its peers' last arrivals at {barrier} (the ring's tail), or for a "
                    "cluster barrier, before it returns",
                )
                self.log.add(Kind.EXITED_PEER, text, step, bar=bar)
        for (cta, agent), (time, step) in self.reads.items():
            if self.exits[cta][agent] < time:
                text = (
                    f"CTA {cta} can leave before {who(self.layout, agent)} reads its {self.layout.slot_name(step.op.slot)}",
                    "let a warp of each CTA wait for its peers' last releases (the ring's tail) before it returns",
                )
                self.log.add(Kind.EXITED_PEER, text, step)
        for bar, (phase, step) in self.landings.items():
            cta = bar // self.layout.nbars
            if self.exits[cta][self.clocks.phases + bar] > phase:
                continue
            own = step.agent // self.layout.warps == cta  # type: ignore[operator]
            barrier = self.layout.bars[bar % self.layout.nbars][0].name
            slot = self.layout.slot_name(getattr(step.op, declared(type(step.op)).named(OperandKind.SLOT)[0]))
            where = f"CTA {cta}" if self.layout.ctas > 1 else "the CTA"
            text = (
                f"{where} can leave while a TMA load issued by {who(self.layout, step.agent)} is on its way into its {slot}: "
                f"no warp of it waits for phase {phase} of {bar_name(self.layout, bar)}",
                f"wait for every phase of {barrier} that is loaded, or do not load what nobody uses",
            )
            self.log.add(Kind.IN_FLIGHT_AT_EXIT if own else Kind.EXITED_PEER, text, step, bar=bar, phase=phase)
        for (cta, bar), (phase, step) in self.sent.items():
            if self.exits[cta][self.clocks.phases + bar] > phase:
                continue
            slot = self.layout.slot_name(getattr(step.op, declared(type(step.op)).named(OperandKind.SLOT)[1]))
            text = (
                f"CTA {cta} can leave while a copy issued by {who(self.layout, step.agent)} reads its {slot}: no warp of it "
                f"knows that phase {phase} of {bar_name(self.layout, bar)} is complete",
                "let a warp of each CTA wait for its peers' last releases (the ring's tail) before it returns",
            )
            self.log.add(Kind.EXITED_PEER, text, step, bar=bar, phase=phase)


def _waiters(layout: Layout) -> dict[int, tuple[str, tuple[str, ...]]]:
    """mbarrier (of a CTA) -> (ring, the roles of the phase that waits for it)."""
    found = {}
    for ring in layout.plan.rings:
        for phase, barrier in enumerate(ring.barriers):
            roles = ring.phases[(phase + 1) % len(ring.phases)]
            for stage in range(barrier.stages):
                found[layout.bar_base[barrier.name] + stage] = (ring.name, roles)
    return found
