"""Small schedules that load what they have stored, or one tensor by two stages, for the mutants, the PTX and a GPU."""

from __future__ import annotations

import tmapipe as tp

__all__ = ["Centered", "Chained", "InPlace", "Overlapped", "TwoStages"]


class Centered(tp.Schedule):
    """y = 2 x, and z = y less the sums of its rows, which may be of any length: they come back from global memory."""

    over = "m"
    load, work, again = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=work, dtype="fp32")
    done = tp.BarrierRing(1, producer=work, consumer=again)
    written = tp.StoredStage(y, ring=done)
    back = tp.BarrierRing(2, producer=again, consumer=work)
    w = tp.TmaLoadStage("m n", tile=(4, 64), ring=back, dtype="fp32").of_result(y)
    z = tp.TmaStoreStage("m n", tile=(4, 64), role=work)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("x", "n")):
            with k.ring.produce() as slot:
                slot.x.load(tile, n=step)

    @work.jit
    def center(self, k, tile):
        total = k.full("w", 0.0, "rows")
        with k.done.produce() as done:
            for step in range(k.steps("x", "n")):
                with k.ring.consume() as slot:
                    values = slot.x.read() * 2
                total = total + tp.math.row_sum(values)
                k.y.store(tile.also(n=step), values)
            done.written.publish()
        for step in range(k.steps("x", "n")):
            with k.back.consume() as slot:
                rest = slot.w.read() - total
            k.z.store(tile.also(n=step), rest)

    @again.jit
    def fetch(self, k, tile):
        with k.done.consume():
            for step in range(k.steps("x", "n")):
                with k.back.produce() as slot:
                    slot.w.load(tile, n=step)


class Chained(tp.Schedule):
    """y = x and z = y, straight from the slots: one warp stores both, another loads what it has stored."""

    load, store, again = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=store)
    x = tp.TmaLoadStage("m n", tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)
    done = tp.BarrierRing(1, producer=store, consumer=again)
    written = tp.StoredStage(y, ring=done)
    back = tp.BarrierRing(2, producer=again, consumer=store)
    w = tp.TmaLoadStage("m n", tile=(8, 64), ring=back).of_result(y)
    z = tp.TmaStoreStage(source=w)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k, tile):
        with k.done.produce() as done:
            with k.ring.consume() as slot:
                slot.y.store(tile)
            done.written.publish()
        with k.back.consume() as slot:  # once the tile has come, the next one may be stored
            slot.z.store(tile)

    @again.jit
    def fetch(self, k, tile):
        with k.done.consume(), k.back.produce() as slot:
            slot.w.load(tile)


class Overlapped(Chained):
    """The same, where a role of its own stores z: the next tile of y is stored while this one is loaded."""

    load, store, again, last = Chained.load, Chained.store, Chained.again, tp.Role(warps=1)
    back = tp.BarrierRing(2, producer=again, consumer=last)
    w = tp.TmaLoadStage("m n", tile=(8, 64), ring=back).of_result(Chained.y)
    z = tp.TmaStoreStage(source=w)

    @store.jit
    def drain(self, k, tile):
        with k.done.produce() as done:
            with k.ring.consume() as slot:
                slot.y.store(tile)
            done.written.publish()

    @last.jit
    def pass_on(self, k, tile):
        with k.back.consume() as slot:
            slot.z.store(tile)


class InPlace(tp.Schedule):
    """y = max(x, 0), whose tensor may be x."""

    load, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=work, stages=1).in_place(x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def compute(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile, tp.math.relu(values))


class TwoStages(tp.Schedule):
    """y = x less the first number of each row: one tensor for two stages."""

    load, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    first = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring).of_input(x)
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=work, stages=1)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)
            slot.first.load(tile, n=0)

    @work.jit
    def compute(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read() - tp.math.row_sum(slot.first.read(), inside=1)
            k.y.store(tile, values)
