"""Small schedules that gather and scatter rows, for the mutants and for a GPU."""

from __future__ import annotations

import tmapipe as tp

__all__ = ["GatherFour", "GatherRows", "ScatterRows", "ScatterFour"]


class GatherRows(tp.Schedule):
    """y[m] = x[index[m]]: rows one by one, or four by four where the architecture has gather4."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=store)
    x = tp.TmaLoadStage("r n", tile=(8, 64), ring=ring).in_parts(8)
    index = tp.Table("m")
    y = tp.TmaStoreStage("m n", source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.gather(k.index, tile.m * 8, n=tile.n)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class ScatterRows(tp.Schedule):
    """y[index[m]] = x[m], or that is added."""

    over = "m n"
    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=store)
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring)
    index = tp.Table("m")
    y = tp.TmaStoreStage("r n", source=x).in_parts(8)

    def __init__(self, reduce: str | None = None):
        if reduce is not None:
            self.y = tp.TmaStoreStage("r n", source=self.x, reduce=reduce).in_parts(8)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.scatter(k.index, tile.m * 8, n=tile.n)


class GatherFour(GatherRows):
    """With gather4."""

    load, store = GatherRows.load, GatherRows.store
    arch = "sm_100a"


class ScatterFour(ScatterRows):
    """With scatter4."""

    load, store = ScatterRows.load, ScatterRows.store
    arch = "sm_100a"
