"""The shared memory of other CTAs of the cluster: loads from there, and st.async to there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm, nvvm
from cutlass.cutlass_dsl import T

from tmapipe.gpu import control
from tmapipe.gpu.functions import KINDS
from tmapipe.gpu.inline import emit_ptx
from tmapipe.gpu.layouts import cute_type
from tmapipe.gpu.runs import Runs
from tmapipe.isa.exchange import ClusterExchange
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.values import SlotRef
from tmapipe.plan.model import WARP, Barrier
from tmapipe.plan.thread_layout import ThreadLayout

__all__ = ["PeerFragments", "at_peer", "store_words"]

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
            values = cute.recast_tensor(words, cute_type(buffer.dtype)).load().to(KINDS[kind])
            data += [values[j] for j in range(each)]
        return Fragment(self, layout, "tile", kind, data)

    def send_tile(self, values: Fragment, slot: SlotRef, barrier: Barrier, cta: Any) -> None:
        buffer, isa, layout = slot.buffer, self.isa, values.layout
        assert layout is not None
        size, width = buffer.dtype.bytes, layout.width
        start = at_peer(isa.slot_address(buffer, slot.stage), cta)
        on = at_peer(isa.mbarrier(barrier, slot.stage).toint(), cta)
        for i, row, column in self.runs(layout, width):
            words = cute.recast_tensor(self.converted(values, i, width, cute_type(buffer.dtype)), Int32)
            place = start + buffer.byte_in_slot(row, column * size)
            for first in range(0, width * size // 4, 4):
                count = min(4, width * size // 4 - first)
                _store_async(place + 4 * first, [words[first + j] for j in range(count)], on)

    def send(self, values: Fragment, slot: SlotRef, barrier: Barrier, cta: Any, share: Any, shares: int) -> None:
        target = at_peer(self._own_part(slot, share, shares).toint(), cta)
        on = at_peer(self.isa.mbarrier(barrier, slot.stage).toint(), cta)
        for i in range(0, len(values.data), 4):
            _store_async(target + i // 4 * WARP * UNIT, values.data[i : i + 4], on, "f")

    def received(self, slot: SlotRef, share: Any, shares: int) -> Fragment:
        count, start = slot.buffer.slot_bytes // shares // (WARP * 4), self._own_part(slot, share, shares)
        values = cute.make_rmem_tensor((4, count // 4), Float32)
        for i in range(count // 4):
            address = (start + i * WARP * UNIT).toint()
            source = cute.make_ptr(Float32, address, cute.AddressSpace.smem, assumed_align=UNIT)
            cute.autovec_copy(cute.make_tensor(source, cute.make_layout((4,))), values[(None, i)])
        return Fragment(self, None, "tile", "fp32", [values[i] for i in range(count)])

    def _own_part(self, slot: SlotRef, share: Any, shares: int) -> Any:
        """Where the calling lane's first four numbers are in a part of a slot; its others follow those of the other lanes."""
        start = slot.buffer.offset + slot.stage * slot.buffer.pitch
        return self.isa.shared + start + share * (slot.buffer.slot_bytes // shares) + self.isa.lane * UNIT

    def send_partial(self, layout: ThreadLayout, data: Any, slot: SlotRef, exchange: ClusterExchange) -> None:
        isa, (rows, width) = self.isa, slot.buffer.tile
        mine = exchange.rank * (rows // exchange.peers) + layout.warp(isa.warp)
        start = cute.recast_ptr(isa.shared + slot.buffer.offset + slot.stage * slot.buffer.pitch, dtype=Int32)
        words = [*map(_bits, data), *[Int32(0)] * (width - len(data))]

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
    """Where *address* of the calling CTA's shared memory is in CTA *cta* of the cluster."""
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


def _load(address: Any, nbytes: int) -> list[Any]:
    """1, 2, 4, 8 or 16 bytes, as words."""
    count = max(1, nbytes // 4)
    what = {1: "u8", 2: "u16", 4: "b32", 8: "v2.b32", 16: "v4.b32"}[nbytes]
    registers = f"{{{', '.join(f'${i}' for i in range(count))}}}" if count > 1 else "$0"
    return emit_ptx(f"ld.shared::cluster.{what} {registers}, [${count}];", "r", address, words=count)


def _bits(value: Any) -> Any:
    """The bits of a number in fp32, as a word."""
    return Int32(llvm.bitcast(T.i32(), Float32(value).ir_value()))
