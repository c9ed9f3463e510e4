"""Two teams of one warpgroup each, on different output tiles, in turn."""

import tmapipe as tp


class Program(tp.Schedule):
    load, math = tp.Role(warps=1), tp.Role(warpgroups=2, teams=2)
    ring = tp.BarrierRing(3, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(64, 16), ring=ring)
    b = tp.TmaLoadStage("n k", tile=(64, 16), ring=ring)
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma, stages=1)
    order = tp.Turnstile(math)
    stores = tp.Turnstile(math, stores=(d,))

    def tile_slots(self, k, tile):
        return k.steps("a", "k")

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)
                slot.b.load(tile, k=step)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            with k.order.turn():
                for _ in range(k.steps("a", "k")):
                    with k.ring.consume() as slot:
                        acc.add(slot.a, slot.b)
        with k.stores.turn():
            k.d.store(tile, acc)
