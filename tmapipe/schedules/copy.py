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
from tmapipe.base.arithmetic import Dim, ceil_div, dtype_of, int32
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind.bound import check_kind, check_memory
from tmapipe.bind.tensors import as_words, match, new_like
from tmapipe.calling import remember
from tmapipe.errors import InputError, is_count
from tmapipe.kernel import KernelContext
from tmapipe.parts.stages import ReductionScratch
from tmapipe.plan.model import WARP
from tmapipe.plan.thread_layout import WIDTHS
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.schedules.fused import check_stages
from tmapipe.schedules.rowform import (
    BOX,
    FLIGHT,
    WIDEST,
    RowForm,
    address_of,
    apart_of,
    begins_inside,
    seen_as,
    strides_of,
)
from tmapipe.schedules.rows import KINDS, RowKernel, Rows
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage, TmaStoreStage
from tmapipe.tiles.dynamic import GridTiles
from tmapipe.tiles.persistent import Grouped, PersistentTiles

# ---- copy ------------------------------------------------------------------------------------------------------------
#
# Copy: one warp loads, one stores, through a ring of shared-memory tiles.


REGISTERS, OTHERS = 1 << 16, 32  # of a multiprocessor; and of a thread of `CopyPlaces` beside elements and addresses
TILE, MOST_VALUES = 32 << 10, 80  # bytes of a tile of rows that begin anywhere, and elements of a thread, at most
ROW = 4096  # elements of a contiguous tensor that threads copy as one row
MULTIPROCESSOR = 228 * 1024  # bytes of shared memory of one, on sm_90


class Copy(Schedule):
    """``y = x``, of any element type, shape and strides, as 32-bit words; or converted, between bf16, fp16 and fp32.

    Dimensions that follow one another in both tensors are joined. What is then contiguous is copied as rows of one tile's
    width, so that each tile is one contiguous piece of memory, and what is left of the last row by a second launch. Up to 5
    dimensions of rows whose bytes, strides and addresses are multiples of 16 go by the TMA engine. Others are stored by
    threads: matrices by `CopyRows`, tensors of more dimensions by `CopyPlaces`. Both tensors are contiguous along the same
    dimension.

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
        if x.ndim > 2 and (along := _along(x)) is not None:
            return self._copy_places(x, y, along)
        for place in itertools.product(*map(range, x.shape[:-2])):
            kernel.apply({"x": x[place]}, {"y": y[place]}, {}, {})

    def _copy_places(self, x: Any, y: Any, along: int) -> None:
        """Copies rows that begin anywhere, of three dimensions or more. The rows of a tile follow *along* one dimension."""
        last, size = x.ndim - 1, x.dtype.itemsize
        others = [dim for dim in range(last) if dim != along]
        apart, order = apart_of(x, along), (*others, along, last)
        shape, *both = (tuple(each[dim] for dim in order) for each in (x.shape, strides_of(x), strides_of(y)))
        x, y = (seen_as(each, shape, steps) for each, steps in zip((x, y), both, strict=True))
        fitted, whole = self.__dict__.setdefault("_places", {}), x.shape[-2] - x.shape[-2] % apart
        for place in itertools.product(*map(range, x.shape[:-4])):
            for rows, several in ((slice(whole), apart), (slice(whole, x.shape[-2]), x.shape[-2] - whole)):
                one, other = (each[place][..., rows, :] for each in (x, y))
                if not one.shape[-2]:
                    continue
                (*steps, pitch, _), (*out, other_pitch, _) = strides_of(one), strides_of(other)
                *lead, height, length = one.shape
                start = address_of(one) % ALIGNMENT // size
                reach = sum((n - 1) * step for n, step in zip(lead, steps, strict=True)) + (several - 1) * pitch
                key = (*steps, pitch), length, size, start, *_together(one, other)
                if key not in fitted:
                    fitted[key] = CopyPlaces(*key)
                seen = seen_as(one, (height // several, start + reach + length), (several * pitch, 1), start)
                shape = (*lead, several, height // several, length)
                fitted[key](x=seen, y=seen_as(other, shape, (*out, other_pitch, several * other_pitch, 1)))

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            slot.y.store(tile)


class CopyPlaces(Schedule):
    """``y[..., r, a, n] = x``, of rows that begin anywhere, converted to y's type.

    Rows along a begin alike, counted from multiples of 16 bytes. x is seen as a matrix of rows along a, each of which holds
    all that belong to the other dimensions. A tile is loaded from the last such multiple before its rows, and stored by
    threads.

    Args:
        steps: Elements of x from one row to the next along each of the output's dimensions before a: "r", "c r" or "d c r".
        length: Of a row (elements).
        size: Bytes of an element of x.
        start: Elements after a multiple of 16 bytes where the first row begins.
        width: Elements that a thread has side by side.
        vector: Bytes of which addresses and strides of y are whole multiples, and where rows begin in it.
    """

    load, work = Role(warps=1), Role(warps=4)

    def __init__(
        self,
        steps: tuple[int, ...] = (101, 1010),
        length: int = 101,
        size: int = 2,
        start: int = 0,
        width: int = 1,
        vector: int = 2,
    ):
        if not isinstance(steps, tuple) or not 1 <= len(steps) <= 3 or not all(type(step) is int for step in steps):
            raise InputError("CopyPlaces(steps)", steps, "is of one to three dimensions", "e.g. (101, 1010)")
        if (
            {type(size), type(width)} != {int}
            or size not in (1, 2, 4)
            or width not in WIDTHS
            or width * size > ALIGNMENT
        ):
            rule = "are bytes of an element, 1, 2 or 4, and elements side by side, 1, 2, 4 or 8 of 16 bytes at most"
            raise InputError("CopyPlaces(size, width)", (size, width), rule, "e.g. 2 and 8")
        if not is_count(length) or type(start) is not int or not 0 <= start < ALIGNMENT // size:
            rule = "are elements of a row, and those after a multiple of 16 bytes where the first one begins"
            raise InputError("CopyPlaces(length, start)", (length, start), rule, "e.g. 101 and 0")
        self.steps, self.start, self.width, self.unit = steps, start, width, ALIGNMENT // size
        self.names = ("d", "c", "r")[-len(steps) :]
        self.rows, self.columns, warps = _places_form(length, size, width)
        self.work = Role(warps=warps)
        dims = " ".join((*self.names, "a n"))
        self.over, self.relations = dims, (Dim("n", size=length),)
        self.ring = BarrierRing(1, producer=self.load, consumer=self.work)
        self.x = TmaLoadStage("a w", tile=(self.rows, self.columns), ring=self.ring, l2_hint="evict_last")
        tile = self.rows, self.columns
        self.y = ThreadStoreStage(dims, tile=tile, role=self.work, vector=vector, wide=True)
        values = self.rows * self.columns // (WARP * warps)
        a_thread = values + values * size // vector + OTHERS  # one more a store, for its address
        most = REGISTERS // ((1 + warps) * WARP * a_thread)
        self.tiles = GridTiles(Grouped(1), max(2, min(8, most, ceil_div(FLIGHT, self.rows * self.columns * size))))

    def _begin(self, tile: Tile) -> Any:
        """Where a tile's rows begin among those that are seen as one."""
        return self.start + sum(getattr(tile, name) * step for name, step in zip(self.names, self.steps, strict=True))

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.produce() as slot:
            first = self._begin(tile) // self.unit * self.unit
            slot.x.load_from(tile.a * self.rows, first + tile.n * self.columns)

    @work.jit
    def copy(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            values = slot.x.read(width=self.width)
        place = [getattr(tile, name) for name in self.names]
        first = tile.n * self.columns - self._begin(tile) % self.unit
        k.y.store_from(*place, tile.a * self.rows, first, values=values)


def _places_form(length: int, size: int, width: int) -> tuple[int, int, int]:
    """(rows, columns, warps) of a tile of `CopyPlaces`, with the fewest elements in vain. As many tiles as a row has of them
    reach to its end, wherever it begins. Threads share a tile evenly, in vectors of *width*."""
    unit = ALIGNMENT // size
    need = length + unit - 1
    few = ceil_div(need, unit) * unit
    several = (n for n in range(BOX, BOX // 2, -unit) if ceil_div(length, n) * n >= need)
    columns = [n for n in range(few, BOX + 1, unit) if n * 3 <= few * 4] if few <= BOX else [*several]
    forms = [
        (n * ceil_div(length, n), abs(rows * n * size - TILE // 2), rows, n, warps)
        for n, rows, warps in itertools.product(columns, (128, 64, 32, 16, 8, 4), (1, 2, 4, 8))
        if rows * n % (width * WARP * warps) == 0 and rows * n <= min(MOST_VALUES * WARP * warps, TILE // size)
    ]
    *_, rows, n, warps = min(forms)
    return rows, n, warps


def _along(x: Any) -> int | None:
    """The dimension along which most rows begin alike; None if a tensor is not seen as `CopyPlaces` does."""
    if not begins_inside(x):
        return None
    steps = strides_of(x)
    reach = sum((n - 1) * step for n, step in zip(x.shape, steps, strict=True))
    dims = [dim for dim in range(x.ndim - 1) if steps[dim] > 0 and reach - (x.shape[dim] - 1) * steps[dim] < 1 << 30]
    return max(dims, key=lambda dim: x.shape[dim] // apart_of(x, dim), default=None)


def _together(x: Any, y: Any) -> tuple[int, int]:
    """Elements of rows that threads have side by side: 16 bytes of x where rows of y begin as many bytes after a multiple of
    16, else as many as lie so in both; and the bytes in y of the latter."""
    pairs = [
        (each, each.dtype.itemsize, (address_of(each) // each.dtype.itemsize, *strides_of(each)[:-1]))
        for each in (x, y)
    ]
    per = min(math.gcd(ALIGNMENT, *(place * size for place in places)) // size for _, size, places in pairs)
    (_, size, places), (_, other, others) = pairs
    alike = all((one - two) * size % ALIGNMENT == 0 for one, two in zip(places, others, strict=True))
    return min(ALIGNMENT // size if alike and size == other else per, WIDEST), per * other


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
