"""Loads of tiles that reach over a tensor's edge, if the rows beyond it may hold anything
(`TmaLoadStage.anything_outside`).

The TMA engine fills rows beyond the edge with zeros, which takes longer than loading them. So such a tile is loaded in several
small boxes. A box that lies outside as a whole is replaced by the tile's first box, loaded again. The slot then gets as many
bytes as its mbarrier expects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import cutlass.cute as cute

from tmapipe.gpu import control
from tmapipe.gpu.layouts import core_modes, load_atom, one_slot_layout, partition, rows_of
from tmapipe.plan.model import Load

if TYPE_CHECKING:
    from tmapipe.gpu.isa import GpuIsa

__all__ = ["edge_of", "load_edge", "make_edge_atom"]


def edge_of(load: Load) -> str:
    """The key of the load's TMA atom for such tiles in `GpuIsa.atoms`."""
    return f"{load.name} edge"


def make_edge_atom(load: Load, tensor: Any) -> Any:
    """The TMA atom and coordinate tensor of boxes of `load.edge_rows` rows. One CTA loads each box for all peers.

    Args:
        tensor: In the order of `layouts.core_modes`.
    """
    buffer = attrs.evolve(load.buffer, tile=(load.edge_rows, load.buffer.tile[1]))
    return load_atom(load, tensor, one_slot_layout(buffer), buffer.tile, 1)


def load_edge(isa: GpuIsa, load: Load, stage: Any, at: Sequence[Any], share: Any, how: Mapping[str, Any]) -> None:
    """The TMA load of one such tile.

    Args:
        stage: Index of the slot.
        at: Where the tile starts (elements), one per dimension of the tensor.
        share: Which of the multicast shares this CTA loads.
        how: Options of the copies.
    """
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
