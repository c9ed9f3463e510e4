"""GroupedGemm: one matrix b for each group of rows of a, as in a mixture of experts."""

from __future__ import annotations

from typing import Any

from tmapipe.schedules.gemm import Gemm
from tmapipe.tiles.grouped import GroupedTiles
from tmapipe.tiles.raster import Grouped

__all__ = ["GroupedGemm"]


class GroupedGemm(Gemm):
    """``d[i, n] = epilogue(sum over k of a[i, k] * b[g, n, k])``: `Gemm` with ``tiles=GroupedTiles(raster)``.

    Row i belongs to group g if it is before ``offsets[g]`` and not before ``offsets[g - 1]``. a [m, k] and d [m, n] hold the
    rows of all groups, one group after another. b [l, n, k] has a matrix for each group. offsets [l], int32, says where the
    rows of each group end, ascending, on the same device; nothing waits for its values. Groups may be empty. Rows from the
    last offset on are left as they are. Matrices of the epilogue are [m, n], as d is::

        d = GroupedGemm()(tokens, weights, offsets)

    Args:
        tile: (m, n, k) elements of a CTA.
        cluster: CTAs along (m, n). The rows of a group are padded to whole tiles of a cluster, so clusters along m only pay
            for large groups.
        stages: Slots of a and b; None: as many as fit.
        raster: Numbers the output tiles.
        options: a, b, mainloop and epilogue, as of `Gemm`; no sums of rows or columns.
    """

    def __init__(
        self,
        tile: tuple[int, int, int] = (128, 256, 64),
        cluster: tuple[int, int] = (1, 2),
        stages: int | None = None,
        *,
        raster: Grouped = Grouped(8),  # noqa: B008 - immutable
        **options: Any,
    ):
        super().__init__(tile, cluster, stages, tiles=GroupedTiles(raster), **options)
