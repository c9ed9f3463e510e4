"""The ends of a ring that is filled once a CTA: its slot is handed on before the first tile, and read at every tile."""

from __future__ import annotations

from typing import Any, ClassVar

from tmapipe.errors import MissingPartError, ScopeError
from tmapipe.isa.interface import Isa
from tmapipe.plan.rings import Ring
from tmapipe.protocol.groups import Groups
from tmapipe.protocol.ring import Parts, RingEnd, Slot

__all__ = ["HeldEnd"]


class HeldEnd(RingEnd):
    """One role's end of such a ring (``BarrierRing(per="cta")``).

    The roles of the last phase wait for the slot before their first tile and keep it: in their bodies, its tiles are
    attributes, such as ``k.weights.w.read()``. The others enter it once, in what they do before their first tile.
    """

    _facts: ClassVar[dict[str, str]] = {**RingEnd._facts, "slot": "always"}

    def __init__(self, isa: Isa, ring: Ring, role: str, parts: Parts, groups: Groups | None = None):
        super().__init__(isa, ring, role, parts, groups)
        self.last = self.phase == len(ring.phases) - 1
        self.before = False  # whether the role is at what it does before its first tile
        self.slot: Slot | None = None

    def begin(self) -> None:
        """Before the first tile: the last phase waits for the slot. Others may enter it from now on."""
        self.before = True
        if self.last:
            self._wait(0, 0)
            self.slot = Slot(self)
            self.slot.index, self.slot.open = 0, True
            self.slot.touched_by_threads.update(
                dict.fromkeys(self.parts, True)
            )  # so that no tile differs from the first

    def begun(self) -> None:
        """What is done before the first tile is over. Raises `ScopeError` if the role has not entered the slot."""
        self.before = False
        if self.slot is None:
            verb = "consume" if self.phase else "produce"
            fix = f"In `@{self.role}.before.jit`: `with k.{self.ring.name}.{verb}() as slot`."
            raise ScopeError(f"ring {self.ring.name!r} is filled once a CTA, and role {self.role!r} does not. {fix}")

    def skip(self, slots: Any) -> None:
        """Teams have the same slot."""

    def finish(self) -> None:
        """Nobody overwrites the slot, so nobody waits until it has been read."""

    def _enter(self) -> Any:
        if self.last or not self.before or self.slot is not None:
            fix = f"read k.{self.ring.name}.<stage>" if self.last else f"enter it in `@{self.role}.before.jit`, once"
            rule = f"it is filled once a CTA, before the first tile, and then held. To use it, {fix}."
            raise ScopeError(f"a slot of ring {self.ring.name!r} entered in role {self.role!r}: {rule}")
        if self.phase:
            self._wait(0, 0)
        nbytes = self.ring.armed.get(self.role, 0)
        if nbytes:
            self.isa.mbarrier_arrive_expect_tx(self.signalled, 0, nbytes)
        self.slot = Slot(self)
        return 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "slot" not in self.__dict__:
            raise AttributeError(name)
        if self.slot is None or not self.last:
            rule = "The last phase of a ring filled once a CTA reads it so; others enter it."
            raise MissingPartError(f"k.{self.ring.name}.{name} in role {self.role!r}. {rule}")
        return getattr(self.slot, name)
