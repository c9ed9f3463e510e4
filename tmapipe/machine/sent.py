"""Parts of sums on their way between CTAs, in the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tmapipe.isa import ops
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.fragments import Fragments
from tmapipe.isa.values import SlotRef
from tmapipe.plan.model import Barrier

if TYPE_CHECKING:
    from tmapipe.machine.warp import MachineIsa

__all__ = ["SentFragments"]


class SentFragments(Fragments):
    """Methods as documented in `tmapipe.isa.fragments.Fragments`."""

    isa: MachineIsa

    def send(self, values: Fragment, slot: SlotRef, barrier: Barrier, cta: Any, share: Any, shares: int) -> None:
        isa, nbytes = self.isa, slot.buffer.slot_bytes // shares
        isa.give(values.data)
        place, bar = isa.slot(slot.buffer, slot.stage), isa.bar(barrier, slot.stage)
        isa.emit(ops.StAsync(place, bar, nbytes, 1 << cta, (), share, shares))

    def send_tile(self, values: Fragment, slot: SlotRef, barrier: Barrier, cta: Any) -> None:
        isa, layout = self.isa, values.layout
        assert layout is not None
        isa.give(self.places(values))
        place, bar = isa.slot(slot.buffer, slot.stage), isa.bar(barrier, slot.stage)
        nbytes = slot.buffer.slot_bytes // layout.warps
        isa.emit(ops.StAsync(place, bar, nbytes, 1 << cta, (), layout.warp(isa.warp), layout.warps))

    def places(self, values: Fragment) -> Any:
        """Where in the tile, row by row, the warp's values are, and these; None without data."""
        raise NotImplementedError

    def received(self, slot: SlotRef, share: Any, shares: int) -> Fragment:
        self.isa.emit(ops.SlotRead(self.isa.slot(slot.buffer, slot.stage), share, shares, "shares"))
        data = None if self.isa.memory is None else self.isa.memory.results[self.isa.agent]
        return Fragment(self, None, "tile", "fp32", data)
