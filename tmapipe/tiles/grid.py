"""GridTiles: a cluster for each tile, or for a few, which the hardware starts one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from tmapipe.fields import is_count, must, optional
from tmapipe.integers import ceil_div
from tmapipe.isa.interface import Isa
from tmapipe.plan.arch import SM_RESERVED
from tmapipe.plan.model import Plan, RoleWarps
from tmapipe.protocol.tile import Tile
from tmapipe.tiles.order import TilesOfRole
from tmapipe.tiles.persistent import NumberedTiles, PersistentTiles

__all__ = ["GridTiles"]


@attrs.frozen
class GridTiles(PersistentTiles):
    """Each cluster takes one tile or a few, and the hardware starts clusters in the order of the tiles' numbers as others end.

    Several CTAs share a multiprocessor: one loads while another computes or stores. So rings have few slots (`stages`). For
    kernels that the memory bounds: the tiles in flight lie close together, which keeps few DRAM pages open. What is loaded
    once a CTA is loaded for each cluster's tiles.

    Args:
        raster: Numbers the tiles, as in `PersistentTiles`.
        ctas: CTAs that share a multiprocessor: no more do, and the compiler is told to spare registers for so many. None: as
            many as shared memory, registers and threads allow.
        each: Tiles next to each other that a cluster takes, one after another: with as many slots, a tile is loaded while one
            before it is computed, and what is loaded once a CTA serves them all.

    Raises:
        InputError: For any other value.
    """

    ctas: int | None = attrs.field(
        default=None, validator=must(optional(is_count), "is a positive number of CTAs", "leave it out")
    )

    each: int = attrs.field(default=1, validator=must(is_count, "is a positive number of tiles", "leave it out"))

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """As in `TileOrder`."""
        if not isa.all_clusters and self.each == 1:
            return super().bind(isa, grid, role)
        return (_Span if isa.all_clusters else _Spans)(isa, self, grid).at(isa.cluster_id)

    def launch_numbers(
        self, tiles: int, resident: int, cluster_size: int, gpcs: Callable[[], Sequence[Sequence[int]]]
    ) -> list[int]:
        """As in `TileOrder`."""
        return [ceil_div(tiles, self.each)]

    def smem_bytes(self, plan: Plan) -> int:
        """As in `TileOrder`: so many that no more CTAs fit."""
        if self.ctas is None:
            return plan.smem_bytes
        whole = plan.target.smem + SM_RESERVED
        return max(plan.smem_bytes, whole // self.ctas // 128 * 128 - SM_RESERVED)

    def least_ctas(self, plan: Plan) -> int:
        """As in `TileOrder`. Where setmaxnreg divides the registers, the plan has counted on all of them."""
        return 1 if self.ctas is None or plan.registers else self.ctas


class _Spans(NumberedTiles):
    """The tiles of a cluster of an order with `each` > 1: spans of so many, of which the last may have fewer."""

    order: GridTiles

    def _count(self) -> Any:
        isa, each, total = self.isa, self.order.each, self.numbers.total
        spans = ceil_div(total, each)
        mine = (spans - self.position + isa.clusters - 1) // self.numbers.by["clusters"]
        last = self.position + (mine - 1) * isa.clusters == spans - 1
        return mine * each - isa.select(last, spans * each - total, 0)

    def number(self, i: Any) -> Any:
        span = self.position + i // self.order.each * self.isa.clusters
        return span * self.order.each + i % self.order.each


class _Span(NumberedTiles):
    """The tiles of a cluster where there is one for each span. A single tile takes no loop, so a CTA loads it early."""

    order: GridTiles

    def _count(self) -> Any:
        each, left = self.order.each, self.numbers.total - self.number(0)
        return 1 if each == 1 else self.isa.select(left < each, left, each)

    def number(self, i: Any) -> Any:
        return self.position * self.order.each + i

    def each(self, body: Callable[[Tile], None]) -> None:
        if self.order.each == 1:
            body(Tile(dict(zip(self.dims, self.first, strict=True))))
        else:
            super().each(body)
