"""A thread's numbers of a fragment: where in the tile they are, and runs of them that lie side by side in a slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import cutlass.cute as cute
from cutlass import Boolean

from tmapipe.gpu.functions import KINDS
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.fragments import Fragments
from tmapipe.isa.values import SlotRef
from tmapipe.plan.model import WARP, Buffer
from tmapipe.plan.thread_layout import AccumulatorLayout, ThreadLayout, VectorLayout

if TYPE_CHECKING:
    from tmapipe.gpu.warp import GpuWarp

__all__ = ["Runs", "width_of"]


class Runs(Fragments):
    """What the backend's other classes of fragments build on."""

    def __init__(self, isa: GpuWarp):
        self.isa, self.exchanges = isa, {}

    def place(self, layout: ThreadLayout, along: str, i: int) -> tuple[Any, Any]:
        """The row and column of value *i* of a fragment; of one number a row or column, row 0 and its place among these."""
        if along != "tile":
            return 0, self.row(layout, i) if along == "rows" else self.column(layout, i)
        return self.row(layout, layout.row_slot(i)), self.column(layout, layout.column_slot(i))

    def row(self, layout: ThreadLayout, slot: int) -> Any:
        """The row of a row slot."""
        isa = self.isa
        if isinstance(layout, VectorLayout) and layout.by_rows:
            return layout.warp(isa.warp) * layout.row_slots + slot
        if isinstance(layout, VectorLayout):
            return (self._thread(layout) + slot * layout.own * layout.threads) // layout.row_vectors
        assert isinstance(layout, AccumulatorLayout)
        block, half = divmod(slot, 2)
        return (block * layout.warpgroups + layout.group(isa.warp)) * 64 + isa.warp % 4 * 16 + isa.lane // 4 + 8 * half

    def column(self, layout: ThreadLayout, slot: int) -> Any:
        """The column of a column slot."""
        if isinstance(layout, VectorLayout):
            i, j = divmod(slot, layout.width)
            if layout.by_rows:
                return (self.isa.lane + i * WARP) * layout.width + j
            return (self._thread(layout) + i * layout.threads) % layout.row_vectors * layout.width + j
        eight, i = divmod(slot, 2)
        return 8 * eight + self.isa.lane % 4 * 2 + i

    def _thread(self, layout: VectorLayout) -> Any:
        """The calling thread in its team."""
        own = self.isa.thread - WARP * layout.first_warp
        return own if layout.teams == 1 else own % layout.threads

    def runs(
        self, layout: ThreadLayout, width: int, along: str = "tile", at: tuple[Any, Any] | None = None
    ) -> Iterator[tuple[int, Any, Any]]:
        """The first number of each run of *width* of a thread's, and its row and column, in a tile where it begins at *at*."""
        for i in range(0, layout.slots(along), width):
            row, column = self.place(layout, along, i)
            yield (i, row, column) if at is None else (i, row + at[0], column + at[1])

    def vectors(
        self, slot: SlotRef, layout: ThreadLayout, along: str, at: tuple[Any, Any] | None = None
    ) -> list[tuple[Any, int]]:
        """The calling thread's runs of a slot, or of what begins at *at* in it, each with its number of elements."""
        inside = self.isa.buffers[slot.buffer.name][(*(None,) * len(slot.buffer.tile), slot.stage)]
        width = width_of(layout, along)
        runs = self.runs(layout, width, along, at)
        return [(_vector_at(inside, slot.buffer, row, column, width), width) for _, row, column in runs]

    def first_to_have(self, layout: ThreadLayout, along: str) -> Any:
        """Whether the calling lane is the first of those that have the same rows or columns."""
        lane, warp = self.isa.lane, layout.warp(self.isa.warp)
        if along == "rows":
            first = lane % layout.row_lanes == 0
            return first if layout.row_warps == 1 else Boolean(first) & Boolean(warp % layout.row_warps == 0)
        first = lane < layout.row_lanes
        return Boolean(first) & Boolean(warp < layout.row_warps)

    def vector(self, values: Fragment, shape: Any) -> Any:
        """A fragment's numbers as a vector of CuTe DSL, which converts several at a time."""
        kind = KINDS[values.kind]
        data = values.data * cute.size(shape) if values.along == "one" else values.data
        whole = cute.make_rmem_tensor(shape, kind)
        for i, value in enumerate(data):
            whole[i] = value
        return whole.load()

    def converted(self, values: Fragment, first: int, width: int, dtype: Any) -> Any:
        """A run of a fragment's numbers, in registers, in a type of CuTe DSL."""
        run = Fragment(self, values.layout, "tile", values.kind, values.data[first : first + width])
        made = cute.make_rmem_tensor((width,), dtype)
        made.store(self.vector(run, (width,)).to(dtype))
        return made


def width_of(layout: ThreadLayout, along: str) -> int:
    """How many numbers of a thread lie side by side."""
    return 1 if along == "rows" else layout.width


def _vector_at(inside: Any, buffer: Buffer, row: Any, first: Any, width: int) -> Any:
    """*width* elements of a slot from (row, first) on; the row counts over all extents but the last."""
    place = [first // width]
    for extent in reversed(buffer.tile[1:-1]):
        row, rest = row // extent, row % extent
        place.insert(0, rest)
    if len(buffer.tile) > 1:
        place.insert(0, row)
    tiler = (1,) * (len(buffer.tile) - 1) + (width,)
    return cute.coalesce(cute.local_tile(inside, tiler, tuple(place)))
