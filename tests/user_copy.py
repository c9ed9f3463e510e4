"""A user's copy: as the text of a file, also with a slip, and as a schedule whose second role does what a test says."""

import tmapipe as tp

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


def copy_of(work_body):
    """A copy whose second role does something else."""

    class Copy(tp.Schedule):
        load, work = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(2, producer=load, consumer=work)
        x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
        y = tp.TmaStoreStage("m n", tile=(4, 64), role=work)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @work.jit
        def drain(self, k, tile):
            work_body(k, tile)

    return Copy()
