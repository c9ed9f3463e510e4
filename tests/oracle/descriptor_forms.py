"""Small schedules whose loads need descriptors of the library's own, for the model, the mutants, the PTX and a GPU."""

from __future__ import annotations

import tmapipe as tp

__all__ = ["AnyRows", "Convolved", "Every", "EveryInParts", "Lines", "Padded", "ScaledRows", "SomeRows", "padded_gemm"]


class Every(tp.Schedule):
    """y[b, p, q, c] = x[b, 2 p, 3 q, c]: a tile takes every second row and every third column."""

    relations = (tp.Dim("p", of="h", per=2), tp.Dim("q", of="w", per=3))
    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=store)

    def __init__(self, tile: tuple[int, ...] = (4, 6, 32), swizzle: int | None = None):
        self.x = tp.TmaLoadStage("b h w c", tile=tile, ring=self.ring, swizzle=swizzle).strided(h=2, w=3)
        self.y = tp.TmaStoreStage("b p q c", source=self.x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile, h=tile.p, w=tile.q)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class EveryInParts(Every):
    """The same, of two rows at a time."""

    load, store = Every.load, Every.store

    def __init__(self) -> None:
        super().__init__()
        self.x = self.x.in_parts(2)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            for part in range(2):
                slot.x.load_part(part, tile, h=tile.p * 2 + part, w=tile.q)


class Padded(tp.Schedule):
    """y[m, n] = x[m - 3, n + 8], NaN where x has no such element."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=store)

    def __init__(self, tile: tuple[int, int] = (16, 64), dtype: str = "fp32"):
        self.x = tp.TmaLoadStage("m n", tile=tile, ring=self.ring, dtype=dtype).nan_outside()
        self.y = tp.TmaStoreStage(source=self.x)
        self.tile = tile

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load_from(tile.m * self.tile[0] - 3, tile.n * self.tile[1] + 8)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


def padded_gemm() -> tp.Schedule:
    """A GEMM of a cluster, with NaN beyond b, which peers share: such columns of d are not stored."""
    gemm = tp.schedules.Gemm((128, 128, 64), (2, 1))
    gemm.b = gemm.b.nan_outside()
    return gemm


class Convolved(tp.Schedule):
    """d[m, o] = sum over the elements of window m of x [n, h, w, c] and c, times f [o, r, s, c]; d's rows are all windows."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(2, producer=load, consumer=math)

    def __init__(self, windows: tp.Windows, cluster: int = 1, channels: int = 32):
        (r, s), peers = windows.size, tp.MulticastGroup("o")
        self.relations = (tp.Dim("r", size=r), tp.Dim("s", size=s))
        self.cluster = {"m": 1, "o": cluster}
        self.x = tp.Im2colLoadStage(
            "n h w c", tile=(64, channels), windows=windows, ring=self.ring, multicast=peers, swizzle=64
        )
        self.f = tp.TmaLoadStage("o r s c", tile=(16, 1, 1, channels), ring=self.ring, swizzle=64)
        self.mma = tp.Wgmma(self.x, self.f)
        self.d = tp.TmaStoreStage("m o", source=self.mma)
        self.channels = channels

    @load.jit
    def fill(self, k, tile):
        first = k.windows("x", tile.m * 64)
        for r in range(k.extent("r")):
            for s in range(k.extent("s")):
                for c in range(k.steps("x", "c")):
                    with k.ring.produce() as slot:
                        slot.x.load_windows(first, r, s, c * self.channels)
                        slot.f.load(tile, r=r, s=s, c=c)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in range(k.extent("r") * k.extent("s") * k.steps("x", "c")):
                with k.ring.consume() as slot:
                    acc.add(slot.x, slot.f)
        k.d.store(tile, acc)


class Lines(tp.Schedule):
    """d[m, c] = element i of window m of x [n, ..., c], for images of 1 to 3 dimensions."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=store)

    def __init__(self, windows: tp.Windows, element: tuple[int, ...], tile: tuple[int, int] = (24, 16)):
        dims = " ".join(["n", *"thw"[3 - len(windows.size) :], "c"])
        self.x = tp.Im2colLoadStage(dims, tile=tile, windows=windows, ring=self.ring, dtype="fp32")
        self.d = tp.TmaStoreStage("m c", source=self.x)
        self.element, self.tile = element, tile

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load_windows(k.windows("x", tile.m * self.tile[0]), *self.element, tile.c * self.tile[1])

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.d.store(tile)


class AnyRows(tp.Schedule):
    """d[l, m, n] = sum over k of a[l, m, k] b[starts[l] + n, k] for n < counts[l], else 0: rows of b from anywhere."""

    point, load, math = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(2, producer=load, consumer=math)
    views = tp.BarrierRing(2, producer=point, consumer=(load, math))
    a = tp.TmaLoadStage("l m k", tile=(64, 32), ring=ring)
    b = tp.TmaLoadStage("w k", tile=(16, 32), ring=ring)
    rows = tp.DescriptorStage(b, ring=views)
    starts, counts = tp.Table("l"), tp.Table("l")
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("l m n", source=mma)

    @point.jit
    def show(self, k, tile):
        with k.views.produce() as slot:
            slot.rows.set(k.starts.entry(tile.l), k.counts.entry(tile.l))

    @load.jit
    def fill(self, k, tile):
        with k.views.consume() as views:
            view = views.rows.acquire()
            for step in range(k.steps("a", "k")):
                with k.ring.produce() as slot:
                    slot.a.load(tile, k=step)
                    slot.b.load_through(view, w=tile.n, k=step)

    @math.jit
    def multiply(self, k, tile):
        with k.views.consume():
            with k.mma.accumulate() as acc:
                for _ in range(k.steps("a", "k")):
                    with k.ring.consume() as slot:
                        acc.add(slot.a, slot.b)
        k.d.store(tile, acc)


class SomeRows(AnyRows):
    """The same, where there may be none: all roles skip those, and leave d as it is."""

    point, load, math = AnyRows.point, AnyRows.load, AnyRows.math

    @point.jit
    def show(self, k, tile):
        if k.counts.entry(tile.l) > 0:
            with k.views.produce() as slot:
                slot.rows.set(k.starts.entry(tile.l), k.counts.entry(tile.l))

    @load.jit
    def fill(self, k, tile):
        if k.counts.entry(tile.l) > 0:
            with k.views.consume() as views:
                view = views.rows.acquire()
                for step in range(k.steps("a", "k")):
                    with k.ring.produce() as slot:
                        slot.a.load(tile, k=step)
                        slot.b.load_through(view, w=tile.n, k=step)

    @math.jit
    def multiply(self, k, tile):
        if k.counts.entry(tile.l) > 0:
            with k.views.consume():
                with k.mma.accumulate() as acc:
                    for _ in range(k.steps("a", "k")):
                        with k.ring.consume() as slot:
                            acc.add(slot.a, slot.b)
            k.d.store(tile, acc)


class ScaledRows(AnyRows):
    """The same, scaled by what the slots of the descriptors hold besides."""

    point, load, math = AnyRows.point, AnyRows.load, AnyRows.math
    views = tp.BarrierRing(1, producer=point, consumer=(load, math))
    rows = tp.DescriptorStage(AnyRows.b, ring=views)
    scale = tp.SharedStage(tile=(32,), ring=views, writer=point, dtype="fp32")

    @point.jit
    def show(self, k, tile):
        with k.views.produce() as slot:
            slot.rows.set(k.starts.entry(tile.l), k.counts.entry(tile.l))
            slot.scale.write(k.full("scale", 2.0))

    @math.jit
    def multiply(self, k, tile):
        with k.views.consume() as views:
            scale = views.scale.read(at=0)
            with k.mma.accumulate() as acc:
                for _ in range(k.steps("a", "k")):
                    with k.ring.consume() as slot:
                        acc.add(slot.a, slot.b)
        k.d.store(tile, acc.values() * scale)
