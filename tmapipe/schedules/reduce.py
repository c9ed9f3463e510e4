"""Reduce: one number of each row of any length, such as its sum."""

from __future__ import annotations

from typing import Any

from tmapipe import math
from tmapipe.errors import InputError
from tmapipe.kernel import KernelContext
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.crossentropy import logsumexp
from tmapipe.schedules.rowform import RowForm
from tmapipe.schedules.rowkernel import RowKernel
from tmapipe.schedules.rows import Rows

__all__ = ["Reduce", "ReduceRows"]


def _sum(x: Any, y: Any) -> Any:
    return x + y


OPERATIONS = {
    "sum": (math.row_sum, _sum),
    "mean": (math.row_sum, _sum),
    "max": (math.row_max, math.maximum),
    "min": (math.row_min, math.minimum),
    "logsumexp": (math.row_logsumexp, logsumexp),
}


class ReduceRows(Rows):
    """``y[m]`` = the sum, or another number, of x[m, n] over n, of one form.

    Args:
        form: As of `Rows`: of rows one after another, or of one row by `form.ctas` pieces.
        operation: As of `Reduce`.
    """

    stored, numbers = (), ("y",)

    def __init__(self, form: RowForm, operation: str = "sum"):
        super().__init__(form)
        self.operation = operation

    @Rows.work.jit
    def reduce(self, k: KernelContext, tile: Tile) -> None:
        reduce, join = OPERATIONS[self.operation]
        found = self.reduced(k, tile, reduce, join)
        self.store_numbers(k.y, tile, found * (1 / self.form.length) if self.operation == "mean" else found)


class Reduce(RowKernel):
    """One number, in fp32, of each row along the last dimension of tensors of one to four, in bf16, fp16 or fp32.

    Args:
        operation: "sum", "mean", "max", "min" or "logsumexp".

    Raises:
        InputError: For another operation.
    """

    schedule = ReduceRows

    def __init__(self, operation: str = "sum"):
        if operation not in OPERATIONS:
            raise InputError("Reduce(operation)", operation, f"is one of {', '.join(OPERATIONS)}", 'e.g. "sum"')
        super().__init__()
        self.operation = operation

    def __call__(self, x: Any, *, out: Any = None) -> Any:
        """The number of each row.

        Args:
            x: The rows.
            out: fp32, of x's shape without its last dimension; None: made.

        Returns:
            The numbers.

        Raises:
            InputError: For shapes or types that do not fit.
        """
        return self.run({"x": x}, {}, {}, {"y": out})

    def rows(self, form: RowForm, stored: int, loads: int, columns: int) -> ReduceRows:
        """As in `RowKernel`."""
        return ReduceRows(form, self.operation)
