"""What bodies decide on, where programs are recorded with numbers that vary (`tmapipe.machine.varying`)."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from tmapipe.errors import PipelineError
from tmapipe.machine.varying import Key, Varying

__all__ = ["COUNT", "MOST_TURNS", "Decisions", "Loop", "Term", "Use"]

COUNT = "counts a loop"
MOST_TURNS = 20_000  # of a loop, where programs are recorded


class Use(NamedTuple):
    """What a body has used: how, and of which number."""

    how: str
    terms: tuple[tuple[Key, int], ...]
    const: int


class Term(NamedTuple):
    """What is known of a term.

    low: the least value, if no tensor is empty; empty: the same if some are; high: the largest; None where there is no bound;
    of: the terms that it is computed of; per_tile: whether it can differ from tile to tile of one run; by_index: whether
    it contains the index of a loop.
    """

    low: int | None
    empty: int | None
    high: int | None
    of: frozenset[Key] = frozenset()
    per_tile: bool = False
    by_index: bool = False


class Loop:
    """A loop in a warp's program: the terms of its count, and its first operation and the one after its last."""

    __slots__ = ("end", "start", "terms")

    def __init__(self, terms: tuple[tuple[Key, int], ...], start: int):
        self.terms, self.start, self.end = terms, start, start


class Decisions:
    """What bodies decide on, in the recordings that share this object.

    values: of terms, for the tile at hand; terms: all so far; uses: of numbers; loops: of the warp that is being recorded;
    length: how many operations it has so far.
    """

    def __init__(self) -> None:
        self.values: Mapping[Key, int] = {}
        self.terms: dict[Key, Term] = {}
        self.uses: dict[Use, None] = {}
        self.depth = 0
        self.loops: list[Loop] = []
        self.length: Callable[[], int] = lambda: 0

    def symbol(self, key: Key, value: int, known: Term) -> Varying:
        """A term by its name. Its value is *value* unless `values` says otherwise."""
        if key not in self.terms:
            self.terms[key] = known
        return Varying(self, {key: 1}, 0, self.values.get(key, value))

    def made(self, key: Key, value: int, bounds: tuple[int | None, int | None, int | None], *parts: Varying) -> Varying:
        """A term that is computed of *parts*."""
        if key not in self.terms:
            of = frozenset(part for number in parts for part in number.terms)
            known = [self.terms[part] for part in of]
            tile, index = any(t.per_tile for t in known), any(t.by_index for t in known)
            self.terms[key] = Term(*bounds, of, tile, index)
        return Varying(self, {key: 1}, 0, self.values.get(key, value))

    def use(self, how: str, number: Varying | int) -> int:
        """Notes a use. Returns the value."""
        if not isinstance(number, Varying):
            return number
        if number.terms:
            self.uses[Use(how, tuple(sorted(number.terms.items(), key=repr)), number.const)] = None
        return number.value

    def bound(self, number: Varying, which: str) -> int | None:
        """The least (`low`, `empty`) or largest (`high`) value."""
        total = number.const
        for key, factor in number.terms.items():
            known = self.terms[key]
            end = getattr(known, which if factor > 0 else "high" if which != "high" else "empty")
            if end is None:
                return None
            total += factor * end
        return total

    def turns(self, start: Any, stop: Any, step: int) -> Iterator[Any]:
        """The numbers of a loop whose count varies."""
        span = stop - start if step > 0 else start - stop
        turns = (span + (abs(step) - 1)) // abs(step)
        count = self.use(COUNT, turns)
        if count > MOST_TURNS:
            raise PipelineError(
                f"a loop of {count} turns where programs are recorded, of which {MOST_TURNS} are looked at"
            )
        index = "index", self.depth, turns.form[0] if isinstance(turns, Varying) else ()
        self.terms.setdefault(index, Term(0, 0, None, by_index=True))
        depth, self.depth = self.depth, self.depth + 1
        loop = Loop(index[2], self.length())
        self.loops.append(loop)
        for i in builtins.range(count):
            yield start + step * Varying(self, {index: 1}, 0, i)
        self.depth, loop.end = depth, self.length()
