"""Copy: a persistent streaming copy, one warp loading and one storing, through a ring of shared-memory tiles."""

from __future__ import annotations

import math
from typing import Any

from tmapipe.barrier import BarrierRing
from tmapipe.role import Role
from tmapipe.schedule import Schedule
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import TmaStoreStage
from tmapipe.tensors import is_contiguous, new_like
from tmapipe.tiles import PersistentTiles, Tile

__all__ = ["Copy"]


class Copy(Schedule):
    """``y = x`` for matrices (m, n) whose rows are contiguous; strides of rows are free within TMA's 16-byte rule.

    Where both are contiguous as a whole, they are copied as rows of one tile's width, so that each tile is one contiguous
    piece of memory: any shape will do then.

    tile: elements moved at once; stages: slots in flight (None: as many as fit); pending: stores that may still read
    their slot while the next one is waited for.
    """

    load, store = Role(warps=1), Role(warps=1)

    def __init__(self, tile: tuple[int, int] = (64, 128), stages: int | None = 4, pending: int = 1):
        self.ring = BarrierRing(stages, producer=self.load, consumer=self.store)
        self.x = TmaLoadStage("m n", tile=tile, ring=self.ring, l2_hint="evict_first")
        self.y = TmaStoreStage(source=self.x, stages=pending)
        self.tiles = PersistentTiles(group=1)

    def __call__(self, x: Any, y: Any = None, *, out: Any = None) -> Any:  # type: ignore[override]
        """Copies *x* to *y* (or `out`, or a new tensor) and returns that."""
        y = y if y is not None else out if out is not None else new_like(x)
        width = self.x.tile[1]
        if x.shape == y.shape and is_contiguous(x) and is_contiguous(y) and math.prod(x.shape) % width == 0:
            super().__call__(x.reshape(-1, width), y.reshape(-1, width))
        else:
            super().__call__(x, y)
        return y

    @load.jit
    def fill(self, k: Any, tile: Tile) -> None:
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k: Any, tile: Tile) -> None:
        with k.ring.consume() as slot:
            slot.y.store(tile)
