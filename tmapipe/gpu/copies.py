"""Emitters of copies, stores by threads and prefetches, and of copies as PTX that names a descriptor."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int16, Int32, Int64
from cutlass.cute.nvgpu import cpasync

from tmapipe.base.arithmetic import ceil_div
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.gpu import L2_POLICIES, WORDS, Descriptor, RowsOfTile, address_of, control, cute_type, inside_of, pieces_of
from tmapipe.gpu.control import emit_ptx, emits
from tmapipe.gpu.fragments import GpuWarp
from tmapipe.gpu.matmuls import at_peer
from tmapipe.gpu.sums import Spread, width_of
from tmapipe.isa import ops
from tmapipe.isa.fragment import Fragment, Span
from tmapipe.plan.model import WARP, Load
from tmapipe.plan.rings import Buffer
from tmapipe.plan.thread_layout import VectorLayout

# ---- copies ----------------------------------------------------------------------------------------------------------
#
# How copies and stores by threads, and prefetches, are emitted.


UNROLLED = 16  # copies of a thread; more are a loop, since each one's addresses take registers


@emits(ops.PrefetchDescriptor)
def _prefetch_descriptor(isa: GpuWarp, op: Any) -> None:
    descriptor = isa.atoms[op.part][0]
    if isinstance(descriptor, Descriptor):
        emit_ptx("prefetch.tensormap [$0];", "l", descriptor.address)
    else:
        cpasync.prefetch_descriptor(descriptor)


@emits(ops.CpAsync)
def _cp_async(isa: GpuWarp, op: Any) -> None:
    copy_tile(isa, op)
    cute.arch.cp_async_mbarrier_arrive_noinc(isa.mbarrier(*op.bar))


#: Runs of a thread: their first numbers, conditions for their rows, columns, addresses.
Runs = list[tuple[int, list[Any], Any, Any]]


@emits(ops.TileStore)
def _store_values(isa: GpuWarp, op: Any, values: Fragment, surely: Span, mask: Fragment | None) -> None:
    """The calling thread's stores, each of some numbers that lie side by side; with *mask*, the numbers for which it holds,
    one by one."""
    fragments, store, at = isa.fragments, isa.plan.store(op.store), op.at
    layout, size = values.layout, store.buffer.dtype.bytes
    assert layout is not None
    tile, dtype = RowsOfTile(isa, store, at), cute_type(store.buffer.dtype)
    most, places, own = width_of(layout, values.along), list[Any](), None
    width = min(most, store.vector // size) if mask is None else 1
    wide = min(most, ALIGNMENT // size) if store.wide and mask is None else width
    shared = isinstance(layout, VectorLayout) and layout.row_slots % min(layout.row_slots, layout.row_lanes) == 0
    if shared and values.along == "rows" and mask is None:
        values, places, own = fragments.shared_out(values)

    def put(first: int, address: Any, count: int) -> None:
        converted = fragments.converted(values, first, count, dtype)
        target = cute.make_ptr(dtype, address, cute.AddressSpace.gmem, assumed_align=count * size)
        cute.autovec_copy(converted, cute.make_tensor(target, cute.make_layout((count,))))

    def holds(inside: list[Any], column: Any, count: int) -> Any:
        first, end = column >= 0, column + count <= tile.shape[-1]
        return functools.reduce(operator.and_, inside, first & end)

    def within(columns: tuple[int, int]) -> bool:
        """Whether the elements that begin in these columns are inside the tensor in any case."""
        return surely[0] <= columns[0] and columns[1] + wide - 1 <= surely[1]

    def store_rows(layout: VectorLayout) -> None:
        """The vectors of each row slot, which lie at known distances, if the row is in the tensor: asked once."""
        column = at[-1] + fragments.column(layout, 0)
        each, many = layout.sharing * layout.width, layout.own * layout.width
        further = {i: i // layout.width * each + i % layout.width for i in range(0, many, wide)}
        for slot in range(layout.row_slots):
            start, inside = tile.row(*fragments.row_from(layout, slot * many, fragments.row(layout, slot)))
            begin = start + Int64(column) * size
            runs: Runs = [(slot * many + i, [], column + step, begin + step * size) for i, step in further.items()]
            do_if(functools.reduce(operator.and_, inside, True), functools.partial(store_runs, runs))

    def store_all() -> None:
        runs = places or fragments.runs(layout, wide, values.along)
        if isinstance(values.data, Spread):
            runs = [(0, 0, fragments.row(layout, 0) + isa.lane % 4 * 8)]
        if values.along == "rows" and store.tile[-1] == 1:  # one number a row, of a tile with rows of one number
            runs = [(first, row, 0) for first, _, row in runs]
        found: Runs = []
        for first, row, column in runs:
            earlier = fragments.row_from(layout, first, row) if values.along == "tile" else (row,)
            (start, inside), column = tile.row(*earlier), at[-1] + column
            found.append((first, inside, column, start + Int64(column) * size))
        store_runs(found)

    def store_runs(runs: Runs) -> None:
        """Stores wide where the address allows; then the other elements, in one branch that few warps take."""
        left, apart = [], None
        for first, inside, column, address in runs:
            if mask is not None:
                put_if(holds(inside, column, 1) & Boolean(mask.data[first]), first, address, 1)
                continue
            if values.along == "tile" and within(layout.column_range(layout.column_slot(first))):
                put_if(functools.reduce(operator.and_, inside, True), first, address, wide)
                continue
            if wide == width:
                put_if(holds(inside, column, width), first, address, width)
                continue
            whole = holds(inside, column, wide) & (Int32(address & (wide * size - 1)) == 0)
            put_if(whole, first, address, wide)
            left.append((first, inside, column, address, ~whole))
            apart = ~whole if apart is None else apart | ~whole
        if left:
            control.when(apart, functools.partial(store_narrow, left))

    def store_narrow(left: list[Any]) -> None:
        for first, inside, column, address, apart in left:
            for i in range(0, wide, width):
                put_if(apart & holds(inside, column + i, width), first + i, address + i * size, width)

    def put_if(condition: Any, *what: Any) -> None:
        do_if(condition, functools.partial(put, *what))

    def do_if(condition: Any, action: Callable[[], None]) -> None:
        action() if condition is True else control.when(condition, action)

    if values.along == "tile" and isinstance(layout, VectorLayout) and layout.even:
        store_rows(layout)
    elif values.along == "tile":
        store_all()
    elif isinstance(values.data, Spread):
        control.when(isa.lane % 4 < 2, store_all)
    else:
        control.when(fragments.first_to_have(layout, values.along) if own is None else own, store_all)


@emits(ops.TmaPrefetch)
def _tma_prefetch(isa: GpuWarp, op: Any) -> None:
    load = isa.plan.load(op.load)
    moves = isa.moves_of(load, op.share, load.peers)

    def one(piece: Any) -> None:
        source = moves.tile(op.at, piece)
        control.elected(cute.prefetch, moves.atom, source)  # it leaves that to its caller (CuTe DSL 4.8.1)

    control.each(pieces_of(load), one)


@emits(ops.BulkLoad)
def _bulk_load(isa: GpuWarp, op: Any) -> None:
    load = isa.plan.load(op.load)
    source = _element(isa.addressed[load.argument], op.at, load.buffer.dtype.bytes)
    target, bar = isa.slot_address(*op.slot), isa.mbarrier(*op.bar).toint()
    with cute.arch.elect_one():
        how = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        operands = [target, source, op.nbytes, bar]
        if load.l2_hint is None:
            emit_ptx(f"{how} [$0], [$1], $2, [$3];", "rlrr", *operands)
        else:
            text = f"{how}.L2::cache_hint [$0], [$1], $2, [$3], $4;"
            emit_ptx(text, "rlrrl", *operands, L2_POLICIES[load.l2_hint])


@emits(ops.BulkPrefetch)
def _bulk_prefetch(isa: GpuWarp, op: Any) -> None:
    load = isa.plan.load(op.load)
    tensor = isa.addressed[load.argument]
    inside = functools.reduce(operator.and_, map(inside_of, op.at, tensor.shape))

    def issue() -> None:
        source = _element(tensor, op.at, load.buffer.dtype.bytes)
        text = "cp.async.bulk.prefetch.L2.global [$0], $1;"
        control.elected(emit_ptx, text, "lr", source, load.buffer.slot_bytes)

    control.when(inside, issue)


@emits(ops.PeerCopy, ops.PeerReduce)
def _peer_copy(isa: GpuWarp, op: Any, to: Any) -> None:
    whole = isinstance(op, ops.PeerReduce)
    source = isa.slot_address(*op.source) + op.part * op.nbytes
    target = isa.slot_address(*op.slot) + (0 if whole else op.share * op.nbytes)
    bar, buffer = isa.mbarrier(*op.bar).toint(), op.slot.buffer
    exchange = isa.plan.exchange(op.peer) if whole else None
    reduce = None if exchange is None else exchange.reduce
    how, kind = _reduction(reduce, buffer.dtype.name)
    text = f"{how}.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes{kind} [$0], [$1], $2, [$3];"
    with cute.arch.elect_one():
        emit_ptx(text, "rrrr", at_peer(target, to), source, op.nbytes, at_peer(bar, to))


@emits(ops.BulkStore)
def _bulk_store(isa: GpuWarp, op: Any) -> None:
    store, (first,) = isa.plan.store(op.store), op.at[:1]
    tensor, size = isa.addressed[store.argument], store.buffer.dtype.bytes
    left, whole = tensor.shape[0] - first, store.buffer.slot_bytes // size  # elements: bytes may be more than 2^31
    nbytes = cutlass.select_(left < whole, left, Int32(whole)) * size
    target = Int64(tensor.iterator.toint()) + Int64(first) * size
    source = isa.slot_address(*op.slot)

    how, kind = _reduction(store.reduce, store.buffer.dtype.name)
    text = f"{how}.bulk.global.shared::cta.bulk_group{kind} [$0], [$1], $2;"

    control.when(left > 0, lambda: control.elected(emit_ptx, text, "lrr", target, source, nbytes))


def _element(tensor: Any, at: Sequence[Any], size: int) -> Any:
    """The address of the element at *at*. size: bytes of an element."""
    address = Int64(tensor.iterator.toint())
    for index, stride in zip(at, tensor.stride, strict=True):
        address = address + Int64(index) * Int64(stride) * size
    return address


#: Of a reduction in global memory, what the instruction calls it and the type, by the kind of types.
_BULK_TYPES = {"bf16": "bf16", "fp16": "f16", "fp32": "f32", "fp64": "f64", "int32": "s32", "int64": "s64"}


def _reduction(reduce: str | None, dtype: str) -> tuple[str, str]:
    """(how an instruction begins that copies, or reduces; how it names the reduction and the type)."""
    if reduce is None:
        return "cp.async", ""
    of = _BULK_TYPES[dtype]
    if reduce in ("and", "or", "xor"):
        of = f"b{of[1:]}"
    elif reduce in ("inc", "dec") or (reduce, of) == ("add", "s64"):  # there is no other sum of 64 bits
        of = f"u{of[1:]}"
    return "cp.reduce.async", f".{reduce}{'.noftz' if reduce == 'add' and of in ('bf16', 'f16') else ''}.{of}"


def copy_tile(isa: GpuWarp, op: Any) -> None:
    """The calling warp's copies of one share of a tile's vectors."""
    load, at, share, shares = isa.plan.load(op.load), op.at, op.share, op.shares
    buffer, size, vector = load.buffer, load.buffer.dtype.bytes, load.vector
    tile, per_row, threads = RowsOfTile(isa, load, at), load.tile[-1] * size // vector, WARP * shares
    vectors, width = buffer.slot_bytes // vector, vector // size
    target = isa.slot_address(*op.slot)
    thread = share * WARP + isa.lane

    def place(j: Any) -> tuple[Any, Any, Any]:
        """Row and vector of the row that the thread copies in turn *j*, and the byte in the slot."""
        if threads % per_row:
            i = thread + j * threads
            row, column = i // per_row, i % per_row
            return row, column, buffer.byte_in_slot(row, column * vector)
        # Always the same column, and rows a known number apart; the swizzle is the same again after 8 rows.
        first, column, step = thread // per_row, thread % per_row, j * (threads // per_row)
        rest = step % 8
        same = (step - rest) * (buffer.swizzle or buffer.tile[-1] * size)
        return first + step, column, buffer.byte_in_slot(first + rest, column * vector) + same

    def copy(j: Any) -> None:
        row, column, byte = place(j)
        start, inside = tile.row(row)
        first = at[-1] + column * width
        start = start + Int64(first) * size
        rest = tile.shape[-1] - first
        nbytes = cutlass.select_(rest < width, rest, Int32(width)) * size
        for holds in (*inside, inside_of(first, tile.shape[-1])):
            nbytes = cutlass.select_(holds, nbytes, Int32(0))
        how = "cg" if vector == 16 else "ca"
        text = f"cp.async.{how}.shared.global [$0], [$1], {vector}, $2;"  # fills up with zeros
        emit_ptx(text, "rlr", target + byte, start, nbytes)

    def turn(j: Any) -> None:
        if vectors % threads:
            control.when(thread + j * threads < vectors, lambda: copy(j))
        else:
            copy(j)

    turns = ceil_div(vectors, threads)
    if turns > UNROLLED:
        control.loop(turns, turn)
    else:
        for j in range(turns):
            turn(j)


# ---- encoded ---------------------------------------------------------------------------------------------------------
#
# Copies as PTX that names a descriptor: loads that TMA atoms cannot express, copies of four rows at once (sm_100 and
# later), and loads through descriptors that the kernel changes.
#
# Each slot of a `DescriptorStage` has a place in global memory, since the TMA engine reads no descriptors from shared
# memory.


BYTES = 8 * WORDS
GATHER = "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
SCATTER = "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"


def load_encoded(isa: GpuWarp, load: Load, op: Any, barrier: Any) -> None:
    """A load whose descriptor the library has encoded. barrier: the mbarrier's pointer."""
    descriptor, policy = isa.atoms[load.name][0].address, L2_POLICIES.get(load.l2_hint or "")
    copy = partial(_load, descriptor=descriptor, barrier=barrier, mask=op.mask, policy=policy, offsets=op.offsets)
    (_boxes if load.windows is None else _windows)(isa, load, op.slot.stage, op.at, op.share, copy)


@emits(ops.TmaLoadThrough)
def _load_through(isa: GpuWarp, op: Any) -> None:
    copy = partial(_load, descriptor=_place(isa, *op.source), barrier=isa.mbarrier(*op.bar), mask=op.mask)
    _boxes(isa, isa.plan.load(op.load), op.slot.stage, op.at, op.share, copy)


@emits(ops.TmaGather)
def _gather(isa: GpuWarp, op: Any) -> None:
    slot, matrix = _four_rows(isa, op.load, op, op.share)
    with cute.arch.elect_one():
        text = f"{GATHER} [$0], [$1, {{$2, $3, $4, $5, $6}}], [$7];"
        emit_ptx(text, "rlrrrrrr", slot, *matrix, isa.mbarrier(*op.bar).toint())


@emits(ops.TmaScatter)
def _scatter(isa: GpuWarp, op: Any) -> None:
    slot, matrix = _four_rows(isa, op.store, op, op.part)
    control.elected(emit_ptx, f"{SCATTER} [$1, {{$2, $3, $4, $5, $6}}], [$0];", "rlrrrrr", slot, *matrix)


@emits(ops.DescriptorWrite)
def _write_descriptor(isa: GpuWarp, op: Any) -> None:
    load, (first, rows) = isa.plan.load(op.load), op.at
    tensor, slot = isa.addressed[load.argument], isa.slot_address(*op.slot)
    start = Int64(tensor.iterator.toint()) + Int64(first) * Int64(tensor.stride[0]) * load.buffer.dtype.bytes

    def make() -> None:
        words = [
            f"ld.v4.b32 {{a, b, c, d}}, [$0+{i}]; st.shared.v4.b32 [$1+{i}], {{a, b, c, d}};"
            for i in range(0, BYTES, 16)
        ]
        template = isa.atoms[load.name][0].address
        emit_ptx(f"{{ .reg .b32 a, b, c, d; {' '.join(words)} }}", "lr", template, slot)
        what, last = "tensormap.replace.tile.global_{}.shared::cta.b1024", len(load.dims) - 1
        emit_ptx(f"{what.format('address')}.b64 [$0], $1;", "rl", slot, start)
        emit_ptx(f"{what.format('dim')}.b32 [$0], {last}, $1;", "rr", slot, rows)

    control.when(isa.lane == 0, make)
    cute.arch.sync_warp()


@emits(ops.DescriptorRelease)
def _release_descriptor(isa: GpuWarp, op: Any) -> None:
    copy = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
    emit_ptx(f"{copy} [$0], [$1], {BYTES};", "lr", _place(isa, *op.slot), isa.slot_address(*op.slot))


@emits(ops.DescriptorAcquire)
def _acquire_descriptor(isa: GpuWarp, op: Any) -> None:
    emit_ptx(f"fence.proxy.tensormap::generic.acquire.gpu [$0], {BYTES};", "l", _place(isa, *op.slot))


def _place(isa: GpuWarp, buffer: Any, stage: Any) -> Any:
    """Where, in global memory, the engine reads the descriptor of a slot."""
    counts = {each.name: each.stages for each in isa.plan.made}
    before = sum(list(counts.values())[: list(counts).index(buffer.name)])
    cta = isa.cluster_id * isa.plan.cluster_size + isa.cta_rank
    return Int64(isa.scratch[-1].iterator.toint()) + Int64((cta * sum(counts.values()) + before + stage) * BYTES)


def _four_rows(isa: GpuWarp, name: str, op: Any, part: Any) -> tuple[Any, list[Any]]:
    """(where in shared memory rows 4 *part* to 4 *part* + 3 of a slot are, the operands that name the four rows of the
    matrix). *name*: the load or store of the matrix."""
    buffer = op.slot.buffer
    slot = isa.slot_address(*op.slot) + part * (4 * buffer.tile[1] * buffer.dtype.bytes)
    return slot, [address_of(isa.atoms[name][0]), op.at[-1], *op.numbers]


def _boxes(isa: GpuWarp, load: Load, stage: Any, at: Sequence[Any], share: Any, copy: Callable[..., None]) -> None:
    """Copies the boxes of one tile, of a share of a tile, or of a part of a tile.

    Args:
        stage: The slot's index.
        at: The first element of the tile or of the part, one index for each dimension of the tensor.
        share: Which share, or which part.
        copy: ``copy(target, at)`` emits the copy of one box to *target* in shared memory, as `_load` does.
    """
    buffer, size, core = load.buffer, load.buffer.dtype.bytes, load.core
    extents, steps, box = list(load.part[-core:]), load.steps[-core:], load.box
    start, batch = list(at[-core:]), list(at[: len(at) - core])
    extents[0] //= load.peers
    if load.peers > 1:
        start[0] = start[0] + share * (extents[0] * steps[0])
    pitch = _pitch(buffer) if core > 1 else size  # bytes from row to row, or of an element
    own = share * (math.prod(extents[:-1] if core > 1 else extents) * pitch)
    slot = isa.slot_address(buffer, stage) + own
    places = list(itertools.product(*(range(0, n, b) for n, b in zip(extents, box, strict=True))))

    def one(place: Sequence[Any]) -> None:
        *outer, column = place
        row: Any = 0
        for index, extent in zip(outer, extents[:-1], strict=True):
            row = row * extent + index
        coordinates = [first + step * i for first, step, i in zip(start, steps, place, strict=True)]
        target = slot + row * pitch + _column(buffer, column)
        copy(target, (*reversed(coordinates), *reversed(batch)))

    if len(places) <= UNROLLED:
        for place in places:
            one(place)
        return
    rest = list(itertools.product(*(range(0, n, b) for n, b in zip(extents[1:], box[1:], strict=True))))

    def some(i: Any) -> None:
        for place in rest:
            one((i * box[0], *place))

    control.loop(extents[0] // box[0], some)


def _windows(isa: GpuWarp, load: Load, stage: Any, at: Sequence[Any], share: Any, copy: Callable[..., None]) -> None:
    """Copies the windows of one tile, or of a share of a tile. The arguments are those of `_boxes`; at: where the first window
    begins."""
    buffer, (rows, columns) = load.buffer, load.box
    slot = isa.slot_address(buffer, stage) + share * (rows * _pitch(buffer))
    for left in range(0, buffer.tile[-1], columns):
        place = (at[-1] + left, *reversed(at[:-1]))
        copy(slot + _column(buffer, left), place)


def _pitch(buffer: Buffer) -> int:
    """Bytes from row to row."""
    return buffer.swizzle or buffer.tile[-1] * buffer.dtype.bytes


def _column(buffer: Buffer, column: int) -> int:
    """How many bytes after a slot's first column another column begins, at which a box begins."""
    nbytes = column * buffer.dtype.bytes
    span = buffer.swizzle
    return nbytes // span * (buffer.tile[0] * span) + nbytes % span if span else nbytes


def _load(
    target: Any,
    at: Sequence[Any],
    *,
    descriptor: Any,
    barrier: Any,
    mask: Any = None,
    policy: int | None = None,
    offsets: Sequence[Any] = (),
) -> None:
    """Emits one load instruction, for one lane.

    Args:
        target: An address in shared memory.
        at: The first element, the contiguous dimension first.
        descriptor: The descriptor's address.
        barrier: The mbarrier's pointer.
        mask: The CTAs that get the box; None: this CTA.
        policy: The L2 policy, as createpolicy encodes it; None: the usual policy.
        offsets: Which element of each window is loaded, in the order of the window's dimensions.
    """
    operands, kinds = [target, descriptor, barrier.toint()], "rlr"

    def added(kind: str, *values: Any) -> str:
        nonlocal kinds
        first, kinds = len(operands), kinds + kind * len(values)
        operands.extend(values)
        return ", ".join(f"${first + i}" for i in range(len(values)))

    where = added("r", *at)
    to, mode = "cta" if mask is None else "cluster", "im2col" if offsets else "tile"
    words = f"cp.async.bulk.tensor.{len(at)}d.shared::{to}.global.{mode}.mbarrier::complete_tx::bytes"
    last = f", {{{added('h', *map(Int16, reversed(offsets)))}}}" if offsets else ""
    if mask is not None:
        words, last = f"{words}.multicast::cluster", f"{last}, {added('h', mask)}"
    if policy is not None:
        words, last = f"{words}.L2::cache_hint", f"{last}, {added('l', policy)}"
    control.elected(emit_ptx, f"{words} [$0], [$1, {{{where}}}], [$2]{last};", kinds, *operands)
