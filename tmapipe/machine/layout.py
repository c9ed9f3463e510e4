"""Layout: one cluster's parts, numbered for the machine and named for people."""

from __future__ import annotations

import itertools

from tmapipe.isa.ops import Flight
from tmapipe.plan.model import Barrier, Buffer, Plan
from tmapipe.plan.syncs import Syncs

__all__ = ["Layout", "Shapes"]

Shapes = dict[str, tuple[int, ...]]  # of tensors, by name


class Layout:
    """Flat numbers of a cluster's agents, mbarriers and slots.

    Agent (a warp): ``cta * warps + warp``. Within a CTA, mbarriers and slots are numbered in the plan's order; the state
    keeps them for all CTAs at ``cta * mbarriers + bar`` and ``cta * slots + slot``.
    """

    def __init__(self, plan: Plan):
        self.plan, self.syncs = plan, Syncs(plan)
        #: stages that threads write -> (role that does, ring, line of its body), where a check is to look at that
        self.written: dict[str, tuple[str, str, str | None]] = {}
        self.ctas, self.warps = plan.cluster_size, plan.warps
        self.agents = self.ctas * self.warps
        self.warpgroups = -(-self.warps // 4)  # a CTA; the last one may lack warps
        self.bars = [(barrier, stage) for barrier in plan.barriers for stage in range(barrier.stages)]
        self.slots = [(buffer, stage) for buffer in plan.buffers for stage in range(buffer.stages)]
        #: by mbarrier and by slot: (array, position in it, positions around); slots of several owners are several arrays
        self.bar_places = [(barrier.name, stage, barrier.stages) for barrier, stage in self.bars]
        self.slot_places = [_place(buffer, stage) for buffer, stage in self.slots]
        self.bar_base = _bases(plan.barriers)
        self.slot_base = _bases(plan.buffers)
        self.nbars, self.nslots = len(self.bars), len(self.slots)
        self.ranges = [slot_range(buffer, stage) for buffer, stage in self.slots]
        #: slots that share bytes with each slot, itself included
        self.aliases = tuple(
            tuple(j for j, other in enumerate(self.ranges) if other[0] < own[1] and own[0] < other[1])
            for own in self.ranges
        )
        self.roles = ["idle"] * self.warps
        for role in plan.roles:
            self.roles[role.first_warp : role.first_warp + role.warps] = [role.name] * role.warps
        self.whole_warpgroup = [
            all(w < self.warps and self.roles[w] == self.roles[warp] for w in range(warp // 4 * 4, warp // 4 * 4 + 4))
            for warp in range(self.warps)
        ]
        self.loads = {load.name: load for load in plan.loads}
        self.stores = {store.name: store for store in plan.stores}
        self.matmuls = {matmul.name: matmul for matmul in plan.matmuls}

    # ---- numbers --------------------------------------------------------------------------------------------------

    def cta_of(self, agent: int) -> int:
        """The CTA of a warp."""
        return agent // self.warps

    def cta_warps(self, cta: int) -> range:
        """The warps of a CTA."""
        return range(cta * self.warps, (cta + 1) * self.warps)

    def group_of(self, agent: int) -> int:
        """The number in the cluster of a warp's warpgroup."""
        cta, warp = divmod(agent, self.warps)
        return cta * self.warpgroups + warp // 4

    def group_warps(self, group: int) -> range:
        """The four warps of a warpgroup."""
        cta, number = divmod(group, self.warpgroups)
        first = cta * self.warps + 4 * number
        return range(first, first + 4)

    def flat_bar(self, agent: int, bar: int) -> int:
        """The number in the cluster of an mbarrier of the warp's CTA."""
        return agent // self.warps * self.nbars + bar

    def barrier(self, bar: int) -> Barrier:
        """The barriers of the plan to which the mbarrier belongs; *bar* with or without the CTA."""
        return self.bars[bar % self.nbars][0]

    # ---- names ----------------------------------------------------------------------------------------------------

    def role(self, agent: int) -> str:
        """The role of an agent's warp; "idle" for warps outside any."""
        return self.roles[agent % self.warps]

    def agent_name(self, agent: int | Flight) -> str:
        """E.g. ``math (warp 5) of CTA 1`` or ``TMA load 3 of load (warp 0) of CTA 0, to CTA 1``."""
        if isinstance(agent, Flight):
            if agent.kind == "wgmma":
                group = agent.issuer % self.warpgroups
                return f"wgmma {agent.serial} of {self.roles[4 * group]} (warpgroup {group}) of CTA {agent.cta}"
            to = f", to CTA {agent.cta}" if agent.kind != "store" and self.ctas > 1 else ""
            kind = f"TMA {agent.kind}" if agent.kind in ("load", "store") else agent.kind
            return f"{kind} {agent.serial} of {self.agent_name(agent.issuer)}{to}"
        cta, warp = divmod(agent, self.warps)
        return f"{self.roles[warp]} (warp {warp}) of CTA {cta}"

    def bar_name(self, bar: int) -> str:
        """E.g. ``full[2]``; *bar* with or without the CTA."""
        barrier, stage = self.bars[bar % self.nbars]
        return f"{barrier.name}[{stage}]"

    def slot_name(self, slot: int) -> str:
        """E.g. ``a[1]``; *slot* with or without the CTA."""
        buffer, stage = self.slots[slot % self.nslots]
        return f"{buffer.name}[{stage}]"

    def named_barrier_name(self, id: int) -> str:
        """E.g. ``epilogue[1] (id 3)``, or the CTA's barrier for id 0."""
        if id == 0:
            return "the CTA's barrier"
        for barrier in (*self.plan.named_barriers, *self.syncs.made.values()):
            if barrier.id <= id < barrier.id + barrier.instances:
                instance = f"[{id - barrier.id}]" if barrier.instances > 1 else ""
                return f"{barrier.name}{instance} (id {id})"
        return f"named barrier {id}"

    def ring_of(self, bar: int | None, slot: int | None) -> str | None:
        """The ring that the mbarrier belongs to, or else the slot, if a load fills it."""
        for ring in self.plan.rings:
            if bar is not None and self.barrier(bar) in ring.barriers:
                return ring.name
            loads = [name for names in ring.loads.values() for name in names]
            if bar is None and slot is not None and self.slots[slot % self.nslots][0].name in loads:
                return ring.name
        return None

    def signallers(self, bar: int) -> tuple[str, ...]:
        """Roles that complete this mbarrier's phases by the plan's rings; empty if it belongs to none."""
        name = self.barrier(bar).name
        for ring in self.plan.rings:
            for phase, barrier in zip(ring.phases, ring.barriers, strict=False):
                if barrier.name == name:
                    return phase
        return ()


def _place(buffer: Buffer, stage: int) -> tuple[str, int, int]:
    around = buffer.stages // buffer.owners
    owner, position = divmod(stage, around)
    return f"slots of {buffer.name}" + (f" of owner {owner}" if buffer.owners > 1 else ""), position, around


def slot_range(buffer: Buffer, stage: int) -> tuple[int, int]:
    """First byte and end of a slot, from the start of the CTA's shared memory."""
    start = buffer.offset + stage * buffer.pitch
    return start, start + buffer.slot_bytes


def _bases(parts: tuple) -> dict[str, int]:
    starts = itertools.accumulate((part.stages for part in parts), initial=0)
    return {part.name: start for part, start in zip(parts, starts, strict=False)}
