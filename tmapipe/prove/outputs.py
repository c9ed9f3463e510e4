"""The rules of outputs and inputs: each element is stored once, all of a dimension is read, copies start where TMA can."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import numpy as np

from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.check import Finding
from tmapipe.check.linear import look
from tmapipe.errors import PipelineError
from tmapipe.model import Machine
from tmapipe.model.layout import Kind
from tmapipe.model.run import lines
from tmapipe.plan.model import Load, Plan, Store
from tmapipe.plan.rings import units_of
from tmapipe.program import replay
from tmapipe.program.expressions import Expr
from tmapipe.program.isa import Reduction
from tmapipe.prove.bodies import Bodies
from tmapipe.prove.problem import DATA, Move, Problem, Visit, is_turn, value_of
from tmapipe.prove.stores import Grid, Output, Shown, counts_to, same_pieces, show, stored_at
from tmapipe.prove.symbols import Sym, leaf, leaves, parts, text
from tmapipe.tiles import GroupedTiles
from tmapipe.tiles.order import rows_of

# ---- extents ---------------------------------------------------------------------------------------------------------
#
# Whether bodies read all of a dimension: rows that are longer than a tile, and loops that end early.
#
# A reduction that counts as many elements as a dimension has (``inside=k.extent("n")``) is wrong as soon as the dimension is
# longer than a tile: an error, unless a `Dim` bounds the dimension. Where a reduction says no count, the tile's part may be
# meant, as in a scale a block: a note. Elements that nobody loads are a note, too: they may be left out on purpose.


MOST_TURNS = 10_000  # of the loops around a load


def look_at_extents(bodies: Bodies, grid: Grid) -> list[Finding]:
    """Reductions and loads of a part of a dimension."""
    reductions = bodies.program.isa.reductions.items()
    found = [finding for each, where in reductions if (finding := _reduced(bodies, grid, each, where))]
    for load in bodies.program.plan.loads:
        moves = [move for move in bodies.moves() if move.part is load]
        beside = bodies.program.schedule.declared.loads[load.name].input is not None  # another stage loads the tensor
        if load.windows is None and load.through is None and load.name not in bodies.by_rows and not beside:
            found += _loaded(bodies, grid, load, moves)
    return found


# ---- reductions -------------------------------------------------------------------------------------------------------


def _reduced(bodies: Bodies, grid: Grid, each: Reduction, where: str | None) -> Finding | None:
    counted = each.inside if isinstance(each.inside, Expr) and each.inside.op == "symbol" else None
    symbol = None if counted is None else bodies.shared.symbol(counted)
    whole = isinstance(symbol, Sym) and symbol.op == "leaf" and symbol.args[0] == "extent"
    dim = symbol.args[1] if whole and isinstance(symbol, Sym) else _dim_of(bodies, each)
    groups = (getattr(part, "group", None) for part in bodies.program.schedule.declared.scratches.values())
    if dim is None or dim not in grid.tile or grid.one(dim):
        return None
    if any(group is not None and dim in group.axes for group in groups):
        return None
    size = each.columns if each.along == "rows" else each.rows
    fix = f'say how long it may be, relations = (Dim("{dim}", at_most={grid.tile[dim]}),), which refuses longer ones'
    if whole:
        said = f"a reduction counts all elements along {dim}, of which a tile has {size}: the others lie in other tiles"
        return Finding(Kind.ROW_IN_PARTS, said, fix, where=lines([where]))
    plan = bodies.program.plan
    parts_of = any(store.reduce for store in plan.stores) or any(d.of == dim for d in plan.relations)
    if each.inside is not None or parts_of:
        return None  # parts are what is meant
    said = f"a reduction is over {size} elements along {dim}, and a tensor may have more, which lie in other tiles"
    return Finding(Kind.PART_REDUCED, said, fix + "; else, none", where=lines([where]))


def _dim_of(bodies: Bodies, each: Reduction) -> str | None:
    """The dimension of the output along which tiles of the reduced extents lie; None if several dimensions may be."""
    last = -1 if each.along == "rows" else -2
    found = set()
    for part in bodies.program.plan.transfers:
        if len(part.dims) >= -last and part.tile[-2:] == (each.rows, each.columns):
            found.add(part.dims[last])
    return found.pop() if len(found) == 1 else None


# ---- loads ------------------------------------------------------------------------------------------------------------


def _loaded(bodies: Bodies, grid: Grid, load: Load, moves: list[Move]) -> Iterator[Finding]:
    """Dimensions of which a load, wherever it stands, reaches only the first elements, or not the last ones."""
    for i, dim in enumerate(load.dims):
        starts = {move.at[i]: move for move in moves}
        most, extent = grid.plan.most.get(dim), load.part[i] * load.steps[i]
        if not starts or load.steps[i] > 1 or dim in bodies.fixed:
            continue
        where = lines([bodies.lines.get(load.name)])
        if not any(isinstance(start, Sym) for start in starts):
            reached = max(starts) + extent
            if most is None or most > reached:
                said = f"{load.name} is loaded up to element {reached} along {dim}, and a tensor may have more"
                fix = f'say how many there may be, relations = (Dim("{dim}", at_most={reached}),), or load the others'
                yield Finding(Kind.UNREAD, said, fix, where=where)
            continue
        short = [_short(grid, move, i, dim, most) for move in starts.values()]
        if all(short):
            fix = f'let the loop run to the end, k.steps("{load.name}", "{dim}"), in all roles of the ring'
            yield Finding(Kind.UNREAD, f"{load.name} is loaded along {dim} {short[0]}", fix, where=where)
        elif not any(short) and (said := _left_out(grid, starts.values(), i, dim)):
            fix = f'let the loop go through all tiles, k.steps("{load.name}", "{dim}"), in all roles of the ring'
            yield Finding(Kind.UNREAD, f"{load.name} is loaded along {dim} without {said}", fix, where=where)


def _left_out(grid: Grid, moves: Iterable[Move], i: int, dim: str) -> str:
    """In words, an element along a dimension of some length that no turn of the loops loads; empty if there is none, or if
    tiles start where not this dimension alone decides."""
    extent, own = 0, leaf("extent", dim)
    for move in moves:
        extent = move.part.part[i]
        counts = [count for key, count in move.loops if key in leaves(move.at[i])]
        indices = {key for key, _ in move.loops}
        if leaves(move.at[i]) - indices or any(count is None or leaves(count) - {own} for count in counts):
            return ""
    most, unit = grid.plan.most.get(dim), units_of(grid.plan).get(dim, 1)
    for tiles, more in itertools.product((1, 2, 3, 5, 9, 33, 129), (0, 1, extent // 2)):
        length = tiles * extent + more
        if length % unit or (most is not None and length > most):
            continue
        loaded = np.zeros(length, bool)
        for move in moves:
            if not _mark(loaded, move, i, {own: length}):
                return ""
        if not loaded.all():
            return f"element {int(np.argmin(loaded))} of {length}"
    return ""


def _mark(loaded: np.ndarray, move: Move, i: int, values: dict[Sym, int]) -> bool:
    """Marks the elements that a move loads in all turns of its loops. Returns False if these are too many to look at."""
    loops = [(key, count) for key, count in move.loops if key in leaves(move.at[i])]
    counts = [max(0, value_of(count, values)) for _, count in loops]
    if math.prod(counts) > MOST_TURNS:
        return False
    for turn in itertools.product(*map(range, counts)):
        look()
        start = value_of(move.at[i], {**values, **dict(zip((key for key, _ in loops), turn, strict=True))})
        loaded[max(0, start) : max(0, start + move.part.part[i])] = True
    return True


def _short(grid: Grid, move: Move, i: int, dim: str, most: int | None) -> str:
    """How a loop over a dimension ends before its last tile, or begins after the first; empty if it does not, or something
    else moves the tile."""
    extent, (const, terms) = move.part.part[i], parts(move.at[i])
    if len(terms) != 1:
        return ""
    ((key, stride),) = terms.items()
    count = dict(move.loops).get(key)
    if not is_turn(key) or count is None or stride != extent:
        return ""
    if const >= extent:
        return f"from element {const} on alone"
    fewer = -parts(count)[0]
    if const == 0 and fewer > 0 and counts_to(count + fewer, dim, stride, most):
        return f"{text(count)} times alone"
    return ""


# ---- outputs ---------------------------------------------------------------------------------------------------------
#
# No element of an output is stored by two tiles, or twice by one, unless it is reduced into; each is stored by some tile.
#
# First this is shown for every shape, if starts are affine (`stores.show`). Where that does not succeed, problems of a few
# tiles along each dimension are looked at (`painted`), from which each finding comes.


#: of problems: tiles along each dimension of the grid, steps along others, and how many more elements
SIZES = ((1, 1, 0), (2, 2, 0), (3, 1, 0), (2, 3, 16), (1, 4, 16), (4, 2, 16))
FEW = len(SIZES)
#: What bodies, and the model, raise of problems that they are not made for
BODY_ERRORS = (PipelineError, ArithmeticError, LookupError, TypeError, ValueError)


@attrs.frozen
class Outputs:
    """The result. findings: errors and notes; open: in words, what is not shown for every shape; partly: outputs of which some
    elements are stored by nobody."""

    findings: tuple[Finding, ...] = ()
    open: tuple[str, ...] = ()
    partly: tuple[str, ...] = ()


def look_at_outputs(bodies: Bodies) -> Outputs:
    """The rules, for all outputs of a schedule."""
    schedule, plan = bodies.program.schedule, bodies.program.plan
    declared = schedule.declared
    extents = {dim: axis.elements * plan.cluster.get(dim, 1) for dim, axis in schedule.axes.items()}
    table = getattr(schedule.tiles, "table", "") if isinstance(schedule.tiles, GroupedTiles) else ""
    ends = table if table and declared.tables[table].ascending else ""
    grid = Grid(extents, plan, frozenset(rows_of(declared, schedule.axes)), schedule.tiles.lower, ends)
    left: list[tuple[Output, Shown]] = []
    given: list[str] = []
    for store in plan.stores:
        if store.reduce is not None:
            continue
        loads = tuple(load for load in plan.loads if load.memory == store.argument)
        output = Output(store, loads, declared.stores[store.name].sums is not None)
        shown = show(output, grid, bodies.visits, bodies.solver)
        if schedule.tiles.in_parts or _has_own(plan, grid, store):  # it is as long as what is stored
            shown = shown._replace(whole="")
        if store.clipped and not shown.apart:
            said = f"is stored once for every shape if {ends} ascends, as its Table says; rows from its last entry on are not"
            given.append(f"{store.name} {said}")
        elif shown.apart or shown.whole:
            left.append((output, shown))
    read = tuple(look_at_extents(bodies, grid))
    found = _looked_at(bodies, grid, left) if left else Outputs()
    return attrs.evolve(found, findings=(*found.findings, *read), open=(*given, *found.open))


def _has_own(plan: Plan, grid: Grid, store: Store) -> bool:
    """Whether an output has a dimension that neither a load, nor the grid, nor a `Dim` has, as parts of sums do: the schedule
    makes it as long as what is stored, so the output is stored as a whole."""
    known = {*grid.tile, *(dim for load in plan.loads for dim in load.dims), *(dim.name for dim in plan.relations)}
    return not known.issuperset(store.dims)


def _looked_at(bodies: Bodies, grid: Grid, left: list[tuple[Output, Shown]]) -> Outputs:
    """Looks at problems, for outputs of which something is not shown."""
    found: list[Finding] = []
    open_, partly = [], []
    recordings = _problems(bodies, grid)
    some: list[tuple[Problem, list[Visit]]] = []
    for output, shown in left:
        name, data = output.store.name, shown.apart if output.store.clipped else _by_data(bodies, output)
        if data:
            open_.append(f"{name} is not shown to be stored once for every shape: {data}")
            continue
        clash = whole = None
        for i in range(FEW):
            if i == len(some):
                some += itertools.islice(recordings, 1)
            if i < len(some):
                problem, seen = some[i]
                if shown.apart and clash is None:
                    clash = _clash(bodies, output, problem, seen)
                if shown.whole and whole is None and not bodies.program.plan.entries:
                    whole = _left_out_by(bodies, output, problem, seen)
            if clash and (whole or i + 1 >= FEW // 2):
                break
        if clash:
            found.append(clash)
        elif shown.apart:
            open_.append(f"{name} is not shown to be stored once for every shape: {shown.apart}")
        if whole:
            found.append(whole)
            partly.append(name)
        elif shown.whole and (clash or not shown.apart):
            open_.append(f"{name} is not shown to be stored as a whole for every shape: {shown.whole}")
    return Outputs(tuple(found), tuple(open_), tuple(partly))


def _by_data(bodies: Bodies, output: Output) -> str:
    """Why it is data that says where an output is stored; empty if it does not."""
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


def _clash(bodies: Bodies, output: Output, problem: Problem, visits: list[Visit]) -> Finding | None:
    clash = painted(output, visits, problem.shapes[output.store.argument])
    if clash is None:
        return None
    name = output.store.name
    where = lines([clash.other.where, clash.one.where])
    text, fix = _said(output, clash)
    text = f"{text}: the element {clash.at} of {name}, with {problem.text}"
    if clash.other.part.name == name and _same_values(bodies, problem):
        text = f"{text}. On the model, of random inputs, both store one value"
        return Finding(Kind.SAME_OUTPUT, text, fix, where=where)
    return Finding(Kind.OUTPUT_RACE, text, fix, where=where)


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
        fix = f'declare {name} with reduce="add", give it {dims} as a dimension, or loop over {dims} within a tile'
        return text, fix
    return text, f"let the tiles of {name} start as far apart as they are long"


def _at(place: Any) -> str:
    return ", ".join(f"{dim} = {at}" for dim, at in place.items())


def _left_out_by(bodies: Bodies, output: Output, problem: Problem, visits: list[Visit]) -> Finding | None:
    found = left_out(output, visits, problem.shapes[output.store.argument])
    if found is None:
        return None
    name, (count, first) = output.store.name, found
    text = f"{count} elements of {name}, the first one at {first}, are stored by nobody, with {problem.text}"
    fix = "store all tiles of it; or pass it with a call, if its other elements are to stay as they are"
    return Finding(Kind.UNWRITTEN, text, fix, where=lines([bodies.lines.get(name)]))


# ---- painted ---------------------------------------------------------------------------------------------------------
#
# In one concrete problem: which store reaches which element, in all output tiles one after the other. No data is moved. Two
# tiles that reach one element may be tiles of two CTAs.


MOST = 20_000_000  # elements of an output that is painted


@attrs.frozen
class Clash:
    """An element that two stores reach, or a store of one tile and a load of another. one, other: the two, in this order;
    at: the element."""

    one: Move
    other: Move
    visits: tuple[Visit, Visit]
    at: tuple[int, ...]


def painted(output: Output, visits: list[Visit], shape: tuple[int, ...]) -> Clash | None:
    """The first clash at an output of this shape."""
    return next(_clashes(output, visits, shape), None)


def left_out(output: Output, visits: list[Visit], shape: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
    """How many elements of an output of this shape are stored by nobody, and the first one; None if there are none."""
    reached = np.zeros(shape, bool)
    for visit in visits:
        for own in stored_at(output, visit):
            for move in own:
                reached[_box(move, shape)] = True
    left = np.argwhere(~reached)
    return (len(left), tuple(int(i) for i in left[0])) if len(left) else None


def _clashes(output: Output, visits: list[Visit], shape: tuple[int, ...]) -> Iterator[Clash]:
    owners = np.zeros(shape, np.int32)
    known: list[tuple[Visit, Move]] = []
    for visit in visits:
        stored = stored_at(output, visit)
        first = len(known)
        for i, move in enumerate(move for own in stored for move in own):
            box = _box(move, shape)
            for number in np.unique(owners[box]):
                if number == 0:
                    continue
                whose, other = known[number - 1]
                if number - 1 < first or not same_pieces(output, stored, number - 1 - first, i):
                    (at, *_) = np.argwhere(owners[box] == number)
                    yield Clash(other, move, (whose, visit), _element(move, shape, at))
            known.append((visit, move))
            owners[box] = len(known)
    names = {load.name for load in output.loads}
    for visit in visits:
        for move in (move for moves in visit.moves.values() for move in moves if move.part.name in names):
            box = _box(move, shape)
            for number in np.unique(owners[box]):
                whose, other = known[number - 1] if number else (visit, move)
                if whose.place != visit.place:
                    (at, *_) = np.argwhere(owners[box] == number)
                    yield Clash(other, move, (whose, visit), _element(move, shape, at))


def _box(move: Move, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """The elements of a tensor that are moved."""
    reach = zip(move.at, move.part.part, strict=True)
    return tuple(slice(max(start, 0), max(start + extent, 0)) for start, extent in reach)


def _element(move: Move, shape: tuple[int, ...], at: np.ndarray) -> tuple[int, ...]:
    return tuple(max(start, 0) + int(i) for start, i in zip(move.at, at, strict=True))


# ---- starts ----------------------------------------------------------------------------------------------------------
#
# Copies have to start at multiples of 16 bytes along the last dimension, wherever their tile lies: TMA traps at others.


def uneven_starts(bodies: Bodies) -> dict[Any, str]:
    """Starts that are not seen to be multiples of what they have to be, each with that in words."""
    found: dict[Any, str] = {}
    for move in bodies.moves():
        start, part = move.at[-1], move.part
        unit = max(1, (part.vector or ALIGNMENT) // part.buffer.dtype.bytes)
        if _divisor(start) % unit:
            found[start] = f"{part.name} starts at {text(start)}, which is not seen to be a multiple of {unit} elements"
    return found


def _divisor(x: Any) -> int:
    """A number of which *x* is a multiple, whatever its symbols are; 0 if it is 0."""
    if not isinstance(x, Sym):
        return abs(int(x))
    if x.op == "sum":
        return math.gcd(x.args[0], *(factor * _divisor(term) for term, factor in x.args[1]))
    if x.op == "prod":
        return math.prod(map(_divisor, x.args))
    if x.op in ("min", "max"):
        return math.gcd(*map(_divisor, x.args))
    if x.op == "select":
        return math.gcd(*map(_divisor, x.args[1:]))
    return 1
