"""Copies of rows that begin anywhere, by threads: a tile is loaded from the last multiple of 16 bytes before its rows."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import Dim, ceil_div, int8, int16, int32
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind.tensors import in_integers, strides_of
from tmapipe.errors import InputError, is_count, require
from tmapipe.kernel import KernelContext
from tmapipe.parts import Table
from tmapipe.plan.model import WARP, WIDTHS
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.schedules.rowform import BOX, FLIGHT, WIDEST, address_of, seen_as
from tmapipe.schedules.rows import MULTIPROCESSORS
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage
from tmapipe.tiles.dynamic import GridTiles
from tmapipe.tiles.persistent import Grouped

LOOK = 4_000_000  # bytes that are copied, from which on a look pays
REGISTERS, OTHERS = 1 << 16, 28  # of a multiprocessor; and of a thread of `CopyPlaces` beside its elements
THREADS = 2048  # of a multiprocessor
TILE, LEAST_TILE = 12 << 10, 1 << 10  # bytes of a tile of rows that begin anywhere
MOST_VALUES = 32  # elements of a thread in such a tile
EACH, MOST_WARPS = (1, 2, 3), 15  # such tiles of a CTA; warps that share one
VALUES, WARPS = {1: 16, 2: 16, 4: 8}, 4  # elements of a thread of `CopyElements` by their bytes, and its warps
SIZES = {1: int8, 2: int16, 4: int32}  # types of elements by their bytes
FEW_TILES = 2  # such tiles for each multiprocessor, at least, where there are few rows


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


class CopyElements(Schedule):
    """``y[n] = x``, of integers, element by element: threads find where each element of y lies in x, and load it straight from
    global memory. A CTA takes one tile, without slots or barriers. Raises `InputError` for numbers that are not as below.

    Args:
        gaps: (length, elements that are left out after it), of x, the shortest length first.
        size: Bytes of an element.
        vector: Bytes of which y's address and y are whole multiples.
        tile: (elements that a thread has side by side, how often, warps that share a tile).
    """

    work = Role(warps=4)

    def __init__(
        self,
        gaps: tuple[tuple[int, int], ...] = ((72, 40),),
        size: int = 4,
        vector: int = 4,
        tile: tuple[int, int, int] = (4, 2, 4),
    ):
        three = isinstance(tile, tuple) and len(tile) == 3 and all(map(is_count, tile))
        if type(size) is not int or size not in SIZES or not three or tile[0] not in WIDTHS:
            rule = "are 1, 2 or 4 bytes, and 1, 2, 4 or 8 elements side by side, how often, and warps"
            raise InputError("CopyElements(size, tile)", (size, tile), rule, "e.g. 4 and (4, 2, 4)")
        require(isinstance(gaps, tuple), "CopyElements(gaps)", gaps, "is a tuple of pairs", "e.g. ((72, 40),)")
        self.gaps, (self.width, often, warps) = gaps, tile
        self.work, self.x = Role(warps=warps), Table("w", dtype=SIZES[size])
        many = self.width * often * warps * WARP
        self.y = ThreadStoreStage("n", tile=(many,), role=self.work, vector=vector, wide=True, dtype=SIZES[size])
        self.tiles = GridTiles(Grouped(1))

    @work.jit
    def copy(self, k: KernelContext, tile: Tile) -> None:
        first = tile.n * self.y.tile[0]
        k.y.store_from(first, values=k.x.read(tile=self.y.tile, at=(0, first), gaps=self.gaps, width=self.width))


def gaps_of(x: Any, y: Any) -> tuple[tuple[int, int], ...] | None:
    """Where elements of x that follow one another in y have gaps, as `CopyElements` takes them; None if y itself has gaps."""
    gaps, n = list[tuple[int, int]](), 1
    for extent, step, out in zip(x.shape[::-1], strides_of(x)[::-1], strides_of(y)[::-1], strict=True):
        if out != n:
            return None
        gaps.append((n, step - n - sum(n // length * more for length, more in gaps)))
        n *= extent
    return tuple(pair for pair in gaps if pair[1])


def copy_elements(made: dict[Any, CopyElements], x: Any, y: Any, bytes_: int) -> None:
    """Copies by `CopyElements`, of *made* or a new one, to a y without gaps. bytes_: that a thread stores at once."""
    size, gaps, n = x.dtype.itemsize, gaps_of(x, y), math.prod(x.shape)
    x, y = (in_integers(each, size) for each in (x, y))
    assert gaps is not None
    width = min(bytes_ // size, WIDEST)
    key = gaps, size, math.gcd(width * size, n * size, address_of(y)), (width, VALUES[size] // width, WARPS)
    if key not in made:
        made[key] = CopyElements(*key)
    made[key](x=seen_as(x, (reach(x),), (1,)), y=seen_as(y, (n,), (1,)))


def reach(x: Any) -> int:
    """Elements of memory from a tensor's first one to its last one."""
    return 1 + sum((n - 1) * step for n, step in zip(x.shape, strides_of(x), strict=True))
