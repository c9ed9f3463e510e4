"""A GEMM by two CTAs that share tiles of b."""

import tmapipe as tp


class Program(tp.Schedule):
    cluster = {"m": 2, "n": 1}  # noqa: RUF012
    load, math = tp.Role(warps=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(3, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(64, 16), ring=ring)
    b = tp.TmaLoadStage("n k", tile=(64, 16), ring=ring, multicast=tp.MulticastGroup("m"))
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma, stages=1)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)
                slot.b.load(tile, k=step)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("a", "k")):
                with k.ring.consume() as slot:
                    acc.add(slot.a, slot.b)
        k.d.store(tile, acc)
