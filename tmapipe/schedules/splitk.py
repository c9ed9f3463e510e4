"""SplitK: a GEMM whose k is shared among CTAs, for outputs of few tiles and long k."""

from __future__ import annotations

from typing import Any

from tmapipe.schedules.gemm import Gemm
from tmapipe.tiles.order import TileOrder
from tmapipe.tiles.persistent import PersistentTiles
from tmapipe.tiles.splitk import SplitKTiles

__all__ = ["SplitK"]


class SplitK(Gemm):
    """`Gemm` with ``tiles=SplitKTiles(parts, tiles, reduce=reduce)``: of two matrices, or, where the epilogue has no operands
    and parts are not added to d, of batches of these.

    Args:
        parts: How many parts k is divided into.
        tile: (m, n, k) elements of a CTA.
        cluster: CTAs along (m, n).
        stages: Slots of a and b; None: as many as fit.
        tiles: The order in which the tiles of all parts are taken.
        reduce: None: a second kernel adds the parts in a fixed order, and applies the epilogue. "add": the TMA engine adds
            them to d, fp32 by default, as they arrive.
        options: a, b and epilogue, as of `Gemm`.
    """

    def __init__(
        self,
        parts: int,
        tile: tuple[int, int, int] = (128, 128, 64),
        cluster: tuple[int, int] = (2, 1),
        stages: int | None = None,
        *,
        tiles: TileOrder = PersistentTiles(),  # noqa: B008 - immutable
        reduce: str | None = None,
        **options: Any,
    ):
        super().__init__(tile, cluster, stages, tiles=SplitKTiles(parts, tiles, reduce=reduce), **options)
