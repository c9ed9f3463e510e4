"""Rows that lie in several warps are reduced."""

import tmapipe as tp


class Program(tp.Schedule):
    relations = (tp.Dim("n", at_most=64),)
    load, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(1, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(1, 64), role=work, stages=1)
    across = tp.ReductionScratch(work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def normalize(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        values = tp.math.exp(values - tp.math.row_max(values))
        k.y.store(tile, values / tp.math.row_sum(values))
