"""``k.sync()``: a barrier for the threads of one role, or of several."""

from __future__ import annotations

from typing import Any

from tmapipe.errors import InputError
from tmapipe.role import Role

__all__ = ["sync"]


def sync(k: Any, *others: Role) -> None:
    """``bar.sync``: waits until all threads of this role have come here, and those of *others*, which call it likewise.

    Then all see what any of them wrote before. A team waits for its own threads only.

    Args:
        others: Roles of the schedule.

    Raises:
        InputError: For what is no such role, for teams with others, or if the CTA's 16 barriers are taken.
    """
    for other in others:
        if not isinstance(other, Role):
            raise InputError("k.sync", other, "is a role of the schedule", "e.g. k.sync(self.load)")
    isa, role = k.isa, k.role
    roles = list(dict.fromkeys([role, *(k.plan.role(k.name_of(other)) for other in others)]))
    if len(roles) > 1 and any(each.teams > 1 for each in roles):
        rule = "have one team each: teams are at different tiles"
        raise InputError("k.sync", ", ".join(each.name for each in roles), rule, "use a role of one team")
    if len(roles) == 1 and role.team_warps == 1:
        return isa.warp_sync()
    team: Any = role.team(isa.warp)
    isa.named_barrier_sync(isa.syncs.of(roles), team)
