"""Rotary: pairs of columns as vectors of the plane, each rotated by an angle of its own, as rotary position embeddings do.
And Cumsum: running sums along rows.

    load (1 warp)      a tile of x, or one of each half of its rows, and what the tables have for it -> a slot
    work (warps)       rotates the pairs, stores from registers

A table that is repeated, such as over heads, is read once a tile, from L2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tmapipe import math
from tmapipe.barrier import BarrierRing
from tmapipe.base.arithmetic import Dim, ceil_div, dtype_of
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind import check_kind
from tmapipe.errors import InputError, check_bool
from tmapipe.kernel import KernelContext
from tmapipe.parts.stages import ReductionScratch
from tmapipe.plan.model import WARP
from tmapipe.protocol.tile import Tile
from tmapipe.schedules.copy import Copy
from tmapipe.schedules.crossentropy import RowsOfRows
from tmapipe.schedules.elementwise import (
    DIMS,
    ElementwiseTiles,
    along_of,
    as_rows,
    collapsed,
    fits_tma,
    made_like,
    tile_of,
    varying,
    vector_of,
)
from tmapipe.schedules.rowform import FLIGHT, WIDEST, RowForm, expanded, padded, seen_as, strides_of
from tmapipe.schedules.rows import KINDS, Rows
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage

# ---- rotary ----------------------------------------------------------------------------------------------------------
#
# Rotary: pairs of columns as vectors of the plane, rotated.


PAIRS = "p"  # the name of the dimension of columns that are neighbours in pairs, twice as many as angles


def _rotated(first: Any, second: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    return first * cos - second * sin, second * cos + first * sin


def _rotated_back(first: Any, second: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
    return first * cos + second * sin, second * cos - first * sin


class RotaryTiles(ElementwiseTiles):
    """``y0 = x0 cos - x1 sin``, ``y1 = x1 cos + x0 sin``, of the halves x0 and x1 of rows, or of neighbours in pairs.

    Args:
        inputs: As of `ElementwiseTiles`, of (x0, x1, cos, sin); of pairs, of (x, cos, sin), where x's last dimension is "p".
        dims: Of halves of the output, the last ones of "a b c m n".
        tile: (rows, columns of a table) that a CTA takes.
        vector: Bytes of which the output's rows, or halves of them, are whole multiples.
        pairs: Whether columns 2 i and 2 i + 1 are rotated by angle i, not i and i + half as many as there are.
        inverse: Whether they are rotated the other way.
        each: As of `ElementwiseTiles`.
    """

    def __init__(
        self,
        inputs: tuple[tuple[str, int], ...] = (("b m n", 2), ("b m n", 2), ("b n", 2), ("b n", 2)),
        dims: str = "b m n",
        tile: tuple[int, int] = (32, 64),
        vector: int = ALIGNMENT,
        pairs: bool = False,
        inverse: bool = False,
        each: int | None = None,
    ):
        check_bool("RotaryTiles(pairs)", pairs)
        check_bool("RotaryTiles(inverse)", inverse)
        self.pairs, rotate = pairs, _rotated_back if inverse else _rotated
        if not pairs:
            super().__init__(rotate, inputs, dims, tile, vector, each=each, outputs=2)
            return
        (_, size), *tables = inputs
        super().__init__(rotate, ((dims, 2 * size), *tables), dims, tile, vector, each=each)
        whole = (tile[0], 2 * tile[1])
        self.over, self.relations = f"{dims[:-1]}{PAIRS}", (Dim("n", of=PAIRS, per=2),)
        self.x0 = TmaLoadStage(self.over, tile=whole, ring=self.ring, l2_hint="evict_last")
        self.y = ThreadStoreStage(self.over, tile=whole, role=self.work, vector=vector).in_place(self.x0)

    @ElementwiseTiles.load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.produce() as slot:
            if self.pairs:
                slot.x0.load(tile)
            for i, _ in enumerate(self.inputs):
                if i > 0 or not self.pairs:
                    self._load(slot, i, tile, **({"n": tile.p} if self.pairs else {}))

    @ElementwiseTiles.work.jit
    def compute(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            if self.pairs:
                first, second = math.split_pairs(slot.x0.read())
                cos, sin = (self._read(slot, i, tile, first) for i in (1, 2))
                k.y.store(tile, math.join_pairs(*self.function(first, second, cos, sin)))
            else:
                first, second = slot.x0.read(), slot.x1.read()
                cos, sin = (self._read(slot, i, tile, first) for i in (2, 3))
                for name, values in zip(self.results, self.function(first, second, cos, sin), strict=True):
                    getattr(k, name).store(tile, values)


class Rotary:
    """Rotary position embedding: pairs of columns of x, each rotated by its angle, in fp32.

    Args:
        pairs: Whether pair i is columns 2 i and 2 i + 1, as GPT-J has it; else columns i and i + r, as GPT-NeoX and Llama do,
            where r is the number of angles.
        inverse: Whether they are rotated the other way, by minus the angles: the gradient of the other is this one.
    """

    def __init__(self, pairs: bool = False, inverse: bool = False):
        self.pairs, self.inverse = pairs, inverse
        self.fitted: dict[Any, RotaryTiles] = {}

    def __call__(self, x: Any, cos: Any, sin: Any, *, out: Any = None) -> Any:
        """x with the first 2 r columns rotated, and others as they are.

        Args:
            x: Of one to five dimensions, in bf16, fp16 or fp32.
            cos: Cosines of the angles, of such a type and a shape that broadcasts to that of x with r in the place of the last
                extent: of positions and angles, ``cos[:, None]`` for x of [batch, positions, heads, columns].
            sin: Their sines, of the same shape.
            out: Where the result goes, of x's shape; None: made, as x.

        Returns:
            The result.

        Raises:
            InputError: For shapes or types that do not fit.
        """
        for name, each in (("x", x), ("cos", cos), ("sin", sin), ("out", x if out is None else out)):
            check_kind(name, each)
            if (kind := dtype_of(each, name).name) not in KINDS:
                raise InputError(f"{name}.dtype", kind, f"is one of {', '.join(KINDS)}", "convert it")
        if not 1 <= x.ndim <= len(DIMS):
            raise InputError("x.shape", tuple(x.shape), "has one to five dimensions", "reshape it")
        angles = cos.shape[-1] if cos.ndim else 0
        shape = (*x.shape[:-1], angles)
        if not 2 <= angles <= x.shape[-1] // 2:
            rule = f"ends with the number of angles, from 2 to half of x's {x.shape[-1]} columns"
            raise InputError("cos.shape", tuple(cos.shape), rule, "pass the cosine of each angle once")
        for name, table in (("cos", cos), ("sin", sin)):
            try:
                fits = np.broadcast_shapes(tuple(table.shape), shape) == shape and table.shape == cos.shape
            except ValueError:
                fits = False
            if not fits:
                rule = f"is of cos's shape, {tuple(cos.shape)}, which broadcasts to {shape}"
                raise InputError(f"{name}.shape", tuple(table.shape), rule, "reshape it, such as cos[:, None]")
        if out is None:
            out = made_like(x, tuple(x.shape), (*strides_of(x)[:-1], 0))
        if tuple(out.shape) != tuple(x.shape):
            raise InputError("out.shape", tuple(out.shape), f"is that of x, {tuple(x.shape)}", "make it so")
        if 0 not in x.shape and strides_of(out)[-1] != 1:
            rule = "is contiguous along the last dimension"
            raise InputError("out.stride", strides_of(out), rule, "pass a dense tensor, or leave it out")
        if 0 not in x.shape:
            tables = [expanded(table, shape) for table in (cos, sin)]
            x = x if strides_of(x)[-1] == 1 else padded(x)
            (self._pairs if self.pairs else self._halves)(x[..., : 2 * angles], out[..., : 2 * angles], tables)
            if 2 * angles < x.shape[-1]:
                Copy()(x[..., 2 * angles :], out[..., 2 * angles :])
        return out

    def _halves(self, x: Any, out: Any, tables: list[Any]) -> None:
        half = x.shape[-1] // 2
        (*views, second), first = collapsed([x[..., :half], x[..., half:], *tables, out[..., half:]], out[..., :half])
        *views, second, first = map(_matrix, (*views, second, first))
        self._run(views, min(vector_of(first), vector_of(second)), {"y0": first, "y1": second})

    def _pairs(self, x: Any, out: Any, tables: list[Any]) -> None:
        (even, *tables), first = collapsed([x[..., ::2], *tables], out[..., ::2])
        whole, out = (_matrix(seen_as(each, *_twice(each))) for each in (even, first))
        self._run([whole, *map(_matrix, tables)], vector_of(out), {"y": out})

    def _run(self, views: list[Any], vector: int, outputs: dict[str, Any]) -> None:
        """Of (x0, x1, cos, sin), or (x, cos, sin) of pairs, of two dimensions or more, joined where they can be."""
        views = [x if fits_tma(x) else padded(x) for x in views]
        *_, table = views
        inputs = tuple((along_of(x), x.dtype.itemsize) for x in views)
        dims = " ".join(DIMS[len(DIMS) - table.ndim :])
        beside, sizes = any(along != dims for along, _ in inputs), [size for _, size in inputs]
        tile = tile_of(tuple(table.shape[-2:]), 2 * max(sizes), beside, 1)
        key = inputs, dims, tile, vector
        if key not in self.fitted:
            self.fitted[key] = RotaryTiles(inputs, dims, tile, vector, self.pairs, self.inverse)
        self.fitted[key](**{f"x{i}": varying(x) for i, x in enumerate(views)}, **outputs)


def _twice(x: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The extents and strides of a tensor of which there is every second column."""
    return (*x.shape[:-1], 2 * x.shape[-1]), (*strides_of(x)[:-1], 1)


def _matrix(x: Any) -> Any:
    """A tensor of two dimensions or more."""
    return as_rows(x, 1, x.shape[0]) if x.ndim == 1 else x


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
            k.y.store(tile.also(n=n), sums)
        else:
            k.y.store_from(tile.b, tile.a, self.first(tile, n), values=sums)


class Cumsum(RowsOfRows):
    """``y[..., n] = x[..., 0] + ... + x[..., n]``, added in fp32, of one to four dimensions, in bf16, fp16 or fp32."""

    hold, kept, schedule = 0, 1, CumsumRows

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
        """As in `RowKernel`."""
        return form.ctas == 1
