"""Counting the entries of a table in global memory for which something holds."""

from __future__ import annotations

from collections.abc import Callable

from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Condition, Value

__all__ = ["count_entries"]


def count_entries(
    isa: Isa, table: str, count: Value, holds: Callable[[Value, Value], Condition], without_data: int
) -> Value:
    """For how many of the first *count* entries of a table ``holds(index, entry)`` is true.

    The lanes of a warp look at one entry each, 32 at a time.

    Args:
        table: Its name.
        count: Entries to look at.
        holds: As of `Isa.ballot`.
        without_data: What every entry is in the check, which has no data.
    """
    found = isa.cells(0)

    def some(i: Value) -> None:
        votes = isa.ballot(table, i * 32, count, holds, without_data)
        found[0] = found[0] + votes

    isa.loop((count + 31) // 32, some)
    return isa.here(found[0])
