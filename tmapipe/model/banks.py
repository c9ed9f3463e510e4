"""Bank conflicts: how often shared memory is accessed for one instruction of a warp."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tmapipe.isa.fragment import Fragment, SlotRef
from tmapipe.model.elements import indices_of
from tmapipe.plan.model import WARP, Load
from tmapipe.plan.rings import Buffer, Distributed
from tmapipe.plan.thread_layout import AccumulatorLayout, ThreadLayout, VectorLayout

BANKS, WORD, WIDEST = 32, 4, 16  # of shared memory; bytes; bytes of a lane in one instruction
Places = Sequence[int]  # of the lanes' bytes in a slot


class BankAccess(NamedTuple):
    """What a warp does to one slot of a stage: `taken` accesses of shared memory, where `least` would do without conflicts."""

    what: str
    taken: int
    least: int


Accesses = dict[tuple[str, str], BankAccess]  # by stage and by what is done, with the line


def times(places: Places, width: int) -> tuple[int, int]:
    """How many accesses one instruction takes, and how many it would take without conflicts.

    Args:
        places: Of each lane that takes part: the first of its bytes.
        width: Bytes of a lane, at most 16.
    """
    together = WARP * WORD // max(width, WORD)
    groups = [places[i : i + together] for i in range(0, len(places), together)]
    taken = 0
    for group in groups:
        words = {word for place in group for word in range(place // WORD, (place + width - 1) // WORD + 1)}
        banks = [word % BANKS for word in words]
        taken += max(banks.count(bank) for bank in set(banks))
    return taken, len(groups)


def copies(load: Load, warps: int) -> BankAccess:
    """Of the copies of one tile by the first of so many warps."""
    buffer, row = load.buffer, load.buffer.tile[-1] * load.buffer.dtype.bytes
    vectors = buffer.slot_bytes // load.vector
    starts = range(0, vectors, WARP * warps)
    lanes = [list(range(first, min(first + WARP, vectors))) for first in starts]
    placed = [[buffer.byte_in_slot(*divmod(i * load.vector, row)) for i in some] for some in lanes]
    return _sum(f"copied, {load.vector} bytes a lane", [(places, load.vector) for places in placed])


def access_of(method: str, given: Sequence[Any], named: Mapping[str, Any], warp: int) -> tuple[str, BankAccess] | None:
    """What an instruction on fragments does to a slot: (stage, accesses); None for an instruction that is not counted.

    Args:
        method: As a node of a program has it.
        given: Its arguments.
        named: Its arguments by name.
        warp: That executes it.
    """
    of = _OF.get(method.removeprefix("fragments."))
    if of is None:
        return None
    slot, how, each = of(warp, *given, **named)
    return (slot.buffer.name, _sum(how, each)) if each else None


_Found = tuple[SlotRef, str, list[tuple[Places, int]]]


def _read(warp: int, slot: SlotRef, layout: ThreadLayout, along: str = "tile") -> _Found:
    return slot, "read", _elements(slot.buffer, layout, along, warp)


def _read_transposed(warp: int, slot: SlotRef, layout: AccumulatorLayout) -> _Found:
    return slot, "read transposed", _transposed(slot.buffer, layout, warp)


def _read_part(warp: int, slot: SlotRef, layout: ThreadLayout, at: tuple[Any, Any], pitch: int = 0) -> _Found:
    first = tuple(x if isinstance(x, int) else 0 for x in at)
    aligned = isinstance(at[1], int) and not (at[1] % layout.width or (pitch or slot.buffer.tile[1]) % layout.width)
    width = layout.width if aligned else 1
    return slot, "read in part", _elements(slot.buffer, layout, "tile", warp, first, width, pitch)


def _read_joined(warp: int, slot: SlotRef, layout: ThreadLayout, at: Any, gaps: Any) -> _Found:
    first, size = (at[1] if isinstance(at[1], int) else 0), slot.buffer.dtype.bytes

    def byte(column: int) -> int:
        place = first + column
        return (place + sum(place // length * further for length, further in gaps)) * size

    return slot, "read without gaps", [([byte(c) for _, c in lanes], size) for lanes in _lanes(layout, warp)]


def _read_rows_as_columns(
    warp: int, slot: SlotRef, layout: VectorLayout, starts: tuple[int, ...], pitch: int
) -> _Found:
    size, (columns, many) = slot.buffer.dtype.bytes, (slot.buffer.tile[-1], len(starts))

    def place(row: int, column: int) -> int:
        place = starts[column % many] + column // many * pitch + row
        return slot.buffer.byte_in_slot(place // columns, place % columns * size)

    return (
        slot,
        "read with rows as columns",
        [([place(r, c) for r, c in lanes], size) for lanes in _lanes(layout, warp)],
    )


def _write(warp: int, slot: SlotRef, values: Fragment, at: tuple[int, int] | None = None) -> _Found:
    assert values.layout is not None
    return slot, "written", _elements(slot.buffer, values.layout, values.along, warp, at or (0, 0))


def _read_columns(
    warp: int, matmul: Distributed, slot: SlotRef, along: tuple[str, ...], columns: int, first: int = 0
) -> _Found:
    layout = AccumulatorLayout(64 * matmul.warpgroups, columns, matmul.warpgroups, matmul.first_warp)
    if along == ("rows", "columns"):
        return slot, "read by an epilogue", _elements(slot.buffer, layout, "tile", warp)
    if along == ("columns", "rows"):
        return slot, "read transposed", _transposed(slot.buffer, layout, warp)
    return slot, "", []


def _write_columns(warp: int, values: Fragment, slot: SlotRef, *, transposed: bool = False) -> _Found:
    buffer, warp = slot.buffer, warp % 4
    columns, size = buffer.tile[-2 if transposed else -1], buffer.dtype.bytes
    piece = AccumulatorLayout(64, columns, 1, 0)
    if size == 2:  # stmatrix: 8 rows of 16 bytes at a time
        starts = [(16 * warp + 8 * half, 8 * i) for half in range(2) for i in range(columns // 8)]
        along = [(n, m) for m, n in starts] if transposed else starts
        matrices = [[buffer.byte_in_slot(row + i, column * size) for i in range(8)] for row, column in along]
        return slot, "written by stmatrix", [(places, WIDEST) for places in matrices]
    if transposed:
        return slot, "written transposed", _transposed(buffer, piece, warp)
    return slot, "written", _elements(buffer, piece, "tile", warp)


_OF: dict[str, Callable[..., _Found]] = {
    "read": _read,
    "read_transposed": _read_transposed,
    "read_part": _read_part,
    "read_joined": _read_joined,
    "read_rows_as_columns": _read_rows_as_columns,
    "write": _write,
    "read_columns": _read_columns,
    "write_columns": _write_columns,
}


def _sum(what: str, each: Sequence[tuple[Places, int]]) -> BankAccess:
    found = [times(places, width) for places, width in each]
    return BankAccess(what, sum(taken for taken, _ in found), sum(least for _, least in found))


def _elements(
    buffer: Buffer,
    layout: ThreadLayout,
    along: str,
    warp: int,
    at: tuple[int, ...] = (0, 0),
    width: int | None = None,
    pitch: int = 0,
) -> list[tuple[Places, int]]:
    """Of each instruction that moves a warp's part of a tile, or one number a row or column: the lanes' places, and bytes.

    Args:
        at: Where a part of the tile begins.
        width: Elements that lie together; None: as many as the layout says.
        pitch: As of `Fragments.read_part`.
    """
    size = buffer.dtype.bytes
    lanes = _lanes(layout, warp)
    if along == "tile":
        step = width or layout.width
        wide = min(step * size, WIDEST)
        parts = range(0, step * size, wide)

        def place(row: int, byte: int) -> tuple[int, int]:
            return (0, row * pitch * size + byte) if pitch else (row, byte)

        return [
            ([buffer.byte_in_slot(*place(r + at[0], (c + at[1]) * size + part)) for r, c in lanes[i]], wide)
            for i in range(0, layout.values, step)
            for part in parts
        ]
    slot = layout.row_slot if along == "rows" else layout.column_slot
    which, step = (0, 1) if along == "rows" else (1, layout.width)
    first = {slot(i): i for i in reversed(range(layout.values))}
    starts = [first[s] for s in range(0, layout.slots(along), step)]
    return [([place[which] * size for place in lanes[i]], min(step * size, WIDEST)) for i in starts]


def _transposed(buffer: Buffer, layout: AccumulatorLayout, warp: int) -> list[tuple[Places, int]]:
    """Of each instruction that moves one value of each lane of the tile's transpose."""
    size = buffer.dtype.bytes
    return [([buffer.byte_in_slot(c, r * size) for r, c in value], size) for value in _lanes(layout, warp)]


def _lanes(layout: ThreadLayout, warp: int) -> list[list[tuple[int, int]]]:
    """Of each value: the (row, column) that each lane has."""
    extents: tuple[int, ...]
    order: tuple[int, ...]
    if isinstance(layout, VectorLayout):
        extents, order = (layout.vectors, WARP, layout.width), (0, 2, 1)
    else:
        assert isinstance(layout, AccumulatorLayout)  # of blocks of 16 x 8, a lane has two values each in two rows
        extents, order = (layout.blocks, 2, 8, layout.columns // 8, 4, 2), (0, 3, 1, 5, 2, 4)
    by_value = [each.reshape(extents).transpose(order).reshape(-1, WARP) for each in indices_of(layout, warp)]
    return [list(zip(*lanes, strict=True)) for lanes in zip(*(each.tolist() for each in by_value), strict=True)]
