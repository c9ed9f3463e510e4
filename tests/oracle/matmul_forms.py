"""Small schedules with matmuls as no ready-made one has them: of two rings, written by threads, in flight, from registers."""

from __future__ import annotations

from typing import Any

import tmapipe as tp

__all__ = ["InFlight", "InTurn", "Relu", "Widened"]


class InFlight(tp.Schedule):
    """d = (a b^T) (a c^T): two matmuls of one slot of a in flight, with b and c in a ring of their own."""

    load, work = tp.Role(warps=1), tp.Role(warpgroups=1)
    of_a = tp.BarrierRing(1, producer=load, consumer=work)
    others = tp.BarrierRing(2, producer=load, consumer=work)
    a = tp.TmaLoadStage("m k", tile=(64, 16), ring=of_a)
    b = tp.TmaLoadStage("n k", tile=(64, 16), ring=others)
    left = tp.Wgmma(a, b, in_flight=0)
    right = tp.Wgmma(a, b, in_flight=0)
    d = tp.TmaStoreStage("m n", source=left, stages=1)

    @load.jit
    def fill(self, k: Any, tile: Any) -> None:
        for step in range(k.steps("a", "k")):
            with k.of_a.produce() as slot:
                slot.a.load(tile, k=step)
            with k.others.produce() as slot:
                slot.b.load(tile, k=step)
            with k.others.produce() as slot:
                slot.b.load(tile, k=step)

    @work.jit
    def multiply(self, k: Any, tile: Any) -> None:
        with k.left.accumulate() as first, k.right.accumulate() as second:
            for _ in range(k.steps("a", "k")):
                with k.of_a.consume() as slot:
                    with k.others.consume() as other:
                        one = first.start(slot.a, other.b)
                    with k.others.consume() as other:
                        two = second.start(slot.a, other.b)
                    one.wait()
                    two.wait()
        k.d.store(tile, (first, second), lambda x, y: x * y)


class Relu(tp.Schedule):
    """o = sum over s of relu(q k^T) v: one product from registers, in flight with the next one's first."""

    load, work = tp.Role(warps=1), tp.Role(warpgroups=1)
    queries = tp.BarrierRing(1, producer=load, consumer=work)
    keys = tp.BarrierRing(2, producer=load, consumer=work)
    values = tp.BarrierRing(1, producer=load, consumer=work)
    q = tp.TmaLoadStage("m d", tile=(64, 16), ring=queries)
    k = tp.TmaLoadStage("s d", tile=(32, 16), ring=keys)
    v = tp.TmaLoadStage("s d", tile=(32, 16), ring=values)
    qk = tp.Wgmma(q, k, in_flight=0)
    pv = tp.Wgmma(qk, v)
    o = tp.TmaStoreStage("m d", source=pv, stages=1)

    @load.jit
    def fill(self, k: Any, tile: Any) -> None:
        last = k.steps("k", "s") - 1
        with k.queries.produce() as slot:
            slot.q.load(tile)
        with k.keys.produce() as slot:
            slot.k.load(tile, s=0)
        for s in range(last):
            with k.keys.produce() as slot:
                slot.k.load(tile, s=s + 1)
            with k.values.produce() as slot:
                slot.v.load(tile, s=s)
        with k.values.produce() as slot:
            slot.v.load(tile, s=last)

    @work.jit
    def attend(self, k: Any, tile: Any) -> None:
        with k.pv.accumulate(empty=False) as out:
            with k.queries.consume() as own:
                with k.keys.consume() as slot:
                    weights = tp.math.relu(k.qk.start(own.q, slot.k).wait().values())
                for _ in range(k.steps("k", "s") - 1):
                    with k.keys.consume() as slot:
                        block = k.qk.start(own.q, slot.k)
                    with k.values.consume() as slot:
                        product = out.start(weights, slot.v)
                    weights = tp.math.relu(block.wait().values())
                    product.wait()
                    out.scale(k.full("pv", 1.0, "rows"))
            with k.values.consume() as slot:
                out.start(weights, slot.v).wait()
        k.o.store(tile, out)


class Widened(tp.Schedule):
    """d = x w^T, with w written by threads that read it in 8 bits, and x in a ring of its own."""

    load, widen, work = tp.Role(warps=1), tp.Role(warps=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(2, chain=(load, widen, work))
    of_x = tp.BarrierRing(2, producer=load, consumer=work)
    packed = tp.TmaLoadStage("n k", tile=(64, 16), ring=ring, dtype="int8")
    w = tp.SharedStage("n k", tile=(64, 16), ring=ring, writer=widen, dtype="bf16")
    x = tp.TmaLoadStage("m k", tile=(64, 16), ring=of_x)
    mma = tp.Wgmma(x, w)
    d = tp.TmaStoreStage("m n", source=mma, stages=1)

    @load.jit
    def fill(self, k: Any, tile: Any) -> None:
        for step in range(k.steps("x", "k")):
            with k.ring.produce() as slot:
                slot.packed.load(tile, k=step)
            with k.of_x.produce() as slot:
                slot.x.load(tile, k=step)

    @widen.jit
    def convert(self, k: Any, tile: Any) -> None:
        for _ in range(k.steps("x", "k")):
            with k.ring.consume() as slot:
                slot.w.write(slot.packed.read())

    @work.jit
    def multiply(self, k: Any, tile: Any) -> None:
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("x", "k")):
                with k.ring.consume() as left, k.of_x.consume() as right:
                    acc.add(right.x, left.w)
        k.d.store(tile, acc)


class InTurn(tp.Schedule):
    """d = a b^T, by two warpgroups that start their matmuls in turn."""

    load, work = tp.Role(warps=1), tp.Role(warpgroups=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    a = tp.TmaLoadStage("m k", tile=(128, 16), ring=ring)
    b = tp.TmaLoadStage("n k", tile=(64, 16), ring=ring)
    mma = tp.Wgmma(a, b, in_flight=0)
    order = tp.Turnstile(work)
    d = tp.TmaStoreStage("m n", source=mma, stages=1)

    @load.jit
    def fill(self, k: Any, tile: Any) -> None:
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)
                slot.b.load(tile, k=step)

    @work.jit
    def multiply(self, k: Any, tile: Any) -> None:
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("a", "k")):
                with k.order.turn(), k.ring.consume() as slot:
                    product = acc.start(slot.a, slot.b)
                product.wait()
        k.d.store(tile, acc)
