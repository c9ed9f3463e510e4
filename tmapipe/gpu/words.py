"""st.async to the CTAs of a cluster: the 32-bit words of a queued order, and values of fragments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm, nvvm
from cutlass.cutlass_dsl import T

from tmapipe.gpu.inline import emit_ptx
from tmapipe.plan.model import WARP

__all__ = ["UNIT", "at_peer", "received", "send", "store_async", "store_words"]

UNIT = 16  # bytes that one st.async moves


def store_words(slot: Any, words: Sequence[Any], barrier: Any, cta: Any) -> None:
    """Writes four words to *slot* of CTA *cta*; the 16 bytes complete on *barrier* of that CTA.

    Args:
        slot, barrier: Addresses in the calling CTA.
    """
    target, on = at_peer(slot.toint(), cta), at_peer(barrier.toint(), cta)
    store_async(target, words, on)


def send(place: Any, values: Sequence[Any], barrier: Any, cta: Any) -> None:
    """Writes *values*, fp32, to CTA *cta*, four at a time: the first ones to *place*, others further on, with those of the
    other lanes between. Their bytes complete on *barrier* of that CTA.

    Args:
        place, barrier: Addresses in the calling CTA.
    """
    target, on = at_peer(place.toint(), cta), at_peer(barrier.toint(), cta)
    for i in range(0, len(values), 4):
        store_async(target + i // 4 * WARP * UNIT, values[i : i + 4], on, "f")


def received(place: Any, count: int) -> list[Any]:
    """The *count* values that `send` has written to *place*."""
    values = cute.make_rmem_tensor((4, count // 4), Float32)
    for i in range(count // 4):
        address = (place + i * WARP * UNIT).toint()
        source = cute.make_ptr(Float32, address, cute.AddressSpace.smem, assumed_align=UNIT)
        cute.autovec_copy(cute.make_tensor(source, cute.make_layout((4,))), values[(None, i)])
    return [values[i] for i in range(count)]


def at_peer(address: Any, cta: Any) -> Any:
    """Where *address* of the calling CTA's shared memory is in CTA *cta* of the cluster."""
    here, there = (llvm.PointerType.get(space) for space in (cute.AddressSpace.smem, cute.AddressSpace.dsmem))
    pointer = nvvm.mapa(there, llvm.inttoptr(here, Int32(address).ir_value()), Int32(cta).ir_value())
    return Int32(llvm.ptrtoint(T.i32(), pointer))


def store_async(target: Any, words: Sequence[Any], barrier: Any, kind: str = "r") -> None:
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
