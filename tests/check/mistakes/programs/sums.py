"""An inner loop: the matrices of a stack are added."""

import tmapipe as tp


class Program(tp.Schedule):
    load, add = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(3, producer=load, consumer=add)
    x = tp.TmaLoadStage("s m n", tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(8, 64), role=add)

    @load.jit
    def fill(self, k, tile):
        for s in range(k.steps("x", "s")):
            with k.ring.produce() as slot:
                slot.x.load(tile, s=s)

    @add.jit
    def total(self, k, tile):
        total = k.full("y", 0.0)
        for _ in range(k.steps("x", "s")):
            with k.ring.consume() as slot:
                total = total + slot.x.read()
        k.y.store(tile, total)
