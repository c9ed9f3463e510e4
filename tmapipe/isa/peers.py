"""Operations and instructions that copy, or reduce, into the shared memory of other CTAs of the cluster."""

from __future__ import annotations

from typing import NamedTuple

from tmapipe.isa.copies import ON_BAR
from tmapipe.isa.effects import Start, operation
from tmapipe.isa.lowering import Lowering
from tmapipe.isa.operands import Bar, Bytes, Mask, Name, Number, Slot
from tmapipe.isa.values import Value
from tmapipe.plan.model import Barrier, Peer

__all__ = ["PeerCopy", "PeerInstructions", "PeerReduce"]


@operation(
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
    "starts a copy of {source} into {slot} of CTAs {mask}[ (part {part} to share {share} of {shares})], {nbytes} bytes that "
    "complete on {bar}",
    Start("slot", ON_BAR, write=True, mask="mask", share="share", shares="shares"),
    Start("source", ON_BAR, mask="mask"),
)
class PeerCopy(NamedTuple):
    """Of `source`, or part `part` of `shares` of it, to `slot`, or share `share` of that, of the CTA in `mask`, completing
    `nbytes` on its `bar`. Facts: tuple of its `Flight`."""

    slot: Slot
    bar: Bar
    nbytes: Bytes
    mask: Mask
    source: Slot
    part: Number = 0
    share: Number = 0
    shares: Number = 1


@operation(
    "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
    "starts the reduction {peer} of part {part} of {source} into {slot} of CTAs {mask}, {nbytes} bytes that complete on {bar}",
    Start("slot", ON_BAR, write=True, mask="mask", reduces=True),
    Start("source", ON_BAR, mask="mask"),
)
class PeerReduce(NamedTuple):
    """Of part `part` of `parts` of `source` into `slot` of the CTA in `mask`, in the way of `peer`, completing `nbytes` on its
    `bar`. Facts: tuple of its `Flight`."""

    peer: Name
    slot: Slot
    bar: Bar
    nbytes: Bytes
    mask: Mask
    source: Slot
    part: Number
    parts: Number


class PeerInstructions(Lowering):
    """Instructions of clusters."""

    def peer_copy(
        self, peer: Peer, stage: Value, to: Value, barrier: Barrier, part: Value = None, into: Value = 0
    ) -> None:
        """``cp.async.bulk`` from shared memory to that of a CTA of the cluster: copies slot *stage* of `peer.source` to slot
        *stage* of `peer.buffer` of the CTA with rank *to*, and completes its bytes on ``barrier[stage]`` there, later, by
        itself. With *part*, only that one of `peer.peers` equal parts along the slot's first extent, to part *into*. With
        `peer.reduce`, ``cp.reduce.async.bulk``: part *part* of the source is combined with all of the slot. Async proxy."""
        assert peer.source is not None
        slot, source, bar = self.slot(peer.buffer, stage), self.slot(peer.source, stage), self.bar(barrier, stage)
        nbytes, shares = peer.buffer.slot_bytes, 1 if part is None else peer.peers
        if peer.reduce is not None:
            self.emit(PeerReduce(peer.name, slot, bar, nbytes, 1 << to, source, part, shares))
        else:
            self.emit(PeerCopy(slot, bar, nbytes // shares, 1 << to, source, 0 if part is None else part, into, shares))
