"""Turnstile: an order in which the teams of a role pass, one after another, again and again.

In a ping-pong GEMM, two teams of one warpgroup each work on different output tiles. With their mainloops in turn, one team's
epilogue runs while the other keeps the tensor cores busy:

    team 0   | mainloop 0 |  epilogue 0  | mainloop 2 |  ...
    team 1                | mainloop 1   |  epilogue 1 | mainloop 3 | ...

There is one mbarrier per team. Its phase n completes when the team before has left its turn for the n-th time. The first turn
of the first team waits for nobody, so that team starts with parity 1, the others with parity 0.
"""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.fields import must, shown
from tmapipe.role import Role

__all__ = ["Turnstile"]


@attrs.frozen(eq=False, repr=False)
class Turnstile:
    """Declares the order in which the teams of a role go: ``with k.<turnstile>.turn():`` in its body, once a tile.

    Args:
        role: Of two or more teams.
        stores: Of the teams' accumulators, each of which happens in such a turn: all teams have the same buffers.

    Raises:
        InputError: For any other.
    """

    role: Role = attrs.field(
        validator=must(
            lambda role: isinstance(role, Role) and role.teams > 1,
            "is a role of two or more teams",
            "Role(warpgroups=2, teams=2)",
        )
    )

    stores: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return shown(self)
