"""PeerStage, SentStage: tiles that the CTAs of a cluster copy, or write, into each other's slots."""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.barrier import BarrierRing
from tmapipe.dtypes import DType
from tmapipe.errors import InputError
from tmapipe.fields import shown
from tmapipe.multicast import MulticastGroup, is_group
from tmapipe.role import Role
from tmapipe.stage import SharedStage, SlotStage

__all__ = ["PeerStage", "SentStage"]


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

    filled_by = "peers"
    source: SlotStage = attrs.field()
    group: MulticastGroup = attrs.field(validator=is_group)

    def __init__(self, source: SlotStage, *, sender: Role, group: MulticastGroup):
        if not isinstance(source, SlotStage) or isinstance(source, PeerStage):
            rule = "is a stage that TMA or threads fill"
            raise InputError("PeerStage(source)", source, rule, "name such a stage of the same ring")
        same: Any = {name: getattr(source, name) for name in ("tile", "ring", "dtype", "swizzle")}
        self.__attrs_init__(**same, dims=getattr(source, "dims", None), writer=sender, source=source, group=group)
        phase = {id(role): p for p, roles in enumerate(self.ring.phases) for role in roles}
        if not phase[id(source.filler)] < phase[id(sender)] < len(self.ring.phases) - 1:
            rule = "is of a phase after that which fills the source, and not of the last one"
            raise InputError("PeerStage(sender)", sender, rule, "e.g. chain=(write, send, use)")

    def __repr__(self) -> str:
        return f"PeerStage({self.source!r}, sender={self.writer!r}, group={self.group!r})"


class SentStage(SharedStage):
    """A tile in each slot that threads of another CTA of the cluster have written there from their registers, by ``st.async``.

    All CTAs of a group do this at the same time: ``slot.<stage>.send(values, to)``. Each gets one tile a slot.

    Args:
        tile: Elements, as in `TmaLoadStage`.
        ring: Whose slots hold the tiles.
        sender: The role whose threads send, of any phase but the last one.
        dtype: Of the elements.
        group: Which CTAs send to each other: those that differ only along these axes of the cluster.
        swizzle: Span (bytes), as in `TmaLoadStage`.

    Raises:
        InputError: For any other value.
    """

    filled_by = "peers"
    source = None

    def __init__(
        self,
        *,
        tile: tuple[int, ...],
        ring: BarrierRing,
        sender: Role,
        dtype: DType | str,
        group: MulticastGroup,
        swizzle: int | None = None,
    ):
        is_group(self, attrs.fields(type(self)).group, group)
        super().__init__(tile=tile, ring=ring, writer=sender, dtype=dtype, group=group, swizzle=swizzle)
        if sender in ring.phases[-1] or ring.held:
            rule = 'is of any phase but the last one, of a ring that is not per="cta"'
            raise InputError("SentStage(sender)", sender, rule, "e.g. the producer")

    def __repr__(self) -> str:
        return shown(self, *(("dims",) if self.dims is None else ())).replace("writer=", "sender=")
