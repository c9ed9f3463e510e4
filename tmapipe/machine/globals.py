"""Global memory that threads access, and the lanes of a warp: these operations leave the cluster's state as it is.

What counters hold belongs to the whole grid, of which a state has one cluster (see `tmapipe.isa.globals`).
"""

from __future__ import annotations

import numpy as np

from tmapipe.isa.ops import Ballot, CounterAdd, CounterStore, ReadSmid, Shuffle, TableLoad, TileStore
from tmapipe.machine.hazard import hazard
from tmapipe.machine.memory import Memory, convert, performs
from tmapipe.machine.state import State, applies


@applies(CounterAdd)
@applies(CounterStore)
@applies(TableLoad)
@applies(Ballot)
@applies(Shuffle)
@applies(ReadSmid)
def _nothing(state: State, agent: int, op: object) -> None:
    pass


@applies(TileStore)
def _store(state: State, agent: int, op: TileStore) -> None:
    if not op.at:
        return
    store = state.layout.stores[op.store]
    if op.at[-1] * store.buffer.dtype.bytes % store.vector:
        text = f"stores {op.store} from {op.at} on, whose last index is not a multiple of {store.vector} bytes"
        raise hazard(state.layout, "copy-alignment", agent, op, text)


@performs(TileStore)
def _write(memory: Memory, agent: int, op: TileStore, facts: None) -> None:
    store = memory.layout.stores[op.store]
    places, values = memory.given(agent)  # in the tile, row by row
    tensor = memory.tensors[store.argument]
    at = [first + i for first, i in zip(op.at, np.unravel_index(places, store.tile), strict=True)]
    inside = np.all([(i >= 0) & (i < extent) for i, extent in zip(at, tensor.shape, strict=True)], axis=0)
    tensor[tuple(i[inside] for i in at)] = convert(values, store.buffer.dtype)[inside]
