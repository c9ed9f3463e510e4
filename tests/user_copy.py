"""A user's copy, and one with a slip, as the text of a file: for tests that begin where a user does."""

COPY = """\
class Copy(tp.Schedule):
    load, store = tp.Role(warps=1), tp.Role(warps=1)

    def __init__(self, rows=8):
        self.ring = tp.BarrierRing(stages=4, producer=self.load, consumer=self.store)
        self.x = tp.TmaLoadStage(tile=(rows, 128), ring=self.ring)
        self.y = tp.TmaStoreStage(source=self.x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class Broken(Copy):
    @Copy.store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)
        with k.ring.consume() as again:
            again.y.store(tile)
"""
