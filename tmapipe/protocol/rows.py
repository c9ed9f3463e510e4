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

__all__ = ["check_part", "each_row", "fours", "part_start", "rows_start"]

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


def fours(supported: bool, move: Load | Store) -> bool:
    """Whether one instruction moves four rows: of a matrix, that are no longer than a box, on an architecture that has it."""
    return supported and len(move.dims) == 2 and move.box[-1] == move.tile[-1] and move.parts % 4 == 0


def each_row(
    isa: Isa, rows: int, at_once: int, table: BoundTable, first: Any, some: Callable[[Any, list[Any]], None]
) -> None:
    """Calls ``some(i, entries)`` for all rows *at_once* i to *at_once* (i + 1) - 1, whose entries follow *first*."""
    together = next(size for size in TOGETHER if rows % size == 0)
    groups = together // at_once

    def turn(i: Any) -> None:
        entries = [table.entry(first + together * i + j) for j in range(together)]
        for group in range(groups):
            some(groups * i + group, entries[at_once * group : at_once * (group + 1)])

    isa.loop(rows // together, turn)
