"""PeerStage: tiles that the CTAs of a cluster copy into each other's slots."""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.errors import InputError
from tmapipe.multicast import MulticastGroup
from tmapipe.role import Role
from tmapipe.stage import SharedStage, SlotStage

__all__ = ["PeerStage"]


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
class PeerStage(SharedStage):  # type: ignore[override]
    """A tile in each slot that another CTA of the cluster has copied there, from a tile of its own slot, by
    ``cp.async.bulk``.

    All CTAs of a group do this at the same time, each for its own tile: ``slot.<stage>.send(to)`` copies the tile to another
    CTA, and each CTA gets one tile a slot. Or each sends equal parts of its tile to all, and gets one part of each.

    Args:
        source: The stage of the same ring that is copied: a `TmaLoadStage`, or a `SharedStage` that threads write. Tile,
            element type and swizzle are its own.
        sender: The role of one warp that sends, of a phase after that which fills the source, and not the last one.
        group: Which CTAs send to each other: those that differ only along these axes of the cluster.

    Raises:
        InputError: For any other value.
    """

    source: SlotStage = attrs.field()
    group: MulticastGroup = attrs.field()

    def __init__(self, source: SlotStage, *, sender: Role, group: MulticastGroup):
        if not isinstance(source, SlotStage) or isinstance(source, PeerStage):
            rule = "is a stage that TMA or threads fill"
            raise InputError("PeerStage(source)", source, rule, "name such a stage of the same ring")
        if not isinstance(group, MulticastGroup):
            rule = "is a MulticastGroup: the axes of the cluster along which CTAs send to each other"
            raise InputError("PeerStage(group)", group, rule, 'e.g. MulticastGroup("n")')
        same: Any = {name: getattr(source, name) for name in ("tile", "ring", "dtype", "swizzle")}
        self.__attrs_init__(**same, dims=getattr(source, "dims", None), writer=sender, source=source, group=group)
        phase = {id(role): p for p, roles in enumerate(self.ring.phases) for role in roles}
        filler = source.writer if isinstance(source, SharedStage) else self.ring.phases[0][0]
        if not phase[id(filler)] < phase[id(sender)] < len(self.ring.phases) - 1:
            rule = "is of a phase after that which fills the source, and not of the last one"
            raise InputError("PeerStage(sender)", sender, rule, "e.g. chain=(write, send, use)")

    def __repr__(self) -> str:
        return f"PeerStage({self.source!r}, sender={self.writer!r}, group={self.group!r})"
