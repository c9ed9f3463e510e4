"""ClusterSplitK: a GEMM whose k is shared among the CTAs of a cluster, which add their sums through shared memory.

load (1 warp)       k-tiles of this CTA's part  -> ring of slots
math (warpgroups)   wgmma; then each CTA sends its peers their columns of the sums, adds those that it gets, and stores
"""

from __future__ import annotations

from typing import Any

from tmapipe.cluster_sum import ClusterSum
from tmapipe.errors import InputError
from tmapipe.fields import check_type, is_count
from tmapipe.integers import ceil_div
from tmapipe.kernel import KernelContext
from tmapipe.plan.model import Plan
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.gemm import Gemm
from tmapipe.schedules.mainloop import Cooperative
from tmapipe.schedules.operand import Operand
from tmapipe.tiles.order import TileOrder
from tmapipe.tiles.persistent import PersistentTiles
from tmapipe.tiles.splitk import SplitKTiles

__all__ = ["ClusterSplitK"]


class ClusterSplitK(Gemm):
    """`Gemm` in which the CTAs of a cluster compute one output tile from different parts of k.

    For outputs of very few tiles and long k: there is no workspace and no second kernel. Sums are added in the order of the
    CTAs, so the bits are the same in every run. With ``tiles=SplitKTiles(4)`` each tile is computed by four clusters, whose
    sums end as those of `SplitK`.

    Args:
        parts: How many parts k is divided into: CTAs of a cluster. Each stores n / parts columns of a tile, a multiple of 8
            up to 64.
        tile: (m, n, k) elements of a cluster's output tile and a k-tile; m is 64, 128 or 192.
        along_m: Output tiles of a cluster, below each other, which share what they load of b.
        stages: Slots of a and b; None: as many as fit.
        mainloop: `Cooperative`, whose warpgroups share rows.
        tiles: The order of output tiles, or `SplitKTiles`.
        options: a, b and epilogue, as of `Gemm`.
    """

    load, math = Gemm.load, Gemm.math
    shared = {"a": None, "b": "m"}  # noqa: RUF012 - never changed

    def __init__(
        self,
        parts: int,
        tile: tuple[int, int, int] = (64, 64, 64),
        along_m: int = 1,
        stages: int | None = None,
        *,
        mainloop: Cooperative = Cooperative(),  # noqa: B008 - immutable
        tiles: TileOrder = PersistentTiles(),  # noqa: B008
        **options: Any,
    ):
        if not is_count(parts):
            raise InputError("ClusterSplitK(parts)", parts, "is how many CTAs of a cluster share k", "use 8")
        if not isinstance(mainloop, Cooperative) or mainloop.along != "m":
            rule = "is one whose warpgroups share the rows of a tile"
            raise InputError("mainloop", mainloop, rule, 'use Cooperative(), with along="m"')
        check_type("tiles", tiles, TileOrder, "e.g. PersistentTiles(Snake(8))")
        if tiles.bounded or (tiles.in_parts and not isinstance(tiles, SplitKTiles)):
            raise InputError("tiles", tiles, "is an order of whole tiles, or SplitKTiles", "leave it out")
        self.parts, self.clusters = parts, tiles.parts if isinstance(tiles, SplitKTiles) else 1
        options["mainloop"] = mainloop
        super().__init__(tile, (along_m, parts), stages, tiles=tiles, **options)

    def check_plan(self, plan: Plan) -> None:
        if plan.matmul("mma").b.dtype.integer:
            raise InputError("a", plan.matmul("mma").b.dtype.name, "is of a type whose sums are in fp32", "use SplitK")
        super().check_plan(plan)

    def _declare_products(self, a: Operand, b: Operand, m: int, n: int, k: int) -> None:
        super()._declare_products(a, b, m, n, k)
        mma: Any = vars(self)["mma"]
        self.total = ClusterSum(self.math, mma, "n", self.parts)
        self.sources = (self.total,)

    def tile_slots(self, k: KernelContext, tile: Tile) -> Any:
        """k-tiles of each part, as many in all: the last ones may lie beyond the end, where loads give zeros."""
        return ceil_div(k.steps("a", "k"), self.parts * self.clusters)

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        m, n, width = k.plan.matmul("mma").shape
        steps = self.tile_slots(k, tile)
        part = tile.n % self.parts + (0 if self.clusters == 1 else tile.s % self.clusters * self.parts)
        for step in range(steps):
            with k.ring.produce() as slot:
                for name, starts in (("a", {"m": tile.m * m}), ("b", {"n": tile.n // self.parts * n})):
                    at = {"l": tile.l, "k": (part * steps + step) * width, **starts}
                    getattr(slot, name).load_from(*(at[dim] for dim in getattr(self, name).dims))

    @math.jit
    def multiply(self, k: KernelContext, tile: Tile) -> None:
        k.total.start()
        with k.mma.accumulate(empty=False) as acc:
            for _ in range(self.tile_slots(k, tile)):
                with k.ring.consume() as slot:
                    acc.add(slot.a, slot.b)
        self.store_all(k, tile, (k.total.add(acc),))
