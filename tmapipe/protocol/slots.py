"""The tile of a stage in an open slot, as one role loads, reads or writes it; and a role's scratch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tmapipe.errors import InputError, ScopeError, is_count, require
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
    check_extents,
    check_own,
    check_part,
    check_start,
    joined_layout,
    layout_of,
    move_rows,
    part_start,
    peer_mask,
    rows_start,
    share_index,
    stands_for,
    start_of,
    two_extents,
    write_values,
)
from tmapipe.stage import LoadStage

# ---- parts -----------------------------------------------------------------------------------------------------------


class SlotPart(Carried):
    """One stage of a ring as one role sees it.

    load: the load that fills the stage; None if threads fill it. mask: the CTAs that a multicast load writes to. share: which
    part of a multicast tile this CTA loads. loads: whether this CTA loads; false if another CTA loads for it.
    """

    def __init__(self, isa: Isa, role: str, buffer: Buffer, load: Load | None = None):
        self.isa, self.role, self.buffer, self.load = isa, role, buffer, load
        self.mask: Any = None
        self.share: Any = 0
        self.loads: Any = True
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
            tile: The tile's coordinates, counted in tiles.
            coordinates: Coordinates by the dimension's name, counted in tiles. They replace the coordinates of *tile*.

        Raises:
            ScopeError: In another phase than the ring's first.
            InputError: A coordinate is missing or unknown, or tiles of the last dimension do not begin at multiples of 16
                bytes.
        """
        load, where = self._loaded(), f"slot.{self.part.buffer.name}.load"
        self._start_load(self._aligned(where, load.dims, load.span, tile, coordinates))

    def prefetch(self, tile: Tile | None = None, **coordinates: Any) -> None:
        """Hints that a later slot will load a tile, so that the GPU brings it into L2. It helps where the slots alone do not
        hide the latency of memory. *tile* and *coordinates* are as for `load`. Beyond the tensor's end it does nothing.

        Raises:
            InputError: Threads load the tile, or it is loaded in parts, or through a descriptor that the library makes itself.
        """
        load, where = self._loaded(), f"slot.{self.part.buffer.name}.prefetch"
        if load.vector or load.parts > 1 or load.encoded:
            rule = "must be loaded by TMA, in whole tiles, without strides and with zeros outside of the tensor"
            raise InputError(where, load.name, rule, "leave the prefetch out")
        start, isa = self._aligned(where, load.dims, load.span, tile, coordinates), self.part.isa
        if load.tensor_map:
            isa.when(self.part.loads, lambda: isa.tma_prefetch(load, start, self.part.share))
        else:
            isa.bulk_prefetch(load, start)

    def load_from(self, *start: Any) -> None:
        """Starts the load of a tile that may begin at any element.

        Args:
            start: The tile's first element: one index for each dimension of the tensor. An index may be negative or beyond the
                end: what lies outside of the tensor is zero. The last index is a multiple of 16 bytes; otherwise the hardware
                traps, and the model raises `HazardError`. A load without a descriptor must start inside of the tensor.
        """
        load = self._anywhere("load_from")
        self._start_load(check_start(f"slot.{load.name}.load_from", load.dims, start), anywhere=True)

    def load_part(self, i: Any, tile: Tile | None = None, /, **coordinates: Any) -> None:
        """Starts the TMA load of one part of the tile. `TmaLoadStage.in_parts` says how many parts a tile has.

        Args:
            i: Which part of the slot. It may lie outside of the tensor; then it is filled with zeros.
            tile: The tile of which it is a part. Its coordinates count for the dimensions that *coordinates* do not name.
            coordinates: Coordinates by the dimension's name: counted in parts along the dimension that the parts divide, and
                in tiles along the other dimensions.

        Raises:
            InputError: A coordinate is missing or unknown, or there is no such part.
        """
        load, where = self._loaded(), f"slot.{self.part.buffer.name}.load_part"
        start = part_start(self._aligned, where, load, i, tile, coordinates)
        self._start_load(start, part=i, anywhere=True)

    def load_part_from(self, i: Any, *start: Any) -> None:
        """Starts the load of part *i*, which may begin at any element. *start* is as for `load_from`."""
        load = self._anywhere("load_part_from")
        where = f"slot.{load.name}.load_part_from"
        check_part(where, load, i)
        self._start_load(check_start(where, load.dims, start), part=i, anywhere=True)

    def load_through(self, view: Any, tile: Tile | None = None, **coordinates: Any) -> None:
        """Starts the load of a tile through a descriptor that the kernel has made (`DescriptorStage`).

        Args:
            view: The rows that the descriptor shows, from ``acquire()`` in a slot that is open.
            tile, coordinates: As for `load`, counted from the first row of *view*.

        Raises:
            InputError: *view* is a view of another stage.
        """
        load = self._loaded()
        where = f"slot.{load.name}.load_through"
        rule = f"must be a view from the DescriptorStage of {load.name}"
        require(getattr(view, "load", None) is load, where, view, rule, "view = slot.<descriptor stage>.acquire()")
        view.slot._check_open(load.name)
        start = self._aligned(where, load.dims, load.span, tile, coordinates)
        own = self.part
        how = (load, self.slot.index, start, self.end.signalled, view.slot.index)
        self.part.isa.tma_load_through(*how, own.mask, own.share)

    def load_windows(self, first: Any, *place: Any) -> None:
        """Starts the load of one element of each window. Each row of the tile is one window (`Im2colLoadStage`).

        Args:
            first: Where the first window begins: the result of ``k.windows()``.
            place: Which element of each window: one index for each dimension of a window, and then the first channel, a
                multiple of 16 bytes.

        Raises:
            InputError: The stage has no windows, or *place* has another number of indices.
        """
        load = self._loaded()
        where, windows = f"slot.{load.name}.load_windows", load.windows
        if windows is None:
            raise InputError(where, load.name, "must be an Im2colLoadStage", "use load() or load_from()")
        if not isinstance(first, tuple) or len(first) != len(load.dims) - 1 or not all(map(is_index, first)):
            raise InputError(where, first, "must be a result of k.windows()", f'first = k.windows("{load.name}", m)')
        dims = (*(f"the window's {dim}" for dim in load.dims[1:-1]), load.dims[-1])
        *element, channel = check_start(where, dims, place)
        offsets = tuple(i * step for i, step in zip(element, windows.dilation, strict=True))
        self._start_load((*first, channel), anywhere=True, offsets=offsets)

    def gather(self, table: BoundTable, first: Any, tile: Tile | None = None, /, **coordinates: Any) -> None:
        """Starts the loads of all rows of the tile. A table says where each row lies: row i of the tile is row
        ``table[first + i]`` of the tensor. A row is zero if that number is outside of the tensor, or if the table has ended.

        The stage must be loaded in as many parts as its tile has rows. One instruction loads one row; or four rows, if the
        tensor is a matrix, the architecture has gather4, and the tile has a multiple of 4 rows.

        Args:
            table: A table of row numbers: ``k.name``.
            first: The number of the table's entry for the tile's first row.
            tile: The tile. Its coordinates count for the dimensions that *coordinates* do not name.
            coordinates: Coordinates by the dimension's name, counted in tiles.

        Raises:
            InputError: The stage is not loaded row by row, or a coordinate is missing or unknown.
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
        """The tile's first element. A tile of one of the kernel's outputs must be the output tile of this CTA, which has
        stored it before."""
        check_own(where, self.part.isa.plan, self._loaded(), tile, coordinates)
        last = dims[-1]
        rule = f"has tiles that begin at any element along {last}; TMA starts at multiples of 16 bytes there"
        fix = "make another dimension contiguous, or use load_from() with a multiple of 16 bytes before the tile"
        require(tile is None or last in coordinates or not tile.anywhere(last), where, dims, rule, fix)
        return start_of(where, dims, extents, tile, coordinates)

    def _start_load(
        self, start: tuple[Any, ...], *, part: Any = None, anywhere: bool = False, offsets: tuple[Any, ...] = ()
    ) -> None:
        load = self._loaded()
        form = verb = ""
        if load.through is not None:
            form, verb = "through descriptors", "load_through()"
        elif load.windows is not None and not offsets:
            form, verb = "by windows", "load_windows()"
        elif load.parts > 1 and part is None:
            form, verb = f"in {load.parts} parts, one by one", "load_part(i, ...) for each part"
        rule = f"is no verb of a stage that is loaded {form}"
        require(not verb, f"slot.{load.name}", "load()", rule, f"use {verb}")
        own, isa, index, signalled = self.part, self.part.isa, self.slot.index, self.end.signalled
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
        """The numbers that go with a piece of accumulators of *layout*, as *along* says.

        ("rows", "columns"): a number for each element. ("columns", "rows"): the same, from a slot that has the transpose.
        ("rows",) or ("columns",): a number for each row or column, from element *first* on. (): element *first* for all.
        """
        self.by_threads()
        fragments = self.part.isa.fragments
        if len(along) == 2:
            return (fragments.read if along[0] == "rows" else fragments.read_transposed)(self.ref, layout)
        if along:
            return fragments.read_line(self.ref, layout, along[0], (0, first))
        return fragments.read_number(self.ref, first)

    def by_threads(self, writes: bool = False) -> None:
        """Notes that threads access the tile, and with *writes* that they write it. So the slot ends with a fence and an
        arrival.

        Raises:
            ScopeError: The slot is not open, or the tile is gone, since a stage in the same memory was written.
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
        lanes: int = 0,
    ) -> Fragment:
        """The tile's elements as a fragment, distributed over the role's threads. Numbers are fp32; integers are int32.

        Args:
            like: A fragment of the same extents. The elements are distributed as its elements are.
            rows_of: A fragment. One number is read for each of its rows, of a tile of as many elements; with *at* of any tile.
            columns_of: A fragment. One number is read for each of its columns, as with *rows_of*.
            tile: Reads a part of the stage's tile, inside of it, of this many (rows, columns): a stencil's neighbours, say.
            at: Where the reading begins. With *tile* or *like*: the (row, column) at which the part begins. With *rows_of* or
                *columns_of*: the first element that is read; in a tile of two extents, its row, also of several whole rows, or
                its (row, column). With *pitch* and *transposed*: the elements at which the first rows begin, counted row by
                row; with n of them, row j + n begins *pitch* elements after row j. Alone: an element of a tile of one extent,
                for all threads; or a fragment of such places, counted row by row, in any tile without a swizzle.
            pitch: With *tile*, in a stage's tile of one extent: how many elements after one row the next row begins, 0 if all
                rows are the same. A row may be longer than *pitch*; then it shares its end with the next row's beginning.
                *at* is the element at which the first row begins.
            gaps: With *tile* and *at*, in a stage's tile of one extent: pairs (length, further) of what is skipped. For each
                pair, *further* elements are skipped after each *length* elements: with ((72, 40),), element 72 lies at 112.
                *at* is a pair: where element 0 lies in the tile, and the number of the first element that is read.
            transposed: Reads rows as columns, distributed as wgmma's accumulators are. A swizzle avoids bank conflicts. Sizes
                are multiples of 8 and of 64 for each warpgroup; with *pitch* and *at*, any of tiles without a swizzle.
            width: How many elements side by side a thread reads at most: 8, 4, 2 or 1. With 4, threads store fp32 in 16 bytes
                each. With 1, neighbouring threads read neighbouring elements: fastest where a part begins at any element.
            each: With *rows_of* or *columns_of*: how many successive rows or columns share one number. With *pitch*: how many
                successive rows of the part are one row of the slot.
            lanes: Lanes of a warp that share a row: 32, or 16, 8, 4, 2 or 1, so that a warp has several rows. 0: as fits.

        Raises:
            InputError: The threads cannot share the elements evenly, or the extents differ.
        """
        name = f"slot.{self.part.buffer.name}.read"
        forms = {"like": like, "rows_of": rows_of, "columns_of": columns_of, "tile": tile}
        given = [form for form, value in forms.items() if value is not None] + ["transposed"] * bool(transposed)
        if given == ["tile", "transposed"] and pitch is not None:
            given.remove("transposed")
        if len(given) > 1 or (at is not None and not set(given) <= {"like", "tile", "rows_of", "columns_of"}):
            given += ["at"] * (at is not None)
            raise InputError(name, ", ".join(given), "are arguments that exclude each other", "give one of them")
        self.by_threads()
        part, fragments, tile = tile, self.part.isa.fragments, self.part.buffer.tile
        self.part.buffer.dtype.check_held(name)
        require(width in WIDTHS and type(width) is int, f"{name}(width)", width, "must be 8, 4, 2 or 1", "leave it out")
        require(lanes in (0, 1, 2, 4, 8, 16, 32), f"{name}(lanes)", lanes, "divides 32, or is 0", "leave it out")
        require(is_count(each), f"{name}(each)", each, "must be how many rows or columns share a number", "e.g. each=2")
        if pitch is not None and transposed:
            return fragments.read_rows_as_columns(self.ref, self._rows_as_columns(name, part, pitch, at), at, pitch)
        if pitch is not None:
            first = 0 if at is None else at
            layout = self._pitched_layout(name, part, (first, pitch, each), width, lanes)
            return fragments.read_part(self.ref, layout, (0, first), pitch, each)
        if gaps is not None:
            fits, role = len(tile) == 1, self.part.isa.plan.role(self.part.role)
            return fragments.read_joined(self.ref, joined_layout(name, fits, part, at, gaps, role, width), at, gaps)
        if part is not None or (at is not None and like is not None):
            begin = (0, 0) if at is None else at
            return fragments.read_part(self.ref, *self._part_layout(name, like, part, begin, width))
        for along, other in (("rows", rows_of), ("columns", columns_of)):
            if other is not None and (at is not None or each != 1):
                return self._read_line(name, along, layout_of(name, other), at, each)
        if at is not None:
            several = isinstance(at, Fragment) and at.kind == "int32" and not self.part.buffer.swizzle
            if not several and (len(tile) != 1 or not is_index(at, tile[0])):
                rule = f"must be an index into a tile of one extent, or a fragment of int32; the tile is {tile}"
                raise InputError(f"{name}(at)", at, rule, "count from 0, or give the stage a tile of one extent")
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
        return fragments.read(self.ref, vectors_of(self.part.buffer.name, tile, role, width, lanes))

    def _part_layout(
        self, name: str, like: Fragment | None, part: Any, at: Any, width: int = 8
    ) -> tuple[ThreadLayout, Any]:
        """How a part of the tile is distributed, and where it begins."""
        buffer, role = self.part.buffer, self.part.isa.plan.role(self.part.role)
        layout = vectors_of(name, two_extents(name, part), role, width) if like is None else layout_of(name, like)
        begin = at if isinstance(at, tuple) else ()
        if len(begin) != 2 or len(buffer.tile) != 2 or not all(map(is_index, begin)):
            raise InputError(f"{name}(at)", at, "must be (row, column), in a tile of two extents", "e.g. at=(1, 4)")
        for i, size in enumerate((layout.rows, layout.columns)):
            first = begin[i] if isinstance(begin[i], int) else 0
            if first < 0 or first + size > buffer.tile[i]:
                rule = f"must be where {layout.rows} x {layout.columns} elements of the tile begin; it is {buffer.tile}"
                raise InputError(f"{name}(at)", at, rule, "begin earlier, or load a larger tile")
        return layout, begin

    def _read_line(self, name: str, along: str, layout: ThreadLayout, at: Any, each: Any) -> Fragment:
        """One number for each row or column of a fragment, or for each *each* of them, side by side in a row or whole rows."""
        layout.check_rows()
        tile, count = self.part.buffer.tile, layout.rows if along == "rows" else layout.columns
        count, one = -(-count // each), len(tile) == 1
        both = isinstance(at, tuple) and len(at) == 2 and not one
        row, first = at if both else (0, 0 if at is None else at) if one else (at, 0)
        rows = count // tile[-1] if not one and isinstance(first, int) and first == count % tile[-1] == 0 else 1
        inside = is_index(row, math.prod(tile[:-1]) - rows + 1) and is_index(first, tile[-1] - count // rows + 1)
        if not inside or self.part.buffer.swizzle:
            rule = f"must be where {count} elements begin {'inside' if one else 'in one row'} of the tile {tile}"
            raise InputError(f"{name}(at)", at, rule, "begin earlier, load a larger tile, or leave out its swizzle")
        return self.part.isa.fragments.read_line(self.ref, layout, along, (row, first), each)

    def _pitched_layout(self, name: str, part: Any, place: tuple[Any, Any, Any], *how: int) -> ThreadLayout:
        """How rows are distributed that lie side by side in a tile of one extent. *place*: (at, pitch, each) of `read`."""
        (first, pitch, each), tile, part = place, self.part.buffer.tile, two_extents(name, part)
        room = tile[0] - (-(-part[0] // each) - 1) * pitch - part[1] if is_count(pitch) or pitch == 0 else -1
        rule = f"must be how far apart {part[0]} rows of {part[1]} elements begin in a tile of one extent; it is {tile}"
        require(len(tile) == 1 and room >= 0, f"{name}(pitch)", pitch, rule, "load more elements, or read fewer")
        rule = f"must be where {part[0]} rows begin, {pitch} elements apart, that end inside the tile {tile}"
        require(is_index(first, room + 1), f"{name}(at)", first, rule, "begin earlier, or load more")
        return vectors_of(name, part, self.part.isa.plan.role(self.part.role), *how)

    def _rows_as_columns(self, name: str, part: Any, pitch: Any, at: Any) -> VectorLayout:
        """How columns that are rows of the tile are distributed over lanes. The rows may begin at any element."""
        buffer = self.part.buffer
        counts = isinstance(part, tuple) and len(part) == 2 and all(map(is_count, (*part, pitch)))
        whole = isinstance(at, tuple) and at and all(type(each) is int and each >= 0 for each in at)
        last = max(at) + (part[1] - 1) // len(at) * pitch + part[0] if counts and whole else math.inf
        if last > math.prod(buffer.tile) or buffer.swizzle:
            rule = f"must be two extents, a distance of rows and their first elements, inside of the tile {buffer.tile}"
            raise InputError(f"{name}(tile, pitch, at)", (part, pitch, at), rule, "begin earlier, or load more")
        layout = vectors_of(name, part, self.part.isa.plan.role(self.part.role), 1)
        layout.check_rows()
        return layout

    def write(self, values: Fragment, *, at: tuple[int, int] | None = None) -> None:
        """Replaces the tile's elements, converted to its type.

        Args:
            values: A fragment with as many rows and columns as the tile; or, for a tile of one extent, one number for each row
                or column.
            at: The (row, column) of a smaller fragment in the tile: a multiple of the fragment's extents, which divide the
                tile's.

        Raises:
            InputError: *values* is a number or has other extents.
        """
        self.by_threads(writes=True)
        write_values(self.part.isa, f"slot.{self.part.buffer.name}.write", self.ref, values, at)


# ---- scratch ---------------------------------------------------------------------------------------------------------
#
# A role reads and writes its scratch like the tile of an open slot. But no ring hands scratch to another role.


class _Always(Carried):
    """What a tile of scratch has in place of a slot. It is always open, and threads have always touched it."""

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
    """A `Scratch` in its role. It stands for its first copy; `copy` gives the others."""

    def __init__(self, k: Any, name: str, scratch: Scratch):
        slot: Any = _Always(name, 0)
        super().__init__(SlotPart(k.isa, k.role.name, k.plan.buffer(name)), slot)

    def copy(self, i: Any) -> PartInSlot:
        """Copy number *i*. `Scratch` declares how many copies there are.

        Raises:
            InputError: There is no copy of this number. (A number that is known only at run time is not checked.)
        """
        copies = self.ref.buffer.stages
        rule = f"must be the number of a copy, from 0 to {copies - 1}"
        require(is_index(i, copies), f"k.{self.ref.buffer.name}.copy", i, rule, "count from 0, or declare more copies")
        slot: Any = _Always(self.ref.buffer.name, i)
        return PartInSlot(self.part, slot)
