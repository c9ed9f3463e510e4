"""Operands and accumulators of wgmma as CuTe DSL takes them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from tmapipe.dtypes import DType, tf32
from tmapipe.gpu.layouts import cute_type, rows_of, slot_layout
from tmapipe.isa.values import Carried
from tmapipe.plan.model import Buffer, Matmul

if TYPE_CHECKING:
    from tmapipe.gpu.warp import GpuWarp

__all__ = ["Accumulator", "MatmulHandles", "operand", "sums_type", "tiled_mma"]


class MatmulHandles:
    """The operand descriptors of one matmul, made at the top of the kernel, and its accumulator."""

    def __init__(self, isa: GpuWarp, matmul: Matmul):
        self.matmul = matmul
        columns = list(itertools.accumulate(matmul.n_instructions, initial=0))
        self.parts = [_Part(isa, matmul, *place) for place in itertools.pairwise(columns)]
        shapes = [part.tiled.partition_shape_C((matmul.shape[0], part.n)) for part in self.parts]
        self.accumulator = Accumulator(isa, shapes, sums_type(matmul.b.dtype), matmul.promote)

    def issue(self, acc: Accumulator, a: Any, b_stage: Any) -> None:
        """a: the stage of a's slot, or of an a from registers what `operand` made."""
        # Copies: what is set in one is known only in the block of code around this point.
        tiled = [part.tiled.__new_from_mlir_values__(part.tiled.__extract_mlir_values__()) for part in self.parts]
        for block in range(self.matmul.k_instructions):
            for part, mma, registers in zip(self.parts, tiled, acc.registers, strict=True):
                own = a[(None, None, block)] if part.a is None else part.a[(None, None, block, a)]
                b = part.b[(None, None, block, b_stage)]
                mma.set(warpgroup.Field.ACCUMULATE, acc.begun[0] != 0 if block == 0 else True)
                cute.gemm(mma, registers, own, b, registers)
        acc.begun[0] = 1


class _Part(Carried):
    """The tiled MMA of columns [first, end) of a tile, and its operand descriptors."""

    def __init__(self, isa: GpuWarp, matmul: Matmul, first: int, end: int):
        self.n = end - first
        self.tiled = tiled_mma(
            *matmul.types, (matmul.warpgroups, 1, 1), self.n, matmul.transposed, a_in_slots=matmul.a is not None
        )
        group = matmul.group(isa.warp) if matmul.warpgroups > 1 else 0
        mine = self.tiled.get_slice(cute.make_layout(matmul.warpgroups, stride=128)(group))
        way_of_a, way_of_b = matmul.transposed
        if matmul.a is not None:
            a = _operand(isa.buffers[matmul.a.name], matmul.a, way_of_a)
        b = _operand(isa.buffers[matmul.b.name], matmul.b, way_of_b)
        if self.n < matmul.shape[1]:
            b = rows_of(b, matmul.b, first, self.n)
        self.a = None if matmul.a is None else self.tiled.make_fragment_A(mine.partition_A(a))
        self.b = self.tiled.make_fragment_B(mine.partition_B(b))


class Accumulator(Carried):
    """The sums of one tile after another, in registers that live as long as the kernel.

    Setting them to zero for each tile would leave the tensor cores idle (192 registers: some 400 clocks). So the first wgmma
    of a tile overwrites what the last tile left. If a tile may have had no wgmma, zeros are read instead.
    """

    def __init__(self, isa: GpuWarp, shapes: list, dtype: Any, promoted: bool):
        self.registers = [cute.make_rmem_tensor(shape, dtype) for shape in shapes]  # one per part of the columns
        for part in self.registers:
            part.fill(dtype(0))
        self.begun, self.empty = cute.make_rmem_tensor((1,), cutlass.Int32), True
        self.begun[0] = 0
        self.totals: Any = cute.make_rmem_tensor(shapes[0], dtype) if promoted else None

    def begin(self, empty: bool) -> None:
        self.begun[0], self.empty = 0, empty
        if self.totals is not None:
            self.totals.fill(0.0)

    def promote(self) -> None:
        for i in range(cute.size(self.totals)):
            self.totals[i] = self.totals[i] + self.registers[0][i]
        self.begun[0] = 0

    def multiply(self, factors: list[Any]) -> None:
        for i, factor in enumerate(factors):
            part, place = self._at(i)
            part[place] = part[place] * factor

    def _at(self, i: int) -> tuple[Any, int]:
        if self.totals is not None:
            return self.totals, i
        left = cute.size(self.registers[0])
        return (self.registers[0], i) if i < left else (self.registers[1], i - left)

    def value(self, i: int) -> Any:
        part, i = self._at(i)
        if self.totals is not None:
            return part[i]
        return part[i] if not self.empty else cutlass.select_(self.begun[0] != 0, part[i], part.element_type(0))


class _Tf32Op(warpgroup.MmaF16BF16Op):
    """wgmma of tf32. CuTe DSL 4.8.1 has the instruction, but its classes admit only other types."""

    descriptive_name = "warpgroup tf32 MMA operation"

    def _verify(self) -> None:
        pass


def operand(matmul: Matmul, words: list[Any]) -> Any:
    """A thread's values of (m, k), two to a word, distributed as an accumulator, as operand a: of each 64 rows and 16
    columns, in the same order."""
    m, _, k = matmul.shape
    blocks = m // (64 * matmul.warpgroups)
    registers = cute.make_rmem_tensor((len(words),), cutlass.Int32)
    for i, word in enumerate(words):
        registers[i] = word
    converted = cute.recast_tensor(registers, cute_type(matmul.b.dtype))
    layout = cute.make_layout(((2, 2, 2), blocks, k // 16), stride=((1, 2, 4), k // 2, 8))
    return cute.make_tensor(converted.iterator, layout)


def sums_type(a: DType) -> Any:
    """The type of sums of products with *a*."""
    return cutlass.Int32 if a.integer else cutlass.Float32


def tiled_mma(
    a: DType,
    b: DType,
    groups: tuple[int, int, int],
    n: int,
    transposed: tuple[bool, bool] = (False, False),
    a_in_slots: bool = True,
) -> Any:
    """The tiled MMA of 64 x *n* for each warpgroup, with sums of `sums_type`.

    Args:
        groups: Warpgroups along (m, n, k).
        transposed: Of a and b, as in `plan.Matmul`.
        a_in_slots: Whether a is read from shared memory; else from registers.
    """
    source = warpgroup.OperandSource.SMEM if a_in_slots else warpgroup.OperandSource.RMEM
    majors = [OperandMajorMode.MN if way else OperandMajorMode.K for way in transposed]
    if a == tf32:
        op = _Tf32Op(cutlass.TFloat32, cutlass.Float32, (64, n, 8), source, *majors)
        return cute.make_tiled_mma(cute.make_mma_atom(op), groups)
    types = cute_type(a), cute_type(b)
    return hopper.make_trivial_tiled_mma(*types, *majors, sums_type(a), groups, tiler_mn=(64, n), a_source=source)


def _operand(slots: Any, buffer: Buffer, transposed: bool) -> Any:
    """Slots [m or n, k, stage] as wgmma takes them. Those of a transposed operand lie as [k, m or n, stage]."""
    layout, start = slots.layout, slots.iterator
    if buffer.dtype == tf32:
        start = cute.recast_ptr(start, slot_layout(buffer).inner, dtype=cutlass.TFloat32)
    return cute.make_tensor(start, cute.select(layout, [1, 0, 2]) if transposed else layout)
