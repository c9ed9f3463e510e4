"""Small schedules with copies and stores by threads and prefetches, for the mutants and for a GPU."""

from __future__ import annotations

import tmapipe as tp

__all__ = ["Added", "Ahead", "BulkFromSlots", "CopiedGemm", "Far", "FarPieces", "Images", "Mapped", "MappedBefore"]


class Added(tp.Schedule):
    """y = x + z: x comes by copies of 4 bytes, of two warps, z by TMA, in one slot; y leaves from slots that threads write."""

    copy, load, work = tp.Role(warps=2), tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=(copy, load), consumer=work)
    x = tp.CpAsyncLoadStage("m n", tile=(4, 32), ring=ring, vector=4, dtype="fp32", loader=copy)
    z = tp.TmaLoadStage("m n", tile=(4, 32), ring=ring, dtype="fp32", loader=load)
    y = tp.TmaStoreStage("m n", tile=(4, 32), role=work, dtype="fp32")

    @copy.jit
    def fill_x(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @load.jit
    def fill_z(self, k, tile):
        with k.ring.produce() as slot:
            slot.z.load(tile)

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            x = slot.x.read()
            total = x + slot.z.read(like=x)
        k.y.store(tile, total)


class CopiedGemm(tp.Schedule):
    """d = a b^T: one warp copies tiles of a by threads and loads those of b by TMA, and a warpgroup multiplies them."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(2, producer=load, consumer=math)
    a = tp.CpAsyncLoadStage("m k", tile=(64, 16), ring=ring, vector=4)
    b = tp.TmaLoadStage("n k", tile=(64, 16), ring=ring)
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)
                slot.b.load(tile, k=step)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("a", "k")):
                with k.ring.consume() as slot:
                    acc.add(slot.a, slot.b)
        k.d.store(tile, acc)


class Copied(tp.Schedule):
    """y = x: what one role loads into the slots that subclasses declare, another one stores."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class Images(Copied):
    """y = x, in boxes of three extents, whose rows begin at any multiple of 8 bytes; three warps copy."""

    load, store = tp.Role(warps=3), Copied.store
    ring = tp.BarrierRing(2, producer=load, consumer=store)
    x = tp.CpAsyncLoadStage("b h w c", tile=(4, 6, 32), ring=ring, vector=8)
    y = tp.TmaStoreStage(source=x)


class Ahead(Copied):
    """y = x, where each tile is asked into L2 some tiles ahead of its load."""

    load, store = Copied.load, Copied.store
    ring = tp.BarrierRing(2, producer=load, consumer=store)
    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)
            slot.x.prefetch(tile, m=tile.m + 5)


class Mapped(tp.Schedule):
    """y = x x + 1, with no engine in it: threads copy x in, and store y from registers. It runs on sm_80 too."""

    copy, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(2, producer=copy, consumer=work)
    x = tp.CpAsyncLoadStage("m n", tile=(4, 64), ring=ring, vector=4)
    y = tp.ThreadStoreStage("m n", tile=(4, 64), role=work, vector=4)

    @copy.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def apply(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile, values * values + 1)


class FarPieces(tp.Schedule):
    """y = x, in pieces of rows; one role asks for each piece ahead of the one that loads it, and for one beyond the end."""

    ask, load, store = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warps=1)
    pace = tp.BarrierRing(4, producer=ask, consumer=load)
    ring = tp.BarrierRing(2, producer=load, consumer=store)
    x = tp.BulkLoadStage("m n", tile=(64,), ring=ring)
    far = tp.L2Stage(x, ring=pace)
    y = tp.TmaStoreStage(source=x)

    @ask.jit
    def look_ahead(self, k, tile):
        with k.pace.produce() as slot:
            slot.far.prefetch(tile)

    @load.jit
    def fill(self, k, tile):
        with k.pace.consume(), k.ring.produce() as slot:
            slot.x.load(tile)
            slot.x.prefetch(tile, m=tile.m + 5)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class MappedBefore(Mapped):
    """The same for an architecture without engines."""

    copy, work = Mapped.copy, Mapped.work
    arch = "sm_80"


class Far(Copied):
    """y = x; one role asks for each tile up to 4 tiles before another one loads it."""

    ask, load, store = tp.Role(warps=1), Copied.load, Copied.store
    pace = tp.BarrierRing(4, producer=ask, consumer=load)
    ring = tp.BarrierRing(2, producer=load, consumer=store)
    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring)
    far = tp.L2Stage(x, ring=pace)
    y = tp.TmaStoreStage(source=x)

    @ask.jit
    def look_ahead(self, k, tile):
        with k.pace.produce() as slot:
            slot.far.prefetch(tile)

    @load.jit
    def fill(self, k, tile):
        with k.pace.consume(), k.ring.produce() as slot:
            slot.x.load(tile)


class BulkFromSlots(Copied):
    """y[n] = the minimum, or the like, of y[n] and x[n], straight from the slots, without a descriptor."""

    load, store = Copied.load, Copied.store

    def __init__(self, reduce: str = "min", dtype: str = "int64"):
        self.ring = tp.BarrierRing(2, producer=self.load, consumer=self.store)
        self.x = tp.BulkLoadStage("n", tile=(256,), ring=self.ring, dtype=dtype)
        self.y = tp.BulkStoreStage(source=self.x, reduce=reduce)
