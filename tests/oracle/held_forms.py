"""Small schedules with what no ready-made one has: slots that are held, scratch between syncs, tiles loaded in parts, and
tiles over others."""

from __future__ import annotations

from typing import Any

import tmapipe as tp

__all__ = ["Held", "Narrowed", "Parts", "Synced"]


class Held(tp.Schedule):
    """y = x w, with w loaded once a CTA, for two CTAs at once."""

    cluster = {"m": 2}  # noqa: RUF012
    load, work = tp.Role(warps=1), tp.Role(warps=2)
    weights = tp.BarrierRing(producer=load, consumer=work, per="cta")
    w = tp.TmaLoadStage("i n", tile=(4, 64), ring=weights, multicast=tp.MulticastGroup("m"))
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=work, stages=1)

    @load.before.jit
    def fill_weights(self, k: Any) -> None:
        with k.weights.produce() as slot:
            slot.w.load(i=0, n=0)

    @load.jit
    def fill(self, k: Any, tile: Any) -> None:
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def scale(self, k: Any, tile: Any) -> None:
        with k.ring.consume() as slot:
            values = slot.x.read() * k.weights.w.read()
        k.y.store(tile, values)


class Synced(tp.Schedule):
    """y = the sums of the rows of x, which two warps pass to each other through scratch, and back, between syncs."""

    load, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    sums = tp.Scratch(work, tile=(4,), dtype="fp32")
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=work, stages=1)

    @load.jit
    def fill(self, k: Any, tile: Any) -> None:
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def add(self, k: Any, tile: Any) -> None:
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.sums.write(tp.math.row_sum(values))
        k.sync()
        values = values - k.sums.read(rows_of=values)
        k.sync()
        k.y.store(tile, values)


class Parts(tp.Schedule):
    """y = x, each tile of which is loaded in two parts and stored from its slot by another role."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=store)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring).in_parts(2)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k: Any, tile: Any) -> None:
        with k.ring.produce() as slot:
            for i in range(2):
                slot.x.load_part(i, tile)

    @store.jit
    def drain(self, k: Any, tile: Any) -> None:
        with k.ring.consume() as slot:
            slot.y.store(tile)


class Narrowed(tp.Schedule):
    """y = x in bf16, each tile of which is written over that of x, and stored from there."""

    load, work, store = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=1)
    ring = tp.BarrierRing(2, chain=(load, work, store))
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring, dtype="fp32")
    z = tp.SharedStage(tile=(4, 64), ring=ring, writer=work, dtype="bf16", over=x)
    y = tp.TmaStoreStage("m n", source=z)

    @load.jit
    def fill(self, k: Any, tile: Any) -> None:
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def narrow(self, k: Any, tile: Any) -> None:
        with k.ring.consume() as slot:
            values = slot.x.read()
            k.sync()
            slot.z.write(values)

    @store.jit
    def drain(self, k: Any, tile: Any) -> None:
        with k.ring.consume() as slot:
            slot.y.store(tile)
