"""Transpose, dimensions in another order, through shared memory; and copies of rows that begin anywhere, by `CopyPlaces`.

load (1 warp)          a tile of x -> the slot of the CTA, TMA
work (1 or 2 warpgroups)  reads it with rows as columns, writes it into a tile beside it
store                  the TMA engine; where rows of the result begin elsewhere, a warpgroup from its registers

Where rows of x begin at no multiples of 16 bytes, boxes of those that begin alike are loaded, and work stores what it reads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tmapipe import calling
from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import as_dtype, ceil_div, dtype_of
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind import check_kind, check_memory
from tmapipe.bind.tensors import DIMS, collapsed, fits_tma, new_like, seen_as, strides_of, vector_of
from tmapipe.calling import remember
from tmapipe.errors import InputError, is_count, require
from tmapipe.kernel import KernelContext
from tmapipe.parts import SharedStage
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.schedules.copy import Copy
from tmapipe.schedules.places import LOOK
from tmapipe.schedules.rowform import (
    address_of,
    apart_of,
    begins_inside,
    copied,
    padded,
    together,
)
from tmapipe.schedules.rows import KINDS
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage, TmaStoreStage
from tmapipe.tiles.dynamic import GridTiles
from tmapipe.tiles.persistent import Grouped

TYPES = (*KINDS, "int32")
OTHER_TILES = (64, 128), (64, 64), (128, 64)
SWIZZLE = 128  # bytes
CTAS = 4  # on a multiprocessor, each with a tile of x and one of y: 128 KiB of both
NARROW = 32  # elements, below which odd rows are copied to multiples of 16 bytes first
APART = 4 << 20  # bytes of a matrix, from which on odd ones that begin alike have their own launches, not a copy
CTAS_OF_THREADS = 3  # likewise where threads store, which need more registers


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
    multiples first, and those of several small matrices that do not begin alike. A first call that reads 4 MB or more on a GPU
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
                for some in _alike(x):
                    self._tiles(x[some], out[some])
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
    alike = all(apart_of(x, dim) == 1 for dim in range(x.ndim - 2) if x.shape[dim] > 1)
    return strides_of(x)[-1] == 1 and begins_inside(x) and alike and x.shape[-1] >= NARROW


def _alike(x: Any) -> Iterator[tuple[Any, ...]]:
    """Indices of parts of a batch: of the matrices that begin alike along one dimension, or else of each matrix."""
    dim = next((dim for dim in range(x.ndim - 2) if x.shape[dim] > 1 and apart_of(x, dim) > 1), 0)
    n, apart = x.shape[dim], apart_of(x, dim)
    for some in map(slice, range(apart), [n] * apart, [apart] * apart) if 1 < apart < n else range(n):
        yield (*[slice(None)] * dim, some)


def _ordered(x: Any, order: list[int]) -> Any:
    """A tensor with its dimensions in this order."""
    return seen_as(x, tuple(x.shape[dim] for dim in order), tuple(strides_of(x)[dim] for dim in order))
