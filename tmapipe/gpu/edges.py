"""Loads of tiles that reach over a tensor's edge, if the rows beyond it may hold anything
(`TmaLoadStage.anything_outside`).

The TMA engine fills rows beyond the edge with zeros, which takes longer than loading them. So such a tile is loaded in several
small boxes. A box that lies outside as a whole is replaced by the tile's first box, loaded again. The slot then gets as many
bytes as its mbarrier expects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import cutlass.cute as cute

from tmapipe.gpu import control
from tmapipe.gpu.warp import GpuWarp
from tmapipe.plan.model import Load

__all__ = ["edge_of", "load_edge"]


def edge_of(load: Load) -> Load:
    """The load of such tiles: in parts of `load.edge_rows` rows. One CTA loads each for all peers."""
    return attrs.evolve(load, name=f"{load.name} edge", parts=load.buffer.tile[0] // load.edge_rows, peers=1)


def load_edge(isa: GpuWarp, load: Load, stage: Any, at: Sequence[Any], share: Any, how: Mapping[str, Any]) -> None:
    """The TMA load of one such tile.

    Args:
        stage: Index of the slot.
        at: Where the tile starts (elements), one per dimension of the tensor.
        share: Which of the multicast shares this CTA loads.
        how: Options of the copies.
    """
    row, rows, own = len(load.dims) - 2, load.edge_rows, load.buffer.tile[0] // load.peers
    edge, extent = edge_of(load), isa.extent(load.argument, row)
    again = isa.select(at[row] < extent, at[row], 0)

    def some(i: Any) -> None:
        first = share * own + i * rows
        start = [*at]
        start[row] = isa.select(at[row] + first < extent, at[row] + first, again)
        slot, source = isa.partition_of(edge, start, 0, 1, first)
        cute.copy(isa.atoms[edge.name][0], source, slot[(None, stage)], **how)

    control.loop(own // rows, some)
