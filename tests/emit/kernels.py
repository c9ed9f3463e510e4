"""The kernels whose PTX is read: every registered schedule, some in several forms, and small ones for what those do not use.

Each is compiled once a process; by default so that an instruction of a body stands once in the PTX; those of
`EPILOGUES` as they run.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import attrs

import tmapipe as tp
from examples.stream_copy import vector_copy
from tests.matmul_schedules import FORMS
from tests.oracle.copy_forms import Added, Ahead, BulkFromSlots, CopiedGemm, Far, FarPieces, Images, Mapped
from tests.oracle.descriptor_forms import AnyRows, Convolved, Every, EveryInParts, Lines, Padded, padded_gemm
from tests.oracle.held_forms import Narrowed
from tests.oracle.peer_forms import Looked, Paired, Reduced, Rotated, RotatedInPairs, Scattered, WholeBoxes
from tests.oracle.ptx import Ptx
from tests.oracle.result_forms import Chained, Overlapped
from tests.oracle.row_forms import GatherRows, PagedRows, ScatterRows
from tests.sweeps import ALL
from tmapipe.gpu.build import Compiled
from tmapipe.plan.model import Plan

S, E = tp.schedules, tp.epilogue
READY_MADE = {registered.name: registered.make for registered in S.REGISTRY}


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
        self.tiles = tp.DynamicTiles(tp.Snake(2))
        self.cluster = {"q": 2}


def in_spans(schedule: Any, each: int) -> Any:
    schedule.tiles = tp.GridTiles(each=each)
    return schedule


class VectorCopy(tp.Schedule):
    """A copy of one dimension, in tiles of more elements than a box has."""

    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(3, producer=load, consumer=store)
    x = tp.TmaLoadStage(tile=(1024,), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


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


@attrs.frozen
class Kernel:
    """make: the schedule; dtypes: of its tensors; extents: dimension -> elements, with ragged edges; tables: their entries;
    unroll: compiled as it runs, where nobody counts instructions."""

    make: Callable[[], tp.Schedule]
    dtypes: dict[str, str] = attrs.field(factory=dict)
    extents: dict[str, int] = attrs.field(factory=dict)
    tables: dict[str, tuple[int, ...]] = attrs.field(factory=dict)
    unroll: bool = False


@attrs.frozen
class Built:
    """A compiled kernel with all that it came from."""

    schedule: Any
    plan: Plan
    compiled: Compiled
    ptx: Ptx
    extents: dict[str, tuple[int, ...]]
    tables: dict[str, tuple[int, ...]] = attrs.field(factory=dict)


MATRIX = {"m": 300, "n": 520}
WINDOWS = {"n": 2, "t": 5, "h": 19, "w": 31, "c": 72, "o": 40, "r": 3, "s": 3}
IMAGES = {"b": 2, "h": 19, "w": 31, "p": 10, "q": 11, "c": 72}
GEMM = {"l": 2, "m": 300, "n": 520, "k": 200}
TALL = {"l": 2, "m": 900, "n": 520, "k": 72}
ROWS = tp.PersistentTiles(tp.Grouped(1))
OPERANDS = GEMM | {"alpha_element": 1}
FULL = {"a": "fp32", "b": "fp32", "d": "fp32"}
HALF = {"a": "fp16", "b": "fp16", "d": "fp16"}


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


COPIES = {
    "copy": Kernel(READY_MADE["Copy"], {}, MATRIX),
    "copy 64x128, all slots": Kernel(lambda: S.Copy((64, 128), None, 1), {}, MATRIX),
    "copy 1 stage, none pending": Kernel(lambda: S.Copy((8, 256), 1, 0), {}, MATRIX),
    "copy, five tiles a CTA": Kernel(lambda: in_spans(S.Copy((8, 256), 2, 0), 5), {}, MATRIX),
    "copy bf16": Kernel(lambda: SlotCopy((64, 128)), {}, MATRIX),
    "copy fp8": Kernel(lambda: SlotCopy((64, 128)), {"x": "fp8_e4m3", "y": "fp8_e4m3"}, MATRIX),
    "copy swizzled 128": Kernel(lambda: SlotCopy((64, 64), swizzle=128), {}, MATRIX),
    "copy swizzled 64, two spans a row": Kernel(lambda: SlotCopy((64, 64), swizzle=64), {}, MATRIX),
    "copy swizzled 32, 3 blocks of rows": Kernel(lambda: SlotCopy((24, 16), 1, 0, swizzle=32), {}, MATRIX),
    "copy of rows longer than a box": Kernel(
        lambda: SlotCopy((4, 384), l2_hint="evict_last", stored="evict_first"), {}, MATRIX
    ),
    "vector": Kernel(VectorCopy, {}, {"n": 5000}),
    "vector, in bulk": Kernel(BulkVectorCopy, {}, {"n": 5120}),
    "vector of 4 GiB, in bulk": Kernel(vector_copy, {}, {"n": 1 << 30}),
    "rows, in bulk": Kernel(BulkRows, {}, {"m": 5, "n": 1536}),
    "vector, in bulk both ways": Kernel(BulkBothWays, {}, {"n": 5120}),
    "reduce": Kernel(ReduceCopy, {}, MATRIX),
    **{f"reduce by {how}": Kernel(functools.partial(ReduceCopy, how), {}, MATRIX) for how in ("inc", "and", "xor")},
}
GEMMS = {
    "gemm 1x1": Kernel(lambda: S.Gemm(cluster=(1, 1)), {}, GEMM),
    "gemm 2x1": Kernel(READY_MADE["Gemm"], {}, GEMM),
    "gemm 1x2 fp16": Kernel(lambda: S.Gemm((128, 64, 64), (1, 2)), HALF, GEMM),
    "gemm 2x2": Kernel(lambda: S.Gemm((128, 128, 64), (2, 2)), {}, GEMM),
    "gemm 2x1 to fp32": Kernel(lambda: S.Gemm(cluster=(2, 1), epilogue=E.Epilogue(dtype="fp32")), {"d": "fp32"}, GEMM),
    "gemm 4x1 n192 to fp32": Kernel(
        lambda: S.Gemm((128, 192, 64), (4, 1), epilogue=E.Epilogue(dtype="fp32")), {}, GEMM
    ),
    "gemm m64 n72": Kernel(lambda: S.Gemm((64, 72, 64), (1, 1)), {}, GEMM),
    "gemm of uneven tiles 2x4": Kernel(
        lambda: S.Gemm((136, 128, 64), (2, 4), mainloop=tp.mainloop.Cooperative(along="n")), {}, GEMM
    ),
    "gemm of uneven tiles over the edge": Kernel(
        lambda: S.Gemm((128, 72, 64), (2, 1), b=tp.Operand(outside="anything")), {}, GEMM
    ),
    "gemm 1x2, along n": Kernel(READY_MADE["Gemm, along n"], {}, GEMM),
    "gemm m8, along n": Kernel(lambda: ALONG_N((8, 64, 64), (1, 1)), {}, GEMM),
    "pingpong 2x1, along n": Kernel(lambda: S.PingPong((80, 128, 64), (2, 1), along="n"), {}, GEMM),
    "gemm 2x1, anything outside": Kernel(
        lambda: S.Gemm((128, 80, 64), a=tp.Operand(outside="anything"), b=tp.Operand(outside="anything")), {}, GEMM
    ),
    "gemm 1x2 fp8, anything outside": Kernel(
        lambda: S.Gemm((64, 64, 256), (1, 2), a=tp.Operand(outside="anything")),
        {"a": "fp8_e4m3", "b": "fp8_e5m2", "d": "bf16"},
        GEMM,
    ),
    "gemm m192": Kernel(lambda: S.Gemm((192, 128, 64), (1, 2)), {}, GEMM),
    "gemm m192 n232, two instructions": Kernel(
        lambda: S.Gemm((192, 232, 64), (1, 2), epilogue=E.Epilogue(stages=1)), {}, GEMM
    ),
    "gemm m192 n256 fp8": Kernel(
        lambda: S.Gemm((192, 256, 128), (1, 1)), {"a": "fp8_e4m3", "b": "fp8_e5m2", "d": "bf16"}, GEMM
    ),
    "gemm m256": Kernel(lambda: S.Gemm((256, 128, 64), (2, 1), 3), {}, GEMM),
    "gemm k32": Kernel(lambda: S.Gemm((128, 128, 32), (2, 2)), {}, GEMM),
    "gemm k128": Kernel(
        lambda: S.Gemm((128, 128, 128), (1, 1), 2, tiles=ROWS, epilogue=E.Epilogue(stages=1)), {}, GEMM
    ),
    "gemm fp8": Kernel(lambda: S.Gemm((128, 64, 128), (2, 1)), {"a": "fp8_e4m3", "b": "fp8_e5m2", "d": "bf16"}, GEMM),
    "gemm fp8 promoted": Kernel(
        lambda: S.Gemm((128, 64, 128), (1, 2), mainloop=tp.mainloop.Cooperative(promote=True)),
        {"a": "fp8_e4m3", "b": "fp8_e4m3", "d": "fp16"},
        GEMM,
    ),
    "gemm a along m, b along n": Kernel(
        lambda: S.Gemm((128, 96, 64), (2, 2), a=tp.Operand("m"), b=tp.Operand("n")), {}, GEMM
    ),
    "gemm tf32": Kernel(
        lambda: S.Gemm((128, 64, 32), (2, 1), a=tp.Operand(dtype="tf32"), b=tp.Operand(dtype="tf32")), FULL, GEMM
    ),
    "gemm int8": Kernel(lambda: S.Gemm((128, 48, 128), (1, 2)), {"a": "int8", "b": "int8", "d": "int32"}, GEMM),
    "gemm int8 scaled": Kernel(
        lambda: S.Gemm((128, 64, 128), (2, 1), epilogue=lambda acc: acc * 0.01), {"a": "int8", "b": "int8"}, GEMM
    ),
    "gemm m-major a, fp16, 1x2": Kernel(lambda: S.Gemm((128, 192, 64), (1, 2), a=tp.Operand("m")), HALF, GEMM),
    "gemm n-major b in spans of 32 bytes": Kernel(lambda: S.Gemm((64, 80, 32), (2, 1), 3, b=tp.Operand("n")), {}, GEMM),
    "gemm m256 4x1, both transposed": Kernel(
        lambda: S.Gemm((256, 128, 32), (4, 1), a=tp.Operand("m"), b=tp.Operand("n")), {}, GEMM
    ),
    "pingpong n-major b": Kernel(lambda: S.PingPong((128, 160, 64), (2, 1), b=tp.Operand("n")), {}, GEMM),
    "gemm snake": Kernel(lambda: S.Gemm((128, 64, 64), (2, 1), tiles=tp.PersistentTiles(tp.Snake(3))), {}, TALL),
    "gemm columns": Kernel(lambda: S.Gemm((128, 64, 64), (2, 1), tiles=tp.PersistentTiles(tp.Columns(3))), {}, TALL),
    "gemm backwards": Kernel(
        lambda: S.Gemm((128, 64, 64), (2, 1), tiles=tp.PersistentTiles(tp.Backwards(3))), {}, TALL
    ),
    "gemm hilbert": Kernel(lambda: S.Gemm((64, 64, 64), (1, 1), tiles=tp.PersistentTiles(tp.Hilbert(4))), {}, TALL),
    "pingpong 2x1": Kernel(READY_MADE["PingPong"], {}, GEMM),
    "pingpong 64x80 1x2, not in turn": Kernel(lambda: S.PingPong((64, 80, 64), (1, 2), in_turn=False), {}, GEMM),
    "splitk": Kernel(READY_MADE["SplitK"], {"d": "fp32"}, GEMM | {"l": 1, "s": 3}),
    "splitk, along n": Kernel(
        lambda: S.SplitK(3, (80, 128, 64), mainloop=tp.mainloop.Cooperative(along="n")),
        {"d": "fp32"},
        GEMM | {"l": 1, "s": 3},
    ),
    "splitk, added": Kernel(lambda: S.SplitK(3, (128, 64, 64), reduce="add"), {"d": "fp32"}, GEMM | {"l": 1, "s": 3}),
    "streamk": Kernel(READY_MADE["StreamK"], {"d": "fp32"}, GEMM | {"l": 1, "s": 3}),
    "streamk of small tiles": Kernel(lambda: S.StreamK(3, (64, 64, 64)), {"d": "fp32"}, GEMM | {"l": 1, "s": 3}),
}
EPILOGUES = {
    "gemm 2x1 with operands": Kernel(lambda: with_operands(S.Gemm, (128, 128, 64), (2, 1)), {}, OPERANDS),
    "gemm m64 n72 with operands to fp32": Kernel(
        lambda: with_operands(S.Gemm, (64, 72, 64), (1, 1), dtype="fp32"), {"c": "fp32", "bias": "fp32"}, OPERANDS
    ),
    "gemm m256 with operands": Kernel(lambda: with_operands(S.Gemm, (256, 32, 64), (1, 1)), {}, OPERANDS),
    "pingpong 2x1 with operands": Kernel(lambda: with_operands(S.PingPong, (64, 64, 64), (2, 1)), {}, OPERANDS),
    "gemm with operands in narrow pieces": Kernel(
        lambda: with_operands(S.Gemm, (192, 80, 64), (1, 2), stages=1, columns=32), {}, OPERANDS
    ),
    "gemm along n with operands": Kernel(lambda: with_operands(ALONG_N, (72, 128, 64), (1, 1)), {}, OPERANDS),
    "gemm m24 along n with operands": Kernel(lambda: with_operands(ALONG_N, (24, 64, 64), (2, 1)), {}, OPERANDS),
    "gemm 2x1, two outputs": Kernel(
        lambda: S.Gemm(
            (128, 64, 64), epilogue=E.Epilogue(lambda acc: {"d": acc, "sums": acc}, outputs={"sums": E.Output("fp32")})
        ),
        {},
        GEMM,
    ),
    "gemm 2x1, row sums": Kernel(lambda: with_sums(S.Gemm, (128, 128, 64), rows=True), {}, GEMM),
    "gemm 1x2, row and column sums": Kernel(lambda: with_sums(S.Gemm, (128, 64, 64), (1, 2)), {}, GEMM),
    "gemm m64 n72, row and column sums": Kernel(lambda: with_sums(S.Gemm, (64, 72, 64), (1, 1)), {}, GEMM),
    "gemm m256, row and column sums to fp32": Kernel(
        lambda: with_sums(S.Gemm, (256, 48, 64), (2, 1), dtype="fp32"), {"d": "fp32"}, TALL
    ),
    "pingpong 2x1, row and column sums": Kernel(lambda: with_sums(S.PingPong, (128, 80, 64)), {}, GEMM),
    "gemm m256, gelu reduced": Kernel(lambda: gelu_reduced(S.Gemm, (256, 64, 64), (1, 1)), {}, GEMM),
    "pingpong 2x1, gelu reduced": Kernel(lambda: gelu_reduced(S.PingPong, (64, 32, 64)), {}, GEMM),
    "pingpong 64x128, row and column sums": Kernel(lambda: with_sums(S.PingPong, (64, 128, 64)), {}, GEMM),
}
EPILOGUES = {name: attrs.evolve(kernel, unroll=True) for name, kernel in EPILOGUES.items()}
THREADS = {
    "add parts": Kernel(READY_MADE["AddParts"], {"x": "fp32", "d": "bf16"}, MATRIX | {"l": 2, "s": 3}),
    "add parts of vectors": Kernel(
        lambda: S.AddParts((1, 256)), {"x": "fp32", "d": "fp32"}, MATRIX | {"l": 2, "m": 5, "s": 5}
    ),
    "arithmetic": Kernel(Arithmetic, {}, {"m": 200, "n": 600}),
    "chain of three": Kernel(Doubled, {}, MATRIX),
    "tile over another": Kernel(Narrowed, {}, MATRIX),
    "two readers": Kernel(TwoReaders, {}, MATRIX),
    "copies beside loads": Kernel(Added, {}, MATRIX),
    "copy with prefetches": Kernel(Ahead, {}, MATRIX),
    **{
        f"bulk {how} of {dtype}": Kernel(
            functools.partial(BulkReduced, how, dtype), {"x": dtype, "y": dtype}, {"n": 1000}
        )
        for how, dtype in (("min", "int32"), ("add", "bf16"), ("add", "fp32"), ("xor", "int32"), ("dec", "int32"))
    },
    **{
        f"bulk {how} of {dtype}": Kernel(
            functools.partial(BulkFromSlots, how, dtype), {"x": dtype, "y": dtype}, {"n": 1024}
        )
        for how, dtype in (("add", "int64"), ("min", "int64"), ("and", "int64"), ("add", "fp64"))
    },
    "rotated among peers": Kernel(Rotated, {}, MATRIX),
    "rotated in pairs of four CTAs": Kernel(RotatedInPairs, {}, MATRIX),
    "read from peers": Kernel(Looked, {"y": "fp32"}, {"s": 2, "m": 24, "q": 24, "n": 100}),
    "shared by pairs of four CTAs": Kernel(Paired, {}, {"h": 8, "g": 4, "m": 10, "n": 136}),
    "whole boxes to pairs of four CTAs": Kernel(lambda: Paired(whole=True), {}, {"h": 8, "g": 4, "m": 10, "n": 136}),
    "whole boxes multicast": Kernel(WholeBoxes, {}, {"r": 4, "m": 12, "n": 300}),
    "reduced into peers": Kernel(Reduced, {}, {"s": 2, "m": 24, "q": 24, "n": 96}),
    **{
        f"{how} into four peers": Kernel(functools.partial(Reduced, how, 4), {}, {"s": 4, "m": 48, "q": 48, "n": 96})
        for how in ("min", "xor", "inc")
    },
    "scattered to peers": Kernel(Scattered, {"y": "fp32"}, {"s": 2, "m": 24, "q": 24, "n": 100}),
    "tiles asked into L2": Kernel(Far, {}, MATRIX),
    "pieces asked into L2": Kernel(FarPieces, {}, {"m": 9, "n": 512}),
    "stores by threads": Kernel(Mapped, {}, {"m": 300, "n": 522}),
    "copies of images": Kernel(Images, {}, {"b": 2, "h": 7, "w": 13, "c": 45}),
}
DESCRIPTORS = {
    "every second row, every third column": Kernel(Every, {}, IMAGES),
    "every second row, swizzled": Kernel(lambda: Every((4, 6, 64), 64), {}, IMAGES),
    "every second row, in parts": Kernel(EveryInParts, {}, IMAGES),
    "windows": Kernel(lambda: Convolved(tp.Windows((3, 3), padding=1)), {}, WINDOWS | {"m": 2 * 19 * 31}),
    "windows, shared by peers": Kernel(
        lambda: Convolved(tp.Windows((2, 4), padding=(0, 3), stride=(1, 2), dilation=(3, 2)), 2, 64),
        {},
        WINDOWS | {"r": 2, "s": 4, "m": 2 * 16 * 16},
    ),
    "windows of lines": Kernel(lambda: Lines(tp.Windows((5,), stride=3), (4,)), {}, WINDOWS | {"m": 2 * 9}),
    "windows of solids": Kernel(
        lambda: Lines(tp.Windows((3, 3, 3), padding=2, dilation=2), (1, 2, 0), (64, 24)),
        {},
        WINDOWS | {"m": 2 * 5 * 19 * 31},
    ),
    "Conv": Kernel(READY_MADE["Conv"], {}, {"i": 2, "w": 31, "c": 72, "s": 2, "l": 1, "m": 64, "n": 136}),
    "conv 3x3 in strides, pingpong": Kernel(
        lambda: S.Conv(tp.Windows((3, 3), padding=1, stride=2), (64, 128, 64), mainloop=tp.mainloop.PingPong()),
        {},
        {"i": 2, "h": 19, "w": 31, "c": 72, "r": 3, "s": 3, "l": 1, "m": 320, "n": 136},
    ),
    "pages of sequences": Kernel(
        PagedRows,
        {},
        {"b": 3, "m": 22, "n": 100, "p": 9, "t": 4, "i": 6},
        {"pages": (3, 1, 4, 0, 5, 8, 2, 6, 7, -1, 3, 3, 8, 7, 6, 5, 4, 3)},
    ),
    "rows of b anywhere": Kernel(
        AnyRows,
        {},
        {"l": 3, "m": 100, "n": 40, "k": 72, "w": 90},
        {"starts": (50, 0, 7), "counts": (24, 40, 1)},
    ),
    "nan outside": Kernel(Padded, {}, MATRIX),
    "nan outside, rows longer than a box": Kernel(lambda: Padded((24, 512), "bf16"), {}, MATRIX),
    "nan outside, operands shared by peers": Kernel(padded_gemm, {}, GEMM),
}
INDEX = {"index": (3, -1, 40, 7, 7, 0, 29, 12, 900, 2, 5, 17, 39, 38, 37, 1, 11, 6, 4)}
NUMBERED = {"m": 19, "r": 40, "n": 100}
ROWS_BY_NUMBER = {
    "results loaded again": Kernel(Chained, {}, MATRIX),
    "results loaded while others are stored": Kernel(Overlapped, {}, MATRIX),
    "rows gathered": Kernel(GatherRows, {}, NUMBERED, INDEX),
    "rows scattered": Kernel(ScatterRows, {}, NUMBERED, INDEX),
    "rows added": Kernel(lambda: ScatterRows("add"), {"x": "fp32", "y": "fp32"}, NUMBERED, INDEX),
}
DYNAMIC = {
    "copy of four dimensions, dynamic": Kernel(DynamicCopy, {}, {"p": 2, "q": 3, "m": 20, "n": 300}),
    "gemm dynamic 1x1": Kernel(lambda: S.Gemm((128, 64, 64), (1, 1), tiles=tp.DynamicTiles()), {}, TALL),
    "gemm dynamic 2x2": Kernel(
        lambda: S.Gemm((128, 64, 64), (2, 2), tiles=tp.DynamicTiles(tp.Hilbert(2), 3)), {}, TALL
    ),
    "gemm by GPC 1x2": Kernel(lambda: S.Gemm((128, 64, 64), (1, 2), tiles=tp.GpcTiles(tp.Snake(4))), {}, TALL),
    "gemm by GPC 1x1": Kernel(lambda: S.Gemm((64, 64, 64), (1, 1), tiles=tp.GpcTiles()), {}, TALL),
    "pingpong by GPC 2x1": Kernel(lambda: S.PingPong((64, 64, 64), tiles=tp.GpcTiles()), {}, TALL),
    "split k by GPC": Kernel(lambda: S.SplitK(3, (64, 64, 64), tiles=tp.GpcTiles()), {}, GEMM | {"s": 3}),
    "pingpong dynamic 2x1": Kernel(lambda: S.PingPong((64, 64, 64), tiles=tp.DynamicTiles()), {}, TALL),
}
PIECES = {  # tiles that several CTAs compute
    "cluster splitk, several clusters a tile": Kernel(
        lambda: S.ClusterSplitK(4, (128, 96, 64), 2, tiles=tp.SplitKTiles(3)), {"d": "fp32"}, GEMM | {"l": 1, "s": 3}
    ),
}
GROUPS = {"m": 700, "n": 520, "k": 200, "l": 4}
GROUPED = {
    "grouped 1x2": Kernel(READY_MADE["GroupedGemm"], {}, GROUPS, {"offsets": (130, 130, 400, 690)}),
    "grouped m192 2x1": Kernel(
        lambda: S.GroupedGemm((192, 64, 64), (2, 1), b=tp.Operand("n")), {}, GROUPS, {"offsets": (0, 7, 700, 700)}
    ),
    "grouped pingpong 1x2": Kernel(
        lambda: S.GroupedGemm((64, 128, 64), mainloop=tp.mainloop.PingPong()), {}, GROUPS, {"offsets": (0, 7, 500, 500)}
    ),
}
MATMULS = {
    f"matmuls, {name}": Kernel(form.make, {}, GEMM | {"s": 3, "k": form.k or 200}) for name, form in FORMS.items()
}
MATMULS["operand copied by threads"] = Kernel(CopiedGemm, {}, {"m": 100, "n": 72, "k": 45})
KERNELS = COPIES | GEMMS | PIECES | EPILOGUES | THREADS | ROWS_BY_NUMBER | DESCRIPTORS | DYNAMIC | GROUPED | MATMULS
KERNELS |= {  # registered, and in none of the lists: with the dtypes that a plan has by itself
    name: Kernel(make, {}, GEMM | {"s": 3})
    for name, make in READY_MADE.items()
    if make not in {k.make for k in KERNELS.values()}
}

#: What these have, others have too, if not all at once: for the whole sweep alone.
COMBINED = {
    "reduce by inc",
    "reduce by xor",
    "gemm 2x1 to fp32",
    "gemm m192 n256 fp8",
    "gemm columns",
    "splitk, along n",
    "split k by GPC",
    "gemm 4x1 n192 to fp32",
    "gemm 1x2 fp8, anything outside",
    "gemm m192",
    "gemm m256",
    "gemm k32",
    "gemm backwards",
    "gemm m-major a, fp16, 1x2",
    "pingpong n-major b",
    "pingpong by GPC 2x1",
    "pingpong 64x128, row and column sums",
    "gemm m256, gelu reduced",
    "gemm 1x1",
    "gemm m64 n72",
    "gemm k128",
    "gemm m256 4x1, both transposed",
    "gemm snake",
    "gemm hilbert",
    "gemm dynamic 1x1",
    "gemm by GPC 1x1",
    "Gemm, transposed",
    "cluster splitk, several clusters a tile",
    "windows",
    "vector, in bulk",
    "pingpong 2x1, along n",
    "pingpong 2x1, row and column sums",
    "gemm 2x1 with operands",
    "gemm 2x1, row sums",
    "nan outside, rows longer than a box",
    "grouped m192 2x1",
    "copy 1 stage, none pending",
    "copy fp8",
    "copy swizzled 128",
    "gemm n-major b in spans of 32 bytes",
    "pingpong 2x1 with operands",
    "pingpong 64x80 1x2, not in turn",
    "pingpong dynamic 2x1",
    "gemm m64 n72, row and column sums",
    "matmuls, two rings",
    "matmuls, from zero",
    "shared by pairs of four CTAs",
    "whole boxes to pairs of four CTAs",
    "windows of lines",
    "every second row, swizzled",
    "nan outside",
    "streamk of small tiles",
    "matmuls, started",
    "gemm 1x2, row and column sums",
    "matmuls, a held slot",
    "whole boxes multicast",
    "copy swizzled 64, two spans a row",
    "every second row, every third column",
}


def swept(kernels: Iterable[str]) -> list[str]:
    """The names of those that are read, unless all are."""
    return [name for name in kernels if ALL or name not in COMBINED]


#: What these ask an assembler for, the other kernels without wgmma ask it for too: elsewhere for the whole sweep alone.
ALIKE = {
    "copy 1 stage, none pending",
    "copy swizzled 128",
    "add parts of vectors",
    "arithmetic",
    "tile over another",
    "two readers",
    "bulk add of bf16",
    "bulk xor of int32",
    "bulk dec of int32",
    "shared by pairs of four CTAs",
    "whole boxes to pairs of four CTAs",
    "add parts",
    "bulk min of int32",
    "pieces asked into L2",
    "rotated in pairs of four CTAs",
    "scattered to peers",
    "stores by threads",
    "tiles asked into L2",
    "bulk add of fp64",
    "bulk add of int64",
    "bulk and of int64",
    "bulk min of int64",
    "inc into four peers",
    "min into four peers",
    "xor into four peers",
    "whole boxes multicast",
    "copies of images",
    "reduced into peers",
    "rotated among peers",
}
NO_WGMMA = (
    "copy",
    "copy 1 stage, none pending",
    "copy swizzled 128",
    "reduce",
    "copy of four dimensions, dynamic",
    *THREADS,
)

#: Kernels without wgmma, each for another architecture than sm_90a, which take turns.
ELSEWHERE = list(
    zip(
        (name for name in NO_WGMMA if ALL or name not in ALIKE),
        itertools.cycle(("sm_103a", "sm_120a", "sm_100a")),
        strict=False,
    )
)


@functools.cache
def built(name: str, arch: str = "sm_90a", unroll: bool | None = None) -> Built:
    """The kernel called *name*, compiled for *arch*."""
    return build(KERNELS[name], arch, unroll)


def build(kernel: Kernel, arch: str = "sm_90a", unroll: bool | None = None) -> Built:
    """Compiles *kernel*. unroll: as it is compiled to run; None: as it says."""
    schedule, unroll = kernel.make(), kernel.unroll if unroll is None else unroll
    compiled = schedule.compile(kernel.dtypes, arch=arch, unroll=unroll)
    plan = compiled.plan
    sizes = dict(kernel.extents)
    for store in schedule.declared.stores.values():
        sizes |= store.derive(sizes)
    extents = {name: tuple(sizes[d] for d in dims) for name, dims in plan.dims.items()}
    return Built(schedule, plan, compiled, Ptx(compiled.ptx, plan), extents, kernel.tables)
