"""DynamicTiles: whichever cluster is free takes the next tile.

A warp of its own in every CTA, the scheduler, runs ahead of the others:

    scheduler of CTA 0   next number from a counter in global memory -> the tile's place -> a slot of every CTA of the cluster
    every warp           waits for the slot, reads the place, releases the slot, takes the tile, ... until there is none

The words travel by st.async, which completes their bytes on the mbarrier of the CTA where they land.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.isa import Carried, Isa, SlotRef
from tmapipe.plan import RoleWarps
from tmapipe.raster import Grouped
from tmapipe.tiles import PersistentTiles, Tile, TileNumbers, number_divisors, steps_of, tile_of

__all__ = ["SCHEDULER", "DynamicTiles"]

SCHEDULER = "scheduler"  #: name of the role that fetches tiles


@attrs.frozen
class DynamicTiles(PersistentTiles):
    """Dynamic order: each cluster takes the next tile when it is ready for one, so that clusters that are held up take fewer.

    raster: as in `PersistentTiles`; stages: slots for tiles that have been fetched ahead (two or more hide the fetch). The
    kernel has one warp more in each CTA; results are those of any other order, bit by bit.
    """

    raster: Grouped = attrs.field(factory=Grouped)
    stages: int = attrs.field(default=2)

    @stages.validator
    def _check_stages(self, attribute: Any, value: Any) -> None:
        if not isinstance(value, int) or value < 1:
            raise InputError("DynamicTiles(stages)", value, "is a positive number of tiles", "use 2")

    def divisors(self, grid: dict[str, Any], cluster: dict[str, int], clusters: Any) -> dict[str, Any]:
        """What the scheduler divides by; *grid* in tiles, none of them 0. On the host, or in the kernel."""
        return number_divisors(self.raster, steps_of(grid, cluster))

    def bind(self, isa: Isa, grid: dict[str, Any]) -> Any:
        """This order on the calling CTA, for a grid of *grid* tiles a dimension."""
        return BoundDynamicTiles(isa, self, grid)


class BoundDynamicTiles(Carried):
    """A grid whose tiles are fetched one by one; `of` gives them to a role."""

    def __init__(self, isa: Isa, order: DynamicTiles, grid: dict[str, Any]):
        self.isa, self.dims = isa, tuple(grid)
        by = isa.divisors(order.divisors(grid, isa.plan.cluster, isa.clusters))
        self.numbers = TileNumbers(isa, order.raster, grid, by)

    def of(self, role: RoleWarps) -> TilesOfRole:
        """The tiles as *role* takes them."""
        return TilesOfRole(self, role)


class TilesOfRole(Carried):
    """The tiles of the calling warp's cluster, as they come. State, in registers: the place in the queue and its parity; how
    many slots were read; the words of the last one, the first of which tells whether there was a tile."""

    def __init__(self, tiles: BoundDynamicTiles, role: RoleWarps):
        isa = tiles.isa
        assert isa.plan.queue is not None
        self.isa, self.queue, self.numbers, self.dims = isa, isa.plan.queue, tiles.numbers, tiles.dims
        self.fetches = role.name == SCHEDULER
        self.place = isa.cells(0, 0)
        self.read = isa.cells(0)
        self.words = isa.cells(*[0] * (1 + len(self.dims)))

    def each(self, body: Callable[[Tile], None]) -> None:
        """Runs *body* once a tile."""
        self._next()

        def one() -> None:
            body(self._tile())
            self._next()

        self.isa.loop_while(self.words, one, lambda: self._turns(0, 1))

    def each_in_turn(self, team: Any, teams: int, body: Callable[[Tile], None], skip: Callable[[Tile], None]) -> None:
        """Runs *body* for the tiles *team*, *team* + *teams*, ..., and *skip* for those between."""
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
        """The scheduler waits for the cluster's last release of every slot, so that its CTA does not leave before them."""
        if self.fetches and self.isa.plan.cluster_size > 1:
            for _ in range(self.queue.buffer.stages):
                self.isa.mbarrier_wait(self.queue.free, self.place[0], self.place[1] ^ 1)
                self._advance()

    # ---- the queue ------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Reads the next slot of the queue; the scheduler first sees to it that something comes."""
        isa, queue, index, parity = self.isa, self.queue, self.place[0], self.place[1]
        if self.fetches:
            isa.mbarrier_wait(queue.free, index, parity ^ 1)
            isa.mbarrier_arrive_expect_tx(queue.full, index, queue.buffer.slot_bytes)
            if isa.plan.cluster_size > 1:
                isa.when(isa.cta_rank == 0, lambda: self._fetch(index))
            else:
                self._fetch(index)
        isa.mbarrier_wait(queue.full, index, parity)
        found = isa.read_words(SlotRef(queue.buffer, index), len(self.dims) + 1, self._without_data)
        for i, word in enumerate(found):
            self.words[i] = word
        self.read[0] = self.read[0] + 1
        isa.fence_proxy_async()
        isa.warp_sync()
        if isa.plan.cluster_size > 1:
            isa.mbarrier_arrive_cluster(queue.free, index, (1 << isa.plan.cluster_size) - 1)
        else:
            isa.mbarrier_arrive(queue.free, index)
        self._advance()

    def _fetch(self, index: Any) -> None:
        """Takes the next tile's number, and tells every CTA of the cluster. Each cluster goes on until it gets a number beyond
        the last tile; the last one to do so leaves the counter at 0."""
        isa = self.isa
        number = isa.next_number(self.numbers.total + isa.clusters - 1)
        there_is = isa.select(number < self.numbers.total, 1, 0)
        words = (there_is, *self.numbers.places(number).values())
        isa.store_words(SlotRef(self.queue.buffer, index), words, self.queue.full)

    def _advance(self) -> None:
        following = self.place[0] + 1
        wrapped = following == self.queue.buffer.stages
        self.place[1] = self.isa.select(wrapped, self.place[1] ^ 1, self.place[1])
        self.place[0] = self.isa.select(wrapped, 0, following)

    def _tile(self) -> Tile:
        return tile_of(self.isa, {dim: self.words[1 + i] for i, dim in enumerate(self.dims)})

    # ---- the model without data -----------------------------------------------------------------------------------

    def _without_data(self) -> Sequence[int]:
        """What the next slot holds if the clusters take turns."""
        number = self.isa.cluster_id + self.read[0] * self.isa.clusters
        return int(number < self.numbers.total), *self.numbers.places(number).values()

    def _turns(self, team: int, teams: int) -> int:
        """How many tiles are left to the team then."""
        count = -(-(self.numbers.total - self.isa.cluster_id) // self.isa.clusters)
        return max(0, -(-(count - team) // teams))
