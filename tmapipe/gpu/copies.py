"""How copies and stores by threads, and prefetches, are emitted."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.nvgpu import cpasync

from tmapipe.gpu import control
from tmapipe.gpu.descriptors import Descriptor
from tmapipe.gpu.inline import emit_ptx
from tmapipe.gpu.layouts import L2_POLICIES, cute_type, full_shape, pieces_of
from tmapipe.gpu.peers import at_peer
from tmapipe.gpu.runs import width_of
from tmapipe.gpu.warp import GpuWarp
from tmapipe.integers import ceil_div
from tmapipe.isa.fragment import Fragment
from tmapipe.plan.model import WARP, Barrier, Load, Peer, Store
from tmapipe.tma_rules import ALIGNMENT

__all__ = ["CopyEmitters", "copy_tile"]

UNROLLED = 16  # copies of a thread; more are a loop, since each one's addresses take registers


class CopyEmitters(GpuWarp):
    """Methods of `GpuIsa`."""

    def prefetch_descriptor(self, part: Load | Store) -> None:
        descriptor = self.atoms[part.name][0]
        if isinstance(descriptor, Descriptor):
            emit_ptx("prefetch.tensormap [$0];", "l", descriptor.address)
        else:
            cpasync.prefetch_descriptor(descriptor)

    def cp_async(
        self, load: Load, stage: Any, at: Sequence[Any], barrier: Barrier, share: Any, shares: int, anywhere: bool
    ) -> None:
        copy_tile(self, load, stage, at, share, shares)
        cute.arch.cp_async_mbarrier_arrive_noinc(self.mbarrier(barrier, stage))

    def store_values(self, store: Store, at: Sequence[Any], values: Fragment, surely: tuple[int, int] = (0, 0)) -> None:
        """The calling thread's stores, each of some numbers that lie side by side."""
        fragments = self.fragments
        layout, size = values.layout, store.buffer.dtype.bytes
        assert layout is not None
        tile, dtype = _Tile(self, store, at), cute_type(store.buffer.dtype)
        most = width_of(layout, values.along)
        width = min(most, store.vector // size)
        wide = min(most, ALIGNMENT // size) if store.wide else width

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

        def store_all() -> None:
            """Wide ones where they can be, then in one branch, which few warps take, the others."""
            left, apart = [], None
            for first, row, column in fragments.runs(layout, wide, values.along):
                (start, inside), column = tile.row(row), at[-1] + column
                address = start + Int64(column) * size
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
            if condition is True:
                put(*what)
            else:
                control.when(condition, functools.partial(put, *what))

        if values.along == "tile":
            store_all()
        else:
            self.when(fragments.first_to_have(layout, values.along), store_all)

    def tma_prefetch(self, load: Load, at: Sequence[Any], share: Any = 0) -> None:
        def one(piece: Any) -> None:
            _, source = self.partition_of(load, at, share, load.peers, None, piece)
            with cute.arch.elect_one():  # which `cute.prefetch` leaves to its caller (CuTe DSL 4.8.1)
                cute.prefetch(self.atoms[load.name][0], source)

        control.each(pieces_of(load), one)

    def bulk_load(self, load: Load, stage: Any, at: Sequence[Any], barrier: Barrier) -> None:
        source = _element(self.addressed[load.argument], at, load.buffer.dtype.bytes)
        target, bar = self.slot_address(load.buffer, stage), self.mbarrier(barrier, stage).toint()
        with cute.arch.elect_one():
            how = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
            operands = [target, source, load.buffer.slot_bytes, bar]
            if load.l2_hint is None:
                emit_ptx(f"{how} [$0], [$1], $2, [$3];", "rlrr", *operands)
            else:
                text = f"{how}.L2::cache_hint [$0], [$1], $2, [$3], $4;"
                emit_ptx(text, "rlrrl", *operands, L2_POLICIES[load.l2_hint])

    def bulk_prefetch(self, load: Load, at: Sequence[Any]) -> None:
        tensor = self.addressed[load.argument]
        inside = functools.reduce(operator.and_, map(_inside, at, tensor.shape))

        def issue() -> None:
            source = _element(tensor, at, load.buffer.dtype.bytes)
            with cute.arch.elect_one():
                emit_ptx("cp.async.bulk.prefetch.L2.global [$0], $1;", "lr", source, load.buffer.slot_bytes)

        self.when(inside, issue)

    def peer_copy(self, peer: Peer, stage: Any, to: Any, barrier: Barrier, part: Any = None, into: Any = 0) -> None:
        assert peer.source is not None
        nbytes = peer.buffer.slot_bytes // (1 if part is None or peer.reduce else peer.peers)
        source = self.slot_address(peer.source, stage) + (0 if part is None else part * nbytes)
        target = self.slot_address(peer.buffer, stage) + (0 if part is None else into * nbytes)
        bar = self.mbarrier(barrier, stage).toint()
        how, kind = _reduction(peer.reduce, peer.buffer.dtype.name)
        text = f"{how}.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes{kind} [$0], [$1], $2, [$3];"
        with cute.arch.elect_one():
            emit_ptx(text, "rrrr", at_peer(target, to), source, nbytes, at_peer(bar, to))

    def bulk_store(self, store: Store, stage: Any, at: Sequence[Any]) -> None:
        tensor, size = self.addressed[store.argument], store.buffer.dtype.bytes
        left, whole = tensor.shape[0] - at[0], store.buffer.slot_bytes // size  # elements: bytes may be more than 2^31
        nbytes = cutlass.select_(left < whole, left, Int32(whole)) * size
        target = Int64(tensor.iterator.toint()) + Int64(at[0]) * size
        source = self.slot_address(store.buffer, stage)

        how, kind = _reduction(store.reduce, store.buffer.dtype.name)
        text = f"{how}.bulk.global.shared::cta.bulk_group{kind} [$0], [$1], $2;"

        def issue() -> None:
            with cute.arch.elect_one():
                emit_ptx(text, "lrr", target, source, nbytes)

        self.when(left > 0, issue)


def _element(tensor: Any, at: Sequence[Any], size: int) -> Any:
    """The address of the element of so many bytes at *at*."""
    address = Int64(tensor.iterator.toint())
    for index, stride in zip(at, tensor.stride, strict=True):
        address = address + Int64(index) * Int64(stride) * size
    return address


#: Of a reduction in global memory, what the instruction calls it and the type, by the kind of types.
_BULK_TYPES = {"bf16": "bf16", "fp16": "f16", "fp32": "f32", "fp64": "f64", "int32": "s32", "int64": "s64"}


def _reduction(reduce: str | None, dtype: str) -> tuple[str, str]:
    """How an instruction that copies, or reduces, begins, and how it calls the reduction of elements of a type."""
    if reduce is None:
        return "cp.async", ""
    of = _BULK_TYPES[dtype]
    if reduce in ("and", "or", "xor"):
        of = f"b{of[1:]}"
    elif reduce in ("inc", "dec") or (reduce, of) == ("add", "s64"):  # there is no other sum of 64 bits
        of = f"u{of[1:]}"
    return "cp.reduce.async", f".{reduce}{'.noftz' if reduce == 'add' and of in ('bf16', 'f16') else ''}.{of}"


def copy_tile(isa: GpuWarp, load: Load, stage: Any, at: Sequence[Any], share: Any, shares: int) -> None:
    """The calling warp's copies of one tile.

    Args:
        stage: Index of the slot.
        at: Where the tile starts (elements), one per dimension of the tensor.
        share: Which of so many *shares* of the vectors this warp copies.
    """
    buffer, size, vector = load.buffer, load.buffer.dtype.bytes, load.vector
    tile, per_row, threads = _Tile(isa, load, at), load.tile[-1] * size // vector, WARP * shares
    vectors, width = buffer.slot_bytes // vector, vector // size
    target = isa.slot_address(buffer, stage)
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
        for holds in (*inside, _inside(first, tile.shape[-1])):
            nbytes = cutlass.select_(holds, nbytes, Int32(0))
        text = (
            f"cp.async.{'cg' if vector == 16 else 'ca'}.shared.global [$0], [$1], {vector}, $2;"  # fills up with zeros
        )
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


class _Tile:
    """The rows of a tile in global memory.

    shape: of the tensor. at: where the tile starts (elements), one per dimension.
    """

    def __init__(self, isa: GpuWarp, part: Load | Store, at: Sequence[Any]):
        tensor, self.size = isa.addressed[part.argument], part.buffer.dtype.bytes
        self.shape = full_shape(tensor, part)
        self.outer = len(self.shape) - part.core
        self.at, self.extents = at, part.tile[-part.core :]
        self.strides = [0] * (len(self.shape) - len(tensor.stride)) + [Int64(stride) for stride in tensor.stride]
        self.start = Int64(tensor.iterator.toint())
        for i in range(self.outer):
            self.start = self.start + Int64(at[i]) * self.strides[i] * self.size
        self.batch = [_inside(at[i], self.shape[i]) for i in range(self.outer)]

    def row(self, row: Any) -> tuple[Any, list[Any]]:
        """The address of element 0 of the tensor in that row of the tile, and conditions for the row to be in the tensor."""
        start, inside = self.start, list(self.batch)
        for dim in range(len(self.extents) - 2, -1, -1):
            index = self.at[self.outer + dim] + (row % self.extents[dim] if dim else row)
            row = row // self.extents[dim]
            start = start + Int64(index) * self.strides[self.outer + dim] * self.size
            inside.append(_inside(index, self.shape[self.outer + dim]))
        return start, inside


def _inside(index: Any, extent: Any) -> Any:
    return (index >= 0) & (index < extent)
