"""Schedules that are compiled for their PTX: small ones, for what no registered one uses, and GEMMs with epilogues."""

from __future__ import annotations

import functools
from typing import Any

import tmapipe as tp
from tests.oracle.copy_forms import Copied

S, E = tp.schedules, tp.epilogue


class ReduceCopy(S.Copy):
    """``y += x``, straight from the slots."""

    load, store = S.Copy.load, S.Copy.store

    def __init__(self, reduce: str = "add") -> None:
        super().__init__(tile=(64, 64), stages=3)
        self.y = tp.TmaStoreStage(source=self.x, reduce=reduce)


class SlotCopy(S.Copy):
    """A copy with a tile and swizzle of one's own."""

    load, store = S.Copy.load, S.Copy.store

    def __init__(
        self, tile: tuple[int, int], stages: int = 3, pending: int = 1, stored: str | None = None, **options: Any
    ) -> None:
        super().__init__(tile=tile, stages=stages, pending=pending)
        self.x = tp.TmaLoadStage("m n", tile=tile, ring=self.ring, **options)
        self.y = tp.TmaStoreStage(source=self.x, stages=pending).with_l2_hint(stored)


class DynamicCopy(SlotCopy):
    """In dynamic order, along more dimensions than four words tell."""

    load, store = S.Copy.load, S.Copy.store

    def __init__(self) -> None:
        super().__init__(tile=(8, 128))
        self.x = tp.TmaLoadStage("p q m n", tile=(8, 128), ring=self.ring)
        self.y = tp.TmaStoreStage(source=self.x)
        self.tiles = tp.tiles.DynamicTiles(tp.tiles.Snake(2))
        self.cluster = {"q": 2}


def in_spans(schedule: Any, each: int) -> Any:
    schedule.tiles = tp.tiles.GridTiles(each=each)
    return schedule


class VectorCopy(Copied):
    """A copy of one dimension, in tiles of more elements than a box has."""

    load, store = Copied.load, Copied.store
    ring = tp.BarrierRing(3, producer=load, consumer=store)
    x = tp.TmaLoadStage(tile=(1024,), ring=ring)
    y = tp.TmaStoreStage(source=x)


class BulkVectorCopy(VectorCopy):
    """The same without a descriptor of the input: in pieces longer than a box can be."""

    load, store = VectorCopy.load, VectorCopy.store
    ring = tp.BarrierRing(3, producer=load, consumer=store)
    x = tp.BulkLoadStage("n", tile=(1024,), ring=ring)
    y = tp.TmaStoreStage(source=x)


class BulkBothWays(BulkVectorCopy):
    """And without one of the output; with *reduce*, added to it or the like, as threads have computed it."""

    load, store = VectorCopy.load, VectorCopy.store
    y = tp.BulkStoreStage(source=BulkVectorCopy.x)


class BulkRows(BulkVectorCopy):
    """Pieces of rows of a matrix."""

    load, store = VectorCopy.load, VectorCopy.store
    x = tp.BulkLoadStage("m n", tile=(512,), ring=BulkVectorCopy.ring, l2_hint="evict_last")
    y = tp.TmaStoreStage(source=x).with_l2_hint("evict_first")


class BulkReduced(tp.Schedule):
    """y[n] = the minimum, or the like, of y[n] and x[n], in int32."""

    load, store = tp.Role(warps=1), tp.Role(warps=2)

    def __init__(self, reduce: str = "min", dtype: str = "int32"):
        self.ring = tp.BarrierRing(2, producer=self.load, consumer=self.store)
        self.x = tp.TmaLoadStage("n", tile=(256,), ring=self.ring, dtype=dtype)
        self.y = tp.BulkStoreStage("n", tile=(256,), role=self.store, reduce=reduce, dtype=dtype)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def lower(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile, values)


class Doubled(tp.Schedule):
    """load -> transform -> store: a chain of three, whose middle rewrites the slot."""

    load, double, store = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=1)
    ring = tp.BarrierRing(3, chain=(load, double, store))
    x = tp.TmaLoadStage(tile=(32, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @double.jit
    def transform(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
            slot.x.write(values + values)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class Arithmetic(tp.Schedule):
    """Loads that start where whole numbers say, some of them negative: `//` and `%` mean what they do in Python."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(3, producer=load, consumer=store)
    x = tp.TmaLoadStage(tile=(32, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        m, n = tile.m - 3, tile.n - 2
        with k.ring.produce() as slot:
            slot.x.load_from(m // 2 + 100 * (m % 3) + 1000 * (n % (n - 9)) + 20_000 * (-7 % (n + 5)), 8 * (-n // 3))

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class TwoReaders(tp.Schedule):
    """One producer, two consumers: threads that store what they read, and the engine."""

    load, work, store = tp.Role(warps=1), tp.Role(warpgroups=1), tp.Role(warps=1)
    ring = tp.BarrierRing(3, producer=load, consumer=(work, store))
    x = tp.TmaLoadStage(tile=(32, 64), ring=ring)
    y = tp.TmaStoreStage(source=x, role=store)
    z = tp.TmaStoreStage(tile=(32, 64), role=work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def use(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.z.store(tile, values)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


ALONG_N = functools.partial(S.Gemm, mainloop=tp.mainloop.Cooperative(along="n"))


def with_operands(kind: Any, *arguments: Any, **options: Any) -> tp.Schedule:
    """A GEMM whose epilogue takes an operand of each kind. options: of the epilogue."""
    kinds = {"c": E.Matrix(), "bias": E.PerColumn(), "scale": E.PerRow(), "alpha": E.Scalar()}

    def function(acc: Any, c: Any, bias: Any, scale: Any, alpha: Any) -> Any:
        return alpha * acc * scale + 0.5 * c + bias

    return kind(*arguments, epilogue=E.Epilogue(function, operands=kinds, **options))


def with_sums(kind: type, *arguments: Any, rows: bool = False, **options: Any) -> tp.Schedule:
    """A GEMM with the sums of squares of rows, and (unless *rows* alone) of columns. options: of the epilogue."""
    outputs = {"rows": E.RowSum()} | ({} if rows else {"columns": E.ColumnSum()})

    def function(acc: Any) -> dict[str, Any]:
        return {"d": acc, **dict.fromkeys(outputs, acc * acc)}

    return kind(*arguments, epilogue=E.Epilogue(function, outputs=outputs, **options))


def gelu_reduced(kind: type, *arguments: Any) -> tp.Schedule:
    """A GEMM whose epilogue takes operands and gives sums."""

    def function(acc: Any, c: Any, bias: Any) -> dict[str, Any]:
        value = tp.math.gelu(acc + bias) + c
        return {"d": value, "rows": value * value, "columns": value}

    operands = {"c": E.Matrix(), "bias": E.PerColumn()}
    outputs = {"rows": E.RowSum(), "columns": E.ColumnSum()}
    return kind(*arguments, epilogue=E.Epilogue(function, operands=operands, outputs=outputs))
