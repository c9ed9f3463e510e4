"""The descriptor of a `DescriptorStage` in an open slot: set by the producer, acquired by the role that loads."""

from __future__ import annotations

from typing import Any

from tmapipe.descriptor_stage import DescriptorStage
from tmapipe.errors import InputError, ScopeError
from tmapipe.isa.values import Carried, is_index
from tmapipe.plan.model import Load
from tmapipe.protocol.parts import PartInSlot, SlotPart
from tmapipe.protocol.registry import stands_for
from tmapipe.protocol.ring import Slot

__all__ = ["DescriptorPart", "View"]


class View(Carried):
    """Rows of a tensor that a descriptor shows, for loads through it while its slot is open."""

    def __init__(self, load: Load, slot: Slot):
        self.load, self.slot = load, slot


@stands_for(DescriptorStage)
class DescriptorPart(SlotPart):
    """A `DescriptorStage` as one role sees it."""

    def __init__(self, k: Any, name: str, stage: DescriptorStage, async_proxy: bool):
        super().__init__(k.isa, k.plan.buffer(name), None, k.role.name, async_proxy=False)
        self.loaded: Load = k.plan.load(k.name_of(stage.of))

    def at(self, slot: Slot) -> DescriptorInSlot:
        return DescriptorInSlot(self, slot)


class DescriptorInSlot(PartInSlot):
    """A descriptor in one open slot."""

    part: DescriptorPart

    def set(self, first: Any, rows: Any) -> None:
        """Makes the descriptor one of *rows* rows of the stage's tensor, from row *first* on: at least one row, all of them in
        the tensor. (What lies outside, the hardware would load; the model raises `HazardError`.)

        Raises:
            ScopeError: In a role other than the ring's producer.
            InputError: One is no whole number.
        """
        name = f"slot.{self.part.buffer.name}.set"
        if self.end.phase != 0:
            raise ScopeError(f"{name} in role {self.part.role!r}. Only the ring's producer sets descriptors.")
        for argument, value in (("first", first), ("rows", rows)):
            if not is_index(value):
                raise InputError(f"{name}({argument})", value, "is a whole number of rows", "e.g. 0")
        self.by_threads(writes=True)
        self.part.isa.descriptor_write(self.part.loaded, self.part.buffer, self.slot.index, first, rows)

    def acquire(self) -> View:
        """What loads go through, for the role that loads.

        Raises:
            ScopeError: In another role.
        """
        name = f"slot.{self.part.buffer.name}.acquire"
        isa, load = self.part.isa, self.part.loaded
        loaders = {role for ring in isa.plan.rings for role, names in ring.loads.items() if load.name in names}
        if self.part.role not in loaders:
            raise ScopeError(
                f"{name} in role {self.part.role!r}. Only the role that loads {load.name!r} loads through it."
            )
        self.by_threads()
        isa.descriptor_acquire(self.part.buffer, self.slot.index)
        return View(load, self.slot)
