"""An operand of a matmul that threads write, from one that is loaded."""

import tmapipe as tp


class Program(tp.Schedule):
    load, widen, work = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(2, chain=(load, widen, work))
    of_x = tp.BarrierRing(2, producer=load, consumer=work)
    packed = tp.TmaLoadStage("n k", tile=(64, 16), ring=ring, dtype="int8")
    w = tp.SharedStage("n k", tile=(64, 16), ring=ring, writer=widen, dtype="bf16")
    x = tp.TmaLoadStage("m k", tile=(64, 16), ring=of_x)
    mma = tp.Wgmma(x, w)
    d = tp.TmaStoreStage("m n", source=mma, stages=1)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("x", "k")):
            with k.ring.produce() as slot:
                slot.packed.load(tile, k=step)
            with k.of_x.produce() as slot:
                slot.x.load(tile, k=step)

    @widen.jit
    def convert(self, k, tile):
        for _ in range(k.steps("x", "k")):
            with k.ring.consume() as slot:
                slot.w.write(slot.packed.read())

    @work.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("x", "k")):
                with k.ring.consume() as left, k.of_x.consume() as right:
                    acc.add(right.x, left.w)
        k.d.store(tile, acc)
