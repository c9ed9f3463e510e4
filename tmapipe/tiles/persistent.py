"""Tile coordinates, and the order in which persistent CTAs take output tiles.

The order is an object of its own, apart from the schedules' bodies: a body is given one `Tile` after another.
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
    """Static persistent order: cluster c of C takes the tiles c, c + C, c + 2C, ... of the tile grid.

    The grid is that of the schedule's output, in units of clusters, rounded up (a cluster may get tiles that lie wholly
    outside: loads of them give zeros and stores of them write nothing). `raster` (`Grouped`, `Snake` or `Hilbert`) numbers the
    tiles along the last two dimensions, so that CTAs at work together share operands in L2; earlier (batch) dimensions vary
    slowest.
    """

    raster: Grouped = attrs.field(factory=Grouped)

    @raster.validator
    def _check(self, attribute: Any, value: Any) -> None:
        if not isinstance(value, Grouped):
            raise InputError("PersistentTiles(raster)", value, "is Grouped, Snake or Hilbert", "use Grouped(8)")

    def clusters(self, grid: dict[str, int], cluster: Mapping[str, int]) -> int:
        """Cluster-sized pieces of a grid of tiles: how many clusters can work at once."""
        return math.prod(steps_of(grid, cluster).values())

    def divisors(self, grid: dict[str, Any], cluster: Mapping[str, int], clusters: Any) -> dict[str, Any]:
        """What the order divides by; *grid* in tiles, none of them 0. On the host, or in the kernel."""
        return {"clusters": clusters, **number_divisors(self.raster, steps_of(grid, cluster))}

    def bind(self, isa: Isa, grid: dict[str, Any]) -> BoundTiles:
        """This order on the calling CTA, for a grid of *grid* tiles a dimension."""
        return BoundTiles(isa, self, grid).at(isa.cluster_id)


class BoundTiles(Carried):
    """The calling CTA's tiles, once `at` has said from where on: `count` of them, `tile(i)` for each.

    Of subclasses: coordinates: names of a tile's, if not those of the grid; early: whether the first tile is found while the
    kernel before may still run."""

    coordinates: tuple[str, ...] = ()
    early = True

    def __init__(self, isa: Isa, order: PersistentTiles, grid: dict[str, Any]):
        self.isa, self.order, self.dims = isa, order, self.coordinates or tuple(grid)
        by = isa.divisors(order.divisors(grid, isa.plan.cluster, isa.clusters))
        self.by, self.numbers = by, TileNumbers(isa, order.raster, grid, by)

    def of(self, role: RoleWarps) -> BoundTiles:
        """The tiles as *role* takes them."""
        return self

    def at(self, place: Any) -> BoundTiles:
        """The tiles from number *place* on, which is less than that of clusters."""
        isa = self.isa
        self.place = place
        self.count = isa.here((self.numbers.total - place + isa.clusters - 1) // self.by["clusters"])
        self.first = [isa.here(value) for value in self._at(0)] if self.early else []
        return self

    def tile(self, i: Any) -> Tile:
        """The *i*-th tile of the calling CTA."""
        places = self.numbers.places(self.place + i * self.isa.clusters)
        return tile_of(self.isa, places)

    def each(self, body: Callable[[Tile], None]) -> None:
        """Runs *body* once a tile. Where the next one lies is computed after the body, which has started its loads by then."""
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
        """Runs *body* for the tiles *team*, *team* + *teams*, ..., and *skip* for those between."""

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
    """The tiles of a grid, in units of clusters, numbered from 0 to `total` - 1 by a raster, batch dimensions slowest.

    by: what `number_divisors` named, to divide by."""

    def __init__(self, isa: Isa, raster: Grouped, grid: dict[str, Any], by: dict[str, Any]):
        self.isa, self.raster, self.by = isa, raster, by
        self.steps = steps_of(grid, isa.plan.cluster)
        self.total: Any = 1
        for count in self.steps.values():
            self.total = self.total * count

    def places(self, number: Any) -> dict[str, Any]:
        """Where tile *number* lies: dimension -> place, in units of clusters."""
        rest, found = number, {}
        outer = list(self.steps)
        if len(outer) > 1:
            *outer, m, n = outer
            batch, rest = self._divide(rest, "matrix", self.steps[m] * self.steps[n])
            found[m], found[n] = self.raster.place(self.isa, self.by, self.steps[m], self.steps[n], rest)
            rest = batch
        for dim in reversed(outer):
            rest, found[dim] = self._divide(rest, dim, self.steps[dim])
        return {dim: found[dim] for dim in self.steps}

    def _divide(self, value: Any, name: str, by: Any) -> tuple[Any, Any]:
        """Quotient and remainder."""
        quotient = value // self.by[name]
        return quotient, value - quotient * by


def tile_of(isa: Isa, places: dict[str, Any]) -> Tile:
    """The calling CTA's tile of a cluster's piece of the grid."""
    cluster = isa.plan.cluster
    return Tile({d: place * cluster.get(d, 1) + cluster_coordinate(isa, d) for d, place in places.items()})


def number_divisors(raster: Grouped, steps: dict[str, Any]) -> dict[str, Any]:
    """What decoding a tile's number divides by; steps: the grid in units of clusters."""
    found = dict(steps)
    if len(steps) > 1:
        m, n = list(steps)[-2:]
        found |= {"matrix": steps[m] * steps[n], **raster.divisors(steps[m], steps[n])}
    return found


def steps_of(grid: dict[str, Any], cluster: Mapping[str, int]) -> dict[str, Any]:
    """The grid in units of clusters, rounded up."""
    return {dim: ceil_div(count, cluster.get(dim, 1)) for dim, count in grid.items()}
