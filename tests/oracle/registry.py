"""Every ready-made schedule, with a small form of it: what the checker, the mutants, and the PTX are tested on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import attrs

from tmapipe.base.tma_rules import Windows
from tmapipe.epilogue import ColumnSum, Epilogue, Matrix, OperandSum, RowSum
from tmapipe.math import relu, tanh
from tmapipe.schedule import Schedule
from tmapipe.schedules import (
    AddParts,
    Attention,
    ClusterSplitK,
    CombineParts,
    Conv,
    Copy,
    CopyElements,
    CopyPlaces,
    CopyRuns,
    CrossEntropyBackwardRows,
    CrossEntropyRows,
    CumsumRows,
    DequantGemm,
    DequantGemv,
    ElementwiseRows,
    ElementwiseTiles,
    FinishParts,
    GatedGemm,
    Gemm,
    GroupedGemm,
    LayerNormRows,
    LogSoftmaxRows,
    NormBackwardRows,
    PingPong,
    ReduceRows,
    RmsNormRows,
    RotaryRows,
    RotaryTiles,
    Score,
    SoftmaxBackwardRows,
    SoftmaxRows,
    SplitAttention,
    SplitK,
    StreamK,
    SymmetricGemm,
    TransposeRows,
    TransposeTiles,
    WindowAttention,
)
from tmapipe.schedules.fused import AddRows
from tmapipe.schedules.mainloop import Cooperative, Operand
from tmapipe.schedules.normgradients import GradientForm
from tmapipe.schedules.norms import LineForm
from tmapipe.schedules.rotary import RotaryForm
from tmapipe.schedules.rowform import RowForm, row_form
from tmapipe.tiles.dynamic import DynamicTiles, GpcTiles, GridTiles
from tmapipe.tiles.persistent import Grouped, PersistentTiles

__all__ = ["REGISTRY", "Registered"]


class Registered(NamedTuple):
    """A schedule under test.

    Args:
        name: In tests and results.
        make: Makes it as it is shipped.
        make_small: Makes it with few stages and warps, to search all interleavings.
        problems: What the small form is searched on, each as (output tiles a CTA, steps along each inner dimension, extents of
            other dimensions).
    """

    name: str
    make: Callable[[], Schedule]
    make_small: Callable[[], Schedule]
    problems: tuple[tuple[int, int, dict[str, int]], ...] = ((1, 1, {}), (3, 3, {}))


ONE = Epilogue(stages=1)


def _added(acc: Any, c: Any) -> Any:
    return acc + c


def _weighted(x: Any, column: Any, row: Any) -> Any:
    return relu(x) * column + row


def _capped(x: Any, i: Any, j: Any) -> Any:
    return 30 * tanh(x * (1 / 30))


def _reduced(acc: Any) -> dict[str, Any]:
    return {"d": acc, "rows": acc, "columns": acc}


def _with_columns(acc: Any) -> dict[str, Any]:
    return {"d": acc, "columns": acc}


SUMS, OVER_ROWS = {"sums": OperandSum("k")}, {"sums": OperandSum("m")}
REDUCED = Epilogue(_reduced, outputs={"rows": RowSum(), "columns": ColumnSum()})
COLUMNS = Epilogue(_with_columns, outputs={"columns": ColumnSum()})  # along n
RESIDUAL = Epilogue(_added, operands={"c": Matrix()}, stages=1)


def _queued_copy(copy: Copy, order: PersistentTiles) -> Copy:
    """*copy* in a queued order, on clusters of two."""
    copy.tiles, copy.cluster = order, {"m": 2}
    return copy


#: Every ready-made schedule once, and some with another tile scheduler or with transposed operands: what mutants are made of.
REGISTRY: tuple[Registered, ...] = (
    Registered("Copy", Copy, lambda: Copy((4, 64), stages=2, pending=1), ((1, 1, {}), (5, 1, {}))),
    Registered(
        "Copy, dynamic",
        lambda: _queued_copy(Copy(stages=12), DynamicTiles()),
        lambda: _queued_copy(Copy((4, 64), stages=2, pending=0), DynamicTiles(stages=2)),
        ((1, 1, {}), (3, 1, {})),
    ),
    Registered(
        "Copy, by GPC",
        lambda: _queued_copy(Copy(stages=12), GpcTiles()),
        lambda: _queued_copy(Copy((4, 64), stages=2, pending=0), GpcTiles()),
        ((1, 1, {}), (3, 1, {})),
    ),
    Registered(
        "AddParts",
        lambda: AddParts(together=4),
        lambda: AddParts((4, 64), stages=2, together=4),
        ((1, 1, {}), (4, 2, {})),
    ),
    Registered("AddRows", AddRows, lambda: AddRows((2, 64), 2), ((1, 1, {}), (3, 2, {}))),
    Registered("AddRows of one slot", lambda: AddRows(stages=0), lambda: AddRows((2, 64), 0), ((1, 1, {}), (3, 1, {}))),
    Registered(
        "FinishParts",
        lambda: FinishParts(Epilogue(relu)),
        lambda: FinishParts(Epilogue(relu, stages=1), 2),
        ((1, 1, {}), (2, 2, {})),
    ),
    Registered("Gemm", Gemm, lambda: Gemm((64, 64, 16), (2, 1), 2, epilogue=ONE), ((1, 1, {}), (2, 3, {}))),
    Registered(
        "Gemm, transposed",
        lambda: Gemm(a=Operand("m"), b=Operand("n")),
        lambda: Gemm((64, 64, 16), (2, 1), 2, a=Operand("m"), b=Operand("n"), epilogue=ONE),
        ((1, 1, {}), (2, 3, {})),
    ),
    Registered(
        "Gemm, along n",
        lambda: Gemm((144, 192, 64), (1, 2), mainloop=Cooperative(along="n")),
        lambda: Gemm((64, 64, 16), (1, 2), 2, mainloop=Cooperative(along="n"), epilogue=ONE),
        ((1, 1, {}), (2, 3, {})),
    ),
    Registered(
        "Gemm, along n, with a matrix",
        lambda: Gemm((144, 128, 64), (1, 2), mainloop=Cooperative(along="n"), epilogue=RESIDUAL),
        lambda: Gemm((64, 64, 16), (1, 1), 2, mainloop=Cooperative(along="n"), epilogue=RESIDUAL),
        ((1, 1, {}), (2, 2, {})),
    ),
    Registered(
        "Gemm, several CTAs a multiprocessor",
        lambda: Gemm((64, 64, 64), (1, 1), 1, epilogue=ONE, tiles=GridTiles(Grouped(1), 6)),
        lambda: Gemm((64, 64, 16), (1, 1), 1, epilogue=ONE, tiles=GridTiles()),
        ((1, 1, {}), (2, 2, {})),
    ),
    Registered(
        "GatedGemm", GatedGemm, lambda: GatedGemm((64, 64, 16), (1, 1), 2, epilogue=ONE), ((1, 1, {}), (2, 2, {}))
    ),
    Registered(
        "Gemm, sums of an operand",
        lambda: Gemm((64, 128, 64), (2, 1), 3, a=Operand(sums=SUMS)),
        lambda: Gemm((64, 64, 16), (2, 1), 2, a=Operand(sums=SUMS), epilogue=ONE),
        ((1, 1, {}), (2, 2, {})),
    ),
    Registered(
        "Gemm, sums over an operand's rows",
        lambda: Gemm((64, 128, 64), (2, 1), 3, a=Operand(sums=OVER_ROWS)),
        lambda: Gemm((64, 64, 16), (1, 1), 1, a=Operand(sums=OVER_ROWS), epilogue=ONE),
        ((1, 1, {}), (2, 2, {})),
    ),
    Registered(
        "Gemm, sums of rows and columns",
        lambda: Gemm(epilogue=REDUCED),
        lambda: Gemm((64, 64, 16), (1, 1), 2, epilogue=attrs.evolve(REDUCED, stages=1)),
        ((1, 1, {}), (2, 2, {})),
    ),
    Registered(
        "Gemm, sums of columns",
        lambda: Gemm(epilogue=COLUMNS),
        lambda: Gemm((64, 64, 16), (1, 1), 2, epilogue=attrs.evolve(COLUMNS, stages=1)),
        ((1, 1, {}), (2, 2, {})),
    ),
    Registered(
        "SymmetricGemm",
        lambda: SymmetricGemm((64, 128, 64), (2, 1), 3, mainloop=Cooperative()),
        lambda: SymmetricGemm((64, 64, 16), (1, 1), 2, mainloop=Cooperative(), epilogue=ONE),
        ((1, 1, {}), (3, 2, {})),
    ),
    Registered(
        "GroupedGemm",
        GroupedGemm,
        lambda: GroupedGemm((64, 64, 16), (1, 2), 2, epilogue=ONE),
        ((1, 1, {"l": 1}), (2, 3, {"l": 1})),
    ),
    Registered(
        "Conv",
        lambda: Conv(Windows((2,), padding=1), (128, 128, 64), (2, 1)),
        lambda: Conv(Windows((2,), padding=1), (64, 64, 16), (1, 1), 2, epilogue=ONE),
        ((1, 1, {}), (2, 2, {})),
    ),
    Registered("PingPong", PingPong, lambda: PingPong((64, 64, 16), (1, 1), 2, epilogue=ONE), ((1, 1, {}), (3, 2, {}))),
    Registered(
        "SplitK",
        lambda: SplitK(3),
        lambda: SplitK(2, (64, 64, 16), (1, 1), 2),
        ((1, 3, {"s": 2}), (3, 2, {"s": 2})),
    ),
    Registered(
        "ClusterSplitK",
        lambda: ClusterSplitK(8),
        lambda: ClusterSplitK(2, (64, 32, 16), 1, 2, epilogue=ONE),
        ((1, 3, {}), (2, 2, {})),
    ),
    Registered(
        "DequantGemm",
        DequantGemm,
        lambda: DequantGemm("int8", (144, 64, 32), (1, 1), 2, epilogue=ONE),
        ((1, 1, {}), (2, 2, {}), (1, 4, {})),
    ),
    Registered(
        "DequantGemm, int4 in groups",
        lambda: DequantGemm("int4", (64, 128, 64), group=128, zeros=True),
        lambda: DequantGemm("int4", (16, 64, 32), (1, 1), 2, group=64, zeros=True, epilogue=ONE),
        ((2, 3, {"g": 2}),),
    ),
    Registered(
        "DequantGemv",
        DequantGemv,
        lambda: DequantGemv("int8", (2, 16, 64), stages=2),
        ((1, 1, {}), (1, 3, {})),
    ),
    Registered(
        "DequantGemv, int4 in groups",
        lambda: DequantGemv("int4", (4, 16, 128), ctas=2, group=64, zeros=True),
        lambda: DequantGemv("int4", (2, 16, 128), stages=2, group=32, zeros=True),
        ((1, 2, {}),),
    ),
    Registered(
        "Softmax",
        lambda: SoftmaxRows(RowForm(1000, 6, 1024, 6, share=4, each=4)),
        lambda: SoftmaxRows(RowForm(64, 4, 64, 1, each=2)),
        ((1, 1, {}), (2, 1, {})),
    ),
    Registered(
        "Softmax, rows side by side",
        lambda: SoftmaxRows(row_form(125, vector=2), 2),
        lambda: SoftmaxRows(RowForm(30, 4, 32, 1, vector=4, each=2, width=2, packed=True), 4),
        ((2, 1, {"w": 240}),),
    ),
    Registered(
        "LogSoftmax",
        lambda: LogSoftmaxRows(row_form(4096)),
        lambda: LogSoftmaxRows(RowForm(512, 1, 256, 1, 2)),
        ((1, 1, {}),),
    ),
    Registered(
        "LayerNorm",
        lambda: LayerNormRows(row_form(20000, 4, vectors=8), numbers=("mean", "rstd")),
        lambda: LayerNormRows(RowForm(1024, 1, 512, 1, 2, piece=256), numbers=("mean", "rstd")),
        ((1, 1, {}),),
    ),
    Registered(
        "CrossEntropy",
        lambda: CrossEntropyRows(RowForm(60001, 1, 7680, 8, 8, 4, 2, each=4)),
        lambda: CrossEntropyRows(RowForm(500, 1, 256, 1, 2, vector=8, each=2)),
        ((1, 1, {"b": 2, "w": 1000, "r": 4}),),
    ),
    Registered(
        "CrossEntropy, rows side by side",
        lambda: CrossEntropyRows(RowForm(101, 24, 128, 4, vector=2, each=4, width=1, packed=True)),
        lambda: CrossEntropyRows(RowForm(30, 4, 32, 1, vector=4, each=2, width=2, packed=True)),
        ((1, 1, {"w": 240, "r": 8}), (2, 1, {"w": 240, "r": 8})),
    ),
    Registered(
        "CrossEntropy, short rows",
        lambda: CrossEntropyRows(row_form(64, reads=True)),
        lambda: CrossEntropyRows(RowForm(30, 8, 32, 1, each=2, width=4)),
        ((1, 1, {"r": 16}), (2, 1, {"r": 16})),
    ),
    Registered(
        "CrossEntropy, gradient",
        lambda: CrossEntropyBackwardRows(row_form(32000)),
        lambda: CrossEntropyBackwardRows(RowForm(512, 1, 256, 1, 2, each=2)),
        ((1, 1, {"r": 2}),),
    ),
    Registered(
        "Softmax, gradient",
        lambda: SoftmaxBackwardRows(row_form(3001, vector=2, loads=2), stored=2),
        lambda: SoftmaxBackwardRows(RowForm(512, 1, 256, 1, 2, each=2)),
        ((1, 1, {}),),
    ),
    Registered(
        "LayerNorm, gradient",
        lambda: NormBackwardRows(GradientForm(4096, 1, 4096, 8, share=1), centered=True),
        lambda: NormBackwardRows(GradientForm(256, 1, 256, 1)),
        ((1, 1, {"m": 2, "c": 1}),),
    ),
    Registered(
        "RmsNorm, gradient over CTAs",
        lambda: NormBackwardRows(GradientForm(11784, 1, 3072, 4, 4, 3, size=4)),
        lambda: NormBackwardRows(GradientForm(512, 1, 256, 1, 2)),
        ((1, 1, {"m": 1, "c": 1}), (1, 1, {"m": 2, "c": 1})),
    ),
    Registered(
        "RmsNorm, gradient of rows side by side",
        lambda: NormBackwardRows(GradientForm(185, 8, 192, 4, 1, 4, 2, width=1, packed=True, slots=3), stored=2),
        lambda: NormBackwardRows(GradientForm(30, 4, 32, 2, 1, 1, 4, width=2, packed=True), stored=4),
        ((1, 1, {"m": 8, "w": 240, "c": 1}),),
    ),
    Registered(
        "Copy, rows of several dimensions",
        lambda: CopyPlaces((101, 1717, 5151), 89, 2, 3, 8, 2, 1, (32, 96, 4, 2)),
        lambda: CopyPlaces((61,), 17, 2, 1, 1, 2, 0, (8, 24, 3, 1)),
        ((1, 1, {"r": 2, "w": 300}),),
    ),
    Registered(
        "Copy, by threads",
        lambda: CopyRuns(((9000, 1),), ((30, 11), (600, 41)), (5, 1), (2, 2, 2), (6, 2, 4), length=6000),
        lambda: CopyRuns((), ((5, 2),), (1, 0), (2, 1, 2), (2, 2, 2)),
        ((1, 1, {"w": 400}), (2, 1, {"w": 400})),
    ),
    Registered(
        "Copy, element by element",
        lambda: CopyElements(((23, 32), (276, 220)), 2, 2, (8, 2, 4)),
        lambda: CopyElements(((5, 2),), 1, 1, (1, 2, 2)),
        ((1, 1, {"w": 400}),),
    ),
    Registered(
        "Reduce",
        lambda: ReduceRows(RowForm(1000, 4, 1024, 4, packed=True)),
        lambda: ReduceRows(RowForm(500, 1, 256, 1, 2, size=4, each=2)),
        ((1, 1, {}), (2, 1, {})),
    ),
    Registered(
        "Cumsum",
        lambda: CumsumRows(RowForm(20000, 1, 4096, 4, 5, 5)),
        lambda: CumsumRows(RowForm(512, 1, 256, 2, 2, width=4)),
        ((1, 1, {}), (2, 2, {})),
    ),
    Registered(
        "Cumsum, rows that begin anywhere",
        lambda: CumsumRows(RowForm(9001, 1, 3072, 4, 3, 6, vector=2), 2),
        lambda: CumsumRows(RowForm(500, 1, 256, 1, 2, vector=8), 8),
        ((1, 1, {"b": 2, "w": 1000}),),
    ),
    Registered(
        "Elementwise",
        lambda: ElementwiseTiles(_weighted, (("c m n", 2), ("n", 2), ("c m", 2)), "c m n", (8, 512)),
        lambda: ElementwiseTiles(_weighted, (("m n", 2), ("n", 2), ("", 2)), "m n", (8, 32), each=2),
        ((1, 1, {"z2": 1}), (2, 1, {"z2": 1})),
    ),
    Registered(
        "Elementwise, vectors",
        lambda: ElementwiseTiles(_weighted, (("n", 2),) * 3, "n", (1, 4096), 2),
        lambda: ElementwiseTiles(_weighted, (("n", 2), ("n", 2), ("", 2)), "n", (1, 256), 2, each=2),
        ((1, 1, {"z2": 1}), (3, 1, {"z2": 1})),
    ),
    Registered(
        "Rotary",
        RotaryTiles,
        lambda: RotaryTiles((("m n", 2), ("m n", 2), ("n", 2), ("n", 2)), "m n", (8, 32), each=2),
        ((1, 1, {}), (2, 1, {})),
    ),
    Registered(
        "Rotary, pairs",
        lambda: RotaryTiles((("c m n", 2), ("m n", 4), ("m n", 4)), "c m n", (16, 64), pairs=True),
        lambda: RotaryTiles((("m n", 2), ("n", 2), ("m n", 2)), "m n", (8, 32), pairs=True, inverse=True, each=2),
        ((1, 1, {}), (2, 1, {})),
    ),
    Registered(
        "Rotary, rows as they lie",
        lambda: RotaryRows(62, 1, RotaryForm(24, 32, 3, 1, 4), (2, 4), (0, 0, 0), 2),
        lambda: RotaryRows(16, 2, RotaryForm(8, 8, 1, 2, 2, each=2), (2, 2), vector=4),
        ((2, 1, {"b": 1, "w": 512, "u": 128, "v": 128}),),
    ),
    Registered(
        "Rotary, rows as they lie, pairs",
        lambda: RotaryRows(206, 24, RotaryForm(8, 104, 13, 1, 4, each=4), (2, 2), (-1, 0, 0), 4, pairs=True),
        lambda: RotaryRows(14, 4, RotaryForm(8, 8, 1, 1, 2, each=2), (2, 2), (0, 0, 0), 4, True, True),
        ((2, 1, {"b": 1, "w": 512, "u": 128, "v": 128}),),
    ),
    Registered(
        "Transpose",
        TransposeTiles,
        lambda: TransposeTiles(tile=(64, 64), ctas=1),
        ((1, 1, {}), (2, 1, {})),
    ),
    Registered(
        "Transpose, by threads",
        lambda: TransposeTiles("fp32", "b m n", (64, 64), 4),
        lambda: TransposeTiles("fp32", "m n", (64, 64), 8, ctas=1),
        ((1, 1, {}), (2, 1, {})),
    ),
    Registered(
        "Transpose, rows that begin anywhere",
        lambda: TransposeRows("bf16", "b m n", 1001, vector=2),
        lambda: TransposeRows("fp32", pitch=130, start=1, vector=16, tile=(32, 64), warps=2, ctas=1),
        ((1, 1, {"r": 16, "w": 200}), (2, 1, {"r": 16, "w": 200})),
    ),
    Registered(
        "Elementwise, rows that begin anywhere",
        lambda: ElementwiseRows(RowForm(101, 32, 128, 4, vector=2, packed=True), _weighted, ("x", "n", "m"), 2),
        lambda: ElementwiseRows(
            RowForm(30, 4, 32, 1, vector=4, each=2, width=2, packed=True), _weighted, ("x", "n", "m"), 4
        ),
        ((2, 1, {"w": 240, "r": 8}),),
    ),
    Registered(
        "Elementwise, rows that begin alike",
        lambda: ElementwiseRows(LineForm(901, 4, 256, 2, 4, 2, 2, width=8), _weighted, ("x", "n", "x"), 2),
        lambda: ElementwiseRows(LineForm(101, 2, 64, 1, 2, 1, 2, width=4, begin=32), _weighted, ("x", "n", "x"), 2),
        ((1, 1, {"b": 2, "w": 202}),),
    ),
    Registered(
        "Softmax, rows that begin anywhere",
        lambda: SoftmaxRows(row_form(3001, vector=2), 2),
        lambda: SoftmaxRows(RowForm(200, 1, 512, 2, vector=2, each=2), 2),
        ((1, 1, {"b": 2, "w": 400}),),
    ),
    Registered(
        "Softmax, rows over CTAs",
        lambda: SoftmaxRows(row_form(60001, vector=2), 2),
        lambda: SoftmaxRows(RowForm(500, 1, 256, 1, 2, vector=8, each=2), 8),
        ((1, 1, {"b": 2, "w": 1000}),),
    ),
    Registered(
        "RmsNorm",
        lambda: RmsNormRows(row_form(1001, vector=2, loads=2, vectors=2, hold=64), residual=True, stored=2),
        lambda: RmsNormRows(RowForm(60, 1, 64, 1, vector=8, each=2), residual=True, stored=8),
        ((1, 1, {"b": 2, "w": 120}),),
    ),
    Registered(
        "RmsNorm, rows over CTAs",
        lambda: RmsNormRows(row_form(65536, vectors=2)),
        lambda: RmsNormRows(RowForm(512, 1, 256, 1, 2, each=2)),
        ((1, 1, {}), (2, 1, {})),
    ),
    Registered(
        "RmsNorm, clusters that keep weights",
        lambda: RmsNormRows(row_form(153992, 4, vectors=4)),
        lambda: RmsNormRows(RowForm(512, 1, 256, 1, 2, 1, size=4, each=2, slots=2)),
        ((1, 1, {}), (3, 1, {})),
    ),
    Registered(
        "LayerNorm, narrow vectors",
        lambda: LayerNormRows(row_form(5662, vector=4, vectors=8), stored=4),
        lambda: LayerNormRows(RowForm(58, 1, 64, 1, vector=4, each=2, width=2), stored=4),
        ((1, 1, {"b": 4, "w": 232}),),
    ),
    Registered(
        "Attention",
        lambda: Attention(128, causal="end", window=300, lse=True),
        lambda: Attention(16, causal="end", tile=(128, 1, 32)),
        ((1, 1, {"b": 1, "h": 1, "g": 1, "s": 32}), (1, 1, {"b": 1, "h": 1, "g": 1, "s": 64})),
    ),
    Registered(
        "Attention, masked, with sinks",
        lambda: Attention(128, score=Score(mask="b h m s", sinks=True)),
        lambda: Attention(16, score=Score(mask="m s", sinks=True), tile=(64, 1, 32)),
        ((1, 1, {"b": 1, "h": 1, "g": 1, "s": 64}),),
    ),
    Registered(
        "Attention, packed heads and bounded scores",
        lambda: Attention(64, causal="end", tile=(24, 8, None), lse=True, score=Score(_capped, bound=30)),
        lambda: Attention(16, causal="end", tile=(32, 4, 32), lse=True, score=Score(_capped, bound=30)),
        ((1, 1, {"b": 1, "g": 1, "s": 32}), (1, 1, {"b": 1, "g": 1, "s": 64})),
    ),
    Registered(
        "CombineParts",
        lambda: CombineParts(lse=True, heads=8),
        lambda: CombineParts(16, lse=True, heads=2),
        ((1, 1, {}), (2, 3, {})),
    ),
    Registered(
        "SplitAttention",
        lambda: SplitAttention(4, heads=8, score=Score(sinks=True, mask="b s")),
        lambda: SplitAttention(2, 16, heads=2, causal="end", score=Score(sinks=True, mask="b s")),
        ((1, 1, {"b": 1, "h": 1, "g": 1, "c": 1, "s": 256}),),
    ),
    Registered(
        "WindowAttention",
        lambda: WindowAttention(512, lse=True),
        lambda: WindowAttention(100, 16, queries=128),
        ((1, 1, {"b": 1, "h": 1, "g": 1, "m": 128, "s": 64}),),
    ),
    Registered("StreamK", lambda: StreamK(66), lambda: StreamK(3, (64, 64, 16), (1, 1), 2), ((2, 3, {"s": 4}),)),
)
