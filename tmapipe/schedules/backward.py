"""Gradients of the kernels of rows: of softmax and its logarithm, RMSNorm, LayerNorm and cross-entropy."""

from __future__ import annotations

import math as math_
from typing import Any

from tmapipe import math
from tmapipe.bind.tensors import new_like
from tmapipe.dim import Dim
from tmapipe.dtypes import fp32
from tmapipe.errors import InputError
from tmapipe.integers import ceil_div
from tmapipe.kernel import KernelContext
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.rowform import RowForm
from tmapipe.schedules.rowkernel import RowKernel
from tmapipe.schedules.rows import Rows
from tmapipe.thread_store import ThreadStoreStage
from tmapipe.tma_rules import ALIGNMENT

__all__ = [
    "LayerNormBackward", "LogSoftmaxBackward", "NormBackwardRows", "RmsNormBackward", "SoftmaxBackward",
    "SoftmaxBackwardRows",
]  # fmt: skip

PARTS, STEPS = 2048, 32  # sums of gradients of weights, about; rows of each at most


class SoftmaxBackwardRows(Rows):
    """``dx = y (dy - sum over n of y dy)``, or of a logarithm ``dx = dy - exp(y) sum over n of dy``, of one form.

    Args:
        form, stored: As of `Rows`.
        log: Whether y is the logarithm.
    """

    loaded, stored = ("y", "dy"), ("dx",)

    def __init__(self, form: RowForm, log: bool = False, stored: int = ALIGNMENT):
        super().__init__(form, stored)
        self.log = log

    @Rows.work.jit
    def differentiate(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            dy = self.read_rows(slot.dy)
            total: Any = math.row_sum(dy if self.log else self.read_rows(slot.y) * dy, **self.inside(tile))
            if not self.form.held:
                dy = self.read_rows(slot.dy)  # again: meanwhile, the row needs no registers
            y = self.read_rows(slot.y)
            self.store_rows(k.dx, tile, dy - math.exp(y) * total if self.log else y * (dy - total))


class SoftmaxBackward(RowKernel):
    """The gradient of `Softmax`."""

    schedule, log = SoftmaxBackwardRows, False

    def __call__(self, y: Any, dy: Any, *, out: Any = None) -> Any:
        """``dx = y (dy - sum of y dy)``; of `LogSoftmaxBackward` ``dx = dy - exp(y) sum of dy``.

        Args:
            y: What the forward pass gave.
            dy: The gradient of y, of its shape.
            out: dx, of y's shape; None: made, as y.

        Returns:
            dx.

        Raises:
            InputError: For shapes or types that do not fit.
        """
        return self.run({"y": y, "dy": dy}, {"dx": out}, {})

    def rows(self, form: RowForm, stored: int, loads: int, columns: int) -> Rows:
        """As in `RowKernel`."""
        return SoftmaxBackwardRows(form, self.log, stored)


class LogSoftmaxBackward(SoftmaxBackward):
    """The gradient of `LogSoftmax`."""

    log = True


class NormBackwardRows(Rows):
    """``g = dy weight; dx = rstd (g - h mean(g h)); dweight = sum over m of dy h`` with ``h = x rstd``, of one form.

    If centered, ``h = (x - mean) rstd``, dx has ``- rstd mean(g)`` too, and ``dbias = sum over m of dy``. A CTA takes some
    rows one after another, and adds up what the sums over m have of them.

    Args:
        form, stored: As of `Rows`, of one row.
        eps: As of `RmsNorm` or `LayerNorm`.
        centered: Whether it is LayerNorm's.
        steps: Rows that a CTA takes.
    """

    loaded, columns, stored, bulk = ("x", "dy"), ("weight",), ("dx",), False

    def __init__(
        self, form: RowForm, eps: float = 1e-6, centered: bool = False, steps: int = 1, stored: int = ALIGNMENT
    ):
        super().__init__(form, stored)
        self.eps, self.centered, self.steps = eps, centered, steps
        self.over = "c n" if form.apart == 1 else "c b n"
        self.relations += (Dim("c", of="m" if form.apart == 1 else "a", per=steps),)
        for name in self.sums:
            part = ThreadStoreStage(
                self.over, tile=(form.columns,), role=self.work, vector=4, wide=form.apart > 1, dtype=fp32
            )
            setattr(self, name, part)

    @property
    def sums(self) -> tuple[str, ...]:
        """The outputs that are sums over rows."""
        return ("dweight", "dbias") if self.centered else ("dweight",)

    def nth(self, tile: Tile, i: Any) -> Tile:
        """The *i*-th row of a CTA's *tile*."""
        place = tile.c * self.steps + i
        return tile.also(m=place) if self.form.apart == 1 else tile.also(a=place)

    @Rows.load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        for i in range(self.steps):
            with k.ring.produce() as slot:
                self._load_rows(slot, self.nth(tile, i), tile.n)

    @Rows.work.jit
    def differentiate(self, k: KernelContext, tile: Tile) -> None:
        dweight, dbias = self.one(k, tile, 0)
        for i in range(1, self.steps):
            more, others = self.one(k, tile, i)
            dweight, dbias = dweight + more, dbias + others
        first = self.first(tile)
        for name, sums in zip(self.sums, (dweight, dbias), strict=False):
            stage = getattr(k, name)
            if self.form.apart == 1:
                stage.store_from(tile.c, first, values=sums)
            else:
                stage.store_from(tile.c, tile.b, first, values=sums)

    def one(self, k: KernelContext, tile: Tile, i: Any) -> tuple[Any, Any]:
        """Stores dx of the *i*-th row of a CTA's *tile*; returns what it adds to the sums over rows. *k* is as in bodies."""
        length, inside, row = self.form.length, self.inside(tile), self.nth(tile, i)
        with k.ring.consume() as slot:
            h: Any = self.read_rows(slot.x)
            if self.centered:
                total: Any = math.row_sum(h, **inside)
                h = h - total / length
            squares: Any = math.row_sum(h * h, **inside)
            rstd = math.rsqrt(squares / length + self.eps)
            h, dy = h * rstd, self.read_rows(slot.dy)
        g = dy * self.read_column(k, slot, "weight", tile, dy)
        aligned: Any = math.row_sum(g * h, **inside)
        dx = g - h * (aligned / length)
        if self.centered:
            total = math.row_sum(g, **inside)
            dx = dx - total / length
        self.store_rows(k.dx, row, dx * rstd)
        return dy * h, dy

    def run(self, given: dict[str, Any], others: dict[str, Any]) -> tuple[Any, ...]:
        """As in `Rows`; returns the sums over rows."""
        totals: list[Any] = []
        for part in self.parts(given):
            *heights, _ = part["dx"].shape
            heights[-1] = ceil_div(heights[-1], self.steps)
            made = {name: new_like(given["x"], (*heights[::-1], self.form.length), fp32) for name in self.sums}
            self(**part, **made, **others)
            sums = [x.reshape(-1, self.form.length).sum(0) for x in made.values()]
            totals = [x + y for x, y in zip(totals, sums, strict=True)] if totals else sums
        return tuple(totals)


class RmsNormBackward(RowKernel):
    """The gradients of `RmsNorm` without a residual.

    Args:
        eps: As of the forward pass.
    """

    schedule, centered = NormBackwardRows, False
    hold, kept = 0, 4

    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def __call__(self, x: Any, weight: Any, dy: Any, *, out: Any = None) -> Any:
        """The gradients of x, of the weights, and of `LayerNormBackward` of the biases.

        Args:
            x: The rows of the forward pass.
            weight: One number a column.
            dy: The gradient of y, of x's shape.
            out: dx, of x's shape; None: made, as x.

        Returns:
            (dx, dweight), or (dx, dweight, dbias). Sums over rows are fp32.

        Raises:
            InputError: For shapes or types that do not fit.
        """
        height = math_.prod(x.shape[:-1])
        if not height:
            raise InputError("x.shape", tuple(x.shape), "has rows, over which gradients are sums", "leave the call out")
        self.options = (min(STEPS, 2 ** max(0, (height - 1) // PARTS).bit_length()),)
        return self.run({"x": x, "dy": dy}, {"dx": out}, {"weight": weight})

    def takes(self, form: RowForm) -> bool:
        """As in `RowKernel`: the weights are loaded once for a few tiles."""
        return form.rows == 1 and form.each > 1

    def rows(self, form: RowForm, stored: int, loads: int, columns: int) -> Rows:
        """As in `RowKernel`."""
        return NormBackwardRows(form, self.eps, self.centered, self.options[0], stored)


class LayerNormBackward(RmsNormBackward):
    """The gradients of `LayerNorm`.

    Args:
        eps: As of the forward pass.
    """

    centered = True

    def __init__(self, eps: float = 1e-5):
        super().__init__(eps)
