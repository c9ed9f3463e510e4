"""Each tile goes through one slot."""

import tmapipe as tp


class Program(tp.Schedule):
    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(stages=3, producer=load, consumer=store)
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)
