"""Where all warps of a cluster are between two boundaries, and what has been decided."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tmapipe.prove.symbols import Sym
from tmapipe.prove.walker import Walker

__all__ = ["Again", "Impossible", "Loop", "Point", "Stopped", "with_facts"]


class Loop(NamedTuple):
    """An open loop that warps go through together.

    site: which; index: the symbol of its iteration; turn: which iteration comes next, at most `apart`: earlier ones are told
    apart from all others; members: (warp, node, first index, iterations left at entry, pace); before: facts at its entry; old:
    what its members had carried at the beginning of the iteration.
    """

    site: int
    index: Sym  # type: ignore[assignment]
    turn: int
    members: tuple[tuple[int, Any, Any, Any, int], ...]
    before: frozenset[Sym]
    old: dict[Any, Any]
    apart: int = 1

    def counts(self) -> dict[tuple[Any, int], None]:
        """The different (iterations left at entry, pace) of its members."""
        return dict.fromkeys((left, pace) for *_, left, pace in self.members)


class Point:
    """Where all warps are. facts: what is decided; loops: those entered, the innermost last; options: of the boundary."""

    __slots__ = ("facts", "key", "loops", "options", "walkers")

    def __init__(self, walkers: list[Walker], facts: frozenset[Sym], loops: tuple[Loop, ...], options: Any):
        self.walkers, self.facts, self.loops, self.options = walkers, facts, loops, options
        self.key: Any = None  # of the boundary, where states are compared

    def turns(self) -> dict[Any, Any]:
        """The numbers of iterations, of loops that are in one that is told apart."""
        return {loop.index: loop.turn for loop in self.loops if loop.turn < loop.apart}


class Stopped(Exception):
    """Something goes wrong, or cannot be taken by itself."""


class Again(Exception):
    """A number is no formula of the iteration, which is known from now on: the search begins again."""


class Impossible(Exception):
    """What has been decided cannot be so."""


def with_facts(facts: frozenset[Sym], more: Iterable[Any]) -> frozenset[Sym]:
    return facts | {each for each in more if isinstance(each, Sym)}
