"""Rules of outputs: no element is stored by two tiles, or twice by one, without a reduction; each is stored by some.

First it is shown for every shape, if starts are affine (`places`). Where that does not succeed, problems of a few tiles along
each dimension are looked at (`painted`). A finding always comes from one of these.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

from tmapipe.check.findings import Finding, Kind
from tmapipe.errors import PipelineError
from tmapipe.machine import Machine
from tmapipe.plan.model import Plan, Store
from tmapipe.program.replay import replay
from tmapipe.prove.bodies import Bodies
from tmapipe.prove.extents import look_at_extents
from tmapipe.prove.moves import DATA, Visit
from tmapipe.prove.painted import MOST, Clash, left_out, painted
from tmapipe.prove.problem import Problem
from tmapipe.prove.stores import Grid, Output, Shown, show
from tmapipe.prove.symbols import leaves
from tmapipe.tiles.axes import rows_of

__all__ = ["Outputs", "look_at_outputs"]

#: of problems: tiles along each dimension of the grid, steps along others, and how many more elements
SIZES = ((1, 1, 0), (2, 2, 0), (3, 1, 0), (2, 3, 16), (1, 4, 16), (4, 2, 16))
FEW = len(SIZES)
#: What bodies, and the model, raise of problems that they are not made for
BODY_ERRORS = (PipelineError, ArithmeticError, LookupError, TypeError, ValueError)


@attrs.frozen
class Outputs:
    """What was found. findings: errors and notes; open: what is not shown for every shape, in words; partly: outputs of which
    some elements are stored by nobody."""

    findings: tuple[Finding, ...] = ()
    open: tuple[str, ...] = ()
    partly: tuple[str, ...] = ()


def look_at_outputs(bodies: Bodies) -> Outputs:
    """The rules, for all outputs of a schedule."""
    schedule, plan = bodies.program.schedule, bodies.program.plan
    declared = schedule.declared
    extents = {dim: axis.elements * plan.cluster.get(dim, 1) for dim, axis in schedule.axes.items()}
    grid = Grid(extents, plan, frozenset(rows_of(declared, schedule.axes)))
    left: list[tuple[Output, Shown]] = []
    for store in plan.stores:
        if store.reduce is not None:
            continue
        loads = tuple(load for load in plan.loads if load.argument == store.argument)
        output = Output(store, loads, declared.stores[store.name].sums is not None)
        shown = show(output, grid, bodies.visits, bodies.solver)
        if schedule.tiles.in_parts or _has_own(
            plan, grid, store
        ):  # as many elements as are stored: their extent follows
            shown = shown._replace(whole="")
        if shown.apart or shown.whole:
            left.append((output, shown))
    read = tuple(look_at_extents(bodies, grid))
    if not left:
        return Outputs(read)
    found = _looked_at(bodies, grid, left)
    return attrs.evolve(found, findings=(*found.findings, *read))


def _has_own(plan: Plan, grid: Grid, store: Store) -> bool:
    """Whether an output has a dimension of its own, which neither a load nor the grid nor a `Dim` has, as parts of sums do.

    The schedule makes it as long as what is stored, so that it is stored as a whole.
    """
    known = {*grid.tile, *(dim for load in plan.loads for dim in load.dims), *(dim.name for dim in plan.relations)}
    return not known.issuperset(store.dims)


def _looked_at(bodies: Bodies, grid: Grid, left: list[tuple[Output, Shown]]) -> Outputs:
    """Looks at problems, for outputs of which something is not shown."""
    found: list[Finding] = []
    open_, partly = [], []
    recordings = _problems(bodies, grid)
    some: list[tuple[Problem, list[Visit]]] = []
    for output, shown in left:
        name, data = output.store.name, _by_data(bodies, output)
        if data:
            open_.append(f"{name} is not shown to be stored once for every shape: {data}")
            continue
        clash = whole = None
        for i in range(FEW):
            if i == len(some):
                some += itertools.islice(recordings, 1)
            if i < len(some):
                problem, seen = some[i]
                shape = problem.shapes[output.store.argument]
                if shown.apart and clash is None:
                    clash = _clash(bodies, output, problem, seen, shape)
                if shown.whole and whole is None and not bodies.program.plan.tables:
                    whole = _left_out(bodies, output, problem, seen, shape)
            if clash and (whole or i + 1 >= FEW // 2):
                break
        if clash:
            found.append(clash)
        elif shown.apart:
            open_.append(f"{name} is not shown to be stored once for every shape: {shown.apart}")
        if whole:
            found.append(whole)
            partly.append(name)
        elif shown.whole and not shown.apart:
            open_.append(f"{name} is not shown to be stored as a whole for every shape: {shown.whole}")
    return Outputs(tuple(found), tuple(open_), tuple(partly))


def _by_data(bodies: Bodies, output: Output) -> str:
    """Why it is data that says where an output is stored; empty if it does not."""
    if output.store.clipped:
        return "its tiles have bounds of their own"
    if output.store.name in bodies.by_rows:
        return "entries of tables say which rows are stored"
    starts = [x for move in bodies.moves() if move.part.name == output.store.name for x in move.at]
    by_entry = any(each.args[0] in DATA for x in starts for each in leaves(x))
    return "entries of tables say where it is stored" if by_entry else ""


def _problems(bodies: Bodies, grid: Grid) -> Iterator[tuple[Problem, list[Visit]]]:
    """Problems of some tiles along each dimension, of whole tiles and others."""
    others = {
        dim: extent
        for part in bodies.program.plan.transfers
        for dim, extent in zip(part.dims, part.tile, strict=True)
        if dim not in grid.tile
    }
    for tiles, steps, more in SIZES:
        # along tiles of one element, all tiles are whole, and more of them show nothing
        extents = {dim: tiles * extent + (more if extent > 1 else 0) for dim, extent in grid.tile.items()}
        extents |= {dim: steps * extent + (more if extent > 1 else 0) for dim, extent in others.items()}
        problem = Problem(bodies.program.plan.shapes(extents))
        if any(math.prod(problem.shapes[store.argument]) > MOST for store in bodies.program.plan.stores):
            continue
        try:
            yield problem, bodies.of_problem(problem)
        except BODY_ERRORS:  # maybe no problem is like this
            continue


def _clash(
    bodies: Bodies, output: Output, problem: Problem, visits: list[Visit], shape: tuple[int, ...]
) -> Finding | None:
    clash = painted(output, visits, shape)
    if clash is None:
        return None
    name = output.store.name
    lines = tuple(dict.fromkeys(line for line in (clash.other.where, clash.one.where) if line))
    text, fix = _said(output, clash)
    text = f"{text}: the element {clash.at} of {name}, with {problem.text}"
    if clash.other.part.name == name and _same_values(bodies, problem):
        return Finding(
            Kind.SAME_OUTPUT, f"{text}. On the model, of random inputs, both store one value", fix, where=lines
        )
    return Finding(Kind.OUTPUT_RACE, text, fix, where=lines)


def _same_values(bodies: Bodies, problem: Problem) -> bool:
    """Whether the CPU model, with random inputs, stores no element twice with different values."""
    plan, random = bodies.program.plan, np.random.default_rng(0)
    arrays = {table: np.ones(problem.shapes[table], np.int32) for table in plan.tables}
    for part in plan.transfers:
        shape, dtype = problem.shapes[part.argument], part.buffer.dtype
        drawn = random.integers(0, 8, shape) if dtype.integer else random.standard_normal(shape)
        arrays[part.argument] = drawn.astype(dtype.numpy)
    try:
        clusters = bodies.program.schedule.spans(problem.shapes) or 1
        Machine(plan).run(lambda isa: replay(bodies.program, isa), arrays, clusters)
    except BODY_ERRORS:  # of the model, or of what data of another kind would not lead to
        return False
    return True


def _said(output: Output, clash: Clash) -> tuple[str, str]:
    name, (one, other) = output.store.name, (visit.place or {} for visit in clash.visits)
    if clash.other.part.name != name:
        text = f"the tile at {_at(other)} loads what the tile at {_at(one)} stores, and nothing orders the two"
        return text, "load what the same tile has stored, or take another kernel for it"
    if one == other:
        lines = [line for line in (clash.one.where, clash.other.where) if line]
        text = f"the tile at {_at(one)} stores a place twice, and nothing says which store is the last"
        text += f" ({' and '.join(os.path.basename(line) for line in lines)})" if len(set(lines)) > 1 else ""
        return text, f"store each place of {name} once"
    differ = [dim for dim in one if one[dim] != other.get(dim) and dim not in output.store.dims]
    text = f"the tiles at {_at(one)} and at {_at(other)} store to the same place"
    if differ:
        dims = " and ".join(differ)
        return (
            text,
            f'declare {name} with reduce="add", give it {dims} as a dimension, or loop over {dims} within a tile',
        )
    return text, f"let the tiles of {name} start as far apart as they are long"


def _at(place: Any) -> str:
    return ", ".join(f"{dim} = {at}" for dim, at in place.items())


def _left_out(
    bodies: Bodies, output: Output, problem: Problem, visits: list[Visit], shape: tuple[int, ...]
) -> Finding | None:
    found = left_out(output, visits, shape)
    if found is None:
        return None
    name, (count, first) = output.store.name, found
    where = bodies.lines.get(name)
    text = f"{count} elements of {name}, the first one at {first}, are stored by nobody, with {problem.text}"
    fix = "store all tiles of it; or pass it with a call, if its other elements are to stay as they are"
    return Finding(Kind.UNWRITTEN, text, fix, where=(where,) if where else ())
