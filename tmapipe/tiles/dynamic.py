"""DynamicTiles: a free cluster takes the next tile.

Each CTA has one more warp, the scheduler, which runs ahead of the others. It takes the next number from a counter in global
memory and tells the other warps where that tile lies, until there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.tile import Tile
from tmapipe.tiles.persistent import TileNumbers, number_divisors, steps_of, tile_of
from tmapipe.tiles.queue import QueuedTiles, QueueEnd

__all__ = ["DynamicTiles"]


@attrs.frozen
class DynamicTiles(QueuedTiles):
    """Dynamic order: each cluster takes the next tile when it is ready, so that a cluster that is held up takes fewer.

    The results are bit for bit those of any other order.

    Args:
        raster: Numbers the tiles, as in `PersistentTiles`.
        stages: Tiles fetched ahead; two or more hide the fetch.

    Raises:
        InputError: *stages* is no positive integer.
    """

    stages: int = attrs.field(default=2)

    @stages.validator
    def _check_stages(self, attribute: Any, value: Any) -> None:
        if not isinstance(value, int) or value < 1:
            raise InputError("DynamicTiles(stages)", value, "is a positive number of tiles", "use 2")

    def words(self, dims: int) -> int:
        """Whether there is a tile, and its coordinates."""
        return 1 + dims

    def divisors(self, grid: dict[str, Any], cluster: Mapping[str, int], clusters: Any) -> dict[str, Any]:
        """What the scheduler divides by; *grid* in tiles, none of them 0. On the host, or in the kernel."""
        return number_divisors(self.raster, steps_of(grid, cluster))

    def bind(self, isa: Isa, grid: dict[str, Any]) -> Any:
        """This order on the calling CTA, for a grid of *grid* tiles a dimension."""
        return BoundDynamicTiles(isa, self, grid)


class BoundDynamicTiles(Carried):
    """A grid whose tiles are fetched one by one; `of` gives them to a role."""

    def __init__(self, isa: Isa, order: QueuedTiles, grid: dict[str, Any]):
        self.isa, self.dims = isa, tuple[str, ...](grid)
        by = isa.divisors(order.divisors(grid, isa.plan.cluster, isa.clusters))
        self.numbers = TileNumbers(isa, order.raster, grid, by)

    def of(self, role: RoleWarps) -> TilesOfRole:
        """The tiles as *role* takes them."""
        return TilesOfRole(self, role)


class TilesOfRole(Carried):
    """The tiles of the calling warp's cluster, one after another.

    State, in registers: how many slots were read, and the words of the last one. The first word says whether there was a tile.
    """

    def __init__(self, tiles: BoundDynamicTiles, role: RoleWarps):
        self.isa, self.numbers, self.dims = tiles.isa, tiles.numbers, tiles.dims
        self.queue = QueueEnd(tiles.isa, role)
        self.read = self.isa.cells(0)
        self.words = self.isa.cells(*[0] * (1 + len(self.dims)))

    def begin(self) -> None:
        """Nothing can be fetched yet."""

    def each(self, body: Callable[[Tile], None]) -> None:
        """Runs *body* once per tile."""
        self._next()

        def one() -> None:
            body(self._tile())
            self._next()

        self.isa.loop_while(self.words, one, lambda: self._turns(0, 1))

    def each_in_turn(self, team: Any, teams: int, body: Callable[[Tile], None], skip: Callable[[Tile], None]) -> None:
        """Runs *body* for the tiles *team*, *team* + *teams*, ..., and *skip* for the others."""
        isa = self.isa
        between = isa.cells(team)  # tiles of other teams that come first

        def pass_over() -> None:
            skip(self._tile())
            self._next()

        def take() -> None:
            body(self._tile())
            self._next()

        def one() -> None:
            for i in range(teams - 1):
                isa.when((between[0] > i) & (self.words[0] != 0), pass_over)
            between[0] = teams - 1
            isa.when(self.words[0] != 0, take)

        self._next()
        isa.loop_while(self.words, one, lambda: self._turns(team, teams))

    def finish(self) -> None:
        """After the last tile."""
        self.queue.finish()

    def _next(self) -> None:
        found = self.queue.take(len(self.dims) + 1, self._fetch, self._without_data)
        for i, word in enumerate(found):
            self.words[i] = word
        self.read[0] = self.read[0] + 1

    def _fetch(self) -> Sequence[Any]:
        """Takes the next tile."""
        number = self._take()
        return self._words_of(number, self.isa.select(number < self.numbers.total, 1, 0))

    def _take(self) -> Any:
        """The next number.

        Each cluster goes on until it gets a number beyond the last tile. The last cluster to do so sets the counter back to 0.
        """
        isa = self.isa
        last, taken = self.numbers.total + isa.clusters - 1, isa.cells(0)

        def take() -> None:
            taken[0] = isa.atomic_add(0, self._number_in_turn)

        isa.lane_0(take)
        number = isa.shuffle(taken[0])
        isa.lane_0(lambda: isa.store_counter(0, 0), when=number == last)
        return number

    def _words_of(self, number: Any, there_is: Any) -> Sequence[Any]:
        return (there_is, *self.numbers.coordinates(number).values())

    def _tile(self) -> Tile:
        return tile_of(self.isa, {dim: self.words[1 + i] for i, dim in enumerate(self.dims)})

    # ---- in the machine, the clusters take turns ------------------------------------------------------------------

    def _number_in_turn(self) -> int:
        """The number that the cluster takes for the next slot."""
        return self.isa.cluster_id + self.read[0] * self.isa.clusters

    def _without_data(self) -> Sequence[int]:
        """What the next slot holds in the check, where clusters take tiles in turn."""
        number = self._number_in_turn()
        return self._words_of(number, int(number < self.numbers.total))

    def _turns(self, team: int, teams: int) -> int:
        """How many tiles are then left for the team."""
        count = -(-(self.numbers.total - self.isa.cluster_id) // self.isa.clusters)
        return max(0, -(-(count - team) // teams))
