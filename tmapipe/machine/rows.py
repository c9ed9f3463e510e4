"""gather4 and scatter4: four rows of a matrix each, by their numbers."""

from __future__ import annotations

import numpy as np

from tmapipe.isa.ops import Flight, TmaGather, TmaScatter
from tmapipe.machine.bulk import check_start, start_store
from tmapipe.machine.hazard import hazard
from tmapipe.machine.memory import Memory, lands, performs, writes
from tmapipe.machine.state import State, applies

__all__: list[str] = []


@lands(TmaGather)
def _land(memory: Memory, flight: Flight, op: TmaGather, target: np.ndarray) -> None:
    load = memory.layout.loads[op.load]
    rows, columns = _inside(memory.tensors[load.argument], op.numbers, op.at[-1], target.shape[1])
    mine = target[4 * op.share : 4 * op.share + 4]
    mine[...] = 0
    for i, row in rows:
        mine[i, : len(columns)] = memory.tensors[load.argument][row, columns]


@applies(TmaScatter)
def _scatter(state: State, agent: int, op: TmaScatter) -> Flight:
    check_start(state, agent, op, "scatters", op.store)
    if op.numbers and min(*op.numbers, op.at[-1]) < 0:  # as of other stores
        text = f"stores {op.store} to rows {op.numbers} from column {op.at[-1]} on, before the tensor begins"
        raise hazard(state.layout, "tma-store-start", agent, op, text)
    return start_store(state, agent, op)


@performs(TmaScatter)
def _note(memory: Memory, agent: int, op: TmaScatter, flight: Flight) -> None:
    memory.transfers[flight] = op


@writes(TmaScatter)
def _write(memory: Memory, op: TmaScatter, values: np.ndarray) -> None:
    tensor = memory.tensors[memory.layout.stores[op.store].argument]
    rows, columns = _inside(tensor, op.numbers, op.at[-1], values.shape[1])
    for i, row in rows:
        tensor[row, columns] = values[4 * op.part + i, : len(columns)]


def _inside(
    tensor: np.ndarray, rows: tuple[int, ...], first: int, count: int
) -> tuple[list[tuple[int, int]], np.ndarray]:
    """(which of the four rows, its number) of those in the matrix, and the columns in it, from *first* on, which is not
    negative."""
    columns = np.arange(first, min(first + count, tensor.shape[1]))
    return [(i, row) for i, row in enumerate(rows) if 0 <= row < tensor.shape[0]], columns
