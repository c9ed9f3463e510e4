"""wgmma as CuTe DSL's tiled MMAs, by the operands' types."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from tmapipe.dtypes import DType, tf32
from tmapipe.gpu.layouts import cute_type, slot_layout
from tmapipe.plan import Buffer

__all__ = ["operand", "sums_type", "tiled_mma"]


class _Tf32Op(warpgroup.MmaF16BF16Op):
    """wgmma of tf32. CuTe DSL 4.8.1 has the instruction, but its classes admit only other types."""

    descriptive_name = "warpgroup tf32 MMA operation"

    def _verify(self) -> None:
        pass


def sums_type(a: DType) -> Any:
    """The type of the sums of products with *a*."""
    return cutlass.Int32 if a.integer else cutlass.Float32


def tiled_mma(
    a: DType, b: DType, groups: tuple[int, int, int], n: int, transposed: tuple[bool, bool] = (False, False)
) -> Any:
    """64 x *n* for each of the warpgroups along (m, n, k), with sums of `sums_type`. transposed: as in `plan.Matmul`."""
    majors = [OperandMajorMode.MN if way else OperandMajorMode.K for way in transposed]
    if a == tf32:
        source = warpgroup.OperandSource.SMEM
        op = _Tf32Op(cutlass.TFloat32, cutlass.Float32, (64, n, 8), source, *majors)
        return cute.make_tiled_mma(cute.make_mma_atom(op), groups)
    types = cute_type(a), cute_type(b)
    return hopper.make_trivial_tiled_mma(*types, *majors, sums_type(a), groups, tiler_mn=(64, n))


def operand(slots: Any, buffer: Buffer, transposed: bool) -> Any:
    """Slots [m or n, k, stage] as wgmma takes them, of the slots of *buffer*, which may lie as [k, m or n, stage]."""
    layout, start = slots.layout, slots.iterator
    if buffer.dtype == tf32:
        start = cute.recast_ptr(start, slot_layout(buffer).inner, dtype=cutlass.TFloat32)
    return cute.make_tensor(start, cute.select(layout, [1, 0, 2]) if transposed else layout)
