"""Operands and accumulators of wgmma, how accumulators are written to slots, and the shared memory of other CTAs of the
cluster."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm, nvvm
from cutlass.cute.nvgpu import CopyUniversalOp, OperandMajorMode, warp, warpgroup
from cutlass.cutlass_dsl import T

from tmapipe.base.arithmetic import DType, bf16, tf32
from tmapipe.gpu import control, cute_type, rows_of, slot_layout
from tmapipe.gpu.control import KINDS, emit_ptx, numbers_of
from tmapipe.gpu.sums import Runs
from tmapipe.isa.fragment import Carried, ClusterExchange, Fragment, SlotRef
from tmapipe.plan.model import WARP
from tmapipe.plan.rings import Barrier, Buffer, Matmul
from tmapipe.plan.thread_layout import AccumulatorLayout, ThreadLayout

if TYPE_CHECKING:
    from tmapipe.gpu.fragments import GpuFragments, GpuWarp


# ---- matmuls ---------------------------------------------------------------------------------------------------------
#
# Operands and accumulators of wgmma as CuTe DSL takes them.


class MatmulHandles:
    """The operand descriptors of one matmul, made at the top of the kernel, and its accumulator."""

    def __init__(self, isa: GpuWarp, matmul: Matmul):
        self.matmul = matmul
        columns = list(itertools.accumulate(matmul.n_instructions, initial=0))
        self.parts = [_Part(isa, matmul, *place) for place in itertools.pairwise(columns)]
        shapes = [part.tiled.partition_shape_C((matmul.shape[0], part.n)) for part in self.parts]
        self.accumulator = Accumulator(isa, shapes, sums_type(matmul.b.dtype), matmul.promote)

    def issue(self, acc: Accumulator, a: Any, b_stage: Any) -> None:
        """Issues the wgmmas of one slot. a: the stage of a's slot; or, if a comes from registers, the result of `operand`."""
        # Copies of the tiled MMA: an option that is set in one is known only in the block of code around this point.
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
        group = AccumulatorLayout.of(matmul).group(isa.warp)
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

    Setting the registers to zero for each tile would leave the tensor cores idle (192 registers: some 400 clocks). So the
    first wgmma of a tile overwrites the sums of the last tile. If a tile may have had no wgmma, zeros are read instead.
    """

    def __init__(self, isa: GpuWarp, shapes: list, dtype: Any, promoted: bool):
        self.registers = [cute.make_rmem_tensor(shape, dtype) for shape in shapes]  # one per part of the columns
        for part in self.registers:
            part.fill(dtype(0))
        self.left = cute.size(self.registers[0])
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
        return (self.registers[0], i) if i < self.left else (self.registers[1], i - self.left)

    def values(self, places: Iterable[int]) -> list[Any]:
        """The sums at these places of a thread's."""
        if self.totals is not None or not self.empty:
            return [part[i] for part, i in map(self._at, places)]
        begun, zero = self.begun[0] != 0, self.registers[0].element_type(0)
        return [cutlass.select_(begun, part[i], zero) for part, i in map(self._at, places)]


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
        groups: How many warpgroups lie along (m, n, k).
        transposed: For a and for b, as in `plan.Matmul`.
        a_in_slots: Whether a is read from shared memory; if not, from registers.
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


# ---- matrices --------------------------------------------------------------------------------------------------------
#
# Pieces of accumulators, written to slots by `stmatrix`, by pairs or number by number; transposes of tiles, by
# `ldmatrix`.


def write_piece(fragments: GpuFragments, values: Fragment, slot: SlotRef, transposed: bool) -> None:
    """Writes a piece, converted to the slot's type, to a slot of (64, columns), or of (columns, 64) if *transposed*."""
    if transposed and slot.buffer.dtype.bytes != 2:
        _write_numbers(fragments, values, slot)
    elif slot.buffer.swizzle or transposed:
        _write_matrices(fragments, values, slot, transposed)
    else:  # its rows are no multiple of 32 bytes, which `stmatrix` and swizzles want
        _write_pairs(fragments, values, slot)


def _write_matrices(fragments: GpuFragments, values: Fragment, slot: SlotRef, transposed: bool) -> None:
    """Writes by `stmatrix`, for types of 16 bits."""
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
    """Writes the transpose, number by number. In a swizzled slot, lanes that have different columns write to
    different banks."""
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
        data += numbers_of(values.load().to(KINDS[dtype.kind]))
    return data


# ---- peers -----------------------------------------------------------------------------------------------------------
#
# The shared memory of other CTAs of the cluster: loads from there, and st.async to there.


UNIT = 16  # bytes that one st.async moves at most


class PeerFragments(Runs):
    """Methods as documented in `tmapipe.isa.fragments`."""

    def read_peer(self, slot: SlotRef, cta: Any, layout: ThreadLayout, at: tuple[Any, Any]) -> Fragment:
        buffer, width = slot.buffer, layout.width
        kind, size = buffer.dtype.kind, buffer.dtype.bytes
        start = at_peer(self.isa.slot_address(buffer, slot.stage), cta)
        together = isinstance(at[1], int) and at[1] % width == 0 and buffer.tile[1] % width == 0
        each = min(width, 16 // size) if together else 1
        data: list[Any] = []
        for _, row, column in self.runs(layout, each, at=at):
            words = cute.make_rmem_tensor((max(1, each * size // 4),), Int32)
            for j, word in enumerate(_load(start + buffer.byte_in_slot(row, column * size), each * size)):
                words[j] = word
            data += numbers_of(cute.recast_tensor(words, cute_type(buffer.dtype)).load().to(KINDS[kind]))[:each]
        return Fragment(self, layout, "tile", kind, data)

    def send_tile(self, values: Fragment, slot: SlotRef, barrier: Barrier, cta: Any) -> None:
        buffer, isa, layout = slot.buffer, self.isa, values.layout
        assert layout is not None
        size, width, of = buffer.dtype.bytes, layout.width, isa.plan.exchange(buffer.name)
        reduce = None if of is None else of.reduce
        start = at_peer(isa.slot_address(buffer, slot.stage), cta)
        on = at_peer(isa.mbarrier(barrier, slot.stage).toint(), cta)
        for i, row, column in self.runs(layout, width):
            words = cute.recast_tensor(self.converted(values, i, width, cute_type(buffer.dtype)), Int32)
            place = start + buffer.byte_in_slot(row, column * size)
            for first in range(0, width * size // 4, 1 if reduce else 4):
                data = [words[first + j] for j in range(min(4, width * size // 4 - first))]
                if reduce:
                    emit_ptx(_reduction(reduce), "rrr", place + 4 * first, data[0], on)
                else:
                    _store_async(place + 4 * first, data, on)

    def send(self, values: Fragment, slot: SlotRef, barrier: Barrier, cta: Any, share: Any, shares: int) -> None:
        target = at_peer(self._own_part(slot, share, shares).toint(), cta)
        on = at_peer(self.isa.mbarrier(barrier, slot.stage).toint(), cta)
        for i in range(0, len(values.data), 4):
            _store_async(target + i // 4 * WARP * UNIT, values.data[i : i + 4], on, "f")

    def received(self, slot: SlotRef, layout: AccumulatorLayout, share: Any, shares: int) -> Fragment:
        count, start = slot.buffer.slot_bytes // shares // (WARP * 4), self._own_part(slot, share, shares)
        values = cute.make_rmem_tensor((4, count // 4), Float32)
        for i in range(count // 4):
            address = (start + i * WARP * UNIT).toint()
            source = cute.make_ptr(Float32, address, cute.AddressSpace.smem, assumed_align=UNIT)
            cute.autovec_copy(cute.make_tensor(source, cute.make_layout((4,))), values[(None, i)])
        return Fragment(self, layout, "tile", "fp32", [values[i] for i in range(count)])

    def _own_part(self, slot: SlotRef, share: Any, shares: int) -> Any:
        """Where the calling lane's first four numbers are in a part of a slot. Its next four numbers come after the first four
        of all other lanes."""
        start = slot.buffer.offset + slot.stage * slot.buffer.pitch
        return self.isa.shared + start + share * (slot.buffer.slot_bytes // shares) + self.isa.lane * UNIT

    def send_partial(self, layout: ThreadLayout, data: Any, slot: SlotRef, exchange: ClusterExchange) -> None:
        isa, (rows, width) = self.isa, slot.buffer.tile
        mine = exchange.rank * (rows // exchange.peers) + layout.warp(isa.warp)
        start = cute.recast_ptr(isa.shared + slot.buffer.offset + slot.stage * slot.buffer.pitch, dtype=Int32)
        words = [_bits(value) for value in itertools.chain(*data)]
        words += [Int32(0)] * (width - len(words))

        def send() -> None:
            store_words(start + mine * width, words, isa.mbarrier(exchange.full, slot.stage), isa.lane)

        control.when(((Int32(exchange.mask) >> isa.lane) & 1) == 1, send)


def store_words(start: Any, words: Sequence[Any], barrier: Any, cta: Any) -> None:
    """Writes words, a multiple of four, to CTA *cta*, where their bytes complete on *barrier*.

    Args:
        start, barrier: Pointers to words, and to an mbarrier, of the calling CTA.
    """
    for first in range(0, len(words), 4):
        target, on = at_peer((start + first).toint(), cta), at_peer(barrier.toint(), cta)
        _store_async(target, words[first : first + 4], on)


def at_peer(address: Any, cta: Any) -> Any:
    """The address in CTA *cta* of the cluster that corresponds to *address* in the calling CTA's shared memory."""
    here, there = (llvm.PointerType.get(space) for space in (cute.AddressSpace.smem, cute.AddressSpace.dsmem))
    pointer = nvvm.mapa(there, llvm.inttoptr(here, Int32(address).ir_value()), Int32(cta).ir_value())
    return Int32(llvm.ptrtoint(T.i32(), pointer))


def _store_async(target: Any, words: Sequence[Any], barrier: Any, kind: str = "r") -> None:
    """``st.async`` of 1, 2 or 4 words, whose bytes complete on *barrier*.

    Args:
        target, barrier: Addresses in the shared memory of the same CTA of the cluster.
        kind: "r" for Int32, "f" for Float32.
    """
    count = len(words)
    form = {1: "b32", 2: "v2.b32", 4: "v4.b32"}[count]
    registers = f"{{{', '.join(f'${1 + i}' for i in range(count))}}}" if count > 1 else "$1"
    text = f"st.async.shared::cluster.mbarrier::complete_tx::bytes.{form} [$0], {registers}, [${count + 1}];"
    emit_ptx(text, f"r{kind * count}r", target, *words, barrier)


def _reduction(how: str) -> str:
    """``red.async`` of a word. Its bytes complete on the mbarrier, which is the last operand."""
    kind = {"and": "b32", "or": "b32", "xor": "b32", "inc": "u32", "dec": "u32"}.get(how, "s32")
    return f"red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.{how}.{kind} [$0], $1, [$2];"


def _load(address: Any, nbytes: int) -> list[Any]:
    """1, 2, 4, 8 or 16 bytes, as words."""
    count = max(1, nbytes // 4)
    what = {1: "u8", 2: "u16", 4: "b32", 8: "v2.b32", 16: "v4.b32"}[nbytes]
    registers = f"{{{', '.join(f'${i}' for i in range(count))}}}" if count > 1 else "$0"
    return emit_ptx(f"ld.shared::cluster.{what} {registers}, [${count}];", "r", address, words=count)


def _bits(value: Any) -> Any:
    """The bits of a number in fp32, as a word."""
    return Int32(llvm.bitcast(T.i32(), Float32(value).ir_value()))
