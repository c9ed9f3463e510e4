"""A product whose second operand is loaded before the kernels before it have ended."""

from __future__ import annotations

import tmapipe as tp


class EarlyGemm(tp.Schedule):
    """d = a b^T, of a constant b."""

    load, math = tp.Role(warps=1, early=("b",)), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(stages=3, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(64, 64), ring=ring)
    b = tp.TmaLoadStage("n k", tile=(128, 64), ring=ring)
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.b.load(tile, k=step)
                k.dependency_wait()
                slot.a.load(tile, k=step)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("a", "k")):
                with k.ring.consume() as slot:
                    acc.add(slot.a, slot.b)
        k.d.store(tile, acc)
