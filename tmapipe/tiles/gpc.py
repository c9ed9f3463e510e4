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

from tmapipe.isa.interface import Isa
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.tile import Tile
from tmapipe.tiles.claims import claim_position, count_claim
from tmapipe.tiles.gpc_positions import WORDS, keep_positions
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
        self.queue.once_a_cluster(lambda: count_claim(self.isa))

    def _claim(self) -> None:
        self.claimed[0] = claim_position(self.isa)

    def _find_position(self) -> None:
        (position,) = self.queue.take(1, lambda: (self.claimed[0],), lambda: (self.isa.cluster_id,))
        self.at(position)
