"""Each tile of rows adds up those above it and its own, in a dynamic order."""

import tmapipe as tp


class Program(tp.Schedule):
    load, add = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=add)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=add, stages=1)
    tiles = tp.tiles.DynamicTiles()

    @load.jit
    def fill(self, k, tile):
        for step in range(tile.m + 1):
            with k.ring.produce() as slot:
                slot.x.load(tile, m=step)

    @add.jit
    def total(self, k, tile):
        total = k.full("y", 0.0)
        for _ in range(tile.m + 1):
            with k.ring.consume() as slot:
                total = total + slot.x.read()
        k.y.store(tile, total)
