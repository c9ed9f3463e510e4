"""Where rows of a tile lie in global memory, elements with gaps, vectors of a slot in shared memory; weights of few bits."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import cutlass.cute as cute
import numpy as np
from cutlass import Float32, Int32, Int64, Uint32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from tmapipe.base.arithmetic import DType, bf16
from tmapipe.gpu import cute_type, full_shape
from tmapipe.gpu.control import choose, emit_ptx
from tmapipe.isa.fragment import Fragment, Gaps, SlotRef
from tmapipe.plan.model import Load, Store
from tmapipe.plan.rings import Buffer
from tmapipe.plan.thread_layout import AccumulatorLayout, VectorLayout

if TYPE_CHECKING:
    from tmapipe.gpu.fragments import GpuWarp


class RowsOfTile:
    """The rows of a tile in global memory.

    shape: of the tensor. at: where the tile starts (elements), one per dimension.
    """

    def __init__(self, isa: Any, part: Load | Store, at: Sequence[Any]):
        tensor, self.size = isa.addressed[part.argument], part.buffer.dtype.bytes
        self.shape = full_shape(tensor, part)
        self.outer = len(self.shape) - part.core
        self.at, self.extents = at, part.tile[-part.core :]
        self.strides = [0] * (len(self.shape) - len(tensor.stride)) + [Int64(stride) for stride in tensor.stride]
        self.start = Int64(tensor.iterator.toint())
        for i in range(self.outer):
            self.start = self.start + Int64(at[i]) * self.strides[i] * self.size
        self.batch = [inside_of(at[i], self.shape[i]) for i in range(self.outer)]

    def row(self, row: Any, further: int = 0) -> tuple[Any, list[Any]]:
        """The address of element 0 of the tensor in the row that is so much *further* in the tile, and conditions for it to be
        in the tensor. Rows that are counted from one *row* share its multiplication."""
        start, inside = self.start, list(self.batch)
        if further and len(self.extents) == 2:
            stride = self.strides[self.outer] * self.size
            index = self.at[self.outer] + row
            inside.append(inside_of(index + further, self.shape[self.outer]))
            return start + Int64(index) * stride + further * stride, inside
        row = row + further
        for dim in range(len(self.extents) - 2, -1, -1):
            index = self.at[self.outer + dim] + (row % self.extents[dim] if dim else row)
            row = row // self.extents[dim]
            start = start + Int64(index) * self.strides[self.outer + dim] * self.size
            inside.append(inside_of(index, self.shape[self.outer + dim]))
        return start, inside


def inside_of(index: Any, extent: Any) -> Any:
    return (index >= 0) & (index < extent)


# ---- elements with gaps between them ------------------------------------------------------------------------------------


def joined(first: Any, start: Any, gaps: Gaps, width: int) -> list[Any]:
    """Where elements *first* to *first* + width - 1 lie, if element 0 lies at *start*, as `Fragments.read_joined` says."""
    place, over = first + start, [Int32(0)] * width
    for length, further in gaps:
        rows = [Int32(Uint32(first + j) // length) for j in range(1 if width <= length else width)]
        place, inside = place + rows[0] * further, first - rows[0] * length
        for j in range(1, width):  # so few have one gap between them at most
            if len(rows) > 1:
                over[j] = over[j] + (rows[j] - rows[0]) * further
            else:
                over[j] = over[j] + choose(inside >= length - j, Int32(further), Int32(0))
    return [place + j + over[j] for j in range(width)]


def loaded_numbers(isa: Any, table: str, places: Sequence[Any]) -> list[Any]:
    """The numbers at these *places* of a table that holds data; 0 beyond its ends."""
    tensor, size = isa.addressed[table], isa.plan.vectors[table].bytes
    start, count = Int64(tensor.iterator.toint()), tensor.shape[0]
    load = f"@inside ld.global.s{8 * size} $0, [$1];"
    text = f"{{ .reg .pred inside; setp.lt.u32 inside, $2, $3; mov.b32 $0, 0; {load} }}"
    return [emit_ptx(text, "lrr", start + Int64(i) * size, i, count, words=1)[0] for i in places]


# ---- vectors of slots -------------------------------------------------------------------------------------------------


def row_step(layout: VectorLayout) -> int:
    """Rows from one row slot of a thread to the next, of threads that share rows evenly."""
    return layout.at_once if layout.by_rows else layout.own * layout.threads // layout.row_vectors


def vector_at(inside: Any, buffer: Buffer, row: Any, first: Any, width: int) -> Any:
    """*width* elements of a slot from (row, first) on; the row counts over all extents but the last."""
    place = [first // width]
    for extent in reversed(buffer.tile[1:-1]):
        row, rest = row // extent, row % extent
        place.insert(0, rest)
    if len(buffer.tile) > 1:
        place.insert(0, row)
    tiler = (1,) * (len(buffer.tile) - 1) + (width,)
    return cute.coalesce(cute.local_tile(inside, tiler, tuple(place)))


PATTERN = 1024  # bytes of rows after which a swizzle's pattern comes again


def vectors_of_part(buffer: Buffer, start: Any, layout: VectorLayout, first: Sequence[Any], at: Any) -> Iterator[Any]:
    """The calling thread's vectors of a part of a swizzled slot, which begins at *at*. From one pattern of the swizzle to the
    next, addresses differ by a number that instructions have.

    Args:
        start: The slot's address.
        layout: How threads share the part, evenly.
        first: The thread's first row, and its columns by column slot.
    """
    found, size = dict[tuple[int, int], Any](), buffer.dtype.bytes
    for i in range(0, layout.values, layout.width):
        patterns, row = divmod(at[0] + layout.row_slot(i) * row_step(layout), PATTERN // buffer.swizzle)
        place = row, layout.column_slot(i)
        if place not in found:
            found[place] = start + buffer.byte_in_slot(first[0] + row, (first[1 + place[1]] + at[1]) * size)
        address, align = found[place] + patterns * PATTERN, layout.width * size
        pointer = cute.make_ptr(cute_type(buffer.dtype), address, cute.AddressSpace.smem, assumed_align=align)
        yield cute.make_tensor(pointer, cute.make_layout(layout.width))


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


def _eight_bits(pair: Any, kind: str, in_bf16: bool, half: int = 0) -> Any:
    """The word of two bytes, the lower or the upper ones of *pair*."""
    if kind.startswith("fp8"):
        form = kind.removeprefix("fp8_")
        text = f"{{ .reg .b16 x<2>; mov.b32 {{x0, x1}}, $1; cvt.rn.f16x2.{form}x2 $0, x{half}; }}"
        (word,) = emit_ptx(text, "r", pair, words=1, pure=True)
        return _of_fp16(word) if in_bf16 else word
    (word,) = emit_ptx(f"prmt.b32 $0, $1, 0, {(0x4140, 0x4342)[half]:#x};", "r", pair, words=1, pure=True)
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


def products(
    isa: GpuWarp, sums: Fragment, rows: SlotRef, few: SlotRef, kind: str, parts: int, zero: Any, scale: Any
) -> list[Any]:
    """The data of `Fragments.products`. Of each 64 bytes of a row of weights, lane 4 g + q has those from 16 q on. It
    multiplies them in the order in which they lie: any order of k is right that both operands have."""
    layout, a, b, in_bf16 = sums.layout, rows.buffer, few.buffer, rows.buffer.dtype == bf16
    assert isinstance(layout, AccumulatorLayout)
    warp, g, q = layout.warp(isa.warp), isa.lane // 4, isa.lane % 4
    own, each, chunks = warp // (layout.warps // parts) * (a.tile[0] // parts), a.tile[0] // parts, b.tile[-1] // 64
    several = 2 if kind.endswith("int4") else 1  # matmuls of 16 elements of k, from 4 bytes of each lane
    how = _of_lanes(_scales(zero, scale, in_bf16, 1.0), chunks, q)
    first = [choose(g + i < each, g + i, Int32(each - 1)) for i in range(0, layout.columns, 8)]
    of_a = [isa.slot_address(a, rows.stage) + a.byte_in_slot(own + row, 32 * several * q) for row in first]
    of_b = isa.slot_address(b, few.stage) + b.byte_in_slot(16 * warp + g, 16 * q)

    def asked(j: int) -> tuple[list[Any], list[Any]]:
        further = several * j * a.tile[0] * a.swizzle
        words = [_shared((of_b + 8 * half * b.tile[-1]) ^ 64 * j) for half in range(2)]
        return words, [[x for i in range(2 * several) for x in _shared((at + further) ^ 16 * i)] for at in of_a]

    early = [asked(j) for j in range(chunks)] if several == 1 else []  # of 4 bits they need too many registers
    totals = [list(sums.data), *([Float32(0.0)] * len(sums.data) for _ in range(1, chunks))]  # matmuls wait less
    for j, data in enumerate(totals):
        words, others = early[j] if early else asked(j)
        for i in range(4):
            two = [_numbers(row[i], kind, how[j][half], in_bf16) for half, row in enumerate(words)]
            for step, (at, beside) in itertools.product(range(several), enumerate(others)):
                left = [two[half][2 * step + second] for second in range(2) for half in range(2)]
                right = [beside[8 * step + 4 * second + i if several > 1 else 2 * i + second] for second in range(2)]
                data[4 * at : 4 * at + 4] = _multiplied(data[4 * at : 4 * at + 4], left, right, in_bf16)
    return [functools.reduce(operator.add, numbers) for numbers in zip(*totals, strict=True)]


def _of_lanes(how: list[Any], chunks: int, q: Any) -> list[Any]:
    """Of the numbers of `_scales` those of the calling lane, for each of equal *chunks* of k, which four lanes share."""
    found, each = list[Any](), max(1, len(how) // chunks)
    for j in range(chunks):
        mine, *others = how[j * len(how) // chunks :][:each]
        for i, other in enumerate(others, 1):
            mine = [
                tuple(None if x is None else choose(q >= 4 * i // each, y, x) for x, y in zip(*pair, strict=True))
                for pair in zip(mine, other, strict=True)
            ]
        found.append(mine)
    return found


def _shared(address: Any) -> list[Any]:
    return emit_ptx("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "r", address, words=4)


def _numbers(word: Any, kind: str, by: Any, in_bf16: bool) -> list[Any]:
    """Words of two numbers, of a word of weights."""
    if kind.endswith("int4"):
        numbers = _four_bits(word, kind, in_bf16)
    else:
        numbers = [_eight_bits(word, kind, in_bf16, half) for half in range(2)]
    return numbers if by is None else [_scaled(number, by, in_bf16) for number in numbers]


def _multiplied(sums: list[Any], left: list[Any], right: list[Any], in_bf16: bool) -> list[Any]:
    """Four sums of a lane and the products of 16 x 16 numbers with 16 x 8, as `mma.sync` distributes them."""
    kind = "bf16" if in_bf16 else "f16"
    text = f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{$0, $1, $2, $3}}, {{$4, $5, $6, $7}}, "
    text += "{$8, $9}, {$10, $11, $12, $13};"
    words = emit_ptx(text, "rrrrrrffff", *left, *right, *sums, words=4, ordered=False)
    return [Float32(llvm.bitcast(T.f32(), word.ir_value())) for word in words]
