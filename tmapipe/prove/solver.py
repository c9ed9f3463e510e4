"""The operations of a traced program on symbolic numbers, and whether conditions on them can hold together."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from tmapipe.check.linear import look_now
from tmapipe.prove.symbols import (
    Sym,
    add,
    at_least_0,
    both,
    divide,
    either,
    intern,
    is_0,
    leaf,
    modulo,
    negated,
    parts,
    total,
    truth,
)

# ---- operations ------------------------------------------------------------------------------------------------------
#
# Arithmetic, positions behind skipped slots (`prove.shared`), and values with other numbers in the place of leaves.


def _number(value: Any) -> Any:
    """A condition as a number."""
    if isinstance(value, Sym) and value.condition:
        return intern("number", value)
    return int(value) if isinstance(value, bool) else value


def _extreme(name: str, least: bool) -> Callable[..., Any]:
    def operate(a: Any, b: Any) -> Any:
        apart = b - a
        if not isinstance(apart, Sym):
            return a if (apart >= 0) == least else b
        return intern(name, *sorted((a, b), key=lambda x: (isinstance(x, Sym), x.number if isinstance(x, Sym) else x)))

    return operate


def _select(condition: Any, a: Any, b: Any) -> Any:
    condition = truth(condition)
    if not isinstance(condition, Sym):
        return a if condition else b
    if a == b:
        return a
    if isinstance(a, bool) and isinstance(b, bool):
        return condition if a else negated(condition)
    return intern("select", condition, a, b)


def _bits(name: str, plain: Callable[[int, int], int]) -> Callable[..., Any]:
    def operate(a: Any, b: Any) -> Any:
        conditions = [isinstance(x, bool) or (isinstance(x, Sym) and x.condition) for x in (a, b)]
        if all(conditions) and name in ("and", "or"):
            return both(a, b) if name == "and" else either(a, b)
        if not isinstance(a, Sym) and not isinstance(b, Sym):
            return plain(a, b)
        if all(conditions):
            known, other = (a, b) if not isinstance(a, Sym) else (b, a)
            if not isinstance(known, Sym):
                return negated(other) if known else other
        a, b = _number(a), _number(b)
        if name == "and" and not isinstance(b, Sym) and b >= 0 and b & (b + 1) == 0:
            return modulo(a, b + 1)
        return intern(name, a, b)

    return operate


def _compare(test: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda a, b: test(_number(a), _number(b))


# ---- positions behind slots that are skipped ------------------------------------------------------------------------------


def skipped(slot: Any, parity: Any, slots: Any, stages: int, ring: str) -> tuple[Any, Any]:
    """(slot, parity) so many slots later in a ring. None if it starts at no known position of the ring."""
    if isinstance(parity, Sym) and parity.op == "parity after" and parity.args[2:] == (stages, ring):
        base, before = parity.args[:2]
        if slot is not after("slot after", base, before, stages, ring):
            return None, None
        slots = slots + before
    elif not (isinstance(slot, int) and isinstance(parity, int)):
        return None, None
    else:
        base = slot + stages * parity
    return tuple(after(kind, base, slots, stages, ring) for kind in ("slot after", "parity after"))


def after(kind: str, base: int, slots: Any, stages: int, ring: str) -> Any:
    """The slot, or the parity, of the position *slots* slots after position *base* of a ring, counted through two laps. The
    constant in *slots* goes into the base, so that each position has one form."""
    known, terms = parts(slots)
    around = stages if kind == "slot after" else 2 * stages
    base = (base + known) % around
    if not terms:
        return base if kind == "slot after" else base // stages
    return intern(kind, base, total(0, terms), stages, ring)


def _next(slot: Any, stages: int) -> Any:
    if isinstance(slot, Sym) and slot.op == "slot after" and slot.args[2] == stages:
        return after(slot.op, slot.args[0] + 1, *slot.args[1:])
    return _select(is_0(slot + 1 - stages), 0, slot + 1)


def _flipped(parity: Any, slot: Any, stages: int) -> Any:
    if isinstance(parity, Sym) or isinstance(slot, Sym):
        if isinstance(parity, Sym) and parity.op == "parity after" and slot is after("slot after", *parity.args):
            return after(parity.op, parity.args[0] + 1, *parity.args[1:])
        return intern("flipped", parity, slot, stages)
    return parity ^ int(slot + 1 == stages)


#: operation of a program's expressions -> what it gives
_OF: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: _number(a) + _number(b),
    "sub": lambda a, b: _number(a) - _number(b),
    "mul": lambda a, b: _number(a) * _number(b),
    "floordiv": lambda a, b: divide(_number(a), _number(b)),
    "mod": lambda a, b: modulo(_number(a), _number(b)),
    "neg": lambda a: -_number(a),
    "lshift": lambda a, b: _number(a) * (1 << b) if not isinstance(b, Sym) else intern("lshift", a, b),
    "rshift": lambda a, b: divide(_number(a), 1 << b) if not isinstance(b, Sym) else intern("rshift", a, b),
    "and": _bits("and", lambda a, b: a & b),
    "or": _bits("or", lambda a, b: a | b),
    "xor": _bits("xor", lambda a, b: a ^ b),
    "lt": _compare(lambda a, b: at_least_0(b - a - 1)),
    "le": _compare(lambda a, b: at_least_0(b - a)),
    "gt": _compare(lambda a, b: at_least_0(a - b - 1)),
    "ge": _compare(lambda a, b: at_least_0(a - b)),
    "eq": _compare(lambda a, b: is_0(a - b)),
    "ne": _compare(lambda a, b: negated(is_0(a - b))),
    "not": lambda a: negated(truth(a)),
    "invert": lambda a: -1 - _number(a),
    "min": _extreme("min", True),
    "max": _extreme("max", False),
    "abs": lambda a: abs(a) if not isinstance(a, Sym) else intern("abs", a),
    "select": _select,
    "next": _next,
    "flipped": _flipped,
    "slot after": functools.partial(after, "slot after"),
    "parity after": functools.partial(after, "parity after"),
}


def arithmetic(op: str, *args: Any) -> Any:
    """The value of an operation of a program's expressions; None if it has none here."""
    operate = _OF.get(op)
    if operate is None:
        return intern(op, *args) if any(isinstance(a, Sym) for a in args) else None
    return operate(*args)


def replaced(value: Any, changes: Mapping[Sym, Any], memo: dict[Sym, Any] | None = None) -> Any:
    """The value with other numbers in the place of some leaves."""
    if not isinstance(value, Sym) or value.leaves.isdisjoint(changes):
        return value
    memo = {} if memo is None else memo
    if value not in memo:
        memo[value] = _replaced(value, changes, memo)
    return memo[value]


def _replaced(value: Sym, changes: Mapping[Sym, Any], memo: dict[Sym, Any]) -> Any:
    if value.op == "leaf":
        if value in changes:
            return changes[value]
        if value.args[0] == "large":
            return replaced(value.args[1], changes, memo)
        return leaf(*(_inside(each, changes, memo) for each in value.args))
    if value.op == "sum":
        constant, found = value.args[0], 0
        for term, n in value.args[1]:
            found = add(found, replaced(term, changes, memo), n)
        return found + constant
    operate = _OF_SYMBOLS.get(value.op, functools.partial(arithmetic, value.op))
    return operate(*(_inside(each, changes, memo) for each in value.args))


#: operation of a symbol, if expressions of a program have none that is the same -> what it gives
_OF_SYMBOLS: dict[str, Callable[..., Any]] = {
    "prod": lambda *factors: functools.reduce(operator.mul, factors),
    "ge": at_least_0,
    "eq": is_0,
    "not": negated,
    "all": both,
    "any": either,
    "div": divide,
    "number": _number,
}


def _inside(value: Any, changes: Mapping[Sym, Any], memo: dict[Sym, Any]) -> Any:
    if isinstance(value, tuple):
        return tuple(_inside(each, changes, memo) for each in value)
    return replaced(value, changes, memo)


# ---- solver ----------------------------------------------------------------------------------------------------------
#
# Fourier-Motzkin elimination over rational numbers, in exact arithmetic. "No" is exact. "Yes" may be wrong: what cannot be
# decided counts as possible, which a proof may always assume. Known are, besides the conditions, the bounds of leaves and the
# definitions of quotients by numbers, minima, maxima and choices.


MOST = 300  # constraints; with more, everything is possible
CASES = 24  # how many cases of "or", "not equal", minima and choices are tried
Choice = tuple[Any, ...]  # conditions of which one holds
Terms = frozenset[tuple[Sym, int]]  # with their factors


class Solver:
    """Decides conjunctions. bounds: (least, most) value of a leaf, each a number or None; cases: how many are tried; inside:
    whether large quotients and choices are looked into, which the search has as numbers of their own."""

    def __init__(
        self, bounds: Callable[[Sym], tuple[int | None, int | None]], cases: int = CASES, inside: bool = False
    ):
        self.bounds, self.cases, self.inside = bounds, cases, inside
        self._known: dict[frozenset[Sym], bool] = {}
        self._defined: dict[Sym, tuple[list[Any], Choice, list[Sym]]] = {}

    def possible(self, conditions: Iterable[Any]) -> bool:
        """Whether these conditions may hold together."""
        given: list[Sym] = []
        for each in conditions:
            if not isinstance(each, Sym):
                if not each:
                    return False
            else:
                given.append(each)
        key = frozenset(_related(given))
        if key not in self._known:
            todo = list(key)
            opposite = any(negated(each) in key for each in key)
            self._known[key] = not opposite and (self._first_case(todo) or self._cases(todo, [], self.cases)[0])
        return self._known[key]

    def decided(self, condition: Any, given: Iterable[Any]) -> bool | None:
        """Whether a condition is true (or false) wherever the given ones are; None if it may be either."""
        if not isinstance(condition, Sym):
            return bool(condition)
        given = tuple(given)
        if condition in given:
            return True
        if negated(condition) in given:
            return False
        if not self.possible((condition, *given)):
            return False
        return None if self.possible((negated(condition), *given)) else True

    # ---- cases ------------------------------------------------------------------------------------------------------

    def _first_case(self, todo: list[Any]) -> bool:
        """Whether the conditions may hold with the first case of each choice."""
        rows: list[Any] = []
        seen: set[Sym] = set()
        while todo:
            look_now()
            read = self._read(todo)
            if read is None:
                return False
            definitions, choices = self._definitions(read[0], seen)
            rows += read[0] + definitions
            todo = [cases[0] for cases in (*read[1], *choices.values())]
        return self._rows_possible(rows)

    def _cases(
        self, todo: list[Any], rows: list[Any], left: int, settled: frozenset[Sym] = frozenset()
    ) -> tuple[bool, int]:
        """(whether the conditions may hold, how many cases may still be tried).

        Args:
            todo: Conditions.
            rows: Sums that are at least 0.
            left: How many cases may be tried.
            settled: Terms of which a case has been taken.
        """
        look_now()
        found = self._collected(todo, rows, settled)
        if found is None:
            return False, left
        rows, definitions, choices, terms = found
        if not self._rows_possible(rows + definitions):
            return False, left
        if not choices or left <= 0:
            return True, left
        first, *others = choices
        rest = [either(*choice) for choice in others]
        for case in first:
            left -= 1
            possible, left = self._cases([case, *rest], rows, left, settled | terms)
            if possible:
                return True, left
        return False, left

    def _collected(self, todo: list[Any], rows: list[Any], settled: frozenset[Sym]) -> Any:
        """(sums that are at least 0, with *rows*; sums of definitions; choices, of each of which one case holds; the terms of
        definitions that have choices), as the conditions *todo* say. None if a condition is false."""
        read = self._read(todo)
        if read is None:
            return None
        rows = rows + read[0]
        definitions, of_terms = self._definitions(rows, set())
        of_terms = {term: choice for term, choice in of_terms.items() if term not in settled}
        return rows, definitions, [*read[1], *of_terms.values()], of_terms.keys()

    def _read(self, todo: list[Any]) -> tuple[list[Any], list[Choice]] | None:
        """(sums that are at least 0; choices, of each of which one case holds), as the conditions say; None: one is false."""
        todo, rows, choices = list(todo), list[Any](), list[Choice]()
        while todo:
            condition = todo.pop()
            if not isinstance(condition, Sym):
                if not condition:
                    return None
            elif condition.op == "ge":
                rows.append(condition.args[0])
            elif condition.op == "eq":
                rows += [condition.args[0], -condition.args[0]]
            elif condition.op == "all":
                todo += condition.args
            elif condition.op == "any":
                choices.append(condition.args)
            elif condition.op == "not" and condition.args[0].op == "eq":
                value = condition.args[0].args[0]
                choices.append((at_least_0(value - 1), at_least_0(-1 - value)))
        return rows, choices

    def _definitions(self, rows: list[Any], seen: set[Sym]) -> tuple[list[Any], dict[Sym, Choice]]:
        """Conditions that hold of the terms in these sums; and by term, conditions of which one holds. seen: terms to leave
        out, which these terms join."""
        found: list[Any] = []
        choices: dict[Sym, Choice] = {}
        todo = [term for row in rows for term in terms_of(row)]
        while todo:
            term = todo.pop()
            if term in seen:
                continue
            seen.add(term)
            if term not in self._defined:
                self._defined[term] = self._definition(term)
            new, choice, inside = self._defined[term]
            found += new
            todo += inside
            if choice:
                choices[term] = choice
        return found, choices

    def _definition(self, term: Sym) -> tuple[list[Any], Choice, list[Sym]]:
        """What holds of one term: sums that are at least 0, conditions of which one holds, and the terms of the sums."""
        new: list[Any] = []
        choice: Choice = ()
        if self.inside and term.op == "leaf" and term.args[0] == "large":
            new = [term - term.args[1], term.args[1] - term]
        elif term.op == "leaf":
            low, high = self.bounds(term)
            new = [] if low is None else [term - low]
            new += [] if high is None else [high - term]
        elif term.op == "div" and not isinstance(term.args[1], Sym) and term.args[1] > 0:
            a, b = term.args
            new = [a - b * term, b * term + b - 1 - a]
        elif term.op in ("min", "max"):
            a, b = term.args
            sign = 1 if term.op == "min" else -1
            new = [sign * (each - term) for each in (a, b)]
            choice = tuple(at_least_0(sign * (term - each)) for each in (a, b))
        elif term.op == "select":
            condition, a, b = term.args
            same = [both(at_least_0(term - each), at_least_0(each - term)) for each in (a, b)]
            choice = (both(condition, same[0]), both(negated(condition), same[1]))
        elif term.op == "number":
            new = [term, 1 - term]
        elif term.op == "prod" and all(self._least(factor) for factor in term.args):
            new = [term]
        return new, choice, [each for row in new for each in terms_of(row)]

    def _least(self, term: Sym) -> bool:
        """Whether a factor is known to be at least 0."""
        if term.op == "leaf":
            low, _ = self.bounds(term)
            return low is not None and low >= 0
        return False

    # ---- elimination ------------------------------------------------------------------------------------------------

    def _rows_possible(self, sums: list[Any]) -> bool:
        if any(each < 0 for each in sums if not isinstance(each, Sym)):
            return False
        rows = _Rows()
        for each in sums:
            if isinstance(each, Sym):
                rows.add(*((each.args[1], each.args[0]) if each.op == "sum" else (((each, 1),), 0)))
        while rows.constants:
            for terms, constant in rows.without(rows.next()):
                if terms:
                    rows.add(terms, constant)
                elif constant < 0:
                    return False
            if len(rows.constants) > MOST:
                return True
        return True


class _Rows:
    """Sums that are at least 0. constants: by terms with factors, the constant; users: by term, the sums in which its factor
    is below 0, and above 0, each with the factor."""

    def __init__(self) -> None:
        self.constants: dict[Terms, int] = {}
        self.users: dict[Sym, tuple[dict[Terms, int], dict[Terms, int]]] = {}

    def add(self, terms: Collection[tuple[Sym, int]], constant: int) -> None:
        """Adds a sum, divided by the common factor of its terms and rounded, since all are integers. Of two sums with the same
        terms, the one with the lesser constant stays: it says more."""
        common = math.gcd(*[n for _, n in terms])
        key = frozenset([(term, n // common) for term, n in terms] if common > 1 else terms)
        constant //= common
        if key not in self.constants:
            for term, n in key:
                self.users.setdefault(term, ({}, {}))[n > 0][key] = n
        self.constants[key] = min(constant, self.constants.get(key, constant))

    def next(self) -> Sym:
        """The term to take out: one without which no sum is left, or else one without which nothing is lost, since all are
        integers, of the fewest pairs of sums."""
        for term, (below, above) in self.users.items():
            if not below or not above:
                return term
        return min(self.users, key=self._cost)

    def _cost(self, term: Sym) -> tuple[bool, int, int]:
        below, above = self.users[term]
        uneven = min(below.values()) < -1 and max(above.values()) > 1
        return uneven, len(below) * len(above), term.number

    def without(self, term: Sym) -> list[tuple[list[tuple[Sym, int]], int]]:
        """Takes out the sums with a term. Returns what they say of the other terms."""
        below, above = self.users.pop(term)
        constants = {key: self.constants.pop(key) for users in (below, above) for key in users}
        for key in constants:
            for other, n in key:
                if other is not term:
                    del self.users[other][n > 0][key]
        found = []
        for one, p in above.items():
            for two, q in below.items():
                made = {each: -q * x for each, x in one}
                for each, x in two:
                    made[each] = made.get(each, 0) + p * x
                found.append(([each for each in made.items() if each[1]], p * constants[two] - q * constants[one]))
        return found


def terms_of(value: Any) -> tuple[Sym, ...]:
    """The terms of a sum."""
    if not isinstance(value, Sym):
        return ()
    return tuple([term for term, _ in value.args[1]]) if value.op == "sum" else (value,)


def _related(conditions: list[Sym]) -> list[Sym]:
    """The conditions that share symbols with the first condition, directly or through others. The rest is known to be possible
    together: it was before the first was added."""
    if not conditions:
        return []
    found, rest, near = [conditions[0]], list(conditions[1:]), set(conditions[0].leaves)
    while True:
        more = [each for each in rest if not each.leaves.isdisjoint(near)]
        if not more:
            return found
        rest = [each for each in rest if each.leaves.isdisjoint(near)]
        found += more
        for each in more:
            near |= each.leaves
