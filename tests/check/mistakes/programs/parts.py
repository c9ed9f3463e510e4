"""Each tile is loaded in two parts."""

import tmapipe as tp


class Program(tp.Schedule):
    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=store)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring).in_parts(2)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            for i in range(2):
                slot.x.load_part(i, tile)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)
