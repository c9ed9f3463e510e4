"""Stores of slots, and bulk groups; tiles that threads store from their registers.

A store reads its slot at some time after its issue, and writes global memory after that. Bulk groups belong to one thread: a
group is read when all its stores have read, complete when all have written; ``wait_group N`` looks at all groups but the N
newest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tmapipe.isa.ops import (
    BulkCommit,
    BulkStore,
    BulkWait,
    Flight,
    StoreRead,
    StoreWrite,
    TileStore,
    TmaScatter,
    TmaStore,
)
from tmapipe.machine.hazard import check_aligned, hazard
from tmapipe.machine.memory import MOVES, Memory, convert, moves, performs, rows_inside, scatter
from tmapipe.machine.slots import check_slot
from tmapipe.machine.state import State, applies, waits

__all__: list[str] = []

# ---- state ------------------------------------------------------------------------------------------------------------


@applies(TmaStore, BulkStore)
def _store(state: State, agent: int, op: TmaStore | BulkStore) -> tuple[Flight]:
    return _start(state, agent, op, f"stores {op.store}", f"at {op.at}", op.at)


@applies(TmaScatter)
def _scatter(state: State, agent: int, op: TmaScatter) -> tuple[Flight]:
    column = op.at[-1:]
    return _start(
        state, agent, op, f"scatters {op.store}", f"to rows {op.numbers} from {column} on", (*op.numbers, *column)
    )


def _start(state: State, agent: int, op: Any, does: str, where: str, starts: tuple[int, ...]) -> tuple[Flight]:
    """A store that will read the operation's slot, in the open group of the thread. It begins at *starts*."""
    layout = state.layout
    buffer, _ = layout.slots[op.slot]
    check_aligned(layout, agent, op, does, buffer)
    if starts and min(starts) < 0:  # seen on an H200; loads may start there
        text = f"{does} {where}, before the tensor begins: an illegal instruction"
        raise hazard(layout, "tma-store-start", agent, op, text)
    check_slot(state, agent, op, op.slot, f"stores {op.store} from")
    cta = agent // layout.warps
    slot = cta * layout.nslots + op.slot
    flight = Flight("store", agent, state.serials[agent], cta)
    state.serials[agent] += 1
    state.stores[flight] = (slot, False)
    state.readers[slot] += 1
    thread = _thread(agent, op.lanes)
    state.open_group[thread] = (*state.open_group.get(thread, ()), flight)
    state.started.append(flight)
    return (flight,)


@applies(StoreRead)
def _store_read(state: State, agent: Flight, op: StoreRead) -> None:
    slot, _ = state.stores[agent]
    state.stores[agent] = (slot, True)
    state.readers[slot] -= 1
    state.started.append(agent)
    state.woken.append(("bulk", agent.issuer))


@applies(StoreWrite)
def _store_write(state: State, agent: Flight, op: StoreWrite) -> None:
    del state.stores[agent]
    state.woken.append(("bulk", agent.issuer))


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


@waits(BulkWait, key=lambda state, agent, op: ("bulk", agent), says=_says)
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


@applies(TileStore)
def _store_tile(state: State, agent: int, op: TileStore) -> None:
    if op.at:
        store = state.layout.stores[op.store]
        check_aligned(state.layout, agent, op, f"stores {op.store}", store.buffer, store.vector)


# ---- data -------------------------------------------------------------------------------------------------------------


@performs(StoreRead)
def _read_slot(memory: Memory, flight: Flight, op: StoreRead, facts: None) -> None:
    memory.sources[flight] = memory.slot(flight.cta, memory.transfers[flight].slot).copy()


@performs(StoreWrite)
def _write(memory: Memory, flight: Flight, op: StoreWrite, facts: None) -> None:
    issued = memory.transfers.pop(flight)
    MOVES[type(issued)](memory, flight, issued, memory.sources.pop(flight))


@moves(BulkStore)
def _write_piece(memory: Memory, flight: Flight, op: BulkStore, values: np.ndarray) -> None:
    scatter(memory, flight, memory.layout.stores[op.store], values, op.at)


@moves(TmaStore)
def _write_tile(memory: Memory, flight: Flight, op: TmaStore, values: np.ndarray) -> None:
    store = memory.layout.stores[op.store]
    part = values if op.part is None else values.reshape(store.parts, -1)[op.part]
    scatter(memory, flight, store, part, op.at, op.rows)


@moves(TmaScatter)
def _write_rows(memory: Memory, flight: Flight, op: TmaScatter, values: np.ndarray) -> None:
    store = memory.layout.stores[op.store]
    tensor = memory.tensors[store.argument]
    rows, columns = rows_inside(tensor, op.numbers, op.at[-1], values.shape[1])
    for i, row in rows:
        memory.note(flight, store, (row, columns), values[4 * op.part + i, : len(columns)])
        tensor[row, columns] = values[4 * op.part + i, : len(columns)]


@performs(TileStore)
def _write_values(memory: Memory, agent: int, op: TileStore, facts: None) -> None:
    store = memory.layout.stores[op.store]
    places, values = memory.given(agent)  # in the tile, row by row
    tensor = memory.tensors[store.argument]
    at = [first + i for first, i in zip(op.at, np.unravel_index(places, store.tile), strict=True)]
    inside = np.all([(i >= 0) & (i < extent) for i, extent in zip(at, tensor.shape, strict=True)], axis=0)
    where, given = tuple(i[inside] for i in at), convert(values, store.buffer.dtype)[inside]
    memory.note(agent, store, where, given)
    tensor[where] = given
