"""GridTiles: as many clusters as tiles, which the hardware starts one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from tmapipe.fields import is_count, must, optional
from tmapipe.plan.arch import SM_RESERVED
from tmapipe.plan.model import Plan
from tmapipe.tiles.persistent import PersistentTiles

__all__ = ["GridTiles"]


@attrs.frozen
class GridTiles(PersistentTiles):
    """Each cluster takes one tile, and the hardware starts clusters in the order of the tiles' numbers as others end.

    Several CTAs share a multiprocessor: one loads while another computes or stores. So rings have few slots (`stages`). For
    kernels that the memory bounds: the tiles in flight lie close together, which keeps few DRAM pages open. What is loaded
    once a CTA is loaded for each tile.

    Args:
        raster: Numbers the tiles, as in `PersistentTiles`.
        ctas: CTAs that share a multiprocessor: no more do, and the compiler is told to spare registers for so many. None: as
            many as shared memory, registers and threads allow.

    Raises:
        InputError: For any other value.
    """

    ctas: int | None = attrs.field(
        default=None, validator=must(optional(is_count), "is a positive number of CTAs", "leave it out")
    )

    def launch_numbers(
        self, tiles: int, resident: int, cluster_size: int, gpcs: Callable[[], Sequence[Sequence[int]]]
    ) -> list[int]:
        """As in `TileOrder`."""
        return [tiles]

    def smem_bytes(self, plan: Plan) -> int:
        """As in `TileOrder`: so many that no more CTAs fit."""
        if self.ctas is None:
            return plan.smem_bytes
        whole = plan.target.smem + SM_RESERVED
        return max(plan.smem_bytes, whole // self.ctas // 128 * 128 - SM_RESERVED)

    def least_ctas(self, plan: Plan) -> int:
        """As in `TileOrder`. Where setmaxnreg divides the registers, the plan has counted on all of them."""
        return 1 if self.ctas is None or plan.registers else self.ctas
