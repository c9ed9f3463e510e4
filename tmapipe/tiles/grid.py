"""GridTiles: a cluster for each tile, or for a few, which the hardware starts one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.fields import is_count, must, optional
from tmapipe.integers import ceil_div
from tmapipe.isa.interface import Isa
from tmapipe.plan.arch import SM_RESERVED, arch_named
from tmapipe.plan.model import Plan, RoleWarps
from tmapipe.protocol.tile import Tile
from tmapipe.tiles.order import TilesOfRole
from tmapipe.tiles.persistent import NumberedTiles, PersistentTiles

__all__ = ["GridTiles"]

MOST_CTAS, MOST_THREADS = 32, 2048  # of a multiprocessor (CUDA programming guide, sm_80 and sm_90)


@attrs.frozen
class GridTiles(PersistentTiles):
    """Each cluster takes one tile or a few, and the hardware starts clusters in the order of the tiles' numbers as others end.

    Several CTAs share a multiprocessor: one loads while another computes or stores. So rings have few slots (`stages`). For
    kernels that the memory bounds: the tiles in flight lie close together, which keeps few DRAM pages open. What is loaded
    once a CTA is loaded for each cluster's tiles.

    Args:
        raster: Numbers the tiles, as in `PersistentTiles`.
        ctas: CTAs that share a multiprocessor: no more do, shared memory and threads must be enough for so many, and the
            compiler is told to spare registers for them. None: as many as shared memory, registers and threads allow. Not of
            kernels with wgmma or `Role(registers=)`, whose CTA has all registers.
        each: Tiles next to each other that a cluster takes, one after another: with as many slots, a tile is loaded while one
            before it is computed, and what is loaded once a CTA serves them all.

    Raises:
        InputError: For any other value.
    """

    ctas: int | None = attrs.field(
        default=None, validator=must(optional(is_count), "is a positive number of CTAs", "leave it out")
    )

    each: int = attrs.field(
        default=1,
        validator=must(lambda n: is_count(n) and n < 2**31, "is a positive number of tiles below 2^31", "leave it out"),
    )

    def bind(self, isa: Isa, grid: dict[str, Any], role: RoleWarps) -> TilesOfRole:
        """As in `TileOrder`."""
        return _Span(isa, self, grid).at(isa.cluster_id)

    def spans(self, tiles: int) -> int:
        """As in `TileOrder`."""
        return ceil_div(tiles, self.each)

    def launch_numbers(
        self, tiles: int, resident: int, cluster_size: int, gpcs: Callable[[], Sequence[Sequence[int]]]
    ) -> list[int]:
        """As in `TileOrder`."""
        return [self.spans(tiles)]

    def room(self, arch: str) -> int | None:
        """As in `TileOrder`: a share of a multiprocessor's."""
        if self.ctas is None:
            return None
        return (arch_named(arch).smem + SM_RESERVED) // self.ctas // 128 * 128 - SM_RESERVED

    def check_plan(self, plan: Plan) -> None:
        """As in `TileOrder`: so many CTAs find room."""
        room = self.room(plan.arch)
        if self.ctas is None or self.ctas == 1 or room is None:
            return
        if plan.registers:
            rule = "does not go with setmaxnreg, which gives all registers of a multiprocessor to one CTA"
            raise InputError("GridTiles(ctas)", self.ctas, rule, "leave it out")
        if self.ctas > MOST_CTAS or self.ctas * plan.threads > MOST_THREADS:
            rule = (
                f"are CTAs of {plan.threads} threads; a multiprocessor has {MOST_THREADS} threads and {MOST_CTAS} CTAs"
            )
            raise InputError("GridTiles(ctas)", self.ctas, rule, f"use {min(MOST_CTAS, MOST_THREADS // plan.threads)}")
        if plan.smem_bytes > room:
            most = (plan.target.smem + SM_RESERVED) // (plan.smem_bytes + SM_RESERVED)
            rule = f"are CTAs of {plan.smem_bytes} bytes of shared memory, of which so many have {max(room, 0)} each"
            raise InputError("GridTiles(ctas)", self.ctas, rule, f"use {most}, fewer stages or a smaller tile")

    def smem_bytes(self, plan: Plan) -> int:
        """As in `TileOrder`: so many that no more CTAs fit."""
        room = self.room(plan.arch)
        return plan.smem_bytes if room is None else max(plan.smem_bytes, room)

    def least_ctas(self, plan: Plan) -> int:
        """As in `TileOrder`."""
        return self.ctas or 1


class _Span(NumberedTiles):
    """The tiles of a cluster, of which there is one for each span. A single tile takes no loop, so a CTA loads it early."""

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
