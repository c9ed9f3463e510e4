"""A `StoredStage` in an open slot: what has been stored is made visible to whoever loads it."""

from __future__ import annotations

from typing import Any

from tmapipe.errors import ScopeError
from tmapipe.isa.values import Carried
from tmapipe.plan.model import Store
from tmapipe.protocol.registry import stands_for
from tmapipe.protocol.ring import Slot
from tmapipe.stored_stage import StoredStage

__all__ = ["StoredPart"]


@stands_for(StoredStage)
class StoredPart(Carried):
    """A `StoredStage` as one role sees it; `at(slot)` gives it in an open slot."""

    async_proxy = False

    def __init__(self, k: Any, name: str, stage: StoredStage):
        self.isa, self.role, self.name = k.isa, k.role, name
        self.store: Store = k.plan.store(k.name_of(stage.store))

    def at(self, slot: Slot) -> StoredInSlot:
        return StoredInSlot(self, slot)


class StoredInSlot(Carried):
    """The stage in an open slot."""

    def __init__(self, part: StoredPart, slot: Slot):
        self.part, self.slot = part, slot

    def publish(self) -> None:
        """Waits until all tiles that this role has stored so far are written, and fences, so that whoever enters the slot in
        the next phase can load them.

        Raises:
            ScopeError: In another role than the ring's producer.
        """
        part, isa = self.part, self.part.isa
        if self.slot.end.phase != 0:
            raise ScopeError(f"slot.{part.name}.publish() in role {part.role.name!r}. Only the ring's producer stores.")
        if not part.store.vector:
            isa.bulk_wait_group(0, read=False)
        isa.fence_proxy_async_global()
        isa.warp_sync()
