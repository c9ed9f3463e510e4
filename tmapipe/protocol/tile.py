"""Tile: the coordinates of an output tile; the calling CTA's place in its cluster; tables; rows and extents of tiles."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from tmapipe.base import Along, peer_pattern, rank_stride
from tmapipe.base.arithmetic import DType
from tmapipe.errors import InputError, MissingPartError, ScopeError
from tmapipe.isa.fragment import Carried, Fragment, SlotRef, combine, is_index
from tmapipe.isa.ops import Isa
from tmapipe.parts.stages import Table
from tmapipe.plan.model import Load, Plan, Store
from tmapipe.plan.rings import Buffer
from tmapipe.plan.thread_layout import ThreadLayout

# ---- registry --------------------------------------------------------------------------------------------------------
#
# What stands for a declared part in a role's body: found by the class of the part.


_MAKERS: dict[type, Callable[..., Any]] = {}


def stands_for(part: type) -> Callable[[Any], Any]:
    """Registers a class, or a function that makes an object, for parts of this class and of classes derived from it.

    It is called with a role's context (`k` in bodies), the part's name and the part, if that is no other role's. It may return
    None: then bodies have no name for it.

    What stands for a stage is what a slot has of it: for a stage with memory a class, called as `PartInSlot` is; for a
    `TokenStage`, the function gives what is called with an open slot.
    """

    def register(maker: Any) -> Any:
        _MAKERS[part] = maker
        return maker

    return register


def bound_by(part: object) -> Callable[..., Any]:
    """What makes the object that stands for *part*. Raises KeyError if nothing does."""
    return next(_MAKERS[kind] for kind in type(part).__mro__ if kind in _MAKERS)


# ---- tile ------------------------------------------------------------------------------------------------------------
#
# Tile: the coordinates of an output tile, and where a transfer's tile starts.


def within(isa: Isa, value: Any, most: Any) -> Any:
    """*value*, but at least 0 and at most *most*, which is not negative. Run-time values too."""
    positive = isa.select(value > 0, value, 0)
    return isa.select(positive < most, positive, most)


class Tile(Carried):
    """Coordinates of an output tile, in tiles along each dimension: ``tile.m``, ``tile["m"]``.

    `bounds` has (first element, how many) by dimension, for a tile that does not begin at a multiple of its extent. Stores
    write no more than that number, which may be 0 or less, or more than the tile has; None: all.
    """

    _carries = ("_coordinates", "_bounds")

    def __init__(
        self, coordinates: dict[str, Any], bounds: dict[str, tuple[Any, Any]] | None = None, moved: bool = False
    ):
        self._coordinates = coordinates
        self._bounds = bounds or {}
        self._moved = moved  # whether it is another one than the scheduler gave

    def __getitem__(self, dim: str) -> Any:
        if dim not in self._coordinates:
            raise MissingPartError(f"tile.{dim}: the tile has no such dimension, only {', '.join(self._coordinates)}.")
        return self._coordinates[dim]

    def __str__(self) -> str:
        """Where it is, e.g. ``m = 0, n = 2``."""
        return ", ".join(f"{name} = {value}" for name, value in self._coordinates.items())

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            fix = "Pass other coordinates to load() or store_from()."
            raise ScopeError(f"tile.{name} is set: a tile is where it is. {fix}")
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
            if not is_index(place):
                rule = "is a whole number of tiles"
                raise InputError(f"tile.also({name})", place, rule, "use integers, and // instead of /")
        moved = self._moved or not self._coordinates.keys().isdisjoint(coordinates)
        return Tile({**self._coordinates, **coordinates}, self._bounds, moved)

    def changed(self, number: Callable[[str, Any], Any]) -> Tile:
        """The tile with ``number(name, value)`` in the place of each number, which may be a bound."""
        coordinates = {name: number(name, value) for name, value in self._coordinates.items()}
        names = ("its first element along {}", "its bound along {}")
        bounds = {
            dim: (number(names[0].format(dim), both[0]), number(names[1].format(dim), both[1]))
            for dim, both in self._bounds.items()
        }
        return Tile(coordinates, bounds, self._moved)

    def start(self, dim: str, extent: int) -> Any:
        """The element at which it begins along *dim*, for tiles of *extent* elements; None if it has no such dimension."""
        if dim in self._bounds:
            return self._bounds[dim][0]
        place = self._coordinates.get(dim)
        return None if place is None else place * extent

    def anywhere(self, dim: str) -> bool:
        """Whether it may begin at any element along *dim*."""
        return dim in self._bounds

    def size(self, dim: str) -> Any:
        """How many elements of it count along *dim*, by its own bounds; None: all."""
        return self._bounds[dim][1] if dim in self._bounds else None


def start_of(
    where: str, dims: Sequence[str], extents: Sequence[int], tile: Tile | None, coordinates: dict[str, Any]
) -> tuple[Any, ...]:
    """The element at which a tile of *extents* starts, along each of *dims*.

    Each coordinate, in tiles, is taken from *coordinates* by name, else from *tile*.

    Raises:
        InputError: A coordinate is missing, unknown or no number.
    """
    if tile is not None and not isinstance(tile, Tile):
        raise InputError(where, tile, "takes the tile that the body was called with", "pass coordinates by name")
    unknown = [name for name in coordinates if name not in dims]
    if unknown:
        raise InputError(where, unknown, f"has dimensions {', '.join(dims)}", "name one of them")
    start: list[Any] = []
    for dim, extent in zip(dims, extents, strict=True):
        place = coordinates.get(dim)
        if place is not None and not is_index(place):
            rule = "is a whole number of tiles"
            raise InputError(f"{where}({dim})", place, rule, "use integers, and // instead of /")
        if place is not None:
            start.append(place * extent)
        else:
            start.append(None if tile is None else tile.start(dim, extent))
    missing = [d for d, value in zip(dims, start, strict=True) if value is None]
    if missing:
        example = ", ".join(f"{d}=..." for d in missing)
        raise InputError(where, missing, "needs a coordinate (in tiles) along every dimension", f"pass {example}")
    return tuple(start)


def aligned_start(
    where: str, dims: Sequence[str], extents: Sequence[int], tile: Tile | None, coordinates: dict[str, Any]
) -> tuple[Any, ...]:
    """The start as `start_of` gives it, for a tile that starts at a multiple of its extent along the contiguous dimension."""
    start = start_of(where, dims, extents, tile, coordinates)
    if tile is not None and dims[-1] not in coordinates and tile.anywhere(dims[-1]):
        rule = f"has tiles that begin at any element along {dims[-1]}; TMA starts at multiples of 16 bytes there"
        fix = "let another dimension be the contiguous one, or load from a multiple before it with load_from()"
        raise InputError(where, dims, rule, fix)
    return start


def check_own(where: str, plan: Plan, part: Load | Store, tile: Tile | None, coordinates: Iterable[str]) -> None:
    """Raises `InputError` unless a tile that this CTA both stores and loads is at the coordinates of its output tile."""
    if tile is not None and not isinstance(tile, Tile):
        raise InputError(where, tile, "takes the tile that the body was called with", "pass it, or use store_from()")
    both = {load.memory for load in plan.loads} & {store.memory for store in plan.stores}
    if part.memory in both and (
        tile is None or tile._moved or not tile._coordinates or any(tile.get(dim) is not None for dim in coordinates)
    ):
        rule = "is stored, and loaded again, by one CTA: at the coordinates of its output tile"
        fix = "pass the tile, and coordinates along other dimensions alone"
        raise InputError(where, ", ".join(coordinates) or None, rule, fix)


def check_start(where: str, dims: Sequence[str], start: tuple[Any, ...]) -> tuple[Any, ...]:
    """*start*. Raises `InputError` unless it is one index along each of *dims*."""
    if len(start) != len(dims) or not all(map(is_index, start)):
        rule = f"is one index along each of {', '.join(dims)}, in elements"
        raise InputError(where, start, rule, f"pass {len(dims)} whole numbers of 32 bits")
    return start


def tile_at(where: str, dims: Sequence[str], start: tuple[Any, ...]) -> Tile:
    """The tile that starts at these elements along *dims*. Raises `InputError` unless they are indices."""
    return Tile({}, {dim: (index, None) for dim, index in zip(dims, check_start(where, dims, start), strict=True)})


# ---- cluster ---------------------------------------------------------------------------------------------------------
#
# Where the calling CTA is in its cluster: coordinates, peers and shares.


def cluster_coordinate(isa: Isa, axis: str) -> Any:
    """The calling CTA's coordinate along *axis* of its cluster."""
    cluster = isa.plan.cluster
    if cluster.get(axis, 1) == 1:
        return 0
    stride = rank_stride(cluster, axis)
    rank = isa.cta_rank if stride == 1 else isa.cta_rank // stride
    return rank if stride * cluster[axis] == isa.plan.cluster_size else rank % cluster[axis]


def _index(isa: Isa, along: Along) -> Any:
    """The calling CTA's index among those of its group along one axis."""
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
    """The rank of the CTA with this index (as of `share_index`) in the calling CTA's group."""
    rank, left = isa.cta_rank, index
    for each in group:
        rank = rank + (left % each.ctas - _index(isa, each)) * each.stride
        left = left // each.ctas
    return rank


# ---- values ----------------------------------------------------------------------------------------------------------
#
# Fragments and the extents of the tiles that they come from and go to.


def write_values(isa: Isa, where: str, slot: SlotRef, values: Any, at: Any = None) -> None:
    """Writes a fragment to a slot, by the threads that have it.

    Args:
        at: Of a part of the tile, where it begins.

    Raises:
        InputError: *values* is no fragment, has other extents, or is fp32 where the slot holds integers.
    """
    isa.fragments.write(slot, checked_values(where, slot.buffer, values, at), at)


def mask_of(name: str, when: Any, values: Fragment) -> Fragment:
    """A comparison of fragments for each of *values*. Raises `InputError` for something else."""
    alike = isinstance(when, Fragment) and when.kind == "bool" and when.layout in (None, values.layout)
    if not alike or values.along != "tile" or when.along not in ("tile", "rows", "columns", "one"):
        rule = "is a comparison of fragments of the tile that is stored"
        raise InputError(f"{name}(when)", when, rule, "e.g. when=values > 0")
    backend = values.backend
    data = backend.expand(values.layout, when.along, when.data, "tile")
    return Fragment(backend, values.layout, "tile", "bool", data)


def checked_values(where: str, buffer: Buffer, values: Any, at: Any = None, narrower: bool = False) -> Fragment:
    """*values*, with 0 and 1 for bool, that a slot of *buffer* takes. Arguments and errors as of `write_values`.

    Args:
        narrower: Whether they may have fewer columns.
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
        raise InputError(where, dtype.name, "holds no fp32", 'round first: tp.math.cast(values, "int32")')
    return combine("add", values, 0) if values.kind == "bool" else values


def check_rounded(name: str, dtype: DType) -> None:
    """Raises `InputError` for a store *name* of integers: an epilogue's results are not rounded to them."""
    if dtype.integer:
        rule = "an epilogue works in fp32, which is not rounded to integers"
        raise InputError(name, dtype.name, rule, 'give the store another dtype, e.g. "bf16"')


def _check_block(where: str, tile: tuple[int, ...], layout: ThreadLayout, along: str, at: Any) -> None:
    """Raises `InputError` unless fragments of these extents cut the tile into equal blocks, of which one begins at *at*."""
    block = layout.rows, layout.columns
    even = len(tile) == 2 and along == "tile" and not any(size % part for size, part in zip(tile, block, strict=True))
    pair = isinstance(at, tuple) and len(at) == 2 and all(isinstance(x, int) for x in at)
    if not even or not pair or any(x < 0 or x % n or x >= end for x, n, end in zip(at, block, tile, strict=True)):
        rule = f"is where one of the blocks of {block[0]} x {block[1]} begins that the tile {tile} is cut into"
        raise InputError(f"{where}(at)", at, rule, f"e.g. at=(0, {layout.columns})")


def layout_of(where: str, values: Any) -> ThreadLayout:
    """How *values* are distributed over threads. Raises `InputError` unless it is a fragment of a whole tile."""
    if not isinstance(values, Fragment):
        fix = "compute them from slot.x.read() or acc.values(), or make them with k.full()"
        raise InputError(where, values, "takes a fragment, distributed over the role's threads", fix)
    if values.layout is None:
        fix = "combine it with a fragment of a whole tile"
        raise InputError(where, values, "takes a fragment of a whole tile", fix)
    return values.layout


def check_extents(where: str, tile: tuple[int, ...], layout: ThreadLayout, along: str) -> None:
    """Raises `InputError` unless a tile has the extents of a fragment, or one extent for one number a row or column."""
    wanted: tuple[int, ...] = (1,) if along == "one" else (layout.rows,) if along == "rows" else (layout.columns,)
    extents = tile
    if along == "tile":
        extents, wanted = (math.prod(tile[:-1]), tile[-1]), (layout.rows, layout.columns)
    if extents != wanted:
        what = {"tile": "the tile", "one": "one number"}.get(along, f"one number for each of the {along}")
        raise InputError(where, tile, f"is the shape of {what} of the fragment, {wanted}", "give the stage such a tile")


# ---- table -----------------------------------------------------------------------------------------------------------
#
# A table as bodies see it: integers in global memory, one at a time.


@stands_for(Table)
class BoundTable(Carried):
    """A `Table` in a body: ``k.rows.entry(i)``."""

    def __init__(self, k: Any, name: str, table: Table):
        self.isa: Isa = k.isa
        self.name = name

    def __getitem__(self, i: Any) -> NoReturn:
        fix = f"Use k.{self.name}.entry(i)."
        raise ScopeError(f"k.{self.name}[...] of a table, whose entries come one at a time. {fix}")

    def __len__(self) -> int:
        raise ScopeError(f"len() of table k.{self.name}, whose length is that of a dimension. Use k.extent(dim).")

    def __bool__(self) -> bool:
        return True

    def entry(self, *at: Any) -> Any:
        """The entry at these indices, one a dimension, the same for all threads; -1 beyond the table's ends. As a row to load,
        that is outside, so zero.

        Raises:
            InputError: They are not as many whole numbers as the table has dimensions.
        """
        dims = self.isa.plan.tables[self.name]
        if len(at) != len(dims) or not all(map(is_index, at)):
            rule, given = f"is the number of an entry along each of {', '.join(dims)}", at[0] if len(at) == 1 else at
            raise InputError(f"k.{self.name}.entry", given, rule, "pass whole numbers of 32 bits")
        counts = [self.isa.extent(self.name, dim) for dim in range(len(dims))]
        inside = functools.reduce(operator.and_, [(i >= 0) & (i < count) for i, count in zip(at, counts, strict=True)])
        place = at[0] if len(at) == 1 else at[0] * counts[1] + at[1]
        entry = self.isa.load_entry(self.name, self.isa.select(inside, place, 0), 0)
        return self.isa.select(inside, entry, -1)


# ---- rows ------------------------------------------------------------------------------------------------------------
#
# Parts of a tile that are moved by themselves, and rows that are gathered from, or scattered to, where a table says.


TOGETHER = (16, 8, 4, 3, 2, 1)  # rows, whose entries of the table are on their way at once


def check_part(where: str, move: Load | Store, i: Any) -> None:
    """Raises `InputError` unless a slot is moved in parts, of which *i* is the number of one."""
    if not is_index(i, move.parts):
        rule = f"is moved in {move.parts} part{'s' * (move.parts > 1)}"
        raise InputError(where, i, rule, "count from 0, or declare in_parts()")


def part_start(
    start_of: Callable[..., tuple[Any, ...]],
    where: str,
    move: Load | Store,
    i: Any,
    tile: Tile | None,
    coordinates: dict[str, Any],
) -> tuple[Any, ...]:
    """Where part *i* of a tile begins (elements), one per dimension of the tensor.

    Args:
        start_of: As `tmapipe.protocol.tile.start_of`.
        where: Of the call, for errors.
        move: Of the whole tile.
        i: Which part.
        tile: Whose part it is, along dimensions that *coordinates* do not name.
        coordinates: By dimension, in parts along the one that the tile is cut along, and in tiles along others.
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


def rows_start(
    where: str, move: Load | Store, table: Any, first: Any, tile: Tile | None, coordinates: dict[str, Any]
) -> tuple[Any, ...]:
    """Where the rows begin (elements), one per dimension of the tensor; 0 along that of the rows.

    Raises:
        InputError: The stage does not move its rows one by one; *table* or *first* is something else; or a
            coordinate is missing or unknown.
    """
    cut = len(move.dims) - move.core
    if move.core != 2 or move.parts != move.tile[cut]:
        rule = f"has a tile of two extents, in as many parts as it has rows; the tile is {move.tile}"
        raise InputError(where, f"in_parts({move.parts})", rule, f"declare .in_parts({move.tile[cut]})")
    if not isinstance(table, BoundTable):
        rule = "is a table of row numbers, as k has it"
        raise InputError(f"{where}(table)", table, rule, "declare tp.Table, pass k.name")
    if not is_index(first):
        raise InputError(f"{where}(first)", first, "is the number of an entry", "pass a whole number of 32 bits")
    if move.dims[cut] in coordinates:
        rule = f"takes the rows along {move.dims[cut]} from the table"
        raise InputError(f"{where}({move.dims[cut]})", coordinates[move.dims[cut]], rule, "leave it out")
    return start_of(where, move.dims, move.part, tile, {**coordinates, move.dims[cut]: 0})


def move_rows(
    isa: Isa,
    move: Load | Store,
    table: BoundTable,
    first: Any,
    one: Callable[[Any, Any], None],
    four: Callable[[list[Any], Any], None] | None,
) -> None:
    """Moves all rows of a slot, whose numbers the table has from entry *first* on.

    Args:
        move: Of the slot.
        one: Moves the row of this number, which becomes, or is, this part of the slot; None: all of it.
        four: Moves four rows of these numbers, which are part 4 i and on of the slot, by one instruction: of a matrix, whose
            rows are no longer than a box. None: the architecture has no such instruction.
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
