"""GroupedGemm: one matrix b for each group of rows of a, as in a mixture of experts.

load (1 warp)        a's rows of the tile, b of its group, of k-tile 0, 1, 2, ...   -> ring of slots
math (2 warpgroups)  wgmma on the slot; then accumulators -> smem -> TMA store of the rows that belong to the group
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tmapipe.barrier import BarrierRing
from tmapipe.bind.bound import Bound
from tmapipe.dtypes import DType
from tmapipe.matmul import Wgmma
from tmapipe.multicast import MulticastGroup
from tmapipe.protocol.tile import Tile
from tmapipe.role import Role
from tmapipe.schedule import Schedule
from tmapipe.schedules.gemm import check_majors, check_tile, consumers, operand, turned
from tmapipe.store_pipeline import TmaStoreStage
from tmapipe.table import Table
from tmapipe.tiles.grouped import GroupedTiles
from tmapipe.tiles.raster import Grouped

__all__ = ["GroupedGemm"]


class GroupedGemm(Schedule):
    """``d[i, n] = epilogue(sum over k of a[i, k] * b[g, n, k])``, where row i belongs to group g: it is before ``offsets[g]``,
    and not before ``offsets[g - 1]``.

    a [m, k] and d [m, n] hold the rows of all groups, one group after another; b [l, n, k] a matrix for each group; offsets
    [l], int32, where each group's rows end, ascending, on the same device: nothing waits for their values. Groups may be
    empty, and rows from the last offset on are left as they are. Types, majors, promote, tf32 and epilogue (of the sums
    alone) as in `Gemm`::

        d = GroupedGemm()(tokens, weights, offsets)

    tile, cluster, stages, store_stages: as in `Gemm`; a group's rows are padded to whole tiles of a cluster, so clusters along
    m only pay for large groups; raster: of the order of tiles.
    """

    load = Role(warps=1)
    math = Role(warpgroups=2)

    def __init__(
        self,
        tile: tuple[int, int, int] = (128, 256, 64),
        cluster: tuple[int, int] = (1, 2),
        stages: int | None = None,
        *,
        store_stages: int = 2,
        raster: Grouped = Grouped(8),  # noqa: B008 - immutable
        majors: tuple[str, str] = ("k", "k"),
        dtype: DType | str | None = None,
        promote: bool = False,
        tf32: bool = False,
        epilogue: Callable[[Any], Any] | None = None,
    ):
        m, n, k = check_tile(tile)
        self.cluster = {"m": cluster[0], "n": cluster[1]}
        self.tiles: GroupedTiles = GroupedTiles(raster, rows=m, table="offsets")
        self.math = consumers(self.math, m)
        self.ring = BarrierRing(stages, producer=self.load, consumer=self.math)
        along_a, along_b = check_majors(majors)
        common: dict[str, Any] = {"ring": self.ring, "dtype": "tf32" if tf32 else None}
        self.a = operand("m", m, k, along_a, batch="", multicast=MulticastGroup("n"), **common)
        self.b = operand("n", n, k, along_b, multicast=MulticastGroup("m"), **common)
        self.turned = turned(a=along_a, b=along_b)
        self.offsets = Table("l")
        self.mma = Wgmma(self.a, self.b, promote=promote)
        self.d = TmaStoreStage("m n", source=self.mma, stages=store_stages, dtype=dtype, clipped=True)
        self.epilogue = epilogue

    def grid(self, extent: Callable[[str, int], Any]) -> dict[str, Any]:
        """Numbers of tiles by dimension; some stand for no tile."""
        rows, groups = extent("d", 0), extent("offsets", 0)
        return {**super().grid(extent), "m": self.tiles.spread(rows, groups, self.cluster)}

    def empty_value(self, bound: Bound) -> Any:
        """The epilogue of an empty sum."""
        return 0.0 if self.epilogue is None else self.epilogue(np.zeros(bound.shapes["d"], np.float32))

    @load.jit
    def fill(self, k: Any, tile: Tile) -> None:
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                start = {"m": tile.row, "k": step * self.mma.shape[2]}
                slot.a.load_from(*(start[dim] for dim in self.a.dims))
                slot.b.load(tile, k=step)

    @math.jit
    def multiply(self, k: Any, tile: Tile) -> None:
        with k.mma.accumulate(empty=False) as acc:
            for _ in range(k.steps("a", "k")):
                with k.ring.consume() as slot:
                    acc.add(slot.a, slot.b)
        k.d.store(tile, acc, self.epilogue)
