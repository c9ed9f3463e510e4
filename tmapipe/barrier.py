"""BarrierRing: slots of shared memory that roles hand on to each other, and the mbarriers that signal it.

A ring is a chain of phases. In ``load -> use`` the loader fills a slot and the user empties it; ``load -> transform -> store``
has one more role. Each phase has one mbarrier per slot, which completes when the phase is done with the slot::

        load    --full-->    transform    --ready-->    store
          ^                                               |
          +--------------------- free --------------------+

A role waits on the mbarrier of the phase before its own (the first role on that of the last) and signals its own. Its pipeline
state is the index of its next slot and a parity, which flips when the index wraps. The first role starts with parity 1, since
every slot is free at first; all others start with parity 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.fields import is_count, must, optional
from tmapipe.role import Role

__all__ = ["BarrierRing"]


@attrs.frozen(eq=False, init=False, repr=False)
class BarrierRing:
    """Declares a ring of slots and the chain of roles that use them.

    What lies in a slot is declared by the stages that name this ring. Everything else is derived: arrival counts from the
    roles' warps and the multicast peers, expect-tx bytes from the stages, parities, initialization and tail.

    A ring ``per="cta"`` is filled once a CTA, before its first tile, and then held: its one slot is read at every tile. The
    roles fill it in methods `@role.before.jit`, and the last phase reads it as ``k.<ring>.<stage>``.

    Args:
        stages: How many slots there are; None: as many as shared memory holds.
        producer: The first of two phases: a role, or a tuple of roles that play it at once.
        consumer: The second of two phases, likewise.
        chain: Any number of phases from two on, instead of producer and consumer: ``chain=(load, transform, store)``.
        per: "tile" for slots that tiles use one after another, "cta" for one that is filled once.

    Raises:
        InputError: For any other value.
    """

    stages: int | None = attrs.field(
        validator=must(
            optional(lambda n: is_count(n) and n < 2**31),
            "must be a positive integer or None, below 2^31",
            "use 1 or more",
        )
    )
    phases: tuple[tuple[Role, ...], ...] = attrs.field()
    per: str = attrs.field(
        default="tile", validator=must(lambda per: per in ("tile", "cta"), 'is "tile" or "cta"', "leave it out")
    )

    def __init__(
        self,
        stages: int | None = None,
        *,
        producer: Role | Iterable[Role] | None = None,
        consumer: Role | Iterable[Role] | None = None,
        chain: Iterable[Role | Iterable[Role]] | None = None,
        per: str = "tile",
    ):
        if (chain is None) == (producer is None or consumer is None):
            rule = "takes either producer and consumer, or chain"
            fix = "name each phase once"
            raise InputError("BarrierRing(producer, consumer, chain)", (producer, consumer, chain), rule, fix)
        if chain is None:
            phases = [("producer", producer), ("consumer", consumer)]
        else:
            phases = [("chain", phase) for phase in _several("chain", chain)]
        if isinstance(per, str) and per == "cta":
            if stages not in (None, 1):
                raise InputError("BarrierRing(stages)", stages, "is 1 for what is filled once a CTA", "leave it out")
            stages = 1
        of_phases = tuple((p,) if isinstance(p, Role) else tuple(_several(name, p)) for name, p in phases)
        self.__attrs_init__(stages, of_phases, per)

    @phases.validator
    def _roles_differ(self, field: Any, phases: tuple[tuple[Role, ...], ...]) -> None:
        if len(phases) < 2 or not all(phases):
            raise InputError("BarrierRing(chain)", phases, "needs at least two phases of one role each", "add a role")
        roles = [role for phase in phases for role in phase]
        for role in roles:
            if not isinstance(role, Role):
                raise InputError("BarrierRing(chain)", role, _ROLES, "e.g. producer=load")
        if len(set(roles)) != len(roles):
            raise InputError("BarrierRing(chain)", roles, "a role plays one phase of a ring", "use a role a phase")

    def phase_of(self, role: Role) -> int | None:
        """The phase that *role* plays, or None."""
        return next((p for p, roles in enumerate(self.phases) if any(each is role for each in roles)), None)

    def __repr__(self) -> str:
        phases = [phase[0] if len(phase) == 1 else phase for phase in self.phases]
        text = f"producer={phases[0]!r}, consumer={phases[1]!r}" if len(phases) == 2 else f"chain={tuple(phases)!r}"
        stages = "" if self.stages is None or self.held else f"{self.stages}, "
        return f"BarrierRing({stages}{text}" + (', per="cta")' if self.held else ")")

    @property
    def held(self) -> bool:
        """Whether it is filled once a CTA."""
        return self.per == "cta"


_ROLES = "is a Role for each phase, or a tuple of those that play it at once"


def _several(argument: str, value: Any) -> Iterable[Any]:
    if not isinstance(value, Iterable):
        raise InputError(f"BarrierRing({argument})", value, _ROLES, "e.g. producer=load")
    return value
