"""LayerNorm of rows of any length: each gets a mean of 0 and a variance of 1, then weights and biases."""

from __future__ import annotations

from typing import Any

from tmapipe import math
from tmapipe.kernel import KernelContext
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.rowform import RowForm
from tmapipe.schedules.rowkernel import RowKernel
from tmapipe.schedules.rows import Rows
from tmapipe.tma_rules import ALIGNMENT

__all__ = ["LayerNorm", "LayerNormRows"]


class LayerNormRows(Rows):
    """``y[m, n] = (x[m, n] - mean[m]) * rstd[m] * weight[n] + bias[n]`` with ``rstd = 1 / sqrt(variance + eps)``, of one form.

    Args:
        form, stored: As of `Rows`.
        eps: Added to the variance.
        biased: Whether there is a bias.
        numbers: Which of "mean" and "rstd" are stored.
    """

    columns: tuple[str, ...] = ("weight",)

    def __init__(
        self,
        form: RowForm,
        eps: float = 1e-5,
        biased: bool = True,
        numbers: tuple[str, ...] = (),
        stored: int = ALIGNMENT,
    ):
        self.eps, self.numbers = eps, numbers
        if biased:
            self.columns = ("weight", "bias")
        super().__init__(form, stored)

    @Rows.work.jit
    def normalize(self, k: KernelContext, tile: Tile) -> None:
        form = self.form
        with k.ring.consume() as slot:
            values = self.read_rows(slot.x)
            total: Any = math.row_sum(values, **({} if self.zeros else self.inside(tile)))
            mean = total / form.length
            if not form.held:
                values = self.read_rows(slot.x)  # again: meanwhile, the row needs no registers
            off = values - mean
            squares: Any = math.row_sum(off * off, **self.inside(tile))
            rstd = math.rsqrt(squares / form.length + self.eps)
            if "mean" in self.numbers:
                self.store_numbers(k.mean, tile, mean)
            if "rstd" in self.numbers:
                self.store_numbers(k.rstd, tile, rstd)
            if not form.held:
                off = self.read_rows(slot.x) - mean
            y = off * rstd * self.read_column(k, slot, "weight", tile, off)
            if len(self.columns) > 1:
                y = y + self.read_column(k, slot, "bias", tile, off)
            self.store_rows(k.y, tile, y)


class LayerNorm(RowKernel):
    """LayerNorm over the last dimension of tensors of one to four, in bf16, fp16 or fp32, of any length.

    Args:
        eps: Added to the variance.
        numbers: Whether calls also return the mean and 1 / sqrt(variance + eps) of each row, as a backward pass needs them.
    """

    schedule = LayerNormRows

    def __init__(self, eps: float = 1e-5, numbers: bool = False):
        super().__init__()
        self.eps, self.numbers = eps, ("mean", "rstd") if numbers else ()

    def __call__(self, x: Any, weight: Any, bias: Any = None, *, out: Any = None) -> Any:
        """``y = (x - mean) * rstd * weight + bias``.

        Args:
            x: The rows.
            weight: One number a column.
            bias: One number a column, or None.
            out: y, of x's shape and of any type; None: made, as x.

        Returns:
            y; or (y, mean, rstd), of which the last two are fp32 of x's shape without its last dimension.

        Raises:
            InputError: For shapes or types that do not fit.
        """
        columns = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
        return self.run({"x": x}, {"y": out}, columns, dict.fromkeys(self.numbers))

    def rows(self, form: RowForm, stored: int, loads: int, columns: int) -> LayerNormRows:
        """As in `RowKernel`."""
        return LayerNormRows(form, self.eps, columns > 1, self.numbers, stored)
