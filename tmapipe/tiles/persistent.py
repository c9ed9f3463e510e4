"""The static tile scheduler, and the numbering of tiles that all schedulers share.

A tile scheduler is apart from the bodies: a body is given one `Tile` after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.integers import ceil_div
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.cluster import cluster_coordinate
from tmapipe.protocol.tile import Tile
from tmapipe.tiles.order import TileOrder
from tmapipe.tiles.raster import Grouped

__all__ = ["BoundTiles", "PersistentTiles", "TileNumbers", "number_divisors", "steps_of", "tile_of"]


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

    raster: Grouped = attrs.field(factory=Grouped)

    @raster.validator
    def _check(self, attribute: Any, value: Any) -> None:
        if not isinstance(value, Grouped):
            rule = "is Grouped, Snake, Backwards, Columns or Hilbert"
            raise InputError("PersistentTiles(raster)", value, rule, "use Grouped(8)")

    def clusters(self, grid: dict[str, int], cluster: Mapping[str, int]) -> int:
        """How many clusters can work at once on a grid of tiles."""
        return math.prod(steps_of(grid, cluster).values())

    def divisors(self, grid: dict[str, Any], cluster: Mapping[str, int], clusters: Any) -> dict[str, Any]:
        """The numbers that the order divides by, by name; on the host, or in the kernel.

        Args:
            grid: Tiles by dimension, none of them 0.
            cluster: CTAs by dimension.
            clusters: How many were launched.
        """
        return {"clusters": clusters, **number_divisors(self.raster, steps_of(grid, cluster))}

    def bind(self, isa: Isa, grid: dict[str, Any]) -> BoundTiles:
        """This order on the calling CTA, for a grid of *grid* tiles."""
        return BoundTiles(isa, self, grid).at(isa.cluster_id)


class BoundTiles(Carried):
    """The calling CTA's tiles, once `at` has set its position: `count` of them, `tile(i)` for each.

    A subclass may set `coordinates`, names of a tile's coordinates if they are not those of the grid, and `early`, whether the
    first tile can be computed while the previous kernel still runs.
    """

    coordinates: tuple[str, ...] = ()
    early = True

    def __init__(self, isa: Isa, order: PersistentTiles, grid: dict[str, Any]):
        self.isa, self.order, self.dims = isa, order, self.coordinates or tuple(grid)
        by = isa.divisors(order.divisors(grid, isa.plan.cluster, isa.clusters))
        self.by, self.numbers = by, TileNumbers(isa, order.raster, grid, by)

    def of(self, role: RoleWarps) -> BoundTiles:
        """The tiles as *role* takes them."""
        return self

    def at(self, position: Any) -> BoundTiles:
        """Sets the position of the calling cluster, a number below that of clusters."""
        isa = self.isa
        self.position = position
        self.count = isa.here((self.numbers.total - position + isa.clusters - 1) // self.by["clusters"])
        self.first = [isa.here(value) for value in self._at(0)] if self.early else []
        return self

    def tile(self, i: Any) -> Tile:
        """The *i*-th tile of the calling CTA."""
        coordinates = self.numbers.coordinates(self.position + i * self.isa.clusters)
        return tile_of(self.isa, coordinates)

    def each(self, body: Callable[[Tile], None]) -> None:
        """Runs *body* once per tile. The next tile is computed after the body, which has started its loads by then."""
        at = self.isa.cells(*(self.first or self._at(0)))

        def one(i: Any) -> None:
            self._take(self._made({dim: at[j] for j, dim in enumerate(self.dims)}), body)
            for j, value in enumerate(self._at(i + 1)):
                at[j] = value

        self.isa.loop(self.count, one)

    def _at(self, i: Any) -> list[Any]:
        """The coordinates of the *i*-th tile."""
        tile = self.tile(i)
        return [tile[dim] for dim in self.dims]

    def _made(self, values: dict[str, Any]) -> Tile:
        """A tile of the *values* that were computed ahead."""
        return Tile(values)

    def _take(self, tile: Tile, body: Callable[[Tile], None]) -> None:
        body(tile)

    def each_in_turn(self, team: Any, teams: int, body: Callable[[Tile], None], skip: Callable[[Tile], None]) -> None:
        """Runs *body* for the tiles *team*, *team* + *teams*, ..., and *skip* for the others."""

        def one(n: Any) -> None:
            first = n * teams + team
            body(self.tile(first))
            for other in range(1, teams):
                skip(self.tile(first + other))

        self.isa.loop(team, lambda i: skip(self.tile(i)))
        self.isa.loop(ceil_div(self.count - team, teams), one)

    def finish(self) -> None:
        """Nothing is in flight: every CTA computes its tiles by itself."""


class TileNumbers(Carried):
    """The tiles of a grid, in units of clusters, numbered from 0 to `total` - 1 by a raster; batch dimensions vary slowest.

    Args:
        grid: Tiles by dimension.
        by: The divisors that `number_divisors` named.
    """

    def __init__(self, isa: Isa, raster: Grouped, grid: dict[str, Any], by: dict[str, Any]):
        self.isa, self.raster, self.by = isa, raster, by
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
