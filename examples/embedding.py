"""Rows of a matrix by index: an embedding, and its gradient. ``python examples/embedding.py``"""

import numpy as np

import tmapipe as tp


def gather_of(columns: int = 256, rows: int = 4, ctas: int | None = None, l2_hint: str | None = None) -> tp.Schedule:
    """Tiles of *rows* rows and *columns* columns, of which at most *ctas* at once are on a multiprocessor."""

    class Gather(tp.Schedule):
        """y[m] = x[index[m]]; zeros where there is no such row."""

        tiles = tp.tiles.GridTiles(tp.tiles.Grouped(1), ctas)
        load, store = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(1, producer=load, consumer=store)
        x = tp.TmaLoadStage("r n", tile=(rows, columns), ring=ring, l2_hint=l2_hint).in_parts(rows)
        index = tp.Table("m")
        y = tp.TmaStoreStage("m n", source=x, stages=0)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.gather(k.index, tile.m * rows, n=tile.n)

        @store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.y.store(tile)

    return Gather()


class Gradient(tp.Schedule):
    """y[index[m]] += x[m], in fp32; a row without a place is left out."""

    over = "m n"  # tiles of x
    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(4, producer=load, consumer=store)
    x = tp.TmaLoadStage("m n", tile=(16, 128), ring=ring, dtype="fp32")
    index = tp.Table("m")
    y = tp.TmaStoreStage("r n", source=x, reduce="add").in_parts(16)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.scatter(k.index, tile.m * 16, n=tile.n)


if __name__ == "__main__":
    made = np.random.default_rng(0)
    x, index = made.standard_normal((50, 600)).astype(np.float32), made.integers(-1, 50, 31).astype(np.int32)
    y = np.empty((31, 600), np.float32)
    gather_of()(x, index, out=y)
    assert (y == np.where(index[:, None] < 0, 0, x[index])).all()
    print(gather_of().check())

    x, y, expected = made.integers(-9, 9, (31, 600)).astype(np.float32), *np.zeros((2, 50, 600), np.float32)
    Gradient()(x, index, out=y)
    np.add.at(expected, index[index >= 0], x[index >= 0])
    assert (y == expected).all()
    print(Gradient().check())
