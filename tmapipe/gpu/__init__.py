"""The GPU backend, which emits CuTe DSL; it is the only package that imports cutlass.

This file has what CuTe DSL needs for the parts of a plan: element types, layouts of slots, TMA atoms and TMA descriptors. It
also has the words that a kernel writes when it stamps the clock.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from tmapipe.base import collector_at_rest

with collector_at_rest():  # 0.4 s of a first call
    import cutlass
    import cutlass.cute as cute

from cutlass import Int64
from cutlass._mlir import ir
from cutlass._mlir.dialects import cute as cute_ir
from cutlass._mlir.dialects import cute_nvgpu, vector
from cutlass.cute.nvgpu import cpasync, warpgroup

from tmapipe.base import Im2colBox, TensorMap, disk
from tmapipe.base.arithmetic import DType, tf32
from tmapipe.base.tma_rules import type_of
from tmapipe.plan.model import Load, Store
from tmapipe.plan.rings import Buffer, cut_by_hand
from tmapipe.plan.thread_layout import VectorLayout
from tmapipe.program import IN_RECORD, Place
from tmapipe.program.expressions import Expr

# ---- layouts ---------------------------------------------------------------------------------------------------------
#
# *Core first* is an order of a tensor's dimensions: first the dimensions that a slot has, then the batch dimensions.


#: L2 eviction policies as createpolicy encodes them for a whole access (the constants of CUTLASS's TMA::CacheHintSm90).
L2_POLICIES = {"evict_normal": 0x1000000000000000, "evict_first": 0x12F0000000000000, "evict_last": 0x14F0000000000000}

_ATOM_KINDS = {
    32: warpgroup.SmemLayoutAtomKind.K_SW32,
    64: warpgroup.SmemLayoutAtomKind.K_SW64,
    128: warpgroup.SmemLayoutAtomKind.K_SW128,
}


def cute_type(dtype: DType) -> Any:
    """The CuTe DSL element type."""
    return getattr(cutlass, dtype.cute)


def slot_layout(buffer: Buffer) -> Any:
    """Layout of all slots: the tile's extents, then the stage. Rows are swizzled in spans of `buffer.swizzle` bytes."""
    return _row_major(buffer, (*buffer.tile, buffer.stages))


def _row_major(buffer: Buffer, shape: tuple[int, ...]) -> Any:
    """A layout of *shape*, which begins with the extents of a slot; slots follow each other."""
    if buffer.swizzle:
        atom = warpgroup.make_smem_layout_atom(_ATOM_KINDS[buffer.swizzle], cute_type(buffer.dtype))
        return cute.tile_to_shape(atom, shape, order=tuple(range(len(shape))))
    strides = [1]
    for extent in reversed(buffer.tile):
        strides.append(strides[-1] * extent)
    pitch = buffer.pitch // buffer.dtype.bytes
    return cute.make_layout(shape, stride=(*reversed(strides[:-1]), pitch)[: len(shape)])


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


def moved_extents(part: Load | Store) -> tuple[int, ...]:
    """How many elements one copy moves along each extent of a slot. A copy moves the whole slot; one part of it, if the slot
    is moved in parts; or one piece of each row, if rows are cut into pieces (`pieces_of`)."""
    extents = part.part[-part.core :]
    return (*extents[:-1], extents[-1] // pieces_of(part))


def pieces_of(part: Load | Store) -> int:
    """Into how many pieces each row of a slot is cut, since a row is longer than what one copy can move."""
    if part.core == 1 and isinstance(part, Load) and part.peers > 1:
        return 1
    return cut_by_hand(part.buffer.tile[-1], part.box[-1], part.buffer.swizzle)


def _by_extents(part: Load | Store) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(shape, stride) of what one copy moves, in a slot. All extents but the last make the slot's rows."""
    buffer, (*outer, columns) = part.buffer, moved_extents(part)
    span = buffer.swizzle // buffer.dtype.bytes
    strides = [span or buffer.tile[-1]]  # from row to row
    for extent in reversed(outer[1:]):
        strides.insert(0, strides[0] * extent)
    if not span:
        return (*outer, columns), (*strides[: len(outer)], 1)
    return (*outer, (span, columns // span)), (*strides, (1, buffer.tile[0] * span))


def moved_layout(part: Load | Store) -> Any:
    """Layout of what one copy moves, in a slot."""
    shape, stride = _by_extents(part)
    outer = cute.make_layout(shape, stride=stride)
    if not part.buffer.swizzle:
        return outer
    # Not a slice of `slot_layout`: CuTe DSL 4.8.1 aborts the process when it slices a swizzled layout whose slots are 3, 5, 7,
    # ... blocks of 8 rows.
    return cute.make_composed_layout(_row_major(part.buffer, part.buffer.tile).inner, 0, outer)


def core_modes(part: Load | Store) -> tuple[int, ...]:
    """The tensor's dimensions, core first."""
    core = part.core
    rank = len(part.dims) + clips(part)
    return (*range(rank - core, rank), *range(rank - core))


def to_core_first(tensor: Any, part: Load | Store) -> Any:
    """The tensor with its dimensions core first, and with the leading dimensions that the kernel has and the tensor lacks.

    An added dimension has stride 0, so the descriptor leaves it out.
    """
    if clips(part):
        return clipped(tensor, part)
    shape, stride = full_shape(tensor, part), list(tensor.stride)
    stride = [0] * (len(shape) - len(stride)) + stride
    modes = core_modes(part)
    layout = cute.make_layout(tuple(shape[i] for i in modes), stride=tuple(stride[i] for i in modes))
    return cute.make_tensor(tensor.iterator, layout)


def clips(part: Load | Store) -> bool:
    """Whether *part* is a store that writes only some of a slot's rows."""
    return isinstance(part, Store) and part.clipped


def clipped(tensor: Any, part: Load | Store) -> Any:
    """A view of the tensor [m, n], core first, through which a store writes only the first v of a slot's R rows.

    The view is three-dimensional: element (r, c, e) is row e - R + r and column c of the tensor. The store writes the slot to
    r = R - v, so the slot's rows from v on lie beyond r's extent R and are dropped. Row i of the slot becomes row e - v + i of
    the tensor. It shall be row i of the tile, so e is the tile's first row plus v.

    So the engine clips a tile at any row, as it does at a tensor's edge. (Triton's ragged TMA works this way:
    triton/tools/ragged_tma.py.)
    """
    height = part.buffer.tile[0]
    (m, n), (row, _) = tensor.shape, tensor.stride
    layout = cute.make_layout((height, n, m + 1), stride=(row, 1, row))
    return cute.make_tensor(tensor.iterator - height * row, layout)


def full_shape(tensor: Any, part: Load | Store) -> list[Any]:
    """The tensor's shape, with the leading dimensions that the kernel has and the tensor lacks. First come the dimensions
    that a store folds, then dimensions of extent 1."""
    shape = list(tensor.shape)
    folded = part.folded if isinstance(part, Store) else ()
    return [*folded, *[1] * (len(part.dims) - len(folded) - len(shape)), *shape]


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


def rows_of(slots: Any, buffer: Buffer, first: Any, count: int) -> Any:
    """Rows [first, first + count) of all slots [rows, columns, stage] of a swizzled buffer.

    *first* and *count* are multiples of 8, since a swizzled block has 8 rows.
    """
    some = slot_layout(attrs.evolve(buffer, tile=(count, buffer.tile[1]))).outer
    span = buffer.swizzle // buffer.dtype.bytes
    return cute.make_tensor(slots.iterator + first * span, cute.make_layout(some.shape, stride=slots.layout.stride))


def make_atom(part: Load | Store, tensor: Any) -> tuple[Any, Any]:
    """The TMA atom and coordinate tensor of one load or store; *tensor* is core first."""
    more: dict[str, Any] = {}
    if isinstance(part, Load):
        op: Any = cpasync.CopyBulkTensorTileG2SMulticastOp() if part.axes else cpasync.CopyBulkTensorTileG2SOp()
        more["num_multicast"] = part.peers
        if part.buffer.dtype == tf32:  # as CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, the engine rounds fp32 while it copies
            more["internal_type"] = cutlass.TFloat32
    elif part.reduce:
        op = cpasync.CopyReduceBulkTensorTileS2GOp(reduction_kind=cute.ReductionKind[part.reduce.upper()])
    else:
        op = cpasync.CopyBulkTensorTileS2GOp()
    made = cpasync.make_tiled_tma_atom(op, tensor, moved_layout(part), moved_extents(part), **more)
    return made.atom, made.tma_tensor


class Moves:
    """The copies of one load or store, between any slot and any tile of global memory.

    The layouts of a slot and of a tile are computed once, from the TMA atom; a copy then only adds its addresses.

    Args:
        part: The load or store.
        atom: Its TMA atom and coordinate tensor.
        slots: All slots of its buffer.
        share: Which share of a multicast tile this CTA loads.
        peers: How many shares a multicast tile has.
    """

    def __init__(self, part: Load | Store, atom: tuple[Any, Any], slots: Any, share: Any, peers: int):
        self.part, (self.atom, tensor) = part, atom
        self.extents, self.layout, pitch = moved_extents(part), tensor.layout, part.buffer.pitch
        core, outer = len(self.extents), cute.rank(tensor) - len(self.extents)
        shape, self.stride = _by_extents(part)
        shape, stride = (*shape, part.buffer.stages), (*self.stride, pitch // part.buffer.dtype.bytes)
        moved = cute.group_modes(cute.make_tensor(slots.iterator, cute.make_layout(shape, stride=stride)), 0, core)
        tile = cute.local_tile(tensor, self.extents, (*(0,) * core, *(None,) * outer))
        shares = cute.make_layout(peers)
        moved, tile = cpasync.tma_partition(self.atom, share, shares, moved, cute.group_modes(tile, 0, core))
        tile = tile[(None, *(0,) * outer)]
        self.of_slots, self.of_slot, self.of_tile = moved.layout, _two(moved[(None, 0)]).layout, _two(tile).layout
        self.start = slots.iterator if peers == 1 else moved.iterator
        self.shared = tile.iterator if peers > 1 else None

    def slot(self, stage: Any, first: Any = None, piece: Any = 0) -> Any:
        """What a copy moves, in shared memory.

        Args:
            stage: Which slot.
            first: Where the copy begins along the slot's first extent; None: where the slot begins.
            piece: Which piece of each row.
        """
        start = self.start if first is None else self.start + first * self.stride[0]
        if not (isinstance(piece, int) and piece == 0):
            start = start + piece * self.extents[-1]
        return cute.make_tensor(cute.make_tensor(start, self.of_slots)[(None, stage)].iterator, self.of_slot)

    def tile(self, at: Sequence[Any], piece: Any = 0) -> Any:
        """What a copy moves, in global memory: the tile that begins at element *at*, or this CTA's share of the tile. piece:
        which piece of each row."""
        if not (isinstance(piece, int) and piece == 0):
            at = (*at[:-1], at[-1] + piece * self.extents[-1])
        place = cute.crd2idx(tuple(at[mode] for mode in core_modes(self.part)), self.layout)
        if self.shared is not None:
            place = tuple(x + y for x, y in zip(place, self.shared, strict=True))
        return cute.make_tensor(place, self.of_tile)

    def copy(self, source: Any, target: Any, **how: Any) -> None:
        """Emits the copy. *how*: the keyword arguments of `cute.copy`."""
        cute_ir.copy(self.atom._unpack(**how), [source.value], [target.value])


def _two(tensor: Any) -> Any:
    """The tensor with the two modes that a copy needs: one for the instruction, one for its repetitions."""
    return cute.group_modes(cute.append_ones(tensor, up_to_rank=2), 1)


# ---- descriptors -----------------------------------------------------------------------------------------------------
#
# The library encodes the descriptor of a load itself if CuTe DSL's TMA atoms cannot express the load.
#
# `TensorMap` encodes such a descriptor once for each signature of tensors. A launch passes the descriptor's words. The
# kernel's host part puts the tensor's address into the first word. The descriptor is a parameter of the kernel.


WORDS = 16  # words of a descriptor, 8 bytes each
L2_PROMOTION = 128  # bytes; CuTe DSL's descriptors have the same


class Descriptor:
    """A descriptor: a value in the host's code, and a parameter of the kernel."""

    def __init__(self, value: Any):
        self.value = value

    def __extract_mlir_values__(self) -> list[Any]:
        return [self.value]

    def __new_from_mlir_values__(self, values: list[Any]) -> Descriptor:
        return Descriptor(values[0])

    def __extract_mlir_attributes__(self) -> list[Any]:
        return [ir.DictAttr.get({"cute_nvgpu.grid_constant": ir.UnitAttr.get()})]

    @property
    def address(self) -> Any:
        """The descriptor's address, in the kernel."""
        pointer = cute_nvgpu.GetGridConstantPointerOp(self.value).operation
        return cute_ir.ptrtoint(ir.IntegerType.get_signless(64), pointer)


def encoded_words(load: Load, tensor: Any) -> list[int]:
    """The words of a load's descriptor. They are valid for tensors at any address that have the shape and strides of *tensor*.

    Raises:
        InputError: The driver's rules are broken.
    """
    tensor = tensor[(None,) * (len(load.dims) - tensor.ndim)]
    box: Any = (*(1,) * (len(load.dims) - load.core), *(load.box if load.windows is None else ()))
    steps = load.steps
    if load.windows is None:
        box = tuple(n * step for n, step in zip(box, steps, strict=True))
    else:
        (lower, upper), (pixels, channels) = load.windows.corners, load.box
        box = Im2colBox(lower, upper, channels, pixels)
        steps = (1, *load.windows.stride, 1)
    options: Any = {"steps": steps, "swizzle": load.buffer.swizzle, "fill": load.outside, "l2_promotion": L2_PROMOTION}
    encoded = TensorMap(tensor, box, dtype=type_of(load.buffer.dtype), **options).encode()
    return [int.from_bytes(encoded[i : i + 8], "little", signed=True) for i in range(0, len(encoded), 8)]


def describe(tensor: Any, words: Sequence[Any]) -> tuple[Descriptor, Any]:
    """A load's descriptor and coordinate tensor, in place of a TMA atom and its coordinate tensor (`make_atom`).

    Args:
        tensor: The tensor, core first.
        words: The descriptor's words, from `encoded_words`.
    """
    values = [tensor.iterator.toint(), *words[1:]]
    made = vector.from_elements(
        ir.VectorType.get([WORDS], ir.IntegerType.get_signless(64)), [Int64(x).ir_value() for x in values]
    )
    return Descriptor(made), cute.make_identity_tensor(tensor.shape)


def address_of(atom: Any) -> Any:
    """The address, in the kernel, of the descriptor of a TMA atom, or of a `Descriptor`."""
    if isinstance(atom, Descriptor):
        return atom.address
    executable = cute_nvgpu.atom_make_exec_tma(atom._trait.value)
    kind = ir.Type.parse("!cute.ptr<!cute_nvgpu.tma_descriptor_tiled, generic, align<64>>")
    pointer = cute_nvgpu.get_tma_desc_addr(kind, executable)
    return pointer.toint()


# ---- records ---------------------------------------------------------------------------------------------------------
#
# What a kernel writes when it stamps the clock: records, each of the clocks of some places, and a word that says of which, and
# of which slots. So a place takes one instruction, which reads the clock, and a record some four more.

UNIT = 4  #: words that are written at once, and of which records are made


@attrs.frozen
class Record:
    """Places that are stamped one after another, and the words that say when.

    The words of places that are written together are a group, with nothing in front so that they fill units. In the last group
    are also the slots that differ, two a word (their exclusive or), and at the end the record's number, with the first slot
    above it.

    Args:
        first: The number of its first place.
        groups: Of how many clocks each group is.
        slots: What differs from 0, each once.
        places: Of each place the word of its clock, if it has one; which of *slots* it has, or else its slot; its warps.
        words: Of all groups.
    """

    first: int
    groups: tuple[int, ...]
    slots: tuple[Any, ...]
    places: tuple[tuple[int | None, int | None, int, frozenset[int]], ...]
    words: int


def records(stamped: Sequence[Place]) -> list[Record]:
    """The records of a program's places."""
    made: list[Record] = []
    first = 0
    for number, place in enumerate(stamped):
        if place.last:
            made.append(_record(first, stamped[first : number + 1]))
            first = number + 1
    return made


def whole(words: int) -> int:
    """So many words as whole units."""
    return -(-words // UNIT) * UNIT


def _record(first: int, stamped: Sequence[Place]) -> Record:
    ends = [i + 1 for i, place in enumerate(stamped) if not place.kept]
    groups = tuple(sum(not each.shared for each in stamped[i:end]) for i, end in zip([0, *ends], ends, strict=False))
    slots = tuple({place.slot: None for place in stamped if isinstance(place.slot, Expr)})
    which = {id(slot): i for i, slot in enumerate(slots)}
    words, clocks = 0, list[int]()
    for i, count in enumerate(groups):
        more = 1 + len(slots) // 2 if i + 1 == len(groups) else 0
        words += whole(count + more)
        clocks += range(words - count - more, words - more)
    read = iter(clocks)
    known = [
        (
            None if place.shared else next(read),
            which.get(id(place.slot)),
            0 if isinstance(place.slot, Expr) else place.slot,
            place.warps,
        )
        for place in stamped
    ]
    return Record(first, groups, slots, tuple(known), words)


def stamps_of(warp: int, words: Any, made: Sequence[Record], ended: int) -> tuple[Any, Any, Any]:
    """Places, slots and clocks of a warp's stamps, as arrays.

    Args:
        warp: That has stamped.
        words: Of whole records, as an array of 32-bit numbers.
        made: The records of the kernel's places.
        ended: The clock at the kernel's end.
    """
    known, at = words.tolist(), len(words)
    begins: dict[int, list[int]] = {}
    while at > 0:
        number = known[at - 1] & 0xFFFF
        at -= made[number].words
        begins.setdefault(number, []).append(at)
    parts = [_of_record(warp, words, made[number], np.array(each)) for number, each in begins.items()]
    if not any(len(part) for part in parts):
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
    stamps = np.concatenate(parts)
    _, numbers, slots, clocks = stamps[np.argsort(stamps[:, 0])].T
    own = np.where(clocks < 0, len(clocks), np.arange(len(clocks)))  # of shared ones the next
    after = np.minimum.accumulate(own[::-1])[::-1]
    return numbers, slots, np.append(clocks, ended)[after]


def _of_record(warp: int, words: Any, record: Record, begins: Any) -> Any:
    """Of each stamp of a warp in records of one kind: where it comes, place, slot, and clock or -1."""
    last = begins + record.words - 1
    slots = [words[last] >> 16]
    for i in range(len(record.slots) // 2):
        pair = words[last - len(record.slots) // 2 + i]
        low = pair.astype(np.int16).astype(np.int32)
        slots += [low, (pair ^ low) >> 16]  # one may be -1: no slot
    stamps = [
        np.stack(
            [
                begins * IN_RECORD + i,
                np.full(len(begins), record.first + i),
                np.full(len(begins), constant) if which is None else slots[which],
                np.full(len(begins), -1) if at is None else words[begins + at].astype(np.int64) % (1 << 32),
            ],
            axis=1,
        )
        for i, (at, which, constant, warps) in enumerate(record.places)
        if warp in warps
    ]
    return np.concatenate(stamps) if stamps else np.zeros((0, 4), np.int64)


# ---- names of kernels ------------------------------------------------------------------------------------------------


def name_of(known: str, ranks: Mapping[str, int], instrument: str) -> str:
    """The name of a kernel in the store, made of the program's identity *known*, *ranks* and *instrument* as of
    `tmapipe.gpu.kernels.kernel_for`, and versions of packages."""
    return hashlib.sha256(repr((known, sorted(ranks.items()), instrument, _versions())).encode()).hexdigest()


@functools.cache
def _versions() -> tuple[Any, ...]:
    """The versions on which a compiled kernel depends, besides its program."""
    options = sorted((name, value) for name, value in os.environ.items() if name.startswith("CUTE_DSL_"))
    return disk.library(), cutlass.__version__, str(cutlass.CUDA_VERSION), options
