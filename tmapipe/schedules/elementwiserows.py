"""A function of matrices, element by element, whose rows begin at no multiples of 16 bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tmapipe.bind.tensors import is_contiguous
from tmapipe.dtypes import fp32
from tmapipe.kernel import KernelContext
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.rowform import RowForm
from tmapipe.schedules.rowkernel import RowKernel
from tmapipe.schedules.rowplaces import address_of, converted, copied, widest
from tmapipe.schedules.rows import Rows
from tmapipe.stage import TmaLoadStage
from tmapipe.tma_rules import ALIGNMENT


class ElementwiseRows(Rows):
    """``y[m, n] = function(x0, x1, ...)`` of matrices, of vectors of one number a column and of one number a row, of one form.

    Args:
        form: As of `Rows`; with numbers of rows, rows one after another are a multiple of 4.
        function: As of `Elementwise`.
        kinds: Of each argument "x", "n" or "m": a matrix, a number a column or a number a row, in fp32.
        stored: As of `Rows`.
    """

    def __init__(
        self, form: RowForm, function: Callable[..., Any], kinds: tuple[str, ...] = ("x",), stored: int = ALIGNMENT
    ):
        self.function, self.kinds = function, kinds
        self.loaded = tuple(f"x{i}" for i, kind in enumerate(kinds) if kind == "x")
        self.columns = tuple(f"x{i}" for i, kind in enumerate(kinds) if kind == "n")
        self.given = tuple(f"x{i}" for i, kind in enumerate(kinds) if kind == "m")
        super().__init__(form, stored)
        for name in self.given:
            setattr(self, name, TmaLoadStage("r", tile=(max(4, form.rows),), ring=self.ring, dtype=fp32))

    @Rows.load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.produce() as slot:
            self._load_rows(slot, tile, tile.n)
            if self.form.each == 1:
                self._load_columns(slot, tile.n)
            for name in self.given:
                getattr(slot, name).load_from(self.row(tile) // 4 * 4)

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
                elif self.form.rows == 1:
                    read = getattr(slot, name).read(at=self.row(tile) % 4)
                else:
                    read = getattr(slot, name).read(rows_of=whole)
                values.append(read)
            self.store_rows(k.y, tile, self.function(*values))

    def _seen(self, name: str, x: Any) -> Any:
        if name not in self.given:
            return super()._seen(name, x)
        return x if is_contiguous(x) and address_of(x) % ALIGNMENT == 0 else copied(x)


class ElementwiseKernel(RowKernel):
    """A function of matrices, vectors and numbers of rows. Arguments as of `ElementwiseRows`."""

    schedule, hold = ElementwiseRows, 0

    def __init__(self, function: Callable[..., Any], kinds: tuple[str, ...]):
        super().__init__()
        self.function, self.kinds = function, kinds

    def __call__(self, views: list[Any], out: Any) -> None:
        """Computes *out* of matrices of its shape, in which what is repeated has strides of 0."""
        wide = widest([x for x, kind in zip(views, self.kinds, strict=True) if kind == "x"])
        rows: dict[str, Any] = {}
        columns: dict[str, Any] = {}
        given: dict[str, Any] = {}
        for i, (x, kind) in enumerate(zip(views, self.kinds, strict=True)):
            if kind == "x":
                rows[f"x{i}"] = converted(x, wide)
            elif kind == "n":
                columns[f"x{i}"] = copied(x[0])
            else:
                given[f"x{i}"] = converted(copied(x[:, 0]), fp32)
        self.apply(rows, {"y": out}, columns, given)

    def takes(self, form: RowForm) -> bool:
        """As in `RowKernel`; numbers of rows come in units of 16 bytes."""
        return "m" not in self.kinds or form.rows == 1 or form.rows % 4 == 0

    def rows(self, form: RowForm, stored: int, loads: int, columns: int) -> ElementwiseRows:
        """As in `RowKernel`."""
        return ElementwiseRows(form, self.function, self.kinds, stored)
