"""The 32-bit words of a queued order: st.async to the CTAs of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass.cute as cute
from cutlass import Int32
from cutlass._mlir.dialects import llvm, nvvm
from cutlass.cutlass_dsl import T

__all__ = ["store_words"]


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
