"""Prefetches into L2 as the role that asks for them sees them."""

from __future__ import annotations

import functools
from typing import Any

import attrs

from tmapipe.isa.values import Carried
from tmapipe.l2_stage import L2Stage
from tmapipe.protocol.parts import PartInSlot, SlotPart
from tmapipe.protocol.registry import stands_for
from tmapipe.protocol.ring import Slot
from tmapipe.protocol.tile import Tile

__all__ = ["AheadInSlot"]


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
def _of_stage(k: Any, name: str, stage: L2Stage) -> Any:
    load = k.plan.load(k.name_of(stage.source))
    buffer = attrs.evolve(load.buffer, name=name)  # errors name the L2Stage
    return functools.partial(AheadInSlot, SlotPart(k.isa, k.role.name, buffer, load))
