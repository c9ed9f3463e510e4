"""Copy and Cumsum: one warp loads, one stores, through a ring of tiles; and the running sums of rows of any length."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from copy import copy
from typing import Any

import numpy as np

from tmapipe import math as functions
from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import ceil_div, dtype_of, int32
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind.bound import check_kind, check_memory
from tmapipe.bind.tensors import as_words, match, new_like
from tmapipe.calling import remember
from tmapipe.errors import InputError
from tmapipe.kernel import KernelContext
from tmapipe.parts.stages import ReductionScratch
from tmapipe.plan.model import WARP
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.schedules.fused import check_stages
from tmapipe.schedules.rowform import FLIGHT, WIDEST, RowForm, address_of, seen_as, strides_of
from tmapipe.schedules.rows import KINDS, RowKernel, Rows
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import TmaStoreStage
from tmapipe.tiles.persistent import GridTiles, Grouped, PersistentTiles

# ---- copy ------------------------------------------------------------------------------------------------------------
#
# Copy: one warp loads, one stores, through a ring of shared-memory tiles.


ROW = 4096  # elements of a contiguous tensor that threads copy as one row
MULTIPROCESSOR = 228 * 1024  # bytes of shared memory of one, on sm_90


class Copy(Schedule):
    """``y = x``, of any element type, shape and strides, as 32-bit words; or converted, between bf16, fp16 and fp32.

    Dimensions that follow one another in both tensors are joined. What is then contiguous is copied as rows of one tile's
    width, so that each tile is one contiguous piece of memory, and what is left of the last row by a second launch. Up to 5
    dimensions of rows whose bytes, strides and addresses are multiples of 16 go by the TMA engine. Others are stored by
    threads (`CopyRows`), a matrix at a time. Both tensors are contiguous along the same dimension.

    By default each CTA copies one tile. So few bytes are in flight, which lie close together: DRAM pages stay open.

    Args:
        tile: (rows, words) moved at once.
        stages: Slots in flight. With more than one, or None (as many as fit), persistent CTAs stream through them.
        pending: Stores that may still read their slot while the next one is waited for; None: 2, or 0 with one slot.
        ctas: With one slot, CTAs that share a multiprocessor; None: 10, or as many as have room for a tile.
        l2_hint: Of the loads, as of `TmaLoadStage`. "evict_last" is 1 to 3 % faster for what is several times larger than L2,
            and leaves less of L2 to what runs next.
    """

    load, store = Role(warps=1), Role(warps=1)

    def __init__(
        self,
        tile: tuple[int, int] = (4, 256),
        stages: int | None = 1,
        pending: int | None = None,
        ctas: int | None = None,
        l2_hint: str | None = None,
    ):
        if not isinstance(tile, tuple) or len(tile) != 2:
            raise InputError("Copy(tile)", tile, "is (rows, words of 4 bytes)", "e.g. (4, 256)")
        self.ring = BarrierRing(stages, producer=self.load, consumer=self.store)
        if pending is None:
            pending = 0 if stages == 1 else 2
        self.x = TmaLoadStage("m n", tile=tile, ring=self.ring, dtype=int32, l2_hint=l2_hint)
        self.y = TmaStoreStage(source=self.x, stages=pending)
        if ctas is None:  # with a tile, barriers, and what is the system's
            ctas = min(10, max(1, MULTIPROCESSOR // (self.x.tile[0] * self.x.tile[1] * 4 + 2048)))
        self.tiles = GridTiles(Grouped(1), ctas) if stages == 1 else PersistentTiles(Grouped(1))

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Copies x to y (or `out`, or a new tensor) and returns that. Both by position or by name.

        Raises:
            InputError: y is not of x's shape, is of another type that is no floating point of 16 or 32 bits, or the two are
                contiguous along different dimensions.
        """
        for call in self.__dict__.get("_again", ()):  # copies of such tensors by one kernel
            found = call(tensors, out, named)
            if found is not None:
                return found
        check_stages(self, "x", "y")
        given = match(("x", "y"), tensors, named, None)
        x: Any = given.get("x")
        y: Any = given.get("y")
        check_kind("x", x)
        if y is not None and out is not None:
            raise InputError("out", type(out).__name__, "names the output, which is given already", "pass it once")
        y = y if y is not None else out if out is not None else new_like(x)
        check_kind("y", y)
        same = x.dtype == y.dtype
        if x.shape != y.shape or not (same or {dtype_of(x, "x").name, dtype_of(y, "y").name} <= set(KINDS)):
            rule = f"must be like x: {tuple(x.shape)}, {x.dtype}, or of its shape in {', '.join(KINDS)}, as x"
            raise InputError("y", (tuple(y.shape), y.dtype), rule, "pass such a tensor")
        if 0 not in x.shape:
            check_memory("x", x, output=False)
            check_memory("y", y, output=True)
            copied = functools.partial(self._copy, *merged(x, y), same)
            remember(self, copied, tensors, out, named, y)
        return y

    def _copy(self, x: Any, y: Any, same: bool) -> None:
        """Copies a tensor of as few dimensions as can be; *same*: of the same type."""
        width = self.x.tile[1] * 4 // x.dtype.itemsize
        if same and x.ndim == 1 and x.shape[0] > width and _by_engine(x[:width], y[:width]):
            whole = x.shape[0] - x.shape[0] % width
            super().__call__(*(as_words("x", each[:whole].reshape(-1, width)) for each in (x, y)))
            x, y = x[whole:], y[whole:]
        if same and x.ndim <= 5 and _by_engine(x, y):
            x, y = (each.reshape(1, -1) if each.ndim == 1 else each for each in (x, y))
            Schedule.__call__(self._of_rank(x.ndim), as_words("x", x), as_words("y", y))
        elif x.shape[0]:
            self._copy_rows(*(_units(x, y) if same else (x, y)))

    def _of_rank(self, rank: int) -> Copy:
        """The same copy of tensors of so many dimensions."""
        if rank == 2:
            return self
        made = self.__dict__.setdefault("_ranked", {})
        if rank not in made:
            other = copy(self)
            dims = " ".join("abc"[: rank - 2]) + " m n"
            other.x = TmaLoadStage(dims, tile=self.x.tile, ring=self.ring, dtype=int32, l2_hint=self.x.l2_hint)
            other.y = TmaStoreStage(source=other.x, stages=self.y.stages)
            made[rank] = other
        return made[rank]

    def _copy_rows(self, x: Any, y: Any) -> None:
        """By threads, where TMA does not take both: rows of any length and alignment, matrix by matrix."""
        for name, each in (("x", x), ("y", y)):
            if strides_of(each)[-1] != 1:
                rule = "is contiguous along the dimension along which the other one is"
                raise InputError(
                    f"{name}.stride", strides_of(each), rule, "copy it to such a layout, e.g. by a transpose"
                )
        kernel = self.__dict__.setdefault("_rows", CopyKernel())
        if x.ndim == 1:
            whole = x.shape[0] - x.shape[0] % ROW
            pairs = [(each[:whole].reshape(-1, ROW), each[whole:].reshape(1, -1)) for each in (x, y)]
            for rows, result in zip(*pairs, strict=True):
                if 0 not in rows.shape:
                    kernel.apply({"x": rows}, {"y": result}, {}, {})
            return
        for place in itertools.product(*map(range, x.shape[:-2])):
            kernel.apply({"x": x[place]}, {"y": y[place]}, {}, {})

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            slot.y.store(tile)


class CopyRows(Rows):
    """``y[m, n] = x[m, n]``, converted to y's type, of one form.

    Args:
        form, stored: As of `Rows`.
    """

    @Rows.work.jit
    def copy(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            self.store_rows(k.y, tile, self.read_rows(slot.x))


class CopyKernel(RowKernel):
    """Copies matrices of rows."""

    schedule, hold = CopyRows, 0


def merged(x: Any, y: Any) -> tuple[Any, Any]:
    """The two with dimensions joined that follow one another in both, along y's last one last; where neither is contiguous,
    with one of a single element after them."""
    dims = [(n, xs, ys) for n, xs, ys in zip(x.shape, strides_of(x), strides_of(y), strict=True) if n > 1]
    dims.sort(key=lambda dim: (-dim[2], -dim[1]))
    joined: list[tuple[int, int, int]] = []
    for n, xs, ys in dims or [(1, 1, 1)]:
        if joined and joined[-1][1:] == (xs * n, ys * n):
            joined[-1] = (joined[-1][0] * n, xs, ys)
        else:
            joined.append((n, xs, ys))
    if 1 not in joined[-1][1:]:
        joined.append((1, 1, 1))
    shape, *strides = zip(*joined, strict=True)
    return seen_as(x, shape, strides[0]), seen_as(y, shape, strides[1])


def _by_engine(x: Any, y: Any) -> bool:
    """Whether the TMA engine takes both as words: rows, strides and addresses are multiples of 16 bytes."""
    if not x.shape[0] or any(strides_of(each)[-1] != 1 for each in (x, y)):
        return False
    return _unit(x, y, ALIGNMENT) == ALIGNMENT


def _unit(x: Any, y: Any, most: int) -> int:
    """The most bytes of which rows, strides and addresses of both are multiples."""
    size = x.dtype.itemsize
    steps = [step * size for each in (x, y) for step in strides_of(each)[:-1]]
    return math.gcd(most, x.shape[-1] * size, address_of(x), address_of(y), *steps)


def _units(x: Any, y: Any) -> tuple[Any, Any]:
    """Both as integers of 32, 16 or 8 bits: the widest that their rows are made of."""
    if any(strides_of(each)[-1] != 1 for each in (x, y)):
        return x, y
    kind = f"int{8 * _unit(x, y, 4)}"
    library = np if isinstance(x, np.ndarray) else sys.modules["torch"]
    return x.view(getattr(library, kind)), y.view(getattr(library, kind))


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
            self._store(k, tile, 0, functions.row_cumsum(values))
        else:
            total: Any = functions.row_sum(values)  # first: then the running sums take the place of what is added
            self._store(k, tile, 0, functions.row_cumsum(values))
            for n in range(1, self._pieces(k, tile)):
                values = self._piece(k, tile, n)
                before, total = total, total + functions.row_sum(values)
                self._store(k, tile, n, functions.row_cumsum(values) + before)

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
        return functions.where(values.columns >= -self.first(tile, n), values, 0.0)

    def _store(self, k: KernelContext, tile: Tile, n: Any, sums: Any) -> None:
        form = self.form
        if form.apart == 1:
            k.y.store(tile.also(n=n), sums)
        else:
            k.y.store_from(tile.b, tile.a, self.first(tile, n), values=sums)


class Cumsum(RowKernel):
    """Running sums along the last dimension of tensors of one to four, in bf16, fp16 or fp32, of any length, added in fp32."""

    hold, kept, schedule = 0, 1, CumsumRows

    def __call__(self, x: Any, *, out: Any = None) -> Any:
        """``y[..., n] = x[..., 0] + ... + x[..., n]``.

        Args:
            x: The rows.
            out: y, of x's shape and of any type; None: made, as x.

        Returns:
            y.

        Raises:
            InputError: For shapes or types that do not fit.
        """
        return self.run({"x": x}, {"y": out}, {})

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
