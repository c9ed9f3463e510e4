"""Two rings between the same roles."""

import tmapipe as tp


class Program(tp.Schedule):
    load, add = tp.Role(warps=1), tp.Role(warps=1)
    left = tp.BarrierRing(1, producer=load, consumer=add)
    right = tp.BarrierRing(1, producer=load, consumer=add)
    a = tp.TmaLoadStage("m n", tile=(4, 64), ring=left)
    b = tp.TmaLoadStage("m n", tile=(4, 64), ring=right)
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=add)

    @load.jit
    def fill(self, k, tile):
        for _ in range(2):
            with k.left.produce() as slot:
                slot.a.load(tile)
            with k.right.produce() as slot:
                slot.b.load(tile)

    @add.jit
    def total(self, k, tile):
        total = k.full("y", 0.0)
        for _ in range(2):
            with k.left.consume() as slot:
                total = total + slot.a.read()
            with k.right.consume() as slot:
                total = total + slot.b.read()
        k.y.store(tile, total)
