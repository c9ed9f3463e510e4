"""StreamK: a GEMM in which every CTA does the same number of k-tiles, whatever the number of output tiles.

Piece s of each output tile goes to matrix s of a workspace, and `AddParts` adds them in a fixed order, as in `SplitK`; or the
TMA engine adds all pieces to the output as they come.
"""

from __future__ import annotations

import math
from typing import Any

from tmapipe.bind.tensors import new_like
from tmapipe.dtypes import fp32
from tmapipe.integers import ceil_div
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.splitk import SplitK
from tmapipe.tiles.raster import Grouped
from tmapipe.tiles.streamk import StreamKTiles

__all__ = ["StreamK"]


class StreamK(SplitK):
    """`Gemm` of two matrices, all of whose k-tiles are cut into `shares` (see `StreamKTiles`): the CTAs that work at once,
    divided by those of a cluster, e.g. 66 for clusters of two on 132 multiprocessors. For outputs of few tiles: the workspace
    has an fp32 matrix for each piece. reduce as in `SplitK`, the other arguments as in `Gemm`."""

    load, math = Gemm.load, Gemm.math

    def __init__(
        self,
        shares: int,
        tile: tuple[int, int, int] = (128, 256, 64),
        cluster: tuple[int, int] = (2, 1),
        stages: int | None = None,
        *,
        store_stages: int = 2,
        raster: Grouped = Grouped(),  # noqa: B008 - immutable
        majors: tuple[str, str] = ("k", "k"),
        l2_hints: tuple[str | None, str | None] = (None, None),
        reduce: str | None = None,
        tf32: bool = False,
    ):
        self.order = StreamKTiles(raster, shares=shares)
        options: dict[str, Any] = {
            "store_stages": store_stages,
            "order": self.order,
            "majors": majors,
            "l2_hints": l2_hints,
        }
        super().__init__(shares, tile, cluster, stages, reduce=reduce, tf32=tf32, **options)

    def workspace(self, a: Any, shape: tuple[int, ...]) -> Any:
        """A new matrix for each piece that a tile may have. Those that only some tiles have are set to zero."""
        m, n, k = self.mma.shape
        extents = ((shape[0], m * self.cluster["m"]), (shape[1], n * self.cluster["n"]))
        least, most = self.order.pieces(math.prod(ceil_div(e, t) for e, t in extents), ceil_div(a.shape[1], k))
        made = new_like(a, (most, *shape), fp32)
        made[least:] = 0
        return made

    def tile_slots(self, k: Any, tile: Tile) -> Any:
        return tile.steps

    def first_slot(self, k: Any, tile: Tile) -> Any:
        return tile.first
