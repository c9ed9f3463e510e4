"""The tile of a `PeerStage` in an open slot: as other tiles, and sent to other CTAs of the cluster."""

from __future__ import annotations

import math
from typing import Any

from tmapipe.errors import InputError, ScopeError
from tmapipe.isa.fragment import Fragment
from tmapipe.isa.values import is_index
from tmapipe.multicast import Along
from tmapipe.peer_stage import PeerStage, ReducedStage, SentStage
from tmapipe.plan.model import Peer
from tmapipe.protocol.cluster import peer_rank, share_index
from tmapipe.protocol.parts import PartInSlot
from tmapipe.protocol.registry import stands_for
from tmapipe.protocol.values import checked_values, layout_of
from tmapipe.stage import SharedStage

__all__ = ["PeerInSlot", "ReducedInSlot", "SentInSlot", "SharedInSlot"]


class GroupInSlot(PartInSlot):
    """The tile of a stage in one open slot, of which CTAs of a group have one each."""

    @property
    def axes(self) -> tuple[Along, ...]:
        """Along which the CTAs of the group lie."""
        raise NotImplementedError

    @property
    def rank(self) -> Any:
        """The calling CTA's index among those of its group, from 0 on."""
        return share_index(self.part.isa, self.axes)

    @property
    def peers(self) -> int:
        """How many CTAs are in the group."""
        return math.prod(each.ctas for each in self.axes)


@stands_for(SharedStage)
class SharedInSlot(GroupInSlot):
    """The tile of a `SharedStage` in one open slot, and those of the other CTAs in theirs."""

    @property
    def axes(self) -> tuple[Along, ...]:
        name, plan = self.part.buffer.name, self.part.isa.plan
        if name not in plan.read_by_peers:
            rule = (
                f"is a SharedStage with a group of CTAs, of a cluster with several; the cluster is {dict(plan.cluster)}"
            )
            raise InputError(f"slot.{name}", name, rule, "declare its group=, and the cluster")
        return plan.read_by_peers[name]

    def read_from(
        self, peer: Any, *, like: Fragment | None = None, tile: tuple[int, int] | None = None, at: Any = None
    ) -> Fragment:
        """The elements of the tile in the same slot of a CTA of the group, as of `read`.

        Args:
            peer: Its index in the group.
            like: Distributed as this fragment is.
            tile: Only a part of the tile, of these (rows, columns).
            at: Where a part begins (row, column).

        Raises:
            InputError: There is no such CTA, or no such part.
        """
        isa, buffer, name = self.part.isa, self.part.buffer, f"slot.{self.part.buffer.name}.read_from"
        if not is_index(peer, self.peers):
            raise InputError(f"{name}(peer)", peer, f"is an index into the group's {self.peers} CTAs", "count from 0")
        self.by_threads()
        whole = tile is None and like is None
        layout, begin = self._part_layout(name, like, buffer.tile if whole else tile, (0, 0) if at is None else at)
        return isa.fragments.read_peer(self.ref, peer_rank(isa, self.axes, peer), layout, begin)


@stands_for(PeerStage)
class PeerInSlot(GroupInSlot):
    """The tile of a `PeerStage` in one open slot."""

    @property
    def peer(self) -> Peer:
        """What is sent to it."""
        return next(peer for peer in self.part.isa.plan.sends if peer.name == self.part.buffer.name)

    @property
    def axes(self) -> tuple[Along, ...]:
        return self.peer.axes

    def send(self, to: Any, *, part: Any = None, into: Any = 0) -> None:
        """Starts to copy the source's tile to a CTA of the group, where it is this stage's tile in the same slot.

        In each slot every CTA gets one tile: all send to different ones, such as their right neighbours.

        Args:
            to: Its index in the group.
            part: Only this one of as many equal parts, along the tile's first extent, as the group has CTAs. Each CTA then
                sends so many, and gets so many.
            into: Which part it becomes there.

        Raises:
            ScopeError: In a role other than the sender.
            InputError: An index is outside the group.
        """
        isa, peer, name = self.part.isa, self.peer, f"slot.{self.peer.name}.send"
        self._check(name, to=to, part=0 if part is None else part, into=into)
        if part is not None:
            units = 8 if peer.buffer.swizzle else 1
            row = peer.buffer.tile[-1] * peer.buffer.dtype.bytes
            if peer.buffer.tile[0] % (peer.peers * units) or (units > 1 and row > peer.buffer.swizzle):
                rule = f"has {peer.peers} equal parts, each in one piece of memory"
                fix = "give the stage such a tile, or send all of it"
                raise InputError(f"{name}(part)", peer.buffer.tile, rule, fix)
        isa.peer_copy(peer, self.slot.index, peer_rank(isa, peer.axes, to), self.end.signalled, part, into)

    def _check(self, name: str, **indices: Any) -> None:
        """Raises an error unless the sender sends, to indices in the group."""
        peer = self.peer
        self.slot._check_open(peer.name)
        if self.part.role != peer.role:
            raise ScopeError(f"{name} in role {self.part.role!r}. Only its sender, {peer.role!r}, sends.")
        for argument, index in indices.items():
            if not is_index(index, peer.peers):
                rule, fix = f"is an index into the group's {peer.peers} CTAs", "(slot.x.rank + 1) % slot.x.peers"
                raise InputError(f"{name}({argument})", index, rule, f"count from 0, e.g. {fix}")


@stands_for(ReducedStage)
class ReducedInSlot(PeerInSlot):
    """The tile of a `ReducedStage` in one open slot."""

    def send(self, to: Any) -> None:  # type: ignore[override]
        """Starts to reduce part *to* of the source into the tile of the CTA of this index, in the same slot. All CTAs do so
        once for each of the group.

        Raises:
            ScopeError: In a role other than the sender.
            InputError: The index is outside the group.
        """
        isa, peer = self.part.isa, self.peer
        self._check(f"slot.{peer.name}.send", to=to)
        isa.peer_copy(peer, self.slot.index, peer_rank(isa, peer.axes, to), self.end.signalled, to)


@stands_for(SentStage)
class SentInSlot(PeerInSlot):
    """The tile of a `SentStage` in one open slot."""

    def send(self, values: Fragment, to: Any) -> None:  # type: ignore[override]
        """Writes the tile of another CTA, in the same slot. All CTAs send to different ones.

        Args:
            values: A fragment of as many rows and columns, of which each thread has four bytes or more side by side.
            to: The CTA's index in the group.

        Raises:
            ScopeError: In a role other than the sender.
            InputError: The fragment has other extents, or the index is outside the group.
        """
        isa, peer, name = self.part.isa, self.peer, f"slot.{self.peer.name}.send"
        self._check(name, to=to)
        values = checked_values(name, peer.buffer, values)
        layout = layout_of(name, values)
        if values.along != "tile" or layout.width * peer.buffer.dtype.bytes % 4:
            rule = "is a whole tile, of which each thread has four bytes or more side by side"
            raise InputError(name, values, rule, "read it in its own distribution, or send it as fp32")
        isa.fragments.send_tile(values, self.ref, self.end.signalled, peer_rank(isa, peer.axes, to))
