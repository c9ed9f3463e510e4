"""Where a body moves a tile, as the traced program says it: starts are numbers over symbols.

Coordinates of a tile are symbols (`coordinate`), and so is the index of a loop of open count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tmapipe.plan.model import Load, Store
from tmapipe.prove.symbols import Sym, leaf

DATA = ("entry", "answer")  # kinds of symbols that are data
#: of every cluster alike
OF_CLUSTER = ("first", "steps")


def coordinate(dim: str) -> Sym:
    """That of a cluster's tile along a dimension, in tiles of a cluster."""
    return leaf("tile", dim)


def is_coordinate(x: Sym) -> bool:
    return x.op == "leaf" and x.args[0] == "tile"


def is_turn(x: Sym) -> bool:
    """Whether it is the index of a loop of a body."""
    return x.op == "leaf" and x.args[0] == "index"


class Move(NamedTuple):
    """One warp starts to move a tile, or threads move it.

    Args:
        part: The load or store.
        at: Where it starts, along each dimension.
        loops: The indices of the loops around it, and how often each runs.
        sometimes: Whether only some iterations of a loop do.
        agent: The warp.
        where: Its source line.
    """

    part: Load | Store
    at: tuple[Any, ...]
    loops: tuple[tuple[Sym, Any], ...]
    sometimes: bool
    agent: int
    where: str | None


class Visit(NamedTuple):
    """What the warps of a cluster do at one output tile, by warp.

    place: its coordinates, in tiles of a cluster; None before the first tile. facts: what has been decided there.
    """

    place: Mapping[str, Any] | None
    facts: frozenset[Sym]
    moves: dict[int, list[Move]]


class Fork(Exception):
    """A condition that is to be decided."""

    def __init__(self, condition: Sym):
        super().__init__()
        self.condition = condition
