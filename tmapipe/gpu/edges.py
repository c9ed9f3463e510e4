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
from cutlass.cute.nvgpu import cpasync

from tmapipe.gpu import control
from tmapipe.gpu.layouts import core_modes, load_atom, rows_of
from tmapipe.plan import Load

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
    atom, tensor = isa.atoms[edge_of(load)]
    extent, modes = isa.extent(load.argument, row), core_modes(load)
    again = isa.select(at[row] < extent, at[row], 0)

    def some(i: Any) -> None:
        first = share * own + i * rows
        start = [*at]
        start[row] = isa.select(at[row] + first < extent, at[row] + first, again)
        moved = cute.domain_offset(tuple(start[mode] for mode in modes), tensor)
        box = cute.local_tile(moved, (rows, load.buffer.tile[1]), (0, 0, *(None,) * (len(modes) - 2)))
        slots, source = cpasync.tma_partition(
            atom,
            0,
            cute.make_layout(1),
            cute.group_modes(rows_of(isa.buffers[load.buffer.name], load.buffer, first, rows), 0, 2),
            cute.group_modes(box, 0, 2),
        )
        cute.copy(atom, source[(None, *(0,) * (len(modes) - 2))], slots[(None, stage)], **how)

    control.loop(own // rows, some)
