"""Whether bodies read all of a dimension: rows that are longer than a tile, and loops that end early.

A reduction that is told to count as many elements as the dimension has (``inside=k.extent("n")``) is wrong as soon as tiles
along that dimension have less: an error, unless a `Dim` bounds it. Without such a word the tile's part may be what is
meant, as in a scale a block: a note. So is what nobody loads, since a program may leave something out on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

from tmapipe.check.findings import Finding, Kind
from tmapipe.check.places import Grid, counts_to
from tmapipe.check.problems import Problems
from tmapipe.machine.decisions import Reduction
from tmapipe.machine.moves import Move, Visit
from tmapipe.machine.varying_text import text_of
from tmapipe.plan.model import Load

__all__ = ["look_at_extents"]


def look_at_extents(problems: Problems, grid: Grid, visits: list[Visit]) -> list[Finding]:
    """What is read of a dimension in part."""
    reductions = problems.decisions.reductions.items()
    found = [finding for each, where in reductions if (finding := _reduced(problems, grid, each, where))]
    for load in problems.plan.loads:
        moves = [move for visit in visits for own in visit.moves.values() for move in own if move.part is load]
        if load.windows is None and load.through is None and load.name not in problems.decisions.by_rows:
            found += _loaded(problems, grid, load, moves)
    return found


# ---- reductions -------------------------------------------------------------------------------------------------------


def _reduced(problems: Problems, grid: Grid, each: Reduction, where: str | None) -> Finding | None:
    counted = each.inside
    whole = counted is not None and counted[1] == 0 and len(counted[0]) == 1 and counted[0][0][0][0] == "extent"
    dim = counted[0][0][0][1] if whole and counted is not None and counted[0][0][1] == 1 else _dim_of(problems, each)
    groups = (getattr(part, "group", None) for part in problems.schedule.declared.scratches.values())
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
        text = f"a reduction counts all elements along {dim}, of which a tile has {size}: the others lie in other tiles"
        return Finding(Kind.ROW_IN_PARTS, text, fix, where=lines)
    plan = problems.plan
    if counted is not None or any(store.reduce for store in plan.stores) or any(d.of == dim for d in plan.relations):
        return None  # parts are what is meant
    text = f"a reduction is over {size} elements along {dim}, and a tensor may have more, which lie in other tiles"
    return Finding(Kind.PART_REDUCED, text, fix + "; else, none", where=lines)


def _dim_of(problems: Problems, each: Reduction) -> str | None:
    """The dimension that is reduced: that of all tiles of the same extents; None if it is not clear."""
    last = -1 if each.along == "rows" else -2
    found = set()
    for part in problems.plan.transfers:
        if len(part.dims) >= -last and part.tile[-2:] == (each.rows, each.columns):
            found.add(part.dims[last])
    return found.pop() if len(found) == 1 else None


# ---- loads ------------------------------------------------------------------------------------------------------------


def _loaded(problems: Problems, grid: Grid, load: Load, moves: list[Move]) -> Iterator[Finding]:
    """Dimensions of which a load, wherever it stands, reaches only the first elements, or not the last ones."""
    for i, dim in enumerate(load.dims):
        starts = {(move.at[i].terms, move.at[i].const): move for move in moves}
        most, extent = grid.plan.most.get(dim), load.part[i] * load.steps[i]
        if not starts or load.steps[i] > 1:
            continue
        where = problems.decisions.lines.get(load.name)
        lines = (where,) if where else ()
        if all(not terms for terms, _ in starts):
            reached = max(const for _, const in starts) + extent
            if most is None or most > reached:
                text = f"{load.name} is loaded up to element {reached} along {dim}, and a tensor may have more"
                fix = f'say how many there may be, relations = (Dim("{dim}", at_most={reached}),), or load the others'
                yield Finding(Kind.UNREAD, text, fix, where=lines)
            continue
        short = [_short(grid, move, i, dim, most) for move in starts.values()]
        if all(short):
            fix = f'let the loop run to the end, k.steps("{load.name}", "{dim}"), in all roles of the ring'
            yield Finding(Kind.UNREAD, f"{load.name} is loaded along {dim} {short[0]}", fix, where=lines)


def _short(grid: Grid, move: Move, i: int, dim: str, most: int | None) -> str:
    """How a loop over a dimension ends before its last tile, or begins after the first; empty if it does not, or something
    else moves the tile."""
    start, extent = move.at[i], move.part.part[i]
    if len(start.terms) != 1:
        return ""
    ((key, stride),) = start.terms
    count = dict(move.loops).get(key)
    if key[0] != "index" or count is None or stride != extent:
        return ""
    if start.const >= extent:
        return f"from element {start.const} on alone"
    terms, const = count
    if start.const == 0 and const < 0 and counts_to((terms, 0), dim, stride, most):
        return f"{text_of(terms, const)} times alone"
    return ""
