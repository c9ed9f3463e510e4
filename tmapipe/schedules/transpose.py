"""Transpose, dimensions in another order, through shared memory; and copies of rows that begin anywhere, by `CopyPlaces`.

load (1 warp)          a tile of x -> the slot of the CTA, TMA
work (1 or 2 warpgroups)  reads it with rows as columns, writes it into a tile beside it
store                  the TMA engine; where rows of the result begin elsewhere, a warpgroup from its registers

Where rows of x begin at no multiples of 16 bytes, boxes of those that begin alike are loaded, and work stores what it reads.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from tmapipe import calling
from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import Dim, as_dtype, ceil_div, dtype_of
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind import check_kind, check_memory
from tmapipe.bind.tensors import DIMS, collapsed, fits_tma, new_like, seen_as, strides_of, vector_of
from tmapipe.calling import remember
from tmapipe.errors import InputError, is_count, require
from tmapipe.kernel import KernelContext
from tmapipe.parts import SharedStage
from tmapipe.plan.model import WARP, WIDTHS
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.schedules.rowform import (
    BOX,
    FLIGHT,
    WIDEST,
    address_of,
    apart_of,
    begins_inside,
    copied,
    padded,
    together,
)
from tmapipe.schedules.rows import KINDS, MULTIPROCESSORS
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage, TmaStoreStage
from tmapipe.tiles.dynamic import GridTiles
from tmapipe.tiles.persistent import Grouped

TYPES = (*KINDS, "int32")
OTHER_TILES = (64, 128), (64, 64), (128, 64)
LOOK = 4_000_000  # bytes that are copied, from which on a look pays
SWIZZLE = 128  # bytes
CTAS = 4  # on a multiprocessor, each with a tile of x and one of y: 128 KiB of both
NARROW = 32  # elements, below which odd rows are copied to multiples of 16 bytes first
APART = 4 << 20  # bytes of a matrix of a batch, from which on each odd matrix has its own launch, without a copy
CTAS_OF_THREADS = 3  # likewise where threads store, which need more registers
REGISTERS, OTHERS = 1 << 16, 28  # of a multiprocessor; and of a thread of `CopyPlaces` beside its elements
THREADS = 2048  # of a multiprocessor
TILE, LEAST_TILE = 12 << 10, 1 << 10  # bytes of a tile of rows that begin anywhere
MOST_VALUES = 32  # elements of a thread in such a tile
EACH, MOST_WARPS = (1, 2, 3), 15  # such tiles of a CTA; warps that share one
FEW_TILES = 2  # such tiles for each multiprocessor, at least, where there are few rows


class TransposeTiles(Schedule):
    """``y[..., n, m] = x[..., m, n]``, of tensors of which x lies at multiples of 16 bytes.

    The hardware takes the tiles along m first, so that those in flight write rows of the output that are next to each other.
    What is read stays in L2, so that what is written leaves it soon, while its neighbours do.

    Args:
        dtype: Of both.
        dims: Of x, the last ones of "a b c m n".
        tile: Its (rows, columns) that a CTA takes; columns in units of 64.
        vector: Bytes of which rows of y are whole multiples; with fewer than 16, threads store.
        ctas: CTAs that share a multiprocessor; None: 4, or 3 where threads store.
    """

    load, work, store = Role(warps=1), Role(warpgroups=1), Role(warps=1)

    def __init__(
        self,
        dtype: str = "bf16",
        dims: str = "m n",
        tile: tuple[int, int] = (64, 128),
        vector: int = ALIGNMENT,
        ctas: int | None = None,
    ):
        _check("TransposeTiles", dims, tile, vector, ctas)
        rows, columns = tile
        result = f"{dims[:-3]}n m"
        self.over, self.vector, self.width = result, vector, max(1, vector // as_dtype(dtype).bytes)
        self.work = Role(warpgroups=columns // 64)
        self.store = Role(warps=1 if vector == ALIGNMENT else 4)
        self.tiles = GridTiles(Grouped(1), ctas or (CTAS if vector == ALIGNMENT else CTAS_OF_THREADS))
        self.ring = BarrierRing(1, chain=(self.load, self.work, self.store))
        self.x = TmaLoadStage(dims, tile=tile, ring=self.ring, dtype=dtype, swizzle=SWIZZLE, l2_hint="evict_last")
        self.z = SharedStage(tile=(columns, rows), ring=self.ring, writer=self.work, dtype=dtype, swizzle=SWIZZLE)
        if vector == ALIGNMENT:
            self.y: Any = TmaStoreStage(result, source=self.z, stages=0)
        else:
            self.y = ThreadStoreStage(result, tile=(columns, rows), role=self.store, vector=vector)

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def transpose(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            slot.z.write(slot.x.read(transposed=True))

    @store.jit
    def drain(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            if self.vector == ALIGNMENT:
                slot.y.store(tile)
            else:
                k.y.store(tile, slot.z.read(width=self.width))  # so that lanes store next to each other


class TransposeRows(Schedule):
    """``y[..., n, m] = x[..., m, n]``, of tensors of which rows of x begin anywhere.

    x is seen as a tensor whose rows hold as many rows as begin alike: of each of these, a box is loaded from the last multiple
    of 16 bytes before it. Threads read rows as columns, wherever they begin in the slot.

    Args:
        dtype: Of both.
        dims: Of x, the last ones of "a b c m n".
        pitch: Elements from one row of x to the next.
        start: Elements after a multiple of 16 bytes where the first row begins.
        vector: Bytes of which rows of y are whole multiples; with fewer than 16, threads store.
        tile: Its (rows, columns) that a CTA takes.
        warps: That transpose it.
        ctas: CTAs that share a multiprocessor.

    Raises:
        InputError: An argument is not as above, such as a *pitch* that is no positive number.
    """

    load, work = Role(warps=1), Role(warps=8)

    def __init__(
        self,
        dtype: str = "bf16",
        dims: str = "m n",
        pitch: int = 1001,
        start: int = 0,
        vector: int = 2,
        tile: tuple[int, int] = (64, 128),
        warps: int = 8,
        ctas: int = CTAS,
    ):
        _check("TransposeRows", dims, tile, vector, ctas)
        if not is_count(pitch) or type(start) is not int or not 0 <= start < ALIGNMENT // as_dtype(dtype).bytes:
            rule = "are elements from row to row, and after a multiple of 16 bytes where the first begins"
            raise InputError("TransposeRows(pitch, start)", (pitch, start), rule, "e.g. 1001 and 0")
        rows, columns = self.tile = tile
        self.unit, self.pitch, self.start = ALIGNMENT // as_dtype(dtype).bytes, pitch, start
        self.apart = self.unit // math.gcd(self.unit, pitch)
        self.lead, result = dims.split()[:-2], f"{dims[:-3]}n m"
        self.over, self.work, self.tiles = result, Role(warps=warps), GridTiles(Grouped(1), ctas)
        self.ring = BarrierRing(1, producer=self.load, consumer=self.work)
        box, dims = (rows, columns + self.unit), f"{dims[:-3]}r w"
        x = TmaLoadStage(dims, tile=box, ring=self.ring, dtype=dtype, l2_hint="evict_last")
        self.x = x.in_parts(self.apart)
        if vector == ALIGNMENT:
            self.y: Any = TmaStoreStage(result, tile=(columns, rows), role=self.work, dtype=dtype, stages=1)
        else:
            self.y = ThreadStoreStage(result, tile=(columns, rows), role=self.work, vector=vector)

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        rows, columns = self.tile
        lead = [getattr(tile, dim) for dim in self.lead]
        with k.ring.produce() as slot:
            for i in range(self.apart):
                first = (self.start + i * self.pitch) // self.unit * self.unit
                slot.x.load_part_from(i, *lead, tile.m * (rows // self.apart), first + tile.n * columns)

    @work.jit
    def transpose(self, k: KernelContext, tile: Tile) -> None:
        rows, columns = self.tile
        pitch = columns + self.unit
        part = rows // self.apart * pitch
        starts = tuple(i * part + (self.start + i * self.pitch) % self.unit for i in range(self.apart))
        with k.ring.consume() as slot:
            values = slot.x.read(tile=(columns, rows), pitch=pitch, at=starts, transposed=True)
        k.y.store(tile, values)


class CopyPlaces(Schedule):
    """``y[..., r, a, n] = x``, of rows that begin anywhere, converted to y's type.

    Rows along a begin alike, counted from multiples of 16 bytes. x is seen as a matrix of rows along a, each of which holds
    all that belong to the other dimensions. A tile is loaded from the last such multiple before its rows, and stored by
    threads. Raises `InputError` for numbers that are not as below.

    Args:
        steps: Elements of x from one row to the next along each of the output's dimensions before a: "r", "c r" or "d c r".
        length: Of a row (elements).
        size: Bytes of an element of x.
        start: Elements after a multiple of 16 bytes where the first row begins.
        width: Elements that a thread has side by side.
        vector: Bytes of which addresses, strides and rows of y are whole multiples.
        inner: Of how many dimensions before a tiles follow one another sooner than along a, as their rows are nearer.
        tile: (rows, columns, warps that share them, tiles of a CTA). Those of a row reach to its end, wherever it begins.
    """

    load, work = Role(warps=1), Role(warps=7)

    def __init__(
        self,
        steps: tuple[int, ...] = (101, 1010),
        length: int = 101,
        size: int = 2,
        start: int = 0,
        width: int = 1,
        vector: int = 2,
        inner: int = 2,
        tile: tuple[int, int, int, int] = (8, 112, 7, 1),
    ):
        if not isinstance(steps, tuple) or not 1 <= len(steps) <= 3 or not all(type(step) is int for step in steps):
            raise InputError("CopyPlaces(steps)", steps, "is of one to three dimensions", "e.g. (101, 1010)")
        known = type(size) is type(width) is int and size in (1, 2, 4) and width in WIDTHS
        if not known or width * size > ALIGNMENT:
            rule = "are bytes of an element, 1, 2 or 4, and elements side by side, 1, 2, 4 or 8 of 16 bytes at most"
            raise InputError("CopyPlaces(size, width)", (size, width), rule, "e.g. 2 and 8")
        if not is_count(length) or type(start) is not int or not 0 <= start < ALIGNMENT // size:
            rule = "are elements of a row, and those after a multiple of 16 bytes where the first one begins"
            raise InputError("CopyPlaces(length, start)", (length, start), rule, "e.g. 101 and 0")
        if type(inner) is not int or not 0 <= inner <= len(steps):
            raise InputError("CopyPlaces(inner)", inner, "is how many of the dimensions are within", "e.g. 1")
        four = isinstance(tile, tuple) and len(tile) == 4 and all(map(is_count, tile))
        reached = four and ceil_div(length, tile[1]) * tile[1]
        need = _reached(steps, length, size, start)
        rule = f"is rows, columns to reach {need}, warps, tiles"
        require(reached >= need, "CopyPlaces(tile)", tile, rule, "use more columns")
        self.steps, self.start, self.width, self.unit = steps, start, width, ALIGNMENT // size
        self.names = ("d", "c", "r")[-len(steps) :]
        self.rows, self.columns, warps, each = tile
        self.work = Role(warps=warps)
        dims, outer = " ".join((*self.names, "a n")), len(steps) - inner
        self.over = " ".join((*self.names[:outer], "a", *self.names[outer:], "n"))
        self.relations = (Dim("n", size=length),)
        self.ring = BarrierRing(each, producer=self.load, consumer=self.work)
        self.x = TmaLoadStage("a w", tile=(self.rows, self.columns), ring=self.ring, l2_hint="evict_last")
        self.y = ThreadStoreStage(dims, tile=self.x.tile, role=self.work, vector=vector, wide=True)
        self.tiles = GridTiles(Grouped(1), _resident(tile, size), each)

    def _begin(self, tile: Tile) -> Any:
        """Where a tile's rows begin among those that are seen as one."""
        return self.start + sum(getattr(tile, name) * step for name, step in zip(self.names, self.steps, strict=True))

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.produce() as slot:
            slot.x.load_from(tile.a * self.rows, self._begin(tile) // self.unit * self.unit + tile.n * self.columns)

    @work.jit
    def copy(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            values = slot.x.read(width=self.width)
        place = [getattr(tile, name) for name in self.names]
        first = tile.n * self.columns - self._begin(tile) % self.unit
        k.y.store_from(*place, tile.a * self.rows, first, values=values)


def _reached(steps: tuple[int, ...], length: int, size: int, start: int) -> int:
    """Elements from a multiple of 16 bytes to the end of a row that begins after it, at most."""
    unit = ALIGNMENT // size
    alike = math.gcd(unit, *steps)
    return length + unit - alike + start % alike


def _resident(tile: tuple[int, int, int, int], size: int) -> int:
    """CTAs of `CopyPlaces` that share a multiprocessor."""
    rows, columns, warps, each = tile
    threads = WARP + WARP * warps
    registers = rows * columns // (WARP * warps) + OTHERS
    most = min(THREADS // threads, REGISTERS // (threads * registers))
    return max(1, min(most, ceil_div(FLIGHT, rows * columns * size * each), 16))


@functools.lru_cache(maxsize=1024)
def places_form(
    steps: tuple[int, ...], length: int, size: int, start: int, width: int, rows: int, bytes_: int
) -> tuple[int, int, int, int]:
    """The tile of `CopyPlaces`, of which threads have whole vectors in the same columns of other rows: that takes few
    instructions. Few elements are loaded in vain; there are several tiles for each multiprocessor, if there are as many rows;
    and enough bytes are on their way."""
    unit, need = ALIGNMENT // size, _reached(steps, length, size, start)
    few = ceil_div(need, unit) * unit
    columns = [n for n in range(few, BOX + 1, unit) if n * 3 <= few * 4 or n == few]
    if few > BOX:
        columns = [n for n in range(BOX, BOX // 2, -unit) if ceil_div(length, n) * n >= need]
    values = MOST_VALUES * bytes_ // TILE
    share = rows * few * size / MULTIPROCESSORS
    wanted = min(bytes_, max(LEAST_TILE, share / FEW_TILES))

    def lost(form: tuple[int, int, int, int]) -> float:
        high, n, _, each = form
        waves = ceil_div(ceil_div(rows, high) * ceil_div(length, n), each) / (_resident(form, size) * MULTIPROCESSORS)
        last = math.ceil(waves) / waves - 1 if waves > 1 else 0.0  # what few CTAs take, when the others have ended
        tile, loaded = high * n * size, n * ceil_div(length, n) / need
        short = max(0.0, min(FLIGHT, share) / (_resident(form, size) * tile * each) - 1)
        return (
            loaded
            * (1 + 0.1 * abs(math.log2(tile * each / wanted)))
            * (1 + 0.3 * short + 0.3 * last)
            * (1 + 0.02 * each)
        )

    forms = []
    for n, warps, several, each in itertools.product(columns, range(1, MOST_WARPS + 1), (1, 2, 4, 8, 16, 32), EACH):
        threads, vectors = WARP * warps, n // width
        if threads % vectors == 0 or vectors % threads == 0:
            high = max(1, threads // vectors) * several
            if high <= BOX and high * n <= values * threads:
                forms.append((high, n, warps, each))
    return min(forms, key=lambda form: (lost(form), form))


def vectors_of(x: Any, y: Any) -> tuple[int, int]:
    """Elements of rows that threads have side by side: 16 bytes of x where rows of y begin as many bytes after a multiple of
    16, else as many as lie so in both; and the bytes in y that the latter and a row are whole multiples of."""
    pairs = [
        (each, each.dtype.itemsize, (address_of(each) // each.dtype.itemsize, *strides_of(each)[:-1]))
        for each in (x, y)
    ]
    per = min(math.gcd(ALIGNMENT, *(place * size for place in places)) // size for _, size, places in pairs)
    (_, size, places), (_, other, others) = pairs
    alike = all((one - two) * size % ALIGNMENT == 0 for one, two in zip(places, others, strict=True))
    width = min(ALIGNMENT // size if alike and size == other else per, WIDEST)
    return width, math.gcd(per, y.shape[-1]) * other


def _check(name: str, dims: Any, tile: Any, vector: Any, ctas: Any) -> None:
    """Raises `InputError` for what no schedule of transposes takes."""
    if not isinstance(tile, tuple) or len(tile) != 2 or not all(map(is_count, tile)) or tile[1] % 64:
        raise InputError(f"{name}(tile)", tile, "is (rows, columns), columns in units of 64", "e.g. (64, 128)")
    if not isinstance(dims, str) or dims.split()[-2:] != ["m", "n"]:
        raise InputError(f"{name}(dims)", dims, 'names dimensions, "m n" last', 'e.g. "m n"')
    if not isinstance(vector, int) or vector not in (2, 4, 8, ALIGNMENT):
        raise InputError(f"{name}(vector)", vector, "is 2, 4, 8 or 16 bytes", "use 16")
    require(ctas is None or is_count(ctas), f"{name}(ctas)", ctas, "is a positive number", "leave it out")


class Transpose:
    """A tensor of bf16, fp16, fp32 or int32 with its dimensions in another order, dense.

    Rows of x that begin at no multiples of 16 bytes are read where they lie (`TransposeRows`). Short ones are copied to such
    multiples first, and those of several matrices that do not begin alike. A first call that reads 4 MB or more on a GPU
    looks at a few forms, once (`tmapipe.tuning.looked`); look: at how many, as there.

    Args:
        dims: Which dimension of x is the first of the result, the second and so on, as of ``torch.permute``; None: the last
            two change places.

    Raises:
        InputError: *dims* does not name each dimension once.
    """

    look: int | None = None

    def __init__(self, dims: tuple[int, ...] | None = None):
        whole = dims is None or (isinstance(dims, (tuple, list)) and all(type(dim) is int for dim in dims))
        if not whole or (dims is not None and len({dim % len(dims) for dim in dims}) < len(dims)):
            raise InputError("Transpose(dims)", dims, "names each dimension once, by its number", "e.g. (0, 2, 1)")
        self._order = None if dims is None else tuple(dims)
        self.fitted: dict[Any, Schedule] = {}
        from tmapipe.schedules.copy import Copy  # which takes `CopyPlaces` from here

        self.copy = Copy()

    @property
    def dims(self) -> tuple[int, ...] | None:
        """As given; another order is another object."""
        return self._order

    def __call__(self, x: Any, *, out: Any = None) -> Any:
        """``x.permute(dims)``, dense.

        Args:
            x: Of one to five dimensions.
            out: Where the result goes, of its shape and x's type, contiguous along some dimension; None: made.

        Returns:
            The result.

        Raises:
            InputError: For shapes or types that do not fit.
        """
        for call in self.__dict__.get("_again", ()):  # of such tensors by the same kernels
            found = call((x,), out, {})
            if found is not None:
                return found
        check_kind("x", x)
        kind = dtype_of(x, "x").name
        require(kind in TYPES, "x.dtype", kind, f"is one of {', '.join(TYPES)}", "view it as int32")
        dims = self._dims(x)
        shape = tuple(x.shape[dim] for dim in dims)
        given, out = out, new_like(x, shape) if out is None else out
        check_kind("out", out)
        if tuple(out.shape) != shape or out.dtype != x.dtype:
            rule = f"is of {shape}, {x.dtype}"
            raise InputError("out", (tuple(out.shape), str(out.dtype)), rule, "make it so")
        if 0 not in shape:
            check_memory("x", x, output=False)
            check_memory("out", out, output=True)
            moved = x.transpose(dims) if isinstance(x, np.ndarray) else x.permute(dims)
            remember(self, functools.partial(self._run, moved, out), (x,), given, {}, out, parts=True)
        return out

    def _dims(self, x: Any) -> tuple[int, ...]:
        last = (x.ndim - 1, x.ndim - 2) if x.ndim > 1 else range(x.ndim)
        dims = (*range(x.ndim - 2), *last) if self.dims is None else self.dims
        require(1 <= x.ndim <= len(DIMS), "x.shape", tuple(x.shape), "has one to five dimensions", "reshape it")
        if len(dims) != x.ndim or not all(-x.ndim <= dim < x.ndim for dim in dims):
            raise InputError("x.shape", tuple(x.shape), f"has dimensions {dims}", "pass such a tensor")
        return tuple(dims)

    def _run(self, x: Any, out: Any) -> None:
        """Copies *x* to *out*, of the same shape, in the order of whose dimensions it does not lie."""
        (x,), out = collapsed([x], out)
        rule = "has a dimension along which it is contiguous"
        require(strides_of(out)[-1] == 1, "out.stride", strides_of(out), rule, "pass a dense tensor, or leave it out")
        if 1 not in strides_of(x) or 0 in strides_of(x):
            x = copied(x)
        along, last = strides_of(x).index(1), x.ndim - 1
        if along == last:
            self.copy(x, out)
            return
        others = [dim for dim in range(last) if dim != along]
        self._tiles(_ordered(x, [*others, last, along]), _ordered(out, [*others, along, last]))

    def _tiles(self, x: Any, out: Any) -> None:
        if not fits_tma(x):
            if by_rows(x):
                return self._rows(x, out)
            if x.ndim > 2 and math.prod(x.shape[-2:]) * x.dtype.itemsize >= APART:
                for one, other in zip(x, out, strict=True):  # which begin differently
                    self._tiles(one, other)
                return
            x = self._apart(x) if x.ndim == 2 else padded(x)
        kind, vector, size = dtype_of(x, "x").name, vector_of(out), x.dtype.itemsize
        tile = 64, 128 if size == 2 and vector == ALIGNMENT and x.shape[-1] > 64 else 64
        dims = " ".join(DIMS[len(DIMS) - x.ndim :])
        few = [(kind, dims, each, vector, None) for each in dict.fromkeys((tile, *OTHER_TILES))]
        self._fastest(TransposeTiles, few, [(x, out)], x, out)

    def _rows(self, x: Any, out: Any) -> None:
        """Rows that begin anywhere: as many as begin alike, then the rest of them."""
        kind, (*_, pitch, _), size = dtype_of(x, "x").name, strides_of(x), x.dtype.itemsize
        apart, start, last = apart_of(x), address_of(x) % ALIGNMENT // size, x.shape[-2]
        dims, tile, whole = " ".join(DIMS[len(DIMS) - x.ndim :]), (64, 128 if size == 2 else 64), last - last % apart
        few = [
            (kind, dims, pitch, start, vector_of(out), tile, *each) for each in ((8, CTAS), (8, CTAS - 1), (4, CTAS))
        ]
        parts = ((slice(whole), apart), (slice(whole, last), last - whole))
        seen = [(together(x[..., rows, :], n, start), out[..., rows]) for rows, n in parts if x[..., rows, :].shape[-2]]
        self._fastest(TransposeRows, few, seen, x, out)

    def _fastest(self, make: Any, few: list[tuple[Any, ...]], parts: list[tuple[Any, Any]], x: Any, out: Any) -> None:
        """Makes the call by the fastest of a *few* forms, that *make* makes, of *parts* of both tensors."""

        def made(form: tuple[Any, ...]) -> Schedule:
            if form not in self.fitted:
                self.fitted[form] = make(*form)
            return self.fitted[form]

        def run(schedule: Schedule) -> None:
            for one, other in parts:
                schedule(x=one, y=other)

        places = [(strides_of(each), address_of(each) % ALIGNMENT) for each in (x, out)]
        name = f"Transpose {x.dtype} {tuple(x.shape[1:])} {places}"
        run(calling.best_of(self, made, run, name, few, [x], [out], LOOK))

    def _apart(self, x: Any) -> Any:
        """A copy of a matrix whose rows begin at multiples of 16 bytes."""
        (rows, columns), unit = x.shape, ALIGNMENT // x.dtype.itemsize
        made = new_like(x, (rows, ceil_div(columns, unit) * unit))[:, :columns]
        return self.copy(x, made)


def by_rows(x: Any) -> bool:
    """Whether `TransposeRows` takes a tensor: TMA begins at the last multiple of 16 bytes before a row."""
    (*lead, _, along), size = strides_of(x), x.dtype.itemsize
    alike = x.ndim == 2 or (x.shape[-2] % apart_of(x) == 0 and not any(step * size % ALIGNMENT for step in lead))
    return along == 1 and begins_inside(x) and alike and x.shape[-1] >= NARROW


def _ordered(x: Any, order: list[int]) -> Any:
    """A tensor with its dimensions in this order."""
    return seen_as(x, tuple(x.shape[dim] for dim in order), tuple(strides_of(x)[dim] for dim in order))
