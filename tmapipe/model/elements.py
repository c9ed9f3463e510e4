"""Element by element: operations of fragments on the CPU model, accesses of slots by a warp, and reductions."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tmapipe.base import arithmetic
from tmapipe.base.arithmetic import DType, bf16, exp, folded, fp8_e4m3, fp8_e5m2, fp16, larger, log, smaller, total
from tmapipe.isa import ops
from tmapipe.isa.fragment import ClusterExchange, Fragment, Place, SlotRef, joined_places
from tmapipe.isa.fragments import Fragments
from tmapipe.model.memory import Memory, convert
from tmapipe.plan.model import WARP
from tmapipe.plan.thread_layout import AccumulatorLayout, ThreadLayout, VectorLayout

if TYPE_CHECKING:
    from tmapipe.model import MachineIsa


# ---- elements --------------------------------------------------------------------------------------------------------
#
# A fragment's data is the calling warp's part: an array with a number for each of its elements, or one number for
# each row or column of the tile, those of other warps too. Where there is no data, it is None.


KINDS = {"fp32": np.float32, "int32": np.int32, "bool": np.bool_}


@functools.lru_cache(maxsize=256)
def indices_of(layout: ThreadLayout, warp: int) -> tuple[np.ndarray, np.ndarray]:
    """The (rows, columns) of a warp's elements, in arrays of the shape of its part.

    Args:
        warp: Its index in the CTA.
    """
    if isinstance(layout, VectorLayout):
        slots, lanes, span = np.arange(layout.vectors)[:, None], np.arange(WARP), layout.sharing
        if layout.by_rows:
            row = (layout.warp(warp) * layout.row_slots + slots // layout.own) * layout.at_once + lanes // span
            vectors = (row * layout.row_vectors + slots % layout.own * span + lanes % span).ravel()
        else:
            vectors = (layout.warp(warp) * WARP + slots * span + lanes).ravel()
        rows, first = np.divmod(vectors, layout.row_vectors)
        columns = first[:, None] * layout.width + np.arange(layout.width)
        return np.broadcast_to(rows[:, None], columns.shape), columns
    assert isinstance(layout, AccumulatorLayout)
    strips = np.arange(layout.blocks) * layout.warpgroups + layout.group(warp)
    rows = (strips * 64)[:, None, None] + 16 * (warp % 4) + np.arange(16)[:, None]
    shape = (layout.blocks, 16, layout.columns)
    return np.broadcast_to(rows, shape), np.broadcast_to(np.arange(layout.columns), shape)


def apply(name: str, operands: list[Any]) -> Any:
    """The operation *name* on arrays and NumPy numbers."""
    with np.errstate(all="ignore"):  # infinities and NaN are values here, as on the GPU
        return FUNCTIONS[name](*operands)


def _rounded(values: Any, dtype: DType) -> Any:
    """fp32 *values* as they are once written in *dtype*."""
    return convert(values, dtype).astype(np.float32)


def _to_int32(x: Any) -> Any:
    """Rounded to nearest even; saturating; NaN is 0 (PTX ISA, cvt.rni.s32.f32)."""
    clipped = np.clip(np.nan_to_num(np.rint(np.asarray(x, np.float64)), nan=0.0), -(2.0**31), 2.0**31 - 1)
    return clipped.astype(np.int32)


_OF_NUMPY = ("where", "floor")
OF_ARITHMETIC = ("exp", "exp2", "log", "log2", "tanh", "erf", "sigmoid", "sqrt", "rsqrt")

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **arithmetic.OPERATORS,
    **{name: getattr(np, name) for name in _OF_NUMPY},
    **{name: getattr(arithmetic, name) for name in OF_ARITHMETIC},
    **{f"to_{kind.name}": functools.partial(_rounded, dtype=kind) for kind in (bf16, fp16, fp8_e4m3, fp8_e5m2)},
    "widen": np.asarray,
    "maximum": arithmetic.larger,
    "minimum": arithmetic.smaller,
    "to_int32": _to_int32,
    "from_bits": lambda x: np.asarray(x, np.int32).view(np.float32),
}


# ---- accesses --------------------------------------------------------------------------------------------------------

Cut = tuple[int, int, str]  # which part, of how many parts, and how the slot is cut into parts
WHOLE: Cut = 0, 1, "rows"


def of_data(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that computes with data: without, it is not called, and the result is None."""

    @functools.wraps(method)
    def computed(self: Any, *arguments: Any, **named: Any) -> Any:
        if self.memory is None:
            return None
        with np.errstate(all="ignore"):  # infinities and NaN are values here, as on the GPU
            return method(self, *arguments, **named)

    return computed


class SlotAccesses(Fragments):
    """What a warp reads from slots and writes to slots. `tmapipe.isa.fragments.Fragments` documents the methods."""

    isa: MachineIsa
    memory: Memory | None

    def _read(self, slot: SlotRef, cut: Cut = WHOLE, at: Any = None, proxy: str = "generic") -> Any:
        """The slot's elements at these positions, or in one of its parts. None without data."""
        self.isa.give(at)
        self.isa.emit(ops.SlotRead(self.isa.slot(slot.buffer, slot.stage), *cut, proxy))
        return self._answer()

    def _answer(self) -> Any:
        return None if self.memory is None else self.memory.results[self.isa.agent]

    def _write(self, slot: SlotRef, values: Any, cut: Cut, at: Any = None, proxy: str = "generic") -> None:
        self.isa.give((at, values))
        self.isa.emit(ops.SlotWrite(self.isa.slot(slot.buffer, slot.stage), *cut, proxy))

    def _fragment(self, slot: SlotRef, layout: ThreadLayout | None, along: str, data: Any) -> Fragment:
        kind = slot.buffer.dtype.kind
        return Fragment(self, layout, along, kind, None if data is None else data.astype(KINDS[kind]))

    # ---- slots ----------------------------------------------------------------------------------------------------

    def read(self, slot: SlotRef, layout: ThreadLayout, along: str = "tile") -> Fragment:
        if along != "tile":
            return self._fragment(slot, layout, along, self._read(slot))
        for cut in self._cuts(layout):
            data = self._read(slot, cut, self._positions(slot.buffer.tile[-1], layout))
        return self._fragment(slot, layout, along, data)

    def read_transposed(self, slot: SlotRef, layout: AccumulatorLayout) -> Fragment:
        at = self._positions(slot.buffer.tile[-1], layout, transposed=True)
        return self._fragment(slot, layout, "tile", self._read(slot, at=at))

    def read_peer(self, slot: SlotRef, cta: Any, layout: ThreadLayout, at: Place) -> Fragment:
        self.isa.give(self._part_of(slot, layout, at))
        self.isa.emit(ops.PeerRead(self.isa.slot(slot.buffer, slot.stage), 1 << cta))
        return self._fragment(slot, layout, "tile", self._answer())

    def read_part(self, slot: SlotRef, layout: ThreadLayout, at: Place, pitch: Any = None, each: int = 1) -> Fragment:
        places = self._part_of(slot, layout, at) if pitch is None else self._pitched(slot, layout, at[1], pitch, each)
        return self._fragment(slot, layout, "tile", self._read(slot, at=places))

    def _pitched(self, slot: SlotRef, layout: ThreadLayout, first: int, pitch: int, each: int) -> Any:
        """The positions of the warp's elements in a slot with one extent, as of `read_part`."""
        rows, columns = self._indices(layout)
        return self._inside(slot, first + rows // each * pitch + columns)

    def read_joined(self, slot: SlotRef, layout: ThreadLayout, at: tuple[int, int], gaps: Any) -> Fragment:
        places = self._inside(slot, joined_places(at, gaps, self._indices(layout)[1]))
        return self._fragment(slot, layout, "tile", self._read(slot, at=places))

    def read_rows_as_columns(self, slot: SlotRef, layout: ThreadLayout, starts: Any, pitch: int) -> Fragment:
        rows, columns = self._indices(layout)
        places = np.array(starts)[columns % len(starts)] + columns // len(starts) * pitch + rows
        return self._fragment(slot, layout, "tile", self._read(slot, at=places))

    def _part_of(self, slot: SlotRef, layout: ThreadLayout, at: tuple[int, int]) -> Any:
        """The positions of the warp's elements of the part of the slot that begins at *at*."""
        *rows, columns = slot.buffer.tile
        fits = 0 <= at[0] <= math.prod(rows) - layout.rows and 0 <= at[1] <= columns - layout.columns
        self.isa.inside(fits, slot.buffer, f"{layout.rows} x {layout.columns} elements from {tuple(at)} on")
        return self._positions(columns, layout, at)

    def _inside(self, slot: SlotRef, places: Any) -> Any:
        """These places in a slot, counted row by row."""
        places = places + 0  # a condition is 0 or 1, and no mask of NumPy's
        least, most = int(np.min(places)), int(np.max(places))
        fits = least >= 0 and most < math.prod(slot.buffer.tile)
        self.isa.inside(fits, slot.buffer, f"element {least}" if least == most else f"elements {least} to {most}")
        return places

    def read_line(self, slot: SlotRef, layout: ThreadLayout, along: str, at: Place, each: int = 1) -> Fragment:
        data, count = self._read(slot), layout.rows if along == "rows" else layout.columns
        width, (row, first) = slot.buffer.tile[-1], at
        places = first + np.arange(count) // each
        whole = first == (places[-1] + 1) % width == 0  # rows, one after another
        fits = row >= 0 and first >= 0 and (whole or places[-1] < width)
        self.isa.inside(fits, slot.buffer, f"{places[-1] - first + 1} elements from {(row, first)} on")
        places = self._inside(slot, row * width + places)
        return self._fragment(slot, layout, along, None if data is None else data.reshape(-1)[places])

    def read_number(self, slot: SlotRef, index: Any) -> Fragment:
        data = self._read(slot)
        if isinstance(index, Fragment):
            data = None if data is None else data.reshape(-1)[self._inside(slot, index.data)]
            return self._fragment(slot, index.layout, index.along, data)
        place = self._inside(slot, index)
        return self._fragment(slot, None, "one", None if data is None else data[place])

    def received(self, slot: SlotRef, layout: AccumulatorLayout, share: Any, shares: int) -> Fragment:
        data = self._read(slot, (share, shares, "shares"))
        return Fragment(self, layout, "tile", "fp32", None if data is None else data.reshape(1, 16, layout.columns))

    def write(self, slot: SlotRef, values: Fragment, at: tuple[int, int] | None = None) -> None:
        layout = values.layout
        assert layout is not None
        if values.along != "tile":
            return self._write_numbers(slot, values)
        cuts = self._cuts(layout)
        shares: Any = [(None, None)] * len(cuts)
        if self.memory is not None:
            places = self._positions(slot.buffer.tile[-1], layout, at or (0, 0))
            split = [np.split(each, len(cuts)) for each in np.broadcast_arrays(places, values.data)]
            shares = list(zip(*split, strict=True))
        for cut, (where, share) in zip(cuts, shares, strict=True):
            self._write(slot, share, cut if at is None else _of_block(cut, slot, layout, at), where)

    def _write_numbers(self, slot: SlotRef, values: Fragment) -> None:
        """One number a row or column, written by the first of the warps that have it."""
        layout, by_row = values.layout, values.along == "rows"
        assert layout is not None
        mine, sharing = layout.warp(self.isa.warp), layout.row_warps
        if mine % sharing if by_row else mine >= sharing:
            return
        at, numbers = self.places(values) or (None, None)
        part, parts = (mine // sharing, layout.warps // sharing) if by_row else (mine, sharing)
        self._write(slot, numbers, (part, parts, f"numbers of {values.along}"), at)

    # ---- positions ------------------------------------------------------------------------------------------------

    @of_data
    def places(self, values: Fragment) -> Any:
        """(where the warp's values are in the tile, counted row by row; these values)."""
        layout = values.layout
        assert layout is not None
        if values.along != "tile":
            at = self._own(layout, values.along)  # the same numbers, if other warps have them too
            return at, values.data[at]
        at = self._positions(layout.columns, layout)
        return at, np.broadcast_to(values.data, at.shape)

    @of_data
    def _positions(self, width: int, layout: ThreadLayout, first: Place = (0, 0), transposed: bool = False) -> Any:
        """Where the warp's elements are in a tile, counted row by row.

        Args:
            width: How many elements a row of the tile has.
            layout: The layout of the elements.
            first: The row and column at which the elements' part of the tile begins.
            transposed: Whether the elements are of the part's transpose.
        """
        rows, columns = self._indices(layout)
        if transposed:
            rows, columns = columns, rows
        return (rows + first[0]) * width + columns + first[1]

    def _indices(self, layout: ThreadLayout) -> tuple[np.ndarray, np.ndarray]:
        """The row and the column of each element that the warp has of a tile."""
        return indices_of(layout, self.isa.warp)

    def _own(self, layout: ThreadLayout, along: str) -> np.ndarray:
        """The rows or columns of a tile in which the warp has elements."""
        return np.unique(self._indices(layout)[0 if along == "rows" else 1])

    def _cuts(self, layout: ThreadLayout) -> list[Cut]:
        """The part of a slot that each of the warp's accesses reaches, and how the slot is cut into such parts."""
        if isinstance(layout, VectorLayout):
            cut = f"rows in vectors of {layout.width}" if layout.by_rows else f"vectors of {layout.width}"
            return [(layout.warp(self.isa.warp), layout.warps, cut)]
        assert isinstance(layout, AccumulatorLayout)
        group, strips = layout.group(self.isa.warp), layout.blocks * layout.warps
        blocks = range(layout.blocks)
        return [(4 * (i * layout.warpgroups + group) + self.isa.warp % 4, strips, "rows") for i in blocks]


def _of_block(cut: Cut, slot: SlotRef, layout: ThreadLayout, at: tuple[int, int]) -> Cut:
    """*cut*, of one of the blocks into which fragments of this layout divide the tile, as a cut of the whole tile."""
    part, parts, how = cut
    shape = layout.rows, layout.columns
    rows, across = (extent // size for extent, size in zip(slot.buffer.tile, shape, strict=True))
    block = at[0] // layout.rows * across + at[1] // layout.columns
    return block * parts + part, rows * across * parts, f"blocks of {layout.rows} x {layout.columns}, {how}"


# ---- raw names -------------------------------------------------------------------------------------------------------
#
# The check takes two calls of one raw function to distribute elements over lanes in the same way. It compares names.


def raw_name(function: Callable[..., None]) -> str:
    """A text that differs between raw functions: the function's name, its first line and the values of its closure."""
    function = inspect.unwrap(function)
    code, name = getattr(function, "__code__", None), getattr(function, "__name__", type(function).__name__)
    if code is None:
        return name
    cells = zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=True)
    enclosed = [f"{name}={_enclosed(cell.cell_contents)}" for name, cell in cells]
    enclosed += map(_enclosed, (getattr(function, "__defaults__", None) or ()))
    return f"{name} (line {code.co_firstlineno}{', '.join(['', *enclosed])})"


def _enclosed(value: Any) -> str:
    """A text that tells enclosed values of a function apart. Objects of one class are not told apart."""
    if isinstance(value, (int, float, str, bytes, type(None))):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_enclosed, value))})"
    return raw_name(value) if inspect.isfunction(value) else type(value).__name__


# ---- scans -----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def in_order(layout: ThreadLayout, warp: int, run: int) -> np.ndarray:
    """The warp's elements in the order of rows, *run* side by side at a time, as indices [runs, *run*]."""
    rows, columns = (each.ravel() for each in indices_of(layout, warp))
    return np.lexsort((columns, rows)).reshape(-1, run)


class Scans(SlotAccesses):
    """Running sums along rows, and neighbours in pairs. `tmapipe.isa.fragments` documents the methods. Sums are in float64 and
    rounded once, since a running sum in NumPy has the same order on every machine."""

    @of_data
    def scan_in_warp(self, layout: ThreadLayout, kind: str, data: Any) -> Any:
        run = layout.columns if layout.row_warps == 1 else layout.width * layout.row_lanes
        order, wide = in_order(layout, self.isa.warp, run), np.float64
        scanned = np.empty(data.size, data.dtype)
        sums = data.reshape(-1)[order].astype(np.int64 if kind == "int32" else wide).cumsum(1)
        scanned[order] = sums.astype(data.dtype)
        return scanned.reshape(data.shape)

    @of_data
    def chunk_totals(self, layout: ThreadLayout, data: Any) -> Any:
        last = in_order(layout, self.isa.warp, layout.width * layout.row_lanes)[:, -1]
        totals = np.zeros((layout.rows, layout.chunks), data.dtype)
        rows, columns = (each.ravel()[last] for each in self._indices(layout))
        totals[rows, self._chunk(layout, columns)] = data.reshape(-1)[last]
        return totals

    @of_data
    def chunks_read(self, layout: ThreadLayout, at: np.ndarray, partials: Any) -> Any:
        """The result of `read_partials` with *op* "before", for rows *at*."""
        mine = layout.warp(self.isa.warp)
        sharing = layout.sharing_warps(mine, "rows")
        parts = partials[sharing][:, : len(at) * layout.chunks].reshape(len(sharing), len(at), layout.chunks)
        before = _exclusive(np.moveaxis(parts, 0, -1).reshape(len(at), -1))
        whole = np.full((layout.rows, layout.chunks), np.nan, np.float32)
        whole[at] = before[:, sharing.index(mine) :: len(sharing)]
        return whole

    @of_data
    def add_chunks(self, layout: ThreadLayout, data: Any, before: Any) -> Any:
        rows, columns = self._indices(layout)
        return data + before[rows, self._chunk(layout, columns)]

    def _chunk(self, layout: ThreadLayout, columns: Any) -> Any:
        return columns // (layout.width * layout.row_lanes * layout.row_warps)

    @of_data
    def swapped_pairs(self, layout: ThreadLayout, along: str, data: Any) -> Any:
        if along == "columns":
            return data[np.arange(layout.columns) ^ 1]
        pairs = in_order(layout, self.isa.warp, 2)
        whole = np.broadcast_to(data, self._indices(layout)[0].shape)
        swapped = np.empty(whole.size, whole.dtype)
        swapped[pairs] = whole.reshape(-1)[pairs[:, ::-1]]
        return swapped.reshape(whole.shape)

    @of_data
    def picked_of_pairs(self, layout: VectorLayout, along: str, data: Any, which: int) -> Any:
        whole = data if along == "columns" else np.broadcast_to(data, self._indices(layout)[0].shape)
        return whole[..., which::2].copy()

    @of_data
    def joined_pairs(self, layout: VectorLayout, along: str, even: Any, odd: Any) -> Any:
        shape = (layout.columns,) if along == "columns" else self._indices(layout)[0].shape
        pairs = np.stack([np.broadcast_to(each, shape) for each in (even, odd)], axis=-1)
        return pairs.reshape(*shape[:-1], -1)


def _exclusive(data: np.ndarray) -> np.ndarray:
    """The sum of all earlier elements along the last axis, for each element."""
    wide = data.astype(np.int64 if data.dtype.kind == "i" else np.float64)
    before = np.zeros_like(wide)
    before[:, 1:] = wide[:, :-1].cumsum(1)
    return before.astype(data.dtype)


# ---- reductions ------------------------------------------------------------------------------------------------------
#
# Reductions over rows and columns in the machine, within a warp, over warps and over CTAs of a cluster.


#: Stands for the numbers of rows and columns that a warp does not have.
NOTHING = {"fp32": np.nan, "int32": 0}


def _logsumexp(data: np.ndarray) -> Any:
    most = folded(larger, data)
    most = np.where(np.isfinite(most), most, 0)
    return most + log(total(exp(data - most[..., None])))


#: Along the last axis.
REDUCTIONS: dict[str, Callable[[np.ndarray], Any]] = {
    "sum": total,
    "maximum": functools.partial(folded, larger),
    "minimum": functools.partial(folded, smaller),
    "logsumexp": _logsumexp,
}


@functools.lru_cache(maxsize=256)
def lines_of(layout: ThreadLayout, warp: int, along: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The rows (or columns) of a warp's elements, grouped by how many elements of a row the warp has.

    Returns:
        For each group: the rows, and where the elements of each row stand among the warp's elements, [rows, elements].
    """
    at = indices_of(layout, warp)[0 if along == "rows" else 1].ravel()
    lines, counts = np.unique(at, return_counts=True)
    of_line = np.split(np.argsort(at, kind="stable"), counts.cumsum()[:-1])
    return [
        (lines[counts == count], np.stack([of_line[i] for i in np.flatnonzero(counts == count)]))
        for count in np.unique(counts)
    ]


class Reductions(Scans):
    """Methods as documented in `tmapipe.isa.fragments.Fragments`."""

    @of_data
    def reduce_in_warp(self, layout: ThreadLayout, op: str, kind: str, along: str, data: Any) -> Any:
        partial: Any = np.full(getattr(layout, along), NOTHING[kind], KINDS[kind])
        for lines, places in lines_of(layout, self.isa.warp, along):
            partial[lines] = REDUCTIONS[op](data.reshape(-1)[places])
        return partial

    @of_data
    def sum_parts(self, layout: ThreadLayout, data: Any) -> Any:
        rows, columns = self._indices(layout)
        lanes = columns // layout.width % layout.row_lanes
        parts = np.full((layout.rows, layout.row_lanes), NOTHING["fp32"], np.float32)
        parts[np.unique(rows)] = 0
        np.add.at(parts, (rows, lanes), data)
        return parts

    @of_data
    def join_parts(self, layout: ThreadLayout, data: Any) -> Any:
        return total(data)

    def write_partial(self, layout: ThreadLayout, along: str, data: Any, slot: SlotRef) -> None:
        warps, columns = slot.buffer.tile
        partial = None
        if self.memory is not None:
            at, places = self._shared(layout, along)
            partial = np.zeros((1, columns), np.float32)
            for nth, each in enumerate(data):
                if each.ndim == 1:
                    partial[0, nth * len(places) + places] = each[at]
                else:  # chunks of rows
                    partial[0, : each[at].size] = each[at].ravel()
        self._write(slot, partial, (layout.warp(self.isa.warp), warps, "rows"))

    def send_partial(self, layout: ThreadLayout, data: Any, slot: SlotRef, exchange: ClusterExchange) -> None:
        isa, (rows, width) = self.isa, slot.buffer.tile
        words: Any = ()
        if self.memory is not None:
            at, _ = self._shared(layout, "rows")
            words = tuple(np.concatenate([each[at] for each in data]).astype(np.float32).view(np.uint32).tolist())
        mine = int(exchange.rank) * (rows // exchange.peers) + layout.warp(isa.warp)
        place = isa.slot(slot.buffer, slot.stage), isa.bar(exchange.full, slot.stage)
        isa.emit(ops.StAsync(*place, 4 * width, exchange.mask, words, mine, rows))

    def read_partials(
        self, layout: ThreadLayout, op: str, along: str, slot: SlotRef, peers: int = 1, nth: int = 0
    ) -> Any:
        return self._combined(layout, op, along, self._read(slot), peers, nth)

    @of_data
    def _combined(self, layout: ThreadLayout, op: str, along: str, partials: Any, peers: int, nth: int) -> Any:
        at, places = self._shared(layout, along)
        places = places + nth * len(places)
        if op == "before":
            return self.chunks_read(layout, at, partials)
        each, sharing = len(partials) // peers, layout.sharing_warps(layout.warp(self.isa.warp), along)
        mine = [each * i + warp for i in range(peers) for warp in sharing]
        whole = np.full(getattr(layout, along), np.nan, np.float32)
        whole[at] = REDUCTIONS[op](partials[mine][:, places].astype(np.float32).T)
        return whole

    def _shared(self, layout: ThreadLayout, along: str) -> tuple[np.ndarray, np.ndarray]:
        """The rows or columns that the warp has, and where it leaves their numbers."""
        at = self._own(layout, along)
        return at, np.arange(len(at)) if along == "rows" else at
