"""Operations and instructions that move four rows of a matrix, by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tmapipe.isa.copies import ON_BAR
from tmapipe.isa.effects import Group, Start, Until, operation
from tmapipe.isa.lowering import Lowering
from tmapipe.isa.operands import ELECTED, At, Bar, Bytes, Lanes, Name, Number, Slot
from tmapipe.isa.values import Value
from tmapipe.plan.model import Barrier, Load, Store

__all__ = ["RowInstructions", "TmaGather", "TmaScatter"]


@operation(
    "cp.async.bulk.tensor.2d.global.tile::gather4.mbarrier::complete_tx::bytes",
    "starts the TMA load of 4 rows of {load} into {slot} (share {share} of {shares}), {nbytes} bytes that complete on {bar}",
    Start("slot", ON_BAR, write=True, share="share", shares="shares"),
)
class TmaGather(NamedTuple):
    """Of the rows `numbers` of a matrix, from column `at[-1]` on, to share `share` of `shares` of `slot`, completing `nbytes`
    on `bar`. Rows outside of the matrix are zero. Facts: tuple of its `Flight`."""

    load: Name
    slot: Slot
    bar: Bar
    nbytes: Bytes
    share: Number
    shares: Number
    numbers: At = ()
    at: At = ()


@operation(
    "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group",
    "starts the TMA store {store} of 4 rows from {slot} (part {part})",
    Start("slot", Until(Group.BULK)),
)
class TmaScatter(NamedTuple):
    """Of 4 rows of the slot, which are part `part` of it, to the rows `numbers` of a matrix, from column `at[-1]` on. Rows
    beyond the matrix are not written. Facts: tuple of its `Flight`."""

    store: Name
    slot: Slot
    part: Number
    numbers: At = ()
    at: At = ()
    lanes: Lanes = ELECTED


class RowInstructions(Lowering):
    """Instructions of sm_100 and later."""

    def tma_gather(
        self, load: Load, stage: Value, rows: Sequence[Value], at: Sequence[Value], barrier: Barrier, part: Value
    ) -> None:
        """``cp.async.bulk.tensor.2d.tile::gather4``: copies four rows of a matrix, those numbered *rows*, from column *at[-1]*
        on, to the rows from 4 *part* on of slot *stage*, and completes their bytes on ``barrier[stage]``, later, by itself.
        Rows outside of the matrix count as bytes, and read as zero. Async proxy."""
        slot, bar, shares = self.slot(load.buffer, stage), self.bar(barrier, stage), load.parts // 4
        where = (tuple(map(self.plain, rows)), self.start(load, at))
        self.emit(TmaGather(load.name, slot, bar, load.buffer.slot_bytes // shares, part, shares, *where))

    def tma_scatter(self, store: Store, stage: Value, rows: Sequence[Value], at: Sequence[Value], part: Value) -> None:
        """``cp.async.bulk.tensor.2d.tile::scatter4``: copies the four rows from 4 *part* on of slot *stage* to those numbered
        *rows* of a matrix, from column *at[-1]* on, later. Rows beyond the matrix are not written. Async proxy."""
        where = (tuple(map(self.plain, rows)), self.start(store, at))
        self.emit(TmaScatter(store.name, self.slot(store.buffer, stage), part, *where))
