"""Weights that are loaded once a CTA, for two CTAs at once."""

import tmapipe as tp


class Program(tp.Schedule):
    cluster = {"m": 2}  # noqa: RUF012
    load, work = tp.Role(warps=1), tp.Role(warps=2)
    weights = tp.BarrierRing(producer=load, consumer=work, per="cta")
    w = tp.TmaLoadStage("i n", tile=(4, 64), ring=weights, multicast=tp.MulticastGroup("m"))
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=work, stages=1)

    @load.before.jit
    def fill_weights(self, k):
        with k.weights.produce() as slot:
            slot.w.load(i=0, n=0)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def scale(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() * k.weights.w.read()
        k.y.store(tile, values)
