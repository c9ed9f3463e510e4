"""Pieces of accumulators in slots whose rows are no multiple of 32 bytes, which `stmatrix` and swizzles want."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import cutlass.cute as cute

from tmapipe.isa.fragment import Fragment
from tmapipe.isa.values import SlotRef

if TYPE_CHECKING:
    from tmapipe.gpu.fragments import GpuFragments

__all__ = ["write_pairs"]


def write_pairs(fragments: GpuFragments, values: Fragment, slot: SlotRef) -> None:
    """Writes a piece by pairs of neighbours, converted to the slot's type."""
    isa: Any = fragments.isa
    inside, columns = isa.buffers[slot.buffer.name][(None, None, slot.stage)], slot.buffer.tile[-1]
    data = cute.make_rmem_tensor((2, 2, columns // 8), inside.element_type)
    data.store(fragments.vector(values, data.shape).to(inside.element_type))
    for half, eight in itertools.product(range(2), range(columns // 8)):
        row = isa.warp % 4 * 16 + isa.lane // 4 + 8 * half
        two = cute.local_tile(inside, (1, 2), (row, isa.lane % 4 + 4 * eight))
        cute.autovec_copy(data[(None, half, eight)], cute.coalesce(two))
