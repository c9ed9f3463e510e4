"""Kernels that hang: for tests of the watchdog."""

import tmapipe as tp


def spin_on_gpu(rows):
    """Never ends."""
    from cutlass._mlir.dialects import llvm

    text = (
        "{ .reg .pred on; .reg .b64 now; spins_${:uid}: nanosleep.u32 1000; mov.u64 now, %globaltimer; "
        "setp.ne.u64 on, now, 0; @on bra spins_${:uid}; }"
    )
    llvm.inline_asm(None, [], text, "~{memory}", has_side_effects=True, asm_dialect=llvm.AsmDialect.AD_ATT)


class Rows(tp.Schedule):
    """Copies rows in pieces."""

    checked = False
    load, store = tp.Role(warps=1), tp.Role(warps=1)
    over = "m"
    ring = tp.BarrierRing(stages=2, producer=load, consumer=store)
    x = tp.TmaLoadStage("m n", tile=(8, 128), ring=ring)
    y = tp.TmaStoreStage("m n", source=x)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("x", "n")):
            with k.ring.produce() as slot:
                slot.x.load(tile, n=step)

    @store.jit
    def drain(self, k, tile):
        for step in range(k.steps("x", "n")):
            with k.ring.consume() as slot:
                slot.y.store(tile, n=step)


class OneTooMany(Rows):
    """The store waits for a slot that nobody fills."""

    @Rows.store.jit
    def drain(self, k, tile):
        for step in range(k.steps("x", "n")):
            with k.ring.consume() as slot:
                slot.y.store(tile, n=step)
        with k.ring.consume() as again:
            again.y.store(tile, n=0)


class Counted(Rows):
    """The loader stops at a number that it has counted in Python's way."""

    @Rows.load.jit
    def fill(self, k, tile):
        loaded = 0
        for step in range(k.steps("x", "n")):
            if loaded < 3:
                with k.ring.produce() as slot:
                    slot.x.load(tile, n=step)
                loaded = loaded + 1


class Crossed(tp.Schedule):
    """The loader fills more slots of the first ring than it has before any of the second, which the store takes first."""

    checked = False
    load, store = tp.Role(warps=1), tp.Role(warps=1)
    over = "m"
    first = tp.BarrierRing(stages=2, producer=load, consumer=store)
    second = tp.BarrierRing(stages=2, producer=load, consumer=store)
    x = tp.TmaLoadStage("m n", tile=(8, 128), ring=first)
    w = tp.TmaLoadStage("m n", tile=(8, 128), ring=second)
    y = tp.TmaStoreStage("m n", source=x)
    z = tp.TmaStoreStage("m n", source=w)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("x", "n")):
            with k.first.produce() as slot:
                slot.x.load(tile, n=step)
        for step in range(k.steps("w", "n")):
            with k.second.produce() as slot:
                slot.w.load(tile, n=step)

    @store.jit
    def drain(self, k, tile):
        for step in range(k.steps("w", "n")):
            with k.second.consume() as slot:
                slot.z.store(tile, n=step)
        for step in range(k.steps("x", "n")):
            with k.first.consume() as slot:
                slot.y.store(tile, n=step)


class Raw(tp.Schedule):
    """Raw code never ends, though what is declared of it is safe."""

    checked = False
    load, work, store = tp.Role(warps=1), tp.Role(warps=4), tp.Role(warps=1)
    ring = tp.BarrierRing(2, chain=(load, work, store))
    x = tp.TmaLoadStage(tile=(8, 128), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def spin(self, k, tile):
        with k.ring.consume() as slot:
            k.raw(spin_on_gpu, updates=(slot.x,))

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class Product(tp.Schedule):
    """The math role multiplies once more than the loader loads."""

    checked = False
    load, math = tp.Role(warps=1), tp.Role(warpgroups=2)
    ring = tp.BarrierRing(stages=2, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(128, 64), ring=ring, multicast=tp.MulticastGroup("n"))
    b = tp.TmaLoadStage("n k", tile=(64, 64), ring=ring, multicast=tp.MulticastGroup("m"))
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma)
    more = 1

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)
                slot.b.load(tile, k=step)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("a", "k") + self.more):
                with k.ring.consume() as slot:
                    acc.add(slot.a, slot.b)
        k.d.store(tile, acc)


class InCluster(Product):
    """CTA 1 loads one tile less than CTA 0, and CTA 0 waits for its half of that tile."""

    cluster = {"m": 2, "n": 1}  # noqa: RUF012
    more = 0

    @Product.load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k") - k.rank("m")):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)
                slot.b.load(tile, k=step)


HANGING = (OneTooMany, Counted, Crossed, Raw, Product, InCluster)


def inputs(schedule):
    """Shapes of the inputs of one."""
    if issubclass(schedule, Product):
        return (256, 256), (64, 256)
    return ((16, 512),) * (2 if issubclass(schedule, Crossed) else 1)
