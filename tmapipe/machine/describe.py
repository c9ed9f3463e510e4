"""Operations and agents in the user's names: roles, rings' barriers, slots, bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from tmapipe.isa import ops
from tmapipe.isa.ops import Agent, Flight
from tmapipe.machine.layout import Layout
from tmapipe.machine.timeline import Event

__all__ = ["bar_name", "describe", "event", "lines", "slot_name", "who"]

_LIBRARY, _SCHEDULES = f"tmapipe{os.sep}", os.path.join("tmapipe", "schedules")  # as `machine.locate` shows them


def who(layout: Layout, agent: Agent) -> str:
    """An agent's name, e.g. ``math (warp 5) of CTA 1``; without the CTA where there is but one."""
    name = layout.agent_name(agent)
    return name.replace(" of CTA 0", "") if layout.ctas == 1 else name


def bar_name(layout: Layout, bar: int) -> str:
    """The mbarrier at flat index *bar* of the cluster, e.g. ``ring.full[2] of CTA 1``."""
    name = layout.bar_name(bar)
    return f"{name} of CTA {bar // layout.nbars}" if layout.ctas > 1 else name


def slot_name(layout: Layout, place: int) -> str:
    """The slot at flat index *place* of the cluster, e.g. ``x[2] of CTA 1``."""
    name = layout.slot_name(place)
    return f"{name} of CTA {place // layout.nslots}" if layout.ctas > 1 else name


def describe(layout: Layout, op: Any) -> str:
    """What an operation does, as a verb in the third person: ``waits for ring.full[0] (parity 1)``."""
    texts: Callable[[Layout, Any], str] | None = _TEXTS.get(type(op))
    return texts(layout, op) if texts is not None else type(op).__name__


def lines(places: Iterable[str | None]) -> tuple[str, ...]:
    """Each source line once, those of bodies first, then the library's own (of a ring's tail, say)."""
    known = dict.fromkeys(place for place in places if place)
    return tuple(sorted(known, key=lambda place: place.startswith(_LIBRARY) and not place.startswith(_SCHEDULES)))


def event(
    layout: Layout,
    order: int,
    agent: Agent,
    op: Any,
    what: str = "",
    phase: int | None = None,
    began: int | None = None,
) -> Event:
    """One step of a timeline. what: in place of the operation's own description. A flight's *op* is the one that issued it."""
    bar, slot = getattr(op, "bar", None), getattr(op, "slot", getattr(op, "a", None))
    cta, issuer = (agent.cta, agent.issuer) if isinstance(agent, Flight) else (agent // layout.warps, agent)
    if isinstance(agent, Flight) and agent.kind == "wgmma":
        issuer = 4 * (agent.issuer % layout.warpgroups)
    return Event(
        order=order,
        cta=cta,
        agent=who(layout, agent),
        what=what or describe(layout, op),
        where=getattr(op, "where", None),
        barrier=None if bar is None else layout.bar_name(bar),
        slot=None if slot is None else layout.slot_name(slot),
        phase=phase,
        parity=getattr(op, "parity", None),
        nbytes=_nbytes(layout, op),
        role=layout.role(issuer),
        warp=issuer % layout.warps,
        ring=layout.ring_of(bar, slot),
        engine=_ENGINES[agent.kind] if isinstance(agent, Flight) else None,
        began=began,
    )


_ENGINES = {"load": "TMA loads", "store": "TMA stores", "wgmma": "wgmma"}


def _nbytes(layout: Layout, op: Any) -> int | None:
    slot_bytes = layout.slots[op.slot][0].slot_bytes if isinstance(op, ops.TmaStore) else None
    return getattr(op, "nbytes", slot_bytes)


def _load(layout: Layout, op: ops.TmaLoad) -> str:
    to = "" if op.mask is None else f" of CTAs {_ranks(op.mask)}"
    share = f" (share {op.share} of {op.shares})" if op.shares > 1 else ""
    slot, bar = layout.slot_name(op.slot), layout.bar_name(op.bar)
    what = f"the TMA load of {op.load}" if op.load else "an st.async of a tile's place"
    return f"starts {what} into {slot}{to}{share}, {op.nbytes} bytes that complete on {bar}"


def _ranks(mask: int) -> str:
    return ", ".join(str(i) for i in range(mask.bit_length()) if mask >> i & 1)


def _lanes(op: Any) -> str:
    return f" by {op.lanes.bit_count()} lanes" if op.lanes.bit_count() > 1 else ""


def _cluster_arrive(layout: Layout, op: ops.MbarArriveCluster) -> str:
    return f"arrives at {layout.bar_name(op.bar)} of CTAs {_ranks(op.mask)} ({op.scope} scope)"


def _part(op: Any) -> str:
    cut, _, raw = op.split.partition("/")
    share = f" (part {op.part} of {op.parts}, by {cut})" if op.parts > 1 else ""
    proxy = ", through the async proxy" if op.proxy == "async" else ""
    return f"{share} in {raw}{proxy}" if raw else share


_TEXTS: dict[type, Callable[[Layout, Any], str]] = {
    ops.MbarInit: lambda at, op: f"initializes {at.bar_name(op.bar)} with count {op.arrivals}",
    ops.FenceMbarInit: lambda at, op: "fences the initialization (fence.mbarrier_init)",
    ops.MbarWait: lambda at, op: f"waits for {at.bar_name(op.bar)} (parity {op.parity})",
    ops.MbarArrive: lambda at, op: f"arrives at {at.bar_name(op.bar)}{_lanes(op)}",
    ops.MbarArriveCluster: _cluster_arrive,
    ops.MbarArriveTx: lambda at, op: f"arms {op.nbytes} bytes on {at.bar_name(op.bar)} and arrives",
    ops.MbarExpectTx: lambda at, op: f"arms {op.nbytes} bytes on {at.bar_name(op.bar)}",
    ops.BarArrive: lambda at, op: f"arrives at {at.named_barrier_name(op.id)}",
    ops.BarWait: lambda at, op: f"passes {at.named_barrier_name(op.id)}",
    ops.WarpSync: lambda at, op: "synchronizes the warp",
    ops.ClusterArrive: lambda at, op: "arrives at the cluster barrier",
    ops.ClusterWait: lambda at, op: "passes the cluster barrier",
    ops.FenceProxyAsync: lambda at, op: "fences (fence.proxy.async)",
    ops.TmaLoad: _load,
    ops.TmaStore: lambda at, op: f"starts the TMA store {op.store} from {at.slot_name(op.slot)}",
    ops.BulkCommit: lambda at, op: "commits a bulk group",
    ops.BulkWait: lambda at, op: f"waits for bulk groups (wait_group{'.read' if op.read else ''} {op.pending})",
    ops.AccumulatorWrite: lambda at, op: f"writes the accumulators of {op.matmul}",
    ops.AccumulatorRead: lambda at, op: f"reads the accumulators of {op.matmul}",
    ops.WgmmaFence: lambda at, op: "fences the accumulators (wgmma.fence)",
    ops.Wgmma: lambda at, op: f"starts wgmma {op.matmul}, which reads {at.slot_name(op.a)} and {at.slot_name(op.b)}",
    ops.WgmmaCommit: lambda at, op: "commits a wgmma group",
    ops.WgmmaWait: lambda at, op: f"waits for wgmma groups (wait_group {op.pending})",
    ops.SlotRead: lambda at, op: f"reads {at.slot_name(op.slot)}{_part(op)}",
    ops.SlotWrite: lambda at, op: f"writes {at.slot_name(op.slot)}{_part(op)}",
    ops.SetMaxNreg: lambda at, op: f"sets {op.registers} registers a thread",
    ops.Exit: lambda at, op: "returns",
}
