"""Transposes of tiles of 16-bit numbers, by ``ldmatrix``."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import cutlass.cute as cute
from cutlass.cute.nvgpu import warp

from tmapipe.gpu.functions import KINDS
from tmapipe.gpu.layouts import cute_type
from tmapipe.isa.values import SlotRef
from tmapipe.plan.thread_layout import AccumulatorLayout

if TYPE_CHECKING:
    from tmapipe.gpu.isa import GpuIsa

__all__ = ["read_blocks"]


def read_blocks(isa: GpuIsa, slot: SlotRef, layout: AccumulatorLayout) -> list[Any]:
    """A thread's values of the transpose of a slot's tile, in the order of *layout*.

    Four blocks of 8 x 8 numbers at a time: two below each other of the warp's 16 rows, in two times 8 columns. Each lane names
    one row of a block in the slot.
    """
    dtype, data = slot.buffer.dtype, []
    atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), cute_type(dtype))
    tile = isa.buffers[slot.buffer.name][(None, None, slot.stage)]
    for block, sixteen in itertools.product(range(layout.blocks), range(layout.columns // 16)):
        row = (block * layout.warpgroups + layout.group(isa.warp)) * 64 + isa.warp % 4 * 16
        place = 16 * sixteen + isa.lane // 16 * 8 + isa.lane % 8, row // 8 + isa.lane // 8 % 2
        values = cute.make_rmem_tensor((8,), cute_type(dtype))
        cute.copy(atom, cute.coalesce(cute.local_tile(tile, (1, 8), place)), values)
        wide = values.load().to(KINDS[dtype.kind])
        data += [wide[i] for i in range(8)]
    return data
