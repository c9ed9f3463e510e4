"""BarrierRing: slots of shared memory handed from role to role, and the mbarriers that hand them.

A ring is a chain of phases. In ``load -> use`` the loader fills a slot and the user empties it; ``load -> transform ->
store`` has one role more. Each phase has one mbarrier a slot, which completes when the phase is done with the slot::

        load    --full-->    transform    --ready-->    store
          ^                                               |
          +--------------------- free --------------------+

A role waits on the mbarrier of the phase before its own (the first role on that of the last) and signals its own. Its
place in the ring is an index and a parity, which flips when the index wraps. The first role starts with parity 1, since
every slot is free at first; all others with parity 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tmapipe.errors import InputError
from tmapipe.role import Role

__all__ = ["BarrierRing"]


class BarrierRing:
    """Declares a ring of `stages` slots (None: as many as shared memory holds) and the chain of roles that use them.

    producer / consumer are the two phases of the usual ring; chain=(load, transform, store) gives any number. A phase
    played by several roles at once is a tuple: ``consumer=(math, logger)``. What lies in a slot is declared by the stages
    that name this ring. Everything else is derived: arrival counts from the roles' warps and the multicast peers,
    expect-tx bytes from the stages, parities, initialization and tail.
    """

    def __init__(
        self,
        stages: int | None = None,
        *,
        producer: Role | Iterable[Role] | None = None,
        consumer: Role | Iterable[Role] | None = None,
        chain: Iterable[Role | Iterable[Role]] | None = None,
    ):
        if stages is not None and (not isinstance(stages, int) or stages < 1):
            raise InputError("BarrierRing(stages)", stages, "must be a positive integer or None", "use 1 or more")
        if (chain is None) == (producer is None or consumer is None):
            raise InputError(
                "BarrierRing(producer, consumer, chain)",
                (producer, consumer, chain),
                "takes either producer and consumer, or chain",
                "name each phase once",
            )
        phases: Iterable[Any] = chain if chain is not None else (producer, consumer)
        self.stages = stages
        self.phases = tuple((phase,) if isinstance(phase, Role) else tuple(phase) for phase in phases)
        roles = [role for phase in self.phases for role in phase]
        if len(self.phases) < 2 or not all(self.phases):
            raise InputError("BarrierRing(chain)", chain, "needs at least two phases of one role each", "add a role")
        if len(set(map(id, roles))) != len(roles):
            raise InputError("BarrierRing(chain)", roles, "a role plays one phase of a ring", "use a role a phase")
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name
