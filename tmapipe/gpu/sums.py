"""Reductions over rows and columns: sums of pieces of accumulators for epilogues, and those of whole tiles; over CTAs too."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from tmapipe.gpu import control
from tmapipe.gpu.functions import FUNCTIONS, choose
from tmapipe.gpu.scans import Scans
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.fragments import NEUTRAL
from tmapipe.isa.values import SlotRef
from tmapipe.plan.thread_layout import ThreadLayout

__all__ = ["Sums"]

# Lane i holds columns 2 (i % 4) + {0, 1} of each 8, of the rows i / 4 and i / 4 + 8 of the warp's 16. Value
# i + 2 half + 4 eight of its fragment is column i of these two, in row half, of the 8 columns from 8 eight on.

QUAD = (1, 2)  # distances of lanes that share rows
FEW = 16  # values of a thread that logsumexp takes at a time
COLUMN = (4, 8, 16)  # distances of lanes that share columns


class Sums(Scans):
    """Reductions, as documented in `tmapipe.isa.fragments`."""

    def row_sums(self, values: Fragment, columns: int, first: int, inside: Any, before: Any) -> Any:
        isa = self.isa
        mine = inside - isa.lane % 4 * 2  # columns inside, counted from the lane's first one
        found = []
        for half in range(2):
            total = Float32(0.0) if before is None else before[half]
            for eight in range(first // 8, columns // 8):
                for i in range(2):
                    value = values.data[i + 2 * half + 4 * eight]
                    total = total + _if(8 * eight + i < mine, value)
            found.append(total)
        return found

    def write_row_sums(self, sums: Any, slot: SlotRef) -> None:
        isa = self.isa
        target = isa.buffers[slot.buffer.name]
        row = isa.warp % 4 * 16 + isa.lane // 4
        totals = [_over_lanes(operator.add, value, QUAD) for value in sums]

        def write() -> None:
            for half, total in enumerate(totals):
                target[row + 8 * half, slot.stage] = total

        control.when(isa.lane % 4 == 0, write)

    def column_sums(self, values: Fragment, columns: int, inside: Any) -> Any:
        isa = self.isa
        mine = inside - isa.warp % 4 * 16 - isa.lane // 4  # rows inside, counted from the lane's first one
        found = {}  # by column, counted from the lane's first one
        for eight in range(columns // 8):
            for i in range(2):
                upper, lower = (_if(8 * half < mine, values.data[i + 2 * half + 4 * eight]) for half in range(2))
                found[8 * eight + i] = _over_lanes(operator.add, upper + lower, COLUMN)
        return found

    def write_column_sums(self, sums: Any, slot: SlotRef) -> None:
        isa = self.isa
        target = isa.buffers[slot.buffer.name]

        def write() -> None:
            for column, total in sums.items():
                target[isa.warp % 4, column + 2 * isa.lane, slot.stage] = total

        control.when(isa.lane < 4, write)

    def reduce_in_warp(self, layout: ThreadLayout, op: str, kind: str, along: str, data: Any) -> Any:
        slot_of, distances = layout.row_slot, range(layout.row_lanes.bit_length() - 1)
        if along == "columns":
            slot_of, distances = layout.column_slot, range(layout.row_lanes.bit_length() - 1, 5)
        mine: list[list[Any]] = [[] for _ in range(layout.slots(along))]
        for i, value in enumerate(data):
            mine[slot_of(i)].append(value)
        return [_reduced(op, values, [1 << distance for distance in reversed(distances)]) for values in mine]

    def sum_parts(self, layout: ThreadLayout, data: Any) -> Any:
        mine: list[list[Any]] = [[] for _ in range(layout.row_slots)]
        for i, value in enumerate(data):
            mine[layout.row_slot(i)].append(value)
        return [_reduced("sum", values, ()) for values in mine]

    def join_parts(self, layout: ThreadLayout, data: Any) -> Any:
        distances = [1 << distance for distance in reversed(range(layout.row_lanes.bit_length() - 1))]
        return [_reduced("sum", [value], distances) for value in data]

    def write_partial(self, layout: ThreadLayout, along: str, data: Any, slot: SlotRef) -> None:
        target, mine = self.isa.buffers[slot.buffer.name], layout.warp(self.isa.warp)

        def write() -> None:
            for i, value in enumerate(data):
                target[(mine, self._place(layout, along, i), slot.stage)] = value

        self.isa.when(self.isa.lane < (1 if along == "rows" else layout.row_lanes), write)

    def read_partials(self, layout: ThreadLayout, op: str, along: str, slot: SlotRef, peers: int = 1) -> Any:
        if op == "before":
            return self.chunks_read(layout, slot)
        if peers > 1:
            return self._read_far(layout, op, slot, peers)
        source = self.isa.buffers[slot.buffer.name]
        warps, places = layout.sharing_warps(layout.warp(self.isa.warp), along), range(layout.slots(along))
        at = [self._place(layout, along, i) for i in places]
        return [_reduced(op, [source[(warp, place, slot.stage)] for warp in warps], ()) for place in at]

    def _read_far(self, layout: ThreadLayout, op: str, slot: SlotRef, peers: int) -> list[Any]:
        """Numbers of rows from all warps of all CTAs: lane i takes those of warps i, i + 32, ..., then lanes are combined."""
        isa = self.isa
        source, each = isa.buffers[slot.buffer.name], slot.buffer.tile[0] // peers
        warps, first = layout.row_warps, layout.sharing_warps(layout.warp(isa.warp), "rows")[0]
        found = []
        for place in range(layout.slots("rows")):
            values = []
            for i in range(0, peers * warps, 32):
                entry = isa.lane + i
                safe = cutlass.select_(entry < peers * warps, entry, 0)
                value = source[(safe // warps * each + first + safe % warps, place, slot.stage)]
                values.append(choose(entry < peers * warps, value, Float32(NEUTRAL[op, "fp32"])))
            found.append(_reduced(op, values, (16, 8, 4, 2, 1)))
        return found

    def _place(self, layout: ThreadLayout, along: str, i: int) -> Any:
        """Where a warp leaves the number of a row slot or column slot."""
        return i if along == "rows" else self.column(layout, i)


def _reduced(op: str, values: list[Any], distances: Sequence[int]) -> Any:
    """The values of this lane and of those at these distances, reduced."""
    if op == "logsumexp":
        return _log_sum_exp(values, distances)
    combine = FUNCTIONS["add" if op == "sum" else op]
    return _over_lanes(combine, _tree(combine, values), distances)


def _log_sum_exp(values: list[Any], distances: Sequence[int]) -> Any:
    """A few values after others, so that few need registers: the sum so far is scaled when a larger value has come."""
    exp, maximum = FUNCTIONS["exp"], FUNCTIONS["maximum"]
    most, base, total = Float32(-math.inf), Float32(0.0), Float32(0.0)
    for first in range(0, len(values), FEW):
        few = values[first : first + FEW]
        most = maximum(most, _tree(maximum, few))
        before, base = base, _finite(most)
        powers = _tree(operator.add, [exp(value - base) for value in few])
        total = total * exp(cute.arch.fmin(before - base, 0.0)) + powers if first else powers
    highest = _finite(_over_lanes(maximum, most, distances))
    total = total * exp(cute.arch.fmin(base - highest, 0.0))
    return highest + FUNCTIONS["log"](_over_lanes(operator.add, total, distances))


def _finite(x: Any) -> Any:
    """x, or 0 for what is infinite or NaN."""
    return choose((x > -math.inf) & (x < math.inf), x, Float32(0.0))


def _over_lanes(combine: Callable[..., Any], value: Any, distances: Sequence[int]) -> Any:
    for distance in distances:  # of a sum each lane gets the same bits: an addition of two numbers has no order
        value = combine(value, cute.arch.shuffle_sync_bfly(value, distance))
    return value


def _tree(combine: Callable[..., Any], values: list[Any]) -> Any:
    """The values combined in pairs, then pairs of pairs, and so on: a short chain of instructions."""
    if len(values) == 1:
        return values[0]
    half = 1 << ((len(values) - 1).bit_length() - 1)
    return combine(_tree(combine, values[:half]), _tree(combine, values[half:]))


def _if(condition: Any, value: Any) -> Any:
    """The value where *condition*, else 0."""
    return cutlass.select_(condition, Float32(value), Float32(0.0))
