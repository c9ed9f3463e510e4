"""Where all warps of a cluster are between two boundaries, and what has been decided."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tmapipe.prove.symbols import Sym
from tmapipe.prove.walker import Walker

__all__ = ["Impossible", "Loop", "Point", "Stopped", "with_facts"]


class Loop(NamedTuple):
    """An open loop that warps go through together.

    site: which; index: the symbol of its iteration; turn: which iteration comes next, or the last number that is told apart;
    members: (warp, node, first index, iterations left at entry, pace); before: facts at its entry; old: what its members had
    carried at the beginning of the iteration.
    """

    site: int
    index: Sym  # type: ignore[assignment]
    turn: int
    members: tuple[tuple[int, Any, Any, Any, int], ...]
    before: frozenset[Sym]
    old: dict[Any, Any]


class Point:
    """Where all warps are. facts: what is decided; loops: those entered, the innermost last; options: of the boundary."""

    __slots__ = ("facts", "key", "loops", "options", "walkers")

    def __init__(self, walkers: list[Walker], facts: frozenset[Sym], loops: tuple[Loop, ...], options: Any):
        self.walkers, self.facts, self.loops, self.options = walkers, facts, loops, options
        self.key: Any = None  # of the boundary, where states are compared


class Stopped(Exception):
    """Something goes wrong, or cannot be taken by itself."""


class Impossible(Exception):
    """What has been decided cannot be so."""


def with_facts(facts: frozenset[Sym], more: Iterable[Any]) -> frozenset[Sym]:
    return facts | {each for each in more if isinstance(each, Sym)}
