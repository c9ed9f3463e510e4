"""What a warp reads of slots and writes to them, in the machine."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tmapipe.errors import InputError
from tmapipe.isa import ops
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.fragments import Fragments
from tmapipe.isa.values import SlotRef
from tmapipe.machine import elements
from tmapipe.machine.memory import Memory
from tmapipe.plan.thread_layout import AccumulatorLayout, ThreadLayout, VectorLayout

if TYPE_CHECKING:
    from tmapipe.machine.warp import MachineIsa

__all__ = ["WHOLE", "Cut", "SlotAccesses", "of_data"]

Cut = tuple[int, int, str]  # part, parts, and how the slot is cut into these
WHOLE: Cut = 0, 1, "rows"


def of_data(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that computes with data: without, it is not called, and the result is None."""

    @functools.wraps(method)
    def computed(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.memory is None:
            return None
        with np.errstate(all="ignore"):  # infinities and NaN are values here, as on the GPU
            return method(self, *arguments, **named)

    return computed


class SlotAccesses(Fragments):
    """Methods as documented in `tmapipe.isa.fragments.Fragments`."""

    isa: MachineIsa
    memory: Memory | None

    def _read(self, slot: SlotRef, cut: Cut = WHOLE, at: Any = None, proxy: str = "generic") -> Any:
        """What a slot has at these positions, or in one of its parts. None without data."""
        self.isa.give(at)
        self.isa.emit(ops.SlotRead(self.isa.slot(slot.buffer, slot.stage), *cut, proxy))
        return self._answer()

    def _answer(self) -> Any:
        return None if self.memory is None else self.memory.results[self.isa.agent]

    def _write(self, slot: SlotRef, values: Any, cut: Cut, at: Any = None, proxy: str = "generic") -> None:
        self.isa.give((at, values))
        self.isa.emit(ops.SlotWrite(self.isa.slot(slot.buffer, slot.stage), *cut, proxy))

    def _fragment(self, slot: SlotRef, layout: ThreadLayout | None, along: str, data: Any) -> Fragment:
        kind = slot.buffer.dtype.kind
        return Fragment(self, layout, along, kind, None if data is None else data.astype(elements.KINDS[kind]))

    # ---- slots ----------------------------------------------------------------------------------------------------

    def read(self, slot: SlotRef, layout: ThreadLayout, along: str = "tile") -> Fragment:
        if along != "tile":
            return self._fragment(slot, layout, along, self._read(slot))
        for cut in self._cuts(layout):
            data = self._read(slot, cut, self._positions(slot.buffer.tile[-1], layout))
        return self._fragment(slot, layout, along, data)

    def read_transposed(self, slot: SlotRef, layout: AccumulatorLayout) -> Fragment:
        at = self._positions(slot.buffer.tile[-1], layout, transposed=True)
        return self._fragment(slot, layout, "tile", self._read(slot, at=at))

    def read_peer(self, slot: SlotRef, cta: Any, layout: ThreadLayout, at: tuple[Any, Any]) -> Fragment:
        self.isa.give(self._inside(slot, layout, at))
        self.isa.emit(ops.PeerRead(self.isa.slot(slot.buffer, slot.stage), 1 << cta))
        return self._fragment(slot, layout, "tile", self._answer())

    def read_part(self, slot: SlotRef, layout: ThreadLayout, at: tuple[Any, Any], pitch: int = 0) -> Fragment:
        places = self._positions(pitch, layout, at) if pitch else self._inside(slot, layout, at)
        return self._fragment(slot, layout, "tile", self._read(slot, at=places))

    @of_data
    def _inside(self, slot: SlotRef, layout: ThreadLayout, at: tuple[int, int]) -> Any:
        """The positions of the warp's elements of the part of the slot that begins at *at*."""
        *rows, columns = slot.buffer.tile
        if not (0 <= at[0] <= math.prod(rows) - layout.rows and 0 <= at[1] <= columns - layout.columns):
            rule = f"lies inside the tile of {slot.buffer.tile}, with {layout.rows} x {layout.columns} elements"
            raise InputError(f"slot.{slot.buffer.name}.read(at)", at, rule, "begin it earlier")
        return self._positions(columns, layout, at)

    def read_columns_from(self, slot: SlotRef, layout: ThreadLayout, first: Any) -> Fragment:
        data, columns = self._read(slot), layout.columns
        if data is not None and not 0 <= first <= len(data) - columns:
            rule = f"is where {columns} of its {len(data)} elements begin"
            raise InputError(f"slot.{slot.buffer.name}.read(at)", first, rule, "begin earlier, or load more")
        return self._fragment(slot, layout, "columns", None if data is None else data[first : first + columns])

    def read_number(self, slot: SlotRef, index: Any) -> Fragment:
        data = self._read(slot)
        return self._fragment(slot, None, "one", None if data is None else data[index])

    def received(self, slot: SlotRef, share: Any, shares: int) -> Fragment:
        return Fragment(self, None, "tile", "fp32", self._read(slot, (share, shares, "shares")))

    def write(self, slot: SlotRef, values: Fragment, at: tuple[int, int] | None = None) -> None:
        layout = values.layout
        assert layout is not None
        if values.along != "tile":
            return self._write_numbers(slot, values)
        cuts = self._cuts(layout)
        shares: Any = [(None, None)] * len(cuts)
        if self.memory is not None:
            places = self._positions(slot.buffer.tile[-1], layout, at or (0, 0))
            split = [np.split(each, len(cuts)) for each in np.broadcast_arrays(places, values.data)]
            shares = list(zip(*split, strict=True))
        for cut, (where, share) in zip(cuts, shares, strict=True):
            self._write(slot, share, cut if at is None else _of_block(cut, slot, layout, at), where)

    def _write_numbers(self, slot: SlotRef, values: Fragment) -> None:
        """One number a row or column, written by the first of the warps that have it."""
        layout, by_row = values.layout, values.along == "rows"
        assert layout is not None
        mine, sharing = layout.warp(self.isa.warp), layout.row_warps
        if mine % sharing if by_row else mine >= sharing:
            return
        at, numbers = self.places(values) or (None, None)
        part, parts = (mine // sharing, layout.warps // sharing) if by_row else (mine, sharing)
        self._write(slot, numbers, (part, parts, f"numbers of {values.along}"), at)

    # ---- positions ------------------------------------------------------------------------------------------------

    @of_data
    def places(self, values: Fragment) -> Any:
        """Where in the tile, row by row, the warp's values are, and these."""
        layout = values.layout
        assert layout is not None
        if values.along != "tile":
            at = self._own(layout, values.along)  # the same numbers, if other warps have them too
            return at, values.data[at]
        at = self._positions(layout.columns, layout)
        return at, np.broadcast_to(values.data, at.shape)

    @of_data
    def _positions(
        self, width: int, layout: ThreadLayout, first: tuple[int, int] = (0, 0), transposed: bool = False
    ) -> Any:
        """Where in a tile, row by row, the warp's elements are.

        Args:
            width: Elements of a row.
            layout: Of the elements.
            first: Where the part of the tile begins that they are of.
            transposed: Whether they are of the transpose.
        """
        rows, columns = self._indices(layout)
        if transposed:
            rows, columns = columns, rows
        return (rows + first[0]) * width + columns + first[1]

    def _indices(self, layout: ThreadLayout) -> tuple[np.ndarray, np.ndarray]:
        """The row and the column of each element that the warp has of a tile."""
        return elements.indices_of(layout, self.isa.warp)

    def _own(self, layout: ThreadLayout, along: str) -> np.ndarray:
        """The rows or columns of a tile of which the warp has some elements."""
        return np.unique(self._indices(layout)[0 if along == "rows" else 1])

    def _cuts(self, layout: ThreadLayout) -> list[Cut]:
        """Of each access to a slot."""
        if isinstance(layout, VectorLayout):
            cut = f"rows in vectors of {layout.width}" if layout.by_rows else f"vectors of {layout.width}"
            return [(layout.warp(self.isa.warp), layout.warps, cut)]
        assert isinstance(layout, AccumulatorLayout)
        group, strips = layout.group(self.isa.warp), layout.blocks * layout.warps
        blocks = range(layout.blocks)
        return [(4 * (i * layout.warpgroups + group) + self.isa.warp % 4, strips, "rows") for i in blocks]


def _of_block(cut: Cut, slot: SlotRef, layout: ThreadLayout, at: tuple[int, int]) -> Cut:
    """The same cut of one of the blocks into which fragments of a shape divide the tile."""
    part, parts, how = cut
    rows, across = (
        extent // size for extent, size in zip(slot.buffer.tile, (layout.rows, layout.columns), strict=True)
    )
    block = at[0] // layout.rows * across + at[1] // layout.columns
    return block * parts + part, rows * across * parts, f"blocks of {layout.rows} x {layout.columns}, {how}"
