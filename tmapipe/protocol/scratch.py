"""Scratch as its role sees it: tiles that are read and written like those of an open slot, but that no ring hands on."""

from __future__ import annotations

from typing import Any

from tmapipe.errors import InputError
from tmapipe.isa.values import Carried, is_index
from tmapipe.protocol.parts import PartInSlot, SlotPart
from tmapipe.protocol.registry import stands_for
from tmapipe.scratch import Scratch

__all__ = ["BoundScratch"]


class _Always(Carried):
    """Stands for the open slot of a `PartInSlot`: open at any time, and touched by threads before."""

    open = True

    def __init__(self, name: str, index: Any):
        self.index = index
        self.touched_by_threads = {name: True}

    def _check_open(self, stage: str = "") -> None:
        pass

    def _touched(self, stages: Any = None) -> Any:
        return True


@stands_for(Scratch)
class BoundScratch(PartInSlot):
    """A `Scratch` in its role: its first copy, or with `copy` another one."""

    def __init__(self, k: Any, name: str, scratch: Scratch):
        slot: Any = _Always(name, 0)
        super().__init__(SlotPart(k.isa, k.role.name, k.plan.buffer(name)), slot)

    def copy(self, i: Any) -> PartInSlot:
        """Copy number *i*, of as many as were declared.

        Raises:
            InputError: There is none of this number, if that is known.
        """
        copies = self.ref.buffer.stages
        if not is_index(i, copies):
            rule = f"has {copies} {'copies' if copies > 1 else 'copy'}"
            raise InputError(f"k.{self.ref.buffer.name}.copy", i, rule, "count from 0, or declare more copies")
        slot: Any = _Always(self.ref.buffer.name, i)
        return PartInSlot(self.part, slot)
