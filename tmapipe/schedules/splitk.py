"""SplitK: a GEMM whose k is shared among CTAs, for outputs of few tiles and long k.

By default part s of the k-tiles gives partial sums, stored in fp32 as matrix s of a workspace [s, m, n], which are then added
in a fixed order: results are bit-identical from run to run. The second kernel starts under the end of the first one, and
waits for it with griddepcontrol.wait. With ``reduce="add"`` the TMA engine adds all parts to the output as they come: one
kernel, no workspace, and last bits that differ from run to run.
"""

from __future__ import annotations

from typing import Any

from tmapipe.bind.memory import check_kind
from tmapipe.bind.tensors import new_like
from tmapipe.dtypes import dtype_of, fp32
from tmapipe.errors import InputError
from tmapipe.integers import ceil_div
from tmapipe.protocol.tile import Tile, within
from tmapipe.schedules.addparts import AddParts
from tmapipe.schedules.gemm import Gemm
from tmapipe.store_pipeline import TmaStoreStage
from tmapipe.tiles.persistent import PersistentTiles

__all__ = ["SplitK"]


class SplitK(Gemm):
    """`Gemm` of two matrices, with k in `parts` parts. reduce: None (a second kernel adds the parts in a fixed order) or "add"
    (the TMA engine adds them to d, fp32 by default; each addition rounds to d's type). The other arguments as there; with
    order ``GpcTiles()``, the CTAs of a part of up to eight clusters lie together."""

    load, math = Gemm.load, Gemm.math
    empty_tiles = True  # the last part's, where the k-tiles do not fill all parts

    def __init__(
        self,
        parts: int,
        tile: tuple[int, int, int] = (128, 128, 64),
        cluster: tuple[int, int] = (2, 1),
        stages: int | None = None,
        *,
        store_stages: int = 2,
        order: PersistentTiles = PersistentTiles(),  # noqa: B008 - immutable
        majors: tuple[str, str] = ("k", "k"),
        l2_hints: tuple[str | None, str | None] = (None, None),
        reduce: str | None = None,
        tf32: bool = False,
    ):
        if not isinstance(parts, int) or parts < 1:
            raise InputError("SplitK(parts)", parts, "is a positive number of parts", "use 4")
        super().__init__(tile, cluster, stages, order=order, majors=majors, l2_hints=l2_hints, tf32=tf32)
        self.parts, self.reduce, self.add_parts = parts, reduce, AddParts()
        self.d = TmaStoreStage(
            "s m n",
            source=self.mma,
            stages=store_stages,
            dtype=None if reduce else fp32,
            reduce=reduce,
            folded={"s": parts} if reduce else None,
        )

    def __call__(self, a: Any, b: Any, d: Any = None, *, out: Any = None) -> Any:  # type: ignore[override]
        """Writes the product to *d* (or `out`, or a new matrix: of a's type, or fp32 with ``reduce="add"``) and returns it."""
        check_kind("a", a)
        check_kind("b", b)
        d = d if d is not None else out
        if d is None:
            d = new_like(a, (a.shape[0], b.shape[0]), fp32 if self.reduce else None)
        check_kind("d", d)
        if not self.reduce and dtype_of(d, "d").integer:
            rule = "the parts are added in fp32, which is not rounded to integers"
            raise InputError("d", dtype_of(d, "d").name, rule, "pass a d of a floating type")
        if self.reduce:
            d[...] = 0
            return super().__call__(a, b, d)
        workspace = self.workspace(a, d.shape)
        super().__call__(a, b, workspace)
        return self.add_parts(workspace, d)

    def workspace(self, a: Any, shape: tuple[int, ...]) -> Any:
        """A new matrix of *shape* for each part."""
        return new_like(a, (self.parts, *shape), fp32)

    def part_slots(self, k: Any) -> Any:
        """k-tiles of every part but the last, which may have fewer."""
        return ceil_div(k.steps("a", "k"), self.parts)

    def tile_slots(self, k: Any, tile: Tile) -> Any:
        most = self.part_slots(k)
        return within(k.isa, k.steps("a", "k") - tile.s * most, most)

    def first_slot(self, k: Any, tile: Tile) -> Any:
        """The first k-tile of the tile's part."""
        return tile.s * self.part_slots(k)

    @load.jit
    def fill(self, k: Any, tile: Tile) -> None:
        first = self.first_slot(k, tile)
        for step in range(self.tile_slots(k, tile)):
            with k.ring.produce() as slot:
                slot.a.load(tile, l=0, k=first + step)
                slot.b.load(tile, l=0, k=first + step)
