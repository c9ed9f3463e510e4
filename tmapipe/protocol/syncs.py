"""``k.sync()``: a barrier for the threads of one role, or of several."""

from __future__ import annotations

from typing import Any

from tmapipe.errors import InputError
from tmapipe.isa.interface import Isa
from tmapipe.plan.model import RoleWarps

__all__ = ["sync"]


def sync(isa: Isa, role: RoleWarps, others: list[RoleWarps]) -> None:
    """Does what `KernelContext.sync` says, for one warp of *role*."""
    roles = [role, *(other for other in others if other != role)]
    if len(roles) > 1 and any(each.teams > 1 for each in roles):
        rule = "have one team each: teams are at different tiles"
        raise InputError("k.sync", ", ".join(each.name for each in roles), rule, "use a role of one team")
    if len(roles) == 1 and role.team_warps == 1:
        return isa.warp_sync()
    team: Any = role.team(isa.warp)
    isa.named_barrier_sync(isa.syncs.of(roles), team)
