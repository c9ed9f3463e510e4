"""Outputs of an epilogue that are sums over rows or columns: RowSum and ColumnSum.

The kernel stores partial sums to a workspace in fp32, by TMA, and `AddParts` adds them in a fixed order. So the bits are the
same in every run.

    RowSum       one part per output tile along n: a warpgroup adds up the pieces of its 64 rows, and stores 64 sums
    ColumnSum    one part per 16 rows: each warp adds up its 16 rows of a piece, and a warpgroup stores 4 rows of sums

Each warpgroup has one small buffer for them. What lies outside the output does not count, whatever the epilogue gives there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from tmapipe.arithmetic import total
from tmapipe.dtypes import DType, fp32
from tmapipe.epilogue.outputs import EpilogueOutput, StoreForm
from tmapipe.integers import ceil_div
from tmapipe.isa.fragment import Fragment
from tmapipe.matmul import Wgmma
from tmapipe.plan.model import Store
from tmapipe.protocol.pieces import Piece
from tmapipe.protocol.registry import stands_for
from tmapipe.protocol.stores import BoundStore
from tmapipe.register_tile import RegisterTile
from tmapipe.store_pipeline import TmaStoreStage
from tmapipe.tma_rules import ALIGNMENT

__all__ = ["ColumnSum", "Reduction", "RowSum"]

WARP_ROWS = 16  # of a piece: 64 rows over the 4 warps of a warpgroup
UNIT = ALIGNMENT // fp32.bytes  # elements that rows which TMA stores write are multiples of


class Reduction(EpilogueOutput):
    """Base of both. `along`: the output's dimension that is left; `first`: parts of a tile that are added before those of
    different tiles, of *rows* rows."""

    along: str
    reduced = True

    def first(self, rows: int) -> int:
        return 1

    def type_of(self, sums: DType) -> DType:
        return fp32

    def whole(self, values: Any, shape: tuple[int, ...]) -> np.ndarray:
        """In fp32, on the CPU."""
        whole = np.broadcast_to(np.asarray(values, np.float32), shape)
        return total(whole if self.along == "m" else whole.swapaxes(-1, -2))


@attrs.frozen
class RowSum(Reduction):
    """An output [m] in fp32 ([l, m] of a batch): the sums over n of each row of what the epilogue gives under its name."""

    along = "m"

    def stage(self, mma: Wgmma | RegisterTile, width: int, form: StoreForm) -> TmaStoreStage:
        return RowParts(mma, form.batch)


@attrs.frozen
class ColumnSum(Reduction):
    """An output [n] in fp32 ([l, n] of a batch): the sums over m of each column of what the epilogue gives under its name."""

    along = "n"

    def first(self, rows: int) -> int:
        return rows // WARP_ROWS

    def stage(self, mma: Wgmma | RegisterTile, width: int, form: StoreForm) -> TmaStoreStage:
        return ColumnParts(mma, width, form.batch)


class RowParts(TmaStoreStage):
    """Stores the sums of each tile's rows to a workspace [l, tiles along n, m], 64 rows at a time."""

    def __init__(self, mma: Wgmma | RegisterTile, batch: str):
        super().__init__(f"{batch}n_tiles m_padded", source=mma, tile=(64,), stages=1, dtype=fp32)

    @property
    def parts_tile(self) -> tuple[int, ...]:
        return self.tile

    def derive(self, extents: Mapping[str, int]) -> dict[str, int]:
        assert isinstance(self.source, (Wgmma, RegisterTile))
        tiles = ceil_div(extents["n"], self.source.shape[1])
        return {"n_tiles": tiles, "m_padded": ceil_div(extents["m"], UNIT) * UNIT}


class ColumnParts(TmaStoreStage):
    """Stores the sums of each 16 rows' columns to a workspace [l, 16s of rows, n], 4 x *width* of them at a time."""

    def __init__(self, mma: Wgmma | RegisterTile, width: int, batch: str):
        super().__init__(f"{batch}m_warps n", source=mma, tile=(4, width), stages=1, dtype=fp32)

    @property
    def parts_tile(self) -> tuple[int, ...]:
        return self.tile

    def derive(self, extents: Mapping[str, int]) -> dict[str, int]:
        assert isinstance(self.source, (Wgmma, RegisterTile))
        rows = self.source.shape[0]
        return {"m_warps": ceil_div(extents["m"], rows) * (rows // WARP_ROWS)}


@stands_for(RowParts)
class BoundRowParts(BoundStore):
    """`RowParts` in the role that adds up. While a tile is stored, the sums so far are in registers."""

    once_a_row = True
    sums: Any = None

    def reduced(self, piece: Piece, values: Fragment) -> Fragment:
        """Adds the piece's columns, except those that the piece before had."""
        before = None if piece.first == 0 else self.sums
        inside = _extent(self, piece.output, -1) - piece.at[-1]
        self.sums = self.isa.fragments.row_sums(values, piece.width, piece.seen, inside, before)
        return self.sums

    def put(self, piece: Piece, values: Fragment) -> None:
        """After the last piece of its rows, stores the sums."""
        if piece.last:
            *batch, m, _ = piece.at
            write = functools.partial(self.isa.fragments.write_row_sums, values)
            self._store_piece((*batch, piece.tile.n, m), write, piece.stores_in(self.stages * piece.a_row))


@stands_for(ColumnParts)
class BoundColumnParts(BoundStore):
    """`ColumnParts` in the role that adds up."""

    def reduced(self, piece: Piece, values: Fragment) -> Fragment:
        """Each warp's sums of the piece."""
        inside = _extent(self, piece.output, -2) - piece.at[-2]
        return self.isa.fragments.column_sums(values, piece.width, inside)

    def put(self, piece: Piece, values: Fragment) -> None:
        """Stores them."""
        *batch, _, n = piece.at
        part = piece.tile.m * (piece.matmul.shape[0] // WARP_ROWS) + piece.strip * (64 // WARP_ROWS)
        write = functools.partial(self.isa.fragments.write_column_sums, values)
        self._store_piece((*batch, part, n), write, piece.stores_in(self.stages))


def _extent(bound: BoundStore, output: Store, dim: int) -> Any:
    """The output's extent along its dimension *dim*, counted from the end."""
    return bound.isa.extent(output.argument, len(output.dims) + dim)
