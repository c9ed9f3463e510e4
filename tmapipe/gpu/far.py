"""Loads from the shared memory of other CTAs of the cluster, and tiles that threads store there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cutlass.cute as cute
from cutlass import Int32
from cutlass._mlir import ir
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T

from tmapipe.gpu.functions import KINDS
from tmapipe.gpu.layouts import cute_type
from tmapipe.gpu.words import at_peer, store_async
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.values import SlotRef
from tmapipe.plan.model import Barrier
from tmapipe.plan.thread_layout import ThreadLayout

if TYPE_CHECKING:
    from tmapipe.gpu.isa import GpuIsa

__all__ = ["Far"]


class Far:
    """Methods as documented in `tmapipe.isa.fragments`."""

    isa: GpuIsa
    row: Callable[[ThreadLayout, int], Any]
    column: Callable[[ThreadLayout, int], Any]

    def read_peer(self: Any, slot: SlotRef, cta: Any, layout: ThreadLayout, at: tuple[Any, Any]) -> Fragment:
        buffer, isa, width = slot.buffer, self.isa, layout.width
        kind, size = buffer.dtype.kind, buffer.dtype.bytes
        start = at_peer(isa.slot_address(buffer, slot.stage), cta)
        together = isinstance(at[1], int) and at[1] % width == 0 and buffer.tile[1] % width == 0
        each = min(width, 16 // size) if together else 1
        data: list[Any] = []
        for i in range(0, layout.values, each):
            row = self.row(layout, layout.row_slot(i)) + at[0]
            column = self.column(layout, layout.column_slot(i)) + at[1]
            words = cute.make_rmem_tensor((max(1, each * size // 4),), Int32)
            for j, word in enumerate(_load(start + buffer.place(row, column * size), each * size)):
                words[j] = word
            values = cute.recast_tensor(words, cute_type(buffer.dtype)).load().to(KINDS[kind])
            data += [values[j] for j in range(each)]
        return Fragment(self, layout, "tile", kind, data)

    def send_tile(self: Any, values: Fragment, slot: SlotRef, barrier: Barrier, cta: Any) -> None:
        buffer, isa, layout = slot.buffer, self.isa, values.layout
        assert layout is not None
        dtype, size, width = cute_type(buffer.dtype), buffer.dtype.bytes, layout.width
        start = at_peer(isa.slot_address(buffer, slot.stage), cta)
        on = at_peer(isa.mbarrier(barrier, slot.stage).toint(), cta)
        for i in range(0, layout.values, width):
            part = Fragment(self, layout, "tile", values.kind, values.data[i : i + width])
            converted = cute.make_rmem_tensor((width,), dtype)
            converted.store(self.vector(part, (width,)).to(dtype))
            words = cute.recast_tensor(converted, Int32)
            place = start + buffer.place(
                self.row(layout, layout.row_slot(i)), self.column(layout, layout.column_slot(i)) * size
            )
            for first in range(0, width * size // 4, 4):
                count = min(4, width * size // 4 - first)
                store_async(place + 4 * first, [words[first + j] for j in range(count)], on)


def _load(address: Any, nbytes: int) -> list[Any]:
    """1, 2, 4, 8 or 16 bytes, as words."""
    count = max(1, nbytes // 4)
    what = {1: "u8", 2: "u16", 4: "b32", 8: "v2.b32", 16: "v4.b32"}[nbytes]
    registers = f"{{{', '.join(f'${i}' for i in range(count))}}}" if count > 1 else "$0"
    kind = T.i32() if count == 1 else ir.Type.parse(f"!llvm.struct<({', '.join(['i32'] * count)})>")
    found = llvm.inline_asm(
        kind,
        [Int32(address).ir_value()],
        f"ld.shared::cluster.{what} {registers}, [${count}];",
        ",".join(["=r"] * count) + ",r,~{memory}",
        has_side_effects=True,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
    return [Int32(found)] if count == 1 else [Int32(llvm.extractvalue(T.i32(), found, [i])) for i in range(count)]
