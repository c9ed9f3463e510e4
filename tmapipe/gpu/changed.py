"""How descriptors are changed by the kernel, and how it loads through them.

Each slot of a `DescriptorStage` has a place in global memory, since the TMA engine reads no descriptors from shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass.cute as cute
from cutlass import Int64

from tmapipe.gpu import control
from tmapipe.gpu.descriptors import WORDS, load_boxes
from tmapipe.gpu.inline import emit_ptx
from tmapipe.plan.model import Barrier, Buffer, Load

__all__ = ["DescriptorEmitters"]

BYTES = 8 * WORDS


class DescriptorEmitters:
    """Methods of `GpuIsa`."""

    def descriptor_write(self: Any, load: Load, buffer: Buffer, stage: Any, first: Any, rows: Any) -> None:
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

    def descriptor_acquire(self: Any, buffer: Buffer, stage: Any) -> None:
        emit_ptx(f"fence.proxy.tensormap::generic.acquire.gpu [$0], {BYTES};", "l", _place(self, buffer, stage))

    def tma_load_through(
        self: Any, load: Load, stage: Any, at: Sequence[Any], barrier: Barrier, through: Any, mask: Any, share: Any
    ) -> None:
        place = _place(self, load.through, through)
        load_boxes(
            self, load, stage, at, share, {"barrier": self.mbarrier(barrier, stage), "mask": mask, "descriptor": place}
        )


def _place(isa: Any, buffer: Any, stage: Any) -> Any:
    """Where the engine reads the descriptor in a slot."""
    counts = {each.name: each.stages for each in isa.plan.made}
    before = sum(list(counts.values())[: list(counts).index(buffer.name)])
    cta = isa.cluster_id * isa.plan.cluster_size + isa.cta_rank
    return Int64(isa.workspace.iterator.toint()) + Int64((cta * sum(counts.values()) + before + stage) * BYTES)
