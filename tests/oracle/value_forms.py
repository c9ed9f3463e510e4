"""Small forms of what works on values: reductions of rows that lie in several warps, and numbers out of lines of a tile."""

import tmapipe as tp

__all__ = ["Normalized", "Taps"]


class Normalized(tp.Schedule):
    """y = (x - the maximum of its row) / the sum of its row, each over two warps: two reductions, whose copies alternate."""

    load, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(1, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(1, 64), role=work, stages=1)
    across = tp.ReductionScratch(work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def normalize(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        values = (values - tp.math.row_max(values)) / tp.math.row_sum(values)
        k.y.store(tile, values)


class Taps(tp.Schedule):
    """y[m, n] = sum over i of w[i, n] x[m + i - 1, n], + b[n // 2] s[1, m // 2]: a row of a tile for each tap, and each number
    of others for two columns or two rows."""

    over = "m n"
    relations = (tp.Dim("i", size=3), tp.Dim("h", of="n", per=2), tp.Dim("g", of="m", per=2))
    load, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(10, 64), ring=ring)
    w = tp.TmaLoadStage("i n", tile=(3, 64), ring=ring)
    b = tp.TmaLoadStage("h", tile=(32,), ring=ring, dtype="fp32")
    s = tp.TmaLoadStage("i g", tile=(3, 4), ring=ring, dtype="fp32")
    y = tp.TmaStoreStage("m n", tile=(8, 64), role=work, stages=1)
    taps = 3

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load_from(tile.m * 8 - 1, tile.n * 64)
            slot.w.load(tile, i=0)
            slot.b.load_from(tile.n * 32)
            slot.s.load_from(0, tile.m * 4)

    @work.jit
    def compute(self, k, tile):
        total = k.full("y", 0.0)
        with k.ring.consume() as slot:
            for i in range(self.taps):
                values = slot.x.read(tile=(8, 64), at=(i, 0))
                total = total + values * slot.w.read(columns_of=values, at=i)
            beside = slot.s.read(rows_of=total, at=(1, 0), each=2)
            total = total + slot.b.read(columns_of=total, each=2) * beside
        k.y.store(tile, total)
