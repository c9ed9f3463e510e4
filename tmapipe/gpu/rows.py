"""Where rows of a tile lie in global memory, elements with gaps between them, and vectors of a slot in shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

from tmapipe.gpu import cute_type, full_shape
from tmapipe.gpu.control import choose, emit_ptx
from tmapipe.isa.fragment import Gaps
from tmapipe.plan.model import Load, Store
from tmapipe.plan.rings import Buffer
from tmapipe.plan.thread_layout import VectorLayout


class RowsOfTile:
    """The rows of a tile in global memory.

    shape: of the tensor. at: where the tile starts (elements), one per dimension.
    """

    def __init__(self, isa: Any, part: Load | Store, at: Sequence[Any]):
        tensor, self.size = isa.addressed[part.argument], part.buffer.dtype.bytes
        self.shape = full_shape(tensor, part)
        self.outer = len(self.shape) - part.core
        self.at, self.extents = at, part.tile[-part.core :]
        self.strides = [0] * (len(self.shape) - len(tensor.stride)) + [Int64(stride) for stride in tensor.stride]
        self.start = Int64(tensor.iterator.toint())
        for i in range(self.outer):
            self.start = self.start + Int64(at[i]) * self.strides[i] * self.size
        self.batch = [inside_of(at[i], self.shape[i]) for i in range(self.outer)]

    def row(self, row: Any, further: int = 0) -> tuple[Any, list[Any]]:
        """The address of element 0 of the tensor in the row that is so much *further* in the tile, and conditions for it to be
        in the tensor. Rows that are counted from one *row* share its multiplication."""
        start, inside = self.start, list(self.batch)
        if further and len(self.extents) == 2:
            stride = self.strides[self.outer] * self.size
            index = self.at[self.outer] + row
            inside.append(inside_of(index + further, self.shape[self.outer]))
            return start + Int64(index) * stride + further * stride, inside
        row = row + further
        for dim in range(len(self.extents) - 2, -1, -1):
            index = self.at[self.outer + dim] + (row % self.extents[dim] if dim else row)
            row = row // self.extents[dim]
            start = start + Int64(index) * self.strides[self.outer + dim] * self.size
            inside.append(inside_of(index, self.shape[self.outer + dim]))
        return start, inside


def inside_of(index: Any, extent: Any) -> Any:
    return (index >= 0) & (index < extent)


# ---- elements with gaps between them ------------------------------------------------------------------------------------


def joined(first: Any, start: Any, gaps: Gaps, width: int) -> list[Any]:
    """Where elements *first* to *first* + width - 1 lie, if element 0 lies at *start*, as `Fragments.read_joined` says."""
    place, over = first + start, [Int32(0)] * width
    for length, further in gaps:
        rows = [Int32(Uint32(first + j) // length) for j in range(1 if width <= length else width)]
        place, inside = place + rows[0] * further, first - rows[0] * length
        for j in range(1, width):  # so few have one gap between them at most
            if len(rows) > 1:
                over[j] = over[j] + (rows[j] - rows[0]) * further
            else:
                over[j] = over[j] + choose(inside >= length - j, Int32(further), Int32(0))
    return [place + j + over[j] for j in range(width)]


def loaded_numbers(isa: Any, table: str, places: Sequence[Any]) -> list[Any]:
    """The numbers at these *places* of a table that holds data; 0 beyond its ends."""
    tensor, size = isa.addressed[table], isa.plan.vectors[table].bytes
    start, count = Int64(tensor.iterator.toint()), tensor.shape[0]
    load = f"@inside ld.global.s{8 * size} $0, [$1];"
    text = f"{{ .reg .pred inside; setp.lt.u32 inside, $2, $3; mov.b32 $0, 0; {load} }}"
    return [emit_ptx(text, "lrr", start + Int64(i) * size, i, count, words=1)[0] for i in places]


# ---- vectors of slots -------------------------------------------------------------------------------------------------


def row_step(layout: VectorLayout) -> int:
    """Rows from one row slot of a thread to the next, of threads that share rows evenly."""
    return layout.at_once if layout.by_rows else layout.own * layout.threads // layout.row_vectors


def vector_at(inside: Any, buffer: Buffer, row: Any, first: Any, width: int) -> Any:
    """*width* elements of a slot from (row, first) on; the row counts over all extents but the last."""
    place = [first // width]
    for extent in reversed(buffer.tile[1:-1]):
        row, rest = row // extent, row % extent
        place.insert(0, rest)
    if len(buffer.tile) > 1:
        place.insert(0, row)
    tiler = (1,) * (len(buffer.tile) - 1) + (width,)
    return cute.coalesce(cute.local_tile(inside, tiler, tuple(place)))


PATTERN = 1024  # bytes of rows after which a swizzle's pattern comes again


def vectors_of_part(buffer: Buffer, start: Any, layout: VectorLayout, first: Sequence[Any], at: Any) -> Iterator[Any]:
    """The calling thread's vectors of a part of a swizzled slot, which begins at *at*. From one pattern of the swizzle to the
    next, addresses differ by a number that instructions have.

    Args:
        start: The slot's address.
        layout: How threads share the part, evenly.
        first: The thread's first row, and its columns by column slot.
    """
    found, size = dict[tuple[int, int], Any](), buffer.dtype.bytes
    for i in range(0, layout.values, layout.width):
        patterns, row = divmod(at[0] + layout.row_slot(i) * row_step(layout), PATTERN // buffer.swizzle)
        place = row, layout.column_slot(i)
        if place not in found:
            found[place] = start + buffer.byte_in_slot(first[0] + row, (first[1 + place[1]] + at[1]) * size)
        address, align = found[place] + patterns * PATTERN, layout.width * size
        pointer = cute.make_ptr(cute_type(buffer.dtype), address, cute.AddressSpace.smem, assumed_align=align)
        yield cute.make_tensor(pointer, cute.make_layout(layout.width))
