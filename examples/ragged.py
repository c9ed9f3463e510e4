"""Sums over ragged groups of rows, whose sizes lie on the device. ``python examples/ragged.py``"""

import itertools

import numpy as np

import tmapipe as tp


class RaggedSums(tp.Schedule):
    """y[g, n] = sum of the rows x[begins[g] : begins[g + 1], n], of fp32; groups may be empty."""

    relations = (tp.Dim("g", of="bounds", plus=-1),)
    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(8, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(512,), ring=ring, dtype="fp32")
    begins = tp.Table("bounds")
    y = tp.TmaStoreStage("g n", tile=(512,), role=work, dtype="fp32")

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


def expected(x, begins):
    """What y should be, by NumPy."""
    return np.stack([x[first:end].sum(0, dtype=np.float32) for first, end in itertools.pairwise(begins)])


if __name__ == "__main__":
    made = np.random.default_rng(0)
    x = made.standard_normal((100, 1000)).astype(np.float32)
    begins = np.sort(made.integers(0, 101, 13)).astype(np.int32)
    np.testing.assert_allclose(RaggedSums()(x, begins), expected(x, begins), rtol=1e-4, atol=1e-4)
    print(RaggedSums().check())
