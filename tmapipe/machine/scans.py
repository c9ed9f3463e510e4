"""Running sums along rows, and neighbours in pairs, in the machine: as documented in `tmapipe.isa.scans`."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tmapipe.machine import elements
from tmapipe.machine.accesses import SlotAccesses, of_data
from tmapipe.plan.thread_layout import ThreadLayout, VectorLayout


@functools.lru_cache(maxsize=256)
def in_order(layout: ThreadLayout, warp: int, run: int) -> np.ndarray:
    """Where among a warp's elements those of each row are that lie side by side, so many at a time: [runs, *run*]."""
    rows, columns = (each.ravel() for each in elements.indices_of(layout, warp))
    return np.lexsort((columns, rows)).reshape(-1, run)


class Scans(SlotAccesses):
    """Sums are in float64, rounded once: in NumPy a running sum has one order everywhere."""

    @of_data
    def scan_in_warp(self, layout: ThreadLayout, kind: str, data: Any) -> Any:
        order, wide = in_order(layout, self.isa.warp, layout.width * layout.row_lanes), np.float64
        found = np.empty(data.size, data.dtype)
        sums = data.reshape(-1)[order].astype(np.int64 if kind == "int32" else wide).cumsum(1)
        found[order] = sums.astype(data.dtype)
        return found.reshape(data.shape)

    @of_data
    def chunk_totals(self, layout: ThreadLayout, data: Any) -> Any:
        last = in_order(layout, self.isa.warp, layout.width * layout.row_lanes)[:, -1]
        found = np.zeros((layout.rows, layout.chunks), data.dtype)
        rows, columns = (each.ravel()[last] for each in self._indices(layout))
        found[rows, self._chunk(layout, columns)] = data.reshape(-1)[last]
        return found

    @of_data
    def chunks_before(self, layout: ThreadLayout, data: Any) -> Any:
        return _exclusive(data)

    @of_data
    def chunks_read(self, layout: ThreadLayout, at: np.ndarray, partials: Any) -> Any:
        """As *op* "before" of `read_partials`: of rows *at*."""
        mine = layout.warp(self.isa.warp)
        sharing = layout.sharing_warps(mine, "rows")
        parts = partials[sharing][:, : len(at) * layout.chunks].reshape(len(sharing), len(at), layout.chunks)
        before = _exclusive(np.moveaxis(parts, 0, -1).reshape(len(at), -1))
        whole = np.full((layout.rows, layout.chunks), np.nan, np.float32)
        whole[at] = before[:, sharing.index(mine) :: len(sharing)]
        return whole

    @of_data
    def add_chunks(self, layout: ThreadLayout, data: Any, before: Any) -> Any:
        rows, columns = self._indices(layout)
        return data + before[rows, self._chunk(layout, columns)]

    def _chunk(self, layout: ThreadLayout, columns: Any) -> Any:
        return columns // (layout.width * layout.row_lanes * layout.row_warps)

    @of_data
    def swapped_pairs(self, layout: ThreadLayout, along: str, data: Any) -> Any:
        if along == "columns":
            return data[np.arange(layout.columns) ^ 1]
        pairs = in_order(layout, self.isa.warp, 2)
        whole = np.broadcast_to(data, self._indices(layout)[0].shape)
        found = np.empty(whole.size, whole.dtype)
        found[pairs] = whole.reshape(-1)[pairs[:, ::-1]]
        return found.reshape(whole.shape)

    @of_data
    def picked_of_pairs(self, layout: VectorLayout, along: str, data: Any, which: int) -> Any:
        whole = data if along == "columns" else np.broadcast_to(data, self._indices(layout)[0].shape)
        return whole[..., which::2].copy()

    @of_data
    def joined_pairs(self, layout: VectorLayout, along: str, even: Any, odd: Any) -> Any:
        shape = (layout.columns,) if along == "columns" else self._indices(layout)[0].shape
        pairs = np.stack([np.broadcast_to(each, shape) for each in (even, odd)], axis=-1)
        return pairs.reshape(*shape[:-1], -1)


def _exclusive(data: np.ndarray) -> np.ndarray:
    """Along the last axis, the sum of what comes before each."""
    wide = data.astype(np.int64 if data.dtype.kind == "i" else np.float64)
    found = np.zeros_like(wide)
    found[:, 1:] = wide[:, :-1].cumsum(1)
    return found.astype(data.dtype)
