"""RMSNorm of rows of any length: each is scaled to a mean square of 1 and multiplied by weights, perhaps after a residual."""

from __future__ import annotations

from typing import Any

from tmapipe import math
from tmapipe.kernel import KernelContext
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.rowform import RowForm
from tmapipe.schedules.rowkernel import RowKernel
from tmapipe.schedules.rows import Rows
from tmapipe.tma_rules import ALIGNMENT

__all__ = ["RmsNorm", "RmsNormRows"]


class RmsNormRows(Rows):
    """``h = x + residual; y[m, n] = h[m, n] / sqrt(mean over n of h[m, n]^2 + eps) * weight[n]``, of one form.

    Args:
        form, stored: As of `Rows`.
        eps: Added to the mean square.
        residual: Whether there is one. Then h is stored too.
    """

    columns = ("weight",)

    def __init__(self, form: RowForm, eps: float = 1e-6, residual: bool = False, stored: int = ALIGNMENT):
        self.eps, self.added = eps, residual
        if residual:
            self.loaded, self.stored = ("x", "residual"), ("y", "h")
        super().__init__(form, stored)

    @Rows.work.jit
    def normalize(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            h = self.sums(slot)
            if self.added:
                self.store_rows(k.h, tile, h)
            squares: Any = math.row_sum(h * h, **({} if self.zeros else self.inside(tile)))
            mean = squares / self.form.length
            if not self.form.held:
                h = self.sums(slot)  # again: meanwhile, the row needs no registers
            weight = self.read_column(k, slot, "weight", tile, h)
            self.store_rows(k.y, tile, h * math.rsqrt(mean + self.eps) * weight)

    def sums(self, slot: Any) -> Any:
        """The rows in a slot, with their residual."""
        return self.read_rows(slot.x) + self.read_rows(slot.residual) if self.added else self.read_rows(slot.x)


class RmsNorm(RowKernel):
    """RMSNorm over the last dimension of tensors of one to four, in bf16, fp16 or fp32, of any length.

    Args:
        eps: Added to the mean square.
    """

    schedule = RmsNormRows

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

    def rows(self, form: RowForm, stored: int, loads: int, columns: int) -> RmsNormRows:
        """As in `RowKernel`."""
        return RmsNormRows(form, self.eps, loads > 1, stored)
