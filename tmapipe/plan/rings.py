"""Rings and queues of a plan: slots that go from role to role, and the mbarriers that hand them on."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tmapipe.multicast import Along
from tmapipe.plan.barriers import Barrier
from tmapipe.plan.distributed import Buffer
from tmapipe.plan.frozenmap import NOTHING, frozen

__all__ = ["Queue", "Ring"]


@attrs.frozen
class Ring:
    """What a role's end of a `BarrierRing` needs to know.

    Args:
        name: Of the ring.
        stages: How many slots it has.
        phases: Names of the roles of each phase.
        barriers: One a phase. barriers[p] completes when phase p is done with a slot, so phase p waits on barriers[p - 1],
            and phase 0 on the last one.
        armed: Role -> bytes that it arms by expect-tx for each slot.
        signals: Roles whose warps arrive when they leave a slot: all but those whose loads complete by themselves.
        lag: Role -> slots that it holds back until its asynchronous reads of them have retired.
        readers: Role -> how it reads, of "wgmma" and "tma"; threads if it is missing.
        groups: Axes of each multicast group whose peers a release must reach.
        peers: How many CTAs that is.
        loads: Role -> names of its loads, and of what it sends to peers.
        held: Whether it is filled once a CTA. Then nobody signals that its slot is free: the last phase has no barrier.
        fenced: Roles that read through the async proxy what threads have copied.
        gone: Role -> stages whose tiles it does not find any more: earlier phases have written others over them.
        far: Phases, besides the last one, whose signals reach the peers too: they read what these have written.
    """

    name: str
    stages: int
    phases: tuple[tuple[str, ...], ...]
    barriers: tuple[Barrier, ...]
    armed: Mapping[str, int] = attrs.field(converter=frozen)
    signals: tuple[str, ...]
    lag: Mapping[str, int] = attrs.field(converter=frozen)
    readers: Mapping[str, tuple[str, ...]] = attrs.field(converter=frozen)
    groups: tuple[tuple[Along, ...], ...] = ()
    peers: int = 1
    loads: Mapping[str, tuple[str, ...]] = attrs.field(converter=frozen, default=NOTHING)
    held: bool = False
    gone: Mapping[str, tuple[str, ...]] = attrs.field(converter=frozen, default=NOTHING)
    fenced: tuple[str, ...] = ()
    far: tuple[int, ...] = ()

    def phase_of(self, role: str) -> int | None:
        """The phase that *role* has in this ring, or None."""
        return next((p for p, roles in enumerate(self.phases) if role in roles), None)


@attrs.frozen
class Queue:
    """Tiles on their way from the scheduler warp to all warps of the cluster.

    Args:
        buffer: Slots of words (4 bytes), which say where a tile lies.
        full: Completes when a slot's words have come: it counts the CTA's scheduler, and the bytes.
        free: Completes when a slot has been read: it counts every warp of the cluster.
    """

    buffer: Buffer
    full: Barrier
    free: Barrier
