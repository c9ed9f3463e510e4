"""A GEMM for each group of rows, where places and sizes of the groups, of tokens and of weights, lie on the device.

The kernel makes a descriptor of each group, beyond whose rows there are zeros. ``python examples/groups_anywhere.py``
"""

import numpy as np

import tmapipe as tp


class GroupsAnywhere(tp.Schedule):
    """d[g, i, j] = sum over k of a[rows[g] + i, k] b[columns[g] + j, k], for i < heights[g] and j < widths[g], else 0."""

    over = "g m n"
    point, load, math = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warpgroups=2)
    ring = tp.BarrierRing(producer=load, consumer=math)
    views = tp.BarrierRing(2, producer=point, consumer=(load, math))
    a = tp.TmaLoadStage("rows_of_a k", tile=(128, 64), ring=ring)
    b = tp.TmaLoadStage("rows_of_b k", tile=(128, 64), ring=ring)
    of_a, of_b = tp.DescriptorStage(a, ring=views), tp.DescriptorStage(b, ring=views)
    rows, heights, columns, widths = tp.Table("g"), tp.Table("g"), tp.Table("g"), tp.Table("g")
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("g m n", source=mma)

    @point.jit
    def show(self, k, tile):
        with k.views.produce() as slot:
            slot.of_a.set(k.rows.entry(tile.g), k.heights.entry(tile.g))
            slot.of_b.set(k.columns.entry(tile.g), k.widths.entry(tile.g))

    @load.jit
    def fill(self, k, tile):
        with k.views.consume() as views:
            of_a, of_b = views.of_a.acquire(), views.of_b.acquire()
            for step in range(k.steps("a", "k")):
                with k.ring.produce() as slot:
                    slot.a.load_through(of_a, rows_of_a=tile.m, k=step)
                    slot.b.load_through(of_b, rows_of_b=tile.n, k=step)

    @math.jit
    def multiply(self, k, tile):
        with k.views.consume():  # which says, when it is released, that all loads through its descriptors are over
            with k.mma.accumulate() as acc:
                for _ in range(k.steps("a", "k")):
                    with k.ring.consume() as slot:
                        acc.add(slot.a, slot.b)
        k.d.store(tile, acc)


def expected(a, b, rows, heights, columns, widths, shape):
    """What d should be, by NumPy, in fp32."""
    d = np.zeros(shape, np.float32)
    for g, (i, m, j, n) in enumerate(zip(rows, heights, columns, widths, strict=True)):
        d[g, :m, :n] = a[i : i + m].astype(np.float32) @ b[j : j + n].astype(np.float32).T
    return d


if __name__ == "__main__":
    made = np.random.default_rng(0)
    a, b = (made.integers(-3, 4, (count, 136)).astype(tp.dtypes.bf16.numpy) for count in (300, 500))
    places = [np.array(each, np.int32) for each in ([170, 0, 40], [130, 170, 1], [0, 100, 360], [100, 136, 140])]
    d = np.zeros((3, 170, 144), tp.dtypes.bf16.numpy)
    GroupsAnywhere()(a, b, *places, out=d)
    right = (d == expected(a, b, *places, d.shape).astype(d.dtype)).all()
    print(f"three groups of rows: right is {right}")
    assert right
