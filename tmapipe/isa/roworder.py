"""The order of a row's elements in a fragment: running sums along rows, and neighbours in pairs."""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.errors import InputError, ScopeError
from tmapipe.isa.fragment import Carried, Fragment
from tmapipe.plan.thread_layout import WIDTHS, ThreadLayout, VectorLayout


class RowOrder(Carried):
    """What `tmapipe.isa.fragments.Fragments` has that depends on the order of a row's elements.

    A row lies in *chunks*, one after another: of each, every warp that shares the row has a piece, and every lane a vector.
    """

    def cumsum(self, values: Fragment) -> Fragment:
        """Of each row the running sums, in fp32 or int32: of each element and all before it.

        They are made in a thread, then over the lanes that share a row by ``shfl.up``, then over its chunks and, through
        shared memory, over warps. The order depends on the layout alone.
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
        if layout.chunks == 1 and not several:
            return Fragment(self, layout, "tile", kind, data)
        totals = self.chunk_totals(layout, data)
        if several:
            exchange = self.exchange_for(layout, kind, "rows", layout.row_slots * layout.chunks)
            slot = exchange.take()
            self.write_partial(layout, "rows", [totals], slot)
            exchange.sync()
            before = self.read_partials(layout, "before", "rows", slot)
            exchange.read()
        else:
            before = self.chunks_before(layout, totals)
        return Fragment(self, layout, "tile", kind, self.add_chunks(layout, data, before))

    def swap_pairs(self, values: Fragment) -> Fragment:
        """Columns 2 i and 2 i + 1 of a tile, or of one number a column, swapped: a thread has both."""
        layout = values.layout
        if layout is None or values.along not in ("tile", "columns"):
            raise ScopeError(f"neighbours of {values!r} swapped. They are of a whole tile, or of one number a column.")
        if layout.width % 2:
            rule = "has its columns one by one in threads, where neighbours are in different ones"
            raise InputError("swap_pairs of a tile", (layout.rows, layout.columns), rule, "use fewer warps")
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
        """What `split_pairs` gave two fragments of, or functions of them, as columns 2 i and 2 i + 1 of one tile."""
        layout, (along, kind, (first, second)) = even.layout, self.alike("join_pairs", even, odd)
        if not isinstance(layout, VectorLayout) or 2 * layout.width > max(WIDTHS):
            rule = f"has at most {max(WIDTHS) // 2} columns side by side in a thread, as of split_pairs"
            raise InputError("join_pairs of tiles", repr(even), rule, "read it with width=4")
        whole = attrs.evolve(layout, tile=(*layout.tile[:-1], layout.columns * 2), width=layout.width * 2)
        data = self.joined_pairs(layout, along, first, second)
        return Fragment(self, whole, along, kind, data)

    def alike(self, name: str, one: Fragment, other: Fragment) -> tuple[str, str, list[Any]]:
        """Along what, of which kind, and the data of two fragments that are distributed alike, or are made so."""
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
        """The running sums of each row and chunk of a whole tile's data, over the lanes of a warp."""
        raise NotImplementedError

    def chunk_totals(self, layout: ThreadLayout, data: Any) -> Any:
        """What `scan_in_warp` gave for the last element of each row and chunk: `layout.chunks` numbers a row slot."""
        raise NotImplementedError

    def chunks_before(self, layout: ThreadLayout, data: Any) -> Any:
        """For each row and chunk, the sum of the totals of earlier chunks, as `chunk_totals` gave them."""
        raise NotImplementedError

    def add_chunks(self, layout: ThreadLayout, data: Any, before: Any) -> Any:
        """A whole tile's data with a number added for each row and chunk."""
        raise NotImplementedError

    def swapped_pairs(self, layout: ThreadLayout, along: str, data: Any) -> Any:
        """Data along a "tile" or its "columns" in which neighbours have changed places."""
        raise NotImplementedError

    def picked_of_pairs(self, layout: VectorLayout, along: str, data: Any, which: int) -> Any:
        """Of each pair of neighbours the first (0) or the second (1), from data along a "tile" or its "columns"."""
        raise NotImplementedError

    def joined_pairs(self, layout: VectorLayout, along: str, even: Any, odd: Any) -> Any:
        """Data of a *layout* twice as wide, in which those of *even* and of *odd* alternate."""
        raise NotImplementedError
