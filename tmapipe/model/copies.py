"""Transitions of copies: loads into slots, by any engine or by threads, and stores of slots, with their bulk groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from tmapipe.isa import ops
from tmapipe.model.layout import check_aligned, check_live, hazard
from tmapipe.model.memory import Memory, convert, gather, gather_windows, moves, performs, reduced, rows_inside, scatter
from tmapipe.model.state import State, applies, check_ended, check_slot, conflict, waits
from tmapipe.plan.model import WARP

# ---- loads -----------------------------------------------------------------------------------------------------------
#
# Copies into slots: TMA loads, st.async, copies to peers, and cp.async by threads.
#
# A copy is in flight from its issue until its bytes are counted, separately in each destination CTA. A warp's
# cp.async are one flight, which is on its way until its lanes arrive, all at once: as single lanes arrive, no phase
# can complete before the last of them.


LOAD, COPY, REDUCTION = "load", "peer copy", "peer reduction"  # kinds of flights

# ---- state ------------------------------------------------------------------------------------------------------------


@applies(ops.TmaLoad, ops.BulkLoad, ops.TmaGather, ops.TmaLoadThrough)
def _load(state: State, agent: int, op: Any) -> tuple[ops.Flight, ...]:
    check_ended(state, agent, op, state.layout.loads[op.load].argument)
    check_aligned(state.layout, agent, op, f"loads {op.load}", state.layout.slots[op.slot][0])
    return _start(state, agent, op, LOAD, op.load)


@applies(ops.CpAsync)
def _copy(state: State, agent: int, op: ops.CpAsync) -> tuple[ops.Flight, ...]:
    layout = state.layout
    check_ended(state, agent, op, layout.loads[op.load].argument)
    check_aligned(layout, agent, op, f"copies {op.load}", layout.slots[op.slot][0], layout.loads[op.load].vector)
    return _start(state, agent, op, "cp.async", op.load, op.lanes.bit_count())


@applies(ops.StAsync)
def _store_words(state: State, agent: int, op: ops.StAsync) -> tuple[ops.Flight, ...]:
    return _start(state, agent, op, "st.async", "words")


@applies(ops.RedAsync)
def _reduce_words(state: State, agent: int, op: ops.RedAsync) -> tuple[ops.Flight, ...]:
    return _start(state, agent, op, REDUCTION, "words")


@applies(ops.PeerCopy, ops.PeerReduce)
def _peer_copy(state: State, agent: int, op: ops.PeerCopy | ops.PeerReduce) -> tuple[ops.Flight, ...]:
    return _start(state, agent, op, COPY if isinstance(op, ops.PeerCopy) else REDUCTION, "a slot")


@applies(ops.TmaPrefetch, ops.BulkPrefetch)
def _prefetch(state: State, agent: int, op: ops.TmaPrefetch | ops.BulkPrefetch) -> None:
    check_aligned(state.layout, agent, op, f"prefetches {op.load}", state.layout.loads[op.load].buffer)


def _start(state: State, agent: int, op: Any, kind: str, what: str, lanes: int = 0) -> tuple[ops.Flight, ...]:
    """Starts the work of an operation: a flight for its slot, or for its share of the slot, in each CTA of its mask, or in its
    own CTA.

    Args:
        kind: The kind of the flights.
        what: What the operation moves, for reports.
        lanes: How many lanes arrive when the work has landed, if no bytes are counted.
    """
    layout, own = state.layout, agent // state.layout.warps
    mask = getattr(op, "mask", None)
    if mask is not None and (mask >> layout.ctas or not mask):
        text = f"multicasts {what} with mask {mask:#b}, which is not a set of the {layout.ctas} CTAs of the cluster"
        raise hazard(layout, "mask-outside-cluster", agent, op, text)
    source = -1
    if hasattr(op, "source"):  # a slot of the own CTA, which is read until the end
        source = own * layout.nslots + op.source
        check_slot(state, agent, op, op.source, "loads through" if kind == LOAD else "copies to a peer from")
    ctas = (own,) if mask is None else [cta for cta in range(layout.ctas) if mask >> cta & 1]
    flights = tuple([_start_one(state, agent, op, cta, kind, what, lanes, source) for cta in ctas])
    state.serials[agent] += 1
    return flights


def _start_one(
    state: State, agent: int, op: Any, cta: int, kind: str, what: str, lanes: int, source: int
) -> ops.Flight:
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
    flight = ops.Flight(kind, agent, state.serials[agent], cta)
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


@applies(ops.LoadWrite)
def _land(state: State, agent: ops.Flight, op: ops.LoadWrite) -> None:
    state.loads[agent] = (*state.loads[agent][:-1], True)
    state.started.append(agent)


# ---- data -------------------------------------------------------------------------------------------------------------


@performs(ops.LoadWrite)
def _land_data(memory: Memory, flight: ops.Flight, op: ops.LoadWrite, facts: None) -> None:
    memory.move(flight, memory.slot(flight.cta, memory.transfers[flight].slot))


@moves(ops.TmaLoad)
def _land_tile(memory: Memory, flight: ops.Flight, op: ops.TmaLoad, target: np.ndarray) -> None:
    load = memory.layout.loads[op.load]
    mine = _share(target, op)
    if load.windows is not None:
        rows = target.shape[0] // op.shares
        target[mine] = gather_windows(memory.tensors[load.argument], load, op.at, op.offsets, rows)
        return
    at = list(op.at)
    if op.mask is None:  # a part has a start of its own
        at[-load.core] -= op.share * load.span[-load.core] // op.shares
    target[mine] = gather(memory.tensors[load.argument], load, tuple(at))[mine]


def _share(target: np.ndarray, op: ops.TmaLoad | ops.TmaLoadThrough | ops.PeerCopy) -> slice:
    """The rows of a slot that are the operation's."""
    rows = target.shape[0] // op.shares
    return slice(op.share * rows, (op.share + 1) * rows)


@moves(ops.TmaLoadThrough)
def _land_through(memory: Memory, flight: ops.Flight, op: ops.TmaLoadThrough, target: np.ndarray) -> None:
    """Lands a load through a descriptor that the kernel has changed. The descriptor's slot has its first row and how many rows
    it shows."""
    load, mine = memory.layout.loads[op.load], _share(target, op)
    first, many = memory.slot(flight.issuer // memory.layout.warps, op.source)[:2]
    target[mine] = gather(memory.tensors[load.argument][first : first + many], load, op.at)[mine]


@performs(ops.DescriptorWrite)
def _write_descriptor(memory: Memory, agent: int, op: ops.DescriptorWrite, facts: None) -> None:
    layout = memory.layout
    extent = memory.tensors[layout.loads[op.load].argument].shape[0]
    first, rows = op.at
    if first < 0 or rows < 1 or first + rows > extent:
        text = f"makes a descriptor of {rows} rows of {op.load} from row {first} on; it takes 1 or more of {extent}"
        raise hazard(layout, "descriptor-outside", agent, op, text)
    memory.slot(agent // layout.warps, op.slot)[:2] = first, rows


@moves(ops.TmaGather)
def _land_rows(memory: Memory, flight: ops.Flight, op: ops.TmaGather, target: np.ndarray) -> None:
    tensor = memory.tensors[memory.layout.loads[op.load].argument]
    rows, columns = rows_inside(tensor, op.numbers, op.at[-1], target.shape[1])
    mine = target[4 * op.share : 4 * op.share + 4]
    mine[...] = 0
    for i, row in rows:
        mine[i, : len(columns)] = tensor[row, columns]


@moves(ops.BulkLoad)
def _land_piece(memory: Memory, flight: ops.Flight, op: ops.BulkLoad, target: np.ndarray) -> None:
    load = memory.layout.loads[op.load]
    tensor = memory.tensors[load.argument]
    starts, pieces = op.at, (*(1,) * (len(op.at) - len(load.tile)), *load.tile)
    if any(not 0 <= i <= extent - n for i, n, extent in zip(starts, pieces, tensor.shape, strict=True)):
        text = f"loads {op.load} at {starts}, of a tensor of {tensor.shape}: nothing fills what lies outside"
        raise hazard(memory.layout, "bulk-outside", flight.issuer, op, text)
    target[...] = gather(tensor, load, op.at)


@moves(ops.CpAsync)
def _land_vectors(memory: Memory, flight: ops.Flight, op: ops.CpAsync, target: np.ndarray) -> None:
    load = memory.layout.loads[op.load]
    width = load.vector // load.buffer.dtype.bytes
    vectors = target.reshape(-1, width)
    mine = np.arange(len(vectors)) // WARP % op.shares == op.share
    vectors[mine] = gather(memory.tensors[load.argument], load, op.at).reshape(-1, width)[mine]


@moves(ops.StAsync)
def _land_words(memory: Memory, flight: ops.Flight, op: ops.StAsync, target: np.ndarray) -> None:
    if len(op.words) == 2 and isinstance(op.words[0], np.ndarray):  # where in the tile numbers go, and these
        target.reshape(-1)[op.words[0]] = convert(op.words[1], memory.layout.slots[op.slot][0].dtype)
        return
    words = op.words if isinstance(op.words, np.ndarray) else np.array(op.words, np.int64).astype(np.uint32)
    mine = target.reshape(op.shares, -1)[op.share]
    mine[: words.size] = words.ravel().view(target.dtype)


@moves(ops.PeerCopy)
def _land_copy(memory: Memory, flight: ops.Flight, op: ops.PeerCopy, target: np.ndarray) -> None:
    source = memory.slot(flight.issuer // memory.layout.warps, op.source)
    target[_share(target, op)] = source[_share(target, op._replace(share=op.part))]


@moves(ops.PeerReduce, ops.RedAsync)
def _land_reduction(memory: Memory, flight: ops.Flight, op: ops.PeerReduce | ops.RedAsync, target: np.ndarray) -> None:
    exchange = memory.layout.plan.exchange(op.peer)
    assert exchange is not None and exchange.reduce is not None
    if isinstance(op, ops.RedAsync):  # where in the tile the warp's numbers go, and these
        words: Any = op.words
        flat = target.reshape(-1)
        flat[words[0]] = reduced(exchange.reduce, flat[words[0]], words[1])
        return
    source = memory.slot(flight.issuer // memory.layout.warps, op.source)
    target[...] = reduced(exchange.reduce, target, np.split(source, op.parts)[op.part])


# ---- stores ----------------------------------------------------------------------------------------------------------
#
# Stores of slots, and bulk groups; tiles that threads store from their registers.
#
# A store reads its slot at some time after its issue, and writes global memory after that. Bulk groups belong to one
# thread: a group is read when all its stores have read, complete when all have written; ``wait_group N`` looks at all
# groups but the N newest.


# ---- state ------------------------------------------------------------------------------------------------------------


@applies(ops.TmaStore, ops.BulkStore)
def _store(state: State, agent: int, op: ops.TmaStore | ops.BulkStore) -> tuple[ops.Flight]:
    return _start_store(state, agent, op, f"stores {op.store}", f"at {op.at}", op.at)


@applies(ops.TmaScatter)
def _scatter(state: State, agent: int, op: ops.TmaScatter) -> tuple[ops.Flight]:
    column = op.at[-1:]
    where = f"to rows {op.numbers} from {column} on"
    return _start_store(state, agent, op, f"scatters {op.store}", where, (*op.numbers, *column))


def _start_store(state: State, agent: int, op: Any, does: str, where: str, at: tuple[int, ...]) -> tuple[ops.Flight]:
    """A store that will read the operation's slot, in the open group of the thread. It begins at *at*."""
    layout = state.layout
    check_ended(state, agent, op)
    buffer, _ = layout.slots[op.slot]
    check_aligned(layout, agent, op, does, buffer)
    if at and min(at) < 0:  # seen on an H200; loads may start there
        text = f"{does} {where}, before the tensor begins: an illegal instruction"
        raise hazard(layout, "tma-store-start", agent, op, text)
    check_slot(state, agent, op, op.slot, f"stores {op.store} from")
    cta = agent // layout.warps
    slot = cta * layout.nslots + op.slot
    flight = ops.Flight("store", agent, state.serials[agent], cta)
    state.serials[agent] += 1
    state.stores[flight] = (slot, False)
    state.readers[slot] += 1
    thread = _thread(agent, op.lanes)
    state.open_group[thread] = (*state.open_group.get(thread, ()), flight)
    state.started.append(flight)
    return (flight,)


@applies(ops.StoreRead)
def _store_read(state: State, agent: ops.Flight, op: ops.StoreRead) -> None:
    slot, _ = state.stores[agent]
    state.stores[agent] = (slot, True)
    state.readers[slot] -= 1
    state.started.append(agent)
    state.woken.append(("bulk", agent.issuer))


@applies(ops.StoreWrite)
def _store_write(state: State, agent: ops.Flight, op: ops.StoreWrite) -> None:
    del state.stores[agent]
    state.woken.append(("bulk", agent.issuer))


# ---- groups -----------------------------------------------------------------------------------------------------------


@applies(ops.BulkCommit)
def _commit(state: State, agent: int, op: ops.BulkCommit) -> tuple[int, tuple[ops.Flight, ...]]:
    thread = _thread(agent, op.lanes)
    flights = state.open_group.pop(thread, ())
    number = state.committed.get(thread, 0)
    state.committed[thread] = number + 1
    state.groups[thread] = (*state.groups.get(thread, ()), (flights, False))
    return number, flights


def _says(state: State, agent: int, op: ops.BulkWait) -> str:
    return f"bulk groups (all but {op.pending})"


@waits(ops.BulkWait, key=lambda state, agent, op: ("bulk", agent), says=_says)
def _can_wait(state: State, agent: int, op: ops.BulkWait) -> bool:
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


@applies(ops.BulkWait)
def _wait(state: State, agent: int, op: ops.BulkWait) -> int:
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


@applies(ops.TileStore)
def _store_tile(state: State, agent: int, op: ops.TileStore) -> None:
    check_ended(state, agent, op)
    if op.at:
        store = state.layout.stores[op.store]
        check_aligned(state.layout, agent, op, f"stores {op.store}", store.buffer, store.vector)


# ---- data -------------------------------------------------------------------------------------------------------------


@performs(ops.StoreRead)
def _read_slot(memory: Memory, flight: ops.Flight, op: ops.StoreRead, facts: None) -> None:
    memory.sources[flight] = memory.slot(flight.cta, memory.transfers[flight].slot).copy()


@performs(ops.StoreWrite)
def _write(memory: Memory, flight: ops.Flight, op: ops.StoreWrite, facts: None) -> None:
    memory.move(flight, memory.sources.pop(flight))


@moves(ops.BulkStore)
def _write_piece(memory: Memory, flight: ops.Flight, op: ops.BulkStore, values: np.ndarray) -> None:
    scatter(memory, flight, memory.layout.stores[op.store], values, op.at)


@moves(ops.TmaStore)
def _write_tile(memory: Memory, flight: ops.Flight, op: ops.TmaStore, values: np.ndarray) -> None:
    store = memory.layout.stores[op.store]
    part = values if op.part is None else values.reshape(store.parts, -1)[op.part]
    scatter(memory, flight, store, part, op.at, op.rows)


@moves(ops.TmaScatter)
def _write_rows(memory: Memory, flight: ops.Flight, op: ops.TmaScatter, values: np.ndarray) -> None:
    store = memory.layout.stores[op.store]
    tensor = memory.tensors[store.argument]
    rows, columns = rows_inside(tensor, op.numbers, op.at[-1], values.shape[1])
    for i, row in rows:
        memory.note(flight, store, (row, columns), values[4 * op.part + i, : len(columns)])
        tensor[row, columns] = values[4 * op.part + i, : len(columns)]


@performs(ops.TileStore)
def _write_values(memory: Memory, agent: int, op: ops.TileStore, facts: None) -> None:
    store = memory.layout.stores[op.store]
    places, values = memory.given(agent)  # in the tile, row by row
    tensor = memory.tensors[store.argument]
    at = [first + i for first, i in zip(op.at, np.unravel_index(places, store.tile), strict=True)]
    inside = np.all([(i >= 0) & (i < extent) for i, extent in zip(at, tensor.shape, strict=True)], axis=0)
    where, given = tuple(i[inside] for i in at), convert(values, store.buffer.dtype)[inside]
    memory.note(agent, store, where, given)
    tensor[where] = given
