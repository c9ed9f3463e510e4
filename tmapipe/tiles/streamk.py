"""StreamKTiles: all inner steps of all output tiles, in one long row that is cut into equal shares.

With three tiles of 8 steps and 4 shares of 6:

    tile    0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1 2 2 2 2 2 2 2 2
    share   0 0 0 0 0 0|1 1 1 1 1 1|2 2 2 2 2 2|3 3 3 3 3 3

So no CTA idles when the number of tiles is no multiple of the number of CTAs. A share has some whole tiles and up to two
pieces of tiles. The pieces of one tile are partial sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tmapipe.integers import ceil_div
from tmapipe.isa.interface import Isa
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.tile import Tile
from tmapipe.tiles.order import TilesOfRole
from tmapipe.tiles.persistent import TileNumbers, number_divisors, steps_of, tile_of
from tmapipe.tiles.raster import Grouped, is_raster
from tmapipe.tiles.splitk import PartTiles, is_number

__all__ = ["StreamKTiles"]


@attrs.frozen
class StreamKTiles(PartTiles):
    """Stream-K order: each cluster takes one share, or several consecutive ones.

    The output has a dimension "s" for the pieces of a tile, before those of the matrix. A tile's coordinates are s (which
    piece), l (0), m, n, ..., first (its first step) and steps (how many). If s has extent 1, everything is one share.

    Args:
        raster: As in `PersistentTiles`.
        shares: As many as clusters that work at once, e.g. 66 for clusters of two on 132 multiprocessors.
        stage: Name of the load stage whose tiles are the steps.
        dim: The dimension along which they are counted.
        reduce: How pieces are added, as in `SplitKTiles`.
    """

    raster: Grouped = attrs.field(factory=Grouped, validator=is_raster)
    shares: int = attrs.field(kw_only=True, validator=is_number)

    @property
    def parts(self) -> int:
        """The most pieces that a tile can have."""
        return self.shares

    def clusters(self, grid: dict[str, int], cluster: Mapping[str, int]) -> int:
        """As in `TileOrder`: one per share."""
        return self.shares

    def pieces(self, tiles: int, steps: int) -> tuple[int, int]:
        """The least and the most pieces of a tile, for *tiles* tiles (in units of clusters) of *steps* steps.

        The boundaries of shares are ceil(tiles * steps / shares) steps apart.
        """
        least = ceil_div(steps, max(1, ceil_div(tiles * steps, self.shares)))
        return least, least + 1

    def divisors(self, grid: dict[str, Any], cluster: Mapping[str, int], clusters: Any) -> dict[str, Any]:
        """As in `TileOrder`."""
        return number_divisors(self.raster, steps_of(_without_shares(grid), cluster))

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """As in `TileOrder`."""
        return PiecesOfRole(isa, self, grid)


class PiecesOfRole(TilesOfRole):
    """The calling CTA's pieces of tiles."""

    def __init__(self, isa: Isa, order: StreamKTiles, grid: dict[str, Any]):
        self.isa, self.order = isa, order
        self.numbers = TileNumbers(isa, order, order.raster, _without_shares(grid))
        steps = order.steps(isa)
        self.total = self.numbers.total * steps
        self.steps = isa.select(steps > 0, steps, 1)  # of a tile; to divide by
        most = self._least(order.shares, self.numbers.total * grid["s"])
        self.shares = isa.select(grid["s"] == 1, 1, most)
        size = ceil_div(self.total, self.shares)  # of a share, in steps; the last ones may be smaller
        self.size = isa.select(size > 0, size, 1)

    def each(self, body: Callable[[Tile], None]) -> None:
        """As in `TilesOfRole`."""
        isa = self.isa
        first, last = (c * self.shares // isa.clusters for c in (isa.cluster_id, isa.cluster_id + 1))
        end = self._least(last * self.size, self.total)
        at = isa.cells(first * self.size)
        start = at[0]
        cuts = (end - 1) // self.steps - start // self.steps + (end - 1) // self.size - start // self.size

        def piece() -> None:
            tile, after = self._piece(at[0], end)
            at[0] = after
            body(tile)

        # Where a tile and a share end together they make one cut: then there is one piece less.
        isa.loop(isa.select(start < end, cuts + 1, 0), lambda i: isa.when(at[0] < end, piece))

    def _piece(self, start: Any, end: Any) -> tuple[Tile, Any]:
        """The piece that begins with step *start*, and the step after it, at most *end*."""
        number, share = start // self.steps, start // self.size
        begins = number * self.steps
        which = share - begins // self.size
        after = self._least(self._least(begins + self.steps, (share + 1) * self.size), end)
        tile = tile_of(self.isa, self.numbers.coordinates(number))
        coordinates = {dim: tile[dim] for dim in self.numbers.steps}
        return Tile({"s": which, "l": 0, **coordinates, "first": start - begins, "steps": after - start}), after

    def _least(self, a: Any, b: Any) -> Any:
        return self.isa.select(a < b, a, b)


def _without_shares(grid: dict[str, Any]) -> dict[str, Any]:
    return {dim: count for dim, count in grid.items() if dim != "s"}
