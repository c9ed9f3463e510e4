"""Two warps pass sums to each other through scratch, between syncs."""

import tmapipe as tp


class Program(tp.Schedule):
    relations = (tp.Dim("n", at_most=64),)
    load, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    sums = tp.Scratch(work, tile=(4,), dtype="fp32")
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=work, stages=1)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def subtract(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.sums.write(tp.math.row_sum(values))
        k.sync()
        values = values - k.sums.read(rows_of=values)
        k.sync()
        k.y.store(tile, values)
