"""Whether output tiles keep apart: shown for every shape, or looked at in one concrete problem."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from tmapipe.plan.model import Load, Plan, Store
from tmapipe.prove.problem import Move, Visit, coordinate, is_coordinate, is_turn
from tmapipe.prove.solver import Solver, replaced
from tmapipe.prove.symbols import Sym, at_least_0, leaf, leaves, parts, text, total

# ---- stores ----------------------------------------------------------------------------------------------------------
#
# For every shape: the argument is in docs/internals/checker.md. It takes starts that are affine: along each dimension, a
# constant and a multiple E of one coordinate: of the output tile, the index of a loop, or p + C * index, where C is how many
# tiles there are along the dimension of p. What stands before a loop may be earlier turns of the loop. It asks whether
#
# * every coordinate that can differ is the coordinate of some dimension;
# * all that a tile stores lies in a box of E elements along each dimension, and keeps apart there;
# * this fills the box, and the coordinates times E reach the tensor's end.
#
# Stores of the tile at (m, n) to where (n, m) would lie are *mirrored*, and looked at by themselves. They keep apart from the
# others if no tile lies where another one is mirrored to. Where this is not shown, nothing is claimed.


ASCENDING = "its tiles end where a table says, and keep apart if its entries ascend: Table(ascending=True) says so"


class Grid(NamedTuple):
    """The grid of output tiles.

    Args:
        tile: Elements of a cluster's tile, by dimension.
        plan: Of the kernel.
        rows: Dimensions that one cluster reduces, as all their elements fit into it.
        lower: Whether the order has no tiles above the diagonal of the last two dimensions.
        ends: The table whose entries ascend, and say where the rows of a group end of which the order gives each to one
            tile; or empty.
    """

    tile: Mapping[str, int]
    plan: Plan
    rows: frozenset[str] = frozenset()
    lower: bool = False
    ends: str = ""

    def below(self, by: int) -> tuple[Any, ...]:
        """The condition that a tile lies *by* tiles below the diagonal or more, if the order has no tiles above it."""
        *_, m, n = ("", *self.tile)
        return (at_least_0(coordinate(m) - coordinate(n) - by),) if self.lower else ()

    def one(self, dim: str) -> bool:
        """Whether there is but one tile along a dimension, whatever its extent may be."""
        return dim in self.rows or self.plan.most.get(dim, self.tile[dim] + 1) <= self.tile[dim]

    def where_one(self, fact: Sym) -> Any:
        """A fact with the coordinate of the only tile along a dimension, which is 0."""
        return replaced(fact, {coordinate(dim): 0 for dim in self.tile if self.one(dim)})

    def tiles(self, dim: str) -> Any:
        """How many tiles there are along a dimension."""
        return 1 if self.one(dim) else (self.extent(dim) + self.tile[dim] - 1) // self.tile[dim]

    def extent(self, dim: str) -> Any:
        """That of a dimension."""
        return self.plan.fixed.get(dim, leaf("extent", dim))

    def reaches(self, dim: str, stride: int, of: str) -> bool:
        """Whether as many strides as there are tiles along the grid's dimension *of* reach the end of dimension *dim*."""
        if dim == of:
            return stride >= self.tile[of]
        if self.plan.most.get(dim, stride + 1) <= stride:
            return True
        for each in self.plan.relations:
            if (each.name, each.of) == (dim, of):
                return stride * each.per >= self.tile[of] * each.times and each.plus <= 0
            if (each.of, each.name) == (dim, of):
                return stride * each.times >= self.tile[of] * each.per and each.plus >= 0
        return False


class Output(NamedTuple):
    """An output.

    Args:
        store: The stage that stores it.
        loads: Stages that load the same tensor.
        overlaps: Whether a piece of accumulators may have columns of the piece before, with the same values.
    """

    store: Store
    loads: tuple[Load, ...]
    overlaps: bool


class Shown(NamedTuple):
    """What is shown of an output. apart: why two tiles may store the same element; whole: why an element may be stored by no
    tile. Both are in words, and empty where nothing is in the way."""

    apart: str = ""
    whole: str = ""


class Axis(NamedTuple):
    """How a tile's stores start along one dimension: at *stride* times the coordinate *key*, plus constants; without a key, at
    constants.

    turn: the index of a loop, of which each turn goes *by* coordinates further, as many as *key* has; None: there is none.
    shift: further terms, the same in all stores of the tile, with the least of the constants.
    """

    key: Sym | None
    stride: int
    turn: Sym | None = None
    by: Any = 0
    shift: Any = 0

    @property
    def keys(self) -> set[Sym | None]:
        """What differs from start to start."""
        return {self.key, self.turn} - {None}


Axes = tuple[Axis, ...]  # of an output, by dimension
Boxes = tuple[
    np.ndarray, np.ndarray
]  # the first elements of stores along each dimension, and the elements after the last
Starts = list[tuple[int, dict[Sym, int]]]  # by store, where it starts along one dimension, as `parts`
Loops = tuple[tuple[Sym, Any], ...]  # as of `Move`
Pairs = list[tuple[int, int]]  # of numbers of stores that have an element in common


def stored_at(output: Output, visit: Visit) -> list[list[Move]]:
    """The stores of an output at one tile, by warp. What the threads of several warps store together is there once."""
    name, vector = output.store.name, output.store.vector
    found: list[list[Move]] = []
    seen: set[Any] = set()
    for moves in visit.moves.values():
        own = []
        for i, move in enumerate(move for move in moves if move.part.name == name):
            shared = i, move.at
            if not vector or shared not in seen:
                own.append(move)
            seen.add(shared)
        if own:
            found.append(own)
    return found


def show(output: Output, grid: Grid, visits: Iterable[Visit], solver: Solver) -> Shown:
    """What is shown of an output. visits: all that tiles may do."""
    visits, mirrored = list(visits), _Mirrored(output, grid)
    others = [mirrored.of(visit, True) for visit in visits]
    if not any(map(mirrored.stores, others)):
        shown = _show(output, grid, visits, solver, grid.below(0))[1]
        above = "tiles above the diagonal are stored by nobody" if grid.lower else ""
        return shown._replace(whole=shown.whole or above)
    own = [mirrored.of(visit, False) for visit in visits]
    axes, shown = _show(output, grid, own, solver, grid.below(0))
    swapped, also = _show(output, grid, others, solver, grid.below(1))
    apart, whole = shown.apart or also.apart, shown.whole or also.whole
    strides = {axis.stride for axis in (*axes[-2:], *swapped[-2:])}
    if apart or whole or output.loads or not grid.lower or len(strides) > 1:
        return Shown(apart or whole or "a tile may be stored mirrored to where another one is", whole)
    exchanged = dict(zip(_last_two(grid), reversed(_last_two(grid)), strict=True))
    for one in own:
        for other in others:
            facts = (*one.facts, *grid.below(0), *(replaced(x, exchanged) for x in (*other.facts, *grid.below(0))))
            if mirrored.stores(one) and mirrored.stores(other) and solver.possible(facts):
                return Shown("a tile is stored mirrored to where another one is, or the same")
    return Shown()


def _last_two(grid: Grid) -> tuple[Sym, ...]:
    """The coordinates along the dimensions whose diagonal it is."""
    return tuple(coordinate(dim) for dim in list(grid.tile)[-2:])


class _Mirrored:
    """Tells the stores of an output that are mirrored from the others."""

    def __init__(self, output: Output, grid: Grid):
        self.name, self.last = output.store.name, output.store.dims[-2:]
        self.of_grid = self.last == tuple(grid.tile)[-2:] and len(self.last) == 2

    def stores(self, visit: Visit) -> bool:
        return any(move.part.name == self.name for moves in visit.moves.values() for move in moves)

    def of(self, visit: Visit, mirrored: bool) -> Visit:
        """The visit with the stores alone that are mirrored, or not; and with all that is no store of the output."""

        def kept(move: Move) -> bool:
            return move.part.name != self.name or self._is(move) == mirrored

        return visit._replace(moves={warp: [m for m in moves if kept(m)] for warp, moves in visit.moves.items()})

    def _is(self, move: Move) -> bool:
        if not self.of_grid:
            return False
        m, n = ({key.args[1] for key in parts(at)[1] if is_coordinate(key)} for at in move.at[-2:])
        return (n, m) == ({self.last[0]}, {self.last[1]})


def _show(
    output: Output, grid: Grid, visits: Iterable[Visit], solver: Solver, given: tuple[Any, ...]
) -> tuple[Axes, Shown]:
    """(how tiles start, what is shown) of the stores of these visits. given: what holds of the tiles that have to store."""
    if output.store.clipped and not grid.ends:
        return (), Shown(*[ASCENDING] * 2)
    if output.store.clipped:
        moves = [move for visit in visits for own in stored_at(output, visit) for move in own]
        if any(_beyond_its_rows(move, solver) for move in moves):
            return (), Shown(*["a tile may store more rows than it has of its group"] * 2)
        visits = [_as_of_grid(visit, output, grid) for visit in visits]
    known: dict[Any, tuple[Axes, Shown]] = {}
    some: list[frozenset[Sym]] = []
    none: list[frozenset[Sym]] = []
    names, loads = {load.name for load in output.loads}, dict[Any, None]()
    for visit in visits:
        stored = stored_at(output, visit)
        if visit.place is None:
            if stored:
                return (), Shown(*["it is stored before the first tile"] * 2)
            continue
        facts = frozenset(map(grid.where_one, visit.facts))
        if False not in facts:
            (some if stored else none).append(facts - {True})
        name = tuple(tuple((move.at, move.loops, move.sometimes) for move in moves) for moves in stored)
        if stored and name not in known:
            known[name] = _of_tile(output, grid, stored, solver)
        every = (move for moves in visit.moves.values() for move in moves)
        loads |= {(*move.at, move.part): None for move in every if move.part.name in names}
    if not known:
        return (), Shown(*["no body stores it"] * 2)
    apart, whole = (next(filter(None, each), "") for each in zip(*(shown for _, shown in known.values()), strict=True))
    if apart:
        return (), Shown(apart, apart)
    if len({axes for axes, _ in known.values()}) > 1:
        return (), Shown(*["tiles of different kinds start in different ways"] * 2)
    (axes, _), *_ = known.values()
    apart = _reads_apart(output, axes, list(loads)) or _alone(grid, axes, some, solver)
    return axes, Shown(apart, whole or _reaches(output, grid, axes, [facts.union(given) for facts in none], solver))


def _beyond_its_rows(move: Move, solver: Solver) -> bool:
    """Whether a store may reach the next group's rows."""
    left = leaf("tile", "rows") + leaf("tile", "row") - move.at[0]
    return move.rows is None or solver.possible((at_least_0(move.rows - 1), at_least_0(move.rows - left - 1)))


def _as_of_grid(visit: Visit, output: Output, grid: Grid) -> Visit:
    """A visit whose stores of the output start at a coordinate's multiple. A group's rows lie in one tile each, and groups do
    not overlap: so its tiles keep apart as those of a grid do."""
    dim = output.store.dims[0]
    rows = {leaf("tile", "row"): coordinate(dim) * grid.tile[dim]}

    def moved(move: Move) -> Move:
        own = move.part.name == output.store.name
        return move._replace(at=(replaced(move.at[0], rows), *move.at[1:])) if own else move

    return visit._replace(moves={warp: list(map(moved, moves)) for warp, moves in visit.moves.items()})


def _free(grid: Grid, axes: Axes) -> list[Sym]:
    """The coordinates of a tile that do not say where it is stored."""
    keys = set[Any]().union(*(axis.keys for axis in axes))
    return [coordinate(dim) for dim in grid.tile if coordinate(dim) not in keys and not grid.one(dim)]


def _alone(grid: Grid, axes: Axes, some: list[frozenset[Sym]], solver: Solver) -> str:
    """Why two tiles may store to the same places that differ only in coordinates which no dimension has; empty if they do
    not. some: the facts of each visit that stores."""
    free = _free(grid, axes)
    other = {each: leaf("tile", f"other {each.args[1]}") for each in free}
    for each in free:
        further = at_least_0(other[each] - each - 1)
        for one in some:
            for another in some:
                if solver.possible((*one, *(replaced(fact, other) for fact in another), further)):
                    return f"tiles that differ in {each.args[1]} alone store to the same places"
    return ""


def _reaches(output: Output, grid: Grid, axes: Axes, none: list[frozenset[Sym]], solver: Solver) -> str:
    """Why tiles may not reach all of the output; empty if they do. none: the facts of each visit that stores nothing."""
    first = dict.fromkeys(_free(grid, axes), 0)  # there is such a tile along each dimension
    if any(solver.possible([replaced(fact, first) for fact in facts]) for facts in none):
        return "not all tiles store it"
    keys = [key for axis in axes for key in axis.keys]
    if len(set(keys)) < len(keys):
        return "along two dimensions one coordinate says where a tile starts"
    for name, axis in zip(output.store.dims, axes, strict=True):
        if axis.key is not None and is_coordinate(axis.key) and axis.turn is None:
            of, end = axis.key.args[1], axis.stride * grid.tiles(axis.key.args[1])
            if not isinstance(axis.shift, Sym) and not grid.reaches(name, axis.stride, of):
                return f"there may be fewer tiles than {name} has elements for"
            if isinstance(axis.shift, Sym) and not _covers(grid, name, axis.shift, end, solver):
                return _begins(name, axis)
    return ""


def _covers(grid: Grid, dim: str, shift: Any, end: Any, solver: Solver) -> bool:
    """Whether elements from *shift* up to *shift* + *end* are all of a dimension."""
    extent = grid.extent(dim) if isinstance(end, Sym) else grid.plan.most.get(dim, grid.extent(dim))
    after, before = at_least_0(shift - 1), at_least_0(extent - 1 - shift - end)
    return not solver.possible([after]) and not solver.possible([before])


def _of_tile(output: Output, grid: Grid, stored: list[list[Move]], solver: Solver) -> tuple[Axes, Shown]:
    """How the stores of one tile start, and whether they keep apart and fill their box."""
    dims, moves = output.store.dims, [move for own in stored for move in own]
    every, turns = [[parts(move.at[i]) for move in moves] for i in range(len(dims))], [0] * len(moves)
    loops = max((move.loops for move in moves), key=len)
    if any(move.loops != loops for move in moves):
        found = _as_turns(every, moves, loops)
        if found is None:
            return (), Shown(*["it is stored inside of a loop, and outside"] * 2)
        every, turns = found
    extents = np.array([move.part.part for move in moves])
    pinned = set[Any]().union(*(_pins(starts, extents[:, i], grid) for i, starts in enumerate(every)))
    axes, lows = [], []
    for i, (dim, starts) in enumerate(zip(dims, every, strict=True)):
        shift = {} if output.loads or output.store.clipped else _shift(starts, pinned)
        least = min(const for const, _ in starts) if shift else 0
        forms = {frozenset((x, n) for x, n in terms.items() if x not in shift) for _, terms in starts}
        axis = _axis(dict(next(iter(forms))), grid) if len(forms) == 1 else None
        if axis is None:
            how = " or ".join(dict.fromkeys(text(move.at[i]) for move in moves[:2]))
            return (), Shown(*[f"along {dim} it starts at {how}, which is not a multiple of one coordinate"] * 2)
        axes.append(axis._replace(shift=total(least, shift)))
        lows.append([const - least for const, _ in starts])
    if {key for key, _ in loops}.difference(*(axis.keys for axis in axes)):
        return (), Shown(*["the iterations of a loop store to the same places"] * 2)
    low = np.array(lows).T
    high = low + extents
    for dim, axis, first, end in zip(dims, axes, low.min(0), high.max(0), strict=True):
        exact = output.loads or output.store.clipped
        if axis.key is not None and (end - first > axis.stride or (exact and (first < 0 or end > axis.stride))):
            said = f"along {dim} tiles are {axis.stride} elements apart, and stores reach from {first} to {end}"
            return (), Shown(*[said] * 2)
    pairs = [(i, j) for i, j in _overlapping(low, high) if turns[i] == turns[j]]
    if any(not same_pieces(output, stored, i, j) for i, j in pairs):
        return (), Shown(*["one tile stores the same place twice"] * 2)
    if any(move.sometimes for move in moves):
        return tuple(axes), Shown("", "only some iterations of a loop store, or only some elements are stored")
    counts = {index: None if count is None else count + max(turns) for index, count in loops}
    whole = _fills(output, grid, axes, (low, high), pairs, turns) or _ends(
        output, grid, axes, counts, high.max(0), solver
    )
    return tuple(axes), Shown("", whole)


def _as_turns(every: list[Starts], moves: list[Move], loops: Loops) -> tuple[list[Starts], list[int]] | None:
    """Stores before a loop as the loop's first turns: (starts along each dimension, by store the number of turns before it);
    None if they are no such turns."""
    index, inside = loops[0][0], [move.loops == loops for move in moves]
    terms = moves[inside.index(True)].at
    along = [i for i, start in enumerate(terms) if index in leaves(start)]
    if len(loops) > 1 or len(along) != 1 or any(move.loops not in (loops, ()) for move in moves):
        return None
    starts = every[along[0]]
    stride, least = parts(terms[along[0]])[1].get(index, 0), min(const for const, _ in starts)
    if stride <= 0:
        return None
    turns = [(const - least) // stride for const, _ in starts]
    before = min(turn for turn, own in zip(turns, inside, strict=True) if own)
    if any(turn >= before for turn, own in zip(turns, inside, strict=True) if not own):
        return None
    turns = [before if own else turn for turn, own in zip(turns, inside, strict=True)]
    found = [(const - n * stride, {index: stride, **terms}) for n, (const, terms) in zip(turns, starts, strict=True)]
    return [found if i in along else each for i, each in enumerate(every)], turns


def _pins(starts: Starts, extents: np.ndarray, grid: Grid) -> set[Any]:
    """The coordinates by which a tile starts along a dimension, if tiles that share an element there have the same ones.
    Whatever else a coordinate moves, it moves alike for both tiles."""
    axis = _axis(starts[0][1], grid) if all(terms == starts[0][1] for _, terms in starts) else None
    consts = np.array([const for const, _ in starts])
    if axis is None or (consts + extents).max() - consts.min() > axis.stride:
        return set()
    return axis.keys


def _shift(starts: Starts, pinned: set[Any]) -> dict[Sym, int]:
    """Terms that move all stores of a tile alike along a dimension, and that other dimensions' coordinates say."""
    first = starts[0][1]
    by = [term for term in first if term.leaves <= pinned and term not in pinned]
    by += [term for term in first if by and term in pinned]
    alike = all(terms.get(term) == first[term] for _, terms in starts for term in by)
    return {term: first[term] for term in by} if alike else {}


def _axis(terms: Mapping[Sym, int], grid: Grid) -> Axis | None:
    if not terms:
        return Axis(None, 0)
    (key, stride), *others = sorted(terms.items(), key=lambda each: each[0].op != "leaf")
    known = is_turn(key) or (is_coordinate(key) and key.args[1] in grid.tile)
    if not known or stride <= 0 or len(others) > 1:
        return None
    if not others:
        return Axis(key, stride)
    ((further, n),) = others
    turn = next(filter(is_turn, further.args), None) if further.op == "prod" else None
    if turn is None or n != stride or not is_coordinate(key):
        return None
    by = grid.tiles(key.args[1])
    return Axis(key, stride, turn, by) if further is by * turn else None


def _overlapping(low: np.ndarray, high: np.ndarray) -> Pairs:
    """Pairs of boxes, by number, that have an element in common."""
    meet = np.all((low[:, None] < high[None]) & (low[None] < high[:, None]), axis=2)
    return [(int(i), int(j)) for i, j in np.argwhere(np.triu(meet, 1))]


def same_pieces(output: Output, stored: list[list[Move]], i: int, j: int) -> bool:
    """Whether two stores of a tile, counted through all warps, are pieces of accumulators one after the other, of which the
    last one begins earlier than the one before ends: it stores the same values."""
    counts = np.cumsum([0, *map(len, stored)])
    same_warp = np.searchsorted(counts, i, "right") == np.searchsorted(counts, j, "right")
    moves = [move for own in stored for move in own]
    return output.overlaps and bool(same_warp) and abs(i - j) == 1 and moves[i].at != moves[j].at


def _fills(output: Output, grid: Grid, axes: list[Axis], boxes: Boxes, pairs: Pairs, turns: list[int]) -> str:
    """Why the stores of a tile may not fill its box, in each turn; empty if they do."""
    ends = []
    low, high = boxes
    for i, (dim, axis) in enumerate(zip(output.store.dims, axes, strict=True)):
        most = int(high[:, i].max()) if isinstance(axis.shift, Sym) else grid.plan.most.get(dim)
        if axis.key is not None:
            ends.append(axis.stride)
            if low[:, i].min():
                return f"along {dim} tiles store from element {low[:, i].min()} of their own on"
        elif most is None:
            return f"{high[:, i].max()} elements are stored along {dim}, whose extent has no bound"
        else:
            ends.append(most)
    low, high = np.clip(low, 0, ends), np.clip(high, 0, ends)
    filled = np.bincount(turns, np.prod(np.maximum(high - low, 0), axis=1))
    for i, j in pairs:
        filled[turns[i]] -= np.prod(np.maximum(np.minimum(high[i], high[j]) - np.maximum(low[i], low[j]), 0))
    box = math.prod(ends)
    return "" if (filled == box).all() else f"a tile stores {int(filled.min())} of the {box} elements that are its own"


def _ends(output: Output, grid: Grid, axes: list[Axis], counts: dict[Sym, Any], high: Any, solver: Solver) -> str:
    """Why loops, or the stores of a tile without coordinates, may not reach the end of a dimension; empty if they do.

    counts: by index, the turns of its loop; None where it is not known; high: the elements after the last ones."""
    for dim, axis, end in zip(output.store.dims, axes, high.tolist(), strict=True):
        index = axis.key if axis.turn is None else axis.turn
        if index is not None and is_turn(index):
            count = counts[index] if axis.turn is None else _in_all(counts[index], axis)
            if count is None or (axis.shift == 0 and not counts_to(count, dim, axis.stride, grid.plan.most.get(dim))):
                return f"a loop counts to {text(counts[index])}, not to the end of {dim}"
            end = axis.stride * count
        elif axis.key is not None:
            continue
        if axis.shift != 0 and not _covers(grid, dim, axis.shift, end, solver):
            return _begins(dim, axis)
    return ""


def _in_all(count: Any, axis: Axis) -> Any:
    """How many coordinates the turns of all tiles have: n, if a tile with coordinate p has ceil((n - p) / C) turns, with C as
    many as there are tiles; None if that is not so."""
    if not isinstance(count, Sym) or count.op != "div" or count.args[1] is not axis.by:
        return None
    return count.args[0] - axis.by + 1 + axis.key


def _begins(dim: str, axis: Axis) -> str:
    return f"along {dim} it starts at {text(axis.shift if axis.key is None else axis.key * axis.stride + axis.shift)}"


def counts_to(count: Any, dim: str, stride: int, most: int | None) -> bool:
    """Whether so many strides reach the end of a dimension."""
    if most is not None and not isinstance(count, Sym) and count is not None:
        return count * stride >= most
    if count is None:
        return False
    further = count - (leaf("extent", dim) + stride - 1) // stride
    return not isinstance(further, Sym) and further >= 0


def _reads_apart(output: Output, axes: Axes, loads: list[tuple[Any, ...]]) -> str:
    """Why a tile may load, of this tensor, what another tile stores; empty if it does not."""
    for *at, load in loads:
        for dim, axis, start, extent in zip(output.store.dims, axes, at, load.part, strict=True):
            if axis.key is not None and is_coordinate(axis.key):
                const, terms = parts(start)
                own = terms == {axis.key: axis.stride} and axis.turn is None
                if not own or const < 0 or const + extent > axis.stride:
                    return f"along {dim} a tile loads from {text(start)} on, which another one may store"
    return ""
