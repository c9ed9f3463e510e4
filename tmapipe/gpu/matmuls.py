"""wgmma's operands and accumulators as CuTe DSL takes them."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from tmapipe.gpu.layouts import cute_type
from tmapipe.isa import Carried
from tmapipe.plan import Matmul

__all__ = ["Accumulator", "MatmulHandles", "tiled_mma"]


class MatmulHandles:
    """The tiled MMA and the operand descriptors of one matmul, made at the top of the kernel."""

    def __init__(self, isa: Any, matmul: Matmul):
        self.matmul = matmul
        m, n, _ = matmul.shape
        types = cute_type(matmul.a.dtype), cute_type(matmul.b.dtype)
        self.tiled = tiled_mma(*types, (matmul.warpgroups, 1, 1), n, matmul.transposed)
        group = matmul.group(isa.warp) if matmul.warpgroups > 1 else 0
        mine = self.tiled.get_slice(cute.make_layout(matmul.warpgroups, stride=128)(group))
        self.a = self.tiled.make_fragment_A(mine.partition_A(_rows_of_k(isa.buffers[matmul.a.name], matmul.transposed[0])))
        self.b = self.tiled.make_fragment_B(mine.partition_B(_rows_of_k(isa.buffers[matmul.b.name], matmul.transposed[1])))
        self.accumulator = Accumulator(isa, self.tiled.partition_shape_C((m, n)), matmul.promote)

    def issue(self, acc: Accumulator, a_stage: Any, b_stage: Any) -> None:
        for block in range(self.matmul.k_instructions):
            a, b = self.a[(None, None, block, a_stage)], self.b[(None, None, block, b_stage)]
            self.tiled.set(warpgroup.Field.ACCUMULATE, acc.begun[0] != 0 if block == 0 else True)
            cute.gemm(self.tiled, acc.registers, a, b, acc.registers)
        acc.begun[0] = 1


class Accumulator(Carried):
    """The sums of one tile after another, in registers that live as long as the kernel.

    To set so many to zero for each tile would leave the tensor cores idle meanwhile (192 registers: some 400 clocks). So the
    tile's first wgmma overwrites what the last tile has left; and where there was none, zeros are read instead.
    """

    def __init__(self, isa: Any, shape: Any, promoted: bool):
        self.registers = cute.make_rmem_tensor(shape, cutlass.Float32)
        self.registers.fill(0.0)
        self.begun = isa.cells(0)
        self.totals: Any = cute.make_rmem_tensor(shape, cutlass.Float32) if promoted else None

    def begin(self) -> None:
        self.begun[0] = 0
        if self.totals is not None:
            self.totals.fill(0.0)

    def promote(self) -> None:
        for i in range(cute.size(self.totals)):
            self.totals[i] = self.totals[i] + self.registers[i]
        self.begun[0] = 0

    def value(self, i: int) -> Any:
        if self.totals is not None:
            return self.totals[i]
        return cutlass.select_(self.begun[0] != 0, self.registers[i], cutlass.Float32(0.0))


def tiled_mma(
    a: Any, b: Any, groups: tuple[int, int, int], n: int, transposed: tuple[bool, bool] = (False, False)
) -> Any:
    majors = [OperandMajorMode.MN if way else OperandMajorMode.K for way in transposed]
    return hopper.make_trivial_tiled_mma(a, b, *majors, cutlass.Float32, groups, tiler_mn=(64, n))


def _rows_of_k(slots: Any, transposed: bool) -> Any:
    """Slots [m or n, k, stage], of slots that may lie as [k, m or n, stage]."""
    return cute.make_tensor(slots.iterator, cute.select(slots.layout, [1, 0, 2])) if transposed else slots
