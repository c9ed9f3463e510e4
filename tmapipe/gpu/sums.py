"""Where a thread's numbers of a fragment are, reductions over rows and columns, running sums along rows."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from tmapipe.base.arithmetic import DType
from tmapipe.gpu import control, cute_type
from tmapipe.gpu.control import FUNCTIONS, KINDS, LOG2_E, choose, emit_ptx, widened
from tmapipe.gpu.rows import vector_at, vectors_of_part
from tmapipe.isa.fragment import NEUTRAL, Fragment, SlotRef
from tmapipe.isa.fragments import Fragments
from tmapipe.plan.model import WARP
from tmapipe.plan.thread_layout import AccumulatorLayout, ThreadLayout, VectorLayout

if TYPE_CHECKING:
    from tmapipe.gpu.fragments import GpuWarp


# ---- runs ------------------------------------------------------------------------------------------------------------
#
# A thread's numbers of a fragment: where in the tile they are, and runs of them that lie side by side in a slot.


class Runs(Fragments):
    """What the backend's other classes of fragments build on."""

    def __init__(self, isa: GpuWarp):
        self.isa, self.exchanges = isa, {}

    def place(self, layout: ThreadLayout, along: str, i: int) -> tuple[Any, Any]:
        """The row and column of value *i* of a fragment; of one number a row or column, row 0 and its place among these."""
        if along != "tile":
            return 0, self.row(layout, i) if along == "rows" else self.column(layout, i)
        if isinstance(layout, VectorLayout) and not layout.even:  # each of a thread's vectors lies in other columns
            vector, j = divmod(i, layout.width)
            vector = self._thread(layout) + vector * layout.threads
            return vector // layout.row_vectors, vector % layout.row_vectors * layout.width + j
        return self.row(layout, layout.row_slot(i)), self.column(layout, layout.column_slot(i))

    def row(self, layout: ThreadLayout, slot: int) -> Any:
        """The row of a row slot."""
        if layout.rows == 1:
            return 0
        if isinstance(layout, VectorLayout) and layout.by_rows:
            first = (layout.warp(self.isa.warp) * layout.row_slots + slot) * layout.at_once
            return first if layout.at_once == 1 else first + self.isa.lane // layout.sharing
        if isinstance(layout, VectorLayout):
            thread, further, row = self._thread(layout), slot * layout.own * layout.threads, layout.row_vectors
            return thread // row + further // row if layout.even else (thread + further) // row
        assert isinstance(layout, AccumulatorLayout)
        block, warp = slot // 2 * layout.warpgroups + layout.group(self.isa.warp), self.isa.warp % 4
        return block * 64 + warp * 16 + self.isa.lane // 4 + 8 * (slot % 2)

    def column(self, layout: ThreadLayout, slot: int) -> Any:
        """The column of a column slot."""
        if isinstance(layout, VectorLayout):
            i, j = divmod(slot, layout.width)
            if layout.by_rows:
                lane = self.isa.lane if layout.at_once == 1 else self.isa.lane % layout.sharing
                return (lane + i * layout.sharing) * layout.width + j
            vector = self._thread(layout) + i * layout.threads
            return (vector if layout.rows == 1 else vector % layout.row_vectors) * layout.width + j
        eight, i = divmod(slot, 2)
        return 8 * eight + self.isa.lane % 4 * 2 + i

    def _thread(self, layout: VectorLayout) -> Any:
        """The calling thread in its team."""
        own = self.isa.thread - WARP * layout.first_warp
        return own if layout.teams == 1 else own % layout.threads

    def runs(
        self, layout: ThreadLayout, width: int, along: str = "tile", at: tuple[Any, Any] | None = None
    ) -> Iterator[tuple[int, Any, Any]]:
        """The first number of each run of *width* of a thread's, and its row and column, in a tile where it begins at *at*."""
        for i in range(0, layout.slots(along), width):
            row, column = self.place(layout, along, i)
            yield (i, row, column) if at is None else (i, row + at[0], column + at[1])

    def vectors(
        self, slot: SlotRef, layout: ThreadLayout, along: str, at: tuple[Any, Any] | None = None
    ) -> list[tuple[Any, int]]:
        """The calling thread's runs of a slot, or of what begins at *at* in it, each with its number of elements."""
        inside = self.isa.buffers[slot.buffer.name][(*(None,) * len(slot.buffer.tile), slot.stage)]
        width = width_of(layout, along)
        swizzled = along == "tile" and slot.buffer.swizzle and len(slot.buffer.tile) == 2
        if swizzled and isinstance(layout, VectorLayout) and layout.even and at and isinstance(at[0], int):
            first = [self.row(layout, 0)] + [self.column(layout, i) for i in range(layout.column_slots)]
            start = self.isa.slot_address(slot.buffer, slot.stage)
            return [(vector, width) for vector in vectors_of_part(slot.buffer, start, layout, first, at)]
        runs = self.runs(layout, width, along, at)
        return [(vector_at(inside, slot.buffer, row, column, width), width) for _, row, column in runs]

    def flat(self, slot: SlotRef) -> Any:
        """The elements of a slot without a swizzle, row by row."""
        tile = slot.buffer.tile
        inside = self.isa.buffers[slot.buffer.name][(*(None,) * len(tile), slot.stage)]
        return cute.make_tensor(inside.iterator, cute.make_layout(math.prod(tile)))

    def read_line(
        self, slot: SlotRef, layout: ThreadLayout, along: str, at: tuple[Any, Any], each: int = 1
    ) -> Fragment:
        kind, tile, (row, first) = slot.buffer.dtype.kind, slot.buffer.tile, at
        by_column, flat = along == "columns", self.flat(slot)
        room = each == len(tile) == 1 and layout.columns + 16 <= tile[0]
        if by_column and room and slot.buffer.dtype.bytes == 2 and layout.width == 8 and not isinstance(first, int):
            return Fragment(self, layout, along, kind, self._shifted(slot, layout, first))
        place, width = (self.column, layout.width) if by_column else (self.row, 1)
        whole = each == 1 and isinstance(first, int) and first % width == tile[-1] % width == 0
        # numbers of a thread, side by side, that are one
        alike = 1 if width % each and each % width else min(each, width)
        data: list[Any] = []
        for i in range(0, layout.slots(along), width if whole else alike):
            begin = row * tile[-1] + first + place(layout, i) // each
            if not whole:
                data += [KINDS[kind](flat[begin])] * alike
                continue
            data += loaded(flat, slot.buffer.dtype, width, begin // width)
        return Fragment(self, layout, along, kind, data)

    def _shifted(self, slot: SlotRef, layout: ThreadLayout, first: Any) -> list[Any]:
        """Numbers of 16 bits that begin at any element: of each 8, the 16 that they are among are read as two vectors, where
        reading one by one has bank conflicts, and shifted by whole words and then by half a one."""
        inside, kind = self.isa.buffers[slot.buffer.name][(None, slot.stage)], slot.buffer.dtype.kind
        dtype = cute_type(slot.buffer.dtype)
        before, words = Int32(first) >> 3, (Int32(first) & 7) >> 1
        data: list[Any] = []
        for i in range(0, layout.column_slots, 8):
            some = cute.make_rmem_tensor((16,), dtype)
            for half in range(2):
                place = self.column(layout, i) // 8 + before + half
                cute.autovec_copy(cute.local_tile(inside, (8,), (place,)), cute.local_tile(some, (8,), (half,)))
            pairs = cute.recast_tensor(some, Int32)
            read = [pairs[j] for j in range(8)]
            for by in (2, 1):
                moved = Boolean((words & by) != 0)
                read = [choose(moved, read[min(j + by, 7)], read[j]) for j in range(8)]
            odd = Boolean((Int32(first) & 1) != 0)
            made = cute.make_rmem_tensor((4,), Int32)
            for j in range(4):
                low = cutlass.Uint32(read[j]) >> 16
                made[j] = choose(odd, Int32(low) | (read[j + 1] << 16), read[j])
            data += widened(cute.recast_tensor(made, dtype), kind)
        return data

    def read_rows_as_columns(
        self, slot: SlotRef, layout: VectorLayout, starts: tuple[int, ...], pitch: int
    ) -> Fragment:
        kind, flat = slot.buffer.dtype.kind, self.flat(slot)
        first: list[Any] = []  # of each column slot
        for i in range(layout.column_slots):
            column, place = self.column(layout, i), Int32(starts[0])
            for j, start in enumerate(starts[1:], 1):
                place = choose(column % len(starts) == j, Int32(start), place)
            first.append(place + column // len(starts) * pitch)
        at = [first[layout.column_slot(i)] + self.row(layout, layout.row_slot(i)) for i in range(layout.values)]
        return Fragment(self, layout, "tile", kind, [KINDS[kind](flat[place]) for place in at])

    def first_to_have(self, layout: ThreadLayout, along: str) -> Any:
        """Whether the calling lane is the first of the lanes that have the same rows or columns."""
        lane, warp = self.isa.lane, layout.warp(self.isa.warp)
        if along == "rows":
            first = lane % layout.row_lanes == 0
            return first if layout.row_warps == 1 else Boolean(first) & Boolean(warp % layout.row_warps == 0)
        first = lane < layout.row_lanes
        return Boolean(first) & Boolean(warp < layout.row_warps)

    def vector(self, values: Fragment, shape: Any) -> Any:
        """A fragment's numbers as a vector of CuTe DSL, which converts several at a time."""
        kind = KINDS[values.kind]
        data = values.data * cute.size(shape) if values.along == "one" else values.data
        whole = cute.make_rmem_tensor(shape, kind)
        for i, value in enumerate(data):
            whole[i] = value
        return whole.load()

    def converted(self, values: Fragment, first: int, width: int, dtype: Any) -> Any:
        """A run of a fragment's numbers, in registers, in a type of CuTe DSL."""
        data = values.data[first : first + width]
        if len(data) != width:
            raise AssertionError(
                f"a thread has {len(values.data)} numbers, where {first} to {first + width - 1} are used"
            )
        run = Fragment(self, values.layout, "tile", values.kind, data)
        made = cute.make_rmem_tensor((width,), dtype)
        made.store(self.vector(run, (width,)).to(dtype))
        return made


def loaded(elements: Any, dtype: DType, width: int, place: Any) -> list[Any]:
    """Vector *place* of *width* elements of those that lie side by side, read at once."""
    values = cute.make_rmem_tensor((width,), cute_type(dtype))
    cute.autovec_copy(cute.coalesce(cute.local_tile(elements, (width,), (place,))), values)
    return widened(values, dtype.kind)


def width_of(layout: ThreadLayout, along: str) -> int:
    """How many numbers of a thread lie side by side."""
    return 1 if along == "rows" else layout.width


# ---- scans -----------------------------------------------------------------------------------------------------------
#
# Running sums along rows, and neighbours in pairs, by CuTe DSL: as documented in `tmapipe.isa.fragments`.


class Scans(Runs):
    """Of a thread's numbers, those of each row slot and chunk lie side by side in the tile."""

    def scan_in_warp(self, layout: ThreadLayout, kind: str, data: Any) -> Any:
        running, lanes, whole = list(data), layout.row_lanes, layout.row_warps == 1
        carry: Any = None
        for n, places in enumerate(_runs_of(layout)):
            sums = [data[places[0]]]
            for i in places[1:]:
                sums.append(sums[-1] + data[i])
            if n % layout.chunks == 0 or not whole:
                carry = KINDS[kind](0)
            upto = _upto(sums[-1], lanes)
            before = carry if lanes == 1 else _joined(upto, 1, lanes, carry)
            for i, value in zip(places, sums, strict=True):
                running[i] = before + value
            if whole and (n + 1) % layout.chunks:
                carry = carry + (upto if lanes == 1 else cute.arch.shuffle_sync(upto, self.isa.lane | (lanes - 1)))
        return running

    def chunk_totals(self, layout: ThreadLayout, data: Any) -> Any:
        last = self.isa.lane | (layout.row_lanes - 1)
        return [cute.arch.shuffle_sync(data[places[-1]], last) for places in _runs_of(layout)]

    def add_chunks(self, layout: ThreadLayout, data: Any, before: Any) -> Any:
        sums = list(data)
        for places, number in zip(_runs_of(layout), before, strict=True):
            for i in places:
                sums[i] = number + data[i]
        return sums

    def chunks_read(self, layout: ThreadLayout, slot: SlotRef) -> list[Any]:
        """For each row and chunk, the sum of what warps have left of those before it, in the order of the row: lane i reads
        the i-th, and lanes are summed up."""
        isa, warps = self.isa, layout.row_warps
        source, mine = isa.buffers[slot.buffer.name], layout.warp(isa.warp)
        first, own = mine // warps * warps, mine % warps
        together = WARP // warps  # chunks that lanes have at once
        sums: list[Any] = []
        for row in range(layout.row_slots):
            carry = KINDS["fp32"](0)
            for chunk in range(0, layout.chunks, together):
                entries = min(together, layout.chunks - chunk) * warps
                inside = isa.lane < entries
                entry = cutlass.select_(inside, isa.lane, 0)
                place = row * layout.chunks + chunk + entry // warps
                value = source[(first + entry % warps, place, slot.stage)]
                upto = _upto(choose(inside, value, KINDS["fp32"](0)), WARP)
                before = _joined(upto, 1, WARP, carry)
                sums += [cute.arch.shuffle_sync(before, own + i) for i in range(0, entries, warps)]
                carry = carry + cute.arch.shuffle_sync(upto, WARP - 1)
        return sums

    def swapped_pairs(self, layout: ThreadLayout, along: str, data: Any) -> Any:
        return [data[i ^ 1] for i in range(len(data))]

    def picked_of_pairs(self, layout: VectorLayout, along: str, data: Any, which: int) -> Any:
        return [data[i] for i in range(which, len(data), 2)]

    def joined_pairs(self, layout: VectorLayout, along: str, even: Any, odd: Any) -> Any:
        return [(even, odd)[i % 2][i // 2] for i in range(2 * len(even))]


def _joined(value: Any, distance: int, lanes: int, other: Any) -> Any:
    """*other*, plus the *value* of the lane so far before, if that is one of the *lanes* of this lane's group. A predicate of
    the shuffle says so, where a lane would compare its number."""
    add = "add.s32" if isinstance(value, Int32) else "add.f32"
    text = f"{{ .reg .pred some; .reg .b32 far; shfl.sync.up.b32 far|some, $1, {distance}, {WARP - lanes << 8}, -1; "
    text += f"mov.b32 $0, $2; @some {add} $0, $2, far; }}"
    words = [Int32(llvm.bitcast(T.i32(), type(value)(each).ir_value())) for each in (value, other)]
    (made,) = emit_ptx(text, "rr", *words, words=1, ordered=False)
    return type(value)(llvm.bitcast(type(value).mlir_type, made.ir_value()))


def _upto(value: Any, lanes: int) -> Any:
    """The sum of the values of a lane and of the lanes before it, within groups of so many lanes."""
    for step in range(lanes.bit_length() - 1):
        value = _joined(value, 1 << step, lanes, value)
    return value


def _runs_of(layout: ThreadLayout) -> list[list[int]]:
    """A thread's values by row slot and chunk, in the order of columns."""
    runs: dict[tuple[int, int], list[int]] = {}
    for i in sorted(range(layout.values), key=layout.column_slot):
        runs.setdefault((layout.row_slot(i), layout.column_slot(i) // layout.width), []).append(i)
    return [runs[key] for key in sorted(runs)]


# ---- sums ------------------------------------------------------------------------------------------------------------
#
# Reductions over rows and columns: sums of pieces of accumulators for epilogues, and those of whole tiles; over CTAs.


# Lane i holds columns 2 (i % 4) + {0, 1} of each 8, of the rows i / 4 and i / 4 + 8 of the warp's 16. Value
# i + 2 half + 4 eight of its fragment is column i of these two, in row half, of the 8 columns from 8 eight on.

QUAD = (1, 2)  # distances of lanes that share rows
FEW, MODERATE = 16, 2.0**126  # values of a thread that logsumexp takes at a time; what its base is less than
COLUMN = (4, 8, 16)  # distances of lanes that share columns


class Spread(list[Any]):
    """A thread's sums of the rows that four lanes share: lane i has one number, that of its row slot i % 2."""


class Sums(Scans):
    """Reductions, as documented in `tmapipe.isa.fragments`."""

    def row_sums(self, values: Fragment, columns: int, first: int, inside: Any, before: Any, whole: Any = None) -> Any:
        def added(data: list[Any]) -> list[Any]:
            sums = [None] * 4 if before is None else list(before)  # four chains, since a sum takes four clocks
            for eight, i in itertools.product(range(first // 8, columns // 8), range(4)):
                value = data[i + 4 * eight]
                sums[i] = value if sums[i] is None else control.exact_sum(sums[i], value)
            return sums

        numbers = [Float32(value) for value in values.data]
        if inside is None:
            return added(numbers)
        mine = inside - self.isa.lane % 4 * 2  # columns inside, counted from the lane's first one
        none = [Float32(0.0)] * 4 if before is None else before  # of a piece that lies outside as a whole

        def some() -> list[Any]:
            return control.sums_inside(inside > 0, numbers, lambda i: 8 * (i // 4) + i % 2 < mine, added, none)

        return control.choice(inside < columns, some, lambda: added(numbers) if whole is None else whole)

    def join_row_sums(self, layout: AccumulatorLayout, sums: Any) -> Fragment:
        low, high = (control.exact_sum(*sums[i : i + 2]) for i in (0, 2))
        second = self.isa.lane % 2 == 1
        kept, given = cutlass.select_(second, high, low), cutlass.select_(second, low, high)
        pair = kept + cute.arch.shuffle_sync_bfly(given, QUAD[0])
        return Fragment(self, layout, "rows", "fp32", Spread([_over_lanes(operator.add, pair, QUAD[1:])]))

    def column_sums(self, values: Fragment, columns: int, inside: Any) -> Any:
        mine = inside - self.isa.warp % 4 * 16 - self.isa.lane // 4  # rows inside, counted from the lane's first one

        def added(data: list[Any]) -> list[Any]:
            places = (i + 4 * eight for eight in range(columns // 8) for i in range(2))
            return [control.exact_sum(data[i], data[i + 2]) for i in places]

        sums = control.sums_inside(inside < 64, values.data, lambda i: 8 * (i // 2 % 2) < mine, added)
        return columns_over_lanes(self.isa.lane, sums)

    def write_column_sums(self, sums: Any, slot: SlotRef) -> None:
        isa = self.isa
        target = isa.buffers[slot.buffer.name]
        first, totals = sums
        for column, total in totals.items():
            target[isa.warp % 4, first + column, slot.stage] = total

    def reduce_in_warp(self, layout: ThreadLayout, op: str, kind: str, along: str, data: Any) -> Any:
        slot_of, distances = layout.row_slot, range(layout.row_lanes.bit_length() - 1)
        if along == "columns":
            slot_of, distances = layout.column_slot, range(layout.row_lanes.bit_length() - 1, 5)
        mine = _by_slot(slot_of, layout.slots(along), data)
        return [_reduced(op, values, [1 << distance for distance in reversed(distances)]) for values in mine]

    def sum_parts(self, layout: ThreadLayout, data: Any) -> Any:
        return [_reduced("sum", values, ()) for values in _by_slot(layout.row_slot, layout.row_slots, data)]

    def join_parts(self, layout: ThreadLayout, data: Any) -> Any:
        distances = [1 << distance for distance in reversed(range(layout.row_lanes.bit_length() - 1))]
        return [_reduced("sum", [value], distances) for value in data]

    def write_partial(self, layout: ThreadLayout, along: str, data: Any, slot: SlotRef) -> None:
        target, mine = self.isa.buffers[slot.buffer.name], layout.warp(self.isa.warp)

        def write() -> None:
            for i, value in enumerate(itertools.chain(*data)):
                target[(mine, self._place(layout, along, i), slot.stage)] = value

        self.isa.when(self.isa.lane < (1 if along == "rows" else layout.row_lanes), write)

    def read_partials(
        self, layout: ThreadLayout, op: str, along: str, slot: SlotRef, peers: int = 1, nth: int = 0
    ) -> Any:
        if op == "before":
            return self.chunks_read(layout, slot)
        if peers > 1:
            return self._read_far(layout, op, slot, peers, nth)
        source = self.isa.buffers[slot.buffer.name]
        warps, many = layout.sharing_warps(layout.warp(self.isa.warp), along), layout.slots(along)
        places = range(nth * many, (nth + 1) * many)
        at = [self._place(layout, along, i) for i in places]
        return [_reduced(op, [source[(warp, place, slot.stage)] for warp in warps], ()) for place in at]

    def _read_far(self, layout: ThreadLayout, op: str, slot: SlotRef, peers: int, nth: int) -> list[Any]:
        """Numbers of rows from all warps of all CTAs: lane i takes those of warps i, i + 32, ..., then lanes are combined."""
        isa = self.isa
        source, each = isa.buffers[slot.buffer.name], slot.buffer.tile[0] // peers
        warps, first = layout.row_warps, layout.sharing_warps(layout.warp(isa.warp), "rows")[0]
        totals = []
        for place in range(nth * layout.row_slots, (nth + 1) * layout.row_slots):
            values = []
            for i in range(0, peers * warps, 32):
                entry = isa.lane + i
                safe = cutlass.select_(entry < peers * warps, entry, 0)
                value = source[(safe // warps * each + first + safe % warps, place, slot.stage)]
                values.append(choose(entry < peers * warps, value, Float32(NEUTRAL[op, "fp32"])))
            totals.append(_reduced(op, values, (16, 8, 4, 2, 1)))
        return totals

    def _place(self, layout: ThreadLayout, along: str, i: int) -> Any:
        """Where a warp leaves the number of a row slot or column slot."""
        return i if along == "rows" else self.column(layout, i)


def _by_slot(slot_of: Callable[[int], int], slots: int, data: list[Any]) -> list[list[Any]]:
    """A thread's values by row slot or column slot."""
    by_slot: list[list[Any]] = [[] for _ in range(slots)]
    for i, value in enumerate(data):
        by_slot[slot_of(i)].append(value)
    return by_slot


def _reduced(op: str, values: list[Any], distances: Sequence[int]) -> Any:
    """The values of this lane and of the lanes at these distances, reduced."""
    if op == "logsumexp":
        return _log_sum_exp(values, distances)
    combine = FUNCTIONS["add" if op == "sum" else op]
    return _over_lanes(combine, _tree(combine, values), distances)


def _log_sum_exp(values: list[Any], distances: Sequence[int]) -> Any:
    """Takes few values at a time, for want of registers: the sum so far is scaled when a larger value has come. A value
    takes one multiply-add. It would overflow beside a largest value of 2^126, to which such a sum adds nothing."""
    exp, exp2, log, maximum = (FUNCTIONS[name] for name in ("exp", "exp2", "log", "maximum"))
    many, most, base, total = len(values) > FEW, Float32(-math.inf), Float32(0.0), Float32(0.0)
    for first in range(0, len(values), FEW):
        few = values[first : first + FEW]
        most = maximum(most, _tree(maximum, few)) if many else _over_lanes(maximum, _tree(maximum, few), distances)
        before, base = base, _moderate(most)
        scaled = base * LOG2_E
        powers = _tree(operator.add, [exp2(value * LOG2_E - scaled) for value in few])
        total = total * exp(cute.arch.fmin(before - base, 0.0)) + powers if first else powers
    if many:
        most = _over_lanes(maximum, most, distances)
        before, base = base, _moderate(most)
        total = total * exp(cute.arch.fmin(before - base, 0.0))
    found = base + log(_over_lanes(operator.add, total, distances))
    return choose(cute.math.abs(most) >= MODERATE, most, found)


def _moderate(x: Any) -> Any:
    """x, or 0 for what is very large, infinite or NaN."""
    return choose(cute.math.abs(x) < MODERATE, x, Float32(0.0))


def _over_lanes(combine: Callable[..., Any], value: Any, distances: Sequence[int]) -> Any:
    for distance in distances:  # of a sum each lane gets the same bits: an addition of two numbers has no order
        value = combine(value, cute.arch.shuffle_sync_bfly(value, distance))
    return value


def columns_over_lanes(lane: Any, sums: list[Any]) -> tuple[Any, dict[int, Any]]:
    """(the lane's first column, the sums of its columns by how far these are behind it) of *sums* of each lane's own rows.

    At each distance two lanes share out the columns that they have, and each gives the other what that goes on with: with 16
    columns 14 exchanges, where each lane would take 48 to have all. Pairs are added as in `_over_lanes`, to the same bits.
    """
    at, first = [8 * (i // 2) + i % 2 for i in range(len(sums))], lane % 4 * 2
    for distance in COLUMN:
        half = len(at) // 2
        apart = at[half] - at[0]
        if len(at) % 2 or any(at[half + i] - at[i] != apart for i in range(half)):
            sums = [_over_lanes(operator.add, value, (distance,)) for value in sums]
            continue
        upper = lane // distance % 2 == 1
        pairs = [(Float32(sums[i]), Float32(sums[half + i])) for i in range(half)]
        kept = [cutlass.select_(upper, high, low) for low, high in pairs]
        given = [cutlass.select_(upper, low, high) for low, high in pairs]
        sums = [mine + cute.arch.shuffle_sync_bfly(other, distance) for mine, other in zip(kept, given, strict=True)]
        at, first = at[:half], first + lane // distance % 2 * apart
    return first, dict(zip(at, sums, strict=True))


def _tree(combine: Callable[..., Any], values: list[Any]) -> Any:
    """The values combined in pairs, then pairs of pairs, and so on: a short chain of instructions."""
    if len(values) == 1:
        return values[0]
    half = 1 << ((len(values) - 1).bit_length() - 1)
    return combine(_tree(combine, values[:half]), _tree(combine, values[half:]))
