"""Turnstile: the teams of a role pass it one after another, in a fixed order, again and again.

In a ping-pong GEMM two teams of one warpgroup work on different output tiles. With their mainloops in turn, one team's
epilogue runs while the other keeps the tensor cores busy:

    team 0   | mainloop 0 |  epilogue 0  | mainloop 2 |  ...
    team 1                | mainloop 1   |  epilogue 1 | mainloop 3 | ...

One mbarrier a team: its phase n completes when the team before it has left its turn for the n-th time. The first team's
first turn needs nobody, so it starts with parity 1, the others with parity 0.
"""

from __future__ import annotations

from typing import Any

from tmapipe.errors import InputError, ScopeError
from tmapipe.isa import Carried, Isa
from tmapipe.plan import Barrier, RoleWarps
from tmapipe.role import Role

__all__ = ["BoundTurnstile", "Turnstile"]


class Turnstile:
    """Declares the order in which the teams of `role` go: ``with k.<turnstile>.turn():`` in its body, once a tile."""

    def __init__(self, role: Role):
        if not isinstance(role, Role) or role.teams < 2:
            raise InputError("Turnstile(role)", role, "is a role of two or more teams", "Role(warpgroups=2, teams=2)")
        self.role = role
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name


class BoundTurnstile(Carried):
    """A turnstile as one team sees it. State: the parity to wait for, in registers."""

    def __init__(self, isa: Isa, barrier: Barrier, role: RoleWarps):
        self.isa, self.barrier, self.teams = isa, barrier, role.teams
        self.team = role.team(isa.warp)
        self.parity = isa.cells(isa.select(self.team == 0, 1, 0))
        self.inside = False

    def turn(self) -> BoundTurnstile:
        """The scope of one turn: waits for the team before, and on leaving lets the next one in."""
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
