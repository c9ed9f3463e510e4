"""Concrete problems that may show what is wrong: shapes, clusters and tables in which what bodies decide on differs.

First those that fulfil what is decided where the proof stops, then small ones, in which each number that bodies decide on
takes values at which their conditions change. They only find errors: that there are none is the matter of the proof.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from tmapipe.prove.moves import OF_CLUSTER
from tmapipe.prove.problem import Problem, Sizes
from tmapipe.prove.symbols import Sym, parts

__all__ = ["Varying", "problems"]

MOST = 160  # problems that differ in what bodies decide on
FIRST = 12  # sizes that are looked at before them
FEW, ENTRIES = 8, 64  # entries of a table: as many as its extent at first, and later
FARTHEST = 1000  # tiles along a dimension


class Varying:
    """What bodies decide on.

    dims: whose extents, or coordinates; tables: whose entries; by_cluster: whether the number of the cluster, or of all;
    far: the largest number of tiles with which something is compared; turning: extents at which a condition turns, by
    dimension.
    """

    def __init__(self, sizes: Sizes, asked: Iterable[Any]):
        self.dims: set[str] = set()
        self.tables: set[str] = set()
        self.by_cluster, self.far = False, 0
        self.turning: dict[str, set[int]] = {}
        self._seen: set[Sym] = set()
        for each in asked:
            self._look(each)
        if self.dims & set(OF_CLUSTER):
            self.dims |= set(sizes.others)
        self.inner = tuple(dim for dim in sizes.others if dim in self.dims)
        self.anything = bool(self.tables) or self.by_cluster or bool(self.dims)

    @property
    def ones(self) -> dict[str, list[int]]:
        """Tables of ones."""
        return {name: [1] for name in sorted(self.tables)}

    def _look(self, x: Any) -> None:
        if isinstance(x, tuple):
            for each in x:
                self._look(each)
        if not isinstance(x, Sym) or x in self._seen:
            return
        self._seen.add(x)
        if x.op == "leaf":
            kind = x.args[0]
            if kind in ("tile", "extent"):
                self.dims.add(x.args[1])
            elif kind == "entry":
                self.tables.add(x.args[1])
            elif kind == "of the launch":
                self.by_cluster = True
        elif x.op in ("ge", "eq"):
            constant, factors = parts(x.args[0])
            extents = [term for term in factors if term.op == "leaf" and term.args[0] == "extent"]
            if extents == [*factors]:
                for term in extents[:1]:
                    self.turning.setdefault(term.args[1], set()).add(abs(constant) // abs(factors[term]))
            if not extents:
                far = abs(constant) // min(map(abs, factors.values())) + 1
                self.far = max(self.far, far if far <= FARTHEST else 0)
        self._look(x.args)


def problems(sizes: Sizes, varying: Varying, solved: Iterable[Problem] = ()) -> Iterator[tuple[Problem, bool]]:
    """(problem, whether every schedule takes it), with *solved* among them."""
    for steps in (1, 2) if varying.inner else (1,):
        yield Problem(sizes.shapes(1, steps), tables=varying.ones), True
    yield from ((attrs.evolve(each, tables={**varying.ones, **each.tables}), False) for each in solved)
    yield from ((each, False) for each in itertools.islice(_near(sizes, varying, FEW), FIRST // 4))
    grown = _sizes(sizes, varying)
    for tiles, steps in grown[:FIRST]:
        yield Problem(sizes.shapes(tiles, steps), tables=varying.ones, size=(tiles, steps)), True
    if len(sizes.dims) > 2 and varying.inner and sizes.group == 1:
        # several tiles along dimensions before the tile's, such as the parts of a split k: of different steps, or none
        yield from ((Problem(sizes.shapes(1, steps, 3), tables=varying.ones), True) for steps in (1, 2, 5))
    yield from ((each, False) for each in _near(sizes, varying, ENTRIES))
    for tiles, steps in grown[FIRST:]:
        yield Problem(sizes.shapes(tiles, steps), tables=varying.ones, size=(tiles, steps)), True


def _sizes(sizes: Sizes, varying: Varying) -> list[tuple[int, int]]:
    """(tiles, steps) of problems of growing size: small ones first, the largest last."""
    group, slots = sizes.group, sizes.slots
    most, long = 2 * slots + 2, (slots + 2) * group
    if not varying.inner:
        return [(tiles, 1) for tiles in range(1, most * group + 1)]
    steps = sorted({1, max(1, slots - 1), slots, slots + 1, most})
    some = itertools.product(range(2, 2 * group + 2), steps)
    return [*((1, count) for count in range(1, most + 1)), *some, (long, 1), (long, most)]


def _near(sizes: Sizes, varying: Varying, entries: int) -> Iterator[Problem]:
    """Small problems first, which differ in what bodies decide on. entries: the extent of each table."""
    if not varying.anything:
        return
    choices = {dim: _extents(sizes, dim, varying) for dim in (*sizes.dims, *sizes.others)}
    tables = list(_tables(sizes, varying.tables))
    clusters = [(c, of) for of in ((1, 2, 3) if varying.by_cluster else (1,)) for c in range(of)]
    names = list(choices)
    if sum(len(each) > 1 for each in choices.values()) > 2:
        choices = {name: each[:6] for name, each in choices.items()}
    every = itertools.product(*(range(len(choices[name])) for name in names), range(len(tables)), range(len(clusters)))
    for at in sorted(every, key=lambda at: (sum(at), at))[:MOST]:
        extents = {name: choices[name][i] for name, i in zip(names, at, strict=False)}
        cluster, of = clusters[at[-1]]
        extents[sizes.along] *= of
        for table in tables[at[-2]]:
            extents.setdefault(sizes.plan.dims[table][0], entries)
        yield Problem(sizes.plan.shapes(extents), cluster, of, tables[at[-2]])


def _extents(sizes: Sizes, dim: str, varying: Varying) -> list[int]:
    """Extents to try: some whole tiles, and some that are none."""
    tiles = sizes.tiles(dim)
    unit = max(tiles, default=1) * sizes.plan.cluster.get(dim, 1)
    usual = 2 * sizes.group if dim == sizes.along else 1
    if dim not in varying.dims:
        return [usual * unit]
    far, turning = varying.far, sorted(each for each in varying.turning.get(dim, ()) if each <= FARTHEST * unit)
    whole = [*range(1, 5), sizes.slots + 1, sizes.slots + 2, 2 * sizes.slots + 2, far - 1, far, far + 2, 2 * far]
    ragged = [unit + 1, unit // 2, 2 * unit - 1, 2 * unit + 1, *tiles]
    both = [usual * unit, *itertools.chain.from_iterable(itertools.zip_longest([n * unit for n in whole], ragged))]
    near = [each + more for each in turning for more in (0, 1, -1)]
    return list(dict.fromkeys(extent for extent in [*both[:1], *near, *both] if extent and extent > 0))


def _tables(sizes: Sizes, names: set[str]) -> Iterator[dict[str, Any]]:
    """What tables may hold."""
    if not names:
        yield {}
        return
    for value in (1, 0, 2, 3, sizes.slots + 1):
        yield {name: [value] * ENTRIES for name in names}
    for iteration in range(3):
        yield {name: [(i + j + iteration) % 3 for i in range(ENTRIES)] for j, name in enumerate(sorted(names))}
