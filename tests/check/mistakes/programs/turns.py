"""Two warpgroups of one team start their matmuls in turn."""

import tmapipe as tp


class Program(tp.Schedule):
    load, work = tp.Role(warps=1), tp.Role(warpgroups=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    a = tp.TmaLoadStage("m k", tile=(128, 16), ring=ring)
    b = tp.TmaLoadStage("n k", tile=(64, 16), ring=ring)
    mma = tp.Wgmma(a, b, in_flight=0)
    order = tp.Turnstile(work)
    d = tp.TmaStoreStage("m n", source=mma, stages=1)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)
                slot.b.load(tile, k=step)

    @work.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("a", "k")):
                with k.order.turn(), k.ring.consume() as slot:
                    product = acc.start(slot.a, slot.b)
                product.wait()
        k.d.store(tile, acc)
