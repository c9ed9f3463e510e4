"""What one warp does with fragments: tiles of values that are distributed over the registers of a role's threads.

Bodies see `tmapipe.isa.fragment.Fragment`. Each backend defines a fragment's data: a NumPy array in the machine, a list of
scalars on the GPU. A method here that has no statements is one that each backend defines. It works on registers, or consists
of instructions (`tmapipe.isa.barriers`). *A piece of an accumulator* is 64 rows of a warpgroup and some columns, distributed
as wgmma distributes them.
"""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from tmapipe.errors import InputError, ScopeError, permit, require
from tmapipe.isa import fragment
from tmapipe.isa.fragment import Carried, ClusterExchange, Fragment, Place, SlotRef, Span, Value, WarpExchange
from tmapipe.plan.model import RoleWarps
from tmapipe.plan.rings import Barrier, Matmul
from tmapipe.plan.thread_layout import WIDTHS, AccumulatorLayout, ThreadLayout, VectorLayout


class Fragments(Carried):
    """The operations of one warp on fragments.

    exchanges: how the warps of a role combine their parts of a reduction, by the first warp of the role. numbers: pairs (kind,
    types of Python) by which a plain number is converted, tried in order.
    """

    exchanges: dict[int, WarpExchange]
    numbers: tuple[tuple[str, tuple[type, ...]], ...]

    # ---- accumulators ---------------------------------------------------------------------------------------------

    def accumulator(self, matmul: Matmul, empty: bool = True) -> Any:
        """Registers for this warpgroup's part of ``acc[m, n]``, in fp32, or in int32 for int8 operands.

        They count as zero until the first wgmma. Each call gives the same registers, so only those of the last call can be
        used. empty: whether they may be read without a wgmma.
        """

    def accumulator_promote(self, matmul: Matmul, acc: Any) -> None:
        """Adds what wgmma has summed since the last time to other sums in fp32. The next wgmma starts from zero. All wgmma
        groups must be complete."""

    def accumulator_scale(self, matmul: Matmul, acc: Any, by: Fragment) -> None:
        """Multiplies *acc* by one number a row, or one for all. All wgmma groups that write it must be complete."""

    def accumulator_after(self, matmul: Matmul, acc: Any, values: Fragment) -> Fragment:
        """*values*, for arithmetic that must stay below the point at which *acc* can be read. Called at that point."""

    def beside(self, layout: AccumulatorLayout, parts: list[Any]) -> Any:
        """The data of a tile of *layout*, which consists of tiles with fewer columns side by side."""

    def packed(self, matmul: Matmul, values: Fragment) -> Any:
        """The data of *values* of (m, k) in b's type, as `operand` takes it too."""

    def raw_weights(self, layout: AccumulatorLayout, slot: SlotRef, kind: str) -> Any:
        """``ld.shared``: weights of few bits in a slot, of which a thread reads those that `widened` gives it. layout: that of
        their bytes. Generic proxy."""

    def widened(
        self, matmul: Matmul, raw: Any, kind: str, zero: fragment.Numbers, scale: fragment.Numbers, registers: str
    ) -> Any:
        """What `raw_weights` has read, packed as by `packed`: ``fma(w, scale, -zero * scale)`` in b's type, in which scale
        and -zero * scale are rounded before. The arguments are those of `Accumulator.widened`; registers: the registers of
        the packed words, as for `operand`."""

    def products(
        self, sums: Fragment, rows: SlotRef, few: SlotRef, kind: str, parts: int, zero: Any, scale: Any
    ) -> Any:
        """``ld.shared`` and ``mma.sync``: the data of *sums*, distributed as accumulators are, plus products of the weights in
        slot *few* with the rows in slot *rows*, as `BoundRegisterTile.products` says. Generic proxy."""

    def operand(self, matmul: Matmul, values: Fragment, registers: str = "") -> Any:
        """*values* of (m, k) in b's type, in registers as wgmma takes its operand a. They stay as they are until the group
        is complete. registers: which, of several sets that take turns.

        Of 16-bit types a thread has the same elements of 16 columns as an operand and as an accumulator, in the same order.
        """

    def accumulator_columns(self, matmul: Matmul, acc: Any, block: int, first: int, columns: int) -> Fragment:
        """A piece: columns [first, first + columns) of row block *block* of *acc*, in the type of the sums, with the layout
        `AccumulatorLayout.piece`.

        Warpgroup g has the tile's rows from ``(block * warpgroups + g) * 64`` on. All wgmma groups must be complete.
        """

    def accumulator_values(self, matmul: Matmul, acc: Any) -> Fragment:
        """All values of *acc*. All wgmma groups must be complete."""

    # ---- pieces ---------------------------------------------------------------------------------------------------

    def columns_of(self, values: Fragment, block: int, first: int, columns: int) -> Fragment:
        """A piece of a fragment that is distributed as accumulators are."""

    def write_columns(self, values: Fragment, slot: SlotRef, *, transposed: bool = False) -> None:
        """Converts a piece to the slot's type and writes it to the slot, by ``stmatrix`` or ``st.shared``, 16 rows a warp. The
        slot's extents are (64, columns), or if *transposed* (columns, 64). Generic proxy."""

    def row_sums(
        self, values: Fragment, columns: int, first: int, inside: Value | None, before: Any, whole: Any = None
    ) -> Any:
        """For each row, *before* plus the sum of a piece's values in columns [first, inside). Each thread has the sums of its
        own columns, so only `join_row_sums` can use them. *first* is a multiple of 8. *inside* is a run-time value; it may be
        negative or larger than the number of columns. None: all columns. *before* is a result of `row_sums` for earlier
        columns, or None for zero. *whole*: the result of this call without *inside*, if known."""

    def join_row_sums(self, layout: AccumulatorLayout, sums: Any) -> Fragment:
        """The sums of `row_sums` as one number a row of a piece of *layout*. They are added over the 4 lanes that share a row
        by ``shfl.bfly``, always in the same order."""

    def column_sums(self, values: Fragment, columns: int, inside: Value) -> Any:
        """For each warp and column, the sum of a piece's values over the warp's rows, of the piece's first *inside* rows.
        *inside* is a run-time value; it may be negative or larger than 64. Only `write_column_sums` can use the sums. Lanes
        add by ``shfl.bfly``, always in the same order."""

    def write_column_sums(self, sums: Any, slot: SlotRef) -> None:
        """Writes the sums of `column_sums` to the warp's row of a slot of (4, columns or more). Generic proxy."""

    def send(self, values: Fragment, slot: SlotRef, barrier: Barrier, cta: Value, share: Value, shares: int) -> None:
        """``st.async`` (each lane): sends the warp's part of a piece in fp32 to part *share* of *shares* of the slot in CTA
        *cta* of the cluster. Its bytes complete on ``barrier[slot.stage]`` there, later, by themselves. Only `received` can
        read the part, since the order of its elements is left open. Async proxy, as for `Isa.store_words`."""

    def send_tile(self, values: Fragment, slot: SlotRef, barrier: Barrier, cta: Value) -> None:
        """``st.async`` (each lane): converts the warp's part of a tile to the slot's type and writes it to its place in the
        slot of CTA *cta* of the cluster. Its bytes complete on ``barrier[slot.stage]`` there, later, by themselves. Async
        proxy, as for `Isa.store_words`."""

    def received(self, slot: SlotRef, layout: AccumulatorLayout, share: Value, shares: int) -> Fragment:
        """``ld.shared``: what `send` has put into part *share* of *shares* of a slot, a piece of *layout*. Generic proxy."""

    def apply(self, function: Callable[..., Any], fragments: Sequence[Fragment], named: dict[str, Fragment]) -> Any:
        """``function(*fragments, **named)`` in fp32: a piece, or a dictionary of pieces.

        *fragments* are pieces of one layout. *named* are pieces, or fragments of one number for each row, for each column or
        for all. The function works element by element, on fragments without a layout. It may be called several times, on some
        columns after other columns, so that few intermediate values need registers at a time.
        """

    # ---- slots ----------------------------------------------------------------------------------------------------

    def read(self, slot: SlotRef, layout: ThreadLayout, along: str = "tile") -> Fragment:
        """``ld.shared``: a slot, in fp32 or int32. Generic proxy.

        Args:
            layout: How the tile is distributed.
            along: "tile"; "rows" or "columns" for a slot with one extent, which has one number a row or column of that tile.
        """

    def read_transposed(self, slot: SlotRef, layout: AccumulatorLayout) -> Fragment:
        """``ld.shared``: the transpose of a slot's tile, in fp32 or int32. Generic proxy."""

    def read_peer(self, slot: SlotRef, cta: Value, layout: ThreadLayout, at: Place) -> Fragment:
        """``ld.shared::cluster``: as `read_part`, of the slot of the CTA with rank *cta*."""

    def read_part(self, slot: SlotRef, layout: ThreadLayout, at: Place, pitch: Any = None, each: int = 1) -> Fragment:
        """``ld.shared``: the part of a slot that begins at this row and column, distributed as *layout* says. *pitch*, *each*:
        as of `read`, of a slot with one extent. Generic proxy."""

    def read_joined(self, slot: SlotRef, layout: ThreadLayout, at: Place, gaps: fragment.Gaps) -> Fragment:
        """``ld.shared``: elements from a slot with one extent, in which gaps are skipped. The elements at[1], at[1] + 1, ...
        are read; element k lies at at[0] + k, and for each (length, further) of *gaps* (k // length) * further after that.
        Generic proxy."""

    def load_joined(self, table: str, layout: ThreadLayout, at: Place, gaps: fragment.Gaps) -> Fragment:
        """``ld.global`` (each lane): as `read_joined`, of a table that holds data. Beyond its ends there are zeros. It may be
        executed only after `griddepcontrol_wait`."""

    def read_rows_as_columns(self, slot: SlotRef, layout: VectorLayout, starts: Any, pitch: int) -> Fragment:
        """``ld.shared``: rows of a slot as columns of a tile. Column j begins at element starts[j % len(starts)] + j //
        len(starts) * pitch of the slot, counted row by row. Generic proxy."""

    def read_line(self, slot: SlotRef, layout: ThreadLayout, along: str, at: Place, each: int = 1) -> Fragment:
        """``ld.shared``: one number for each of the "rows" or "columns" of a tile, side by side in a row of a slot. *at* is
        this row, and where in it the first number lies. A number counts for *each* rows or columns. Generic proxy."""

    def read_number(self, slot: SlotRef, index: Value | Fragment) -> Fragment:
        """``ld.shared``: one element of a slot with one extent, in all threads; or of any slot without a swizzle, counted row
        by row, one element for each number of a fragment. Generic proxy."""

    def write(self, slot: SlotRef, values: Fragment, at: tuple[int, int] | None = None) -> None:
        """``st.shared``: writes *values* to a slot, converted to its type: a whole tile, or a part that begins at *at*, a
        multiple of its rows and of its columns; or one number a row or a column, in a slot with one extent. Generic proxy."""

    def raw(
        self,
        gpu: fragment.RawFunction,
        cpu: fragment.RawFunction | None,
        accesses: fragment.Accesses,
        role: RoleWarps,
        proxy: str,
    ) -> None:
        """Calls *gpu* with tensors, or *cpu* with arrays, in the order of *accesses*.

        Args:
            accesses: Pairs (slot, how). "read": the function gets the whole slot. "write" or "update": it gets the calling
                warp's rows, of which each lane takes the same elements whenever *gpu* is called.
            proxy: "generic"; or "async" if *gpu* uses TMA or wgmma. All lanes then wait in *gpu* until TMA or wgmma has ended.
        """

    # ---- registers ------------------------------------------------------------------------------------------------

    def full(self, layout: ThreadLayout, along: str, value: Any) -> Fragment:
        """A fragment of equal numbers: *value* is a float or an int."""
        kind = self.kind_of("full", value)
        data = self.expand(layout, "one", self.number(fragment.in_range("full()", value, kind), kind), along)
        return Fragment(self, layout, along, kind, data)

    def reduce(self, values: Fragment, op: str, along: str, inside: Any = None, surely: Span | None = None) -> Fragment:
        """One number for each row or column: the "sum", "maximum" or "minimum" of its elements, in fp32 or int32; or
        "logsumexp", the logarithm of the sum of the exponentials of its elements, in fp32.

        A thread combines its own elements; then lanes that share the row or column combine theirs by ``shfl.bfly``, and then
        warps through shared memory. The order depends on the layout alone.

        Args:
            along: "rows" or "columns".
            inside: How many elements of each row or column count; or (the first element that counts, the one after the last);
                None: all count. A row without any gives what the operation begins with: 0, or an infinity.
            surely: (the first, the one after the last) of elements that count in any case, for all rows or columns.
        """
        return self.reduce_all((values,), op, along, inside, surely)[0]

    def reduce_all(self, several: Sequence[Fragment], op: str, along: str, inside: Any, surely: Any) -> list[Fragment]:
        """What `reduce` gives of each of *several* fragments. Those of rows in fp32 go together over warps and CTAs."""
        partials = [self.reduced_in_warp(values, op, along, inside, surely) for values in several]
        layout, kind = several[0].layout, "int32" if several[0].kind == "bool" else several[0].kind
        assert layout is not None
        if len(several) > 1 and any((each.layout, each.kind) != (layout, "fp32") for each in several):
            raise ScopeError(f"sums of {', '.join(map(repr, several))}. They are in fp32, and distributed alike.")
        exchange = self.exchanges.get(layout.first_warp)
        far = exchange is not None and exchange.peers > 1 and along == "rows"
        if far or len(layout.sharing_warps(0, along)) > 1:
            width = len(several) * layout.row_slots if along == "rows" else layout.columns
            exchange = exchange_of(exchange, layout, kind, along, width)
            slot = exchange.take()
            if isinstance(exchange, ClusterExchange):
                self.send_partial(layout, partials, slot, exchange)
            else:
                self.write_partial(layout, along, partials, slot)
            exchange.sync()
            each = range(len(several))
            partials = [self.read_partials(layout, op, along, slot, exchange.peers, nth) for nth in each]
            exchange.read()
        return [Fragment(self, layout, along, kind, partial) for partial in partials]

    def reduced_in_warp(
        self, values: Fragment, op: str, along: str, inside: Any = None, surely: tuple[int, int] | None = None
    ) -> Any:
        """What a warp has for `reduce`, with these arguments: one number a row or column."""
        layout = values.layout
        if layout is None:
            raise ScopeError(f"{op} of the {along} of a piece in {fragment.BY_ELEMENT}")
        layout.check_rows()
        if values.along == "parts":
            what = f"{op} of the {along} of a row's sum in parts"
            permit((op, along, inside) == ("sum", "rows", None), f"{what}. tp.math.row_sum(parts) gives the whole sum.")
            return self.join_parts(layout, values.data)
        many = layout.columns if along == "rows" else layout.rows
        for place in inside if isinstance(inside, tuple) else (inside,):
            fragment.in_range("lt", place, "int32")
        if isinstance(inside, int) and inside >= many:  # of a fixed extent: all count
            inside = None
        tile = self.whole_tile(op, values)
        if inside is not None:
            first, end = inside if isinstance(inside, tuple) else (None, inside)
            tile = self.only_inside(tile, along, first, end, surely or (0, 0), fragment.NEUTRAL[op, tile.kind])
        return self.reduce_in_warp(layout, op, tile.kind, along, tile.data)

    def only_inside(self, tile: Fragment, along: str, first: Value, end: Value, surely: Span, other: Any) -> Fragment:
        """A whole tile in which *other* replaces some elements: the elements before *first* and from *end* on, in each row
        (*along* "rows") or column."""
        place = tile.columns if along == "rows" else tile.rows
        holds = place < end if first is None else (place >= first) & (place < end)
        return fragment.combine("where", holds, tile, other)

    def row_parts(self, values: Fragment) -> Fragment:
        """For each row, the sum of the elements that each thread has. `reduce` adds up these parts."""
        layout = values.layout
        if layout is None or values.along != "tile" or values.kind != "fp32":
            raise ScopeError(f"parts of the sums of rows of {values!r}. They are of a whole tile in fp32.")
        layout.check_rows()
        return Fragment(self, layout, "parts", "fp32", self.sum_parts(layout, values.data))

    def reduce_in_warp(self, layout: ThreadLayout, op: str, kind: str, along: str, data: Any) -> Any:
        """One number a row or column of a whole tile's data, over the lanes of a warp."""

    def sum_parts(self, layout: ThreadLayout, data: Any) -> Any:
        """The sums of a whole tile's data, a row and lane that shares it."""

    def join_parts(self, layout: ThreadLayout, data: Any) -> Any:
        """One number for each row: the parts from `sum_parts`, or numbers computed from them, added up over the lanes."""

    def write_partial(self, layout: ThreadLayout, along: str, data: Any, slot: SlotRef) -> None:
        """Writes what `reduce_in_warp` gave to the warp's row of a slot: one number a row slot, or one a column, at its index.
        *data*: of several reductions of rows, one after another. Generic proxy."""

    def send_partial(self, layout: ThreadLayout, data: Any, slot: SlotRef, exchange: ClusterExchange) -> None:
        """``st.async``, by lane i to CTA i for each bit i of `exchange.mask`: writes the numbers of rows from `reduce_in_warp`
        to this warp's row of the slot there, which has a row for each warp of each CTA. Its bytes complete on
        ``exchange.full[stage]`` there. *data* as in `write_partial`. Async proxy, as for `store_words`."""

    def read_partials(
        self, layout: ThreadLayout, op: str, along: str, slot: SlotRef, peers: int = 1, nth: int = 0
    ) -> Any:
        """One number for each row or column: the numbers of all warps that share it, also of other CTAs, combined by *op*, in
        the same order in all of them. With *op* "before": for numbers from `chunk_totals`, the result of `chunks_before` over
        these warps. *nth*: which of several reductions. Generic proxy."""

    # ---- the order of a row's elements ----------------------------------------------------------------------------
    #
    # A row lies in *chunks*, one after another: of each, every warp that shares the row has a piece, and every lane a vector.

    def cumsum(self, values: Fragment) -> Fragment:
        """The running sums of each row, in fp32 or int32: each element plus all elements before it.

        A thread adds its own elements; then lanes that share a row add theirs by ``shfl.up``, then the row's chunks and,
        through shared memory, warps follow. The order depends on the layout alone.
        """
        tile = self.whole_tile("the running sums of rows", values)
        layout, kind = tile.layout, tile.kind
        assert layout is not None
        several = len(layout.sharing_warps(0, "rows")) > 1
        exchange = self.exchanges.get(layout.first_warp)
        if exchange is not None and exchange.peers > 1:
            rule = "lies in a role whose reductions are over rows in several CTAs, which running sums are not"
            raise InputError("row_cumsum of a tile", (layout.rows, layout.columns), rule, "use another role")
        data = self.scan_in_warp(layout, kind, tile.data)
        if several:
            totals = self.chunk_totals(layout, data)
            exchange = exchange_of(exchange, layout, kind, "rows", layout.row_slots * layout.chunks)
            slot = exchange.take()
            self.write_partial(layout, "rows", [totals], slot)
            exchange.sync()
            before = self.read_partials(layout, "before", "rows", slot)
            exchange.read()
            data = self.add_chunks(layout, data, before)
        return Fragment(self, layout, "tile", kind, data)

    def swap_pairs(self, values: Fragment) -> Fragment:
        """Columns 2 i and 2 i + 1 of a tile, or of one number a column, swapped: a thread has both."""
        layout = values.layout
        if layout is None or values.along not in ("tile", "columns"):
            raise ScopeError(f"neighbours of {values!r} swapped. They are of a whole tile, or of one number a column.")
        rule = "has its columns one by one in threads, where neighbours are in different ones"
        require(layout.width % 2 == 0, "swap_pairs of a tile", (layout.rows, layout.columns), rule, "use fewer warps")
        data = self.swapped_pairs(layout, values.along, values.data)
        return Fragment(self, layout, values.along, values.kind, data)

    def split_pairs(self, values: Fragment) -> tuple[Fragment, Fragment]:
        """Columns 2 i, and columns 2 i + 1, of a tile or of one number a column: a thread has both."""
        layout = values.layout
        if layout is None or values.along not in ("tile", "columns"):
            raise ScopeError(f"the pairs of {values!r}. They are of a whole tile, or of one number a column.")
        if not isinstance(layout, VectorLayout) or layout.width % 2:
            rule = "has two or more columns side by side in a thread, as a tile read from a slot"
            raise InputError("split_pairs of a tile", (layout.rows, layout.columns), rule, "use fewer warps")
        half = attrs.evolve(layout, tile=(*layout.tile[:-1], layout.columns // 2), width=layout.width // 2)
        halves = [self.picked_of_pairs(layout, values.along, values.data, i) for i in (0, 1)]
        even, odd = (Fragment(self, half, values.along, values.kind, data) for data in halves)
        return even, odd

    def join_pairs(self, even: Fragment, odd: Fragment) -> Fragment:
        """Columns 2 i and 2 i + 1 of one tile from two fragments that `split_pairs` has made, or functions of them."""
        layout, (along, kind, (first, second)) = even.layout, self.alike("join_pairs", even, odd)
        if not isinstance(layout, VectorLayout) or 2 * layout.width > max(WIDTHS):
            rule = f"has at most {max(WIDTHS) // 2} columns side by side in a thread, as of split_pairs"
            raise InputError("join_pairs of tiles", repr(even), rule, "read it with width=4")
        whole = attrs.evolve(layout, tile=(*layout.tile[:-1], layout.columns * 2), width=layout.width * 2)
        data = self.joined_pairs(layout, along, first, second)
        return Fragment(self, whole, along, kind, data)

    def alike(self, name: str, one: Fragment, other: Fragment) -> tuple[str, str, list[Any]]:
        """(along, kind, data of the first, data of the second) of two fragments that are distributed alike, or are made so."""
        layout = one.layout
        if layout is None or other.layout != layout or {one.along, other.along} - {"tile", "rows", "columns"}:
            raise ScopeError(f"{name} of {one!r} and {other!r}. They are distributed alike, such as by split_pairs.")
        along = one.along if one.along == other.along == "columns" else "tile"
        kind = one.kind if one.kind == other.kind else "fp32"
        data = [self.expand(layout, x.along, self.convert(x.data, x.kind, kind), along) for x in (one, other)]
        return along, kind, data

    def whole_tile(self, what: str, values: Fragment) -> Fragment:
        """*values* of a whole tile in fp32 or int32."""
        layout = values.layout
        if layout is None or values.along == "parts":
            raise ScopeError(f"{what} of {values!r}. They are of a whole tile, such as acc.values().")
        layout.check_rows()
        kind = "int32" if values.kind == "bool" else values.kind
        data = self.expand(layout, values.along, self.convert(values.data, values.kind, kind), "tile")
        return Fragment(self, layout, "tile", kind, data)

    def scan_in_warp(self, layout: ThreadLayout, kind: str, data: Any) -> Any:
        """The running sums of each row of a whole tile's data, over the lanes of a warp; of each chunk of a row, where several
        warps share it."""

    def chunk_totals(self, layout: ThreadLayout, data: Any) -> Any:
        """The last element of each row and chunk in the result of `scan_in_warp`: `layout.chunks` numbers for each
        row slot."""

    def add_chunks(self, layout: ThreadLayout, data: Any, before: Any) -> Any:
        """A whole tile's data with a number added for each row and chunk."""

    def swapped_pairs(self, layout: ThreadLayout, along: str, data: Any) -> Any:
        """Data along a "tile" or its "columns" in which neighbours have changed places."""

    def picked_of_pairs(self, layout: VectorLayout, along: str, data: Any, which: int) -> Any:
        """The first (0) or the second (1) of each pair of neighbours, from data along a "tile" or its "columns"."""

    def joined_pairs(self, layout: VectorLayout, along: str, even: Any, odd: Any) -> Any:
        """Data of a *layout* twice as wide, in which the elements of *even* and of *odd* alternate."""

    # ---- data -----------------------------------------------------------------------------------------------------

    def made(self, values: Fragment) -> None:
        """Called when *values* are made."""

    def kind_of(self, name: str, value: Any) -> str:
        """The kind of a number, known or at run time. Raises `ScopeError` for anything else, in operation *name*."""
        for kind, types in self.numbers:
            if isinstance(value, types):
                return kind
        raise ScopeError(f"{name} of a fragment and {type(value).__name__}. It takes fragments and numbers.")

    def number(self, value: Any, kind: str) -> Any:
        """A number as the data of a fragment that varies along nothing."""

    def convert(self, data: Any, kind: str, to: str) -> Any:
        """Data of another kind. bool as a number is 0 or 1."""

    def expand(self, layout: ThreadLayout | None, along: str, data: Any, to: str) -> Any:
        """Data that varies along *to*, with each number repeated."""

    def indices(self, layout: ThreadLayout, along: str) -> Any:
        """The row of each row slot, or the column of each column slot."""

    def elementwise(self, name: str, operands: list[Any]) -> Any:
        """The operation on data of the right kinds, which vary along the same or, of a number, along nothing."""


def exchange_of(exchange: WarpExchange | None, layout: ThreadLayout, kind: str, along: str, width: int) -> WarpExchange:
    """A role's `ReductionScratch`. Raises `InputError` unless it takes *width* numbers of each warp."""
    if exchange is not None and exchange.peers > 1 and (along == "columns" or layout.row_lanes < 32):
        rule = "has rows over CTAs of the cluster, and over all lanes of a warp" if along == "rows" else ""
        rule = rule or "has columns in several warps, in a role whose reductions are over rows in several CTAs"
        fix = "read the tile in its own distribution, with rows of 32 vectors or more" if along == "rows" else ""
        raise InputError("reduction of a tile", (layout.rows, layout.columns), rule, fix or "use another role")
    if exchange is None or exchange.width < width:
        rule = f"has {along} that lie in several warps of its role, {width} in a warp"
        fix = f"declare tp.ReductionScratch(role, {along}={width}) in the schedule"
        raise InputError("reduction of a tile", (layout.rows, layout.columns), rule, fix)
    rule = f"is over several warps, for {along}, in fp32 alone"
    require(kind == "fp32", "reduction of a tile", kind, rule, 'use tp.math.cast(values, "fp32")')
    return exchange
