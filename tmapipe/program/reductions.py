"""What a traced program reduces."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Reduction"]


class Reduction(NamedTuple):
    """A reduction of a fragment of so many rows and columns.

    along: "rows" or "columns", of which a number each is left; inside: how many elements count, if only the kernel knows; None
    for all.
    """

    rows: int
    columns: int
    along: str
    inside: Any
