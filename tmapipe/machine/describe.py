"""Operations and agents in the user's names: roles, rings' barriers, slots, bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tmapipe.isa.effects import Group, Start, declared
from tmapipe.isa.operands import Kind
from tmapipe.isa.ops import Agent, Flight
from tmapipe.machine.layout import Layout
from tmapipe.machine.timeline import Event

__all__ = ["bar_name", "describe", "event", "lines", "slot_name", "who"]


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
    return declared(type(op)).sentence(layout, op)


def lines(places: Iterable[str | None]) -> tuple[str, ...]:
    """Each source line once."""
    return tuple(dict.fromkeys(place for place in places if place))


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
    bar, slot = _operand(op, Kind.BAR), _operand(op, Kind.SLOT)
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
        parity=_operand(op, Kind.PARITY),
        nbytes=_nbytes(layout, op),
        role=layout.role(issuer),
        warp=issuer % layout.warps,
        ring=layout.ring_of(bar, slot),
        engine=_ENGINES[agent.kind] if isinstance(agent, Flight) else None,
        began=began,
    )


_ENGINES = {
    "load": "TMA loads",
    "st.async": "st.async",
    "cp.async": "cp.async",
    "peer copy": "copies to peers",
    "peer reduction": "copies to peers",
    "store": "TMA stores",
    "wgmma": "wgmma",
}


def _operand(op: Any, kind: Kind) -> Any:
    """The operation's first operand of this kind, or None."""
    names = declared(type(op)).named(kind)
    return getattr(op, names[0]) if names else None


def _nbytes(layout: Layout, op: Any) -> int | None:
    """Bytes that it arms or moves. A store moves its whole slot."""
    nbytes = _operand(op, Kind.BYTES)
    stores = any(start.until.group is Group.BULK for start in declared(type(op)).all(Start))
    return layout.slots[_operand(op, Kind.SLOT)][0].slot_bytes if nbytes is None and stores else nbytes
