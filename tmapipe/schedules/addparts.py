"""AddParts: ``d = parts[0] + parts[1] + ...``, in this order: what a split-K GEMM ends with."""

from __future__ import annotations

from typing import Any

from tmapipe.barrier import BarrierRing
from tmapipe.dtypes import DType
from tmapipe.protocol.tile import Tile
from tmapipe.role import Role
from tmapipe.schedule import Schedule
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import TmaStoreStage

__all__ = ["AddParts"]


class AddParts(Schedule):
    """``d[m, n] = sum over s of x[s, m, n]``; sums in the type of x, in the order of s, converted once to the type of d.

    tile: (m, n) elements at once; stages: slots in flight (None: as many as fit). One warp loads, four add, through slots that
    threads read.
    """

    load, add = Role(warps=1), Role(warps=4)

    def __init__(
        self, tile: tuple[int, int] = (8, 256), stages: int | None = None, *, dtype: DType | str | None = None
    ):
        self.ring = BarrierRing(stages, producer=self.load, consumer=self.add)
        self.x = TmaLoadStage("s m n", tile=tile, ring=self.ring)
        self.d = TmaStoreStage("m n", tile=tile, role=self.add, stages=2, dtype=dtype)

    @load.jit
    def fill(self, k: Any, tile: Tile) -> None:
        for part in range(k.steps("x", "s")):
            with k.ring.produce() as slot:
                slot.x.load(tile, s=part)

    @add.jit
    def total(self, k: Any, tile: Tile) -> None:
        with k.ring.consume() as slot:
            total = slot.x.read()
        for _ in range(k.steps("x", "s") - 1):
            with k.ring.consume() as slot:
                total = total + slot.x.read()
        k.d.store(tile, total)
