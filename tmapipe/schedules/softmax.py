"""Softmax, and its logarithm, of rows of any length."""

from __future__ import annotations

from typing import Any

from tmapipe import math
from tmapipe.kernel import KernelContext
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.rowkernel import RowKernel
from tmapipe.schedules.rows import Rows

__all__ = ["LogSoftmax", "LogSoftmaxRows", "Softmax", "SoftmaxRows"]


class SoftmaxRows(Rows):
    """``y[m, n] = exp(x[m, n]) / sum over n of exp(x[m, n])``, of one form.

    Args:
        form, stored: As of `Rows`.
    """

    @Rows.work.jit
    def normalize(self, k: KernelContext, tile: Tile) -> None:
        held, inside = self.form.held, self.inside(tile)
        with k.ring.consume() as slot:
            values = self.read_rows(slot.x)
            base = (math.row_max if held else math.row_logsumexp)(values, **inside)
            if not held:
                values = self.read_rows(slot.x)  # again: meanwhile, the row needs no registers
            powers = math.exp(values - base)
            if held:
                total: Any = math.row_sum(powers, **inside)
                powers = powers * (1 / total)
            self.store_rows(k.y, tile, powers)


class LogSoftmaxRows(Rows):
    """``y[m, n] = x[m, n] - log(sum over n of exp(x[m, n]))``, of one form.

    Args:
        form, stored: As of `Rows`.
    """

    @Rows.work.jit
    def normalize(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            values = self.read_rows(slot.x)
            base = math.row_logsumexp(values, **self.inside(tile))
            if not self.form.held:
                values = self.read_rows(slot.x)
            self.store_rows(k.y, tile, values - base)


class Softmax(RowKernel):
    """Softmax over the last dimension of tensors of one to four, in bf16, fp16 or fp32, of any length."""

    hold = 32
    schedule: type[Rows] = SoftmaxRows

    def __call__(self, x: Any, *, out: Any = None) -> Any:
        """``y = exp(x) / sum of exp(x)``; of `LogSoftmax` its logarithm.

        Args:
            x: The rows.
            out: y, of x's shape and of any type; None: made, as x.

        Returns:
            y.

        Raises:
            InputError: For shapes or types that do not fit.
        """
        return self.run({"x": x}, {"y": out}, {})


class LogSoftmax(Softmax):
    """The logarithm of `Softmax`, without leaving fp32."""

    schedule = LogSoftmaxRows
