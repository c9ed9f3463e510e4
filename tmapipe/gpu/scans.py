"""Running sums along rows, and neighbours in pairs, by CuTe DSL: as documented in `tmapipe.isa.scans`."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from tmapipe.gpu.functions import KINDS, choose
from tmapipe.gpu.runs import Runs
from tmapipe.isa.values import SlotRef
from tmapipe.plan.model import WARP
from tmapipe.plan.thread_layout import ThreadLayout, VectorLayout


class Scans(Runs):
    """Of a thread's numbers, those of each row slot and chunk lie side by side in the tile."""

    def scan_in_warp(self, layout: ThreadLayout, kind: str, data: Any) -> Any:
        found, lane = list(data), self.isa.lane % layout.row_lanes
        for places in _runs_of(layout):
            sums = [data[places[0]]]
            for i in places[1:]:
                sums.append(sums[-1] + data[i])
            upto = self._upto(sums[-1], lane, layout.row_lanes, kind)
            before = self._before(upto, lane, layout.row_lanes, kind)
            for i, value in zip(places, sums, strict=True):
                found[i] = value if before is None else before + value
        return found

    def _upto(self, value: Any, lane: Any, lanes: int, kind: str) -> Any:
        """The sum of the values of a lane and of those before it among so many."""
        distance = 1
        while distance < lanes:
            other = cute.arch.shuffle_sync_up(value, distance)
            value = value + choose(lane >= distance, other, KINDS[kind](0))
            distance *= 2
        return value

    def _before(self, upto: Any, lane: Any, lanes: int, kind: str) -> Any:
        """Of sums up to a lane, that up to the one before it; None: there is one lane."""
        if lanes == 1:
            return None
        return choose(lane >= 1, cute.arch.shuffle_sync_up(upto, 1), KINDS[kind](0))

    def chunk_totals(self, layout: ThreadLayout, data: Any) -> Any:
        last = self.isa.lane | (layout.row_lanes - 1)
        return [cute.arch.shuffle_sync(data[places[-1]], last) for places in _runs_of(layout)]

    def chunks_before(self, layout: ThreadLayout, data: Any) -> Any:
        found: list[Any] = []
        for i in range(len(data)):
            first = i % layout.chunks == 0
            found.append(None if first else data[i - 1] if found[-1] is None else found[-1] + data[i - 1])
        return found

    def add_chunks(self, layout: ThreadLayout, data: Any, before: Any) -> Any:
        found = list(data)
        for places, number in zip(_runs_of(layout), before, strict=True):
            for i in places if number is not None else ():
                found[i] = number + data[i]
        return found

    def chunks_read(self, layout: ThreadLayout, slot: SlotRef) -> list[Any]:
        """For each row and chunk, the sum of what warps have left of those before it, in the order of the row: lane i reads
        the i-th, and lanes are summed up."""
        isa, warps = self.isa, layout.row_warps
        source, mine = isa.buffers[slot.buffer.name], layout.warp(isa.warp)
        first, own = mine // warps * warps, mine % warps
        together = WARP // warps  # chunks that lanes have at once
        found: list[Any] = []
        for row in range(layout.row_slots):
            carry: Any = None
            for chunk in range(0, layout.chunks, together):
                entries = min(together, layout.chunks - chunk) * warps
                inside = isa.lane < entries
                entry = cutlass.select_(inside, isa.lane, 0)
                place = row * layout.chunks + chunk + entry // warps
                value = source[(first + entry % warps, place, slot.stage)]
                upto = self._upto(choose(inside, value, KINDS["fp32"](0)), isa.lane, WARP, "fp32")
                before = self._before(upto, isa.lane, WARP, "fp32")
                before = before if carry is None else before + carry
                found += [cute.arch.shuffle_sync(before, own + i) for i in range(0, entries, warps)]
                total = cute.arch.shuffle_sync(upto, WARP - 1)
                carry = total if carry is None else carry + total
        return found

    def swapped_pairs(self, layout: ThreadLayout, along: str, data: Any) -> Any:
        return [data[i ^ 1] for i in range(len(data))]

    def picked_of_pairs(self, layout: VectorLayout, along: str, data: Any, which: int) -> Any:
        return [data[i] for i in range(which, len(data), 2)]

    def joined_pairs(self, layout: VectorLayout, along: str, even: Any, odd: Any) -> Any:
        return [(even, odd)[i % 2][i // 2] for i in range(2 * len(even))]


def _runs_of(layout: ThreadLayout) -> list[list[int]]:
    """A thread's values by row slot and chunk, in the order of columns."""
    found: dict[tuple[int, int], list[int]] = {}
    for i in sorted(range(layout.values), key=layout.column_slot):
        found.setdefault((layout.row_slot(i), layout.column_slot(i) // layout.width), []).append(i)
    return [found[key] for key in sorted(found)]
