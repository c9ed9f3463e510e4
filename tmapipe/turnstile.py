"""Turnstile: an order in which the teams of a role, or its warpgroups, pass, one after another, again and again.

In a ping-pong GEMM, two teams of one warpgroup each work on different output tiles. With their mainloops in turn, one team's
epilogue runs while the other keeps the tensor cores busy:

    team 0   | mainloop 0 |  epilogue 0  | mainloop 2 |  ...
    team 1                | mainloop 1   |  epilogue 1 | mainloop 3 | ...

The warpgroups of a role of one team share tiles and slots. With the starts of their matmuls in turn, the softmax of one runs
under the matmuls of the other.

There is one mbarrier per team. Its phase n completes when the one before has left its turn for the n-th time. The first turn
of the first one waits for nobody, so it starts with parity 1, the others with parity 0. Warpgroups that share tiles have a
named barrier each, where one that waits meets the one before.
"""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.fields import must, shown
from tmapipe.role import Role

__all__ = ["Turnstile"]


@attrs.frozen(eq=False, repr=False)
class Turnstile:
    """Declares the order in which the teams of a role go, or the warpgroups of a role of one team.

    In its body: ``with k.<turnstile>.turn():``, by all of them equally often.

    Args:
        role: Of two or more teams, or warpgroups.
        stores: Of teams' accumulators, each of which happens in such a turn: all teams have the same buffers.

    Raises:
        InputError: For any other.
    """

    role: Role = attrs.field(
        validator=must(
            lambda role: isinstance(role, Role) and (role.teams > 1 or (role.by_warpgroup and role.warps > 4)),
            "is a role of two or more teams, or warpgroups",
            "Role(warpgroups=2)",
        )
    )

    stores: tuple[Any, ...] = attrs.field(default=())

    @stores.validator
    def _of_teams(self, field: Any, stores: Any) -> None:
        if not isinstance(stores, (tuple, list)):
            raise InputError("Turnstile(stores)", stores, "is a tuple of TmaStoreStage", "e.g. stores=(d,)")
        if stores and self.role.teams == 1:
            rule = "are of teams, which have the same buffers"
            raise InputError("Turnstile(stores)", stores, rule, "leave them out: each warpgroup has buffers of its own")

    def __repr__(self) -> str:
        return shown(self)
