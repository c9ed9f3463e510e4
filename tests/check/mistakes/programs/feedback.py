"""Two roles hand tiles on to each other, there and back."""

import tmapipe as tp


class Program(tp.Schedule):
    load, left, right = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=left)
    there = tp.BarrierRing(2, producer=left, consumer=right)
    back = tp.BarrierRing(2, producer=right, consumer=left)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring, dtype="fp32")
    a = tp.SharedStage("m n", tile=(4, 64), ring=there, writer=left, dtype="fp32")
    b = tp.SharedStage("m n", tile=(4, 64), ring=back, writer=right, dtype="fp32")
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=left, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @left.jit
    def ask(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        with k.there.produce() as slot:
            slot.a.write(values)
        with k.back.consume() as slot:
            k.y.store(tile, values + slot.b.read())

    @right.jit
    def answer(self, k, tile):
        with k.there.consume() as slot:
            values = slot.a.read()
        with k.back.produce() as slot:
            slot.b.write(values * 2)
