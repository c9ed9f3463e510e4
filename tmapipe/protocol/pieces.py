"""The pieces of an output tile in which its accumulators leave the registers: 64 rows of each warpgroup, and some columns."""

from __future__ import annotations

from typing import Any, NamedTuple

from tmapipe.integers import ceil_div
from tmapipe.plan.model import Matmul, Store
from tmapipe.protocol.tile import Tile

__all__ = ["Piece", "pieces"]


def pieces(rows: int, columns: int, groups: int, width: int) -> list[tuple[int, int]]:
    """The pieces of an output tile of *rows* x *columns* in the order in which its accumulators are stored: (row block,
    first column), each *width* columns wide. *groups* warpgroups take 64 rows each of a row block. A last piece that would
    reach over the tile starts earlier instead, and has some columns a second time."""
    firsts = [min(first, columns - width) for first in range(0, columns, width)]
    return [(block, first) for block in range(rows // (64 * groups)) for first in firsts]


class Piece(NamedTuple):
    """64 rows x `width` columns of a tile of accumulators: what a warpgroup takes at a time.

    at: where it starts in the output (elements); strip: which 64 rows of the tile; first: its first column in the tile;
    output: the store of the output that the tiles divide; stores: that the issuer issues (in each piece, once a row).
    """

    matmul: Matmul
    tile: Tile
    at: tuple[Any, ...]
    strip: Any
    first: int
    width: int
    output: Store
    stores: tuple[int, int]

    @property
    def seen(self) -> int:
        """Its columns that the piece before had too."""
        return -self.first % self.width

    @property
    def last(self) -> bool:
        """Whether it is the last one of its row."""
        return self.first + self.width == self.matmul.shape[1]

    @property
    def a_row(self) -> int:
        """How many pieces a row has."""
        return ceil_div(self.matmul.shape[1], self.width)

    def stores_in(self, count: int) -> int:
        """Stores that the issuer issues, at least, from one of a piece to that of *count* pieces later."""
        each, once = self.stores
        return each * count + once * (count // self.a_row)
