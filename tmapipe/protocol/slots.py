"""The tile of a stage in an open slot, as one role loads, reads or writes it; and a role's scratch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tmapipe.errors import InputError, ScopeError, is_count
from tmapipe.isa.fragment import Carried, Fragment, SlotRef, is_index
from tmapipe.isa.ops import Isa
from tmapipe.parts import Scratch
from tmapipe.plan.model import Load
from tmapipe.plan.rings import Buffer
from tmapipe.plan.thread_layout import WIDTHS, AccumulatorLayout, ThreadLayout, VectorLayout, transposed_of, vectors_of
from tmapipe.protocol.ring import RingEnd, Slot
from tmapipe.protocol.tile import (
    BoundTable,
    Tile,
    aligned_start,
    check_extents,
    check_own,
    check_part,
    check_start,
    layout_of,
    move_rows,
    part_start,
    peer_mask,
    rows_start,
    share_index,
    stands_for,
    write_values,
)
from tmapipe.stage import LoadStage

# ---- parts -----------------------------------------------------------------------------------------------------------
#
# The tile of a stage in an open slot, as one role loads, reads or writes it.


class SlotPart(Carried):
    """One stage of a ring as one role sees it. load: the load that fills the stage, if a load does."""

    def __init__(self, isa: Isa, role: str, buffer: Buffer, load: Load | None = None):
        self.isa, self.role, self.buffer, self.load = isa, role, buffer, load
        self.mask: Any = None
        self.share: Any = 0
        self.loads: Any = True  # whether this CTA loads, and not another one for it
        if load is not None and load.axes:
            self.mask, index = peer_mask(isa, load.axes), share_index(isa, load.axes)
            if load.peers > 1:
                self.share = index
            else:
                self.loads = index == 0


@stands_for(LoadStage)
class PartInSlot(Carried):
    """A stage's tile in one open slot."""

    _carries, _apart = ("slot",), ("ref",)

    def __init__(self, part: SlotPart, slot: Slot):
        self.part, self.slot = part, slot
        self.ref = SlotRef(part.buffer, slot.index)

    def _joined(self, versions: tuple[Any, ...]) -> None:
        self.ref = SlotRef(self.part.buffer, self.slot.index)

    @property
    def end(self) -> RingEnd:
        return self.slot.end

    def load(self, tile: Tile | None = None, **coordinates: Any) -> None:
        """Starts the load of a tile.

        Args:
            tile: Its coordinates, in tiles.
            coordinates: Coordinates by dimension, in tiles, instead of those of *tile*.

        Raises:
            ScopeError: Outside the ring's first phase.
            InputError: A coordinate is missing or unknown, or the tile begins anywhere along the last dimension.
        """
        load, where = self._loaded(), f"slot.{self.part.buffer.name}.load"
        self._start_load(self._aligned(where, load.dims, load.span, tile, coordinates))

    def prefetch(self, tile: Tile | None = None, **coordinates: Any) -> None:
        """Asks for a tile in L2, which a later slot will load: a hint, for where the slots alone cannot hide the latency of
        memory. Coordinates as in `load`; beyond the tensor's end it does nothing.

        Raises:
            InputError: Threads load the tile, or it is loaded in parts, or through a descriptor of the library's own.
        """
        load, where = self._loaded(), f"slot.{self.part.buffer.name}.prefetch"
        if load.vector or load.parts > 1 or load.encoded:
            rule = "is loaded by an engine, in whole tiles, without strides, and zeros outside"
            raise InputError(where, load.name, rule, "leave the prefetch out")
        start, isa = self._aligned(where, load.dims, load.span, tile, coordinates), self.part.isa
        if load.tensor_map:
            isa.when(self.part.loads, lambda: isa.tma_prefetch(load, start, self.part.share))
        else:
            isa.bulk_prefetch(load, start)

    def load_from(self, *start: Any) -> None:
        """Loads, as `load` does, the tile that starts at these elements.

        Args:
            start: One index along each dimension of the tensor, perhaps negative or beyond its end: what lies outside is zero.
                The last one is a multiple of 16 bytes; elsewhere the hardware traps, and the model raises `HazardError`. A
                load without a descriptor starts inside.
        """
        load = self._anywhere("load_from")
        self._start_load(check_start(f"slot.{load.name}.load_from", load.dims, start), anywhere=True)

    def load_part(self, i: Any, tile: Tile | None = None, /, **coordinates: Any) -> None:
        """Starts the TMA load of part *i* of the tile, of as many as the stage says (`TmaLoadStage.in_parts`).

        Args:
            i: Which part of the slot. It may lie outside of the tensor, where there are zeros.
            tile: The tile that has this part: its coordinates along dimensions that *coordinates* do not name.
            coordinates: By dimension, in parts along the one that the tile is cut along, and in tiles along others.

        Raises:
            InputError: A coordinate is missing or unknown, or there is no such part.
        """
        load, where = self._loaded(), f"slot.{self.part.buffer.name}.load_part"
        start = part_start(self._aligned, where, load, i, tile, coordinates)
        self._start_load(start, part=i, anywhere=True)

    def load_part_from(self, i: Any, *start: Any) -> None:
        """Loads, as `load_part` does, the part that starts at these elements, given as in `load_from`."""
        load = self._anywhere("load_part_from")
        where = f"slot.{load.name}.load_part_from"
        check_part(where, load, i)
        self._start_load(check_start(where, load.dims, start), part=i, anywhere=True)

    def load_through(self, view: Any, tile: Tile | None = None, **coordinates: Any) -> None:
        """Loads, as `load` does, a tile of the rows that a descriptor shows which the kernel has made (`DescriptorStage`).

        Args:
            view: What ``acquire()`` gave, in a slot that is open.
            tile: As of `load`.
            coordinates: As of `load`, counted from the first of these rows.

        Raises:
            InputError: *view* is not of this stage.
        """
        load = self._loaded()
        where = f"slot.{load.name}.load_through"
        if getattr(view, "load", None) is not load:
            rule = f"is a view by the DescriptorStage of {load.name}"
            raise InputError(where, view, rule, "view = slot.<descriptor stage>.acquire()")
        view.slot._check_open(load.name)
        start = self._aligned(where, load.dims, load.span, tile, coordinates)
        own = self.part
        how = (load, self.slot.index, start, self.end.signalled, view.slot.index)
        self.part.isa.tma_load_through(*how, own.mask, own.share)

    def load_windows(self, first: Any, *place: Any) -> None:
        """Starts the load of one element of each of the windows that the tile's rows are (`Im2colLoadStage`).

        Args:
            first: Where the first window begins, as ``k.windows()`` says.
            place: Which element of a window, one index for each of its dimensions; then the first channel, a multiple of 16
                bytes.

        Raises:
            InputError: The stage has no windows, or there are other numbers.
        """
        load = self._loaded()
        where, windows = f"slot.{load.name}.load_windows", load.windows
        if windows is None:
            raise InputError(where, load.name, "is an Im2colLoadStage", "use load() or load_from()")
        if not isinstance(first, tuple) or len(first) != len(load.dims) - 1 or not all(map(is_index, first)):
            raise InputError(where, first, "begins where k.windows() says", f'first = k.windows("{load.name}", m)')
        dims = (*(f"the window's {dim}" for dim in load.dims[1:-1]), load.dims[-1])
        *element, channel = check_start(where, dims, place)
        offsets = tuple(i * step for i, step in zip(element, windows.dilation, strict=True))
        self._start_load((*first, channel), anywhere=True, offsets=offsets)

    def gather(self, table: BoundTable, first: Any, tile: Tile | None = None, /, **coordinates: Any) -> None:
        """Starts the loads of all rows of the tile, each from wherever it lies: row i is the row of the tensor that entry
        *first* + i of a table names. Where that is outside, also since the table ends, there are zeros.

        For a stage whose tile is loaded in as many parts as it has rows. One instruction loads one row, or four of a matrix,
        where the architecture has gather4 and the tile a multiple of 4.

        Args:
            table: Of row numbers, ``k.name``.
            first: Number of an entry.
            tile: Coordinates along the other dimensions, which *coordinates* do not name.
            coordinates: By dimension, in tiles.

        Raises:
            InputError: The stage is loaded otherwise, or a coordinate is missing or unknown.
        """
        load, where = self._loaded(), f"slot.{self.part.buffer.name}.gather"
        isa, index, barrier = self.part.isa, self.slot.index, self.end.signalled
        at = rows_start(where, load, table, first, tile, coordinates)

        def one(row: Any, part: Any) -> None:
            isa.tma_load(load, index, (*at[:-2], row, at[-1]), barrier, part=part, anywhere=True)

        def four(rows: list[Any], part: Any) -> None:
            isa.tma_gather(load, index, rows, at, barrier, part)

        move_rows(isa, load, table, first, one, four if isa.plan.target.gather4 else None)

    def _aligned(
        self, where: str, dims: Sequence[str], extents: Sequence[int], tile: Tile | None, coordinates: dict[str, Any]
    ) -> tuple[Any, ...]:
        """As `aligned_start`; of a result of the kernel, at the coordinates of the output tile, which this CTA has stored."""
        check_own(where, self.part.isa.plan, self._loaded(), tile, coordinates)
        return aligned_start(where, dims, extents, tile, coordinates)

    def _start_load(
        self, start: tuple[Any, ...], *, part: Any = None, anywhere: bool = False, offsets: tuple[Any, ...] = ()
    ) -> None:
        load = self._loaded()
        if load.through is not None:
            raise InputError(f"slot.{load.name}", "load()", "is loaded through descriptors", "use load_through()")
        if load.windows is not None and not offsets:
            raise InputError(f"slot.{load.name}", "load()", "is loaded by windows", "use load_windows()")
        if load.parts > 1 and part is None:
            fix = f"slot.{load.name}.load_part(i, ...) for each"
            raise InputError(f"slot.{load.name}", "load()", f"is loaded in {load.parts} parts, one by one", fix)
        isa, index, signalled = self.part.isa, self.slot.index, self.end.signalled
        own = self.part
        if load.vector:
            role = isa.plan.role(own.role)
            warps = role.warps if self.end.ring.held else role.team_warps
            share = 0 if warps == 1 else (isa.warp - role.first_warp) % warps
            isa.cp_async(load, index, start, signalled, share, warps, anywhere)
        elif load.tensor_map:
            how: dict[str, Any] = {"part": part if load.parts > 1 else None, "anywhere": anywhere, "offsets": offsets}
            isa.when(own.loads, lambda: isa.tma_load(load, index, start, signalled, own.mask, own.share, **how))
        else:
            isa.bulk_load(load, index, start, signalled)

    def _loaded(self) -> Load:
        self.slot._check_open(self.part.buffer.name)
        load = self.part.load
        if load is None or self.end.phase != 0:
            name, role = self.part.buffer.name, self.part.role
            raise ScopeError(f"load() of {name!r} in role {role!r}: only the role that loads it can.")
        return load

    def _anywhere(self, how: str) -> Load:
        load = self._loaded()
        check_own(f"slot.{load.name}.{how}", self.part.isa.plan, load, None, ())
        return load

    def read_piece(self, layout: AccumulatorLayout, along: tuple[str, ...], first: Any = 0) -> Fragment:
        """What goes with a piece of accumulators of *layout*. along: ("rows", "columns"), a number for each element;
        ("columns", "rows"): in a slot that has the transpose; ("rows",) or ("columns",): one for each, from element *first*
        on; (): element *first*, for all."""
        self.by_threads()
        fragments = self.part.isa.fragments
        if len(along) == 2:
            return (fragments.read if along[0] == "rows" else fragments.read_transposed)(self.ref, layout)
        if along:
            return fragments.read_line(self.ref, layout, along[0], (0, first))
        return fragments.read_number(self.ref, first)

    def by_threads(self, writes: bool = False) -> None:
        """Notes that threads access the tile, and whether they write it (*writes*): at the end of the scope, a fence and an
        arrival follow.

        Raises:
            ScopeError: The slot is not open, or the tile is gone: a stage that lies over it was written.
        """
        buffer = self.part.buffer
        self.slot._check_open(buffer.name)
        self.slot.touched_by_threads[buffer.name] = True
        if writes and buffer.over is not None:
            self.slot.gone.add(buffer.over)

    def read(
        self,
        *,
        like: Fragment | None = None,
        rows_of: Fragment | None = None,
        columns_of: Fragment | None = None,
        tile: Any = None,
        at: Any = None,
        pitch: int | None = None,
        gaps: tuple[tuple[int, int], ...] | None = None,
        transposed: bool = False,
        width: int = 8,
        each: int = 1,
    ) -> Fragment:
        """The tile's elements as a fragment, distributed over the role's threads: in fp32, or int32 of integers.

        Args:
            like: Distributed as this fragment is, whose tile has the same extents.
            rows_of: As one number for each row of this fragment. The stage's tile has one extent, of as many elements; or with
                *at* another one.
            columns_of: As one number for each of its columns, likewise.
            tile: Only a part of the tile, of these (rows, columns), such as a stencil's neighbours.
            at: Where that part begins (row, column), or without *tile* the part that is distributed as *like*. In a tile of
                one extent, the index of an element, the same number for all. With *rows_of* or *columns_of*, the first of the
                elements that are read; of a tile of two extents, the row of which they are, or (row, column). With *pitch* and
                *transposed*: the elements, counted row by row, where the first rows begin, of which each next as many begin
                *pitch* further. With *pitch* alone, the element where the first row begins.
            pitch: With *tile*, in a tile of one extent: elements from one of its rows to the next, 0 where all rows are the
                same one. They begin side by side, as rows in memory do; what a row has beyond *pitch* is the next one's.
            gaps: With *tile* of one extent and *at*, in a tile of one extent: pairs (length, further) of what is left out.
                Element k lies at element k of the stage's tile, and *further* on for each whole *length* in k, of each pair.
                *at* is where element 0 lies in the stage's tile, and the first element that is read, from 0 on.
            transposed: Rows as columns, distributed over warpgroups as wgmma does with accumulators: between slots with a
                swizzle, no bank conflicts. The tile has two extents, the last one a multiple of 64 for each warpgroup, the
                first one a multiple of 8. With *tile*, *pitch* and *at*: any tile without a swizzle, of which row j, wherever
                it begins, is column j of what is read.
            width: Elements that a thread has side by side, at most: 8, 4, 2 or 1. With 4 of fp32, threads that store them
                write 16 bytes next to each other. With 1, threads next to each other read elements next to each other, which
                is fastest where a part begins anywhere, or elements are stored one by one.
            each: With *rows_of* or *columns_of*: for how many of these, one after another, a number counts. With *pitch*: for
                how many rows of the part a row in the slot counts.

        Raises:
            InputError: The threads cannot share the elements evenly, or the extents differ.
        """
        forms = {"like": like, "rows_of": rows_of, "columns_of": columns_of, "tile": tile}
        given = [form for form, value in forms.items() if value is not None] + ["transposed"] * bool(transposed)
        if given == ["tile", "transposed"] and pitch is not None:
            given.remove("transposed")
        if len(given) > 1 or (at is not None and not set(given) <= {"like", "tile", "rows_of", "columns_of"}):
            rule = "says in one way how the tile is read"
            raise InputError(f"slot.{self.part.buffer.name}.read", ", ".join(given), rule, "leave the others out")
        self.by_threads()
        part, fragments, tile = tile, self.part.isa.fragments, self.part.buffer.tile
        name = f"slot.{self.part.buffer.name}.read"
        self.part.buffer.dtype.check_held(name)
        if width not in WIDTHS or type(width) is not int:
            raise InputError(f"{name}(width)", width, "is 8, 4, 2 or 1 elements", "leave it out for the most that fit")
        if pitch is not None and transposed:
            return fragments.read_rows_as_columns(self.ref, self._rows_as_columns(name, part, pitch, at), at, pitch)
        if pitch is not None:
            first = 0 if at is None else at
            layout = self._pitched_layout(name, part, (first, pitch, each), width)
            return fragments.read_part(self.ref, layout, (0, first), pitch, each)
        if gaps is not None:
            return fragments.read_joined(self.ref, self._joined_layout(name, part, at, gaps, width), at, gaps)
        if part is not None or (at is not None and like is not None):
            begin = (0, 0) if at is None else at
            return fragments.read_part(self.ref, *self._part_layout(name, like, part, begin, width))
        for along, other in (("rows", rows_of), ("columns", columns_of)):
            if other is not None and (at is not None or each != 1):
                return self._read_line(name, along, layout_of(name, other), at, each)
        if at is not None:
            if len(tile) != 1 or not is_index(at, tile[0]):
                rule = f"is an index into a tile of one extent; the tile is {tile}"
                raise InputError(f"{name}(at)", at, rule, "count from 0, or give the stage such a tile")
            return fragments.read_number(self.ref, at)
        for along, other in (("tile", like), ("rows", rows_of), ("columns", columns_of)):
            if other is not None:
                layout = layout_of(name, other)
                check_extents(name, tile, layout, along)
                if along != "tile":
                    layout.check_rows()
                return fragments.read(self.ref, layout, along)
        role = self.part.isa.plan.role(self.part.role)
        if transposed:
            return fragments.read_transposed(self.ref, transposed_of(self.part.buffer.name, tile, role))
        return fragments.read(self.ref, vectors_of(self.part.buffer.name, tile, role, width))

    def _part_layout(
        self, name: str, like: Fragment | None, part: Any, at: Any, width: int = 8
    ) -> tuple[ThreadLayout, Any]:
        """How a part of the tile is distributed, and where it begins."""
        buffer, role = self.part.buffer, self.part.isa.plan.role(self.part.role)
        counts = isinstance(part, (tuple, list)) and len(part) == 2 and all(map(is_count, part))
        if like is None and not counts:
            raise InputError(f"{name}(tile)", part, "is two positive extents (rows, columns)", "e.g. tile=(16, 64)")
        layout = vectors_of(name, tuple(part), role, width) if like is None else layout_of(name, like)
        begin = at if isinstance(at, tuple) else ()
        if len(begin) != 2 or len(buffer.tile) != 2 or not all(map(is_index, begin)):
            raise InputError(f"{name}(at)", at, "is a row and a column of a tile that has both", "e.g. at=(1, 4)")
        for i, size in enumerate((layout.rows, layout.columns)):
            first = begin[i] if isinstance(begin[i], int) else 0
            if first < 0 or first + size > buffer.tile[i]:
                rule = f"is where {layout.rows} x {layout.columns} elements of the tile {buffer.tile} begin"
                raise InputError(f"{name}(at)", at, rule, "begin earlier, or load a larger tile")
        return layout, begin

    def _read_line(self, name: str, along: str, layout: ThreadLayout, at: Any, each: Any) -> Fragment:
        """One number for each row or column of a fragment, or *each* so many of them, side by side in a row of the tile."""
        layout.check_rows()
        tile, count = self.part.buffer.tile, layout.rows if along == "rows" else layout.columns
        if not is_count(each):
            raise InputError(f"{name}(each)", each, f"is for how many {along} a number counts", "e.g. 2")
        count, one = -(-count // each), len(tile) == 1
        both = isinstance(at, tuple) and len(at) == 2 and not one
        row, first = at if both else (0, 0 if at is None else at) if one else (at, 0)
        inside = is_index(row, 1 if one else math.prod(tile[:-1])) and is_index(first, tile[-1] - count + 1)
        if not inside or self.part.buffer.swizzle:
            rule = f"is where {count} of the elements of a tile without a swizzle begin, {'' if one else 'a row, '}of {tile}"
            raise InputError(f"{name}(at)", at, rule, "begin earlier, or load more of them")
        return self.part.isa.fragments.read_line(self.ref, layout, along, (row, first), each)

    def _pitched_layout(self, name: str, part: Any, place: tuple[Any, Any, Any], width: int) -> ThreadLayout:
        """How rows are distributed that lie side by side in a tile of one extent. *place*: (at, pitch, each) of `read`."""
        first, pitch, each = place
        buffer = self.part.buffer
        if not isinstance(part, tuple) or len(part) != 2 or not all(map(is_count, part)):
            raise InputError(f"{name}(tile)", part, "is two positive extents (rows, columns)", "e.g. tile=(16, 64)")
        if not is_count(each):
            raise InputError(f"{name}(each)", each, "is for how many rows a row in the slot counts", "e.g. 2")
        room = buffer.tile[0] - (-(-part[0] // each) - 1) * pitch - part[1] if is_count(pitch) or pitch == 0 else -1
        if len(buffer.tile) != 1 or room < 0:
            rule = f"is how far apart {part[0]} rows of {part[1]} elements begin in a tile of one extent; it is {buffer.tile}"
            raise InputError(f"{name}(pitch)", pitch, rule, "load more elements, or read fewer")
        if not is_index(first, room + 1):
            rule = f"is the element of {buffer.tile} where {part[0]} rows begin, {pitch} apart, that end inside"
            raise InputError(f"{name}(at)", first, rule, "begin earlier, or load more")
        return vectors_of(name, part, self.part.isa.plan.role(self.part.role), width)

    def _joined_layout(self, name: str, part: Any, at: Any, gaps: Any, width: int) -> ThreadLayout:
        """How elements are distributed that lie side by side but for gaps."""
        pairs = isinstance(gaps, tuple) and all(isinstance(each, tuple) and len(each) == 2 for each in gaps)
        if not pairs or not all(is_count(length) and type(further) is int for length, further in gaps):
            rule = "are pairs of a positive length and the elements that are left out after it"
            raise InputError(f"{name}(gaps)", gaps, rule, "e.g. ((72, 40),)")
        one = isinstance(part, tuple) and len(part) == len(self.part.buffer.tile) == 1 and is_count(part[0])
        if not one or not isinstance(at, tuple) or len(at) != 2:
            rule = "are one extent, and a place and a first element, in a tile of one extent"
            raise InputError(f"{name}(tile, at)", (part, at), rule, "e.g. tile=(1024,), at=(0, 0)")
        return vectors_of(name, part, self.part.isa.plan.role(self.part.role), width)

    def _rows_as_columns(self, name: str, part: Any, pitch: Any, at: Any) -> VectorLayout:
        """How columns are distributed that are rows of the tile, wherever these begin: over lanes."""
        buffer = self.part.buffer
        counts = isinstance(part, tuple) and len(part) == 2 and all(map(is_count, (*part, pitch)))
        whole = isinstance(at, tuple) and at and all(type(each) is int and each >= 0 for each in at)
        last = max(at) + (part[1] - 1) // len(at) * pitch + part[0] if counts and whole else math.inf
        if last > math.prod(buffer.tile) or buffer.swizzle:
            rule = f"are extents, and where rows begin, inside a tile without a swizzle; it is {buffer.tile}"
            raise InputError(f"{name}(tile, pitch, at)", (part, pitch, at), rule, "begin earlier, or load more")
        return vectors_of(name, part, self.part.isa.plan.role(self.part.role), 1)

    def write(self, values: Fragment, *, at: tuple[int, int] | None = None) -> None:
        """Replaces the tile's elements, converted to its type.

        Args:
            values: A fragment of as many rows and columns; or one number a row or a column, for a tile of one extent.
            at: Where (row, column) a smaller fragment goes: one of the equal blocks into which it cuts the tile.

        Raises:
            InputError: *values* is a number or has other extents.
        """
        self.by_threads(writes=True)
        write_values(self.part.isa, f"slot.{self.part.buffer.name}.write", self.ref, values, at)


# ---- scratch ---------------------------------------------------------------------------------------------------------
#
# Scratch as its role sees it: tiles that are read and written like those of an open slot, but that no ring hands on.


class _Always(Carried):
    """Stands for the open slot of a `PartInSlot`: open at any time, and touched by threads before."""

    open = True

    def __init__(self, name: str, index: Any):
        self.index = index
        self.touched_by_threads = {name: True}

    def _check_open(self, stage: str = "") -> None:
        pass

    def _touched(self, stages: Any = None) -> Any:
        return True


@stands_for(Scratch)
class BoundScratch(PartInSlot):
    """A `Scratch` in its role: its first copy, or with `copy` another one."""

    def __init__(self, k: Any, name: str, scratch: Scratch):
        slot: Any = _Always(name, 0)
        super().__init__(SlotPart(k.isa, k.role.name, k.plan.buffer(name)), slot)

    def copy(self, i: Any) -> PartInSlot:
        """Copy number *i*, of as many as were declared.

        Raises:
            InputError: There is none of this number, if that is known.
        """
        copies = self.ref.buffer.stages
        if not is_index(i, copies):
            rule = f"has {copies} {'copies' if copies > 1 else 'copy'}"
            raise InputError(f"k.{self.ref.buffer.name}.copy", i, rule, "count from 0, or declare more copies")
        slot: Any = _Always(self.ref.buffer.name, i)
        return PartInSlot(self.part, slot)
