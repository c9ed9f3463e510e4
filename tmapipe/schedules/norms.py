"""RMSNorm and LayerNorm of rows of any length, the gradients of softmax, and functions of rows, element by element."""

from __future__ import annotations

import contextlib
import itertools
import math as numbers
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from tmapipe import math
from tmapipe.base.arithmetic import ceil_div, fp32
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind.tensors import converted, is_contiguous, strides_of, widest
from tmapipe.errors import InputError, checked_eps
from tmapipe.kernel import KernelContext
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.copy import meet
from tmapipe.schedules.rowform import FLIGHT, LINE, SECTOR, RowForm, address_of, copied, resident
from tmapipe.schedules.rows import RowKernel, Rows

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
        self.eps, self.added = checked_eps(self, eps), residual
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
            if not self.early:
                self.finish(k, tile, h, slot)
        if self.early:
            self.finish(k, tile, h)

    def finish(self, k: KernelContext, tile: Tile, h: Any, slot: Any = None) -> None:
        """Stores results of the rows *h*, which have been read from a *slot* that is open if they must be read again. *k* and
        *tile* are as in bodies."""
        if self.added:
            self.store_rows(k.h, tile, h)
        squares: Any = math.row_sum(h * h, **({} if self.zeros else self.inside(tile)))
        mean = squares * (1 / self.form.length)
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
            scale = math.rsqrt(total * (1 / self.form.length) + self.eps)
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
        self.eps = checked_eps(self, eps)

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
        self.eps, self.numbers = checked_eps(self, eps), numbers
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
            mean = total * (1 / self.form.length)
            off = self.own(tile, self.read_piece(slot.x, first) - mean, first)
            squares = off * off
            for place in others:
                off = self.own(tile, self.read_piece(slot.x, place) - mean, place)
                squares = squares + off * off
            total = math.row_sum(squares)
            rstd = math.rsqrt(total * (1 / self.form.length) + self.eps)
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
        with k.ring.consume() as slot:
            values = self.read_rows(slot.x)
            if not self.early:
                self.finish(k, tile, values, slot)
        if self.early:
            self.finish(k, tile, values)

    def finish(self, k: KernelContext, tile: Tile, values: Any, slot: Any = None) -> None:
        """Stores results of *values*, which have been read from a *slot* that is open if they must be read again. *k* and
        *tile* are as in bodies."""
        form = self.form
        total: Any = math.row_sum(values, **({} if self.zeros else self.inside(tile)))
        mean = total * (1 / form.length)
        if not form.held:
            values = self.read_rows(slot.x)  # again: meanwhile, the row needs no registers
        off = values - mean
        squares: Any = math.row_sum(off * off, **self.inside(tile))
        rstd = math.rsqrt(squares * (1 / form.length) + self.eps)
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
        self.eps, self.numbers = checked_eps(self, eps), ("mean", "rstd") if numbers else ()

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
# Gradients of softmax and its logarithm.


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


@attrs.frozen
class LineForm(RowForm):
    """A form of rows one after another, perhaps several that begin alike, that are loaded from multiples of *begin* bytes on,
    128 or 32: else the TMA engine asks L2 twice for sectors that two boxes share. The width is given."""

    begin: int = LINE

    def __attrs_post_init__(self) -> None:
        RowForm.__attrs_post_init__(self)
        reached, need = ceil_div(self.length, self.columns) * self.columns, self.length + self.further
        if self.several and reached < need:
            raise InputError("LineForm(columns)", self.columns, f"reach {need} in {reached}", "take others, or one row")

    @property
    def several(self) -> bool:  # type: ignore[override]
        return self.rows > 1

    @property
    def unit(self) -> int:
        return self.begin // self.size

    @property
    def apart(self) -> int:
        return self.begin // numbers.gcd(self.begin, (self.pitch or self.length) * self.size)

    @property
    def further(self) -> int:
        return self.unit - self.unit // self.apart

    @classmethod
    def of(cls, form: RowForm, loads: int) -> RowForm:
        """*form* with loads from lines on, if its tile is one row that begins inside of a sector; else *form*."""
        if form.rows == 1 and not form.packed and form.length * form.size % SECTOR:
            share = max(form.share or 1, min(LEAST_SHARE, resident(form, loads, 0)))
            for begin in (LINE, SECTOR):
                with contextlib.suppress(InputError):  # no room
                    return cls(**attrs.asdict(form, recurse=False) | {"share": share}, begin=begin)
        return form


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

    def forms(
        self, length: int, size: int, vector: int, loads: int = 1, vectors: int = 0, dense: bool = True, width: int = 0
    ) -> list[RowForm]:
        """As in `RowKernel`."""
        found = super().forms(length, size, vector, loads, vectors, dense, width)
        return [LineForm.of(form, loads) for form in found] if dense else found

    def rows(self, form: RowForm, stored: int, loads: int, columns: int) -> Rows:
        """As in `RowKernel`."""
        return SoftmaxBackwardRows(form, self.log, stored)


class LogSoftmaxBackward(SoftmaxBackward):
    """The gradient of `LogSoftmax`."""

    log = True


# ---- elementwiserows -------------------------------------------------------------------------------------------------
#
# A function of matrices, element by element, whose rows begin at no multiples of 16 bytes, or of 32.


LONG = 4096  # bytes of a row, from which on tiles are pieces of several rows that begin alike
ALIKE = {
    2: ((4, 512, 4), (8, 512, 4)),
    4: ((4, 1024, 8), (6, 512, 4)),
}  # by bytes of elements: such rows, columns, warps
MOST_SHARED, MOST_APART = 40, 8  # warps of a multiprocessor that share such tiles; rows that begin differently
LEAST_SHARE = 3  # CTAs of a multiprocessor of rows that are loaded from lines on, if there is room


class ElementwiseRows(Rows):
    """``y[m, n] = function(x0, x1, ...)`` of matrices, of vectors of one number a column and of one number a row, of one form.

    Args:
        form: As of `Rows`; with numbers of rows, rows one after another are a multiple of 4.
        function: As of `Elementwise`.
        kinds: Of each argument "x", "n" or "m": a matrix, a number a column or a number a row, in fp32.
        stored: As of `Rows`.

    Raises:
        InputError: *function* cannot be called, or *kinds* names another kind.
    """

    def __init__(
        self, form: RowForm, function: Callable[..., Any], kinds: tuple[str, ...] = ("x",), stored: int = ALIGNMENT
    ):
        if not callable(function):
            raise InputError("ElementwiseRows(function)", function, "is a function of fragments", "pass a function")
        if not isinstance(kinds, tuple) or not kinds or not all(kind in ("x", "n", "m") for kind in kinds):
            raise InputError("ElementwiseRows(kinds)", kinds, 'is "x", "n" or "m" of each argument', 'e.g. ("x", "n")')
        self.function, self.kinds = function, kinds
        self.loaded = tuple(f"x{i}" for i, kind in enumerate(kinds) if kind == "x")
        self.columns = tuple(f"x{i}" for i, kind in enumerate(kinds) if kind == "n")
        self.given = tuple(f"x{i}" for i, kind in enumerate(kinds) if kind == "m")
        super().__init__(form, stored)

    @Rows.work.jit
    def compute(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            whole: Any = self.read_rows(getattr(slot, self.loaded[0]))
            values = []
            for i, kind in enumerate(self.kinds):
                name = f"x{i}"
                if kind == "x":
                    read = whole if name == self.loaded[0] else self.read_rows(getattr(slot, name))
                elif kind == "n":
                    read = self.read_column(k, slot, name, tile, whole)
                else:
                    read = self.read_given(getattr(slot, name), tile, whole)
                values.append(read)
            self.store_rows(k.y, tile, self.function(*values))


class ElementwiseKernel(RowKernel):
    """A function of matrices, vectors and numbers of rows. Arguments as of `ElementwiseRows`."""

    schedule, hold = ElementwiseRows, 0

    def __init__(self, function: Callable[..., Any], kinds: tuple[str, ...]):
        super().__init__()
        self.function, self.kinds, self.options = function, kinds, (kinds,)

    def __call__(self, views: list[Any], out: Any, name: Callable[[], str | None], look: int | None = None) -> None:
        """Computes *out* of matrices of its shape, in which what is repeated has strides of 0. *name*: of the function."""
        self.named, self.look = (lambda text: lambda: (known := name()) and f"{text} {known}"), look
        wide = widest([x for x, kind in zip(views, self.kinds, strict=True) if kind == "x"])
        rows: dict[str, Any] = {}
        columns: dict[str, Any] = {}
        given: dict[str, Any] = {}
        for i, (x, kind) in enumerate(zip(views, self.kinds, strict=True)):
            if kind == "x":
                rows[f"x{i}"] = converted(x, wide)
            elif kind == "n":
                columns[f"x{i}"] = _apart(x[0], out)
            else:
                given[f"x{i}"] = converted(_apart(x[:, 0], out), fp32)
        self.apply(rows, {"y": out}, columns, given)

    def forms(
        self, length: int, size: int, vector: int, loads: int = 1, vectors: int = 0, dense: bool = True, width: int = 0
    ) -> list[RowForm]:
        """As in `RowKernel`; several rows that begin alike first, where rows are long."""
        found = super().forms(length, size, vector, loads, vectors, dense, width)
        if not dense or length * size < LONG or "m" in self.kinds or length * size % SECTOR == 0:
            return found
        return [*_alike(length, size, vector, loads), *found]

    def takes(self, form: RowForm) -> bool:
        """As in `RowKernel`; a row is taken at once, numbers of rows come in units of 16 bytes."""
        return not form.piece and ("m" not in self.kinds or form.rows == 1 or form.rows % 4 == 0)

    def rows(self, form: RowForm, stored: int, loads: int, columns: int) -> ElementwiseRows:
        """As in `RowKernel`."""
        return ElementwiseRows(form, self.function, self.kinds, stored)


def begin_inside(matrices: list[Any]) -> bool:
    """Whether matrices have long rows, one after another, that begin inside of sectors; the last, an output, lies apart."""
    bytes_, places = {x.shape[1] * x.dtype.itemsize for x in matrices}, list(map(address_of, matrices))
    long = len(bytes_) == 1 and min(bytes_) >= LONG and min(bytes_) % SECTOR > 0
    return long and all(map(is_contiguous, matrices)) and len(places) > places.count(places[-1]) == 1


def _alike(length: int, size: int, vector: int, loads: int) -> Iterator[LineForm]:
    """Forms of tiles of rows that begin alike. Where few begin in as many ways, not counted from lines of 128 bytes."""
    for begin, (rows, columns, warps) in itertools.product((LINE, SECTOR), ALIKE[size]):
        share = min(ceil_div(FLIGHT, loads * rows * columns * size), MOST_SHARED // (warps + 1))
        ctas, how = ceil_div(length + begin // size, columns), dict[str, Any](width=ALIGNMENT // size, begin=begin)
        if begin == SECTOR or length * size % (LINE // MOST_APART) == 0:
            with contextlib.suppress(InputError):  # its columns do not reach
                yield LineForm(length, rows, columns, warps, ctas, share, vector, size, **how)


def _apart(x: Any, out: Any) -> Any:
    """A vector as it lies, if the TMA engine takes it and *out* is elsewhere; else a copy."""
    lies = strides_of(x) == (1,) and address_of(x) % ALIGNMENT == 0
    return x if lies and min(strides_of(out)) > 0 and not meet(x, out) else copied(x)
