"""Every public constructor, with one argument that is junk."""

from __future__ import annotations

import inspect
from typing import Any

import tmapipe as tp
from tests.fuzz.junk import JUNK, said
from tests.fuzz.outcomes import Call
from tmapipe.tuning import Problem

__all__ = ["calls"]

LOAD, USE = tp.Role(warps=1), tp.Role(warpgroups=1)
RING = tp.BarrierRing(2, producer=LOAD, consumer=USE)
A, B = (tp.TmaLoadStage(dims, tile=(64, 64), ring=RING) for dims in ("m k", "n k"))
E, S = tp.epilogue, tp.schedules
#: What each needs to be made.
NEEDED: dict[Any, dict[str, Any]] = {
    tp.Role: {"warps": 1},
    tp.BarrierRing: {"stages": 2, "producer": LOAD, "consumer": USE},
    tp.TmaLoadStage: {"dims": "m k", "tile": (64, 64), "ring": RING},
    tp.BulkLoadStage: {"dims": "n", "tile": (1024,), "ring": RING},
    tp.CpAsyncLoadStage: {"dims": "m k", "tile": (64, 64), "ring": RING},
    tp.L2Stage: {"source": A, "ring": tp.BarrierRing(4, producer=tp.Role(warps=1), consumer=LOAD)},
    tp.SharedStage: {"tile": (64, 64), "ring": RING, "writer": LOAD, "dtype": "bf16"},
    tp.Wgmma: {"a": A, "b": B},
    tp.TmaStoreStage: {"dims": "m n", "source": tp.Wgmma(A, B)},
    tp.ThreadStoreStage: {"dims": "m n", "tile": (64, 64), "role": USE},
    tp.Turnstile: {"role": tp.Role(warpgroups=2, teams=2)},
    tp.Table: {"dim": "l"},
    tp.Scratch: {"role": tp.Role(warps=4), "tile": (64, 64), "dtype": "fp32"},
    tp.Dim: {"name": "kb", "of": "k"},
    tp.tiles.SplitKTiles: {"parts": 2},
    tp.tiles.StreamKTiles: {"shares": 2},
    S.SplitK: {"parts": 2},
    S.StreamK: {"shares": 2},
    Problem: {"m": 8, "n": 8, "k": 8},
} | {kind: {} for kind in (
    tp.Operand, tp.tiles.PersistentTiles, tp.tiles.DynamicTiles, tp.tiles.GpcTiles, tp.tiles.GridTiles,
    tp.tiles.GroupedTiles, tp.tiles.Grouped, tp.tiles.Snake,
    tp.tiles.Columns, tp.tiles.Hilbert, tp.mainloop.Cooperative, tp.mainloop.PingPong, E.Epilogue, E.Matrix, E.PerBatch,
    E.PerColumn, tp.tiles.Triangle,
    E.PerRow, E.Scalar, E.Output, E.RowSum, E.ColumnSum, E.OperandSum,
    S.Gemm, S.PingPong, S.GatedGemm, S.GroupedGemm, S.Copy, S.AddParts,
)}  # fmt: skip


def calls() -> list[Call]:
    """Each argument of each constructor with each value of `JUNK`."""
    found = []
    for kind, needed in NEEDED.items():
        for name, parameter in inspect.signature(kind).parameters.items():
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                found += [_call(kind, {**needed, name: value}, name) for value in JUNK]
    return found


def _call(kind: Any, arguments: dict[str, Any], name: str) -> Call:
    return Call(f"{kind.__name__}({name}={said(arguments[name])})", lambda: kind(**arguments))
