"""Prefetches into L2 as the role that asks for them sees them."""

from __future__ import annotations

from typing import Any

from tmapipe.isa.values import Carried
from tmapipe.l2_stage import L2Stage
from tmapipe.protocol.parts import SlotPart
from tmapipe.protocol.registry import stands_for
from tmapipe.protocol.ring import Slot
from tmapipe.protocol.tile import Tile, aligned_start

__all__ = ["AheadPart"]


@stands_for(L2Stage)
class AheadPart(Carried):
    """An `L2Stage`; `at(slot)` gives it in an open slot. source: what it is ahead of."""

    async_proxy = False

    def __init__(self, k: Any, name: str, stage: L2Stage):
        load = k.plan.load(k.name_of(stage.source))
        self.name, self.load = name, load
        self.source = SlotPart(k.isa, load.buffer, load, k.role.name, False)

    def at(self, slot: Slot) -> AheadInSlot:
        return AheadInSlot(self)


class AheadInSlot(Carried):
    """The tile of an open slot, which is nowhere yet."""

    def __init__(self, part: AheadPart):
        self.part = part

    def prefetch(self, tile: Tile | None = None, **coordinates: Any) -> None:
        """Asks for a tile in L2: a hint, of which nothing waits. Beyond the tensor's end it does nothing.

        Args:
            tile: Its coordinates, in tiles.
            coordinates: Coordinates by dimension, in tiles, instead of those of *tile*.

        Raises:
            InputError: A coordinate is missing or unknown.
        """
        part, load = self.part, self.part.load
        part.source.prefetch(aligned_start(f"slot.{part.name}.prefetch", load.dims, load.span, tile, coordinates))
