"""DynamicTiles: a free cluster takes the next tile.

Each CTA has one more warp, the scheduler, which runs ahead of the others. It takes the next number from a counter in global
memory and tells the other warps where that tile lies, until there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tmapipe.fields import is_count, must
from tmapipe.isa.interface import Isa
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.tile import Tile
from tmapipe.tiles.order import TilesOfRole
from tmapipe.tiles.persistent import PersistentTiles, TileNumbers, number_divisors, steps_of, tile_of
from tmapipe.tiles.queue import QueueEnd

__all__ = ["DynamicTiles"]


@attrs.frozen
class DynamicTiles(PersistentTiles):
    """Dynamic order: each cluster takes the next tile when it is ready, so that a cluster that is held up takes fewer.

    The results are bit for bit those of any other order.

    Args:
        raster: Numbers the tiles, as in `PersistentTiles`.
        stages: Tiles fetched ahead; two or more hide the fetch.

    Raises:
        InputError: *stages* is no positive integer.
    """

    stages: int = attrs.field(default=2, validator=must(is_count, "is a positive number of tiles", "use 2"))

    def queue(self, dims: int) -> tuple[int, int]:
        """As in `TileOrder`. The words: whether there is a tile, and its coordinates."""
        return self.stages, 1 + dims

    def divisors(self, grid: dict[str, Any], cluster: Mapping[str, int], clusters: Any) -> dict[str, Any]:
        """As in `TileOrder`."""
        return number_divisors(self.raster, steps_of(grid, cluster))

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """As in `TileOrder`."""
        return FetchedTiles(isa, self, grid, role, tuple(grid))


class FetchedTiles(TilesOfRole):
    """Tiles that the scheduler fetches one by one. dims: what its words say besides whether there is a tile.

    State, in registers: how many slots were read, and the words of the last one. The first word says whether there was a tile.
    """

    def __init__(self, isa: Isa, order: PersistentTiles, grid: dict[str, Any], role: RoleWarps, dims: tuple[str, ...]):
        self.isa, self.order, self.dims = isa, order, dims
        self.numbers = TileNumbers(isa, order, order.raster, grid)
        self.queue = QueueEnd(isa, role)
        self.read = isa.cells(0)
        self.words = isa.cells(*[0] * (1 + len(dims)))

    def each(self, body: Callable[[Tile], None]) -> None:
        """As in `TilesOfRole`."""
        self._next()

        def one() -> None:
            body(self._tile())
            self._next()

        self.isa.loop_while(self.words, one, lambda: self._turns(0, 1))

    def each_in_turn(self, team: Any, teams: int, body: Callable[[Tile], None], skip: Callable[[Tile], None]) -> None:
        """As in `TilesOfRole`."""
        isa = self.isa

        def pass_over() -> None:
            skip(self._tile())
            self._next()

        def one() -> None:
            body(self._tile())
            self._next()
            for _ in range(teams - 1):
                isa.when(self.words[0] != 0, pass_over)

        self._next()
        for i in range(teams - 1):
            isa.when((team > i) & (self.words[0] != 0), pass_over)
        isa.loop_while(self.words, one, lambda: self._turns(team, teams))

    def finish(self) -> None:
        """As in `TilesOfRole`."""
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
        return self._words_of(number, self.isa.select(number < self.numbers.total, 1, 0))

    def _turns(self, team: int, teams: int) -> int:
        """How many tiles are then left for the team."""
        count = -(-(self.numbers.total - self.isa.cluster_id) // self.isa.clusters)
        turns = -(-(count - team) // teams)
        return self.isa.select(turns > 0, turns, 0)
