"""Slots in flight: who may touch which bytes of shared memory now.

`State.writers` and `State.readers` count, for each slot, the loads on their way into it, and the stores and wgmmas that have
not finished reading it. Slots that share bytes (aliased buffers) are checked together.
"""

from __future__ import annotations

from tmapipe.isa.ops import Agent, DescriptorAcquire, DescriptorWrite, Flight, PeerRead, SlotRead, SlotWrite
from tmapipe.machine.hazard import check_live, hazard
from tmapipe.machine.state import State, applies

__all__ = ["check_slot", "conflict"]


@applies(SlotRead, DescriptorAcquire)
def _read(state: State, agent: int, op: SlotRead | DescriptorAcquire) -> None:
    check_slot(state, agent, op, op.slot, "reads")


@applies(PeerRead)
def _read_peer(state: State, agent: int, op: PeerRead) -> None:
    layout = state.layout
    if op.mask >> layout.ctas or op.mask.bit_count() != 1:
        text = f"reads {layout.slot_name(op.slot)} with mask {op.mask:#b}, which is not one of the {layout.ctas} CTAs"
        raise hazard(layout, "mask-outside-cluster", agent, op, text)
    cta = op.mask.bit_length() - 1
    check_live(state, agent, op, cta, f"reads {layout.slot_name(op.slot)} of")
    check_slot(state, agent, op, op.slot, "reads", cta)


@applies(SlotWrite, DescriptorWrite)
def _write(state: State, agent: int, op: SlotWrite | DescriptorWrite) -> None:
    check_slot(state, agent, op, op.slot, "writes", writes=True)


def check_slot(
    state: State, agent: int, op: object, slot: int, verb: str, cta: int | None = None, writes: bool = False
) -> None:
    """Raises an error if what is in flight forbids an access to a slot: loads into it, or if it *writes*, readers too.

    verb: what the operation does, before the slot's name; cta: where it lies, by default in the own one.
    """
    layout = state.layout
    cta = agent // layout.warps if cta is None else cta
    base = cta * layout.nslots
    for alias in layout.aliases[slot]:
        if state.writers[base + alias] or (writes and state.readers[base + alias]):
            raise conflict(state, agent, op, cta, slot, verb, writes)


def conflict(state: State, agent: Agent, op: object, cta: int, slot: int, verb: str, writes: bool) -> Exception:
    """The error for an access to *slot* of *cta* while something in flight touches the same bytes."""
    layout = state.layout
    other, what = _in_flight(state, cta, slot, writes)
    rule = {"store": "slot-being-stored", "wgmma": "slot-read-by-wgmma"}.get(other.kind, "slot-being-loaded")
    text = f"{verb} slot {layout.slot_name(slot)} of CTA {cta} while {layout.agent_name(other)} {what}"
    return hazard(layout, rule, agent, op, text)


def _in_flight(state: State, cta: int, slot: int, writes: bool) -> tuple[Flight, str]:
    """A flight that touches *slot*, and what it does."""
    layout = state.layout
    touched = {cta * layout.nslots + alias for alias in layout.aliases[slot]}
    for flight, load in state.loads.items():
        if load[0] in touched:
            return flight, f"is on its way into {layout.slot_name(load[0])} (completes on {layout.bar_name(load[3])})"
        if writes and load[6] in touched:
            return flight, f"has not finished reading {layout.slot_name(load[6])}"
    if writes:
        for flight, store in state.stores.items():
            if store[0] in touched and not store[1]:
                return flight, f"has not finished reading {layout.slot_name(store[0])}"
        for group, queue in enumerate(state.queues):
            for i, (_, a, b, _) in enumerate(queue):
                if a in touched or b in touched:
                    name = layout.slot_name(a if a in touched else b)
                    return Flight("wgmma", group, state.done[group] + i, cta), f"may still read {name}"
    raise AssertionError("a slot counted as in flight, and no flight that touches it")
