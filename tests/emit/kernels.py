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
from tests.emit.forms import (
    ALONG_N,
    Arithmetic,
    BulkBothWays,
    BulkReduced,
    BulkRows,
    BulkVectorCopy,
    Doubled,
    DynamicCopy,
    ReduceCopy,
    SlotCopy,
    TwoReaders,
    VectorCopy,
    gelu_reduced,
    in_spans,
    with_operands,
    with_sums,
)
from tests.matmul_schedules import FORMS
from tests.oracle.copy_forms import Added, Ahead, BulkFromSlots, CopiedGemm, Far, FarPieces, Images, Mapped
from tests.oracle.descriptor_forms import AnyRows, Convolved, Every, EveryInParts, Lines, Padded, padded_gemm
from tests.oracle.held_forms import Narrowed
from tests.oracle.peer_forms import Looked, Paired, Reduced, Rotated, RotatedInPairs, Scattered, WholeBoxes
from tests.oracle.ptx import Ptx
from tests.oracle.registry import REGISTRY
from tests.oracle.result_forms import Chained, InPlace, Overlapped, TwoStages
from tests.oracle.row_forms import GatherRows, PagedRows, ScatterRows
from tests.oracle.value_forms import Taps
from tests.sweeps import ALL
from tmapipe.gpu.build import Compiled
from tmapipe.plan.model import Plan
from tmapipe.schedules.rowform import RowForm

S, E = tp.schedules, tp.epilogue
FEW_LANES = RowForm(60, 16, 64, 2, vector=8, held=True, each=2, width=4, packed=True, lanes=8)
READY_MADE = {registered.name: registered.make for registered in REGISTRY}


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


MATRIX = {"m": 140, "n": 264}
WINDOWS = {"n": 2, "t": 5, "h": 19, "w": 31, "c": 72, "o": 40, "r": 3, "s": 3}
IMAGES = {"b": 2, "h": 19, "w": 31, "p": 10, "q": 11, "c": 72}
GEMM = {"l": 2, "m": 300, "n": 264, "k": 200}
TALL = {"l": 2, "m": 520, "n": 264, "k": 72}
ROWS = tp.tiles.PersistentTiles(tp.tiles.Grouped(1))
OPERANDS = GEMM | {"alpha_element": 1}
FULL = {"a": "fp32", "b": "fp32", "d": "fp32"}
HALF = {"a": "fp16", "b": "fp16", "d": "fp16"}


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
    "gemm m8, along n": Kernel(lambda: ALONG_N((8, 64, 64), (1, 1)), {}, GEMM | {"m": 44}),
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
    "gemm snake": Kernel(
        lambda: S.Gemm((128, 64, 64), (2, 1), tiles=tp.tiles.PersistentTiles(tp.tiles.Snake(3))), {}, TALL
    ),
    "gemm columns": Kernel(
        lambda: S.Gemm((128, 64, 64), (2, 1), tiles=tp.tiles.PersistentTiles(tp.tiles.Columns(3))), {}, TALL
    ),
    "gemm backwards": Kernel(
        lambda: S.Gemm((128, 64, 64), (2, 1), tiles=tp.tiles.PersistentTiles(tp.tiles.Backwards(3))), {}, TALL
    ),
    "gemm hilbert": Kernel(
        lambda: S.Gemm((64, 64, 64), (1, 1), tiles=tp.tiles.PersistentTiles(tp.tiles.Hilbert(4))), {}, TALL
    ),
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
        lambda: with_operands(S.Gemm, (192, 48, 64), (1, 2), stages=1, columns=32), {}, OPERANDS
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
    "gemm 128x24, row and column sums": Kernel(lambda: with_sums(S.Gemm, (128, 24, 64), (1, 1)), {}, GEMM),
    "gemm m64 n72, row and column sums": Kernel(lambda: with_sums(S.Gemm, (64, 72, 64), (1, 1)), {}, GEMM),
    "gemm m256, row and column sums to fp32": Kernel(
        lambda: with_sums(S.Gemm, (256, 32, 64), (2, 1), dtype="fp32"), {"d": "fp32"}, TALL
    ),
    "pingpong 2x1, row and column sums": Kernel(lambda: with_sums(S.PingPong, (128, 80, 64)), {}, GEMM),
    "gemm m256, gelu reduced": Kernel(lambda: gelu_reduced(S.Gemm, (256, 64, 64), (1, 1)), {}, GEMM),
    "pingpong 2x1, gelu reduced": Kernel(lambda: gelu_reduced(S.PingPong, (64, 32, 64)), {}, GEMM),
    "pingpong 64x128, row and column sums": Kernel(lambda: with_sums(S.PingPong, (64, 128, 64)), {}, GEMM),
}
EPILOGUES = {name: attrs.evolve(kernel, unroll=True) for name, kernel in EPILOGUES.items()}
THREADS = {
    "attention": Kernel(READY_MADE["Attention"], {}, {"b": 1, "h": 2, "g": 1, "m": 140, "s": 200, "d": 128, "e": 128}),
    "split attention": Kernel(
        READY_MADE["SplitAttention"],
        {},
        {"b": 1, "h": 1, "c": 2, "g": 1, "m": 8, "n": 1, "p": 8, "s": 200, "d": 128, "e": 128, "w": 8},
    ),
    "packed attention": Kernel(
        READY_MADE["Attention, packed heads and bounded scores"],
        {},
        {"b": 1, "g": 1, "m": 30, "p": 8, "s": 200, "d": 64, "e": 64, "u": 1},
    ),
    "window attention": Kernel(
        READY_MADE["WindowAttention"], {}, {"b": 1, "h": 2, "g": 1, "m": 140, "s": 200, "d": 64, "e": 64}
    ),
    "attention with a mask and sinks": Kernel(
        READY_MADE["Attention, masked, with sinks"],
        {"mask": "int8", "sinks": "fp32"},
        {"b": 1, "h": 2, "g": 1, "m": 140, "s": 208, "d": 128, "e": 128, "w": 2},
    ),
    "combine parts": Kernel(
        READY_MADE["CombineParts"], {}, {"b": 1, "h": 2, "c": 3, "m": 24, "n": 3, "p": 8, "e": 128, "u": 1}
    ),
    "softmax": Kernel(READY_MADE["Softmax"], {}, {"m": 7, "n": 1000}),
    "softmax of rows that begin anywhere": Kernel(
        READY_MADE["Softmax, rows that begin anywhere"], {}, {"a": 1, "b": 8, "w": 8 * 3001, "n": 3001}
    ),
    "softmax over CTAs": Kernel(
        READY_MADE["Softmax, rows over CTAs"], {}, {"a": 1, "b": 8, "w": 8 * 60001, "n": 60001}
    ),
    "rmsnorm": Kernel(READY_MADE["RmsNorm"], {}, {"m": 100, "n": 1001, "w": 100_100}),
    "rmsnorm over CTAs": Kernel(READY_MADE["RmsNorm, rows over CTAs"], {}, {"m": 7, "n": 65536}),
    "rmsnorm of clusters that keep weights": Kernel(
        READY_MADE["RmsNorm, clusters that keep weights"],
        dict.fromkeys(("x", "y", "weight"), "fp32"),
        {"m": 7, "n": 153992},
    ),
    "layernorm in narrow vectors": Kernel(
        READY_MADE["LayerNorm, narrow vectors"],
        dict.fromkeys(("weight", "bias"), "fp32"),
        {"a": 1, "b": 4, "w": 4 * 5662, "n": 5662},
    ),
    "softmax of rows side by side": Kernel(
        READY_MADE["Softmax, rows side by side"], {}, {"m": 100, "n": 125, "w": 12500}
    ),
    "log-softmax": Kernel(READY_MADE["LogSoftmax"], {}, {"m": 7, "n": 4096}),
    "layernorm": Kernel(
        READY_MADE["LayerNorm"], dict.fromkeys(("x", "y", "weight", "bias"), "fp32"), {"m": 7, "n": 20000}
    ),
    "layernorm of rows of few lanes": Kernel(
        lambda: S.LayerNormRows(FEW_LANES, numbers=("mean", "rstd"), stored=8),
        dict.fromkeys(("weight", "bias"), "fp32"),
        {"m": 37, "n": 60, "w": 37 * 60},
    ),
    "cross-entropy": Kernel(READY_MADE["CrossEntropy"], {"target": "int64"}, {"a": 1, "b": 8, "w": 8 * 60001, "r": 8}),
    "cross-entropy of rows side by side": Kernel(
        READY_MADE["CrossEntropy, rows side by side"], {"target": "int64"}, {"m": 100, "r": 100, "w": 10100}
    ),
    "cross-entropy of short rows": Kernel(
        READY_MADE["CrossEntropy, short rows"], {"target": "int64"}, {"m": 100, "n": 64, "r": 100, "w": 6400}
    ),
    "cross-entropy's gradient": Kernel(
        READY_MADE["CrossEntropy, gradient"], {"target": "int64"}, {"m": 7, "n": 32000, "r": 7}
    ),
    "softmax's gradient": Kernel(READY_MADE["Softmax, gradient"], {}, {"a": 1, "b": 8, "w": 8 * 3001, "n": 3001}),
    "layernorm's gradient": Kernel(READY_MADE["LayerNorm, gradient"], {}, {"m": 16, "n": 4096, "c": 2}),
    "rmsnorm's gradient over CTAs": Kernel(
        READY_MADE["RmsNorm, gradient over CTAs"],
        dict.fromkeys(("x", "dy", "weight", "dx"), "fp32"),
        {"m": 3, "c": 2, "n": 11784},
    ),
    "rmsnorm's gradient of rows side by side": Kernel(
        READY_MADE["RmsNorm, gradient of rows side by side"], {}, {"m": 100, "w": 18500, "n": 185, "c": 2}
    ),
    "copy of rows of several dimensions": Kernel(
        READY_MADE["Copy, rows of several dimensions"], {}, {"d": 2, "c": 3, "r": 8, "a": 29, "n": 89, "w": 30000}
    ),
    "copy of rows, evenly": Kernel(
        lambda: S.CopyPlaces((101, 1717), 89, 2, 3, 8, 2, 1, (32, 96, 3, 2)),
        {},
        {"c": 3, "r": 8, "a": 70, "n": 89, "w": 30000},
    ),
    "copy by threads": Kernel(READY_MADE["Copy, by threads"], {}, {"b": 2, "n": 6000, "w": 18_000}),
    "copy element by element": Kernel(
        READY_MADE["Copy, element by element"],
        {"x": "int16", "y": "int16"},
        {"n": 6003, "w": 14000},
        {"x": (7,) * 14000},
    ),
    "sums of rows": Kernel(READY_MADE["Reduce"], {}, {"m": 100, "w": 100_000}),
    "cumsum": Kernel(READY_MADE["Cumsum"], {}, {"m": 7, "n": 20000}),
    "cumsum, rows that begin anywhere": Kernel(
        READY_MADE["Cumsum, rows that begin anywhere"], {}, {"a": 1, "b": 8, "w": 8 * 9001, "n": 9001}
    ),
    "elementwise": Kernel(READY_MADE["Elementwise"], {"x2": "fp32"}, {"c": 2, "m": 20, "n": 1000}),
    "transpose": Kernel(READY_MADE["Transpose"], {}, {"m": 200, "n": 304}),
    "transpose by threads": Kernel(READY_MADE["Transpose, by threads"], {}, {"b": 3, "m": 67, "n": 304}),
    "transpose of rows that begin anywhere": Kernel(
        READY_MADE["Transpose, rows that begin anywhere"], {}, {"b": 3, "m": 64, "n": 304, "r": 8, "w": 7 * 1001 + 304}
    ),
    "rotary": Kernel(READY_MADE["Rotary"], {"x2": "fp32", "x3": "fp32"}, {"b": 2, "m": 20, "n": 64}),
    "rotary, pairs": Kernel(
        READY_MADE["Rotary, pairs"], {"x1": "fp32", "x2": "fp32"}, {"c": 2, "m": 20, "n": 64, "p": 128}
    ),
    "rotary of whole rows": Kernel(
        lambda: S.RotaryTiles((("b m n", 2), ("b m n", 2), ("b n", 4), ("b n", 4)), "b m n", (32, 40)),
        {"x2": "fp32", "x3": "fp32"},
        {"b": 2, "m": 20, "n": 40},
    ),
    "rotary of whole rows, pairs": Kernel(
        lambda: S.RotaryTiles((("b m n", 2), ("b n", 2), ("b n", 2)), "b m n", (32, 40), pairs=True),
        {},
        {"b": 2, "m": 20, "n": 40, "p": 80},
    ),
    "rotary of rows as they lie": Kernel(
        READY_MADE["Rotary, rows as they lie"],
        {"cos": "fp32", "sin": "fp32"},
        {"b": 2, "q": 37, "h": 2, "n": 31, "w": 4588, "u": 1147, "v": 1147},
    ),
    "rotary of rows as they lie, pairs": Kernel(
        READY_MADE["Rotary, rows as they lie, pairs"],
        {},
        {"b": 1, "q": 72, "n": 206, "w": 14832, "u": 309, "v": 309},
    ),
    "elementwise, rows that begin anywhere": Kernel(
        READY_MADE["Elementwise, rows that begin anywhere"], {}, {"m": 100, "n": 101, "w": 10100, "r": 100}
    ),
    "elementwise, rows that begin alike": Kernel(
        READY_MADE["Elementwise, rows that begin alike"], {}, {"a": 5, "b": 64, "n": 901, "w": 64 * 901}
    ),
    "elementwise, vectors": Kernel(READY_MADE["Elementwise, vectors"], {}, {"n": 9001}),
    "add rows": Kernel(READY_MADE["AddRows"], {}, {"l": 2, "s": 150, "n": 72}),
    "add rows of one slot": Kernel(READY_MADE["AddRows of one slot"], {}, {"l": 2, "s": 50, "n": 72}),
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
    "numbers out of lines of a tile": Kernel(Taps, {}, {"m": 40, "n": 200, "i": 3, "h": 100, "g": 20}),
    "one tensor for two stages": Kernel(TwoStages, {}, MATRIX),
    "output over its input": Kernel(InPlace, {}, MATRIX),
    "rows gathered": Kernel(GatherRows, {}, NUMBERED, INDEX),
    "rows scattered": Kernel(ScatterRows, {}, NUMBERED, INDEX),
    "rows added": Kernel(lambda: ScatterRows("add"), {"x": "fp32", "y": "fp32"}, NUMBERED, INDEX),
}
DYNAMIC = {
    "copy of four dimensions, dynamic": Kernel(DynamicCopy, {}, {"p": 2, "q": 3, "m": 20, "n": 300}),
    "gemm dynamic 1x1": Kernel(lambda: S.Gemm((128, 64, 64), (1, 1), tiles=tp.tiles.DynamicTiles()), {}, TALL),
    "gemm dynamic 2x2": Kernel(
        lambda: S.Gemm((128, 64, 64), (2, 2), tiles=tp.tiles.DynamicTiles(tp.tiles.Hilbert(2), 3)), {}, TALL
    ),
    "gemm by GPC 1x2": Kernel(
        lambda: S.Gemm((128, 64, 64), (1, 2), tiles=tp.tiles.GpcTiles(tp.tiles.Snake(4))), {}, TALL
    ),
    "gemm by GPC 1x1": Kernel(lambda: S.Gemm((64, 64, 64), (1, 1), tiles=tp.tiles.GpcTiles()), {}, TALL),
    "pingpong by GPC 2x1": Kernel(lambda: S.PingPong((64, 64, 64), tiles=tp.tiles.GpcTiles()), {}, TALL),
    "split k by GPC": Kernel(lambda: S.SplitK(3, (64, 64, 64), tiles=tp.tiles.GpcTiles()), {}, GEMM | {"s": 3}),
    "pingpong dynamic 2x1": Kernel(lambda: S.PingPong((64, 64, 64), tiles=tp.tiles.DynamicTiles()), {}, TALL),
}
DEQUANTIZED = {
    "dequantized int8": Kernel(READY_MADE["DequantGemm"], {}, GEMM | {"m": 300}),
    "dequantized int4 in groups": Kernel(
        READY_MADE["DequantGemm, int4 in groups"], {}, {"l": 1, "m": 100, "n": 264, "k": 320, "bytes": 160, "g": 3}
    ),
    "dequantized few rows": Kernel(READY_MADE["DequantGemv"], {}, {"m": 9, "n": 264, "k": 6, "e": 128, "f": 128}),
    "dequantized few rows, int4 in groups": Kernel(
        READY_MADE["DequantGemv, int4 in groups"],
        {},
        {"m": 4, "n": 40, "k": 9, "e": 128, "bytes": 9, "f": 64, "h": 2, "g": 9},
    ),
}
PIECES = {  # tiles that several CTAs compute, or that are stored twice, or that others read too
    "gemm, sums of an operand": Kernel(
        READY_MADE["Gemm, sums of an operand"], {}, {"l": 1, "m": 130, "n": 136, "k": 136}
    ),
    "gemm, sums over an operand's rows": Kernel(
        READY_MADE["Gemm, sums over an operand's rows"], {}, {"l": 1, "m": 130, "n": 264, "k": 264}
    ),
    "symmetric gemm": Kernel(READY_MADE["SymmetricGemm"], {}, {"l": 1, "m": 264, "n": 264, "k": 72}),
    "cluster splitk, several clusters a tile": Kernel(
        lambda: S.ClusterSplitK(4, (128, 96, 64), 2, tiles=tp.tiles.SplitKTiles(3)),
        {"d": "fp32"},
        GEMM | {"l": 1, "s": 3},
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
KERNELS = (
    COPIES
    | GEMMS
    | DEQUANTIZED
    | PIECES
    | EPILOGUES
    | THREADS
    | ROWS_BY_NUMBER
    | DESCRIPTORS
    | DYNAMIC
    | GROUPED
    | MATMULS
)
KERNELS |= {  # registered, and in none of the lists: with the dtypes that a plan has by itself
    name: Kernel(make, {}, GEMM | {"s": 3})
    for name, make in READY_MADE.items()
    if make not in {k.make for k in KERNELS.values()}
}

#: What `make test` reads besides the registered schedules: each for what no other of these has. The whole sweep reads all.
SAMPLE = {
    "copy, five tiles a CTA": "a grid that covers the tiles",
    "copy swizzled 32, 3 blocks of rows": "a swizzle, and one slot",
    "copy of rows longer than a box": "several boxes a tile, and L2 hints",
    "vector": "one dimension",
    "vector of 4 GiB, in bulk": "offsets of more than 32 bits",
    "rows, in bulk": "pieces of rows, and L2 hints",
    "vector, in bulk both ways": "no descriptor at all",
    "reduce": "a reduction by the engine",
    "gemm 2x2": "peers along both dimensions",
    "gemm m8, along n": "the smallest transposed tile",
    "gemm 2x1, anything outside": "boxes of their own at the edge",
    "gemm m192 n232, two instructions": "three warpgroups, and two instructions a row",
    "gemm fp8 promoted": "sums of 8 bits, promoted",
    "gemm tf32": "numbers that the engine rounds",
    "gemm int8 scaled": "sums of whole numbers",
    "splitk, added": "parts that the engine adds",
    "gemm with operands in narrow pieces": "operands of 16 bits, in pieces",
    "gemm along n with operands": "operands of a transposed tile",
    "gemm m256, row and column sums to fp32": "sums of two blocks a warpgroup",
    "pingpong 2x1, gelu reduced": "operands and sums, in turn",
    "arithmetic": "division of negative numbers",
    "chain of three": "a phase between two others",
    "tile over another": "slots that share memory",
    "two readers": "two consumers",
    "copies beside loads": "copies by threads",
    "copy with prefetches": "prefetches by threads",
    "bulk min of int32": "a reduction from memory without a descriptor",
    "bulk add of bf16": "the same, which rounds",
    "bulk and of int64": "the same, of 64 bits",
    "rotated in pairs of four CTAs": "tiles to peers, of some of the cluster",
    "read from peers": "loads from peers",
    "inc into four peers": "reductions into peers",
    "scattered to peers": "numbers to peers",
    "tiles asked into L2": "tiles for L2 alone",
    "pieces asked into L2": "pieces for L2 alone",
    "stores by threads": "stores by threads",
    "copies of images": "copies by threads of more dimensions",
    "results loaded while others are stored": "an output that is read again",
    "rows gathered": "rows by number",
    "rows scattered": "rows to numbers",
    "every second row, in parts": "strides between elements",
    "windows, shared by peers": "windows, and boxes of peers",
    "windows of solids": "windows of three dimensions",
    "pages of sequences": "pages by a table",
    "rows of b anywhere": "descriptors that the kernel writes",
    "nan outside, operands shared by peers": "NaN beyond the edge",
    "copy of four dimensions, dynamic": "tiles of four dimensions, from a counter",
    "gemm dynamic 2x2": "tiles of clusters, from a counter",
    "gemm by GPC 1x2": "the same by GPC",
    "matmuls, from registers": "an operand in registers",
    "matmuls, written by threads": "an operand that threads write",
    "operand copied by threads": "an operand that threads copy",
}


def swept(kernels: Iterable[str]) -> list[str]:
    """The names of those that are read: of all, or of the sample and the registered schedules."""
    registered = set(READY_MADE.values())
    return [name for name in kernels if ALL or name in SAMPLE or KERNELS[name].make in registered]


NO_WGMMA = (
    "copy",
    "copy 1 stage, none pending",
    "copy swizzled 128",
    "reduce",
    "copy of four dimensions, dynamic",
    *THREADS,
)

#: (kernel without wgmma, an architecture other than sm_90a), which take turns; in the sample those that differ most.
ELSEWHERE = (
    list(zip(NO_WGMMA, itertools.cycle(("sm_103a", "sm_120a", "sm_100a")), strict=False))
    if ALL
    else [
        ("copy", "sm_103a"),
        ("copy of four dimensions, dynamic", "sm_100a"),
        ("copies beside loads", "sm_120a"),
        ("read from peers", "sm_100a"),
    ]
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
