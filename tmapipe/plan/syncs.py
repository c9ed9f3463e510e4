"""Hardware barriers for ``k.sync()``: bodies name the roles, and get ids that the plan has left free."""

from __future__ import annotations

from collections.abc import Sequence

from tmapipe.errors import InputError
from tmapipe.plan.model import NamedBarrier, Plan, RoleWarps

__all__ = ["MAX_NAMED_BARRIERS", "Syncs"]

MAX_NAMED_BARRIERS = 16  # a CTA; id 0 is bar.sync 0 (PTX ISA)


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
            first = max([barrier.id + barrier.instances for barrier in taken], default=1)
            instances = roles[0].teams if len(roles) == 1 else 1
            if first + instances > MAX_NAMED_BARRIERS:
                rule = f"a CTA has {MAX_NAMED_BARRIERS} barriers; id 0 is its own, and the others are those of "
                rule += ", ".join(barrier.name for barrier in taken)
                raise InputError("k.sync", ", ".join(names), rule, "use fewer stores, or sync the same roles again")
            threads = sum(role.threads for role in roles) // instances
            self.made[names] = NamedBarrier(f"{'+'.join(names)}.threads", first, threads, instances)
        return self.made[names]
