"""Hardware barriers for ``k.sync()``: bodies name the roles, and get ids that the plan has left free."""

from __future__ import annotations

from collections.abc import Sequence

from tmapipe.plan.barriers import next_id
from tmapipe.plan.model import NamedBarrier, Plan, RoleWarps

__all__ = ["Syncs"]


class Syncs:
    """The barriers of one kernel, or of one model of it. All its warps share them; each set of roles has one.

    made: those so far, by the names of the roles in order of their warps.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self.made: dict[tuple[str, ...], NamedBarrier] = {}

    def of(self, roles: Sequence[RoleWarps]) -> NamedBarrier:
        """The barrier for all threads of *roles*; of a single role with teams, one instance for each team.

        Raises:
            InputError: All ids are taken.
        """
        roles = sorted(set(roles), key=lambda role: role.first_warp)
        names = tuple(role.name for role in roles)
        if names not in self.made:
            taken = (*self.plan.named_barriers, *self.made.values())
            instances = roles[0].teams if len(roles) == 1 else 1
            threads = sum(role.threads for role in roles) // instances
            first = next_id(taken, instances, "k.sync", ", ".join(names))
            self.made[names] = NamedBarrier(f"{'+'.join(names)}.threads", first, threads, instances)
        return self.made[names]
