"""A turnstile as one team sees it, or one warpgroup of a role of one team."""

from __future__ import annotations

from typing import Any, ClassVar

from tmapipe.errors import ScopeError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried
from tmapipe.plan.model import Barrier
from tmapipe.protocol.registry import stands_for
from tmapipe.turnstile import Turnstile

__all__ = ["BoundTurnstile"]


@stands_for(Turnstile)
class BoundTurnstile(Carried):
    """A turnstile as one of those sees it that take turns. The parity to wait for is kept in a register."""

    _facts: ClassVar[dict[str, str]] = {"inside": "same"}

    def __init__(self, k: Any, name: str, turnstile: Turnstile):
        isa, role = k.isa, k.role
        self.isa: Isa = isa
        self.barrier: Barrier = k.plan.barrier(f"{name}.turn")
        self.own = role.team(isa.warp) if role.teams > 1 else isa.warp // 4 - role.first_warp // 4
        self.parity = isa.cells(isa.select(self.own == 0, 1, 0))
        self.inside = False
        self.isa.follow(self)

    def turn(self) -> BoundTurnstile:
        """The scope of one turn: entering waits for the one before, leaving lets the next one in."""
        return self

    def __enter__(self) -> BoundTurnstile:
        if self.inside:
            raise ScopeError(f"turnstile {self.barrier.name!r} entered twice. Leave the first turn before the next.")
        self.inside = True
        self.isa.mbarrier_wait(self.barrier, self.own, self.parity[0])
        self.parity[0] = self.parity[0] ^ 1
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.inside = False
        if kind is None:
            following = self.own + 1
            self.isa.mbarrier_arrive(self.barrier, self.isa.select(following == self.barrier.stages, 0, following))
