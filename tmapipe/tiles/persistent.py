"""The static tile scheduler, and the numbering of tiles that all schedulers share.

A tile scheduler is apart from the bodies: a body is given one `Tile` after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tmapipe.integers import ceil_div
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.cluster import cluster_coordinate
from tmapipe.protocol.tile import Tile
from tmapipe.tiles.order import TileOrder, TilesOfRole
from tmapipe.tiles.raster import Grouped, is_raster

__all__ = ["NumberedTiles", "PersistentTiles", "TileNumbers", "number_divisors", "steps_of", "tile_of"]


@attrs.frozen
class PersistentTiles(TileOrder):
    """Static persistent order: cluster c of C takes the tiles c, c + C, c + 2C, ... of the grid.

    The grid is that of the schedule's output, in units of clusters, rounded up. So a CTA may get tiles that lie wholly
    outside: their loads give zeros, and their stores write nothing.

    Args:
        raster: `Grouped`, `Snake`, `Backwards`, `Columns` or `Hilbert`; numbers the tiles along the last two dimensions, so
            that CTAs at work together share operands in L2. Earlier (batch) dimensions vary slowest.

    Raises:
        InputError: *raster* is something else.
    """

    raster: Grouped = attrs.field(factory=Grouped, validator=is_raster)

    def clusters(self, grid: dict[str, int], cluster: Mapping[str, int]) -> int:
        """As in `TileOrder`."""
        return math.prod(steps_of(grid, cluster).values())

    def divisors(self, grid: dict[str, Any], cluster: Mapping[str, int], clusters: Any) -> dict[str, Any]:
        """As in `TileOrder`."""
        return {"clusters": clusters, **number_divisors(self.raster, steps_of(grid, cluster))}

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """As in `TileOrder`."""
        return NumberedTiles(isa, self, grid).at(isa.cluster_id)


class NumberedTiles(TilesOfRole):
    """Tiles whose numbers follow from the position of the calling cluster, once `at` has set that: `count` of them.

    A subclass may set `early`, whether the first tile can be computed while the previous kernel still runs.
    """

    early = True

    def __init__(self, isa: Isa, order: PersistentTiles, grid: dict[str, Any]):
        self.isa, self.order, self.dims = isa, order, tuple(grid)
        self.numbers = TileNumbers(isa, order, order.raster, grid)

    def at(self, position: Any) -> NumberedTiles:
        """Sets the position of the calling cluster, a number below that of clusters."""
        self.position = position
        self.count = self.isa.here(self._count())
        self.first = [self.isa.here(value) for value in self._at(0)] if self.early else []
        return self

    def _count(self) -> Any:
        """How many tiles the cluster has."""
        clusters = self.isa.clusters
        return (self.numbers.total - self.position + clusters - 1) // self.numbers.by["clusters"]

    def number(self, i: Any) -> Any:
        """The number of its *i*-th tile."""
        return self.position + i * self.isa.clusters

    def tile(self, i: Any) -> Tile:
        """The *i*-th tile of the calling CTA."""
        return tile_of(self.isa, self.numbers.coordinates(self.number(i)))

    def each(self, body: Callable[[Tile], None]) -> None:
        """Runs *body* once per tile. The next tile is computed after the body, which has started its loads by then."""
        at = self.isa.cells(*(self.first or self._at(0)))

        def one(i: Any) -> None:
            body(Tile({dim: at[j] for j, dim in enumerate(self.dims)}))
            for j, value in enumerate(self._at(i + 1)):
                at[j] = value

        self.isa.loop(self.count, one)

    def _at(self, i: Any) -> list[Any]:
        """The coordinates of the *i*-th tile."""
        tile = self.tile(i)
        return [tile[dim] for dim in self.dims]

    def each_in_turn(self, team: Any, teams: int, body: Callable[[Tile], None], skip: Callable[[Tile], None]) -> None:
        """As in `TilesOfRole`."""

        def one(n: Any) -> None:
            first = n * teams + team
            body(self.tile(first))
            for other in range(1, teams):
                skip(self.tile(first + other))

        self.isa.loop(team, lambda i: skip(self.tile(i)))
        self.isa.loop(ceil_div(self.count - team, teams), one)


class TileNumbers(Carried):
    """The tiles of a grid, in units of clusters, numbered from 0 to `total` - 1 by a raster; batch dimensions vary slowest.

    grid: tiles by dimension; by: the divisors of the order, by name.
    """

    def __init__(self, isa: Isa, order: TileOrder, raster: Grouped, grid: dict[str, Any]):
        self.isa, self.raster = isa, raster
        self.by = isa.divisors(order.divisors(grid, isa.plan.cluster, isa.clusters))
        self.steps = steps_of(grid, isa.plan.cluster)
        self.total: Any = 1
        for count in self.steps.values():
            self.total = self.total * count

    def coordinates(self, number: Any) -> dict[str, Any]:
        """The coordinates of tile *number* by dimension, in units of clusters."""
        rest, found = number, dict[str, Any].fromkeys(self.steps, 0)
        outer = list(self.steps)
        if len(outer) > 1:
            *outer, m, n = outer
            if all(isinstance(self.steps[dim], int) and self.steps[dim] == 1 for dim in outer):
                outer = []  # tensors without these dimensions: no division
            batch = 0
            if outer:
                batch, rest = self._divide(rest, "matrix", self.steps[m] * self.steps[n])
            found[m], found[n] = self.raster.coordinates(self.isa, self.by, self.steps[m], self.steps[n], rest)
            rest = batch
        for dim in reversed(outer[1:]):
            rest, found[dim] = self._divide(rest, dim, self.steps[dim])
        if outer:
            found[outer[0]] = rest
        return found

    def _divide(self, value: Any, name: str, by: Any) -> tuple[Any, Any]:
        """Quotient and remainder."""
        quotient = value // self.by[name]
        return quotient, value - quotient * by


def tile_of(isa: Isa, coordinates: dict[str, Any]) -> Tile:
    """The calling CTA's tile, from its cluster's coordinates."""
    cluster = isa.plan.cluster
    return Tile({d: index * cluster.get(d, 1) + cluster_coordinate(isa, d) for d, index in coordinates.items()})


def number_divisors(raster: Grouped, steps: dict[str, Any]) -> dict[str, Any]:
    """The numbers that decoding a tile's number divides by, by name.

    Args:
        steps: The grid by dimension, in units of clusters.
    """
    found = dict(steps)
    if len(steps) > 1:
        m, n = list(steps)[-2:]
        found |= {"matrix": steps[m] * steps[n], **raster.divisors(steps[m], steps[n])}
    return found


def steps_of(grid: dict[str, Any], cluster: Mapping[str, int]) -> dict[str, Any]:
    """The grid in units of clusters, rounded up."""
    return {dim: ceil_div(count, cluster.get(dim, 1)) for dim, count in grid.items()}
