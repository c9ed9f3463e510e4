"""The 32-bit words of a queued order: the counter in global memory, and st.async to the CTAs of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass.cute as cute
from cutlass import Int32
from cutlass._mlir.dialects import llvm, nvvm
from cutlass.cutlass_dsl import T

from tmapipe.gpu import control

__all__ = ["next_number", "store_words"]


def next_number(counter: Any, lane: Any, cell: Any, last: Any) -> Any:
    """The counter's value before one lane added 1, in all lanes.

    Args:
        cell: A register.
        last: The value after which the counter is set back to 0.
    """

    def take() -> None:
        cell[0] = cute.arch.atomic_add(counter.iterator.llvm_ptr, Int32(1), sem="relaxed", scope="gpu")

    def reset() -> None:
        counter[0] = Int32(0)

    control.when(lane == 0, take)
    number = cute.arch.shuffle_sync(cell[0], 0)
    control.when((lane == 0) & (number == last), reset)
    return number


def store_words(slot: Any, words: Sequence[Any], barrier: Any, cta: Any) -> None:
    """Writes four words to *slot* of CTA *cta*; the 16 bytes complete on *barrier* of that CTA.

    Args:
        slot, barrier: Addresses in the calling CTA.
    """
    rank = Int32(cta).ir_value()
    there = llvm.PointerType.get(cute.AddressSpace.dsmem)
    target, bytes_on = (llvm.ptrtoint(T.i32(), nvvm.mapa(there, pointer.llvm_ptr, rank)) for pointer in (slot, barrier))
    llvm.inline_asm(
        None,
        [target, *(Int32(word).ir_value() for word in words), bytes_on],
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [$0], {$1, $2, $3, $4}, [$5];",
        "r,r,r,r,r,r,~{memory}",
        has_side_effects=True,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
