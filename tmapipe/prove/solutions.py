"""Problems that fulfil what is decided where a proof stops: extents, clusters and entries, found by a small search.

Each condition has a *distance*: by how much it fails. The search changes one number at a time, by steps that a failing
condition suggests, as long as the distances together become less.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

from tmapipe.prove.problem import Problem, Sizes
from tmapipe.prove.symbols import Sym

__all__ = ["NoNumber", "solutions", "value_of"]

ROUNDS = 40
LARGE = 2**20


def solutions(facts: Iterable[Sym], sizes: Sizes) -> Iterator[Problem]:
    """Problems in which these conditions hold together, as far as one is found."""
    facts = sorted(facts, key=lambda each: each.number)
    for seed in range(3):
        found = _Search(facts, sizes, random.Random(seed)).run()
        if found is not None:
            yield from found
            return


class NoNumber(Exception):
    """What has no number here."""


class _Search:
    """values: of leaves."""

    def __init__(self, facts: list[Sym], sizes: Sizes, rng: random.Random):
        self.facts, self.sizes, self.rng = facts, sizes, rng
        self.values: dict[Sym, int] = {}
        for each in facts:
            self._add(each)

    def _add(self, x: Any) -> None:
        if isinstance(x, tuple):
            for each in x:
                self._add(each)
        elif isinstance(x, Sym) and x.op != "leaf":
            self._add(x.args)
        elif isinstance(x, Sym) and x not in self.values:
            kind, *name = x.args
            if kind == "extent":
                self.values[x] = self._unit(name[0])
            else:
                self.values[x] = 1 if kind == "entry" or name[0] == "clusters" else 0
            self._add(tuple(name))

    def _unit(self, dim: str) -> int:
        return max(self.sizes.tiles(dim), default=1) * self.sizes.plan.cluster.get(dim, 1)

    def _least(self, x: Sym) -> int | None:
        kind, name = x.args[0], x.args[1]
        if kind == "extent" or name == "clusters":
            return 1
        return 0 if kind in ("turn", "of the launch") else None

    def run(self) -> list[Problem] | None:
        best = self._distance()
        for _ in range(ROUNDS):
            if best == 0:
                self._make_small()
                return self._problems()
            changes = [(self._with(x, value), x, value) for x in self.values for value in self._tries(x)]
            if not changes:
                return None
            least, x, value = min(changes, key=lambda each: each[0])
            if least >= best:
                least, x, value = self.rng.choice(changes)
            self.values[x], best = value, least
        return None

    def _make_small(self) -> None:
        """Smaller numbers that do as well."""
        for x, value in list(self.values.items()):
            least = self._least(x)
            for less in (0 if least is None else least, 1, 2, value // 4, value // 2):
                if abs(less) < abs(value) and (least is None or less >= least) and not self._with(x, less):
                    self.values[x] = less
                    break

    def _tries(self, x: Sym) -> list[int]:
        value, unit = self.values[x], self._unit(x.args[1]) if x.args[0] == "extent" else 1
        found = {value + step * of for step in (-1, 1) for of in (1, 2, unit, 2 * unit)}
        for fact in self.facts:  # as far as a condition says, if it changes evenly
            if x in fact.leaves and fact.op in ("ge", "eq"):
                for step in {1, unit}:
                    here, there = self._sum(fact), self._sum(fact, {x: value + step})
                    if here is not None and there is not None and here != there:
                        times = -here / (there - here)
                        found |= {value + step * int(times + more) for more in (-1, 0, 1)}
        least = self._least(x)
        return [each for each in found if each != value and abs(each) < LARGE and (least is None or each >= least)]

    def _sum(self, fact: Sym, changed: dict[Sym, int] | None = None) -> int | None:
        try:
            return value_of(fact.args[0], {**self.values, **(changed or {})})
        except NoNumber:
            return None

    def _with(self, x: Sym, value: int) -> int:
        before, self.values[x] = self.values[x], value
        found = self._distance()
        self.values[x] = before
        return found

    def _distance(self) -> int:
        of = {x.args[1]: value for x, value in self.values.items() if x.args[0] == "of the launch"}
        outside = max(0, of.get("cluster", 0) + 1 - of.get("clusters", 2**31))
        return outside + sum(min(_distance(fact, self.values), LARGE) for fact in self.facts)

    def _problems(self) -> list[Problem]:
        sizes, found = self.sizes, []
        extents = {x.args[1]: value for x, value in self.values.items() if x.args[0] == "extent"}
        of = {x.args[1]: value for x, value in self.values.items() if x.args[0] == "of the launch"}
        cluster = of.get("cluster", 0)
        clusters = max(of.get("clusters", 1), cluster + 1)
        tables: dict[str, dict[int, int]] = {}
        for x, value in self.values.items():
            if x.args[0] == "entry":
                try:
                    tables.setdefault(x.args[1], {})[value_of(x.args[2], self.values)] = value
                except NoNumber:
                    tables.setdefault(x.args[1], {})
        entries = {
            name: [at.get(i, 1) for i in range(1 + max([0, *at]))]
            for name, at in tables.items()
            if max([0, *at]) < 4096
        }
        for tiles, steps in ((1, 1), (2 * sizes.group, sizes.slots + 1), ((sizes.slots + 2) * sizes.group, 2)):
            every = {}
            for dim in (*sizes.dims, *sizes.others):
                count = tiles * clusters if dim == sizes.along else steps if dim in sizes.others else 1
                every[dim] = extents.get(dim, count * self._unit(dim))
            every |= {dim: value for dim, value in extents.items() if dim not in every}
            problem = Problem(sizes.plan.shapes(every), cluster, clusters, entries)
            if problem not in found:
                found.append(problem)
        return found


def _distance(x: Any, values: dict[Sym, int]) -> int:
    """By how much a condition fails; 0 if it holds, or has no number."""
    try:
        if not isinstance(x, Sym):
            return int(not x)
        if x.op == "ge":
            return max(0, -value_of(x.args[0], values))
        if x.op == "eq":
            return abs(value_of(x.args[0], values))
        if x.op == "all":
            return sum(_distance(each, values) for each in x.args)
        if x.op == "any":
            return min(_distance(each, values) for each in x.args)
        return int(not value_of(x, values))
    except NoNumber:
        return 0


def value_of(x: Any, values: dict[Sym, int]) -> int:
    """The number that a formula has with these leaves. Raises `NoNumber` if it has none."""
    if not isinstance(x, Sym):
        return int(x)
    a = x.args
    if x.op == "leaf":
        return values[x]
    if x.op == "sum":
        return a[0] + sum(n * value_of(term, values) for term, n in a[1])
    if x.op == "select":
        return value_of(a[1] if value_of(a[0], values) else a[2], values)
    if x.op == "div" and not value_of(a[1], values):
        raise NoNumber
    operate = _OF.get(x.op)
    if operate is None:
        raise NoNumber
    return int(operate(*(value_of(each, values) for each in a)))


def _product(*factors: int) -> int:
    found = 1
    for each in factors:
        found *= each
    return found


_OF: dict[str, Any] = {
    "prod": _product,
    "div": lambda a, b: a // b,
    "ge": lambda a: a >= 0,
    "eq": lambda a: a == 0,
    "not": lambda a: not a,
    "all": lambda *all_: all(all_),
    "any": lambda *any_: any(any_),
    "number": lambda a: a,
    "min": min,
    "max": max,
    "abs": abs,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
