"""PeerStage, SentStage: tiles that the CTAs of a cluster copy, or write, into each other's slots."""

from __future__ import annotations

from typing import Any

import attrs

from tmapipe.dtypes import DType
from tmapipe.errors import InputError
from tmapipe.multicast import MulticastGroup, is_group
from tmapipe.role import Role
from tmapipe.stage import SharedStage, SlotStage

__all__ = ["PeerStage", "ReducedStage", "SentStage"]

#: Reduction into shared memory -> element types that it is done in.
REDUCED = {
    **dict.fromkeys(("add", "min", "max", "inc", "dec", "and", "or", "xor"), ("int32",)),
    "add": ("int32", "int64"),
}


@attrs.frozen(eq=False, init=False, repr=False, kw_only=True)
class PeerStage(SharedStage):
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
    dims: tuple[str, ...] | None = attrs.field(default=None)
    dtype: DType | None = attrs.field(default=None)  # type: ignore[assignment]
    source: SlotStage = attrs.field()
    group: MulticastGroup = attrs.field(validator=is_group)

    def __init__(self, source: SlotStage, *, sender: Role, group: MulticastGroup):
        self._set_up(source, source, sender, group=group, dims=getattr(source, "dims", None))

    def _set_up(self, source: SlotStage, like: SlotStage, sender: Role, **fields: Any) -> None:
        """Sets all fields: tile, ring, type and swizzle of *like*."""
        if not isinstance(source, SlotStage) or isinstance(source, PeerStage):
            rule = "is a stage that TMA or threads fill"
            raise InputError(f"{type(self).__name__}(source)", source, rule, "name such a stage of the same ring")
        same: Any = {name: getattr(like, name) for name in ("tile", "ring", "dtype", "swizzle")}
        self.__attrs_init__(**same, writer=sender, source=source, **fields)
        filled, sent = (self.ring.phase_of(role) for role in (source.filler, sender))
        if filled is None or sent is None or not filled < sent < len(self.ring.phases) - 1:
            rule = "is of a phase after that which fills the source, and not of the last one"
            raise InputError(f"{type(self).__name__}(sender)", sender, rule, "e.g. chain=(write, send, use)")

    def __repr__(self) -> str:
        return f"PeerStage({self.source!r}, sender={self.writer!r}, group={self.group!r})"


class ReducedStage(PeerStage):
    """A tile in each slot into which all CTAs of a group have reduced a part of theirs, by ``cp.reduce.async.bulk``.

    It begins as what threads have written, in all CTAs, and has the memory of that. Each CTA reduces one part of its source,
    cut along the first extent, into the tile of each other one, and of its own: ``slot.<stage>.send(i)`` for each index i.

    Args:
        source: As of `PeerStage`, of the same type, with as many times the rows as the group has CTAs.
        into: What it begins with: a `SharedStage` with the group, of int32, or for "add" of int64.
        sender: The role of one warp that sends, of a phase after those that fill the two, and not the last one.
        reduce: "add", "min", "max", "and", "or", "xor", "inc" or "dec", as of a `TmaStoreStage`; compared with their signs.

    Raises:
        InputError: For any other value.
    """

    reduce: str = "add"

    def __init__(self, source: SlotStage, *, into: SharedStage, sender: Role, reduce: str = "add"):
        if type(into) is not SharedStage or into.group is None:
            rule = "is a SharedStage with group=, which threads write in all CTAs"
            raise InputError("ReducedStage(into)", into, rule, "declare one of the same ring")
        if reduce not in REDUCED or into.dtype is None or into.dtype.name not in REDUCED[reduce]:
            rule = f"is one of {', '.join(REDUCED)}, in int32, or add in int64; the tile is of {into.dtype}"
            raise InputError("ReducedStage(reduce)", reduce, rule, '"add", and dtype="int32"')
        self._set_up(source, into, sender, over=into, group=into.group, dims=None)
        object.__setattr__(self, "reduce", reduce)

    def __repr__(self) -> str:
        how = f"into={self.over!r}, sender={self.writer!r}, reduce={self.reduce!r}"
        return f"ReducedStage({self.source!r}, {how})"


@attrs.frozen(eq=False, repr=False, kw_only=True)
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

    dims: tuple[str, ...] | None = attrs.field(default=None, init=False)
    over: SlotStage | None = attrs.field(default=None, init=False)
    writer: Role = attrs.field(alias="sender")
    group: MulticastGroup = attrs.field(validator=is_group)

    @writer.validator
    def _sender_is_before_the_last(self, field: Any, sender: Any) -> None:
        if self.ring.phase_of(sender) not in range(len(self.ring.phases) - 1) or self.ring.held:
            rule = 'is of any phase but the last one, of a ring that is not per="cta"'
            raise InputError("SentStage(sender)", sender, rule, "e.g. the producer")
