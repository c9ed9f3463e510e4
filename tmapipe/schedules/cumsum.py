"""Cumsum: the running sums of rows of any length."""

from __future__ import annotations

from typing import Any

from tmapipe import math as functions
from tmapipe.barrier import BarrierRing
from tmapipe.base.arithmetic import ceil_div
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.kernel import KernelContext
from tmapipe.parts.stages import ReductionScratch
from tmapipe.plan.model import WARP
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.rowform import FLIGHT, WIDEST, RowForm
from tmapipe.schedules.rows import RowKernel, Rows

PIECE = 4096  # elements of a row that a CTA takes at once
WARPS = 4  # that share them
STEP = WARPS * WARP * WIDEST  # elements of which pieces are whole multiples


class CumsumRows(Rows):
    """``y[m, n] = x[m, 0] + ... + x[m, n]``, of one form.

    Args:
        form: As of `Rows`: of rows one after another, or of one row by `form.ctas` pieces.
        stored: As of `Rows`.
    """

    in_place = False  # of pieces, others are on their way

    def __init__(self, form: RowForm, stored: int = ALIGNMENT):
        super().__init__(form, stored)
        self.cluster, self.over = {}, "m" if form.apart == 1 else "b a"  # a CTA takes the pieces of a row
        if form.ctas > 1 and form.apart == 1:
            self.relations = ()  # how many pieces is found out at the launch
        slots = 1 if form.each == form.ctas == 1 else 2
        self.ring = BarrierRing(slots, producer=self.load, consumer=self.work)
        self.x = self._rows_in()
        layout = form.layout
        self.across = ReductionScratch(self.work, rows=layout.row_slots * layout.chunks)

    @Rows.load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        for n in range(self._pieces(k, tile)):
            with k.ring.produce() as slot:
                self._load_rows(slot, tile, n)

    @Rows.work.jit
    def add(self, k: KernelContext, tile: Tile) -> None:
        values = self._piece(k, tile, 0)
        if self.form.ctas == 1:
            self._store(k, tile, 0, functions.row_cumsum(values))
        else:
            total: Any = functions.row_sum(values)  # first: then the running sums take the place of what is added
            self._store(k, tile, 0, functions.row_cumsum(values))
            for n in range(1, self._pieces(k, tile)):
                values = self._piece(k, tile, n)
                before, total = total, total + functions.row_sum(values)
                self._store(k, tile, n, functions.row_cumsum(values) + before)

    def _pieces(self, k: KernelContext, tile: Tile) -> Any:
        """Of the rows of a tile."""
        form = self.form
        if form.ctas == 1:
            return 1
        return k.steps("x", "n") if form.apart == 1 else (self.before(tile) + form.length - 1) // form.columns + 1

    def _piece(self, k: KernelContext, tile: Tile, n: Any) -> Any:
        """Piece *n* of a row, with zeros for what lies before it."""
        with k.ring.consume() as slot:
            values = self.read_rows(slot.x)
        if self.form.apart == 1:
            return values
        return functions.where(values.columns >= -self.first(tile, n), values, 0.0)

    def _store(self, k: KernelContext, tile: Tile, n: Any, sums: Any) -> None:
        form = self.form
        if form.apart == 1:
            k.y.store(tile.also(n=n), sums)
        else:
            k.y.store_from(tile.b, tile.a, self.first(tile, n), values=sums)


class Cumsum(RowKernel):
    """Running sums along the last dimension of tensors of one to four, in bf16, fp16 or fp32, of any length, added in fp32."""

    hold, kept, schedule = 0, 1, CumsumRows

    def __call__(self, x: Any, *, out: Any = None) -> Any:
        """``y[..., n] = x[..., 0] + ... + x[..., n]``.

        Args:
            x: The rows.
            out: y, of x's shape and of any type; None: made, as x.

        Returns:
            y.

        Raises:
            InputError: For shapes or types that do not fit.
        """
        return self.run({"x": x}, {"y": out}, {})

    def forms(
        self, length: int, size: int, vector: int, loads: int = 1, vectors: int = 0, dense: bool = True, width: int = 0
    ) -> list[RowForm]:
        """As in `RowKernel`; rows longer than a piece are taken piece by piece."""
        if length <= PIECE:
            return super().forms(length, size, vector, loads, vectors, dense, width)
        whole = length + (ALIGNMENT - vector) // size
        pieces = ceil_div(whole, PIECE)
        columns = ceil_div(whole, pieces * STEP) * STEP
        share = ceil_div(FLIGHT, 2 * columns * size)
        wide = min(width or WIDEST, WIDEST, ALIGNMENT // size)
        return [RowForm(length, 1, columns, WARPS, ceil_div(whole, columns), share, vector, size, width=wide)]

    def takes(self, form: RowForm) -> bool:
        """As in `RowKernel`."""
        return form.ctas == 1
