"""Fragments across warps: numbers exchanged through shared memory, and running sums along rows; and raw functions."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from tmapipe.errors import InputError, PipelineError, ScopeError
from tmapipe.isa.fragment import Carried, Fragment, SlotRef, Value
from tmapipe.plan.model import RoleWarps
from tmapipe.plan.rings import Barrier, Buffer, NamedBarrier
from tmapipe.plan.thread_layout import WIDTHS, VectorLayout

if TYPE_CHECKING:
    from tmapipe.isa.ops import Isa
    from tmapipe.plan.thread_layout import ThreadLayout


# ---- exchange --------------------------------------------------------------------------------------------------------
#
# Numbers that the warps of a role exchange through shared memory, for reductions over several warps, or several CTAs.


class WarpExchange(Carried):
    """One role's `ReductionScratch`. Which of its two copies comes next is kept in a register.

    A warp writes a copy again only after the barrier of the reduction between, which all warps reach after they have read it.
    So one barrier for each reduction is enough.

    buffer: (warps, width) fp32, two slots. barrier: for all threads of the role.
    """

    peers = 1  # CTAs whose warps take part

    def __init__(self, isa: Isa, buffer: Buffer, barrier: NamedBarrier):
        self.isa, self.buffer, self.barrier = isa, buffer, barrier
        self.next = isa.cells(0)

    @property
    def width(self) -> int:
        """How many numbers of a warp fit."""
        return self.buffer.tile[1]

    def take(self) -> SlotRef:
        """The copy to be used now."""
        copy: Any = self.next[0]
        self.next[0] = copy ^ 1
        return SlotRef(self.buffer, copy)

    def sync(self) -> None:
        """Waits for all warps of the role."""
        self.isa.named_barrier_sync(self.barrier)

    def read(self) -> None:
        """Called when the warp has read the copy."""


class ClusterExchange(WarpExchange):
    """The same among CTAs of a cluster: each warp sends its numbers to all of them by st.async, and waits until those of all
    warps have come. The parity of the mbarriers is kept in a register too.

    A warp sends its numbers of the next reduction only after it has read these, and a copy is written again only after the
    reduction in between, which waits for that of all warps.

    buffer: (CTAs * warps, width) fp32, two slots. full: completes when all numbers of a copy have come, of which each warp
    arms its part. mask: of the CTAs; rank: the own one's index among them; peers: how many there are.
    """

    def __init__(self, isa: Isa, buffer: Buffer, full: Barrier, mask: Value, rank: Value, peers: int):
        self.isa, self.buffer, self.full, self.mask, self.rank, self.peers = isa, buffer, full, mask, rank, peers
        self.next = isa.cells(0, 0, 0)  # the copy, its parity; those in use

    def take(self) -> SlotRef:
        copy, parity = self.next[0], self.next[1]
        self.next[2] = copy | parity << 1
        self.next[1] = parity ^ copy
        self.next[0] = copy ^ 1
        self.isa.mbarrier_arrive_expect_tx(self.full, copy, self.buffer.slot_bytes // self.full.count)
        return SlotRef(self.buffer, copy)

    def sync(self) -> None:
        """Waits for the numbers of all warps of all CTAs."""
        self.isa.mbarrier_wait(self.full, self.next[2] & 1, self.next[2] >> 1)

    def read(self) -> None:
        self.isa.fence_proxy_async()
        self.isa.warp_sync()


# ---- scans -----------------------------------------------------------------------------------------------------------
#
# Running sums along rows, and neighbours in pairs: what one warp does with the order of a row's elements.


class Scans(Carried):
    """Methods of `tmapipe.isa.fragments.Fragments`.

    A row lies in *chunks*, one after another: of each, every warp that shares the row has a piece, and every lane a vector.
    """

    exchanges: dict[int, WarpExchange]

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
            return Fragment(self, layout, "tile", kind, data)  # type: ignore[arg-type]
        totals = self.chunk_totals(layout, data)
        if several:
            exchange = self.exchange_for(layout, kind, "rows", layout.row_slots * layout.chunks)
            slot = exchange.take()
            self.write_partial(layout, "rows", totals, slot)
            exchange.sync()
            before = self.read_partials(layout, "before", "rows", slot)
            exchange.read()
        else:
            before = self.chunks_before(layout, totals)
        return Fragment(self, layout, "tile", kind, self.add_chunks(layout, data, before))  # type: ignore[arg-type]

    def swap_pairs(self, values: Fragment) -> Fragment:
        """Columns 2 i and 2 i + 1 of a tile, or of one number a column, swapped: a thread has both."""
        layout = values.layout
        if layout is None or values.along not in ("tile", "columns"):
            raise ScopeError(f"neighbours of {values!r} swapped. They are of a whole tile, or of one number a column.")
        if layout.width % 2:
            rule = "has its columns one by one in threads, where neighbours are in different ones"
            raise InputError("swap_pairs of a tile", (layout.rows, layout.columns), rule, "use fewer warps")
        data = self.swapped_pairs(layout, values.along, values.data)
        return Fragment(self, layout, values.along, values.kind, data)  # type: ignore[arg-type]

    def split_pairs(self, values: Fragment) -> tuple[Fragment, Fragment]:
        """Columns 2 i, and columns 2 i + 1, of a tile or of one number a column: a thread has both."""
        layout = values.layout
        if layout is None or values.along not in ("tile", "columns"):
            raise ScopeError(f"the pairs of {values!r}. They are of a whole tile, or of one number a column.")
        if not isinstance(layout, VectorLayout) or layout.width % 2:
            rule = "has two or more columns side by side in a thread, as a tile read from a slot"
            raise InputError("split_pairs of a tile", (layout.rows, layout.columns), rule, "use fewer warps")
        half = attrs.evolve(layout, tile=(*layout.tile[:-1], layout.columns // 2), width=layout.width // 2)
        found = [self.picked_of_pairs(layout, values.along, values.data, i) for i in (0, 1)]
        even, odd = (Fragment(self, half, values.along, values.kind, data) for data in found)  # type: ignore[arg-type]
        return even, odd

    def join_pairs(self, even: Fragment, odd: Fragment) -> Fragment:
        """What `split_pairs` gave two fragments of, or functions of them, as columns 2 i and 2 i + 1 of one tile."""
        layout, (along, kind, (first, second)) = even.layout, self.alike("join_pairs", even, odd)
        if not isinstance(layout, VectorLayout) or 2 * layout.width > max(WIDTHS):
            rule = f"has at most {max(WIDTHS) // 2} columns side by side in a thread, as of split_pairs"
            raise InputError("join_pairs of tiles", repr(even), rule, "read it with width=4")
        whole = attrs.evolve(layout, tile=(*layout.tile[:-1], layout.columns * 2), width=layout.width * 2)
        data = self.joined_pairs(layout, along, first, second)
        return Fragment(self, whole, along, kind, data)  # type: ignore[arg-type]

    def alike(self, name: str, one: Fragment, other: Fragment) -> tuple[str, str, list[Any]]:
        """Along what, of which kind, and the data of two fragments that are distributed alike, or are made so."""
        layout = one.layout
        if layout is None or other.layout != layout or {one.along, other.along} - {"tile", "rows", "columns"}:
            raise ScopeError(f"{name} of {one!r} and {other!r}. They are distributed alike, such as by split_pairs.")
        along = one.along if one.along == other.along == "columns" else "tile"
        kind = one.kind if one.kind == other.kind else "fp32"
        data = [
            self.expand(layout, each.along, self.convert(each.data, each.kind, kind), along) for each in (one, other)
        ]
        return along, kind, data

    def whole_tile(self, what: str, values: Fragment) -> Fragment:
        """*values* of a whole tile in fp32 or int32."""
        layout = values.layout
        if layout is None or values.along == "parts":
            raise ScopeError(f"{what} of {values!r}. They are of a whole tile, such as acc.values().")
        layout.check_rows()
        kind = "int32" if values.kind == "bool" else values.kind
        data = self.expand(layout, values.along, self.convert(values.data, values.kind, kind), "tile")
        return Fragment(self, layout, "tile", kind, data)  # type: ignore[arg-type]

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

    if TYPE_CHECKING:  # of `Fragments`

        def expand(self, layout: Any, along: str, data: Any, to: str) -> Any: ...
        def convert(self, data: Any, kind: str, to: str) -> Any: ...
        def exchange_for(self, layout: Any, kind: str, along: str, width: int = 0) -> WarpExchange: ...
        def write_partial(self, layout: Any, along: str, data: Any, slot: SlotRef) -> None: ...
        def read_partials(self, layout: Any, op: str, along: str, slot: SlotRef, peers: int = 1) -> Any: ...


# ---- raw -------------------------------------------------------------------------------------------------------------
#
# Calls of raw functions by the backends: what they are told of their role, and the lines of their errors.


class RawRole:
    """What a raw function is told of its role, if it has a parameter ``role``.

    name: of the role; warp: the calling one, counted from 0 in its team; warps: of the team.
    """

    def __init__(self, isa: Isa, role: RoleWarps):
        self.isa, self.name, self.warps = isa, role.name, role.team_warps
        self.warp: Any = (isa.warp - role.first_warp) % role.team_warps

    def extent(self, dim: str) -> Any:
        """Elements along a dimension of the tensors, by its name; a Python number if it is fixed."""
        for part in self.isa.plan.transfers:
            if dim in part.dims:
                return self.isa.extent(part.argument, part.dims.index(dim))
        known = ", ".join(dict.fromkeys(d for part in self.isa.plan.transfers for d in part.dims))
        raise InputError("role.extent", dim, f"names a dimension of a tensor ({known})", "name one of them")


def call_raw(function: Callable[..., None], tensors: list[Any], isa: Isa, role: RoleWarps) -> None:
    """Calls *function* with its tensors, and with its role if it takes that. Raises `ScopeError` for an error of it, with the
    line."""
    try:
        told = {"role": RawRole(isa, role)} if "role" in inspect.signature(function).parameters else {}
        function(*tensors, **told)
    except PipelineError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        code = getattr(inspect.unwrap(function), "__code__", None)
        inside = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
        where = f"{inside[-1].filename}:{inside[-1].lineno}: " if inside else ""
        name = getattr(function, "__name__", type(function).__name__)
        raise ScopeError(f"{where}{name}() of k.raw raised {type(error).__name__}: {error}") from error
