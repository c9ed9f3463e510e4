"""Sums over the rows and columns of fragments that are distributed like an accumulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32

from tmapipe.gpu import control
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.values import SlotRef
from tmapipe.plan.model import Distributed

if TYPE_CHECKING:
    from tmapipe.gpu.isa import GpuIsa

__all__ = ["Sums"]

# Lane i holds columns 2 (i % 4) + {0, 1} of each 8, of the rows i / 4 and i / 4 + 8 of the warp's 16. Value
# i + 2 half + 4 eight of its fragment is column i of these two, in row half, of the 8 columns from 8 eight on.

QUAD = (1, 2)  # distances of lanes that share rows
COLUMN = (4, 8, 16)  # distances of lanes that share columns


class Sums:
    """Sums over rows and columns, as documented in `tmapipe.isa.fragments`."""

    isa: GpuIsa

    def row_sums(
        self, matmul: Distributed, values: Fragment, columns: int, first: int, inside: Any, before: Any
    ) -> Any:
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

    def write_row_sums(self, matmul: Distributed, sums: Any, slot: SlotRef) -> None:
        isa = self.isa
        target = isa.buffers[slot.buffer.name]
        row = isa.warp % 4 * 16 + isa.lane // 4
        totals = [_over(QUAD, value) for value in sums]

        def write() -> None:
            for half, total in enumerate(totals):
                target[row + 8 * half, slot.stage] = total

        control.when(isa.lane % 4 == 0, write)

    def column_sums(self, matmul: Distributed, values: Fragment, columns: int, inside: Any) -> Any:
        isa = self.isa
        mine = inside - isa.warp % 4 * 16 - isa.lane // 4  # rows inside, counted from the lane's first one
        found = {}  # by column, counted from the lane's first one
        for eight in range(columns // 8):
            for i in range(2):
                upper, lower = (_if(8 * half < mine, values.data[i + 2 * half + 4 * eight]) for half in range(2))
                found[8 * eight + i] = _over(COLUMN, upper + lower)
        return found

    def write_column_sums(self, matmul: Distributed, sums: Any, slot: SlotRef) -> None:
        isa = self.isa
        target = isa.buffers[slot.buffer.name]

        def write() -> None:
            for column, total in sums.items():
                target[isa.warp % 4, column + 2 * isa.lane, slot.stage] = total

        control.when(isa.lane < 4, write)


def _if(condition: Any, value: Any) -> Any:
    """The value where *condition*, else 0."""
    return cutlass.select_(condition, Float32(value), Float32(0.0))


def _over(distances: tuple[int, ...], value: Any) -> Any:
    """The sum over the lanes at these distances.

    Each lane gets the same bits, since an addition of two numbers has no order.
    """
    for distance in distances:
        value = value + cute.arch.shuffle_sync_bfly(value, distance)
    return value
