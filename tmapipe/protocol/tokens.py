"""Stages without memory in an open slot: prefetches into L2, and what has been stored."""

from __future__ import annotations

import functools
from typing import Any

import attrs

from tmapipe.errors import ScopeError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried
from tmapipe.l2_stage import L2Stage
from tmapipe.plan.model import Store
from tmapipe.protocol.parts import PartInSlot, SlotPart
from tmapipe.protocol.registry import stands_for
from tmapipe.protocol.ring import Slot
from tmapipe.protocol.tile import Tile
from tmapipe.stored_stage import StoredStage

__all__ = ["AheadInSlot", "StoredInSlot"]


class AheadInSlot(Carried):
    """The tile of an `L2Stage` in an open slot, which is nowhere yet. part: of the stage that it is ahead of."""

    def __init__(self, part: SlotPart, slot: Slot):
        self.tile = PartInSlot(part, slot)

    def prefetch(self, tile: Tile | None = None, **coordinates: Any) -> None:
        """Asks for a tile in L2: a hint, of which nothing waits. Beyond the tensor's end it does nothing.

        Args:
            tile: Its coordinates, in tiles.
            coordinates: Coordinates by dimension, in tiles, instead of those of *tile*.

        Raises:
            ScopeError: In a role other than the ring's producer.
            InputError: A coordinate is missing or unknown.
        """
        self.tile.prefetch(tile, **coordinates)


@stands_for(L2Stage)
def _ahead(k: Any, name: str, stage: L2Stage) -> Any:
    load = k.plan.load(k.name_of(stage.source))
    buffer = attrs.evolve(load.buffer, name=name)  # errors name the L2Stage
    return functools.partial(AheadInSlot, SlotPart(k.isa, k.role.name, buffer, load))


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
def _stored(k: Any, name: str, stage: StoredStage) -> Any:
    return functools.partial(StoredInSlot, k.isa, name, k.plan.store(k.name_of(stage.store)))
