"""Orders of which a warp of its own, the scheduler, finds out something for all warps of its cluster, in run-time words.

    scheduler of CTA 0   finds words, e.g. where a tile lies -> a slot of every CTA of the cluster
    every warp           waits for the slot, reads the words, releases the slot

The words travel by st.async, which completes their bytes on the mbarrier of the CTA where they land.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried, SlotRef
from tmapipe.plan.model import RoleWarps
from tmapipe.protocol.ring import advance
from tmapipe.tiles.persistent import PersistentTiles

__all__ = ["SCHEDULER", "QueueEnd", "QueuedTiles"]

SCHEDULER = "scheduler"  #: name of the role that finds the words


class QueuedTiles(PersistentTiles):
    """Base of such orders. stages: slots of the queue. They count in global memory, in counters that a schedule has for each
    stream: a CUDA graph that was captured on one must not run at the same time as other launches of the schedule there."""

    stages = 1

    def words(self, dims: int) -> int:
        """Words of a slot, for an output of *dims* dimensions."""
        raise NotImplementedError

    def queue(self, dims: int) -> tuple[int, int]:
        """As in `TileOrder`."""
        return self.stages, self.words(dims)


class QueueEnd(Carried):
    """The calling warp's end of the queue. State, in registers: the next slot and its parity. leads: whether the warp is the
    scheduler, without whom nothing comes."""

    def __init__(self, isa: Isa, role: RoleWarps):
        assert isa.plan.queue is not None
        self.isa, self.queue, self.leads = isa, isa.plan.queue, role.name == SCHEDULER
        self.place = isa.cells(0, 0)

    def take(
        self, count: int, find: Callable[[], Sequence[Any]], without_data: Callable[[], Sequence[int]]
    ) -> Sequence[Any]:
        """The next slot's first *count* words. find: finds them, in the scheduler of the cluster's first CTA; without_data:
        what they are in the model without data."""
        isa, queue, index, parity = self.isa, self.queue, self.place[0], self.place[1]
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
        advance(isa, self.place, queue.buffer.stages)
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
        """The scheduler waits for the cluster's last release of every slot, so that its CTA does not leave before them."""
        if self.leads and self.isa.plan.cluster_size > 1:
            for _ in range(self.queue.buffer.stages):
                self.isa.mbarrier_wait(self.queue.free, self.place[0], self.place[1] ^ 1)
                advance(self.isa, self.place, self.queue.buffer.stages)
