"""Reductions over rows and columns in the machine, within a warp, over warps and over CTAs of a cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tmapipe.arithmetic import exp, folded, larger, log, smaller, total
from tmapipe.isa import ops
from tmapipe.isa.exchange import ClusterExchange
from tmapipe.isa.values import SlotRef
from tmapipe.machine import elements
from tmapipe.machine.accesses import of_data
from tmapipe.machine.scans import Scans
from tmapipe.plan.thread_layout import ThreadLayout

__all__ = ["NOTHING", "Reductions"]

#: Stands for the numbers of rows and columns that a warp does not have.
NOTHING = {"fp32": np.nan, "int32": 0}


def _logsumexp(data: np.ndarray) -> Any:
    most = folded(larger, data)
    most = np.where(np.isfinite(most), most, 0)
    return most + log(total(exp(data - most[..., None])))


#: Along the last axis.
REDUCTIONS: dict[str, Callable[[np.ndarray], Any]] = {
    "sum": total,
    "maximum": functools.partial(folded, larger),
    "minimum": functools.partial(folded, smaller),
    "logsumexp": _logsumexp,
}


@functools.lru_cache(maxsize=256)
def lines_of(layout: ThreadLayout, warp: int, along: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The rows (or columns) of a warp's elements, grouped by how many elements of a row the warp has.

    Returns:
        For each group: the rows, and where the elements of each row stand among the warp's elements, [rows, elements].
    """
    at = elements.indices_of(layout, warp)[0 if along == "rows" else 1].ravel()
    lines, counts = np.unique(at, return_counts=True)
    of_line = np.split(np.argsort(at, kind="stable"), counts.cumsum()[:-1])
    return [
        (lines[counts == count], np.stack([of_line[i] for i in np.flatnonzero(counts == count)]))
        for count in np.unique(counts)
    ]


class Reductions(Scans):
    """Methods as documented in `tmapipe.isa.fragments.Fragments`."""

    @of_data
    def reduce_in_warp(self, layout: ThreadLayout, op: str, kind: str, along: str, data: Any) -> Any:
        partial: Any = np.full(getattr(layout, along), NOTHING[kind], elements.KINDS[kind])
        for lines, places in lines_of(layout, self.isa.warp, along):
            partial[lines] = REDUCTIONS[op](data.reshape(-1)[places])
        return partial

    @of_data
    def sum_parts(self, layout: ThreadLayout, data: Any) -> Any:
        rows, columns = self._indices(layout)
        lanes = columns // layout.width % layout.row_lanes
        parts = np.full((layout.rows, layout.row_lanes), NOTHING["fp32"], np.float32)
        parts[np.unique(rows)] = 0
        np.add.at(parts, (rows, lanes), data)
        return parts

    @of_data
    def join_parts(self, layout: ThreadLayout, data: Any) -> Any:
        return total(data)

    def write_partial(self, layout: ThreadLayout, along: str, data: Any, slot: SlotRef) -> None:
        warps, columns = slot.buffer.tile
        partial = None
        if self.memory is not None:
            at, places = self._shared(layout, along)
            partial = np.zeros((1, columns), np.float32)
            if data.ndim == 1:
                partial[0, places] = data[at]
            else:  # chunks of rows
                partial[0, : data[at].size] = data[at].ravel()
        self._write(slot, partial, (layout.warp(self.isa.warp), warps, "rows"))

    def send_partial(self, layout: ThreadLayout, data: Any, slot: SlotRef, exchange: ClusterExchange) -> None:
        isa, (rows, width) = self.isa, slot.buffer.tile
        words: Any = ()
        if self.memory is not None:
            at, _ = self._shared(layout, "rows")
            words = tuple(data[at].astype(np.float32).view(np.uint32).tolist())
        mine = int(exchange.rank) * (rows // exchange.peers) + layout.warp(isa.warp)
        place = isa.slot(slot.buffer, slot.stage), isa.bar(exchange.full, slot.stage)
        isa.emit(ops.StAsync(*place, 4 * width, exchange.mask, words, mine, rows))

    def read_partials(self, layout: ThreadLayout, op: str, along: str, slot: SlotRef, peers: int = 1) -> Any:
        return self._combined(layout, op, along, self._read(slot), peers)

    @of_data
    def _combined(self, layout: ThreadLayout, op: str, along: str, partials: Any, peers: int) -> Any:
        at, places = self._shared(layout, along)
        if op == "before":
            return self.chunks_read(layout, at, partials)
        each = len(partials) // peers
        sharing = layout.sharing_warps(layout.warp(self.isa.warp), along)
        mine = [each * i + warp for i in range(peers) for warp in sharing]
        whole = np.full(getattr(layout, along), np.nan, np.float32)
        whole[at] = REDUCTIONS[op](partials[mine][:, places].astype(np.float32).T)
        return whole

    def _shared(self, layout: ThreadLayout, along: str) -> tuple[np.ndarray, np.ndarray]:
        """The rows or columns that the warp has, and where it leaves their numbers."""
        at = self._own(layout, along)
        return at, np.arange(len(at)) if along == "rows" else at
