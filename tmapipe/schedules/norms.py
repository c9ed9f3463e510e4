"""RMSNorm and LayerNorm of rows of any length, and the gradients of the kernels of rows."""

from __future__ import annotations

import math as math_
from typing import Any

from tmapipe import math
from tmapipe.base.arithmetic import Dim, ceil_div, fp32
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind import check_kind
from tmapipe.bind.tensors import new_like
from tmapipe.errors import InputError
from tmapipe.kernel import KernelContext
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.rowform import MOST_CLUSTER, RowForm
from tmapipe.schedules.rows import RowKernel, Rows
from tmapipe.store_pipeline import ThreadStoreStage

# ---- rmsnorm ---------------------------------------------------------------------------------------------------------
#
# RMSNorm of rows of any length: each is scaled to a mean square of 1 and multiplied by weights, perhaps after a
# residual.


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
        if self.form.piece:
            self.by_pieces(k, tile)
        else:
            self.at_once(k, tile)

    def at_once(self, k: KernelContext, tile: Tile) -> None:
        """A tile of which all weights are there. *k* and *tile* are as in bodies."""
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

    def by_pieces(self, k: KernelContext, tile: Tile) -> None:
        """A row whose weights come piece by piece. *k* and *tile* are as in bodies."""
        first, *others = self.form.pieces
        with k.ring.consume() as slot:
            h = self.sums(slot, first)
            squares: Any = self.own(tile, h * h, first, True)
            for place in others:
                h = self.sums(slot, place)
                squares = squares + self.own(tile, h * h, place, True)
            total: Any = math.row_sum(squares)
            scale = math.rsqrt(total / self.form.length + self.eps)
            for place in self.form.pieces:
                with k.beside.consume() as beside:
                    weight = self.read_column(k, beside, "weight", tile, squares)
                h = self.sums(slot, place)
                if self.added:
                    self.store_rows(k.h, tile, h, place)
                self.store_rows(k.y, tile, h * scale * weight, place)

    def sums(self, slot: Any, first: int | None = None) -> Any:
        """The rows in a slot, or a row's piece that begins in column *first*, with their residual."""
        if first is None:
            return self.read_rows(slot.x) + self.read_rows(slot.residual) if self.added else self.read_rows(slot.x)
        h = self.read_piece(slot.x, first)
        return h + self.read_piece(slot.residual, first) if self.added else h


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


# ---- layernorm -------------------------------------------------------------------------------------------------------
#
# LayerNorm of rows of any length: each gets a mean of 0 and a variance of 1, then weights and biases.


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
        if self.form.piece:
            self.by_pieces(k, tile)
        else:
            self.at_once(k, tile)

    def by_pieces(self, k: KernelContext, tile: Tile) -> None:
        """A row whose weights come piece by piece. *k* and *tile* are as in bodies."""
        first, *others = self.form.pieces
        with k.ring.consume() as slot:
            sums: Any = self.own(tile, self.read_piece(slot.x, first), first, True)
            for place in others:
                sums = sums + self.own(tile, self.read_piece(slot.x, place), place, True)
            total: Any = math.row_sum(sums)
            mean = total / self.form.length
            off = self.own(tile, self.read_piece(slot.x, first) - mean, first)
            squares = off * off
            for place in others:
                off = self.own(tile, self.read_piece(slot.x, place) - mean, place)
                squares = squares + off * off
            total = math.row_sum(squares)
            rstd = math.rsqrt(total / self.form.length + self.eps)
            for name, numbers in (("mean", mean), ("rstd", rstd)):
                if name in self.numbers:
                    self.store_numbers(getattr(k, name), tile, numbers)
            for place in self.form.pieces:
                with k.beside.consume() as beside:
                    weight, *bias = (self.read_column(k, beside, name, tile, squares) for name in self.columns)
                y: Any = (self.read_piece(slot.x, place) - mean) * rstd * weight
                self.store_rows(k.y, tile, y + bias[0] if bias else y, place)

    def at_once(self, k: KernelContext, tile: Tile) -> None:
        """A tile of which all weights are there. *k* and *tile* are as in bodies."""
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


# ---- backward --------------------------------------------------------------------------------------------------------
#
# Gradients of the kernels of rows: of softmax and its logarithm, RMSNorm, LayerNorm and cross-entropy.


PARTS, STEPS = 2048, 32  # CTAs that make sums of gradients of weights, about; rows that each of them takes, at most


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
                self._load_rows(slot, self.nth(tile, i))

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
        check_kind("x", x)
        height = math_.prod(x.shape[:-1])
        if not height:
            raise InputError("x.shape", tuple(x.shape), "has rows, over which gradients are sums", "leave the call out")
        # Rows that each CTA takes, if as many CTAs as a cluster has at most share a row.
        of_widest = 2 ** ((height * MOST_CLUSTER - 1) // PARTS).bit_length()
        self.options = (min(of_widest, STEPS * MOST_CLUSTER),)
        return self.run({"x": x, "dy": dy}, {"dx": out}, {"weight": weight})

    def takes(self, form: RowForm) -> bool:
        """As in `RowKernel`: the weights are loaded once for a few tiles."""
        return form.rows == 1 and form.each > 1

    def rows(self, form: RowForm, stored: int, loads: int, columns: int) -> Rows:
        """As in `RowKernel`."""
        steps = max(1, min(STEPS, self.options[0] * form.ctas // MOST_CLUSTER))
        return NormBackwardRows(form, self.eps, self.centered, steps, stored)


class LayerNormBackward(RmsNormBackward):
    """The gradients of `LayerNorm`.

    Args:
        eps: As of the forward pass.
    """

    centered = True

    def __init__(self, eps: float = 1e-5):
        super().__init__(eps)
