"""Small schedules whose loads need descriptors of the library's own, for the model, the mutants, the PTX and a GPU."""

from __future__ import annotations

import tmapipe as tp

__all__ = ["Every", "EveryInParts", "Padded", "padded_gemm"]


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
