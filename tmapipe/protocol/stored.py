"""A `StoredStage` in an open slot: what has been stored is made visible to whoever loads it."""

from __future__ import annotations

import functools
from typing import Any

from tmapipe.errors import ScopeError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried
from tmapipe.plan.model import Store
from tmapipe.protocol.registry import stands_for
from tmapipe.protocol.ring import Slot
from tmapipe.stored_stage import StoredStage

__all__ = ["StoredInSlot"]


class StoredInSlot(Carried):
    """A `StoredStage` in an open slot."""

    def __init__(self, isa: Isa, name: str, store: Store, slot: Slot):
        self.isa, self.name, self.plan, self.slot = isa, name, store, slot

    def publish(self) -> None:
        """Waits until all tiles that this role has stored so far are written, and fences, so that whoever enters the slot in
        the next phase can load them.

        Raises:
            ScopeError: In another role than the ring's producer.
        """
        isa, end = self.isa, self.slot.end
        if end.phase != 0:
            raise ScopeError(f"slot.{self.name}.publish() in role {end.role!r}. Only the ring's producer stores.")
        if not self.plan.vector:
            isa.bulk_wait_group(0, read=False)
        isa.fence_proxy_async_global()
        isa.warp_sync()


@stands_for(StoredStage)
def _of_stage(k: Any, name: str, stage: StoredStage) -> Any:
    return functools.partial(StoredInSlot, k.isa, name, k.plan.store(k.name_of(stage.store)))
