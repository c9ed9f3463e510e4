"""Rows that lie in pages, as in a paged KV cache: a table says where each page is. ``python examples/pages.py``"""

import numpy as np

import tmapipe as tp

PAGE, TILE = 16, 64  # rows


class Paged(tp.Schedule):
    """y[m] = row m % 16 of page pages[m // 16] of x, of bf16. Rows of a page that is not there (-1) are zero."""

    relations = (tp.Dim("p", of="m", per=PAGE),)
    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(4, producer=load, consumer=store)
    x = tp.TmaLoadStage("r n", tile=(TILE, 128), ring=ring).in_parts(TILE // PAGE)  # four boxes, on one mbarrier
    pages = tp.Table("p")
    y = tp.TmaStoreStage("m n", source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            for i in range(TILE // PAGE):
                page = k.pages.entry(tile.m * (TILE // PAGE) + i)  # beyond the table -1, which is outside: zeros
                slot.x.load_part_from(i, page * PAGE, tile.n * 128)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


def expected(x, pages, rows):
    """What y should be, by NumPy."""
    y = np.zeros((len(pages) * PAGE, x.shape[1]), x.dtype)
    for i, page in enumerate(pages):
        if page >= 0:
            y[i * PAGE : (i + 1) * PAGE] = x[page * PAGE : (page + 1) * PAGE]
    return y[:rows]


if __name__ == "__main__":
    made = np.random.default_rng(0)
    x = made.standard_normal((40 * PAGE, 256)).astype(tp.dtypes.bf16.numpy)
    rows = 200
    pages = made.permutation(40)[: -(-rows // PAGE)].astype(np.int32)
    pages[5] = -1
    y = np.empty((rows, 256), x.dtype)
    Paged()(x, pages, out=y)
    assert (y == expected(x, pages, rows)).all()
    print(Paged().check())
