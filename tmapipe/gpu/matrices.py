"""Pieces of accumulators, written to slots by `stmatrix`, by pairs or number by number; transposes of tiles, by `ldmatrix`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import CopyUniversalOp, warp

from tmapipe.dtypes import bf16
from tmapipe.gpu.functions import KINDS
from tmapipe.gpu.layouts import cute_type
from tmapipe.gpu.matmuls import tiled_mma
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.values import SlotRef
from tmapipe.plan.thread_layout import AccumulatorLayout

if TYPE_CHECKING:
    from tmapipe.gpu.fragments import GpuFragments
    from tmapipe.gpu.warp import GpuWarp

__all__ = ["read_blocks", "write_piece"]


def write_piece(fragments: GpuFragments, values: Fragment, slot: SlotRef, transposed: bool) -> None:
    """Writes a piece, converted to the slot's type, to a slot of (64, columns), or of (columns, 64) if *transposed*."""
    if transposed and slot.buffer.dtype.bytes == 4:
        _write_numbers(fragments, values, slot)
    elif slot.buffer.swizzle or transposed:
        _write_matrices(fragments, values, slot, transposed)
    else:  # its rows are no multiple of 32 bytes, which `stmatrix` and swizzles want
        _write_pairs(fragments, values, slot)


def _write_matrices(fragments: GpuFragments, values: Fragment, slot: SlotRef, transposed: bool) -> None:
    """By `stmatrix`, if the type has 16 bits."""
    isa = fragments.isa
    dtype, columns = cute_type(slot.buffer.dtype), slot.buffer.tile[-2 if transposed else -1]
    one_group = tiled_mma(bf16, bf16, (1, 1, 1), columns)  # accumulators have the same layout for all types
    matrices = 4 if columns % 16 == 0 else 2
    stmatrix = warp.StMatrix8x8x16bOp(transposed, matrices)
    fragment_atom = cute.make_copy_atom(stmatrix, cutlass.Float16)
    to_shared = cute.make_copy_atom(stmatrix if slot.buffer.dtype.bytes == 2 else CopyUniversalOp(), dtype)
    tiled = cute.make_tiled_copy_S(to_shared, cute.make_tiled_copy_C_atom(fragment_atom, one_group))
    # A thread holds 2 x 2 values of every 64 x 8 block of the accumulator, blocks along n first, then along m.
    converted = cute.make_rmem_tensor(((2, 2, columns // 8), 1, 1), dtype)
    converted.store(fragments.vector(values, converted.shape).to(dtype))
    thread = tiled.get_slice(isa.thread % 128)
    slots = isa.buffers[slot.buffer.name]
    if transposed:
        slots = cute.make_tensor(slots.iterator, cute.select(slots.layout, [1, 0, 2]))
    target = thread.partition_D(slots)[(None, None, None, slot.stage)]
    shape = target.shape
    if slot.buffer.dtype.bytes == 2 and matrices == 2:  # a lane holds 4 values, and names a row of 8
        shape = ((4, 1), *target.shape[1:])
    cute.copy(tiled, cute.make_tensor(converted.iterator, cute.make_layout(shape)), target)


def _write_pairs(fragments: GpuFragments, values: Fragment, slot: SlotRef) -> None:
    isa = fragments.isa
    inside, columns = isa.buffers[slot.buffer.name][(None, None, slot.stage)], slot.buffer.tile[-1]
    data = cute.make_rmem_tensor((2, 2, columns // 8), inside.element_type)
    data.store(fragments.vector(values, data.shape).to(inside.element_type))
    for half, eight in itertools.product(range(2), range(columns // 8)):
        row = isa.warp % 4 * 16 + isa.lane // 4 + 8 * half
        two = cute.local_tile(inside, (1, 2), (row, isa.lane % 4 + 4 * eight))
        cute.autovec_copy(data[(None, half, eight)], cute.coalesce(two))


def _write_numbers(fragments: GpuFragments, values: Fragment, slot: SlotRef) -> None:
    """Transposed. In a swizzled slot, lanes that have different columns write to different banks."""
    isa = fragments.isa
    target = isa.buffers[slot.buffer.name]
    row, pair = isa.warp % 4 * 16 + isa.lane // 4, isa.lane % 4 * 2
    shape = (2, 2, slot.buffer.tile[-2] // 8)
    data = fragments.vector(values, shape).to(cute_type(slot.buffer.dtype))
    for i in range(cute.size(shape)):
        eight, half, j = i // 4, i // 2 % 2, i % 2
        target[(8 * eight + pair + j, row + 8 * half, slot.stage)] = data[i]


def read_blocks(isa: GpuWarp, slot: SlotRef, layout: AccumulatorLayout) -> list[Any]:
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
