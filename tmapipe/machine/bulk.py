"""TMA loads and stores, st.async, and bulk groups.

A load is in flight from its issue until its bytes are counted, separately in each destination CTA. A store reads its slot
at some time after its issue, and writes global memory after that. Bulk groups belong to one thread: a group is read when
all its stores have read, complete when all have written; ``wait_group N`` looks at all groups but the N newest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tmapipe.isa.ops import (
    BulkCommit,
    BulkLoad,
    BulkPrefetch,
    BulkStore,
    BulkWait,
    Flight,
    LoadWrite,
    PeerCopy,
    PeerReduce,
    StAsync,
    StoreRead,
    StoreWrite,
    TmaGather,
    TmaLoad,
    TmaLoadThrough,
    TmaPrefetch,
    TmaStore,
)
from tmapipe.machine.hazard import check_live, hazard
from tmapipe.machine.memory import Memory, gather, lands, reduced
from tmapipe.machine.slots import conflict
from tmapipe.machine.state import State, applies, waits
from tmapipe.tma_rules import ALIGNMENT

REDUCTION = "peer reduction"  # kind of flights

# ---- loads ------------------------------------------------------------------------------------------------------------


@applies(TmaLoad)
@applies(BulkLoad)
@applies(TmaGather)
@applies(TmaLoadThrough)
def _load(state: State, agent: int, op: Any) -> tuple[Flight, ...]:
    check_start(state, agent, op, "loads", op.load)
    return start_loads(state, agent, op, "load", op.load)


@lands(BulkLoad)
def _land_piece(memory: Memory, flight: Flight, op: BulkLoad, target: np.ndarray) -> None:
    load = memory.layout.loads[op.load]
    tensor = memory.tensors[load.argument]
    starts, pieces = op.at, (*(1,) * (len(op.at) - len(load.tile)), *load.tile)
    if any(not 0 <= i <= extent - n for i, n, extent in zip(starts, pieces, tensor.shape, strict=True)):
        text = f"loads {op.load} at {starts}, of a tensor of {tensor.shape}: nothing fills what lies outside"
        raise hazard(memory.layout, "bulk-outside", flight.issuer, op, text)
    target[...] = gather(tensor, load, op.at)


@applies(StAsync)
def _store_words(state: State, agent: int, op: StAsync) -> tuple[Flight, ...]:
    return start_loads(state, agent, op, "st.async", "words")


@applies(PeerCopy)
def _peer_copy(state: State, agent: int, op: PeerCopy) -> tuple[Flight, ...]:
    return start_loads(state, agent, op, "peer copy", "a slot")


@lands(PeerCopy)
def _land_copy(memory: Memory, flight: Flight, op: PeerCopy, target: np.ndarray) -> None:
    rows = target.shape[0] // op.shares
    source = memory.slot(flight.issuer // memory.layout.warps, op.source)
    target[op.share * rows : (op.share + 1) * rows] = source[op.part * rows : (op.part + 1) * rows]


@applies(PeerReduce)
def _peer_reduce(state: State, agent: int, op: PeerReduce) -> tuple[Flight, ...]:
    return start_loads(state, agent, op, REDUCTION, "a slot")


@lands(PeerReduce)
def _land_reduction(memory: Memory, flight: Flight, op: PeerReduce, target: np.ndarray) -> None:
    how = next(peer.reduce for peer in memory.layout.plan.sends if peer.name == op.peer)
    source = memory.slot(flight.issuer // memory.layout.warps, op.source)
    assert how is not None
    target[...] = reduced(how, target, np.split(source, op.parts)[op.part])


@applies(TmaPrefetch)
@applies(BulkPrefetch)
def _prefetch(state: State, agent: int, op: TmaPrefetch | BulkPrefetch) -> None:
    layout = state.layout
    if op.at and op.at[-1] * layout.loads[op.load].buffer.dtype.bytes % ALIGNMENT:
        text = f"prefetches {op.load} at {op.at}, whose last index is not a multiple of {ALIGNMENT} bytes"
        raise hazard(layout, "tma-alignment", agent, op, text)


def check_start(state: State, agent: int, op: Any, verb: str, name: str) -> None:
    """A start off the `ALIGNMENT` along the contiguous dimension is an illegal instruction."""
    layout = state.layout
    if op.at and op.at[-1] * layout.slots[op.slot][0].dtype.bytes % ALIGNMENT:
        text = f"{verb} {name} at {op.at}, whose last index is not a multiple of {ALIGNMENT} bytes"
        raise hazard(layout, "tma-alignment", agent, op, text)


def start_loads(state: State, agent: int, op: Any, kind: str, what: str, lanes: int = 0) -> tuple[Flight, ...]:
    """Bytes set out for the operation's slot, or a share of it, in each CTA of its mask, or in the own one.

    Args:
        kind: Of the flights.
        what: They are, in reports.
        lanes: How many arrive when they have landed, in the place of the bytes.
    """
    layout, own = state.layout, agent // state.layout.warps
    mask = getattr(op, "mask", None)
    if mask is not None and (mask >> layout.ctas or not mask):
        text = f"multicasts {what} with mask {mask:#b}, which is not a set of the {layout.ctas} CTAs of the cluster"
        raise hazard(layout, "mask-outside-cluster", agent, op, text)
    source = -1
    if hasattr(op, "source"):  # a slot of the own CTA, which is read until the end
        source = own * layout.nslots + op.source
        for slot in layout.aliases[op.source]:
            if state.writers[own * layout.nslots + slot]:
                verb = "loads through" if kind == "load" else "copies to a peer from"
                raise conflict(state, agent, op, own, op.source, verb, writes=False)
    ctas = (own,) if mask is None else [cta for cta in range(layout.ctas) if mask >> cta & 1]
    flights = tuple([_start_load(state, agent, op, cta, kind, what, lanes, source) for cta in ctas])
    state.serials[agent] += 1
    return flights


def _start_load(state: State, agent: int, op: Any, cta: int, kind: str, what: str, lanes: int, source: int) -> Flight:
    layout, share, shares = state.layout, getattr(op, "share", 0), getattr(op, "shares", 1)
    check_live(state, agent, op, cta, f"multicasts {what} to")
    base = cta * layout.nslots
    for slot in layout.aliases[op.slot]:
        busy = state.writers[base + slot] and not _disjoint_shares(state, op.slot, share, shares, base, slot)
        busy = busy and not (kind == REDUCTION and _all_reduce(state, base + slot))
        if state.readers[base + slot] or busy:
            raise conflict(state, agent, op, cta, op.slot, f"loads {what} into", writes=True)
    if state.count[cta * layout.nbars + op.bar] == 0:
        text = f"loads {what} with {layout.bar_name(op.bar)} of CTA {cta}, which is not initialized"
        raise hazard(layout, "barrier-before-init", agent, op, text)
    flight = Flight(kind, agent, state.serials[agent], cta)
    landed = not state.split_loads
    counted = (0, lanes) if lanes else (op.nbytes, 0)
    state.loads[flight] = (base + op.slot, share, shares, cta * layout.nbars + op.bar, *counted, source, landed)
    if source >= 0:
        state.readers[source] += 1
    state.writers[base + op.slot] += 1
    state.started.append(flight)
    return flight


def _disjoint_shares(state: State, own: int, share: int, shares: int, base: int, slot: int) -> bool:
    """Whether all loads on their way into *slot* are other shares of the same split of the slot *own*."""
    if slot != own:
        return False
    target = base + slot
    return all(load[2] == shares and load[1] != share for load in state.loads.values() if load[0] == target)


def _all_reduce(state: State, target: int) -> bool:
    """Whether all on their way into a slot are reductions, which may overlap."""
    return all(flight.kind == REDUCTION for flight, load in state.loads.items() if load[0] == target)


@applies(LoadWrite)
def _land(state: State, agent: Flight, op: LoadWrite) -> None:
    state.loads[agent] = (*state.loads[agent][:-1], True)
    state.started.append(agent)


# ---- stores -----------------------------------------------------------------------------------------------------------


@applies(TmaStore)
@applies(BulkStore)
def _store(state: State, agent: int, op: TmaStore | BulkStore) -> Flight:
    check_start(state, agent, op, "stores", op.store)
    if op.at and min(op.at) < 0:  # seen on an H200; loads may start there
        text = f"stores {op.store} at {op.at}, before the tensor begins: an illegal instruction"
        raise hazard(state.layout, "tma-store-start", agent, op, text)
    return start_store(state, agent, op)


def start_store(state: State, agent: int, op: Any) -> Flight:
    """A store that will read the operation's slot, in the open group of the thread."""
    layout = state.layout
    cta = agent // layout.warps
    base = cta * layout.nslots
    for slot in layout.aliases[op.slot]:
        if state.writers[base + slot]:
            raise conflict(state, agent, op, cta, op.slot, f"stores {op.store} from", writes=False)
    flight = Flight("store", agent, state.serials[agent], cta)
    state.serials[agent] += 1
    state.stores[flight] = (base + op.slot, False)
    state.readers[base + op.slot] += 1
    thread = _thread(agent, op.lanes)
    state.open_group[thread] = (*state.open_group.get(thread, ()), flight)
    state.started.append(flight)
    return flight


@applies(StoreRead)
def _store_read(state: State, agent: Flight, op: StoreRead) -> None:
    slot, _ = state.stores[agent]
    state.stores[agent] = (slot, True)
    state.readers[slot] -= 1
    state.started.append(agent)
    state.woken.append(state.layout.key_bulk + agent.issuer)


@applies(StoreWrite)
def _store_write(state: State, agent: Flight, op: StoreWrite) -> None:
    del state.stores[agent]
    state.woken.append(state.layout.key_bulk + agent.issuer)


# ---- groups -----------------------------------------------------------------------------------------------------------


@applies(BulkCommit)
def _commit(state: State, agent: int, op: BulkCommit) -> tuple[int, tuple[Flight, ...]]:
    thread = _thread(agent, op.lanes)
    flights = state.open_group.pop(thread, ())
    number = state.committed.get(thread, 0)
    state.committed[thread] = number + 1
    state.groups[thread] = (*state.groups.get(thread, ()), (flights, False))
    return number, flights


def _says(state: State, agent: int, op: BulkWait) -> str:
    return f"bulk groups (all but {op.pending})"


@waits(BulkWait, key=lambda state, agent, op: state.layout.key_bulk + agent, says=_says)
def _can_wait(state: State, agent: int, op: BulkWait) -> bool:
    groups = state.groups.get(_thread(agent, op.lanes), ())
    stores = state.stores
    for i in range(len(groups) - op.pending - 1, -1, -1):
        flights, known_read = groups[i]
        if op.read:
            if known_read:  # and so are all before it
                return True
            if any(flight in stores and not stores[flight][1] for flight in flights):
                return False
        elif any(flight in stores for flight in flights):
            return False
    return True


@applies(BulkWait)
def _wait(state: State, agent: int, op: BulkWait) -> int:
    thread = _thread(agent, op.lanes)
    groups = state.groups.get(thread, ())
    covered = max(0, len(groups) - op.pending)
    first = 0
    if not op.read:
        first = covered
    else:  # groups that have also been written make no difference any more
        while first < covered and not any(flight in state.stores for flight in groups[first][0]):
            first += 1
        groups = tuple([(flights, known or i < covered) for i, (flights, known) in enumerate(groups)])
    left = groups[first:]
    if left:
        state.groups[thread] = left
    else:
        state.groups.pop(thread, None)
    return max(0, state.committed.get(thread, 0) - op.pending)


def _thread(agent: int, lanes: int) -> int:
    return agent * 32 + lanes.bit_length() - 1
