"""StreamK: a GEMM in which every CTA does the same number of k-tiles, whatever the number of output tiles."""

from __future__ import annotations

from typing import Any

from tmapipe.schedules.gemm import Gemm
from tmapipe.tiles.raster import Grouped
from tmapipe.tiles.streamk import StreamKTiles

__all__ = ["StreamK"]


class StreamK(Gemm):
    """`Gemm` of two matrices, with ``tiles=StreamKTiles(raster, shares=shares, reduce=reduce)``.

    For outputs of few tiles, since the workspace has an fp32 matrix for each piece of a tile.

    Args:
        shares: How many shares all k-tiles are divided into: the CTAs that work at once, divided by those of a cluster.
        tile: (m, n, k) elements of a CTA.
        cluster: CTAs along (m, n).
        stages: Slots of a and b; None: as many as fit.
        raster: Numbers the output tiles.
        reduce: As of `SplitK`.
        options: a, b and epilogue, as of `Gemm`.
    """

    def __init__(
        self,
        shares: int,
        tile: tuple[int, int, int] = (128, 256, 64),
        cluster: tuple[int, int] = (2, 1),
        stages: int | None = None,
        *,
        raster: Grouped = Grouped(),  # noqa: B008 - immutable
        reduce: str | None = None,
        **options: Any,
    ):
        super().__init__(tile, cluster, stages, tiles=StreamKTiles(raster, shares=shares, reduce=reduce), **options)
