"""Parts of a tile that are moved by themselves, and rows that are gathered from, or scattered to, where a table says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tmapipe.errors import InputError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import is_index
from tmapipe.plan.model import Load, Store
from tmapipe.protocol.table import BoundTable
from tmapipe.protocol.tile import Tile, start_of

__all__ = ["check_part", "move_rows", "part_start", "rows_start"]

TOGETHER = (16, 8, 4, 3, 2, 1)  # rows, whose entries of the table are on their way at once


def check_part(where: str, move: Load | Store, i: Any) -> None:
    """Raises `InputError` unless a slot is moved in parts, of which *i* is the number of one."""
    if not is_index(i, move.parts):
        rule = f"is moved in {move.parts} part{'s' * (move.parts > 1)}"
        raise InputError(where, i, rule, "count from 0, or declare in_parts()")


def part_start(
    start_of: Callable[..., tuple[Any, ...]],
    where: str,
    move: Load | Store,
    i: Any,
    tile: Tile | None,
    coordinates: dict[str, Any],
) -> tuple[Any, ...]:
    """Where part *i* of a tile begins (elements), one per dimension of the tensor.

    Args:
        start_of: As `tmapipe.protocol.tile.start_of`.
        where: Of the call, for errors.
        move: Of the whole tile.
        i: Which part.
        tile: Whose part it is, along dimensions that *coordinates* do not name.
        coordinates: By dimension, in parts along the one that the tile is cut along, and in tiles along others.
    """
    check_part(where, move, i)
    cut = len(move.dims) - move.core
    named = move.dims[cut] in coordinates
    parts = list(move.span)
    parts[cut] //= move.parts
    start = list(start_of(where, move.dims, parts if named else move.span, tile, coordinates))
    if not named:
        start[cut] = start[cut] + i * parts[cut]
    return tuple(start)


def rows_start(
    where: str, move: Load | Store, table: Any, first: Any, tile: Tile | None, coordinates: dict[str, Any]
) -> tuple[Any, ...]:
    """Where the rows begin (elements), one per dimension of the tensor; 0 along that of the rows.

    Raises:
        InputError: The stage does not move its rows one by one; *table* or *first* is something else; or a
            coordinate is missing or unknown.
    """
    cut = len(move.dims) - move.core
    if move.core != 2 or move.parts != move.tile[cut]:
        rule = f"has a tile of two extents, in as many parts as it has rows; the tile is {move.tile}"
        raise InputError(where, f"in_parts({move.parts})", rule, f"declare .in_parts({move.tile[cut]})")
    if not isinstance(table, BoundTable):
        rule = "is a table of row numbers, as k has it"
        raise InputError(f"{where}(table)", table, rule, "declare tp.Table, pass k.name")
    if not is_index(first):
        raise InputError(f"{where}(first)", first, "is the number of an entry", "pass a whole number of 32 bits")
    if move.dims[cut] in coordinates:
        rule = f"takes the rows along {move.dims[cut]} from the table"
        raise InputError(f"{where}({move.dims[cut]})", coordinates[move.dims[cut]], rule, "leave it out")
    return start_of(where, move.dims, move.part, tile, {**coordinates, move.dims[cut]: 0})


def move_rows(
    isa: Isa,
    move: Load | Store,
    table: BoundTable,
    first: Any,
    one: Callable[[Any, Any], None],
    four: Callable[[list[Any], Any], None] | None,
) -> None:
    """Moves all rows of a slot, whose numbers the table has from entry *first* on.

    Args:
        move: Of the slot.
        one: Moves the row of this number, which becomes, or is, this part of the slot; None: all of it.
        four: Moves four rows of these numbers, which are part 4 i and on of the slot, by one instruction: of a matrix, whose
            rows are no longer than a box. None: the architecture has no such instruction.
    """
    by_four = four is not None and len(move.dims) == 2 and move.box[-1] == move.tile[-1] and move.parts % 4 == 0
    at_once = 4 if by_four else 1
    together = next(size for size in TOGETHER if move.parts % size == 0)

    def turn(i: Any) -> None:
        entries = [table.entry(first + together * i + j) for j in range(together)]
        for group in range(together // at_once):
            part = together // at_once * i + group
            if four is not None and by_four:
                four(entries[4 * group : 4 * group + 4], part)
            else:
                one(entries[group], part if move.parts > 1 else None)

    isa.loop(move.parts // together, turn)
