"""Rows of a matrix by index, as of an embedding. ``python examples/embedding.py``"""

import numpy as np

import tmapipe as tp


def gather_of(columns: int = 256, rows: int = 4, ctas: int | None = None) -> tp.Schedule:
    """Tiles of *rows* rows and *columns* columns, of which at most *ctas* at once are on a multiprocessor."""

    class Gather(tp.Schedule):
        """y[m] = x[index[m]]; zeros where the index is -1."""

        tiles = tp.GridTiles(tp.Grouped(1), ctas)
        load, store = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(1, producer=load, consumer=store)
        x = tp.TmaLoadStage("r n", tile=(rows, columns), ring=ring).in_parts(rows)
        index = tp.Table("m")
        y = tp.TmaStoreStage("m n", source=x, stages=0)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                for i in range(rows):
                    row = k.index.entry(tile.m * rows + i)  # beyond the table -1, which is outside: zeros
                    slot.x.load_part_from(i, row, tile.n * columns)

        @store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.y.store(tile)

    return Gather()


if __name__ == "__main__":
    made = np.random.default_rng(0)
    x, index = made.standard_normal((50, 600)).astype(np.float32), made.integers(-1, 50, 31).astype(np.int32)
    y = np.empty((31, 600), np.float32)
    gather_of()(x, index, out=y)
    assert (y == np.where(index[:, None] < 0, 0, x[index])).all()
    print(gather_of().check())
