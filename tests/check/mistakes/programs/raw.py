"""Raw CuTe DSL rewrites a slot between its load and its store."""

import tmapipe as tp


def double(rows):
    """Runs on the GPU."""


class Program(tp.Schedule):
    load, work, store = tp.Role(warps=1), tp.Role(warps=4), tp.Role(warps=1)
    ring = tp.BarrierRing(3, chain=(load, work, store))
    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def change(self, k, tile):
        with k.ring.consume() as slot:
            k.raw(double, updates=(slot.x,))

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)
