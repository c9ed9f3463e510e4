"""Stages of one state, by their names in another: rings are uniform, so a state recurs wherever the warps are in them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from tmapipe.isa.effects import declared
from tmapipe.isa.operands import Kind
from tmapipe.machine.layout import Layout
from tmapipe.prove.positions import Shifts, without_position

__all__ = ["Renaming"]


class Renaming:
    """Stages of one state, by their names in another. shifts: by CTA and array, as of `Positions.from_here`."""

    def __init__(self, layout: Layout, shifts: Shifts):
        self.layout, self.shifts = layout, shifts
        self._renamed: dict[Any, Any] = {}

    @cached_property
    def bars(self) -> list[tuple[int, int]]:
        """By an mbarrier's flat index in the cluster: its index there, and whether its parity flips."""
        layout = self.layout
        found = []
        for cta in range(layout.ctas):
            for i, (array, stage, stages) in enumerate(layout.bar_places):
                laps, position = divmod(stage + self.shifts.get((cta, array), 0), stages)
                found.append((cta * layout.nbars + i - stage + position, laps & 1))
        return found

    @cached_property
    def slots(self) -> list[int]:
        """By a slot's flat index in the cluster: its index there."""
        layout = self.layout
        found = []
        for cta in range(layout.ctas):
            for i, (array, position, around) in enumerate(layout.slot_places):
                shift = self.shifts.get((cta, array), 0)
                found.append(cta * layout.nslots + i - position + (position + shift) % around)
        return found

    def op(self, agent: int, op: Any) -> Any:
        """The same operation of a warp there."""
        layout, cta = self.layout, agent // self.layout.warps
        bars, slots = cta * layout.nbars, cta * layout.nslots
        key = cta, without_position(op)
        found = self._renamed.get(key)
        if found is None:
            of = declared(type(op))
            changes: dict[str, Any] = {
                name: self.slots[slots + getattr(op, name)] - slots for name in of.named(Kind.SLOT)
            }
            for name in of.named(Kind.BAR):
                there, flips = self.bars[bars + getattr(op, name)]
                changes[name] = there - bars
                changes.update({parity: getattr(op, parity) ^ flips for parity in of.named(Kind.PARITY)})
            found = self._renamed[key] = op._replace(**changes) if changes else op
        return found
