"""Operands and accumulators of wgmma, how accumulators are written to slots, and the shared memory of other CTAs of the
cluster."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as hopper
import numpy as np
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


# ---- weights ---------------------------------------------------------------------------------------------------------
#
# Weights of few bits as operand a: two to a word, in few instructions. The bits 0x4300 are 128 in bf16, and the last place
# of 128 is worth 1. So a number that is or-ed into the last bits is added to 128. In fp16, 0x6400 is 1024, likewise. Numbers
# that are scaled later take fewer instructions: their bits are subnormal in bf16, and an fma makes 64th parts of them.
# Integer instructions take twice as long as fma, so numbers are scaled two at a time by an fma of 16 bits.


#: The bits into which numbers are or-ed, in bf16 and fp16, for whole numbers and 64th parts.
MAGIC = {(True, False): 0x4300, (True, True): 0, (False, False): 0x6400, (False, True): 0x6400}


def raw_weights(isa: GpuWarp, layout: AccumulatorLayout, slot: SlotRef, kind: str) -> list[Any]:
    """A thread's weights, in the order of `operand`: two of 8 bits to a word, or of 4 bits eight of two blocks of columns."""
    buffer, four, raw = slot.buffer, "int4" in kind, []
    row = layout.group(isa.warp) * 64 + isa.warp % 4 * 16 + isa.lane // 4
    start, pitch = isa.slot_address(buffer, slot.stage), buffer.swizzle or buffer.tile[-1]  # of rows, bytes
    form, columns = ("u32", (0,)) if four else ("u16", (0, 8))
    for unit in range(buffer.tile[-1] // 16):
        at = start + buffer.byte_in_slot(row, 16 * unit) + isa.lane % 4 * (4 if four else 2)
        for column, half in itertools.product(columns, range(2)):
            raw += emit_ptx(f"ld.shared.{form} $0, [$1+{8 * half * pitch + column}];", "r", at, words=1)
    return raw


def converted(raw: list[Any], kind: str, dtype: DType, zero: Any, scale: Any) -> list[Any]:
    """A thread's words, in the order of `operand`. zero, scale: for each part of k a number for each of its two rows."""
    in_bf16 = dtype == bf16
    parts = in_bf16 and kind in ("int8", "int4", "uint4") and bool(zero or scale)  # which are scaled anyway
    how, kind = _scales(zero, scale, in_bf16, 64.0 if parts else 1.0), kind + "/64" * parts
    if "int4" in kind:
        fours = [_four_bits(eight, kind, in_bf16) for eight in raw]
        words = [fours[first + half][i] for first in range(0, len(raw), 2) for i in range(4) for half in range(2)]
    else:
        words = [_eight_bits(pair, kind, in_bf16) for pair in raw]
    by = [how[i * len(how) // len(words)][i % 2] for i in range(len(words))]
    return [x if each is None else _scaled(x, each, in_bf16) for x, each in zip(words, by, strict=True)]


def _scales(zero: Any, scale: Any, in_bf16: bool, times: float) -> list[Any]:
    """For each part of k and each of two rows: None, or a word of *times* the scale twice and one of -zero * scale or None."""
    parts = max(len(zero), len(scale))
    if not parts:
        return [(None, None)]
    twice = "{ .reg .f32 x; mul.f32 x, $1, $2; cvt.rn." + ("bf16x2" if in_bf16 else "f16x2") + ".f32 $0, x, x; }"

    def both(x: Any, by: Any) -> Any:
        return emit_ptx(twice, "ff", x, by, words=1, pure=True)[0]

    one = Float32(1.0)
    by = scale or [(one, one)] * parts
    less = [[both(-y, x) for x, y in zip(*each, strict=True)] for each in zip(by, zero, strict=True)] if zero else None
    return [[(both(x, Float32(times)), less[part][half] if less else None) for half, x in enumerate(by[part])]
            for part in range(parts)]  # fmt: skip


def _four_bits(eight: Any, kind: str, in_bf16: bool) -> list[Any]:
    """Words of the lowest four bits of each half of *eight*, of the next four, and so on."""
    less, magic, numbers = 0 if kind.startswith("uint4") else 8, MAGIC[in_bf16, "/64" in kind], []
    for bit in range(0, 16, 4):
        place = 0 if magic else bit % 8  # of a number in its half
        text = f"lop3.b32 $0, $1, {0xF000F << place:#x}, {(magic | less << place) * 0x10001:#x}, 0x6a;"
        if bit > place:
            text = f"{{ .reg .b32 x; shr.u32 x, $1, {bit - place}; {text.replace('$1', 'x')} }}"
        (word,) = emit_ptx(text, "r", eight, words=1, pure=True)
        numbers.append(_less(word, less, kind, in_bf16, place))
    return numbers


def _eight_bits(pair: Any, kind: str, in_bf16: bool) -> Any:
    """The word of two bytes."""
    if kind.startswith("fp8"):
        form = kind.removeprefix("fp8_")
        text = f"{{ .reg .b16 x; cvt.u16.u32 x, $1; cvt.rn.f16x2.{form}x2 $0, x; }}"
        (word,) = emit_ptx(text, "r", pair, words=1, pure=True)
        return _of_fp16(word) if in_bf16 else word
    (word,) = emit_ptx("prmt.b32 $0, $1, 0, 0x4140;", "r", pair, words=1, pure=True)
    magic = MAGIC[in_bf16, "/64" in kind]
    if magic != 0x4300:
        text = f"lop3.b32 $0, $1, {magic * 0x10001 | 0x800080:#x}, 0, 0x3c;"
        return _less(emit_ptx(text, "r", word, words=1, pure=True)[0], 128, kind, in_bf16)
    # 128 and the low seven bits, less 128 or, of a negative number, 256
    text = "{ .reg .b32 x, y; lop3.b32 x, $1, 0x7f007f, 0x43004300, 0xea; lop3.b32 y, $1, 0x800080, 0x43004300, 0xea; "
    return emit_ptx(text + "sub.bf16x2 $0, x, y; }", "r", word, words=1, pure=True)[0]


def _less(word: Any, less: int, kind: str, in_bf16: bool, place: int = 0) -> Any:
    """The numbers that a word has from bit *place* of each half on, less a number, or 64th parts of that. In the last 8 bits
    of bf16, a number is 2^-133 times as much: a subnormal number, or less than twice the least normal one."""
    times, added = 1 / 64 if "/64" in kind else 1, {0x4300: 128, 0x6400: 1024, 0: 0}[MAGIC[in_bf16, "/64" in kind]]
    plus, times = -(less + added) * times, times if added else 2.0 ** (127 - place)
    form, dtype = ("bf16x2", bf16.numpy) if in_bf16 else ("f16x2", np.float16)
    x, y = (f"{int(np.array(each).astype(dtype).view(np.uint16)) * 0x10001:#x}" for each in (times, plus))
    text = f"add.{form} $0, $1, y;" if times == 1 else f"mov.b32 x, {x}; fma.rn.{form} $0, $1, x, y;"
    return emit_ptx(f"{{ .reg .b32 x, y; mov.b32 y, {y}; {text} }}", "r", word, words=1, pure=True)[0]


def _of_fp16(word: Any) -> Any:
    """A word's two numbers of fp16 in bf16."""
    text = "{ .reg .b16 l, h; .reg .f32 x, y; mov.b32 {l, h}, $1; cvt.f32.f16 x, l; cvt.f32.f16 y, h; "
    return emit_ptx(text + "cvt.rn.bf16x2.f32 $0, y, x; }", "r", word, words=1, pure=True)[0]


def _scaled(word: Any, by: Any, in_bf16: bool) -> Any:
    """A word's two numbers times one and, unless it is None, plus another, rounded once."""
    (scale, plus), kind = by, "bf16x2" if in_bf16 else "f16x2"
    if plus is None:
        return emit_ptx(f"mul.{kind} $0, $1, $2;", "rr", word, scale, words=1, pure=True)[0]
    return emit_ptx(f"fma.rn.{kind} $0, $1, $2, $3;", "rrr", word, scale, plus, words=1, pure=True)[0]


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
