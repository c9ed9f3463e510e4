"""Small schedules that gather and scatter rows, for the mutants and for a GPU."""

from __future__ import annotations

import tmapipe as tp

__all__ = ["GatherFour", "GatherRows", "PagedRows", "PagedScores", "ScatterFour", "ScatterRows"]


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


class PagedRows(tp.Schedule):
    """y[b, m, n] = x[pages[b, m // 4], m % 4, n]."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=store)
    x = tp.TmaLoadStage("p t n", tile=(16, 64), ring=ring).in_parts(4)
    pages = tp.Table("b i")
    y = tp.TmaStoreStage("b m n", source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            for i in range(4):
                slot.x.load_part(i, p=k.pages.entry(tile.b, tile.m * 4 + i), t=0, n=tile.n)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class PagedScores(tp.Schedule):
    """s[b, m, n] = sum over d of q[b, m, d] keys[pages[b, n // 16], n % 16, d], and -1e30 from n = lengths[b] on."""

    over = "b m n"
    relations = (tp.Dim("d", at_most=64), tp.Dim("t", size=16))
    load, math = tp.Role(warps=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(2, producer=load, consumer=math)
    q = tp.TmaLoadStage("b m d", tile=(64, 64), ring=ring)
    keys = tp.TmaLoadStage("p t d", tile=(64, 64), ring=ring).in_parts(4)
    pages, lengths = tp.Table("b i"), tp.Table("b")
    mma = tp.Wgmma(q, keys)
    s = tp.TmaStoreStage("b m n", source=mma, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.q.load(tile, d=0)
            for i in range(4):
                slot.keys.load_part(i, p=k.pages.entry(tile.b, tile.n * 4 + i), t=0, d=0)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc, k.ring.consume() as slot:
            acc.add(slot.q, slot.keys)
        scores = acc.values()
        k.s.store(tile, tp.math.where(scores.columns < k.lengths.entry(tile.b) - 64 * tile.n, scores, -1e30))
