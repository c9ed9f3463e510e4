"""Sums of rows that are longer than a CTA's part: each CTA adds its own to the output, or those of a cluster tell each other.

python examples/row_sums.py
"""

import numpy as np

import tmapipe as tp


class RowSums(tp.Schedule):
    """y[m] = sum over n of x[m, n], of fp32. Parts of a row are added in no fixed order."""

    over = "m n"
    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(4, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(32, 256), ring=ring, dtype="fp32")
    y = tp.TmaStoreStage("m", tile=(32,), role=work, reduce="add", dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()  # zero beyond the tensor's edge
        k.y.store(tile, tp.math.row_sum(values))


class ClusterRowSums(tp.Schedule):
    """The same for rows of up to 8 x 1024 elements, in a fixed order: the bits are the same in every run."""

    over = "m n"
    cluster = {"n": 8}  # noqa: RUF012
    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(4, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 1024), ring=ring, dtype="fp32")
    y = tp.TmaStoreStage("m", tile=(4,), role=work, dtype="fp32")
    across = tp.ReductionScratch(work, rows=4, group=tp.MulticastGroup("n"))

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        sums = tp.math.row_sum(values)  # of all eight parts, in all eight CTAs
        if k.rank("n") == 0:
            k.y.store(tile, sums)


if __name__ == "__main__":
    x = np.random.default_rng(0).standard_normal((20, 600)).astype(np.float32)
    np.testing.assert_allclose(RowSums()(x), x.sum(1), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(ClusterRowSums()(x), x.sum(1), rtol=1e-4, atol=1e-3)
    print(RowSums().check())
    print(ClusterRowSums().check())
