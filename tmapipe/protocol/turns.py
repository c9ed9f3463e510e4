"""A turnstile as one team sees it."""

from __future__ import annotations

from typing import Any

from tmapipe.errors import ScopeError
from tmapipe.isa.interface import Isa
from tmapipe.isa.values import Carried
from tmapipe.plan.model import Barrier, RoleWarps

__all__ = ["BoundTurnstile"]


class BoundTurnstile(Carried):
    """A turnstile as one team sees it. The parity to wait for is kept in a register."""

    def __init__(self, isa: Isa, barrier: Barrier, role: RoleWarps):
        self.isa, self.barrier, self.teams = isa, barrier, role.teams
        self.team = role.team(isa.warp)
        self.parity = isa.cells(isa.select(self.team == 0, 1, 0))
        self.inside = False

    def turn(self) -> BoundTurnstile:
        """The scope of one turn: entering waits for the team before, leaving lets the next team in."""
        return self

    def __enter__(self) -> BoundTurnstile:
        if self.inside:
            raise ScopeError(f"turnstile {self.barrier.name!r} entered twice. Leave the first turn before the next.")
        self.inside = True
        self.isa.mbarrier_wait(self.barrier, self.team, self.parity[0])
        self.parity[0] = self.parity[0] ^ 1
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.inside = False
        if kind is None:
            following = self.team + 1
            self.isa.mbarrier_arrive(self.barrier, self.isa.select(following == self.teams, 0, following))
