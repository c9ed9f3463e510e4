"""A schedule with raw CuTe DSL in a role: rows of x, twice as large, on their way from slot to slot."""

import numpy as np

import tmapipe as tp


def double_on_gpu(rows):
    """Each lane doubles every 32nd element of the warp's rows."""
    import cutlass.cute as cute
    from cutlass import Float32

    lane = cute.arch.lane_idx()
    height, width = rows.shape
    for row in range(height):
        for first in range(0, width, 32):
            value = rows[row, first + lane].to(Float32) * Float32(2.0)
            rows[row, first + lane] = value.to(rows.element_type)


def double_on_cpu(rows):
    rows[...] = (2 * rows.astype(np.float32)).astype(rows.dtype)


class Doubled(tp.Schedule):
    """``y = 2 x``."""

    load, work, store = tp.Role(warps=1), tp.Role(warps=4), tp.Role(warps=1)
    ring = tp.BarrierRing(3, chain=(load, work, store))
    x = tp.TmaLoadStage(tile=(16, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def double(self, k, tile):
        with k.ring.consume() as slot:
            k.raw(double_on_gpu, double_on_cpu, updates=(slot.x,))

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)
