"""Ragged groups of rows, whose bounds lie in a table on the device."""

import tmapipe as tp


class Program(tp.Schedule):
    relations = (tp.Dim("g", of="bounds", plus=-1),)
    load, work = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(64,), ring=ring, dtype="fp32")
    begins = tp.Table("bounds")
    y = tp.TmaStoreStage("g n", tile=(64,), role=work, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        first = k.begins.entry(tile.g)
        for i in range(k.begins.entry(tile.g + 1) - first):
            with k.ring.produce() as slot:
                slot.x.load(tile, m=first + i)

    @work.jit
    def add(self, k, tile):
        total = k.full("y", 0.0)
        for _ in range(k.begins.entry(tile.g + 1) - k.begins.entry(tile.g)):
            with k.ring.consume() as slot:
                total = total + slot.x.read()
        k.y.store(tile, total)
