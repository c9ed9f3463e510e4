"""Tile schedulers with a scheduler warp, which finds something out at run time and tells all warps of its cluster.

    scheduler of CTA 0   finds 32-bit words, e.g. where a tile lies, and writes them to a slot of every CTA of the cluster
    every warp           waits for the slot, reads the words, releases the slot

The words travel by st.async. Their bytes complete on the mbarrier of the CTA where they land.

The scheduler counts in global memory. A schedule has one set of counters per stream, and one for each stream of a capture of a
CUDA graph. So graphs and launches may run at once; two replays of one graph may not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried, SlotRef
from tmapipe.plan.model import RoleWarps

__all__ = ["SCHEDULER", "QueueEnd"]

SCHEDULER = "scheduler"  #: name of the role that finds the words


class QueueEnd(Carried):
    """The calling warp's end of the queue.

    `leads` says whether the warp is the scheduler. The pipeline state, in registers, is the next slot and its parity.
    """

    def __init__(self, isa: Isa, role: RoleWarps):
        assert isa.plan.queue is not None
        self.isa, self.queue, self.leads = isa, isa.plan.queue, role.name == SCHEDULER
        self.state = isa.cells(0, 0)

    def take(
        self, count: int, find: Callable[[], Sequence[Any]], without_data: Callable[[], Sequence[int]]
    ) -> Sequence[Any]:
        """The first *count* words of the next slot.

        Args:
            find: Finds the words, in the scheduler of the cluster's first CTA.
            without_data: What the words are in the check, which runs without data.
        """
        isa, queue, index, parity = self.isa, self.queue, self.state[0], self.state[1]
        slot = SlotRef(queue.buffer, index)

        def put() -> None:
            isa.store_words(slot, find(), queue.full)

        if self.leads:
            isa.mbarrier_wait(queue.free, index, parity ^ 1)
            isa.mbarrier_arrive_expect_tx(queue.full, index, queue.buffer.slot_bytes)
            self.once_a_cluster(put)
        isa.mbarrier_wait(queue.full, index, parity)
        found = isa.read_words(slot, count, without_data)
        isa.fence_proxy_async()
        isa.warp_sync()
        if isa.plan.cluster_size > 1:
            isa.mbarrier_arrive_cluster(queue.free, index, (1 << isa.plan.cluster_size) - 1)
        else:
            isa.mbarrier_arrive(queue.free, index)
        isa.advance(self.state, queue.buffer.stages)
        return found

    def once_a_cluster(self, body: Callable[[], None]) -> None:
        """Runs *body* in the scheduler of the cluster's first CTA, and in no other warp."""
        if not self.leads:
            return
        if self.isa.plan.cluster_size > 1:
            self.isa.when(self.isa.cta_rank == 0, body)
        else:
            body()

    def finish(self) -> None:
        """The scheduler waits for the last release of every slot, so that its CTA does not exit before them."""
        if self.leads and self.isa.plan.cluster_size > 1:
            for _ in range(self.queue.buffer.stages):
                self.isa.mbarrier_wait(self.queue.free, self.state[0], self.state[1] ^ 1)
                self.isa.advance(self.state, self.queue.buffer.stages)
