"""What bodies decide on, where programs are recorded with numbers that vary (`tmapipe.machine.varying`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tmapipe.errors import PipelineError
from tmapipe.machine.varying import Key, Varying

if TYPE_CHECKING:
    from tmapipe.machine.moves import Call

__all__ = [
    "CARRIED",
    "COUNT",
    "MOST_ITERATIONS",
    "START",
    "Decisions",
    "Loop",
    "Reduction",
    "Sum",
    "Term",
    "Use",
    "primitive",
    "sources",
]

COUNT = "counts a loop"
START = "is where a copy begins, which must be a whole number of units"
CARRIED = "is changed by the iterations of a loop"
Sum = tuple[tuple[Key, int], ...]  # terms with their factors, in a fixed order
MOST_ITERATIONS = 20_000  # of a loop, where programs are recorded


class Use(NamedTuple):
    """What a body has used: how, and of which number. inside: if it counts a loop, the indices of the loops around that."""

    how: str
    terms: Sum
    const: int
    inside: tuple[Key, ...] = ()


class Term(NamedTuple):
    """What is known of a term.

    low: the least value (no tensor is empty: such ones never reach a kernel); high: the largest; None where there is no bound;
    of: the terms that it is computed of; per_tile: whether it can differ from tile to tile of one run; by_entry: whether it
    is computed of entries of tables; indices: those of loops that it is computed of.
    """

    low: int | None
    high: int | None
    of: frozenset[Key] = frozenset()
    per_tile: bool = False
    by_entry: bool = False
    indices: tuple[Key, ...] = ()


class Reduction(NamedTuple):
    """A reduction of a fragment of so many rows and columns. along: "rows" or "columns", of which a number each is left;
    inside: the sum that says how many elements count; None: all, or a plain number."""

    rows: int
    columns: int
    along: str
    inside: tuple[Sum, int] | None


class Loop:
    """A loop in a warp's program: the terms of its count, and its first operation and the one after its last."""

    __slots__ = ("end", "start", "terms")

    def __init__(self, terms: Sum, start: int):
        self.terms, self.start, self.end = terms, start, start


def primitive(terms: Sum) -> tuple[Sum, int]:
    """The same sum without common factors, and the factor."""
    common = math.gcd(*(factor for _, factor in terms))
    return tuple((key, factor // common) for key, factor in terms), common


def sources(terms: Mapping[Key, Term], of: Sum, keys: Collection[Key]) -> set[Key]:
    """Those of *keys* that a sum is computed of."""
    found, todo = set(), [key for key, _ in of]
    while todo:
        key = todo.pop()
        if key in keys:
            found.add(key)
        else:
            todo += terms[key].of
    return found


def _divisor(terms: Sum, const: int) -> int:
    """A number of which a sum is a multiple, whatever varies; 0 if it is 0. (x % 4 and x differ by a multiple of 4.)"""
    factors: Counter[Key] = Counter()
    differ, left = 0, list(terms)
    while left:
        key, factor = left.pop()
        if key[0] == "remainder" and isinstance(key[2], int):
            _, (inner, rest), by = key
            differ, const = math.gcd(differ, factor * by), const + factor * rest
            left += [(term, factor * times) for term, times in inner]
        else:
            factors[key] += factor
    return math.gcd(const, differ, *(factor * _divisor_of(key) for key, factor in factors.items()))


def _divisor_of(key: Key) -> int:
    name, *rest = key
    if name not in ("min", "max", "choice", "product"):
        return 1
    forms = rest[0] if name in ("min", "max") else rest[1:] if name == "choice" else rest
    each = [_divisor(*form) if isinstance(form, tuple) else int(form) for form in forms]
    return math.prod(each) if name == "product" else math.gcd(*each)


class Decisions:
    """What bodies decide on, in the recordings that share this object.

    values: of terms, and of sums that are looked at as a whole (`("sum", terms, number of loops around)`), for the tile at
    hand; a value for each iteration of a loop, in turn, if it is a tuple; terms: all so far; uses: of numbers; loops: of the
    warp that is being recorded; length: how many operations it has so far; around: the indices of the loops that it is in;
    iteration: of each loop; found: what has been looked up in `values`, to be emptied where other names are in it; stored: the
    outputs that a body has stored to; lap: slots of the longest ring.

    calls: of bodies, with where they move tiles; run: number of the present recording; counts: by index of a loop that is
    being recorded, how often it runs; located: whether calls have source lines; reductions: of fragments, each with its line;
    lines: where a load or store stands first, by its name; by_rows: loads and stores of rows by number.
    """

    def __init__(self) -> None:
        self.values: Mapping[Key, Any] = {}
        self.terms: dict[Key, Term] = {}
        self.uses: dict[Use, None] = {}
        self.stored: set[str] = set()
        self.calls: list[Call] = []
        self.run, self.located = 0, False
        self.counts: dict[Key, tuple[Sum, int]] = {}
        self.reductions: dict[Reduction, str | None] = {}
        self.lines: dict[str, str | None] = {}
        self.by_rows: set[str] = set()
        self.lap = 0
        self.around: list[Key] = []
        self.iteration: dict[Key, int] = {}
        self.found: dict[tuple[Sum, int, bool], tuple[Any, Any]] = {}
        self.loops: list[Loop] = []
        self.length: Callable[[], int] = lambda: 0
        self._sorted: dict[frozenset[tuple[Key, int]], Sum] = {}

    def symbol(self, key: Key, value: int, known: Term) -> Varying:
        """A term by its name. Its value is *value* unless `values` says otherwise."""
        if key not in self.terms:
            self.terms[key] = known
        return Varying(self, {key: 1}, 0, self.values.get(key, value))

    def made(self, key: Key, value: int, bounds: Sequence[int | None], *parts: Varying) -> Varying:
        """A term that is computed of *parts*. bounds: `low` and `high`, if it is new."""
        if key not in self.terms:
            self.terms[key] = self.derived(frozenset(part for number in parts for part in number.terms), bounds)
        return Varying(self, {key: 1}, 0, self.values.get(key, value))

    def derived(self, of: frozenset[Key], bounds: Sequence[int | None], entry: bool = False) -> Term:
        """What is known of a term that is computed of others, or is an *entry* of a table at an index that is."""
        known, (low, high) = [self.terms[part] for part in of], bounds
        indices = tuple(dict.fromkeys(index for term in known for index in term.indices))
        tile, by_entry = any(term.per_tile for term in known), any(term.by_entry for term in known)
        return Term(low, high, of, tile or (entry and bool(of)), by_entry or entry, indices)

    # ---- uses ---------------------------------------------------------------------------------------------------------

    def use(self, how: str, number: Varying | int) -> int:
        """Notes a use. Returns the value."""
        if not isinstance(number, Varying):
            return number
        inside = tuple(self.around) if how == COUNT else ()
        self.uses[Use(how, self.sorted(number), number.const, inside)] = None
        return self.value(number, len(inside))

    def carries(self, names: str, values: int, leaves: bool) -> None:
        """Notes that the iterations of a loop give so many values to names of a body, unless these are too few to matter.

        Inside the loop all of them come up in the longest ones that are recorded, which go three times around the rings, even
        if they change every third iteration. What *leaves* it shows if it recurs after one, two or three iterations.
        """
        if values > (3 if leaves else self.lap + 1):
            key = "symbol", names
            self.terms.setdefault(key, Term(None, None))
            self.uses[Use(CARRIED, ((key, 1),), 0)] = None

    def starts(self, number: Varying, unit: int) -> None:
        """Notes that a copy begins at a number that must be a multiple of *unit*, unless it is one whatever varies."""
        terms = self.sorted(number)
        if _divisor(terms, number.const % unit) % unit:
            self.uses[Use(START, terms, number.const)] = None

    def sorted(self, number: Varying) -> Sum:
        """The terms of a number, in a fixed order."""
        terms = frozenset(number.terms.items())
        found = self._sorted.get(terms)
        if found is None:
            found = self._sorted[terms] = tuple(sorted(terms, key=repr))
        return found

    def value(self, number: Varying, inside: int = 0) -> int:
        """What a number is at the tile at hand. Sums that are looked at as a whole are free of their terms.

        Args:
            inside: If it counts a loop: how many loops are around that.
        """
        terms = self.sorted(number)
        known = terms, inside, bool(self.values)
        if known not in self.found:
            self.found[known] = self._look_up(terms, inside)
        whole, index = self.found[known]
        if whole is None:
            return number.value
        value = self._at_turn(*whole) + number.const
        return value if index is None else value + index[1] * self.iteration[index[0]]

    def _look_up(self, terms: Sum, inside: int) -> tuple[tuple[Key, int] | None, tuple[Key, int] | None]:
        """(whole sum, index of a loop that is added to it)."""
        whole, index = self.whole(terms, inside, self.values), None
        indices = [term for term in terms if term[0][0] == "index"]
        if whole is None and len(indices) == 1:
            (index,) = indices
            whole = self.whole(tuple(term for term in terms if term != index), index[0][1], self.values)
        return whole, index

    @staticmethod
    def whole(terms: Sum, inside: int, known: Collection[Key]) -> tuple[Key, int] | None:
        """If a sum is looked at as a whole: its name, one of *known*, and with which factor."""
        if not terms:
            return None
        least, common = primitive(terms)
        for sign in (1, -1):
            signed = tuple((key, sign * factor) for key, factor in least)
            for key in (("sum", signed, inside), ("sum", signed, 0)):
                if key in known:
                    return key, sign * common
        return None

    def looked_at(self, terms: Sum, inside: int, known: Collection[Key]) -> Sum:
        """The terms themselves, or the sum as a whole."""
        found = self.whole(terms, inside, known)
        return terms if found is None else (found,)

    def _at_turn(self, key: Key, factor: int) -> int:
        value = self.values[key]
        if isinstance(value, tuple):
            value = value[sum(self.iteration.get(index, 0) for index in self.indices(key)) % len(value)]
        return factor * int(value)

    def indices(self, key: Key) -> tuple[Key, ...]:
        """The indices of loops that a term, or a sum as a whole, is computed of."""
        parts = [part for part, _ in key[1]] if key[0] == "sum" else [key]
        return tuple(dict.fromkeys(index for part in parts for index in self.terms[part].indices))

    def of_entries(self, number: Varying) -> bool:
        """Whether a number is computed of entries of tables."""
        return any(self.terms[key].by_entry for key in number.terms)

    def bounds(self, *numbers: Any) -> list[list[int | None]]:
        """Of `low` and `high`: that of each number, plain ones among them."""
        ends = ("low", "high")
        return [[self._bound(x, end) if type(x) is Varying else int(x) for x in numbers] for end in ends]

    def _bound(self, number: Varying, which: str) -> int | None:
        total = number.const
        for key, factor in number.terms.items():
            known = self.terms[key]
            end = getattr(known, which if factor > 0 else "high" if which == "low" else "low")
            if end is None:
                return None
            total += factor * end
        return total

    def iterations(self, start: Any, stop: Any, step: int) -> Iterator[Any]:
        """The numbers of a loop whose count varies."""
        span = stop - start if step > 0 else start - stop
        iterations = span if abs(step) == 1 else (span + (abs(step) - 1)) // abs(step)
        count = self.use(COUNT, iterations)
        if count > MOST_ITERATIONS:
            raise PipelineError(
                f"a loop of {count} iterations where programs are recorded, of which {MOST_ITERATIONS} are looked at"
            )
        terms, inside = self.sorted(iterations), len(self.around)
        index = "index", inside, terms
        self.counts[index] = terms, int(iterations.const)
        self.terms.setdefault(index, Term(0, None, indices=(index,)))
        loop = Loop(self.looked_at(terms, inside, self.values), self.length())
        self.loops.append(loop)
        self.around.append(index)
        as_counted = type(start) is int and (start, step) == (0, 1)
        try:
            for i in range(count):
                self.iteration[index] = i
                number = Varying(self, {index: 1}, 0, i)
                yield number if as_counted else start + step * number
        finally:  # also if the body leaves the loop
            del self.around[inside:]
            loop.end = self.length()
