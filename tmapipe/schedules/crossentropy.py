"""Softmax, cross-entropy, reductions and running sums (Cumsum) of rows of any length."""

from __future__ import annotations

from typing import Any

import numpy as np

from tmapipe import math
from tmapipe.barrier import BarrierRing
from tmapipe.base.arithmetic import LOG2_E, ceil_div, dtype_of, fp32
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind import check_kind, check_low
from tmapipe.errors import InputError, is_whole, require
from tmapipe.kernel import KernelContext
from tmapipe.parts import ReductionScratch
from tmapipe.plan.model import WARP
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.rowform import FLIGHT, WIDEST, RowForm
from tmapipe.schedules.rows import RowKernel, Rows

# ---- softmax ---------------------------------------------------------------------------------------------------------
#
# Softmax, and its logarithm, of rows of any length.


class SoftmaxRows(Rows):
    """``y[m, n] = exp(x[m, n]) / sum over n of exp(x[m, n])``, of one form.

    Args:
        form, stored: As of `Rows`.
    """

    @Rows.work.jit
    def normalize(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            values = self.read_rows(slot.x)
            if not self.early:
                base: Any = math.row_logsumexp(values, **self.inside(tile))
                values = self.read_rows(slot.x)  # again: meanwhile, the row needs no registers
                self.store_rows(k.y, tile, math.exp2(values * LOG2_E - base * LOG2_E))
        if self.early:
            powers = math.exp(values - math.row_max(values, **self.inside(tile)))
            total = math.row_sum(powers, **self.inside(tile))
            root: Any = math.rsqrt(total)  # squared: division takes branches, and the sum is 1 or more
            self.store_rows(k.y, tile, powers * (root * root))


class LogSoftmaxRows(Rows):
    """``y[m, n] = x[m, n] - log(sum over n of exp(x[m, n]))``, of one form.

    Args:
        form, stored: As of `Rows`.
    """

    @Rows.work.jit
    def normalize(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            values = self.read_rows(slot.x)
            if not self.early:
                base = math.row_logsumexp(values, **self.inside(tile))
                self.store_rows(k.y, tile, self.read_rows(slot.x) - base)
        if self.early:
            self.store_rows(k.y, tile, values - math.row_logsumexp(values, **self.inside(tile)))


class RowsOfRows(RowKernel):
    """Base of kernels that make a row of each row, without anything beside it."""

    def __call__(self, x: Any, *, out: Any = None) -> Any:
        """Makes y, as the class says.

        Args:
            x: The rows.
            out: y, of x's shape and of any type; None: made, as x.

        Returns:
            y.

        Raises:
            InputError: For shapes or types that do not fit.
        """
        return self.run({"x": x}, {"y": out}, {})


class Softmax(RowsOfRows):
    """``y = exp(x) / sum of exp(x)`` over the last dimension of one to four, in bf16, fp16 or fp32, of any length."""

    hold = 32
    schedule: type[Rows] = SoftmaxRows


class LogSoftmax(Softmax):
    """The logarithm of `Softmax`, without leaving fp32."""

    schedule = LogSoftmaxRows


# ---- crossentropy ----------------------------------------------------------------------------------------------------
#
# Cross-entropy of rows of any length: the logarithm of the sum of powers of each row, less the logit of its target.


INTEGERS = "int32", "int64"


def logsumexp(x: Any, y: Any) -> Any:
    """The logarithm of the sum of e^x and e^y, of which either or both may be infinite."""
    most = math.maximum(x, y)
    most = math.where((most > -float("inf")) & (most < float("inf")), most, 0.0)
    return most + math.log(math.exp(x - most) + math.exp(y - most))


def flat_targets(target: Any, x: Any) -> Any:
    """Targets of rows *x*, as a vector. Raises `InputError` for other types or shapes."""
    check_kind("x", x)
    check_kind("target", target)
    if tuple(target.shape) != tuple(x.shape[:-1]) or str(target.dtype).removeprefix("torch.") not in INTEGERS:
        found, rule = (tuple(target.shape), str(target.dtype)), f"is int64 or int32 of {tuple(x.shape[:-1])}"
        raise InputError("target", found, rule, "pass a column for each row")
    check_low("target", target)
    flat = target.reshape(-1)
    return np.ascontiguousarray(flat) if isinstance(target, np.ndarray) else flat.contiguous()


def _target(owner: object, ignored: Any) -> int:
    """*ignored*. Raises `InputError` for what no target of 32 bits is equal to."""
    fits, rule = is_whole(ignored) and -(2**31) <= ignored < 2**31, "is an integer of 32 bits"
    require(fits, f"{type(owner).__name__}(ignored)", ignored, rule, "e.g. -100")
    return int(ignored)


class CrossEntropyRows(Rows):
    """``lse[m] = log(sum over n of exp(x[m, n])); loss[m] = lse[m] - x[m, target[m]]``, of one form.

    The targets of a tile are loaded with it, and the logit of each target is read where it lies in the slot.

    Args:
        form: As of `Rows`: of rows one after another, a multiple of 4, or of one row by `form.ctas` pieces.
        ignored: A target whose loss is 0.
    """

    stored, numbers, given, integers = (), ("loss", "lse"), ("target",), ("target",)

    def __init__(self, form: RowForm, ignored: int = -100):
        super().__init__(form)
        self.ignored = _target(self, ignored)

    @Rows.work.jit
    def lose(self, k: KernelContext, tile: Tile) -> None:
        form = self.form
        values, own, logits = self._piece(k, tile, 0)
        lse: Any = math.row_logsumexp(values, **self.inside(tile, 0))  # meanwhile, the slot is filled again
        for n in range(1, form.ctas):
            more, _, logits = self._piece(k, tile, n, logits)
            lse = logsumexp(lse, math.row_logsumexp(more, **self.inside(tile, n)))
        known = (own >= 0) & (own < form.length)
        loss = math.where(own == self.ignored, 0.0, math.where(known, lse - logits, float("nan")))
        self.store_numbers(k.loss, tile, loss)
        self.store_numbers(k.lse, tile, lse)

    def _piece(self, k: KernelContext, tile: Tile, n: Any, before: Any = 0.0) -> tuple[Any, Any, Any]:
        """(piece *n* of rows, the targets, their logits: *before* where these are in other pieces)."""
        form = self.form
        with k.ring.consume() as slot:
            values = self.read_rows(slot.x)
            own = math.cast(self.read_given(slot.target, tile, values), "int32")  # a plan may be made without its type
            place = own - self.first(tile, n)
            here = (place >= 0) & (place < form.columns)
            row = values.rows * (form.length if form.packed else form.columns) if form.rows > 1 else 0
            found = slot.x.read(at=math.where(here, place, 0) + row)
            return values, own, math.where(here, found, before)


class CrossEntropy(RowKernel):
    """Cross-entropy over the last dimension of tensors of two to four, in bf16, fp16 or fp32, of any length.

    Args:
        ignored: A target whose loss is 0. Any other target that is no column has the loss NaN.
    """

    def __init__(self, ignored: int = -100):
        super().__init__()
        self.ignored = _target(self, ignored)

    def __call__(self, x: Any, target: Any) -> Any:
        """``loss = lse - x[target]`` with ``lse = log(sum of exp(x))``, in fp32, one of each a row.

        Args:
            x: The logits.
            target: A column for each row, int64 (of which a GPU reads the lower 32 bits) or int32, of x's shape without its
                last dimension.

        Returns:
            (loss, lse).

        Raises:
            InputError: For shapes or types that do not fit.
        """
        tables = {"target": flat_targets(target, x)}
        return self.run({"x": x}, {}, {}, dict.fromkeys(CrossEntropyRows.numbers), tables)

    schedule = CrossEntropyRows

    def takes(self, form: RowForm) -> bool:
        """As in `RowKernel`; targets come in units of 16 bytes."""
        return form.rows == 1 or form.rows % 4 == 0

    def rows(self, form: RowForm, stored: int, loads: int, columns: int) -> CrossEntropyRows:
        """As in `RowKernel`."""
        return CrossEntropyRows(form, self.ignored)


class CrossEntropyBackwardRows(Rows):
    """``dx[m, n] = (exp(x[m, n] - lse[m]) - (n == target[m])) dloss[m]``, of one form.

    Args:
        form: As of `Rows`; several rows are a multiple of 4.
        ignored: As of `CrossEntropyRows`.
        stored: As of `Rows`.
    """

    stored, given, integers = ("dx",), ("lse", "dloss", "target"), ("target",)

    def __init__(self, form: RowForm, ignored: int = -100, stored: int = ALIGNMENT):
        super().__init__(form, stored)
        self.ignored = _target(self, ignored)

    @Rows.work.jit
    def differentiate(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            x: Any = self.read_rows(slot.x)
            lse, dloss, own = (self.read_given(stage, tile, x) for stage in (slot.lse, slot.dloss, slot.target))
            dloss = math.where(own == self.ignored, 0.0, dloss)
            hit = math.where(x.columns + self.first(tile) == own, 1.0, 0.0)
            self.store_rows(k.dx, tile, (math.exp(x - lse) - hit) * dloss)


class CrossEntropyBackward(RowKernel):
    """The gradient of `CrossEntropy`.

    Args:
        ignored: As of the forward pass. dx of such rows is 0.
    """

    schedule, hold = CrossEntropyBackwardRows, 0

    def __init__(self, ignored: int = -100):
        super().__init__()
        self.ignored = _target(self, ignored)

    def __call__(self, x: Any, target: Any, lse: Any, dloss: Any, *, out: Any = None) -> Any:
        """``dx = (exp(x - lse) - (column == target)) dloss``.

        Args:
            x, target: As of the forward pass.
            lse: The logarithms of sums that the forward pass gave, fp32, one a row.
            dloss: The gradient of the loss, fp32, one a row.
            out: dx, of x's shape; None: made, as x.

        Returns:
            dx.

        Raises:
            InputError: For shapes or types that do not fit.
        """
        given = {name: numbers_of(name, each, x) for name, each in (("lse", lse), ("dloss", dloss))}
        return self.run({"x": x}, {"dx": out}, {}, {}, {"target": flat_targets(target, x), **given})

    def takes(self, form: RowForm) -> bool:
        """As in `RowKernel`; numbers of rows come in units of 16 bytes."""
        return form.rows == 1 or form.rows % 4 == 0

    def rows(self, form: RowForm, stored: int, loads: int, columns: int) -> Rows:
        """As in `RowKernel`."""
        return CrossEntropyBackwardRows(form, self.ignored, stored)


def numbers_of(name: str, given: Any, x: Any) -> Any:
    """One number a row *x*, as a vector. Raises `InputError` for other types or shapes."""
    check_kind(name, given)
    if tuple(given.shape) != tuple(x.shape[:-1]) or dtype_of(given, name) != fp32:
        found, rule = (tuple(given.shape), str(given.dtype)), f"is fp32 of {tuple(x.shape[:-1])}"
        raise InputError(name, found, rule, "pass a number for each row")
    return given.reshape(-1)


# ---- reduce ----------------------------------------------------------------------------------------------------------
#
# Reduce: one number of each row of any length, such as its sum.


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
        if not isinstance(operation, str) or operation not in OPERATIONS:
            raise InputError("Reduce(operation)", operation, f"is one of {', '.join(OPERATIONS)}", 'e.g. "sum"')
        super().__init__()
        self._operation, self.options = operation, (operation,)
        self.nothing = {"sum": 0.0, "mean": np.nan, "min": np.inf}.get(operation, -np.inf)

    @property
    def operation(self) -> str:
        """As given; another operation is another object."""
        return self._operation

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


# ---- cumsum ----------------------------------------------------------------------------------------------------------
#
# Cumsum: the running sums of rows of any length, a piece after another.


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
            self._store(k, tile, 0, math.row_cumsum(values))
        else:
            total: Any = math.row_sum(values)  # first: then the running sums take the place of what is added
            self._store(k, tile, 0, math.row_cumsum(values))
            for n in range(1, self._pieces(k, tile)):
                values = self._piece(k, tile, n)
                before, total = total, total + math.row_sum(values)
                self._store(k, tile, n, math.row_cumsum(values) + before)

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
        return math.where(values.columns >= -self.first(tile, n), values, 0.0)

    def _store(self, k: KernelContext, tile: Tile, n: Any, sums: Any) -> None:
        form = self.form
        if form.apart == 1:
            k.y.store(tile.also(n=n), sums, surely=form.surely if form.ctas == 1 else (0, 0))
        else:
            k.y.store_from(tile.b, tile.a, self.first(tile, n), values=sums)


class Cumsum(RowsOfRows):
    """``y[..., n] = x[..., 0] + ... + x[..., n]``, added in fp32, of one to four dimensions, in bf16, fp16 or fp32."""

    hold, schedule = 96, CumsumRows

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
        """As in `RowKernel`: rows stay in registers while they are added up."""
        return form.ctas == 1 and form.held
