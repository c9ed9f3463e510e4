"""Numbers that the warps of a role exchange through shared memory, for reductions over several warps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tmapipe.isa.values import Carried, SlotRef
from tmapipe.plan.model import Buffer, NamedBarrier

if TYPE_CHECKING:
    from tmapipe.isa.interface import Isa

__all__ = ["Exchange"]


class Exchange(Carried):
    """One role's `ReductionScratch`. Which of its two copies comes next is kept in a register.

    A warp writes a copy again only after the barrier of the reduction between, which all warps reach after they have read it.
    So one barrier for each reduction is enough.

    buffer: (warps, width) fp32, two slots. barrier: for all threads of the role.
    """

    def __init__(self, isa: Isa, buffer: Buffer, barrier: NamedBarrier):
        self.isa, self.buffer, self.barrier = isa, buffer, barrier
        self.next = isa.cells(0)

    @property
    def width(self) -> int:
        """How many numbers of a warp fit."""
        return self.buffer.tile[1]

    def take(self) -> SlotRef:
        """The copy to be used now."""
        copy: Any = self.next[0]
        self.next[0] = copy ^ 1
        return SlotRef(self.buffer, copy)

    def sync(self) -> None:
        """Waits for all warps of the role."""
        self.isa.named_barrier_sync(self.barrier)
