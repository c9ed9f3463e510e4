"""Whether conditions can hold together: Fourier and Motzkin's elimination over the integers' relaxation, in exact arithmetic.

The answer "no" is exact. "Yes" may be wrong: what cannot be decided counts as possible, which a proof may always assume.
Besides the conditions, the definitions of quotients by numbers, minima, maxima and choices are used, and the bounds of leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from tmapipe.prove.symbols import Sym, add, at_least_0, both, either, negated, parts

__all__ = ["Solver"]

MOST = 300  # constraints; with more, everything is possible
CASES = 24  # of "or", "not equal", minima and choices together
Choice = tuple[Any, ...]  # conditions of which one holds
Row = tuple[tuple[tuple[Sym, int], ...], int]  # the sum of terms and a constant is at least 0


class Solver:
    """Decides conjunctions. bounds: (least, most) value of a leaf, each a number or None."""

    def __init__(self, bounds: Callable[[Sym], tuple[int | None, int | None]]):
        self.bounds = bounds
        self._known: dict[frozenset[Sym], bool] = {}
        self._defined: dict[Sym, tuple[list[Any], Choice, list[Sym]]] = {}

    def possible(self, conditions: Iterable[Any]) -> bool:
        """Whether all of them may hold together."""
        given: list[Sym] = []
        for each in conditions:
            if not isinstance(each, Sym):
                if not each:
                    return False
            else:
                given.append(each)
        key = frozenset(_related(given))
        if key not in self._known:
            self._known[key] = not any(negated(each) in key for each in key) and self._cases(list(key), [], CASES)[0]
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

    def _cases(
        self, todo: list[Sym], rows: list[Any], left: int, settled: frozenset[Sym] = frozenset()
    ) -> tuple[bool, int]:
        """(whether they may hold, how many cases are left to look at). rows: sums that are at least 0. settled: terms of whose
        cases one has been taken, or is among the conditions."""
        todo, rows = list(todo), list(rows)
        choices: list[Choice] = []
        while todo:
            condition = todo.pop()
            if not isinstance(condition, Sym):
                if not condition:
                    return False, left
            elif condition.op == "ge":
                rows.append(condition.args[0])
            elif condition.op == "eq":
                rows += [condition.args[0], add(0, condition.args[0], -1)]
            elif condition.op == "all":
                todo += condition.args
            elif condition.op == "any":
                choices.append(condition.args)
            elif condition.op == "not" and condition.args[0].op == "eq":
                value = condition.args[0].args[0]
                choices.append((at_least_0(add(value, -1)), at_least_0(add(-1, value, -1))))
        definitions, of_terms = self._definitions(rows, settled)
        if not self._rows_possible(rows + definitions):
            return False, left
        choices += of_terms.values()
        if not choices or left <= 0:
            return True, left
        first, *others = choices
        rest = [either(*choice) for choice in others]
        for case in first:
            left -= 1
            found, left = self._cases([case, *rest], rows, left, settled | of_terms.keys())
            if found:
                return True, left
        return False, left

    def _definitions(self, rows: list[Any], settled: frozenset[Sym]) -> tuple[list[Any], dict[Sym, Choice]]:
        """What holds of the terms in these sums, and for those that are not settled conditions of which one does."""
        found: list[Any] = []
        choices: dict[Sym, Choice] = {}
        seen: set[Sym] = set()
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
            if choice and term not in settled:
                choices[term] = choice
        return found, choices

    def _definition(self, term: Sym) -> tuple[list[Any], Choice, list[Sym]]:
        """What holds of one term: sums that are at least 0, conditions of which one holds, and the terms of the sums."""
        new: list[Any] = []
        choice: Choice = ()
        if term.op == "leaf":
            low, high = self.bounds(term)
            new = [] if low is None else [add(term, -low)]
            new += [] if high is None else [add(high, term, -1)]
        elif term.op == "div" and not isinstance(term.args[1], Sym) and term.args[1] > 0:
            a, b = term.args
            new = [add(a, term, -b), add(add(b - 1, a, -1), term, b)]
        elif term.op in ("min", "max"):
            a, b = term.args
            sign = 1 if term.op == "min" else -1
            new = [add(0, add(each, term, -1), sign) for each in (a, b)]
            choice = tuple(at_least_0(add(0, add(term, each, -1), sign)) for each in (a, b))
        elif term.op == "select":
            condition, a, b = term.args
            same = [both(at_least_0(add(term, each, -1)), at_least_0(add(each, term, -1))) for each in (a, b)]
            choice = (both(condition, same[0]), both(negated(condition), same[1]))
        elif term.op == "number":
            new = [term, add(1, term, -1)]
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
        rows: set[Row] = set()
        for each in sums:
            constant, factors = parts(each)
            if not factors:
                if constant < 0:
                    return False
                continue
            rows.add(_tight(factors, constant))
        while rows:
            counts: dict[Sym, list[int]] = {}
            uneven: dict[Sym, set[bool]] = {}  # signs of factors other than 1 and -1
            for terms, _ in rows:
                for term, n in terms:
                    counts.setdefault(term, [0, 0])[n > 0] += 1
                    if abs(n) > 1:
                        uneven.setdefault(term, set()).add(n > 0)
            # first those without which nothing is lost, since all are integers
            term = min(counts, key=lambda t: (len(uneven.get(t, ())) > 1, counts[t][0] * counts[t][1], t.number))
            rest: set[Row] = set()
            up: list[tuple[dict[Sym, int], int, int]] = []
            down: list[tuple[dict[Sym, int], int, int]] = []
            for row in rows:
                factors = dict(row[0])
                n = factors.pop(term, 0)
                if not n:
                    rest.add(row)
                else:
                    (up if n > 0 else down).append((factors, abs(n), row[1]))
            for one, p, m in up:
                for other, q, n in down:
                    made = {t: q * x for t, x in one.items()}
                    for t, x in other.items():
                        made[t] = made.get(t, 0) + p * x
                    made = {t: x for t, x in made.items() if x}
                    constant = q * m + p * n
                    if not made:
                        if constant < 0:
                            return False
                    else:
                        rest.add(_tight(made, constant))
            if len(rest) > MOST:
                return True
            rows = rest
        return True


def terms_of(value: Any) -> tuple[Sym, ...]:
    """The terms of a sum."""
    if not isinstance(value, Sym):
        return ()
    return tuple([term for term, _ in value.args[1]]) if value.op == "sum" else (value,)


def _tight(terms: dict[Sym, int], constant: int) -> Row:
    """Divided by the common factor of its terms, and rounded, since all are integers."""
    common = math.gcd(*terms.values())
    return tuple(sorted(((t, n // common) for t, n in terms.items()), key=lambda x: x[0].number)), constant // common


def _related(conditions: list[Sym]) -> list[Sym]:
    """Those that share leaves, directly or through others, with the first one; all have been possible without it."""
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
