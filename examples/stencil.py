"""A 5-point stencil: y is the mean of x and its four neighbours, zero outside. ``python examples/stencil.py``"""

import numpy as np

import tmapipe as tp


class Stencil(tp.Schedule):
    """y[m, n] = (x[m, n] + x[m - 1, n] + x[m + 1, n] + x[m, n - 1] + x[m, n + 1]) / 5, of fp32."""

    load, work = tp.Role(warps=1), tp.Role(warps=8)
    ring = tp.BarrierRing(4, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(34, 72), ring=ring, dtype="fp32")  # with a halo: a row, 16 bytes of columns
    y = tp.TmaStoreStage("m n", tile=(32, 64), role=work, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load_from(tile.m * 32 - 1, tile.n * 64 - 4)

    @work.jit
    def average(self, k, tile):
        with k.ring.consume() as slot:
            total = slot.x.read(tile=(32, 64), at=(1, 4))
            for row, column in ((0, 4), (2, 4), (1, 3), (1, 5)):
                total = total + slot.x.read(tile=(32, 64), at=(row, column))
        k.y.store(tile, total * 0.2)


def expected(x):
    """What y should be, by NumPy."""
    wide = np.pad(x, 1)
    neighbours = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
    return (x + neighbours) * np.float32(0.2)


if __name__ == "__main__":
    x = np.random.default_rng(0).standard_normal((100, 200)).astype(np.float32)
    np.testing.assert_allclose(Stencil()(x), expected(x), rtol=1e-5, atol=1e-6)
    print(Stencil().check())
