"""What the mypy plugin finds in bodies: `make lint` runs it, and fails if a line that is marked has no such error, or another
line has one."""

import tmapipe as tp


class Copy(tp.Schedule):
    """Copies x to y."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(stages=4, producer=load, consumer=store)
    x = tp.TmaLoadStage(tile=(64, 128), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.before.jit
    def begin(self, k):
        k.rign.drain()  # type: ignore[attr-defined]

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)
            slot.x.laod(tile)  # type: ignore[attr-defined]
            slot.laod(tile)  # type: ignore[attr-defined]
            slot.fill()  # type: ignore[attr-defined]
        k.ring.prodcue()  # type: ignore[attr-defined]
        k.rign.produce()  # type: ignore[attr-defined]
        (lambda: k.rign)()  # type: ignore[attr-defined]
        slot.x.load(tile, 3)  # type: ignore[call-arg]

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)
            slot.y.stroe(tile)  # type: ignore[attr-defined]


class OfRows(Copy):
    """Parts of a base class, and of an instance."""

    def __init__(self, rows: int) -> None:
        self.z = tp.TmaLoadStage(tile=(rows, 128), ring=self.ring)

    @Copy.load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)
            slot.z.load(tile)
            slot.w.load(tile)  # type: ignore[attr-defined]


class Gemm(tp.Schedule):
    """Matmuls and fragments."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(64, 64), ring=ring)
    b = tp.TmaLoadStage("n k", tile=(64, 64), ring=ring)
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("a", "k")):
                with k.ring.consume() as slot:
                    acc.add(slot.a, slot.b)
                    acc.ad(slot.a, slot.b)  # type: ignore[attr-defined]
        values = acc.values()
        k.d.store(tile, 2 * values - values / 3)
        k.d.store(tile, values.maximum())  # type: ignore[attr-defined]
        k.mma.accumlate()  # type: ignore[attr-defined]


def elsewhere(k: object) -> None:
    """Outside of a schedule nothing is known."""
    assert not hasattr(k, "rign")
