"""Two matmuls in flight, of slots of two rings."""

import tmapipe as tp


class Program(tp.Schedule):
    load, math = tp.Role(warps=1), tp.Role(warpgroups=1)
    of_a = tp.BarrierRing(2, producer=load, consumer=math)
    others = tp.BarrierRing(2, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(64, 16), ring=of_a)
    b = tp.TmaLoadStage("n k", tile=(64, 16), ring=others)
    c = tp.TmaLoadStage("n k", tile=(64, 16), ring=others)
    left = tp.Wgmma(a, b, in_flight=0)
    right = tp.Wgmma(a, c, in_flight=0)
    d = tp.TmaStoreStage("m n", source=left, stages=1)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.of_a.produce() as slot:
                slot.a.load(tile, k=step)
            with k.others.produce() as slot:
                slot.b.load(tile, k=step)
                slot.c.load(tile, k=step)

    @math.jit
    def multiply(self, k, tile):
        with k.left.accumulate() as first, k.right.accumulate() as second:
            for _ in range(k.steps("a", "k")):
                with k.of_a.consume() as slot, k.others.consume() as other:
                    one = first.start(slot.a, other.b)
                    two = second.start(slot.a, other.c)
                one.wait()
                two.wait()
        k.d.store(tile, (first, second), lambda x, y: x * y)
