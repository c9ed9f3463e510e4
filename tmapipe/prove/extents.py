"""Whether bodies read all of a dimension: rows that are longer than a tile, and loops that end early.

A reduction that is told to count as many elements as the dimension has (``inside=k.extent("n")``) is wrong as soon as tiles
along that dimension have less: an error, unless a `Dim` bounds it. Without such a word the tile's part may be what is
meant, as in a scale a block: a note. So is what nobody loads, since a program may leave something out on purpose.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from tmapipe.check.findings import Finding, Kind
from tmapipe.plan.model import Load
from tmapipe.plan.units import units_of
from tmapipe.program.expressions import Expr
from tmapipe.program.reductions import Reduction
from tmapipe.prove.bodies import Bodies
from tmapipe.prove.moves import Move, is_turn
from tmapipe.prove.solutions import NoNumber, value_of
from tmapipe.prove.stores import Grid, counts_to
from tmapipe.prove.symbols import Sym, add, leaf, leaves, parts, text

__all__ = ["look_at_extents"]


def look_at_extents(bodies: Bodies, grid: Grid) -> list[Finding]:
    """What is read of a dimension in part."""
    reductions = bodies.program.isa.reductions.items()
    found = [finding for each, where in reductions if (finding := _reduced(bodies, grid, each, where))]
    for load in bodies.program.plan.loads:
        moves = [move for move in bodies.moves() if move.part is load]
        if load.windows is None and load.through is None and load.name not in bodies.by_rows:
            found += _loaded(bodies, grid, load, moves)
    return found


# ---- reductions -------------------------------------------------------------------------------------------------------


def _reduced(bodies: Bodies, grid: Grid, each: Reduction, where: str | None) -> Finding | None:
    counted = (
        bodies.shared.symbol(each.inside) if isinstance(each.inside, Expr) and each.inside.op == "symbol" else None
    )
    whole = isinstance(counted, Sym) and counted.op == "leaf" and counted.args[0] == "extent"
    dim = counted.args[1] if whole and isinstance(counted, Sym) else _dim_of(bodies, each)
    groups = (getattr(part, "group", None) for part in bodies.program.schedule.declared.scratches.values())
    if (
        dim is None
        or dim not in grid.tile
        or grid.one(dim)
        or any(group is not None and dim in group.axes for group in groups)
    ):
        return None
    size = each.columns if each.along == "rows" else each.rows
    fix = f'say how long it may be, relations = (Dim("{dim}", at_most={grid.tile[dim]}),), which refuses longer ones'
    lines = (where,) if where else ()
    if whole:
        said = f"a reduction counts all elements along {dim}, of which a tile has {size}: the others lie in other tiles"
        return Finding(Kind.ROW_IN_PARTS, said, fix, where=lines)
    plan = bodies.program.plan
    if (
        each.inside is not None
        or any(store.reduce for store in plan.stores)
        or any(d.of == dim for d in plan.relations)
    ):
        return None  # parts are what is meant
    said = f"a reduction is over {size} elements along {dim}, and a tensor may have more, which lie in other tiles"
    return Finding(Kind.PART_REDUCED, said, fix + "; else, none", where=lines)


def _dim_of(bodies: Bodies, each: Reduction) -> str | None:
    """The dimension that is reduced: that of all tiles of the same extents; None if it is not clear."""
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
        where = bodies.lines.get(load.name)
        lines = (where,) if where else ()
        if not any(isinstance(start, Sym) for start in starts):
            reached = max(starts) + extent
            if most is None or most > reached:
                said = f"{load.name} is loaded up to element {reached} along {dim}, and a tensor may have more"
                fix = f'say how many there may be, relations = (Dim("{dim}", at_most={reached}),), or load the others'
                yield Finding(Kind.UNREAD, said, fix, where=lines)
            continue
        short = [_short(grid, move, i, dim, most) for move in starts.values()]
        if all(short):
            fix = f'let the loop run to the end, k.steps("{load.name}", "{dim}"), in all roles of the ring'
            yield Finding(Kind.UNREAD, f"{load.name} is loaded along {dim} {short[0]}", fix, where=lines)
        elif not any(short) and (said := _left_out(grid, starts.values(), i, dim)):
            fix = f'let the loop go through all tiles, k.steps("{load.name}", "{dim}"), in all roles of the ring'
            yield Finding(Kind.UNREAD, f"{load.name} is loaded along {dim} without {said}", fix, where=lines)


def _left_out(grid: Grid, moves: Iterable[Move], i: int, dim: str) -> str:
    """Elements along a dimension that no turn of the loops loads, of some extent; empty if there are none, or if not the
    dimension alone decides where tiles start."""
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
    """Marks what a move loads in all turns of its loops; whether that has a number."""
    loops = [(key, count) for key, count in move.loops if key in leaves(move.at[i])]
    try:
        turns = itertools.product(*(range(value_of(count, values)) for _, count in loops))
        for turn in turns:
            start = value_of(move.at[i], {**values, **dict(zip((key for key, _ in loops), turn, strict=True))})
            loaded[max(0, start) : max(0, start + move.part.part[i])] = True
    except NoNumber:
        return False
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
    if const == 0 and fewer > 0 and counts_to(add(count, fewer), dim, stride, most):
        return f"{text(count)} times alone"
    return ""
