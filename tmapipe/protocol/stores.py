"""Stores of results in the role that stores: from a slot, from buffers that the role fills, or from its threads' registers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tmapipe.errors import InputError, ScopeError, permit, require
from tmapipe.isa import applied, where_is
from tmapipe.isa.fragment import Carried, Fragment, SlotRef, Span
from tmapipe.isa.ops import Isa
from tmapipe.plan.model import Store
from tmapipe.plan.thread_layout import AccumulatorLayout
from tmapipe.plan.transfers import pieces, strip_start
from tmapipe.protocol.matmuls import Accumulator, Epilogue
from tmapipe.protocol.ring import Slot
from tmapipe.protocol.tile import (
    BoundTable,
    Tile,
    check_own,
    check_rounded,
    checked_values,
    mask_of,
    move_rows,
    part_start,
    rows_start,
    stands_for,
    start_of,
    tile_at,
    within,
    write_values,
)
from tmapipe.store_pipeline import StoreStage, ThreadStoreStage

# ---- piece ---------------------------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """A piece of a tile of accumulators: 64 rows x `width` columns, which a warpgroup stores at a time.

    whole: the layout of the tile. at: the piece's first element in the output. strip: which 64 rows of the tile. first: the
    piece's first column in the tile. output: the store of the output that tiles divide. stores: how many stores the issuer
    starts for each piece.
    """

    whole: AccumulatorLayout
    tile: Tile
    at: tuple[Any, ...]
    strip: Any
    first: int
    width: int
    output: Store
    stores: int

    @property
    def seen(self) -> int:
        """How many of this piece's columns the previous piece had, too."""
        return -self.first % self.width

    @property
    def last(self) -> bool:
        """Whether this is the last piece of its rows."""
        return self.first + self.width == self.whole.columns

    @property
    def layout(self) -> AccumulatorLayout:
        """The layout of the piece's values, over all warpgroups that have pieces of the same block of rows."""
        return self.whole.piece(self.width)


class PieceStore(Carried):
    """A store of something that is computed from each piece of a tile, in the role that has the accumulators."""

    def __init__(self, isa: Isa, store: Store):
        self.isa, self.plan = isa, store

    def reduced(self, piece: Piece, values: Fragment) -> Any:
        """What `put` gets of a piece's values. Here all of them; a subclass may reduce them first."""
        return values

    def leave(self, piece: Piece, values: Any) -> None:
        """Writes to shared memory the *values* of this piece that other threads of the warpgroup then `put`; or computes while
        this thread's elements of the piece are written. All threads of the warpgroup meet before and after this call."""

    def put(self, piece: Piece, values: Any) -> None:
        """Stores *values*, which `reduced` has made from a piece."""
        raise NotImplementedError

    def finish(self) -> None:
        """Does nothing: after the last tile, there is nothing to wait for."""


# ---- stores ----------------------------------------------------------------------------------------------------------


Held = Accumulator | Fragment  # a fragment that is distributed as an accumulator


class StoreOfSlot(Carried):
    """A store from an open slot: ``slot.y.store(tile)``. role: the role that stores."""

    _carries = ("slot",)

    def __init__(self, isa: Isa, store: Store, role: str, slot: Slot):
        self.isa, self.plan, self.role, self.slot = isa, store, role, slot

    def store(self, tile: Tile | None = None, **coordinates: Any) -> None:
        """Starts the store of this slot. If threads of this role wrote to the slot in this scope, a fence comes first.

        Args:
            tile: The tile's coordinates, counted in tiles.
            coordinates: Coordinates by the dimension's name, counted in tiles. They replace the coordinates of *tile*.

        Raises:
            InputError: A coordinate is missing or unknown, or the slot is stored in parts.
            ScopeError: The role is not the ring's last phase.
        """
        plan, where = self._begin(), f"slot.{self.plan.name}.store"
        check_own(where, self.isa.plan, plan, tile, coordinates)
        at = start_of(where, plan.dims, plan.tile, tile, coordinates)
        rule = f"is no verb of a slot that is stored in {plan.parts} parts, one by one"
        require(plan.parts <= 1, f"slot.{plan.name}", "store()", rule, "use store_part(i, ...) for each part")
        self._fence()
        _start_store(self.isa, plan, self.slot.index, at, None)

    def store_part(self, i: Any, tile: Tile | None = None, /, **coordinates: Any) -> None:
        """Starts the store of one part of the slot. `TmaStoreStage.in_parts` says how many parts a slot has.

        Args:
            i: Which part of the slot.
            tile: The tile of which it is a part. Its coordinates count for the dimensions that *coordinates* do not name.
            coordinates: Coordinates by the dimension's name: counted in parts along the dimension that the parts divide, and
                in tiles along the other dimensions.

        Raises:
            InputError: A coordinate is missing or unknown, or there is no such part.
            ScopeError: The role is not the ring's last phase.
        """
        plan = self._begin()
        start = part_start(start_of, f"slot.{plan.name}.store_part", plan, i, tile, coordinates)
        self._fence()
        self.isa.tma_store(plan, self.slot.index, start, part=i if plan.parts > 1 else None)

    def scatter(self, table: BoundTable, first: Any, tile: Tile | None = None, /, **coordinates: Any) -> None:
        """Starts the stores of all rows of the slot. A table says where each row belongs: row i of the slot becomes row
        ``table[first + i]`` of the tensor. If that number is outside of the tensor, or the table has ended, the row is not
        stored.

        The stage must be stored in as many parts as its slot has rows. One instruction stores or reduces one row; or it stores
        four rows, if the tensor is a matrix, the architecture has scatter4, and the tile has a multiple of 4 rows. If two rows
        go to the same place, a reduction combines both, and a store leaves either of them.

        Args:
            table: A table of row numbers: ``k.name``.
            first: The number of the table's entry for the slot's first row.
            tile: The tile. Its coordinates count for the dimensions that *coordinates* do not name.
            coordinates: Coordinates by the dimension's name, counted in tiles.

        Raises:
            InputError: The stage is not stored row by row, or a coordinate is missing or unknown.
            ScopeError: The role is not the ring's last phase.
        """
        plan = self._begin()
        isa, index = self.isa, self.slot.index
        at = rows_start(f"slot.{plan.name}.scatter", plan, table, first, tile, coordinates)
        end = isa.extent(plan.argument, len(plan.dims) - 2)
        self._fence()

        def row(entry: Any) -> Any:
            return isa.select(entry < 0, end, entry)  # stores start inside or beyond the tensor

        def one(entry: Any, part: Any) -> None:
            isa.tma_store(plan, index, (*at[:-2], row(entry), at[-1]), part=part)

        def four(entries: list[Any], part: Any) -> None:
            isa.tma_scatter(plan, index, list(map(row, entries)), at, part)

        move_rows(isa, plan, table, first, one, four if isa.plan.target.scatter4 and plan.reduce is None else None)

    def _begin(self) -> Store:
        self.slot._check_open(self.plan.buffer.name)
        role = self.slot.end.role
        permit(role == self.role, f"store() of {self.plan.name!r} in role {role!r}: the ring's last role stores it.")
        return self.plan

    def _fence(self) -> None:
        """A fence, if threads of this role wrote to the slot in this scope."""
        touched = self.slot._touched((self.plan.buffer.name,))
        self.isa.when(touched, self.isa.fence_proxy_async)
        self.isa.when(touched, self.isa.warp_sync)

    def store_from(self, *start: Any) -> None:
        """Starts the store of this slot to a tile that may begin at any element.

        Args:
            start: The tile's first element: one index for each dimension of the tensor, 0 or more. Beyond the tensor's end
                nothing is written; before its beginning the hardware traps, and the model raises `HazardError`. The last index
                is a multiple of 16 bytes.
        """
        self.store(tile_at(f"slot.{self.plan.name}.store_from", self.plan.dims, start))


@stands_for(StoreStage)
class BoundStore(PieceStore):
    """A `TmaStoreStage` that has its own buffers, in the role that fills them. A register holds which buffer is next."""

    def __init__(self, k: Any, name: str, stage: StoreStage):
        super().__init__(k.isa, k.plan.store(name))
        self.stages, self.width = stage.stages, 0 if stage.sums is None else self.plan.columns
        self.barrier = next((each for each in k.plan.named_barriers if each.name == f"{name}.sync"), None)
        isa, store, role, barrier = self.isa, self.plan, k.role, self.barrier
        self.next = isa.cells(0, names=f"{name}.buffer")
        self.unit: Any = 0  # which warpgroup of the role
        if barrier is not None and barrier.instances > 1:
            self.unit = isa.warp // 4 - role.first_warp // 4
        self.issuer = isa.warp == role.first_warp + 4 * self.unit
        self.owner = self.unit if store.buffer.owners == role.warps // 4 else self.unit % store.buffer.owners

    def store(
        self,
        tile: Tile,
        values: Held | tuple[Held, ...],
        epilogue: Epilogue | None = None,
        *,
        also: Mapping[str, PieceStore] | None = None,
        operands: Iterator[dict[str, Fragment]] | None = None,
        mirror: Any = False,
    ) -> None:
        """Converts *values* to the tensor's type and stores them to *tile*, as soon as a buffer is free.

        Args:
            tile: The tile of the output.
            values: An `Accumulator` of the declared source; several accumulators of one shape, which the epilogue combines; or
                a fragment, such as the result of ``slot.x.read()``.
            epilogue: A function that changes the accumulators' elements before the conversion, element by element.
            also: Further stores by name, of the same shape and `columns`. The epilogue then returns a dictionary with a
                fragment for each store.
            operands: The arguments that the epilogue takes by name, for one piece after another. After the last store it is
                asked once more.
            mirror: Whether the transpose is stored, too: element (i, j) of the tile also at (j, i) of the output. Only for
                accumulators, in pieces of 64 columns, and types of 16 bits.

        Raises:
            ScopeError: The epilogue returns other outputs than the stores.
            InputError: *values* cannot be stored, or *mirror* is true and these pieces have no transpose to store.
        """
        if epilogue is not None and not callable(epilogue):
            rule = "must be a function of fragments"
            raise InputError(f"{self.plan.name}.store(epilogue)", epilogue, rule, "pass a function")
        check_own(f"{self.plan.name}.store", self.isa.plan, self.plan, tile, ())
        several = values if isinstance(values, tuple) else (values,)
        rule = "must have at least one accumulator"
        require(several, f"{self.plan.name}.store", values, rule, "pass a fragment or an accumulator")
        self._check_mirrored(mirror, also)
        if all(map(self._in_pieces, several)):
            self._store_accumulators(tile, several, epilogue, {self.plan.name: self, **(also or {})}, operands, mirror)
        else:
            name = f"{self.plan.name}.store"

            def write(slot: SlotRef) -> None:
                made = values
                if epilogue is not None:
                    ((_, made),) = self._parts({self.plan.name: self}, applied(epilogue, (values,), {}), epilogue)
                write_values(self.isa, name, slot, made)

            self._store_piece(start_of(name, self.plan.dims, self.plan.tile, tile, {}), write, self.stages)

    def store_from(self, *start: Any, values: Any, epilogue: Epilogue | None = None) -> None:
        """Stores *values*, as `store` does, to a tile that may begin at any element. *start* is the tile's first element: one
        index for each dimension of the tensor, 0 or more, the last index a multiple of 16 bytes. Beyond the tensor's end
        nothing is written; before its beginning the hardware traps, and the model raises `HazardError`."""
        self.store(tile_at(f"{self.plan.name}.store_from", self.plan.dims, start), values, epilogue)

    def _in_pieces(self, values: Any) -> bool:
        """Whether *values* are stored piece by piece: an accumulator, or a fragment that is distributed as an accumulator."""
        if not self.width or not isinstance(values, Fragment):
            return isinstance(values, Accumulator)
        for matmul in (*self.isa.plan.matmuls, *self.isa.plan.held):
            if AccumulatorLayout.of(matmul) == values.layout and values.along == "tile":
                return True
        rule = "must be distributed as the accumulators of the store's source, with a number for each element"
        raise InputError(f"{self.plan.name}.store", values, rule, "compute it from acc.values()")

    def finish(self) -> None:
        """Waits, in the issuing thread, until the stores have read all buffers. Called once, after the last tile."""
        self.isa.when(self.issuer, lambda: self.isa.bulk_wait_group(0, read=True))

    def _store_accumulators(
        self,
        tile: Tile,
        sums: tuple[Held, ...],
        epilogue: Epilogue | None,
        stores: dict[str, PieceStore],
        operands: Iterator[dict[str, Fragment]] | None,
        mirror: Any,
    ) -> None:
        """Stores piece by piece, 64 rows x `width` columns of this warpgroup, through each of the stores."""
        _check_alike(sums)
        if epilogue is None and len(sums) > 1:
            raise ScopeError(f"{len(sums)} accumulators stored without an epilogue. Pass one that combines them.")
        if epilogue is not None:
            for store in stores.values():
                check_rounded(store.plan.name, store.plan.buffer.dtype)
        layout = _layout_of(sums[0])
        rows, columns, groups = layout.rows, layout.columns, layout.warpgroups
        last = (columns, rows) if self.plan.transposed else (rows, columns)
        whole = self.plan.whole or (*self.plan.tile[:-2], *last)
        group = layout.group(self.isa.warp)
        start = start_of(f"{self.plan.name}.store", self.plan.dims, whole, tile, {})
        beside = [store for store in stores.values() if not isinstance(store, BoundStore)]
        for block, first in pieces(rows, columns, groups, self.width):
            fragments = [_piece_of(each, block, first, self.width) for each in sums]
            named = next(operands) if operands else {}
            values = fragments[0] if epilogue is None else self.isa.fragments.apply(epilogue, fragments, named)
            strip = block * groups + group
            at = strip_start(self.plan, start, strip, first)
            piece = Piece(layout, tile, at, strip, first, self.width, self.plan, len(stores) - len(beside))
            # All values are reduced before the first store: so few registers are held while stores wait.
            parts = [(store, store.reduced(piece, part)) for store, part in self._parts(stores, values, epilogue)]
            also = [functools.partial(store.leave, piece, part) for store, part in parts if store in beside]
            for store, part in parts:
                if isinstance(store, BoundStore):
                    store.put(piece, part, also if store is self else ())
                    self.isa.when(mirror, functools.partial(store.put_mirrored, piece, part))
                else:
                    store.put(piece, part)
        if operands:
            next(operands, None)
        if any(store.plan.shared for store in stores.values()):
            self._hand_over([store for store in stores.values() if isinstance(store, BoundStore)])

    def _hand_over(self, stores: list[BoundStore]) -> None:
        """Waits until this warpgroup's stores have read their buffers. The next team uses them, from the first buffer on."""
        self.isa.when(self.issuer, lambda: self.isa.bulk_wait_group(0, read=True))
        self._sync()
        for store in stores:
            if store.plan.shared:
                store.next[0] = 0

    def put(self, piece: Piece, values: Fragment, also: Sequence[Any] = ()) -> None:
        """Stores *values* to one piece of a tile. also: functions that write to shared memory between the same barriers."""
        own = piece.tile.size(self.plan.dims[-2])
        rows = None if own is None else within(self.isa, own - piece.strip * 64, 64)

        def write(slot: SlotRef) -> None:
            self.isa.fragments.write_columns(values, slot, transposed=self.plan.transposed)
            for each in also:
                each()

        self._store_piece(piece.at, write, piece.stores * self.stages, rows)

    def put_mirrored(self, piece: Piece, values: Fragment) -> None:
        """Stores the transpose of *values* to the mirrored piece: its rows are this piece's columns."""
        *outer, m, n = piece.at
        write = functools.partial(self.isa.fragments.write_columns, values, transposed=not self.plan.transposed)
        self._store_piece((*outer, n, m), write, self.stages)

    def _check_mirrored(self, mirror: Any, also: Any) -> None:
        """Raises `InputError` if the transpose of a piece does not fit into the buffers of the piece."""
        if mirror is False:
            return
        plan = self.plan
        boxes = self.width == 64 and plan.buffer.dtype.bytes == 2 and not (plan.whole or plan.clipped)
        if not boxes or plan.reduce or also:
            rule = "needs one output of 16 bits, in pieces of 64 x 64, without a reduction"
            raise InputError(f"{plan.name}.store(mirror)", mirror, rule, "e.g. dtype bf16, columns=64")

    def _parts(self, stores: dict[str, PieceStore], values: Any, epilogue: Any) -> list[tuple[PieceStore, Fragment]]:
        """The values that *epilogue* has returned, each with its store."""
        if len(stores) == 1 and not isinstance(values, dict):
            values = {self.plan.name: values}
        if not isinstance(values, dict) or set(values) != set(stores):
            returned = ", ".join(map(str, values)) if isinstance(values, dict) else type(values).__name__
            fix = f"Return a dictionary of {', '.join(stores)}."
            raise ScopeError(f"{where_is(epilogue)} returned {returned}, not one value for each output. {fix}")
        for name, value in values.items():
            if value is None:
                raise ScopeError(f"{where_is(epilogue)} returned None for {name}. Is a `return` missing?")
        return [(store, values[name]) for name, store in stores.items()]

    def _store_piece(self, at: tuple[Any, ...], write: Any, issued: int, rows: Any = None) -> None:
        """The life of one buffer: wait until it is free, write, fence, synchronize, and let the issuer store it.

        Args:
            at: The piece's first element in the output.
            write: Writes the values to a slot.
            issued: At least how many stores the issuer has started since this buffer's last store, counting that store. The
                issuer waits for bulk groups by their number, and each of its stores is a group.
            rows: How many rows are written, if the tile has its own bounds.
        """
        isa = self.isa
        index = self.owner * self.stages + self.next[0]
        isa.when(self.issuer, lambda: isa.bulk_wait_group(issued - 1, read=True))
        self._sync()
        write(SlotRef(self.plan.buffer, index))
        isa.fence_proxy_async()
        self._sync()

        def issue() -> None:
            _start_store(isa, self.plan, index, at, rows)
            isa.bulk_commit_group()

        isa.when(self.issuer, issue)
        isa.advance(self.next, self.stages, parity=False)

    def _sync(self) -> None:
        if self.barrier is None:
            self.isa.warp_sync()
        else:
            self.isa.named_barrier_sync(self.barrier, self.unit)


def _layout_of(held: Held) -> Any:
    return held.layout if isinstance(held, Fragment) else AccumulatorLayout.of(held.matmul)


def _piece_of(held: Held, block: int, first: int, columns: int) -> Fragment:
    """Columns [first, first + columns) of the warpgroup's row block *block*."""
    cut = functools.partial(held.backend.columns_of, held) if isinstance(held, Fragment) else held.columns
    return cut(block, first, columns)


def _check_alike(sums: tuple[Held, ...]) -> None:
    """Raises `ScopeError` for accumulators of different shapes or warpgroups."""
    for both in itertools.pairwise(sums):
        if len(set(map(_layout_of, both))) > 1:
            names = " and ".join(each.matmul.name if isinstance(each, Accumulator) else repr(each) for each in both)
            raise ScopeError(f"{names} stored together. They must have the same shape and warpgroups.")


def _start_store(isa: Isa, store: Store, stage: Any, at: Sequence[Any], rows: Any) -> None:
    """Starts the store of a slot, through a descriptor or without one."""
    if store.tensor_map:
        isa.tma_store(store, stage, at, rows)
    else:
        isa.bulk_store(store, stage, at)


# ---- thread store ----------------------------------------------------------------------------------------------------


@stands_for(ThreadStoreStage)
class BoundThreadStore(Carried):
    """A `ThreadStoreStage` in the role that stores. It has no buffers, so it never waits."""

    def __init__(self, k: Any, name: str, stage: ThreadStoreStage):
        self.isa: Isa = k.isa
        self.plan: Store = k.plan.store(name)

    def store(self, tile: Tile, values: Any, epilogue: Any = None, *, surely: Span = (0, 0), when: Any = None) -> None:
        """Converts *values* to the tensor's type and stores them to *tile*.

        Args:
            tile: The tile of the output.
            values: A fragment of the tile's extents; or, for a tile of one extent, one number for each row or column.
            epilogue: A function that changes *values* before the conversion.
            surely: (first, end) of the tile's columns that are inside of the tensor in every tile. The GPU does not compare
                their indices. With a `wide` stage, tiles must then begin at multiples of 16 bytes.
            when: A comparison of fragments of the tile, its rows or its columns. It is true for the elements that are stored;
                the tensor keeps its other elements. Threads then store element by element. None: all are stored.

        Raises:
            InputError: *values* is no fragment, has other extents, or is fp32 where the tensor holds integers; or *when* is
                no such comparison.
        """
        self._store("store", tile, values, epilogue, surely, when)

    def store_from(
        self, *start: Any, values: Any, epilogue: Any = None, surely: Span = (0, 0), when: Any = None
    ) -> None:
        """Stores *values*, as `store` does, to a tile that may begin at any element. They may have fewer columns than the
        stage's tile. *start* is the tile's first element: one index for each dimension of the tensor, perhaps negative or
        beyond its end. The last index is a multiple of the stage's `vector` bytes."""
        tile = tile_at(f"{self.plan.name}.store_from", self.plan.dims, start)
        self._store("store_from", tile, values, epilogue, surely, when)

    def _store(self, verb: str, tile: Tile, values: Any, epilogue: Any, surely: Span, when: Any) -> None:
        name, plan = f"{self.plan.name}.{verb}", self.plan
        check_own(name, self.isa.plan, plan, tile, ())
        made = values if epilogue is None else applied(epilogue, (values,), {})
        made = checked_values(name, plan.buffer, made, narrower=verb == "store_from")
        start, name = start_of(name, plan.dims, plan.tile, tile, {}), f"{plan.name}.store"
        pair = isinstance(surely, tuple) and len(surely) == 2 and all(type(n) is int for n in surely)
        require(pair, f"{name}(surely)", surely, "must be two columns (first, end)", "leave it out")
        self.isa.store_values(plan, start, made, surely, None if when is None else mask_of(name, when, made))

    def finish(self) -> None:
        """Does nothing: after the last tile, there is nothing to wait for."""
