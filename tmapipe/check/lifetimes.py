"""Rules of what must exist when it is used: initialized barriers, CTAs that have not exited, and the right scope and role.

- A barrier's initialization has been released to its users; to peers and the async proxy, with a fence.mbarrier_init after it.
- The last warp of a CTA returns only after all remote arrivals at it and reads of its slots, and after each load to it and
  copy from it has been counted.
- An arrival at a peer has cluster scope. Only the roles of a ring wait for its barriers.
"""

from __future__ import annotations

from collections.abc import Iterator

from tmapipe.check.clocks import Clock, Clocks, Known, knows
from tmapipe.check.findings import Kind
from tmapipe.check.log import FindingLog, Step
from tmapipe.check.rules import Key, Rules
from tmapipe.isa.effects import Scope, Start, declared
from tmapipe.isa.operands import Kind as OperandKind
from tmapipe.machine.describe import bar_name, who
from tmapipe.machine.layout import Layout, Shapes
from tmapipe.machine.state import State

__all__ = ["Lifetimes"]

WAIT = "let a warp of each CTA wait for its peers' last {} before it returns"
RELEASES = WAIT.format("releases (the ring's tail)")


class Lifetimes(Rules):
    """Initializations, exits, and what reaches other CTAs.

    inits: by mbarrier; fences: by warp, the times of fence.mbarrier_init; visible: (warp, mbarrier, far) of uses that were
    shown to be right, and are from then on; exits: by CTA, joined over its warps; reached: by ("arrival" or "far read", CTA,
    warp of a peer), the last one, with its mbarrier; counted: by (mbarrier, "landing" or "sent", CTA that it goes into or
    comes from), the load or copy of the last bytes that were counted, with their phase.
    """

    kept = ("inits", "fences", "visible", "exits", "reached", "counted")

    def __init__(self, clocks: Clocks, log: FindingLog, shapes: Shapes):
        super().__init__(clocks, log)
        self.shapes = shapes
        self.inits: dict[int, Step] = {}
        self.fences: dict[int, list[int]] = {}
        self.visible: set[tuple[int, int, bool]] = set()
        self.exits: list[Clock] = [clocks.zero() for _ in range(self.layout.ctas)]
        self.reached: dict[tuple[str, int, int], tuple[Step, int | None]] = {}
        self.counted: dict[tuple[int, str, int], Step] = {}
        self.waiters = _waiters(self.layout)

    def facts(self, state: State) -> Iterator[tuple[Key, Known]]:
        for key, (step, _) in self.reached.items():
            yield key, ((step.agent, step.time),)
        for (bar, *what), step in self.counted.items():
            yield ("bar", bar, *what), ((self.clocks.phases + bar, (step.phase or 0) + 1),)
        for bar in self.inits:
            yield ("bar", bar, "init"), self._initialized(bar, far=False)
            yield ("bar", bar, "init, fenced"), self._initialized(bar, far=True)

    # ---- initialization -------------------------------------------------------------------------------------------

    def init(self, step: Step, bar: int) -> None:
        """The warp initializes an mbarrier."""
        self.inits[bar] = step

    def fence_init(self, step: Step) -> None:
        self.fences.setdefault(step.agent, []).append(step.time)

    def _initialized(self, bar: int, far: bool) -> Known:
        """What tells that an mbarrier is initialized. far: to another CTA, or the async proxy."""
        init = self.inits[bar]
        fences = [(init.agent, fence) for fence in self.fences.get(init.agent, ()) if fence >= init.time]
        return tuple(fences[:1]) if far else ((self.clocks.told + init.agent, init.time), *fences[:1])

    def use(self, step: Step, bar: int, far: bool) -> None:
        """A warp uses a barrier. far: from another CTA, or through the async proxy."""
        agent, key = step.agent, (step.agent, bar, far)
        if key in self.visible or bar not in self.inits:  # the machine refuses what is not initialized
            return
        init, known = self.inits[bar], self._initialized(bar, far)
        if (init.agent == agent and not far) or knows(self.clocks.of[agent], known):
            self.visible.add(key)
            return
        group = "cluster" if self.layout.ctas > 1 else "CTA"
        why = f"fence_mbarrier_init, and then a {group} barrier," if far and not known else f"a {group} barrier"
        first = who(self.layout, init.agent)
        use = "the TMA engine" if declared(type(step.op)).effect(Start) and far else who(self.layout, agent)
        text = f"{use} uses {bar_name(self.layout, bar)}; nothing makes its initialization by {first} visible there"
        fix = f"put {why} between the initialization and the first use"
        self.log.add(Kind.INIT_NOT_VISIBLE, text, fix, step, init, bar=bar)

    # ---- who may do what ------------------------------------------------------------------------------------------

    def wait(self, step: Step, own: int) -> None:
        """Only a ring's own roles wait for its barriers. own: the mbarrier's number in the CTA."""
        layout, agent = self.layout, step.agent
        ring, roles = self.waiters.get(own, ("", ()))
        if not ring or layout.role(agent) in roles:
            return
        name = f"{layout.bar_name(own)} of ring {ring}"
        text = f"{who(layout, agent)} waits for {name}, which belongs to {' and '.join(roles)}"
        fix = f"leave the tail of {ring}, and every other wait for {layout.barrier(own).name}, to {' or '.join(roles)}"
        self.log.add(Kind.TAIL_OWNER, text, fix, step, bar=layout.flat_bar(agent, own))

    def arrive_far(self, step: Step, bar: int, scope: Scope | None) -> None:
        """A remote arrival."""
        self.reached["arrival", bar // self.layout.nbars, step.agent] = step, bar
        if scope is Scope.CTA:
            text = (
                f"{who(self.layout, step.agent)} arrives at {bar_name(self.layout, bar)}, a peer's barrier, with "
                f"{scope.value} scope: what it did before need not be visible to the peer"
            )
            fix = "arrive with cluster scope (mbarrier.arrive.release.cluster)"
            self.log.add(Kind.SCOPE, text, fix, step, bar=bar)

    def read_far(self, step: Step, cta: int) -> None:
        """A read of a slot of another CTA."""
        self.reached["far read", cta, step.agent] = step, None

    def start_tile(self, step: Step, part: str, at: tuple[int, ...], anywhere: bool) -> None:
        """A tile has a coordinate for each dimension, and a load starts inside its tensor, unless it may start *anywhere*;
        stores may, since nothing is written there.

        Along an axis of the cluster, this is asked of the CTA at the cluster's origin.
        """
        load, agent = self.layout.loads.get(part), step.agent
        dims = (load or self.layout.stores[part]).dims
        if len(at) != len(dims):
            text = f"{who(self.layout, agent)} gives {len(at)} coordinates for a tile of {part}, which has {', '.join(dims)}"
            self.log.add(Kind.OUT_OF_RANGE, text, "give one coordinate a dimension", step)
        if load is None or anywhere:
            return
        shape = self.shapes.get(load.argument, ())
        for dim, start, extent, span in zip(load.dims, at, shape, load.span, strict=False):
            reach = span * (self.layout.plan.cluster.get(dim, 1) - 1)
            if not 0 <= start < max(extent, 1) + reach:
                text = (
                    f"{who(self.layout, agent)} loads {part} from {dim} = {start} on, but the tensor ends at {extent}"
                )
                fix = f"let the loop of {self.layout.role(agent)} end with the tensor, or guard the load"
                self.log.add(Kind.OUT_OF_RANGE, text, fix, step)

    def landed(self, step: Step, bar: int) -> None:
        """Bytes of a load were counted, in the phase of *step*."""
        self.counted[bar, "landing", bar // self.layout.nbars] = step
        if any(not start.write for start in declared(type(step.op)).all(Start)):
            self.counted[bar, "sent", self.layout.cta_of(step.agent)] = step

    # ---- exit -----------------------------------------------------------------------------------------------------

    def exit(self, agent: int) -> None:
        self.clocks.release(agent, self.exits[self.layout.cta_of(agent)], all_lanes=True)

    def finish(self) -> None:
        """After the run: whatever reached a CTA did so before its last warp returned."""
        layout = self.layout
        for (_, cta, agent), (step, at) in self.reached.items():
            if self.exits[cta][agent] < step.time:
                if at is None:
                    what, fix = f"reads its {layout.slot_name(step.op.slot)}", RELEASES
                else:
                    what = f"arrives at its {layout.bar_name(at)}"
                    fix = WAIT.format(
                        f"arrivals at {layout.barrier(at).name} (the ring's tail), or for a cluster barrier,"
                    )
                text = f"CTA {cta} can leave before {who(layout, agent)} {what}"
                self.log.add(Kind.EXITED_PEER, text, fix, step, bar=at)
        for (bar, what, cta), step in self.counted.items():
            if self.exits[cta][self.clocks.phases + bar] <= (step.phase or 0):
                self._left(step, bar, what == "sent", cta)

    def _left(self, step: Step, bar: int, sent: bool, cta: int) -> None:
        """The last warp of a CTA returned without knowing of this load or copy."""
        layout, issuer, phase = self.layout, who(self.layout, step.agent), step.phase
        slot = layout.slot_name(getattr(step.op, declared(type(step.op)).named(OperandKind.SLOT)[sent]))
        leaves = f"{f'CTA {cta}' if layout.ctas > 1 else 'the CTA'} can leave while a"
        bar_text, kind = f"phase {phase} of {bar_name(layout, bar)}", Kind.EXITED_PEER
        if sent:
            text = f"{leaves} copy issued by {issuer} reads its {slot}: no warp of it knows that {bar_text} is complete"
            fix = RELEASES
        else:
            text = f"{leaves} TMA load issued by {issuer} is on its way into its {slot}: no warp of it waits for {bar_text}"
            fix = f"wait for every phase of {layout.barrier(bar).name} that is loaded, or do not load what nobody uses"
            kind = Kind.IN_FLIGHT_AT_EXIT if layout.cta_of(step.agent) == cta else kind
        self.log.add(kind, text, fix, step, bar=bar, phase=phase)


def _waiters(layout: Layout) -> dict[int, tuple[str, tuple[str, ...]]]:
    """mbarrier (of a CTA) -> (ring, the roles of the phase that waits for it)."""
    found = {}
    for ring in layout.plan.rings:
        for phase, barrier in enumerate(ring.barriers):
            roles = ring.phases[(phase + 1) % len(ring.phases)]
            for stage in range(barrier.stages):
                found[layout.bar_base[barrier.name] + stage] = (ring.name, roles)
    return found
