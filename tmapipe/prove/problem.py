"""Concrete problems, that is shapes of tensors, a cluster and tables: how one is run, and how one is found in which given
conditions hold. And moves, by which bodies are described."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from tmapipe.check import Finding
from tmapipe.check.deadlocks import check_operations, refused
from tmapipe.check.linear import LinearCheck, look
from tmapipe.errors import PipelineError
from tmapipe.isa import Access, Proxy, Start, declared, proxy_of
from tmapipe.model.layout import Layout, Shapes, locate
from tmapipe.plan.model import Plan
from tmapipe.program import operations
from tmapipe.program.expressions import Call, every
from tmapipe.prove.solver import replaced
from tmapipe.prove.symbols import Sym, leaf, parts

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule


# ---- moves -----------------------------------------------------------------------------------------------------------
#
# Where a body moves a tile: starts are numbers over symbols. The coordinates of the output tile are symbols (`coordinate`),
# and so is the index of a loop of open count.


DATA = ("entry", "answer")  # kinds of symbols that are data
#: Coordinates of tiles that are the same in each CTA of a cluster
OF_CLUSTER = ("first", "steps")


def coordinate(dim: str) -> Sym:
    """The symbol for the coordinate of a cluster's tile along a dimension, in tiles of a cluster."""
    return leaf("tile", dim)


def is_coordinate(x: Sym) -> bool:
    return x.op == "leaf" and x.args[0] == "tile"


def is_turn(x: Sym) -> bool:
    """Whether *x* is the index of a loop of a body."""
    return x.op == "leaf" and x.args[0] == "index"


class Move(NamedTuple):
    """One warp moves a tile, or starts an engine that does.

    Args:
        part: The load or store; or a `Part`, for a read of a slot at places that only a launch knows.
        at: Where it starts, along each dimension.
        loops: The indices of the loops around it, and how often each runs.
        sometimes: Whether only some iterations of a loop move it, or only some of its elements are stored.
        agent: The warp.
        where: Its source line.
        inside: Whether it is a load that has to start inside of its tensor, a store that has to start at 0 or later, or a read
            that has to stay inside of its slot.
        rows: How many rows an engine stores at most; None: all of the tile.
    """

    part: Any
    at: tuple[Any, ...]
    loops: tuple[tuple[Sym, Any], ...]
    sometimes: bool
    agent: int
    where: str | None
    inside: bool = False
    rows: Any = None


class Visit(NamedTuple):
    """What the warps of a cluster do at one output tile, by warp.

    place: its coordinates, in tiles of a cluster; None before the first tile. facts: what has been decided there.
    """

    place: Mapping[str, Any] | None
    facts: frozenset[Sym]
    moves: dict[int, list[Move]]


class Fork(Exception):
    """A condition of a body on which stores depend, and which has to be decided first."""

    def __init__(self, condition: Sym):
        super().__init__()
        self.condition = condition


# ---- problem ---------------------------------------------------------------------------------------------------------
#
Tables = Mapping[str, Sequence[int]]
ANY = 2**30  # an extent that no tile has
MOST = 1_000_000  # operations of a cluster


@attrs.frozen
class Problem:
    """Shapes of tensors, one of some clusters, and entries of tables.

    size: (output tiles of a CTA, steps of each tile), of problems that differ in these alone.
    """

    shapes: Shapes
    cluster: int = 0
    clusters: int = 1
    tables: Tables = attrs.field(factory=dict)
    size: tuple[int, int] = 0, 0

    @property
    def text(self) -> str:
        parts = [f"{name} {' x '.join(map(str, shape))}" for name, shape in self.shapes.items()]
        if self.clusters > 1:
            parts.append(f"cluster {self.cluster} of {self.clusters}")
        parts += [f"{name} = {list(entries[:4])} ..." for name, entries in self.tables.items()]
        return ", ".join(parts)


def every_cluster(program: Any, problem: Problem) -> Iterator[Problem]:
    """The problem for each cluster of a launch, if the order of tiles says how many there are; else for its own alone."""
    spans = program.schedule.spans(problem.shapes)
    for cluster in range(spans or 0):
        yield attrs.evolve(problem, cluster=cluster, clusters=spans)
    if spans is None:
        yield problem


class TooLarge(Exception):
    """A problem of more operations than are looked at, of all its clusters. where: the line of the last one."""

    def __init__(self, where: str | None):
        super().__init__()
        self.where = where


def run_problem(program: Any, layout: Layout, problem: Problem, most: int) -> tuple[list[Finding], int, Problem]:
    """Runs the problem's clusters (`every_cluster`) until one goes wrong.

    Returns (findings, transitions, the problem of the cluster that went wrong, or the given problem).

    Raises:
        TooLarge: They have more than *most* operations.
    """
    findings: list[Finding] = []
    events = 0
    for each in every_cluster(program, problem):
        found, steps = _run_cluster(program, layout, each, most - events)
        findings += found
        events += steps
        if not all(finding.kind.note for finding in found):
            return findings, events, each
    return findings, events, problem


def _run_cluster(program: Any, layout: Layout, problem: Problem, most: int) -> tuple[list[Finding], int]:
    """(findings, transitions) of one cluster. Source lines are looked up only if there is something to report."""

    def once(located: bool) -> tuple[list[Finding], int]:
        try:
            programs = operations_of(program, layout, problem, most, located)
        except PipelineError as error:
            return refused(error, LinearCheck(layout, problem.shapes)), 0
        return check_operations(layout, programs, problem.shapes, through_async)

    through_async = _through_async(program.nodes)
    found, steps = once(False)
    return once(True) if found else (found, steps)


def _through_async(nodes: list[Any]) -> set[str]:
    """Names of what TMA or wgmma access in some run."""
    found: set[str] = set()
    for op in (op for node in every(nodes) if type(node) is Call for op in node.ops):
        for effect in declared(type(op)).all(Access) + declared(type(op)).all(Start):
            if effect.slot and proxy_of(effect.proxy, op) is Proxy.ASYNC:
                found.add(getattr(op, effect.slot).buffer.name)
    return found


def operations_of(
    program: Any, layout: Layout, problem: Problem, most: int = MOST, located: bool = True
) -> list[list[Any]]:
    """The operations of each warp of the problem's cluster, `Exit` last. located: with source lines."""
    found: list[list[Any]] = []
    count = 0

    def take(op: Any) -> None:
        nonlocal count
        count += 1
        look()
        if count > most:
            raise TooLarge(locate())
        own.append(op._replace(where=locate()) if located else op)

    for agent in range(layout.agents):
        own: list[Any] = []
        found.append(own)
        given = problem.shapes, problem.cluster, problem.clusters, problem.tables
        own += operations(program, layout, agent, *given, take)
    return found


class Sizes:
    """Shapes by numbers of tiles.

    group: tiles that the teams of all roles take together; slots: of the longest ring; dims: of the output; along: the
        dimension along which a CTA gets more or fewer tiles, the last dimension of open extent; others: dimensions that the
        output lacks, except batches from which a dimension of the output follows.
    """

    def __init__(self, schedule: Schedule, plan: Plan):
        self.plan = plan
        self.dims = tuple(schedule.axes)
        self.tile = tuple(axis.elements for axis in schedule.axes.values())
        ones = dict.fromkeys(self.dims, 1)
        free = (dim for dim in reversed(self.dims) if plan.related(ones | {dim: ANY})[dim] == ANY)
        self.along = next(free, self.dims[-1])
        self.group = max([role.teams for role in plan.roles])
        self.slots = max([ring.stages for ring in plan.rings], default=1)
        inner = dict.fromkeys(d for part in plan.transfers for d in part.dims if d not in self.dims)
        batches = {dim.of for dim in plan.relations if dim.name in self.dims and self.tiles(str(dim.of)) == {1}}
        self.others = tuple(d for d in inner if d not in batches)

    def tiles(self, dim: str) -> set[int]:
        """Elements of tiles along a dimension."""
        if dim in self.dims:
            return {self.tile[self.dims.index(dim)]}
        return {n for part in self.plan.transfers for d, n in zip(part.dims, part.tile, strict=True) if d == dim}

    def shapes(self, tiles: int, steps: int, outer: int = 1) -> Shapes:
        """Shapes of all tensors.

        Args:
            tiles: Output tiles of a CTA.
            steps: Tiles along each inner dimension.
            outer: Extent of the output's dimensions before its tile's.
        """
        extents: dict[str, int] = {}
        first = len(self.dims) - 2 if len(self.dims) > 1 else 0
        for i, (dim, extent) in enumerate(zip(self.dims, self.tile, strict=True)):
            size = extent * self.plan.cluster.get(dim, 1)
            extents[dim] = size * (tiles if dim == self.along else outer if i < first else 1)
        for part in self.plan.transfers:
            for dim, extent in zip(part.dims, part.tile, strict=True):
                if dim not in self.dims:
                    extents[dim] = extent * (steps if dim in self.others else 1)
        return self.plan.shapes(extents)


# ---- solutions -------------------------------------------------------------------------------------------------------
#
# Problems in which given conditions hold, found by a local search for extents, clusters and entries. Each condition has a
# *distance*: 0 if it holds, else by how much it fails. The search changes one number at a time, by steps that a failing
# condition suggests, so that the sum of the distances becomes less.


ROUNDS = 40
LARGE = 2**20


def solutions(facts: Iterable[Sym], sizes: Sizes, tries: int = 3) -> Iterator[Problem]:
    """Problems in which these conditions hold together, as far as one is found."""
    facts = _strongest(sorted(facts, key=lambda each: each.number))
    for seed in range(tries):
        found = _Search(facts, sizes, random.Random(seed)).run()
        if found is not None:
            yield from found
            return


def _strongest(facts: list[Sym]) -> list[Sym]:
    """The conditions without those that one sum is at least some number, where another says more of the sum."""
    least: dict[Any, int] = {}
    sums = [parts(fact.args[0]) if fact.op == "ge" else (0, {fact: 1}) for fact in facts]
    of = [(constant, frozenset(terms.items())) for constant, terms in sums]
    for constant, terms in of:
        least[terms] = min(least.get(terms, constant), constant)
    return [fact for fact, (constant, terms) in zip(facts, of, strict=True) if constant == least[terms]]


class _Search:
    """values: by leaf; distances: by condition, with these values."""

    def __init__(self, facts: list[Sym], sizes: Sizes, rng: random.Random):
        self.facts, self.sizes, self.rng = facts, sizes, rng
        self.values: dict[Sym, int] = {}
        for each in facts:
            self._add(each)
        self.distances = {fact: _distance(fact, self.values) for fact in facts}

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
            self._set(x, value)
            best = least
        return None

    def _set(self, x: Sym, value: int) -> None:
        self.values[x] = value
        self.distances |= {fact: _distance(fact, self.values) for fact in self.facts if x in fact.leaves}

    def _make_small(self) -> None:
        """Smaller numbers that do as well."""
        for x, value in list(self.values.items()):
            least = self._least(x)
            for less in (0 if least is None else least, 1, 2, value // 4, value // 2):
                if abs(less) < abs(value) and (least is None or less >= least) and not self._with(x, less):
                    self._set(x, less)
                    break

    def _tries(self, x: Sym) -> list[int]:
        value, unit = self.values[x], self._unit(x.args[1]) if x.args[0] == "extent" else 1
        found = {value + step * of for step in (-1, 1) for of in (1, 2, unit, 2 * unit)}
        for fact in self.facts:  # as far as a condition says, if it changes evenly
            if x in fact.leaves and fact.op in ("ge", "eq"):
                here = value_of(fact.args[0], self.values)
                for step in {1, unit}:
                    there = value_of(fact.args[0], {**self.values, x: value + step})
                    if here != there:
                        times = -here / (there - here)
                        found |= {value + step * int(times + more) for more in (-1, 0, 1)}
        least = self._least(x)
        return [each for each in found if each != value and abs(each) < LARGE and (least is None or each >= least)]

    def _with(self, x: Sym, value: int) -> int:
        before, self.values[x] = self.values[x], value
        found = self._distance(x)
        self.values[x] = before
        return found

    def _distance(self, changed: Sym | None = None) -> int:
        """Of all conditions. changed: a leaf whose value `distances` do not know of."""
        of = {x.args[1]: value for x, value in self.values.items() if x.args[0] == "of the launch"}
        found = max(0, of.get("cluster", 0) + 1 - of.get("clusters", 2**31))
        for fact, known in self.distances.items():
            found += min(_distance(fact, self.values) if changed in fact.leaves else known, LARGE)
        return found

    def _problems(self) -> list[Problem]:
        sizes, found = self.sizes, []
        extents = {x.args[1]: value for x, value in self.values.items() if x.args[0] == "extent"}
        of = {x.args[1]: value for x, value in self.values.items() if x.args[0] == "of the launch"}
        cluster = of.get("cluster", 0)
        clusters = max(of.get("clusters", 1), cluster + 1)
        tables: dict[str, dict[int, int]] = {}
        for x, value in self.values.items():
            if x.args[0] == "entry":
                tables.setdefault(x.args[1], {})[value_of(x.args[2], self.values)] = value
        lengths = {name: 1 + max([0, *at]) for name, at in tables.items()}
        entries = {name: [tables[name].get(i, 1) for i in range(n)] for name, n in lengths.items() if n <= 4096}
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


def _distance(x: Any, values: Mapping[Sym, int]) -> int:
    """By how much a condition fails; 0 if it holds."""
    if not isinstance(x, Sym):
        return int(not x)
    if x.op == "ge":
        return max(0, -value_of(x.args[0], values))
    if x.op == "eq":
        return abs(value_of(x.args[0], values))
    if x.op in ("all", "any"):
        return (sum if x.op == "all" else min)(_distance(each, values) for each in x.args)
    return int(not value_of(x, values))


def value_of(x: Any, values: Mapping[Sym, int]) -> int:
    """The number that a formula has with these values of all its leaves."""
    return int(replaced(x, values))
