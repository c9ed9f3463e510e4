"""Small schedules in which the CTAs of a cluster exchange tiles, for the mutants, the PTX and a GPU."""

from __future__ import annotations

from typing import ClassVar

import tmapipe as tp

__all__ = [
    "Counted", "LogSumExp", "LongRows", "Looked", "Paired", "PairsOfRows", "Rotated", "RotatedInPairs", "Scattered", "Swapped",
    "WholeBoxes",
]  # fmt: skip


class Rotated(tp.Schedule):
    """y[m] = x[m] + x[m's right neighbour in the cluster], tile by tile: what is loaded is copied on to the left."""

    load, send, work = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warps=1)
    cluster: ClassVar = {"m": 2}
    ring = tp.BarrierRing(2, chain=(load, send, work))
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    z = tp.SharedStage(group=tp.Exchange(tp.MulticastGroup("m"), sender=send, source=x))
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @send.jit
    def exchange(self, k, tile):
        with k.ring.consume() as slot:
            slot.z.send((slot.z.rank + slot.z.peers - 1) % slot.z.peers)

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            total = slot.x.read() + slot.z.read()
        k.y.store(tile, total)


class RotatedInPairs(Rotated):
    """The same where each two of four CTAs send each other tiles."""

    load, send, work = Rotated.load, Rotated.send, Rotated.work
    cluster: ClassVar = {"m": 4}
    z = tp.SharedStage(group=tp.Exchange(tp.MulticastGroup("m", ctas=2), Rotated.send, Rotated.x))


class Paired(tp.Schedule):
    """y[h, m, n] = x[h // 2, m, n] + z[h, m, n]: of four CTAs along h in a cluster, each two share tiles of x."""

    relations = (tp.Dim("g", of="h", per=2),)
    load, work = tp.Role(warps=1), tp.Role(warps=1)
    cluster: ClassVar = {"h": 4}

    def __init__(self, whole: bool = False):
        self.ring = tp.BarrierRing(2, producer=self.load, consumer=self.work)
        pair = tp.MulticastGroup("h", ctas=2, whole=whole)
        self.x = tp.TmaLoadStage("g m n", tile=(4, 64), ring=self.ring, multicast=pair)
        self.z = tp.TmaLoadStage("h m n", tile=(4, 64), ring=self.ring)
        self.y = tp.TmaStoreStage("h m n", tile=(4, 64), role=self.work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load_from(tile.h // 2, tile.m * 4, tile.n * 64)  # the last CTAs of a cluster may have no head
            slot.z.load(tile)

    @work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            total = slot.x.read() + slot.z.read()
        k.y.store(tile, total)


class Scattered(tp.Schedule):
    """y[m] = the sum over s of x[s, m], where each CTA of a cluster loads one s: each sends the others their rows."""

    load, write, send, add = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warps=1), tp.Role(warps=1)
    cluster: ClassVar = {"s": 2}
    over = "s m n"
    loaded = tp.BarrierRing(1, producer=load, consumer=write)
    x = tp.TmaLoadStage("s m n", tile=(8, 32), ring=loaded)
    ring = tp.BarrierRing(1, chain=(write, send, add))
    mine = tp.SharedStage(tile=(8, 32), ring=ring, writer=write, dtype="fp32")
    theirs = tp.SharedStage(group=tp.Exchange(tp.MulticastGroup("s"), sender=send, source=mine))
    relations = (tp.Dim("q", of="m"), tp.Dim("s", at_most=2))  # as many rows, in tiles of half as many
    y = tp.TmaStoreStage("q n", tile=(4, 32), role=add, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.loaded.produce() as slot:
            slot.x.load(tile)

    @write.jit
    def widen(self, k, tile):
        with k.loaded.consume() as slot:
            values = slot.x.read()
        with k.ring.produce() as slot:
            slot.mine.write(values)

    @send.jit
    def scatter(self, k, tile):
        with k.ring.consume() as slot:
            for i in range(2):
                slot.theirs.send(i, part=i, into=slot.theirs.rank)

    @add.jit
    def total(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.theirs.read(tile=(4, 32), at=(0, 0)) + slot.theirs.read(tile=(4, 32), at=(4, 0))
            half = tile.also(q=2 * tile.m + slot.theirs.rank)
        k.y.store(half, values)


class Reduced(tp.Schedule):
    """y[m] = 3 + the sum, or the like, over s of x[s, m]: each CTA of a cluster loads one s, and the engine adds them."""

    load, write, send, store = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warps=1), tp.Role(warps=1)
    cluster: ClassVar = {"s": 2}
    over = "s m n"
    relations = (tp.Dim("q", of="m"), tp.Dim("s", at_most=2))  # as many rows, in tiles of half as many

    def __init__(self, reduce: str = "add", peers: int = 2):
        self.cluster = {"s": peers}
        self.relations = (*Reduced.relations[:1], tp.Dim("s", at_most=peers))
        self.loaded = tp.BarrierRing(1, producer=self.load, consumer=self.write)
        self.x = tp.TmaLoadStage("s m n", tile=(4 * peers, 32), ring=self.loaded, dtype="int32")
        self.ring = tp.BarrierRing(1, chain=(self.write, self.send, self.store))
        own = {"ring": self.ring, "writer": self.write, "dtype": "int32"}
        self.mine = tp.SharedStage(tile=(4 * peers, 32), **own)
        group = tp.Exchange(tp.MulticastGroup("s"), sender=self.send, source=self.mine, reduce=reduce)
        self.sums = tp.SharedStage(tile=(4, 32), writer=self.write, group=group)
        self.y = tp.TmaStoreStage("q n", source=self.sums, stages=0)

    @load.jit
    def fill(self, k, tile):
        with k.loaded.produce() as slot:
            slot.x.load(tile)

    @write.jit
    def widen(self, k, tile):
        with k.loaded.consume() as slot:
            values = slot.x.read()
        with k.ring.produce() as slot:
            slot.mine.write(values)
            slot.sums.write(k.full("sums", 3))

    @send.jit
    def scatter(self, k, tile):
        with k.ring.consume() as slot:
            for i in range(slot.sums.peers):
                slot.sums.reduce(i)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile.also(q=slot.sums.peers * tile.m + slot.sums.rank))


class LongRows(tp.Schedule):
    """y = (x - the maximum of its row) / the sum of its row, where a row lies in two CTAs, of two warps each."""

    load, work = tp.Role(warps=1), tp.Role(warps=2)
    cluster: ClassVar = {"n": 2}
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(1, 512), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(1, 512), role=work, stages=1)
    across = tp.ReductionScratch(work, group=tp.MulticastGroup("n"))

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def normalize(self, k, tile):
        inside = k.extent("n") - 512 * tile.n
        with k.ring.consume() as slot:
            values = slot.x.read()
        values = (values - tp.math.row_max(values, inside=inside)) / tp.math.row_sum(values, inside=inside)
        k.y.store(tile, values)


class PairsOfRows(LongRows):
    """The same of each 1024 elements of a row, as if these were rows: of four CTAs in a cluster, each two reduce together."""

    load, work = LongRows.load, LongRows.work
    cluster: ClassVar = {"n": 4}
    across = tp.ReductionScratch(work, group=tp.MulticastGroup("n", ctas=2))


class WholeBoxes(tp.Schedule):
    """y[r, m] = x[r, m] + s[m] for every r: one CTA of three loads each tile of s, of five rows, for all of them."""

    load, add = tp.Role(warps=1), tp.Role(warps=1)
    cluster: ClassVar = {"r": 3}
    ring = tp.BarrierRing(2, producer=load, consumer=add)
    x = tp.TmaLoadStage("r m n", tile=(5, 256), ring=ring)
    s = tp.TmaLoadStage("m n", tile=(5, 256), ring=ring, multicast=tp.MulticastGroup("r", whole=True))
    y = tp.TmaStoreStage("r m n", tile=(5, 256), role=add, stages=1)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)
            slot.s.load(tile)

    @add.jit
    def total(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() + slot.s.read()
        k.y.store(tile, values)


class Looked(tp.Schedule):
    """y[m] = the sum over s of x[s, m], where each CTA of a cluster loads one s, and reads its rows from all of them."""

    load, write, add = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=1)
    cluster: ClassVar = {"s": 2}
    over = "s m n"
    loaded = tp.BarrierRing(1, producer=load, consumer=write)
    x = tp.TmaLoadStage("s m n", tile=(8, 32), ring=loaded)
    ring = tp.BarrierRing(2, producer=write, consumer=add)
    mine = tp.SharedStage(tile=(8, 32), ring=ring, writer=write, dtype="fp32", group=tp.MulticastGroup("s"))
    relations = (tp.Dim("q", of="m"), tp.Dim("s", at_most=2))  # as many rows, in tiles of half as many
    y = tp.TmaStoreStage("q n", tile=(4, 32), role=add, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.loaded.produce() as slot:
            slot.x.load(tile)

    @write.jit
    def widen(self, k, tile):
        with k.loaded.consume() as slot:
            values = slot.x.read()
        with k.ring.produce() as slot:
            slot.mine.write(values)

    @add.jit
    def total(self, k, tile):
        rank = k.rank("s")
        with k.ring.consume() as slot:
            total = slot.mine.read_from(0, tile=(4, 32), at=(4 * rank, 0))
            total = total + slot.mine.read_from(1, tile=(4, 32), at=(4 * rank, 0))
        k.y.store(tile.also(q=2 * tile.m + rank), total)


class Swapped(tp.Schedule):
    """y[m] = x[m] + 2 x[m's neighbour in the cluster]: threads send each other what they have computed."""

    load, work, add = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=1)
    cluster: ClassVar = {"m": 2}
    loaded = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=loaded)
    ring = tp.BarrierRing(2, producer=work, consumer=add)
    mine = tp.SharedStage(tile=(4, 64), ring=ring, writer=work, dtype="fp32")
    theirs = tp.SharedStage(
        tile=(4, 64), ring=ring, dtype="fp32", group=tp.Exchange(tp.MulticastGroup("m"), sender=work)
    )
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=add)

    @load.jit
    def fill(self, k, tile):
        with k.loaded.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def double(self, k, tile):
        with k.loaded.consume() as slot:
            values = slot.x.read()
        with k.ring.produce() as slot:
            slot.theirs.send(1 - slot.theirs.rank, values * 2)
            slot.mine.write(values)

    @add.jit
    def total(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.mine.read() + slot.theirs.read()
        k.y.store(tile, values)


class LogSumExp(LongRows):
    """y[m, n] = log(sum of exp(x[m, i]) over all i), of rows in two CTAs, of two warps each."""

    load, work = LongRows.load, LongRows.work

    @work.jit
    def normalize(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        total = tp.math.row_logsumexp(values, inside=k.extent("n") - 512 * tile.n)
        k.y.store(tile, k.full("x", 0.0) + total)


class Counted(tp.Schedule):
    """y[m] = 3 + the sum, or the like, over s of x[s, m]: the threads of each CTA of a cluster reduce what they have loaded in
    the slots of the others."""

    load, write, count, store = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=1)
    over = "s m n"

    def __init__(self, reduce: str = "add", peers: int = 2):
        self.cluster = {"s": peers}
        self.relations = (tp.Dim("q", of="m"), tp.Dim("s", at_most=peers))
        self.loaded = tp.BarrierRing(1, producer=self.load, consumer=self.count)
        self.x = tp.TmaLoadStage("s m n", tile=(4 * peers, 32), ring=self.loaded, dtype="int32")
        self.ring = tp.BarrierRing(1, chain=(self.write, self.count, self.store))
        group = tp.Exchange(tp.MulticastGroup("s"), sender=self.count, reduce=reduce)
        self.sums = tp.SharedStage(tile=(4, 32), ring=self.ring, dtype="int32", writer=self.write, group=group)
        self.y = tp.TmaStoreStage("q n", source=self.sums, stages=0)

    @load.jit
    def fill(self, k, tile):
        with k.loaded.produce() as slot:
            slot.x.load(tile)

    @write.jit
    def begin(self, k, tile):
        with k.ring.produce() as slot:
            slot.sums.write(k.full("sums", 3))

    @count.jit
    def add(self, k, tile):
        with k.loaded.consume() as loaded, k.ring.consume() as slot:
            for i in range(slot.sums.peers):
                slot.sums.reduce(i, loaded.x.read(tile=(4, 32), at=(4 * i, 0)))

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile.also(q=slot.sums.peers * tile.m + slot.sums.rank))
