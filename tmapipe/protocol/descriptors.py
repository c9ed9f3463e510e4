"""The descriptor of a `DescriptorStage` in an open slot: set by the producer, acquired by the role that loads."""

from __future__ import annotations

from typing import Any

from tmapipe.descriptor_stage import DescriptorStage
from tmapipe.errors import InputError, ScopeError
from tmapipe.isa.values import Carried, is_index
from tmapipe.plan.model import Load
from tmapipe.protocol.parts import PartInSlot
from tmapipe.protocol.registry import stands_for
from tmapipe.protocol.ring import Slot

__all__ = ["DescriptorInSlot", "View"]


class View(Carried):
    """Rows of a tensor that a descriptor shows, for loads through it while its slot is open."""

    def __init__(self, load: Load, slot: Slot):
        self.load, self.slot = load, slot


@stands_for(DescriptorStage)
class DescriptorInSlot(PartInSlot):
    """The descriptor of a `DescriptorStage` in one open slot."""

    @property
    def loaded(self) -> Load:
        """What is loaded through it."""
        return next(load for load in self.part.isa.plan.loads if load.through == self.part.buffer)

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
        self.part.isa.descriptor_write(self.loaded, self.part.buffer, self.slot.index, first, rows)

    def acquire(self) -> View:
        """What loads go through, for the role that loads.

        Raises:
            ScopeError: In another role.
        """
        name = f"slot.{self.part.buffer.name}.acquire"
        isa, load = self.part.isa, self.loaded
        loaders = {role for ring in isa.plan.rings for role, names in ring.loads.items() if load.name in names}
        if self.part.role not in loaders:
            raise ScopeError(f"{name} in role {self.part.role!r}. Only the role that loads {load.name!r} does.")
        self.by_threads()
        isa.descriptor_acquire(self.part.buffer, self.slot.index)
        return View(load, self.slot)
