"""Concrete problems that may show what is wrong: shapes, clusters and tables in which what bodies decide on differs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import attrs

from tmapipe.check.problems import Problems
from tmapipe.machine.layout import Shapes
from tmapipe.machine.recording import Tables

__all__ = ["Problem", "problems_near"]

MOST = 160  # problems
FEW, ENTRIES = 8, 64  # entries of a table: as many as its extent at first, and later


@attrs.frozen
class Problem:
    """Tensors of these shapes, for one of some clusters; what bodies find in tables."""

    shapes: Shapes
    cluster: int = 0
    clusters: int = 1
    tables: Tables = attrs.field(factory=dict)

    @property
    def text(self) -> str:
        parts = [f"{name} {' x '.join(map(str, shape))}" for name, shape in self.shapes.items()]
        if self.clusters > 1:
            parts.append(f"cluster {self.cluster} of {self.clusters}")
        parts += [f"{name} = {list(entries[:4])} ..." for name, entries in self.tables.items()]
        return ", ".join(parts)


def problems_near(problems: Problems, entries: int = ENTRIES) -> Iterator[Problem]:
    """Small problems first. They differ in what bodies have been found to decide on. entries: the extent
    of each table."""
    sources = problems.sources()
    symbols = {key[1].split(" ")[0] for key in sources if key[0] == "symbol"}
    dims = {key[1] for key in sources if key[0] == "extent"} | {
        name[5:] for name in symbols if name.startswith("tile.")
    }
    if dims & {"first", "steps"}:
        dims |= set(problems.others)
    far = max([each.far for each in problems.kinds.variations], default=0)
    choices = {dim: _extents(problems, dim, dim in dims, far) for dim in (*problems.dims, *problems.others)}
    tables = list(_tables(problems, {key[1] for key in sources if key[0] == "entry"}))
    by_cluster = any(key[0] == "symbol" and "cluster" in key[1] for key in sources)
    clusters = [(c, of) for of in ((1, 2, 3) if by_cluster else (1,)) for c in range(of)]
    names = list(choices)
    if sum(len(each) > 1 for each in choices.values()) > 2:
        choices = {name: each[:6] for name, each in choices.items()}
    every = itertools.product(*(range(len(choices[name])) for name in names), range(len(tables)), range(len(clusters)))
    for at in sorted(every, key=lambda at: (sum(at), at))[:MOST]:
        extents = {name: choices[name][i] for name, i in zip(names, at, strict=False)}
        cluster, of = clusters[at[-1]]
        extents[problems.along] *= of
        for table in tables[at[-2]]:
            extents.setdefault(problems.plan.dims[table][0], entries)
        yield Problem(problems.plan.shapes(extents), cluster, of, tables[at[-2]])


def _extents(problems: Problems, dim: str, varied: bool, far: int) -> list[int]:
    """Extents to try: some whole tiles, and some that are none."""
    sizes = {
        extent for part in problems.plan.transfers for d, extent in zip(part.dims, part.tile, strict=True) if d == dim
    }
    if dim in problems.dims:
        sizes = {problems.tile[problems.dims.index(dim)]}
    unit = max(sizes, default=1) * problems.plan.cluster.get(dim, 1)
    usual = 2 * problems.group if dim == problems.along else 1
    if not varied:
        return [usual * unit]
    whole = [*range(1, 5), problems.slots + 1, problems.slots + 2, 2 * problems.slots + 2, far - 1, far, far + 2]
    ragged = [unit + 1, unit // 2, 2 * unit - 1, 2 * unit + 1, *sizes]
    both = [usual * unit, *itertools.chain.from_iterable(itertools.zip_longest([n * unit for n in whole], ragged))]
    return list(dict.fromkeys(extent for extent in both if extent and extent > 0))


def _tables(problems: Problems, names: set[str]) -> Iterator[dict[str, Any]]:
    """What tables may hold."""
    if not names:
        yield {}
        return
    for value in (1, 0, 2, 3, problems.slots + 1):
        yield {name: [value] * ENTRIES for name in names}
    for iteration in range(3):
        yield {name: [(i + j + iteration) % 3 for i in range(ENTRIES)] for j, name in enumerate(sorted(names))}
