"""The pieces in which an output tile leaves the accumulators: 64 rows per warpgroup, and some columns."""

from __future__ import annotations

from typing import Any, NamedTuple

from tmapipe.integers import ceil_div
from tmapipe.plan.model import Distributed, Store
from tmapipe.protocol.tile import Tile

__all__ = ["Piece", "pieces", "strip_start"]


def pieces(rows: int, columns: int, groups: int, width: int) -> list[tuple[int, int]]:
    """(row block, first column) of each piece of an output tile, in the order in which they are stored.

    A last piece that would reach over the tile starts earlier instead, and has some columns a second time.

    Args:
        rows: Of the tile.
        columns: Of the tile.
        groups: Warpgroups, each of which takes 64 rows of a row block.
        width: Columns of a piece.
    """
    firsts = [min(first, columns - width) for first in range(0, columns, width)]
    return [(block, first) for block in range(rows // (64 * groups)) for first in firsts]


def strip_start(store: Store, start: tuple[Any, ...], strip: Any, first: Any) -> tuple[Any, ...]:
    """Where a piece starts in the output (elements), whose tile starts at *start*.

    Args:
        strip: Which 64 rows of the tile.
        first: Its first column in the tile.
    """
    *outer, n = start
    if store.transposed:
        *outer, m = outer
        return (*outer, m + first, n + strip * 64)
    if not store.whole:
        *outer, m = outer
        return (*outer, m + strip * 64, n + first)
    for i in reversed(range(len(outer))):  # its number, counted along the dimensions of the rows, the last one fastest
        count = store.whole[i] // store.tile[i]
        if count > 1:
            outer[i] = outer[i] + strip % count * store.tile[i]
            strip = strip // count
    return (*outer, n + first)


class Piece(NamedTuple):
    """64 rows x `width` columns of a tile of accumulators: what a warpgroup takes at a time.

    at: where it starts in the output (elements); strip: which 64 rows of the tile; first: its first column in the tile;
    output: the store of the output that the tiles divide; stores: that the issuer issues (in each piece, once a row).
    """

    matmul: Distributed
    tile: Tile
    at: tuple[Any, ...]
    strip: Any
    first: int
    width: int
    output: Store
    stores: tuple[int, int]

    @property
    def seen(self) -> int:
        """How many of its columns the piece before had too."""
        return -self.first % self.width

    @property
    def last(self) -> bool:
        """Whether it is the last piece of its rows."""
        return self.first + self.width == self.matmul.shape[1]

    @property
    def a_row(self) -> int:
        """How many pieces its rows have."""
        return ceil_div(self.matmul.shape[1], self.width)

    def stores_in(self, count: int) -> int:
        """The least number of stores that the issuer starts from one of a piece up to that of *count* pieces later."""
        each, once = self.stores
        return each * count + once * (count // self.a_row)
