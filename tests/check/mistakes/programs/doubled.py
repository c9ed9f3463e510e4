"""Three roles share a slot: one loads it, one rewrites it, one stores it."""

import tmapipe as tp


class Program(tp.Schedule):
    load, work, store = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=1)
    ring = tp.BarrierRing(3, chain=(load, work, store))
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring, dtype="fp32")
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def double(self, k, tile):
        with k.ring.consume() as slot:
            slot.x.write(slot.x.read() * 2)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)
