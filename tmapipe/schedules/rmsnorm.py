"""RMSNorm of rows of any length: each is scaled to a mean square of 1 and multiplied by weights, perhaps after a residual."""

from __future__ import annotations

from typing import Any

from tmapipe import math
from tmapipe.barrier import BarrierRing
from tmapipe.kernel import KernelContext
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.rowform import RowForm
from tmapipe.schedules.rows import RowKernel, Rows
from tmapipe.tma_rules import ALIGNMENT

__all__ = ["RmsNorm", "RmsNormRows"]


class RmsNormRows(Rows):
    """``h = x + residual; y[m, n] = h[m, n] / sqrt(mean over n of h[m, n]^2 + eps) * weight[n]``, of one form.

    Args:
        form: How rows are shared out.
        eps: Added to the mean square.
        residual: Whether there is one. Then h is stored too.
        stored: Bytes of which the rows of y, and of h, are whole multiples.
    """

    def __init__(self, form: RowForm, eps: float = 1e-6, residual: bool = False, stored: int = ALIGNMENT):
        super().__init__(form)
        self.eps, self.added = eps, residual
        self.x = self.rows_in()
        if residual:
            self.residual = self.rows_in()
            self.loaded = ("x", "residual")
        if form.each > 1:  # loaded once for a cluster's tiles
            self.weights = BarrierRing(producer=self.load, consumer=self.work, per="cta")
        self.weight = self.per_column(self.weights if form.each > 1 else self.ring)
        self.y = self.rows_out(stored)
        if residual:
            self.h = self.rows_out(stored)
            self.stored = ("y", "h")

    @Rows.load.before.jit
    def fill_weights(self, k: KernelContext) -> None:
        """Loads the weights once for all tiles of a CTA. *k* is as in bodies."""
        if self.form.each > 1:
            with k.weights.produce() as slot:
                self.load_per_column(slot.weight, k.rank("n"))

    @Rows.load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.produce() as slot:
            self.load_rows(slot.x, tile)
            if self.added:
                self.load_rows(slot.residual, tile)
            if self.form.each == 1:
                self.load_per_column(slot.weight, tile.n)

    @Rows.work.jit
    def normalize(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            h = self.sums(slot)
            if self.added:
                self.store_rows(k.h, tile, h)
            zeros = self.form.apart == 1  # beyond the last column
            squares: Any = math.row_sum(h * h, **({} if zeros else self.inside(tile)))
            mean = squares / self.form.length
            if not self.form.held:
                h = self.sums(slot)  # again: meanwhile, the row needs no registers
            weight = self.read_per_column(k.weights.weight if self.form.each > 1 else slot.weight, tile, h)
            self.store_rows(k.y, tile, h * math.rsqrt(mean + self.eps) * weight)

    def sums(self, slot: Any) -> Any:
        """The rows in a slot, with their residual."""
        return self.read_rows(slot.x) + self.read_rows(slot.residual) if self.added else self.read_rows(slot.x)


class RmsNorm(RowKernel):
    """RMSNorm over the last dimension of tensors of one to four, in bf16, fp16 or fp32, of any length.

    Args:
        eps: Added to the mean square.
    """

    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def __call__(self, x: Any, weight: Any, residual: Any = None, *, out: Any = None) -> Any:
        """``y = h / sqrt(mean(h^2) + eps) * weight`` with ``h = x + residual``.

        Args:
            x: The rows.
            weight: One number a column.
            residual: Of x's shape, or None.
            out: y, of x's shape and of any type; None: made, as x.

        Returns:
            y; with a residual, (y, h), of which h has the type of x.

        Raises:
            InputError: For shapes or types that do not fit.
        """
        loaded = {"x": x} if residual is None else {"x": x, "residual": residual}
        stored = {"y": out} if residual is None else {"y": out, "h": None}
        return self.run(loaded, stored, {"weight": weight})

    def rows(self, form: RowForm, stored: int, loads: int) -> RmsNormRows:
        """As in `RowKernel`."""
        return RmsNormRows(form, self.eps, loads > 1, stored)
