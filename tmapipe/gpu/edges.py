"""Tiles that reach over a tensor's edge, where rows beyond it may hold anything: see `tmapipe.stage.TmaLoadStage`.

The TMA engine fills such rows with zeros, and takes longer for that than for rows that it loads. So these tiles are loaded in
boxes of some rows, of which none lies outside as a whole: in their stead the tile's first box is loaded again, so that as
many bytes arrive as the barrier is armed for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import cutlass.cute as cute

from tmapipe.gpu import control
from tmapipe.gpu.layouts import core_modes, load_atom, partition, rows_of
from tmapipe.plan.model import Load

__all__ = ["edge_of", "load_edge", "make_edge_atom"]


def edge_of(load: Load) -> str:
    """What `GpuIsa` calls the load's atom for these tiles."""
    return f"{load.name} edge"


def make_edge_atom(load: Load, tensor: Any) -> Any:
    """The TMA atom and coordinate tensor of boxes of `load.edge_rows` rows, each of which one CTA loads for all peers;
    *tensor* is core first."""
    buffer = attrs.evolve(load.buffer, tile=(load.edge_rows, load.buffer.tile[1]))
    return load_atom(load, tensor, buffer, 1)


def load_edge(isa: Any, load: Load, stage: Any, at: Sequence[Any], share: Any, how: Mapping[str, Any]) -> None:
    """`tma_load` of such a tile. how: options of the copies."""
    row, rows, own = len(load.dims) - 2, load.edge_rows, load.buffer.tile[0] // load.peers
    atom, extent = isa.atoms[edge_of(load)], isa.extent(load.argument, row)
    again = isa.select(at[row] < extent, at[row], 0)

    def some(i: Any) -> None:
        first = share * own + i * rows
        start = [*at]
        start[row] = isa.select(at[row] + first < extent, at[row] + first, again)
        core_first = tuple(start[mode] for mode in core_modes(load))
        slots = rows_of(isa.buffers[load.buffer.name], load.buffer, first, rows)
        slot, source = partition(atom, slots, (rows, load.buffer.tile[1]), core_first, 0, 1)
        cute.copy(atom[0], source, slot[(None, stage)], **how)

    control.loop(own // rows, some)
