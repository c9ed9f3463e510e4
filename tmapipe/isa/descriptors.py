"""Operations and instructions on descriptors that a kernel changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tmapipe.isa.effects import Access, FenceProxy, Start, Until, operation
from tmapipe.isa.lowering import Lowering
from tmapipe.isa.operands import ALL_LANES, At, Bar, Bytes, Lanes, Mask, Name, Number, Slot
from tmapipe.isa.values import Value
from tmapipe.plan.model import Barrier, Buffer, Load

__all__ = ["DescriptorAcquire", "DescriptorInstructions", "DescriptorRelease", "DescriptorWrite", "TmaLoadThrough"]

ON_BAR = Until(bar="bar", nbytes="nbytes")


@operation(
    "tensormap.replace.tile.global_address.shared::cta.b1024.b64",
    "writes a descriptor of {load} to {slot}",
    Access(write=True),
)
class DescriptorWrite(NamedTuple):
    """Of a part of the load's tensor: `at` is (first row, how many). Facts: None."""

    load: Name
    slot: Slot
    at: At = ()
    part: Number = 0
    parts: Number = 1
    split: Name = "rows"


@operation(
    "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned",
    "hands the descriptor in {slot} over to the TMA engine",
    FenceProxy(),
)
class DescriptorRelease(NamedTuple):
    """Copies it to global memory, where the engine reads it, and fences. Facts: None."""

    slot: Slot
    lanes: Lanes = ALL_LANES


@operation(
    "fence.proxy.tensormap::generic.acquire.gpu",
    "acquires the descriptor in {slot}",
    Access(),
)
class DescriptorAcquire(NamedTuple):
    """Before loads through it. Facts: None."""

    slot: Slot
    part: Number = 0
    parts: Number = 1
    split: Name = "rows"


@operation(
    "cp.async.bulk.tensor.global.mbarrier::complete_tx::bytes",
    "starts the TMA load of {load} through {source} into {slot}, {nbytes} bytes that complete on {bar}",
    Start("slot", ON_BAR, write=True, mask="mask", share="share", shares="shares"),
    Start("source", ON_BAR, mask="mask"),
)
class TmaLoadThrough(NamedTuple):
    """As `TmaLoad`, of the rows that the descriptor in slot `source` of the own CTA says, which it reads until it is over.
    Facts: tuple of `Flight`, one a destination CTA."""

    load: Name
    slot: Slot
    bar: Bar
    nbytes: Bytes
    mask: Mask
    source: Slot
    share: Number = 0
    shares: Number = 1
    at: At = ()


class DescriptorInstructions(Lowering):
    """Instructions on descriptors in slots, of loads whose `Load.through` is such a slot's buffer."""

    def descriptor_write(self, load: Load, buffer: Buffer, stage: Value, first: Value, rows: Value) -> None:
        """``tensormap.replace`` in shared memory, then ``tensormap.cp_fenceproxy``: makes the descriptor in slot *stage* one
        of *rows* rows of the load's tensor, from row *first* on; one or more, all of them in the tensor. Each slot has a
        place in global memory, where the engine reads it. Generic proxy, released to that of descriptors."""
        slot = self.slot(buffer, stage)
        self.emit(DescriptorWrite(load.name, slot, (self.plain(first), self.plain(rows))))
        self.emit(DescriptorRelease(slot))

    def descriptor_acquire(self, buffer: Buffer, stage: Value) -> None:
        """``fence.proxy.tensormap::generic.acquire``: before this warp's loads through the descriptor in slot *stage*, for
        which it has waited."""
        self.emit(DescriptorAcquire(self.slot(buffer, stage)))

    def tma_load_through(
        self, load: Load, stage: Value, at: Sequence[Value], barrier: Barrier, through: Value, mask: Value, share: Value
    ) -> None:
        """As `tma_load`, through the descriptor in slot *through*: *at* counts from its first row, and beyond its last one
        there are zeros. The descriptor is read until the bytes have been counted."""
        assert load.through is not None
        slot, bar = self.slot(load.buffer, stage), self.bar(barrier, stage)
        mask = 1 << self.cta_rank if mask is None else mask
        nbytes, source = load.buffer.slot_bytes // load.peers, self.slot(load.through, through)
        self.emit(TmaLoadThrough(load.name, slot, bar, nbytes, mask, source, share, load.peers, self.start(load, at)))
