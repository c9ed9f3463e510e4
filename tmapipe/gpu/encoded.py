"""Copies as PTX that names a descriptor: loads of which TMA atoms cannot say everything, four rows at once (sm_100 and later),
and loads through descriptors that the kernel changes.

Each slot of a `DescriptorStage` has a place in global memory, since the TMA engine reads no descriptors from shared memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import cutlass.cute as cute
from cutlass import Int16, Int64

from tmapipe.gpu import control
from tmapipe.gpu.descriptors import WORDS, address_of
from tmapipe.gpu.inline import emit_ptx
from tmapipe.gpu.layouts import L2_POLICIES
from tmapipe.gpu.warp import GpuWarp
from tmapipe.plan.model import Barrier, Buffer, Load, Store

__all__ = ["EncodedEmitters"]

UNROLLED = 16  # instructions of a load; more are a loop
BYTES = 8 * WORDS
GATHER = "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
SCATTER = "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group"


class EncodedEmitters(GpuWarp):
    """Methods of `GpuIsa`."""

    def load_encoded(
        self,
        load: Load,
        stage: Any,
        at: Sequence[Any],
        share: Any,
        barrier: Any,
        mask: Any,
        offsets: Sequence[Any],
    ) -> None:
        """A load whose descriptor the library has encoded. barrier: the mbarrier's pointer; others as of `Isa.tma_load`."""
        descriptor, policy = self.atoms[load.name][0].address, L2_POLICIES.get(load.l2_hint or "")
        copy = partial(_load, descriptor=descriptor, barrier=barrier, mask=mask, policy=policy, offsets=offsets)
        (_boxes if load.windows is None else _windows)(self, load, stage, at, share, copy)

    def tma_load_through(
        self, load: Load, stage: Any, at: Sequence[Any], barrier: Barrier, through: Any, mask: Any, share: Any
    ) -> None:
        descriptor = _place(self, load.through, through)
        copy = partial(_load, descriptor=descriptor, barrier=self.mbarrier(barrier, stage), mask=mask)
        _boxes(self, load, stage, at, share, copy)

    def tma_gather(
        self, load: Load, stage: Any, rows: Sequence[Any], at: Sequence[Any], barrier: Barrier, part: Any
    ) -> None:
        slot, matrix = _four_rows(self, load, stage, rows, at, part)
        with cute.arch.elect_one():
            text = f"{GATHER} [$0], [$1, {{$2, $3, $4, $5, $6}}], [$7];"
            emit_ptx(text, "rlrrrrrr", slot, *matrix, self.mbarrier(barrier, stage).toint())

    def tma_scatter(self, store: Store, stage: Any, rows: Sequence[Any], at: Sequence[Any], part: Any) -> None:
        slot, matrix = _four_rows(self, store, stage, rows, at, part)
        with cute.arch.elect_one():
            emit_ptx(f"{SCATTER} [$1, {{$2, $3, $4, $5, $6}}], [$0];", "rlrrrrr", slot, *matrix)

    def descriptor_write(self, load: Load, buffer: Buffer, stage: Any, first: Any, rows: Any) -> None:
        tensor, slot = self.addressed[load.argument], self.slot_address(buffer, stage)
        start = Int64(tensor.iterator.toint()) + Int64(first) * Int64(tensor.stride[0]) * load.buffer.dtype.bytes

        def make() -> None:
            words = [
                f"ld.v4.b32 {{a, b, c, d}}, [$0+{i}]; st.shared.v4.b32 [$1+{i}], {{a, b, c, d}};"
                for i in range(0, BYTES, 16)
            ]
            template = self.atoms[load.name][0].address
            emit_ptx(f"{{ .reg .b32 a, b, c, d; {' '.join(words)} }}", "lr", template, slot)
            what, last = "tensormap.replace.tile.global_{}.shared::cta.b1024", len(load.dims) - 1
            emit_ptx(f"{what.format('address')}.b64 [$0], $1;", "rl", slot, start)
            emit_ptx(f"{what.format('dim')}.b32 [$0], {last}, $1;", "rr", slot, rows)

        control.when(self.lane == 0, make)
        cute.arch.sync_warp()
        copy = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
        emit_ptx(f"{copy} [$0], [$1], {BYTES};", "lr", _place(self, buffer, stage), slot)

    def descriptor_acquire(self, buffer: Buffer, stage: Any) -> None:
        emit_ptx(f"fence.proxy.tensormap::generic.acquire.gpu [$0], {BYTES};", "l", _place(self, buffer, stage))


def _place(isa: GpuWarp, buffer: Any, stage: Any) -> Any:
    """Where the engine reads the descriptor in a slot."""
    counts = {each.name: each.stages for each in isa.plan.made}
    before = sum(list(counts.values())[: list(counts).index(buffer.name)])
    cta = isa.cluster_id * isa.plan.cluster_size + isa.cta_rank
    return Int64(isa.scratch[-1].iterator.toint()) + Int64((cta * sum(counts.values()) + before + stage) * BYTES)


def _four_rows(
    isa: GpuWarp, move: Load | Store, stage: Any, rows: Sequence[Any], at: Sequence[Any], part: Any
) -> tuple[Any, list[Any]]:
    """Where in shared memory rows 4 *part* to 4 *part* + 3 of a slot are, and the operands that name *rows* of the matrix."""
    buffer = move.buffer
    slot = isa.slot_address(buffer, stage) + part * (4 * buffer.tile[1] * buffer.dtype.bytes)
    return slot, [address_of(isa.atoms[move.name][0]), at[-1], *rows]


def _boxes(isa: GpuWarp, load: Load, stage: Any, at: Sequence[Any], share: Any, copy: Callable[..., None]) -> None:
    """The boxes of one tile, or of a share or a part of one.

    Args:
        stage: Index of the slot.
        at: Where the tile, or the part, starts (elements), one per dimension of the tensor.
        share: Which share, or part.
        copy: As `_load`, of what it copies and where to.
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
    """The windows of one tile, or of a share of one. Arguments as of `_boxes`; at: where the first window begins."""
    buffer, (rows, columns) = load.buffer, load.box
    slot = isa.slot_address(buffer, stage) + share * (rows * _pitch(buffer))
    for left in range(0, buffer.tile[-1], columns):
        place = (at[-1] + left, *reversed(at[:-1]))
        copy(slot + _column(buffer, left), place)


def _pitch(buffer: Buffer) -> int:
    """Bytes from row to row."""
    return buffer.swizzle or buffer.tile[-1] * buffer.dtype.bytes


def _column(buffer: Buffer, column: int) -> int:
    """Bytes from the first column of a slot to another one that a box begins with."""
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
    """One instruction, by one lane.

    Args:
        target: An address in shared memory.
        at: The contiguous dimension first.
        descriptor: Where it lies.
        barrier: The mbarrier's pointer.
        mask: CTAs that get the box; None: this one.
        policy: Of L2, as createpolicy encodes it; None: the usual one.
        offsets: In windows, in their order.
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
    with cute.arch.elect_one():
        emit_ptx(f"{words} [$0], [$1, {{{where}}}], [$2]{last};", kinds, *operands)
