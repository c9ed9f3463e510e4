"""Histograms of rows: how often each small number occurs in each row. ``python examples/histogram.py``"""

import numpy as np

import tmapipe as tp

BINS = 32


class Histogram(tp.Schedule):
    """h[m, b] = how many of x[m, :] are b, of int32; numbers outside 0 .. BINS - 1 are not counted."""

    relations = (tp.Dim("b", size=BINS),)
    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(4, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(32, BINS), ring=ring, dtype="int32")  # as h, so that rows are distributed alike
    h = tp.TmaStoreStage("m b", tile=(32, BINS), role=work, dtype="int32")

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("x", "n")):
            with k.ring.produce() as slot:
                slot.x.load(tile, n=step)

    @work.jit
    def count(self, k, tile):
        counts = k.full("h", 0)
        for step in range(k.steps("x", "n")):
            with k.ring.consume() as slot:
                values = slot.x.read()
            for b in range(BINS):
                found = tp.math.row_sum(tp.math.where(values == b, 1, 0), inside=k.extent("n") - step * BINS)
                counts = counts + tp.math.where(counts.columns == b, found, 0)
        k.h.store(tile, counts)


def expected(x):
    """What h should be, by NumPy."""
    return (x[:, :, None] == np.arange(BINS)).sum(1, dtype=np.int32)


if __name__ == "__main__":
    x = np.random.default_rng(0).integers(-2, BINS + 2, (40, 72)).astype(np.int32)
    np.testing.assert_array_equal(Histogram()(x), expected(x))
    print(Histogram().check())
