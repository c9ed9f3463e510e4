"""GpcTiles: a static order in which clusters of one GPC take neighbouring tiles.

The multiprocessors of a GPU lie in GPCs (eight of 16 or 18 on an H200), each with a path of its own to L2. Reads of the same
lines by multiprocessors of one GPC, at about the same time, reach L2 as one. So the clusters of a GPC should work on tiles
that share operands. But the hardware distributes clusters over the GPCs in turn, starting anywhere. Here each cluster first
claims a position, among those kept for the GPC that it runs on:

    positions   0 1 2 3 4 5 6 7 | 8 9 10 11 12 13 14 15 | 16 ...
    GPC         0                 1                       2

Position p of C takes the tiles p, p + C, p + 2C, ... If the GPC of a cluster has no position left, it takes one of another
GPC. So each position goes to exactly one cluster, wherever the clusters lie. On an H200, 8192 x 8192 x 8192 takes 2.3 % less
time, and a split-K whose parts each lie in one GPC 9 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Value
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.tile import Tile
from tmapipe.tiles.gpc_positions import COUNTERS, GPC_WORDS, MOST_CLUSTERS, MOST_GPCS, WORDS, keep_positions
from tmapipe.tiles.order import TilesOfRole
from tmapipe.tiles.persistent import NumberedTiles, PersistentTiles
from tmapipe.tiles.queue import QueueEnd

__all__ = ["GpcTiles"]


@attrs.frozen
class GpcTiles(PersistentTiles):
    """Static persistent order as `PersistentTiles`, in which clusters of one GPC take tiles with consecutive numbers.

    Use it with clusters along n, (1, 2): a is then multicast, and with ``Grouped(8)`` the eight clusters of a GPC load the
    same columns of b. It costs an atomic operation before the first load (some 0.7 us) and one more warp per CTA. The results
    are bit for bit those of any other order.

    Args:
        raster: Numbers the tiles, as in `PersistentTiles`.
    """

    launch_words = WORDS

    def queue(self, dims: int) -> tuple[int, int]:
        """As in `TileOrder`. The word: the position."""
        return 1, 1

    def launch_numbers(
        self, tiles: int, resident: int, cluster_size: int, gpcs: Callable[[], Sequence[Sequence[int]]]
    ) -> list[int]:
        """As in `TileOrder`."""
        return keep_positions(gpcs(), cluster_size, resident, tiles)

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """As in `TileOrder`."""
        return TilesOfPosition(isa, self, grid, role)


class TilesOfPosition(NumberedTiles):
    """The calling CTA's tiles, which are known once its cluster has claimed a position."""

    early = False

    def __init__(self, isa: Isa, order: GpcTiles, grid: dict[str, Any], role: RoleWarps):
        super().__init__(isa, order, grid)
        self.queue = QueueEnd(isa, role)
        self.claimed = isa.cells(0)

    def begin(self) -> None:
        """The scheduler claims a position."""
        self.queue.once_a_cluster(self._claim)

    def each(self, body: Callable[[Tile], None]) -> None:
        """Runs *body* once per tile. The scheduler has none."""
        self._find_position()
        if not self.queue.leads:
            super().each(body)

    def each_in_turn(self, team: Any, teams: int, body: Callable[[Tile], None], skip: Callable[[Tile], None]) -> None:
        """As in `TilesOfRole`."""
        self._find_position()
        super().each_in_turn(team, teams, body, skip)

    def finish(self) -> None:
        """As in `TilesOfRole`."""
        self.queue.finish()
        self.queue.once_a_cluster(lambda: _count_claim(self.isa))

    def _claim(self) -> None:
        self.claimed[0] = _claim_position(self.isa)

    def _find_position(self) -> None:
        (position,) = self.queue.take(1, lambda: (self.claimed[0],), lambda: (self.isa.cluster_id,))
        self.at(position)


def _claim_position(isa: Isa) -> Value:
    """A position from 0 to clusters - 1 that no other cluster gets. Once per cluster."""
    kept = isa.launch_words(_of_one_gpc)
    going, gpc, position = range(3)
    found = isa.cells(0, 0, 0)

    def try_one() -> None:
        first, end = (_field(isa, kept[GPC_WORDS:], found[gpc] + i, 8) for i in range(2))
        found[position] = first + isa.atomic_add(found[gpc], lambda: isa.cluster_id)
        found[going] = isa.select(found[position] < end, 0, 1)
        found[gpc] = isa.select(end >= isa.clusters, 0, found[gpc] + 1)

    def claim() -> None:
        found[going] = 1
        found[gpc] = _field(isa, kept[:GPC_WORDS], isa.smid() // 2, 4)
        isa.loop_while(found, try_one)

    isa.lane_0(claim)
    return isa.shuffle(found[position])


def _count_claim(isa: Isa) -> None:
    """Counts a cluster that has claimed a position. The last one sets all counters back to 0 for the next launch."""

    def count() -> None:
        before = isa.atomic_add(MOST_GPCS, lambda: isa.cluster_id)
        isa.when(before == isa.clusters - 1, reset)

    def reset() -> None:
        for i in range(COUNTERS):
            isa.store_counter(i, 0)

    isa.lane_0(count)


def _field(isa: Isa, words: Sequence[Value], i: Value, bits: int) -> Value:
    """Field *i* of packed fields of *bits* bits each."""
    a_word = 32 // bits
    word = words[0]
    for n in range(1, len(words)):
        word = isa.select(i // a_word == n, words[n], word)
    return (word >> (i % a_word * bits)) & ((1 << bits) - 1)


def _of_one_gpc(clusters: int) -> Sequence[int]:
    """The words with which all multiprocessors count as one GPC."""
    if clusters > MOST_CLUSTERS:
        raise InputError("clusters", clusters, f"is at most {MOST_CLUSTERS} with GpcTiles", "run fewer")
    return keep_positions((), 1, clusters, clusters)[1:]
