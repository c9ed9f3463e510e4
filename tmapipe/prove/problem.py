"""Concrete problems: tensor shapes, a cluster and tables; and the run of one cluster in a problem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from tmapipe.check.findings import Finding
from tmapipe.check.linear import LinearCheck
from tmapipe.check.program import check_operations, refused
from tmapipe.errors import PipelineError
from tmapipe.isa.effects import Access, Proxy, Start, declared, proxy_of
from tmapipe.machine.layout import Layout, Shapes
from tmapipe.machine.locate import locate
from tmapipe.plan.model import Plan
from tmapipe.program.nodes import Call, For, If, While
from tmapipe.program.replay import operations

if TYPE_CHECKING:
    from tmapipe.schedule import Schedule

__all__ = ["MOST", "Problem", "Sizes", "TooLarge", "every_cluster", "operations_of", "run_problem"]

Tables = Mapping[str, Sequence[int]]
ANY = 2**30  # an extent that no tile has
MOST = 1_000_000  # operations of a cluster


@attrs.frozen
class Problem:
    """Tensors of these shapes, for one of some clusters; what bodies find in tables.

    size: output tiles of a CTA, and steps of each, of problems that differ in these alone.
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
    """A problem of more operations than are looked at. where: the line of the last one."""

    def __init__(self, where: str | None):
        super().__init__()
        self.where = where


def run_problem(program: Any, layout: Layout, problem: Problem, most: int) -> tuple[list[Finding], int, Problem]:
    """(findings, transitions, the problem of the cluster that goes wrong, or the given one) of the problem's clusters
    (`every_cluster`), from beginning to end, until one goes wrong.

    Raises:
        TooLarge: One has more than *most* operations.
    """
    findings: list[Finding] = []
    events = 0
    for each in every_cluster(program, problem):
        found, steps = _run_cluster(program, layout, each, most)
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
    for node in nodes:
        if type(node) is If:
            found |= _through_async(node.then) | _through_async(node.other)
        elif type(node) in (For, While):
            found |= _through_async(node.body)
        for op in node.ops if type(node) is Call else ():
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

    group: tiles that the teams of all roles take together; slots: of the longest ring; dims: of the output; along: that one
    along which a CTA gets more or fewer tiles, the last one that may have any extent; others: dimensions that the output
    lacks, but for batches that one of the output's follows.
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
                    extents[dim] = extent * steps
        return self.plan.shapes(extents)
