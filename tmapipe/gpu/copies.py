"""How copies by threads, and prefetches, are emitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import cpasync
from cutlass.cutlass_dsl import T

from tmapipe.gpu import control
from tmapipe.gpu.descriptors import Descriptor, prefetch
from tmapipe.gpu.layouts import full_shape, pieces_of
from tmapipe.integers import ceil_div
from tmapipe.plan.model import WARP, Barrier, Buffer, Load, Peer, Store

if TYPE_CHECKING:
    from tmapipe.gpu.isa import GpuIsa

__all__ = ["CopyEmitters"]

UNROLLED = 16  # copies of a thread; more are a loop, since each one's addresses take registers


class CopyEmitters:
    """Methods of `GpuIsa`."""

    def prefetch_descriptor(self: Any, part: Load | Store) -> None:
        descriptor = self.atoms[part.name][0]
        if isinstance(descriptor, Descriptor):
            prefetch(descriptor)
        else:
            cpasync.prefetch_descriptor(descriptor)

    def cp_async(
        self: Any, load: Load, stage: Any, at: Sequence[Any], barrier: Barrier, share: Any, shares: int, anywhere: bool
    ) -> None:
        copy_tile(self, load, stage, at, share, shares)
        cute.arch.cp_async_mbarrier_arrive_noinc(self.mbarrier(barrier, stage))

    def tma_prefetch(self: Any, load: Load, at: Sequence[Any], share: Any = 0) -> None:
        for piece in range(pieces_of(load)):
            _, source = self.partition_of(load, at, share, load.peers, None, piece)
            with cute.arch.elect_one():  # which `cute.prefetch` leaves to its caller (CuTe DSL 4.8.1)
                cute.prefetch(self.atoms[load.name][0], source)

    def peer_copy(
        self: Any, peer: Peer, stage: Any, to: Any, barrier: Barrier, part: Any = None, into: Any = 0
    ) -> None:
        nbytes = peer.buffer.slot_bytes // (1 if part is None else peer.peers)
        start = self.shared.toint()
        source = start + peer.source.offset + stage * peer.source.pitch + (0 if part is None else part * nbytes)
        target = start + peer.buffer.offset + stage * peer.buffer.pitch + (0 if part is None else into * nbytes)
        bar = start + barrier.offset + stage * 8
        with cute.arch.elect_one():
            _bulk_to_peer(_at_peer(target, to), source, nbytes, _at_peer(bar, to))


def _at_peer(address: Any, rank: Any) -> Any:
    """Where *address* of the own CTA's shared memory is in the CTA of that rank."""
    return Int32(
        llvm.inline_asm(
            T.i32(),
            [Int32(address).ir_value(), Int32(rank).ir_value()],
            "mapa.shared::cluster.u32 $0, $1, $2;",
            "=r,r,r",
            asm_dialect=llvm.AsmDialect.AD_ATT,
        )
    )


def _bulk_to_peer(target: Any, source: Any, nbytes: int, bar: Any) -> None:
    llvm.inline_asm(
        None,
        [Int32(value).ir_value() for value in (target, source, nbytes, bar)],
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];",
        "r,r,r,r,~{memory}",
        has_side_effects=True,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )


def copy_tile(isa: GpuIsa, load: Load, stage: Any, at: Sequence[Any], share: Any, shares: int) -> None:
    """The calling warp's copies of one tile.

    Args:
        stage: Index of the slot.
        at: Where the tile starts (elements), one per dimension of the tensor.
        share: Which of so many *shares* of the vectors this warp copies.
    """
    tensor, buffer, size = isa.addressed[load.argument], load.buffer, load.buffer.dtype.bytes
    shape = full_shape(tensor, load)
    strides = [0] * (len(shape) - len(tensor.stride)) + [Int64(stride) for stride in tensor.stride]
    extents, per_row, threads = load.tile[-load.core :], load.tile[-1] * size // load.vector, WARP * shares
    vectors = buffer.slot_bytes // load.vector
    outer = len(shape) - load.core
    source = Int64(tensor.iterator.toint())
    for i in range(outer):
        source = source + Int64(at[i]) * strides[i] * size
    batch = [_inside(at[i], shape[i]) for i in range(outer)]
    target = isa.shared.toint() + buffer.offset + stage * buffer.pitch
    thread = share * WARP + isa.lane

    def copy(i: Any) -> None:
        """Vector *i* of the slot."""
        row, column = i // per_row, i % per_row
        start, inside = source, list(batch)
        left = row
        for dim in range(load.core - 2, -1, -1):
            index = at[outer + dim] + (left % extents[dim] if dim else left)
            left = left // extents[dim]
            start = start + Int64(index) * strides[outer + dim] * size
            inside.append(_inside(index, shape[outer + dim]))
        first = at[-1] + column * (load.vector // size)
        start = start + Int64(first) * size
        rest, width = shape[-1] - first, load.vector // size
        nbytes = cutlass.select_(rest < width, rest, Int32(width)) * size
        for holds in (*inside, _inside(first, shape[-1])):
            nbytes = cutlass.select_(holds, nbytes, Int32(0))
        _cp_async(target + _place(buffer, row, column * load.vector), start, load.vector, nbytes)

    def turn(j: Any) -> None:
        i = thread + j * threads
        if vectors % threads:
            control.when(i < vectors, lambda: copy(i))
        else:
            copy(i)

    turns = ceil_div(vectors, threads)
    if turns > UNROLLED:
        control.loop(turns, turn)
    else:
        for j in range(turns):
            turn(j)


def _inside(index: Any, extent: Any) -> Any:
    return (index >= 0) & (index < extent)


def _place(buffer: Buffer, row: Any, column: Any) -> Any:
    """Where byte *column* of a row is (bytes, in its slot). Rows are cut into swizzle spans, whose 16-byte units are permuted
    among each 8 rows."""
    if not buffer.swizzle:
        return row * (buffer.tile[-1] * buffer.dtype.bytes) + column
    span = buffer.swizzle
    place = column // span * (buffer.tile[0] * span) + row * span + column % span
    return place ^ (((place >> 7) & (span // 16 - 1)) << 4)


def _cp_async(target: Any, source: Any, vector: int, nbytes: Any) -> None:
    """Copies *nbytes* of *vector* bytes, and fills the rest with zeros."""
    cache = "cg" if vector == 16 else "ca"
    llvm.inline_asm(
        None,
        [Int32(target).ir_value(), Int64(source).ir_value(), Int32(nbytes).ir_value()],
        f"cp.async.{cache}.shared.global [$0], [$1], {vector}, $2;",
        "r,l,r,~{memory}",
        has_side_effects=True,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
