"""Three ways in which the CTAs of a cluster add up what each of them has. ``python examples/exchange.py``

In the first, all read what the others have written. In the second, the engine adds integers in the others' shared memory; in
the third, threads do.
"""

import torch

import tmapipe as tp

CTAS = 4


class Shares(tp.Schedule):
    """y[s] = x[s] / (the sum over s of x[s]), element by element: each CTA has one s, and all of them need the sum."""

    load, work, divide = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=2)
    cluster = {"s": CTAS}  # noqa: RUF012
    relations = (tp.Dim("s", size=CTAS),)
    loaded = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("s m n", tile=(8, 128), ring=loaded)
    ring = tp.BarrierRing(2, producer=work, consumer=divide)
    powers = tp.SharedStage(tile=(8, 128), ring=ring, writer=work, dtype="fp32", group=tp.MulticastGroup("s"))
    y = tp.TmaStoreStage("s m n", tile=(8, 128), role=divide)

    @load.jit
    def fill(self, k, tile):
        with k.loaded.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def exponents(self, k, tile):
        with k.loaded.consume() as slot:
            values = slot.x.read()
        with k.ring.produce() as slot:
            slot.powers.write(tp.math.exp(values))

    @divide.jit
    def share(self, k, tile):
        with k.ring.consume() as slot:  # entered when all CTAs have written, released when all have read
            total = slot.powers.read_from(0)
            for i in range(1, CTAS):
                total = total + slot.powers.read_from(i)
            mine = slot.powers.read()
        k.y.store(tile, mine / total)


class Counts(tp.Schedule):
    """y = how many of the x[s] are positive, element by element: each CTA has one s, and adds a part into each other one."""

    over = "s m n"
    relations = (tp.Dim("s", size=CTAS), tp.Dim("q", of="m"))  # of q as many rows, in tiles of fewer
    load, count, send, store = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=1), tp.Role(warps=1)
    cluster = {"s": CTAS}  # noqa: RUF012
    loaded = tp.BarrierRing(2, producer=load, consumer=count)
    x = tp.TmaLoadStage("s m n", tile=(8, 128), ring=loaded)
    ring = tp.BarrierRing(2, chain=(count, send, store))
    ones = tp.SharedStage(tile=(8, 128), ring=ring, writer=count, dtype="int32")
    added = tp.Exchange(tp.MulticastGroup("s"), sender=send, source=ones, reduce="add")
    sums = tp.SharedStage(tile=(8 // CTAS, 128), writer=count, group=added)
    y = tp.TmaStoreStage("q n", source=sums)

    @load.jit
    def fill(self, k, tile):
        with k.loaded.produce() as slot:
            slot.x.load(tile)

    @count.jit
    def compare(self, k, tile):
        with k.loaded.consume() as slot:
            positive = slot.x.read() > 0
        with k.ring.produce() as slot:
            slot.ones.write(positive)
            slot.sums.write(k.full("sums", 0))

    @send.jit
    def scatter(self, k, tile):
        with k.ring.consume() as slot:
            for i in range(CTAS):
                slot.sums.reduce(i)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:  # entered when the parts of all CTAs have been added
            slot.y.store(tile.also(q=CTAS * tile.m + slot.sums.rank))


class Votes(tp.Schedule):
    """The same, where the threads that compare add what they have in registers into the others' shared memory."""

    over = "s m n"
    relations = (tp.Dim("s", size=CTAS), tp.Dim("q", of="m"))
    load, clear, count, store = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=1)
    cluster = {"s": CTAS}  # noqa: RUF012
    loaded = tp.BarrierRing(2, producer=load, consumer=count)
    x = tp.TmaLoadStage("s m n", tile=(8, 128), ring=loaded)
    ring = tp.BarrierRing(2, chain=(clear, count, store))
    added = tp.Exchange(tp.MulticastGroup("s"), sender=count, reduce="add")
    sums = tp.SharedStage(tile=(8 // CTAS, 128), ring=ring, dtype="int32", writer=clear, group=added)
    y = tp.TmaStoreStage("q n", source=sums)

    @load.jit
    def fill(self, k, tile):
        with k.loaded.produce() as slot:
            slot.x.load(tile)

    @clear.jit
    def begin(self, k, tile):
        with k.ring.produce() as slot:
            slot.sums.write(k.full("sums", 0))

    @count.jit
    def compare(self, k, tile):
        with k.loaded.consume() as loaded, k.ring.consume() as slot:  # entered when all CTAs have cleared theirs
            for i in range(CTAS):
                part = loaded.x.read(tile=(8 // CTAS, 128), at=(8 // CTAS * i, 0))
                slot.sums.reduce(i, tp.math.where(part > 0, 1, 0))

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile.also(q=CTAS * tile.m + slot.sums.rank))


if __name__ == "__main__":
    x = torch.randn(CTAS, 40, 136, device="cuda" if torch.cuda.is_available() else "cpu")
    torch.testing.assert_close(Shares()(x), torch.softmax(x, 0))
    y, positive = Counts()(x), (x > 0).sum(0).int()
    print(f"right is {torch.equal(y, positive) and torch.equal(Votes()(x), positive)}")
    print(Shares().check(), Counts().check(), Votes().check(), sep="\n")
