"""Schedules with matmuls of every form: operands of two rings, slots that threads write, matmuls started and awaited apart.

They are used on the model, in the check, compiled, and on the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

import tmapipe as tp


class OneRing(tp.Schedule):
    """d = a b^T, with a and b in one ring. Subclasses replace parts, or say in `store` what becomes of the sums."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(2, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(64, 64), ring=ring)
    b = tp.TmaLoadStage("n k", tile=(64, 64), ring=ring)
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)
                slot.b.load(tile, k=step)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("a", "k")):
                with k.ring.consume() as slot:
                    acc.add(slot.a, slot.b)
        self.store(k, tile, acc)

    def store(self, k, tile, acc):
        k.d.store(tile, acc)


class TwoRings(tp.Schedule):
    """d = a b^T, with a and b in rings of their own, of different depths."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=2)
    of_a = tp.BarrierRing(2, producer=load, consumer=math)
    of_b = tp.BarrierRing(4, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(128, 64), ring=of_a)
    b = tp.TmaLoadStage("n k", tile=(128, 64), ring=of_b)
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.of_a.produce() as slot:
                slot.a.load(tile, k=step)
            with k.of_b.produce() as slot:
                slot.b.load(tile, k=step)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("a", "k")):
                with k.of_a.consume() as left, k.of_b.consume() as right:
                    acc.add(left.a, right.b)
        k.d.store(tile, acc)


class HeldRow(tp.Schedule):
    """d = a b^T, where a slot of a is open while several of b come and go."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=1)
    of_a = tp.BarrierRing(2, producer=load, consumer=math)
    of_b = tp.BarrierRing(3, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(64, 64), ring=of_a)
    b = tp.TmaLoadStage("s n k", tile=(64, 64), ring=of_b)
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma)

    @load.jit
    def fill(self, k, tile):
        with k.of_a.produce() as slot:
            slot.a.load(tile, k=0)
        for step in range(k.steps("b", "s")):
            with k.of_b.produce() as slot:
                slot.b.load(tile, k=0, s=step)

    @math.jit
    def multiply(self, k, tile):
        with k.of_a.consume() as left:
            with k.mma.accumulate() as acc:
                for _ in range(k.steps("b", "s")):
                    with k.of_b.consume() as right:
                        acc.add(left.a, right.b)
            k.d.store(tile, acc)


class InsideTheSlot(tp.Schedule):
    """d = a b^T for one k-tile: the accumulator is done before its slot is left."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(3, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(64, 64), ring=ring)
    b = tp.TmaLoadStage("n k", tile=(64, 64), ring=ring)
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.a.load(tile, k=0)
            slot.b.load(tile, k=0)

    @math.jit
    def multiply(self, k, tile):
        with k.ring.consume() as slot:
            with k.mma.accumulate() as acc:
                acc.add(slot.a, slot.b)
            k.d.store(tile, acc)


class Written(tp.Schedule):
    """d = (a + a) b^T: threads write the operand, in a chain of three."""

    load, double, math = tp.Role(warps=1), tp.Role(warpgroups=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(2, chain=(load, double, math))
    of_b = tp.BarrierRing(2, producer=load, consumer=math)
    x = tp.TmaLoadStage("m k", tile=(64, 64), ring=ring, swizzle=128)
    a = tp.SharedStage("m k", tile=(64, 64), ring=ring, writer=double, dtype="bf16")
    b = tp.TmaLoadStage("k n", tile=(64, 128), ring=of_b)
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("x", "k")):
            with k.ring.produce() as slot:
                slot.x.load(tile, k=step)
            with k.of_b.produce() as slot:
                slot.b.load(tile, k=step)

    @double.jit
    def transform(self, k, tile):
        for _ in range(k.steps("x", "k")):
            with k.ring.consume() as slot:
                values = slot.x.read()
                slot.a.write(values + values)

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            for _ in range(k.steps("x", "k")):
                with k.ring.consume() as left, k.of_b.consume() as right:
                    acc.add(left.a, right.b)
        k.d.store(tile, acc)


class Started(tp.Schedule):
    """d = (a b^T) (a c^T), element by element, and k in two halves: two matmuls in flight at a time, of three rings."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=2)
    of_a = tp.BarrierRing(2, producer=load, consumer=math)
    of_b = tp.BarrierRing(1, producer=load, consumer=math)
    of_c = tp.BarrierRing(2, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(128, 64), ring=of_a)
    b = tp.TmaLoadStage("n k", tile=(64, 64), ring=of_b)
    c = tp.TmaLoadStage("n k", tile=(64, 64), ring=of_c)
    left = tp.Wgmma(a, b, in_flight=0)
    right = tp.Wgmma(a, c, in_flight=0)
    d = tp.TmaStoreStage("m n", source=left)

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.of_a.produce() as slot:
                slot.a.load(tile, k=step)
            with k.of_b.produce() as slot:
                slot.b.load(tile, k=step)
            with k.of_c.produce() as slot:
                slot.c.load(tile, k=step)

    @math.jit
    def multiply(self, k, tile):
        with k.left.accumulate() as first, k.right.accumulate() as second:
            for _ in range(k.steps("a", "k")):
                with k.of_a.consume() as slot:
                    with k.of_b.consume() as other:
                        one = first.start(slot.a, other.b)
                    with k.of_c.consume() as other:
                        two = second.start(slot.a, other.c)
                one.wait()
                two.wait()
        k.d.store(tile, (first, second), lambda x, y: x * y)


class FromZero(tp.Schedule):
    """d = a b^T of one k-tile, started from zero while the last of its operands is still to come."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=1)
    ring = tp.BarrierRing(2, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(64, 64), ring=ring)
    b = tp.TmaLoadStage("k n", tile=(64, 64), ring=ring)
    mma = tp.Wgmma(a, b, in_flight=0)
    d = tp.TmaStoreStage("m n", source=mma)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.a.load(tile, k=0)
            slot.b.load(tile, k=0)

    @math.jit
    def multiply(self, k, tile):
        with k.ring.consume() as slot:
            product = k.mma.start(slot.a, slot.b)
        k.d.store(tile, product.wait())


class FromRegisters(tp.Schedule):
    """Of blocks of keys from the first to the last: o = (o + relu(q k^T) v) / 2, but for the last one, which is only added."""

    load, math = tp.Role(warps=1), tp.Role(warpgroups=2)
    queries = tp.BarrierRing(1, producer=load, consumer=math)
    keys = tp.BarrierRing(2, producer=load, consumer=math)
    values = tp.BarrierRing(2, producer=load, consumer=math)
    q = tp.TmaLoadStage("m k", tile=(128, 64), ring=queries)
    b = tp.TmaLoadStage("n k", tile=(64, 64), ring=keys)
    v = tp.TmaLoadStage("n k", tile=(64, 64), ring=values)
    qk = tp.Wgmma(q, b, in_flight=0)
    pv = tp.Wgmma(qk, v)
    d = tp.TmaStoreStage("m k", source=pv)

    @load.jit
    def fill(self, k, tile):
        last = k.steps("b", "n") - 1
        with k.queries.produce() as slot:
            slot.q.load(tile, k=0)
        with k.keys.produce() as slot:
            slot.b.load(n=0, k=0)
        for n in range(last):
            with k.keys.produce() as slot:
                slot.b.load(n=n + 1, k=0)
            with k.values.produce() as slot:
                slot.v.load(n=n, k=0)
        with k.values.produce() as slot:
            slot.v.load(n=last, k=0)

    @math.jit
    def multiply(self, k, tile):
        half = k.full("pv", 0.5, "rows")
        with k.pv.accumulate(empty=False) as out:
            with k.queries.consume() as own:
                with k.keys.consume() as slot:
                    weights = tp.math.relu(k.qk.start(own.q, slot.b).wait().values())
                for _ in range(k.steps("b", "n") - 1):
                    with k.keys.consume() as slot:
                        block = k.qk.start(own.q, slot.b)
                    with k.values.consume() as slot:
                        product = out.start(weights, slot.v)
                    weights = tp.math.relu(block.wait().values())
                    product.wait()
                    out.scale(half)
            with k.values.consume() as slot:
                out.start(weights, slot.v).wait()
        k.d.store(tile, out)


def halved_sums(q: np.ndarray, b: np.ndarray, v: np.ndarray) -> np.ndarray:
    """What `FromRegisters` computes."""
    total = np.zeros_like(q)
    for n in range(0, len(b), 64):
        total = total / 2 + np.maximum(q @ b[n : n + 64].T, 0) @ v[n : n + 64]
    return total


@attrs.frozen
class Form:
    """make: the schedule; inputs: their dimensions by name; expected: what it computes, of float32 arrays."""

    make: Callable[[], tp.Schedule]
    inputs: dict[str, str]
    expected: Callable[..., Any]
    k: int | None = None  # the only extent along k that it takes

    def extents(self, rng: np.random.Generator) -> dict[str, int]:
        """Random ones."""
        found = {"m": int(rng.integers(1, 300)), "n": 8 * int(rng.integers(1, 40)), "s": int(rng.integers(1, 6))}
        return found | {"k": self.k or 8 * int(rng.integers(1, 40))}

    def arrays(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Random inputs in fp32, of values that bf16 has."""
        extents = self.extents(rng)
        shapes = {name: [extents[dim] for dim in dims.split()] for name, dims in self.inputs.items()}
        return {name: rng.integers(-2, 3, shape).astype(np.float32) for name, shape in shapes.items()}


MATRICES = {"a": "m k", "b": "n k"}
FORMS = {
    "two rings": Form(TwoRings, MATRICES, lambda a, b: a @ b.T),
    "a held slot": Form(HeldRow, {"a": "m k", "b": "s n k"}, lambda a, b: a @ b.sum(0).T, 64),
    "inside the slot": Form(InsideTheSlot, MATRICES, lambda a, b: a @ b.T, 64),
    "written by threads": Form(Written, {"x": "m k", "b": "k n"}, lambda x, b: 2 * x @ b),
    "started": Form(Started, MATRICES | {"c": "n k"}, lambda a, b, c: (a @ b.T) * (a @ c.T)),
    "from registers": Form(FromRegisters, {"q": "m k", "b": "n k", "v": "n k"}, halved_sums, 64),
    "from zero": Form(FromZero, {"a": "m k", "b": "k n"}, lambda a, b: a @ b, 64),
}
