"""Numbers that the warps of a role exchange through shared memory, for reductions over several warps, or several CTAs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tmapipe.isa.values import Carried, SlotRef, Value
from tmapipe.plan.model import Barrier, Buffer, NamedBarrier

if TYPE_CHECKING:
    from tmapipe.isa.interface import Isa

__all__ = ["ClusterExchange", "Exchange"]


class Exchange(Carried):
    """One role's `ReductionScratch`. Which of its two copies comes next is kept in a register.

    A warp writes a copy again only after the barrier of the reduction between, which all warps reach after they have read it.
    So one barrier for each reduction is enough.

    buffer: (warps, width) fp32, two slots. barrier: for all threads of the role.
    """

    peers = 1  # CTAs whose warps take part

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

    def read(self) -> None:
        """Called when the warp has read the copy."""


class ClusterExchange(Exchange):
    """The same among CTAs of a cluster: each warp sends its numbers to all of them by st.async, and waits until those of all
    warps have come. The parity of the mbarriers is kept in a register too.

    A warp sends its numbers of the next reduction only after it has read these, and a copy is written again only after the
    reduction in between, which waits for that of all warps.

    buffer: (CTAs * warps, width) fp32, two slots. full: completes when all numbers of a copy have come, of which each warp
    arms its part. mask: of the CTAs; rank: the own one's index among them; peers: how many there are.
    """

    def __init__(self, isa: Isa, buffer: Buffer, full: Barrier, mask: Value, rank: Value, peers: int):
        self.isa, self.buffer, self.full, self.mask, self.rank, self.peers = isa, buffer, full, mask, rank, peers
        self.next = isa.cells(0, 0, 0)  # the copy, its parity; those in use

    def take(self) -> SlotRef:
        copy, parity = self.next[0], self.next[1]
        self.next[2] = copy | parity << 1
        self.next[1] = parity ^ copy
        self.next[0] = copy ^ 1
        self.isa.mbarrier_arrive_expect_tx(self.full, copy, self.buffer.slot_bytes // self.full.count)
        return SlotRef(self.buffer, copy)

    def sync(self) -> None:
        """Waits for the numbers of all warps of all CTAs."""
        self.isa.mbarrier_wait(self.full, self.next[2] & 1, self.next[2] >> 1)

    def read(self) -> None:
        self.isa.fence_proxy_async()
        self.isa.warp_sync()
