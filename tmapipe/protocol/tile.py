"""Where tiles lie: coordinates and first elements of tiles and their parts, the CTA's place in its cluster, tables of rows."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from tmapipe.base import Along, peer_pattern, rank_stride
from tmapipe.base.arithmetic import DType
from tmapipe.errors import InputError, MissingPartError, ScopeError, is_count, permit, require
from tmapipe.isa import registering
from tmapipe.isa.fragment import Carried, Fragment, SlotRef, combine, is_index
from tmapipe.isa.ops import Isa
from tmapipe.parts import Table
from tmapipe.plan.model import WIDTHS, Load, Plan, RoleWarps, Store
from tmapipe.plan.rings import Buffer
from tmapipe.plan.thread_layout import ThreadLayout, VectorLayout, vectors_of

# ---- registry --------------------------------------------------------------------------------------------------------


_MAKERS: dict[type, Callable[..., Any]] = {}

#: Registers what bodies get for a declared part: for a class of parts, and the classes derived from it.
#:
#: The decorated class or function is called with a role's context (`k` in bodies), the part's name and the part, unless the
#: part belongs to another role. Its result is ``k.<name>``; if it returns None, bodies have no name for the part.
#:
#: A stage is different, since ``slot.<name>`` stands for it. For a stage with memory, a class is registered, which is called
#: as `PartInSlot` is. For a `TokenStage`, a function is registered; its result is called with an open slot.
stands_for = registering(_MAKERS)


def bound_by(part: object) -> Callable[..., Any]:
    """The class or function that is registered for *part* (`stands_for`)."""
    return next(_MAKERS[kind] for kind in type(part).__mro__ if kind in _MAKERS)


# ---- tile ------------------------------------------------------------------------------------------------------------


Start = tuple[Any, ...]  #: where a tile starts: an index for each dimension
Named = dict[str, Any]  #: a tile's coordinates, by dimension
Move = Callable[[Any, Any], None]  #: moves a row, or several, to or from a part of a slot


def within(isa: Isa, value: Any, most: Any) -> Any:
    """*value*, but at least 0 and at most *most*, which is not negative. Both may be known only at run time."""
    positive = isa.select(value > 0, value, 0)
    return isa.select(positive < most, positive, most)


class Tile(Carried):
    """Coordinates of an output tile, in tiles along each dimension: ``tile.m``, ``tile["m"]``.

    A tile need not begin at a multiple of its extent. Then `bounds` has (first element, how many elements) by dimension.
    Stores write at most that many elements; the number may be 0, negative, or larger than the tile. None: all elements.
    moved: whether these are other coordinates than the scheduler gave.
    """

    _carries = ("_coordinates", "_bounds")

    def __init__(self, coordinates: Named, bounds: dict[str, tuple[Any, Any]] | None = None, moved: bool = False):
        self._coordinates = coordinates
        self._bounds = bounds or {}
        self._moved = moved

    def __getitem__(self, dim: str) -> Any:
        if dim not in self._coordinates:
            raise MissingPartError(f"tile.{dim}: the tile has no such dimension, only {', '.join(self._coordinates)}.")
        return self._coordinates[dim]

    def __str__(self) -> str:
        """The coordinates, e.g. ``m = 0, n = 2``."""
        return ", ".join(f"{name} = {value}" for name, value in self._coordinates.items())

    def __setattr__(self, name: str, value: Any) -> None:
        fix = "Pass other coordinates to load() or store_from()."
        permit(name.startswith("_"), f"tile.{name} is set, but a tile's coordinates are fixed. {fix}")
        super().__setattr__(name, value)

    def __getattr__(self, dim: str) -> Any:
        if dim.startswith("_"):
            raise AttributeError(dim)
        return self[dim]

    def get(self, dim: str) -> Any:
        """The coordinate along *dim*, or None."""
        return self._coordinates.get(dim)

    def also(self, **coordinates: Any) -> Tile:
        """The tile with further coordinates. Raises `InputError` for a coordinate that is no whole number."""
        for name, place in coordinates.items():
            _check_coordinate(f"tile.also({name})", place)
        moved = self._moved or not self._coordinates.keys().isdisjoint(coordinates)
        return Tile({**self._coordinates, **coordinates}, self._bounds, moved)

    def changed(self, number: Callable[[str, Any], Any]) -> Tile:
        """The tile with each of its numbers, coordinates and bounds, replaced by ``number(name, value)``."""
        coordinates = {name: number(name, value) for name, value in self._coordinates.items()}
        names = ("its first element along {}", "its bound along {}")
        bounds = {
            dim: (number(names[0].format(dim), both[0]), number(names[1].format(dim), both[1]))
            for dim, both in self._bounds.items()
        }
        return Tile(coordinates, bounds, self._moved)

    def start(self, dim: str, extent: int) -> Any:
        """The tile's first element along *dim*, for tiles of *extent* elements; None if the tile has no such dimension."""
        if dim in self._bounds:
            return self._bounds[dim][0]
        place = self._coordinates.get(dim)
        return None if place is None else place * extent

    def anywhere(self, dim: str) -> bool:
        """Whether the tile may begin at any element along *dim*."""
        return dim in self._bounds

    def size(self, dim: str) -> Any:
        """How many elements of the tile count along *dim*, by its own bounds; None: all."""
        return self._bounds[dim][1] if dim in self._bounds else None


def _check_tile(where: str, tile: Any) -> None:
    """Raises `InputError` unless *tile* is a tile, or None."""
    if tile is not None and not isinstance(tile, Tile):
        raise InputError(where, tile, "must be the tile that the body was called with", "pass coordinates by name")


def _check_coordinate(where: str, place: Any) -> None:
    """Raises `InputError` unless *place* is a coordinate."""
    require(is_index(place), where, place, "must be a whole number of tiles", "use integers, and // instead of /")


def start_of(where: str, dims: Sequence[str], extents: Sequence[int], tile: Tile | None, coordinates: Named) -> Start:
    """The first element of a tile of *extents*: one index for each of *dims*.

    Each coordinate, counted in tiles, comes from *coordinates* by the dimension's name, or else from *tile*.

    Raises:
        InputError: A coordinate is missing, unknown or no number.
    """
    _check_tile(where, tile)
    unknown = [name for name in coordinates if name not in dims]
    if unknown:
        rule = f"is no dimension; the tensor has dimensions {', '.join(dims)}"
        raise InputError(where, unknown, rule, "name one of them")
    start: list[Any] = []
    for dim, extent in zip(dims, extents, strict=True):
        place = coordinates.get(dim)
        if place is not None:
            _check_coordinate(f"{where}({dim})", place)
            start.append(place * extent)
        else:
            start.append(None if tile is None else tile.start(dim, extent))
    missing = [d for d, value in zip(dims, start, strict=True) if value is None]
    example = ", ".join(f"{d}=..." for d in missing)
    require(not missing, where, missing, "needs a coordinate (in tiles) along every dimension", f"pass {example}")
    return tuple(start)


def check_own(where: str, plan: Plan, part: Load | Store, tile: Tile | None, coordinates: Iterable[str]) -> None:
    """Raises `InputError` if the kernel both stores and loads the tensor, but the tile is not this CTA's output tile."""
    _check_tile(where, tile)
    both = {load.memory for load in plan.loads} & {store.memory for store in plan.stores}
    if part.memory in both and (
        tile is None or tile._moved or not tile._coordinates or any(tile.get(dim) is not None for dim in coordinates)
    ):
        rule = "must be at the coordinates of its output tile, since the CTA loads what it has stored"
        fix = "pass the tile, and coordinates only along dimensions that the tile does not have"
        named = ", ".join(coordinates)
        raise InputError(where, named or ("no tile" if tile is None else "a tile at another place"), rule, fix)


def check_start(where: str, dims: Sequence[str], start: tuple[Any, ...]) -> tuple[Any, ...]:
    """*start*. Raises `InputError` unless it is one index along each of *dims*."""
    if len(start) != len(dims) or not all(map(is_index, start)):
        rule = f"must be one index along each of {', '.join(dims)}, in elements"
        raise InputError(where, start, rule, f"pass {len(dims)} whole numbers of 32 bits")
    return start


def tile_at(where: str, dims: Sequence[str], start: tuple[Any, ...]) -> Tile:
    """The tile whose first element is *start*, along *dims*. Raises `InputError` unless *start* has one index for each."""
    return Tile({}, {dim: (index, None) for dim, index in zip(dims, check_start(where, dims, start), strict=True)})


# ---- cluster ---------------------------------------------------------------------------------------------------------


def cluster_coordinate(isa: Isa, axis: str) -> Any:
    """The calling CTA's coordinate along *axis* of its cluster."""
    cluster = isa.plan.cluster
    if cluster.get(axis, 1) == 1:
        return 0
    stride = rank_stride(cluster, axis)
    rank = isa.cta_rank if stride == 1 else isa.cta_rank // stride
    return rank if stride * cluster[axis] == isa.plan.cluster_size else rank % cluster[axis]


def _index(isa: Isa, along: Along) -> Any:
    """The calling CTA's index in its group, along one axis of the cluster."""
    coordinate = cluster_coordinate(isa, along.axis)
    return coordinate if along.ctas == along.extent else coordinate % along.ctas


def peer_mask(isa: Isa, group: Iterable[Along]) -> Any:
    """The mask of the CTAs in the calling CTA's group."""
    group = tuple(group)
    own = sum(_index(isa, each) * each.stride for each in group)
    return peer_pattern(group) << (isa.cta_rank - own)


def share_index(isa: Isa, group: Iterable[Along]) -> Any:
    """Which share of a multicast tile the calling CTA loads: its index in its group."""
    index, stride = 0, 1
    for each in group:
        index = index + _index(isa, each) * stride
        stride *= each.ctas
    return index


def peer_rank(isa: Isa, group: Iterable[Along], index: Any) -> Any:
    """The rank of a CTA of the calling CTA's group. index: the CTA's index in the group, as `share_index` counts."""
    rank, left = isa.cta_rank, index
    for each in group:
        rank = rank + (left % each.ctas - _index(isa, each)) * each.stride
        left = left // each.ctas
    return rank


# ---- values ----------------------------------------------------------------------------------------------------------


def write_values(isa: Isa, where: str, slot: SlotRef, values: Any, at: Any = None) -> None:
    """Writes a fragment to a slot. Each thread writes the elements that it has.

    Args:
        at: The (row, column) at which the fragment begins, if it is a part of the tile.

    Raises:
        InputError: *values* is no fragment, has other extents, or is fp32 where the slot holds integers.
    """
    isa.fragments.write(slot, checked_values(where, slot.buffer, values, at), at)


def mask_of(name: str, when: Any, values: Fragment) -> Fragment:
    """A comparison of fragments for each of *values*. Raises `InputError` for something else."""
    alike = isinstance(when, Fragment) and when.kind == "bool" and when.layout in (None, values.layout)
    if not alike or values.along != "tile" or when.along not in ("tile", "rows", "columns", "one"):
        rule = "must be a comparison of fragments of the tile that is stored"
        raise InputError(f"{name}(when)", when, rule, "e.g. when=values > 0")
    backend = values.backend
    data = backend.expand(values.layout, when.along, when.data, "tile")
    return Fragment(backend, values.layout, "tile", "bool", data)


def checked_values(where: str, buffer: Buffer, values: Any, at: Any = None, narrower: bool = False) -> Fragment:
    """*values*, which a slot of *buffer* can take, with 0 and 1 for bool. Arguments and errors are those of `write_values`.

    Args:
        narrower: Whether *values* may have fewer columns than the tile.
    """
    layout, dtype = layout_of(where, values), buffer.dtype
    dtype.check_held(where)
    if at is None:
        tile = buffer.tile
        if narrower and values.along == "tile" and layout.columns < tile[-1]:
            tile = *tile[:-1], layout.columns
        check_extents(where, tile, layout, values.along)
    else:
        _check_block(where, buffer.tile, layout, values.along, at)
    if values.along != "tile":
        layout.check_rows()
    if dtype.integer and values.kind == "fp32":
        fix = 'round the values: tp.math.cast(values, "int32")'
        raise InputError(where, dtype.name, "is an integer type, which holds no fp32 values", fix)
    if dtype.name.startswith("fp8"):
        return combine("widen", values)
    return combine("add", values, 0) if values.kind == "bool" else values


def check_rounded(name: str, dtype: DType) -> None:
    """Raises `InputError` for a store *name* of integers, since an epilogue's results are not rounded to integers."""
    rule = "is an integer type, but an epilogue works in fp32 and does not round to integers"
    require(not dtype.integer, name, dtype.name, rule, 'give the store another dtype, e.g. "bf16"')


def _check_block(where: str, tile: tuple[int, ...], layout: ThreadLayout, along: str, at: Any) -> None:
    """Raises `InputError` unless fragments of these extents cut the tile into equal blocks, of which one begins at *at*."""
    block = layout.rows, layout.columns
    even = len(tile) == 2 and along == "tile" and not any(size % part for size, part in zip(tile, block, strict=True))
    pair = isinstance(at, tuple) and len(at) == 2 and all(isinstance(x, int) for x in at)
    if not even or not pair or any(x < 0 or x % n or x >= end for x, n, end in zip(at, block, tile, strict=True)):
        rule = f"must be where a block begins, if blocks of {block[0]} x {block[1]} divide the tile {tile}"
        raise InputError(f"{where}(at)", at, rule, f"e.g. at=(0, {layout.columns})")


def layout_of(where: str, values: Any) -> ThreadLayout:
    """How *values* are distributed over threads. Raises `InputError` unless it is a fragment of a whole tile."""
    fix = "compute it from slot.x.read() or acc.values(), or make it with k.full()"
    require(isinstance(values, Fragment), where, values, "takes a fragment, distributed over the role's threads", fix)
    if values.layout is None:
        raise InputError(where, values, "takes a fragment of a tile", "combine it with a fragment of a tile")
    return values.layout


def two_extents(name: str, part: Any) -> tuple[int, int]:
    """The (rows, columns) of a part of a tile. Raises `InputError` for something else."""
    if not isinstance(part, (tuple, list)) or len(part) != 2 or not all(map(is_count, part)):
        raise InputError(f"{name}(tile)", part, "must be two positive extents (rows, columns)", "e.g. tile=(16, 64)")
    return part[0], part[1]


def check_extents(where: str, tile: tuple[int, ...], layout: ThreadLayout, along: str) -> None:
    """Raises `InputError` unless a tile has the extents of a fragment, or one extent for one number per row or column, or a
    last extent of 1 for one number per row."""
    wanted: tuple[int, ...] = (1,) if along == "one" else (layout.rows,) if along == "rows" else (layout.columns,)
    extents = tile if along != "rows" or len(tile) == 1 or tile[-1] > 1 else (math.prod(tile),)
    if along == "tile":
        extents, wanted = (math.prod(tile[:-1]), tile[-1]), (layout.rows, layout.columns)
    what = {"tile": "the tile", "one": "one number"}.get(along, f"one number for each of the {along}")
    rule = f"must be the shape of {what} of the fragment, {wanted}"
    require(extents == wanted, where, tile, rule, "give the stage a tile of this shape")


# ---- table -----------------------------------------------------------------------------------------------------------


@stands_for(Table)
class BoundTable(Carried):
    """A `Table` in a body: ``k.rows.entry(i)``."""

    def __init__(self, k: Any, name: str, table: Table):
        self.isa: Isa = k.isa
        self.name, self.role, self.dtype = name, k.role, table.dtype

    def __getitem__(self, i: Any) -> NoReturn:
        raise ScopeError(f"k.{self.name}[...] of a table. Use k.{self.name}.entry(i), for one entry.")

    def __len__(self) -> int:
        raise ScopeError(f"len() of table k.{self.name}. Use k.extent(dim), the extent of its dimension.")

    def __bool__(self) -> bool:
        return True

    def entry(self, *at: Any) -> Any:
        """An entry of the table, the same for all threads. Beyond the table's ends it is -1; a row of this number is outside
        of a tensor, so loads fill it with zeros.

        Args:
            at: The entry's number along each dimension of the table.

        Raises:
            InputError: *at* does not have one whole number for each dimension.
        """
        dims = self.isa.plan.tables[self.name]
        permit(self.dtype is None, f"entry() of {self.name!r}, which holds data. Use k.{self.name}.read(...).")
        if len(at) != len(dims) or not all(map(is_index, at)):
            rule = f"must be the number of an entry along each of {', '.join(dims)}"
            given = at[0] if len(at) == 1 else at
            raise InputError(f"k.{self.name}.entry", given, rule, "pass whole numbers of 32 bits")
        counts = [self.isa.extent(self.name, dim) for dim in range(len(dims))]
        inside = functools.reduce(operator.and_, [(i >= 0) & (i < count) for i, count in zip(at, counts, strict=True)])
        place = at[0] if len(at) == 1 else at[0] * counts[1] + at[1]
        entry = self.isa.load_entry(self.name, self.isa.select(inside, place, 0), 0)
        return self.isa.select(inside, entry, -1)

    def read(self, *, tile: Any, at: Any, gaps: Any = (), width: int = 8) -> Fragment:
        """Data of the table as a fragment of int32, distributed over the role's threads, which load element by element from
        global memory: no slot, and nothing to wait for. Beyond the table's ends there are zeros.

        Args:
            tile: How many elements are read, a tuple of one extent.
            at: A pair: where element 0 lies in the table, and the number of the first element that is read, 0 or more.
            gaps: Pairs (length, further) of what is skipped, as for ``slot.x.read``; *further* may be negative.
            width: How many elements that follow one another a thread has at most: 8, 4, 2 or 1.

        Raises:
            ScopeError: The table holds no data.
            InputError: The threads cannot share the elements evenly, or an argument has another form.
        """
        permit(self.dtype is not None, f"read() of {self.name!r}, which holds entries. Declare Table(dtype=).")
        layout = joined_layout(f"k.{self.name}.read", True, tile, at, gaps, self.role, width)
        return self.isa.fragments.load_joined(self.name, layout, at, gaps)


def joined_layout(name: str, fits: bool, part: Any, at: Any, gaps: Any, role: RoleWarps, width: int) -> VectorLayout:
    """How elements are distributed that lie side by side, except for gaps. Raises `InputError` for other arguments than
    `PartInSlot.read` takes, of a tile that *fits*, as it has one extent."""
    pairs = isinstance(gaps, tuple) and all(isinstance(each, tuple) and len(each) == 2 for each in gaps)
    if not pairs or not all(is_count(length) and type(further) is int for length, further in gaps):
        rule = "must be pairs: a positive length, and how many elements are skipped after it"
        raise InputError(f"{name}(gaps)", gaps, rule, "e.g. gaps=((72, 40),)")
    one = isinstance(part, tuple) and len(part) == 1 and is_count(part[0]) and fits
    if not one or not isinstance(at, tuple) or len(at) != 2 or not all(map(is_index, at)):
        rule = "must be one extent and (where element 0 lies, first element that is read), in a tile of one extent"
        raise InputError(f"{name}(tile, at)", (part, at), rule, "e.g. tile=(1024,), at=(0, 0)")
    require(width in WIDTHS and type(width) is int, f"{name}(width)", width, "must be 8, 4, 2 or 1", "leave it out")
    return vectors_of(name, part, role, width)


# ---- rows ------------------------------------------------------------------------------------------------------------


# For how many rows entries of the table are loaded at once, if that divides their number.
TOGETHER = (16, 8, 4, 3, 2, 1)


def check_part(where: str, move: Load | Store, i: Any) -> None:
    """Raises `InputError` unless *i* is the number of a part in which a slot is moved."""
    rule = f"must be the number of a part; a slot is moved in {move.parts} part{'s' * (move.parts > 1)}"
    require(is_index(i, move.parts), where, i, rule, "count from 0, or declare in_parts()")


def part_start(
    start_of: Callable[..., Start], where: str, move: Load | Store, i: Any, tile: Tile | None, coordinates: Named
) -> Start:
    """The first element of part *i* of a tile: one index for each dimension of the tensor.

    Args:
        start_of: The function `start_of`, or one of its variants.
        where: The name of the call, for errors.
        move: The load or store of the whole tile.
        i: Which part.
        tile: The tile. Its coordinates count for the dimensions that *coordinates* do not name.
        coordinates: Coordinates by the dimension's name: counted in parts along the dimension that the parts divide, and in
            tiles along the other dimensions.
    """
    check_part(where, move, i)
    cut = len(move.dims) - move.core
    named = move.dims[cut] in coordinates
    parts = list(move.span)
    parts[cut] //= move.parts
    start = list(start_of(where, move.dims, parts if named else move.span, tile, coordinates))
    if not named:
        start[cut] = start[cut] + i * parts[cut]
    return tuple(start)


def rows_start(where: str, move: Load | Store, table: Any, first: Any, tile: Tile | None, coordinates: Named) -> Start:
    """Where the rows begin: one index for each dimension of the tensor, 0 along the dimension of the rows.

    Raises:
        InputError: The stage does not move its rows one by one; *table* is no table or *first* no number; or a coordinate is
            missing or unknown.
    """
    cut = len(move.dims) - move.core
    if move.core != 2 or move.parts != move.tile[cut]:
        rule = f"must move a tile of two extents in as many parts as it has rows; the tile is {move.tile}"
        raise InputError(where, f"in_parts({move.parts})", rule, f"declare .in_parts({move.tile[cut]})")
    if not isinstance(table, BoundTable):
        raise InputError(f"{where}(table)", table, "must be a table of row numbers", "declare tp.Table, pass k.name")
    if not is_index(first):
        raise InputError(f"{where}(first)", first, "must be the number of an entry", "pass a whole number of 32 bits")
    if move.dims[cut] in coordinates:
        rule = f"cannot be given, since the table says where the rows lie along {move.dims[cut]}"
        raise InputError(f"{where}({move.dims[cut]})", coordinates[move.dims[cut]], rule, "leave it out")
    return start_of(where, move.dims, move.part, tile, {**coordinates, move.dims[cut]: 0})


def move_rows(isa: Isa, move: Load | Store, table: BoundTable, first: Any, one: Move, four: Move | None) -> None:
    """Moves all rows of a slot. The table has the number of the slot's row i at entry *first* + i.

    Args:
        move: The load or store of the slot.
        one: ``one(row, part)`` moves one row of the tensor to or from this part of the slot. part = None: the whole slot.
        four: ``four(rows, part)`` moves four rows of a matrix by one instruction, to or from parts 4 * part and on of the
            slot. A row must not be longer than a box. None: the architecture has no such instruction.
    """
    by_four = four is not None and len(move.dims) == 2 and move.box[-1] == move.tile[-1] and move.parts % 4 == 0
    at_once = 4 if by_four else 1
    together = next(size for size in TOGETHER if move.parts % size == 0)

    def turn(i: Any) -> None:
        entries = [table.entry(first + together * i + j) for j in range(together)]
        for group in range(together // at_once):
            part = together // at_once * i + group
            if four is not None and by_four:
                four(entries[4 * group : 4 * group + 4], part)
            else:
                one(entries[group], part if move.parts > 1 else None)

    isa.loop(move.parts // together, turn)
