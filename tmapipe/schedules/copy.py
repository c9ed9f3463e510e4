"""Copy: one warp loads, one stores, through a ring of tiles; and runs that begin anywhere, which threads store."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from copy import copy
from typing import Any

from tmapipe import calling
from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import Dim, ceil_div, dtype_of, int32
from tmapipe.base.tma_rules import ALIGNMENT, MOST_EXTENT
from tmapipe.bind import check_kind, check_memory
from tmapipe.bind.tensors import as_words, collapsed, in_integers, in_words, match, new_like, strides_of
from tmapipe.calling import remember
from tmapipe.errors import InputError, is_count
from tmapipe.kernel import KernelContext
from tmapipe.plan.model import WARP, WIDTHS
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.schedules.fused import check_stages
from tmapipe.schedules.places import LOOK, TILE, CopyPlaces, copy_elements, gaps_of, places_form, reach, vectors_of
from tmapipe.schedules.rowform import (
    BOX,
    FLIGHT,
    LINE,
    WIDEST,
    address_of,
    apart_of,
    begins_inside,
    padded,
    seen_as,
)
from tmapipe.schedules.rows import KINDS, MULTIPROCESSORS
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage, TmaStoreStage
from tmapipe.tiles.dynamic import GridTiles
from tmapipe.tiles.persistent import Grouped, PersistentTiles

NEAR = 24  # rows along a dimension, from which on the rows of a tile follow along the nearest such dimension
BOXES, LONG = 1024, 1 << 12  # bytes of a row of a tile of words; words of a row of which a tile has no other
WORD = 4  # bytes that a thread stores at once, where addresses are anything
RESIDENT = 1024  # threads that copy runs on a multiprocessor, with 64 registers each; or twice as many, with 32
SHORT, FEW_VALUES = 4, 16  # times that so many CTAs take one tile each; elements of a thread that 32 registers hold
FEW = 8  # times that so many CTAs take a few tiles each, up to which the last ones count
PIECE = 4096  # bytes of a tile of runs
MOST_ELEMENTS = MOST_EXTENT  # of memory that tiles begin in: places have 32 bits
SECTOR = 64  # bytes that DRAM reads at once
LARGE, MOST_TILE = 32 << 20, 32 << 10  # bytes from which on bytes count, and of a tile of rows at most
LEAST, LITTLE = 1 << 20, 16 << 20  # bytes between which the engine may be slower than threads, which wait for less
WASTE = 1.1  # times the bytes of rows' sectors, from which on runs load too much between them
MUCH = 128 << 20  # bytes from which on it is faster to keep in L2 what is read than what is written
MOST_GAPS, LEAST_RUN = 3, 512  # kinds of gaps in a run; bytes of runs of which each has tiles of its own


def merged(x: Any, y: Any) -> tuple[Any, Any]:
    """The two with dimensions joined that follow one another in both, along y's last one last; where neither is contiguous,
    with one of a single element after them."""
    (x,), y = collapsed([x], y)
    if 1 not in (strides_of(x)[-1], strides_of(y)[-1]):
        x, y = (seen_as(each, (*each.shape, 1), (*strides_of(each), 1)) for each in (x, y))
    return x, y


class Copy(Schedule):
    """``y = x``, of any element type, shape and strides; or converted, between bf16, fp16 and fp32.

    Dimensions that follow one another in both tensors are joined. A call is one launch, but for tensors of 2^31 elements:
    the TMA engine moves what is contiguous in both, and rows whose bytes, strides and addresses are multiples of 16. Other
    views, and 1 to 4 MB of such rows, are copied to a y without gaps element by element (`CopyElements`), transposed ones
    slower than by `Transpose`, or in runs that the engine loads and threads store (`CopyRuns`); to a y with gaps, short rows
    are copied row by row (`CopyPlaces`).
    A first call that copies 4 MB or more on a GPU measures up to four of these `ways`, once; look: how many, at most. Given
    other options than by default, the engine moves what it can.

    By default each CTA copies one tile: few bytes are in flight, which lie close together, so that DRAM pages stay open.

    Args:
        tile: (rows, words) moved at once; `InputError` if it is no pair.
        stages: Slots in flight. With more than one, or None (as many as fit), persistent CTAs stream through them.
        pending: Stores that may still read their slot while the next one is waited for; None: 2, or 0 with one slot.
        ctas: With one slot, CTAs that share a multiprocessor; None: 10, or as many as have room for a tile.
        l2_hint: Of the loads, as of `TmaLoadStage`. "evict_last" is 1 to 3 % faster for what is far larger than L2.
    """

    load, store = Role(warps=1), Role(warps=1)
    look: int | None = None

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
        self.x = TmaLoadStage("m n", tile=tile, ring=self.ring, dtype=int32, l2_hint=l2_hint)
        self.y = TmaStoreStage(source=self.x, stages=(0 if stages == 1 else 2) if pending is None else pending)
        self._usual = ctas is None and (tile, stages, pending, l2_hint) == ((4, 256), 1, None, None)
        if ctas is None:  # in 228 KiB of shared memory, with a tile, barriers, and what is the system's
            ctas = min(10, max(1, (228 << 10) // (self.x.tile[0] * self.x.tile[1] * 4 + 2048)))
        self.tiles = GridTiles(Grouped(1), ctas) if stages == 1 else PersistentTiles(Grouped(1))

    def __call__(self, *tensors: Any, out: Any = None, **named: Any) -> Any:
        """Copies x to y (or `out`, or a new tensor) and returns that. Both by position or by name.

        Raises:
            InputError: y is not of x's shape, or is of another type that is no floating point of 16 or 32 bits.
        """
        for call in self.__dict__.get("_again", ()):  # copies of such tensors by one kernel
            found = call(tensors, out, named)
            if found is not None:
                return found
        x, y = self._given(tensors, out, named)
        if 0 not in x.shape:
            copied = functools.partial(self._copy, *merged(in_words(x), in_words(y)), x.dtype == y.dtype)
            remember(self, copied, tensors, out, named, y, parts=True)
        return y

    def prepare(self, *tensors: Any, out: Any = None, **named: Any) -> Callable[[], Any]:
        """As `Schedule.prepare`, of tensors of one type, whose rows are whole units of 16 bytes, as the TMA engine copies."""
        x, y = self._given(tensors, out, named)
        if x.dtype != y.dtype:
            raise InputError("y.dtype", y.dtype, f"is x's where a copy is prepared, {x.dtype}", "call it to convert")
        if 0 in x.shape:
            return lambda: y
        one, other = (as_words(*each) for each in zip("xy", merged(in_words(x), in_words(y)), strict=True))
        call = Schedule.prepare(self._mover(one), one, other)
        return lambda: (call(), y)[1]

    def _given(self, tensors: Any, out: Any, named: Any) -> tuple[Any, Any]:
        check_stages(self, "x", "y")
        given = match(("x", "y"), tensors, named, out, "y")
        check_kind("x", given.get("x"))
        x = given["x"]
        check_kind("y", y := given["y"] if "y" in given else new_like(x))
        types = {dtype_of(x, "x").name, dtype_of(y, "y").name} if x.dtype != y.dtype else set()
        if x.shape != y.shape or not types <= set(KINDS):
            rule = f"must be like x: {tuple(x.shape)}, {x.dtype}, or of its shape in {', '.join(KINDS)}, as x"
            raise InputError("y", (tuple(y.shape), y.dtype), rule, "pass such a tensor")
        for name, each in (("x", x), ("y", y)) if 0 not in x.shape else ():
            check_memory(name, each, output=name == "y")
        return x, y

    def _copy(self, x: Any, y: Any, same: bool) -> None:
        """Copies a tensor of as few dimensions as can be; *same*: of the same type."""
        engine = same and x.ndim <= 5 and _by_engine(x, y)
        row, box = x.shape[-1] * x.dtype.itemsize, self._mover(x).x.tile[-1] * WORD if engine else 0
        threads = self._usual and (x.ndim == 1 or LEAST <= x.nbytes < LITTLE)  # may be faster
        if engine and not threads and (x.ndim == 1 or ceil_div(row, BOXES) * BOXES * 3 <= row * 4):
            self._move(x, y)  # by one kernel for all shapes
            return
        x, y = _units(x, y) if same else (x, y)
        cut = max(range(x.ndim), key=lambda dim: x.shape[dim] * strides_of(x)[dim])
        if reach(x) >= MOST_ELEMENTS and x.shape[cut] > 1:
            half = x.shape[cut] // 2
            for part in (slice(half), slice(half, None)):
                some = (*[slice(None)] * cut, part)
                self._copy(*merged(x[some], y[some]), False)
        elif not begins_inside(x) or min(strides_of(x)) < 1:
            self._copy(*merged(padded(x, whole=True), y), False)
        else:
            starts = (address_of(each) % ALIGNMENT for each in (x, y))
            name = " ".join(map(str, ("copy", x.dtype, y.dtype, x.shape[1:], strides_of(x), strides_of(y), *starts)))
            few, run = ways(x, y, box), lambda way: self._by(way, x, y)
            self._by(calling.looked(name, few, run, [x], [y], self.look, LOOK), x, y)

    def _by(self, way: tuple[str, int], x: Any, y: Any) -> None:
        """Copies in one of the `ways`."""
        kind, bytes_ = way
        if kind == "engine":
            self._move(x, y)
        elif kind == "rows":
            self._copy_places(x, y, bytes_)
        elif kind == "elements":
            copy_elements(self.__dict__.setdefault("_elements", {}), x, y, bytes_)
        else:
            found, made = runs_of(x, y, bytes_, kind), self.__dict__.setdefault("_runs", {})
            assert found is not None
            key, seen, result = found
            if key not in made:
                made[key] = CopyRuns(*key)
            made[key](x=seen, y=result)

    def _move(self, x: Any, y: Any) -> None:
        Schedule.__call__(self._mover(x), as_words("x", x), as_words("x", y))

    def _mover(self, x: Any) -> Copy:
        """What copies such rows by the TMA engine. A tile has fewer columns, and more rows, if rows are short."""
        (rows, columns), row = self.x.tile, x.shape[-1] * x.dtype.itemsize // WORD
        while x.ndim > 1 and columns % 8 == 0 and columns >= 2 * row and rows <= BOX // 2:
            rows, columns = rows * 2, columns // 2
        while x.ndim > 1 and rows % 2 == 0 and rows > (1 if row >= LONG else x.shape[-2]):  # few places at once
            rows, columns = rows // 2, columns * 2
        key, made = (x.ndim, columns), self.__dict__.setdefault("_ranked", {})
        plain = key == (2, self.x.tile[1])
        if not plain and key not in made:
            other = copy(self)
            dims = " ".join(("a b c m n", "n")[x.ndim == 1].split()[-x.ndim :])
            box = (rows * columns,) if x.ndim == 1 else (rows, columns)
            other.x = TmaLoadStage(dims, tile=box, ring=self.ring, dtype=int32, l2_hint=self.x.l2_hint)
            other.y = TmaStoreStage(source=other.x, stages=self.y.stages)
            made[key] = other
        return self if plain else made[key]

    def _copy_places(self, x: Any, y: Any, bytes_: int) -> None:
        """Copies short rows that begin anywhere. The rows of a tile follow along one dimension."""
        if not strides_of(x)[-1] == strides_of(y)[-1] == 1:  # rows of one element
            x, y = (seen_as(each, (*each.shape, 1), (*strides_of(each), 1)) for each in (x, y))
        last, size = x.ndim - 1, x.dtype.itemsize
        rows = [x.shape[dim] // apart_of(x, dim) * (strides_of(x)[dim] > 0) for dim in range(last)]
        near = [dim for dim in range(last) if rows[dim] >= NEAR]
        along = min(near, key=lambda dim: strides_of(y)[dim]) if near else max(range(last), key=rows.__getitem__)
        others = sorted((dim for dim in range(last) if dim != along), key=lambda dim: -strides_of(y)[dim])
        inner = 1 + sum(strides_of(y)[dim] < strides_of(y)[along] for dim in others)
        apart, order = apart_of(x, along), (*others, along, last)
        shape, *both = (tuple(each[dim] for dim in order) for each in (x.shape, strides_of(x), strides_of(y)))
        x, y = (seen_as(each, shape, steps) for each, steps in zip((x, y), both, strict=True))
        made, high = self.__dict__.setdefault("_places", {}), x.shape[-2]
        whole = high - high % apart  # rows, of which the others begin as the first of them do: one kernel takes both
        parts = [(slice(whole), apart)] * (whole > 0) + [(slice(whole, None), high - whole)] * (whole < high)
        for place, (some, several) in itertools.product(itertools.product(*map(range, x.shape[:-4])), parts):
            one, other = (each[place][..., some, :] for each in (x, y))
            (*steps, pitch, _), (*out, other_pitch, _) = strides_of(one), strides_of(other)
            *lead, height, length = one.shape
            start = address_of(one) % ALIGNMENT // size
            span = reach(one[..., :1, :1]) - 1 + (several - 1) * pitch
            width, vector = vectors_of(one, other)
            tile = places_form((*steps, pitch), length, size, start, width, high * math.prod(lead), bytes_)
            key = (*steps, pitch), length, size, start, width, vector, min(inner, len(steps) + 1), tile
            if key not in made:
                made[key] = CopyPlaces(*key)
            seen = seen_as(one, (height // several, start + span + length), (several * pitch, 1), start)
            shape = (*lead, several, height // several, length)
            made[key](x=seen, y=seen_as(other, shape, (*out, other_pitch, several * other_pitch, 1)))

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.consume() as slot:
            slot.y.store(tile)


class CopyRuns(Schedule):
    """``y[..., n] = x``, of runs of elements that are contiguous in y, wherever they begin, converted to y's type.

    In x they have gaps: element k of a run lies *further* on for each whole *length* in k, of each (length, further). What
    lies between a tile's first and last element is loaded, from the last multiple of 16 bytes on. Threads leave the gaps
    out, and store words from where these begin in y. Raises `InputError` for tuples that are not as below.

    Args:
        steps: Along each of y's dimensions before n, up to four: (elements of x from one run to the next, how far on in a word
            y's then begin).
        gaps: (length, elements that are left out after it), the shortest length first, of which the others are multiples.
        start: (elements after a multiple of 16 bytes where x begins, elements after the begin of a word where y does).
        word: (bytes of an element of x, elements that a thread has side by side, bytes of which addresses and runs of y are
            whole multiples).
        tile: (such words of a thread in a tile, tiles of a CTA, warps that share a tile).
        alike: Whether x begins a word where y does, and at a multiple of 16 bytes. There are no gaps then.
        l2_hint: Of the loads, as of `TmaLoadStage`.
        length: Of a run, if it is one tile, or some begin inside a word: tiles begin earlier then, and must reach the end.
    """

    load, work = Role(warps=1), Role(warps=4)

    def __init__(
        self,
        steps: tuple[tuple[int, int], ...] = (),
        gaps: tuple[tuple[int, int], ...] = ((72, 40),),
        start: tuple[int, int] = (0, 0),
        word: tuple[int, int, int] = (1, 4, 4),
        tile: tuple[int, int, int] = (8, 2, 4),
        alike: bool = False,
        l2_hint: str | None = None,
        length: int | None = None,
    ):
        if not isinstance(steps, tuple) or not isinstance(gaps, tuple) or len(steps) > 4:
            raise InputError("CopyRuns(steps, gaps)", (steps, gaps), "are tuples of pairs, up to four steps", "e.g. ()")
        counts = [isinstance(some, tuple) and all(map(is_count, some)) and len(some) for some in (word, tile)]
        if counts != [3, 3] or word[1] not in WIDTHS:
            rule = "are three numbers each, and 1, 2, 4 or 8 elements are side by side"
            raise InputError("CopyRuns(word, tile)", (word, tile), rule, "e.g. (1, 4, 4) and (8, 2, 4)")
        (size, width, vector), (vectors, each, warps) = word, tile
        pair = isinstance(start, tuple) and len(start) == 2 and all(type(n) is int and n >= 0 for n in start)
        if size not in (1, 2, 4) or not pair or start[0] * size >= ALIGNMENT or (alike and gaps):
            rule = "are bytes of an element, 1, 2 or 4, and elements after a multiple of 16 bytes; no gaps if alike"
            raise InputError("CopyRuns(word, start)", (word, start), rule, "e.g. (1, 4, 4) and (0, 0)")
        self.work = Role(warps=warps)
        self.steps, self.gaps, self.start = steps, gaps, start
        self.width, self.alike, self.unit = width, alike, ALIGNMENT // size
        self.tile, self.word = vectors * width * warps * WARP, max(width, self.unit) if alike else width
        self.inside = inside = bool(start[1]) or any(begins for _, begins in steps)
        if inside and not (is_count(length) and -(length or 0) % self.tile >= self.word - 1):
            rule = f"leaves {self.word - 1} elements of the last tile of {self.tile}, as runs begin inside a word"
            raise InputError("CopyRuns(length)", length, rule, "use tiles of other elements")
        alone = is_count(length or 0) and (length or 0) <= self.tile and not inside  # tiles begin where runs do
        self.relations = (Dim("n", size=length),) if inside or alone else ()
        slot = self.tile if alike else _slot(self.tile, gaps, size, alone)
        self.names = ("e", "d", "c", "b")[4 - len(steps) :]
        self.over = " ".join((*self.names, "n"))
        self.ring = BarrierRing(each, producer=self.load, consumer=self.work)
        self.x = TmaLoadStage("w", tile=(slot,), ring=self.ring, l2_hint=l2_hint)
        self.y = ThreadStoreStage(self.over, tile=(self.tile,), role=self.work, vector=vector, wide=True)
        threads = RESIDENT * (2 if each == 1 and vectors * width <= FEW_VALUES else 1)
        most = max(1, min(threads // (WARP + WARP * warps), ceil_div(FLIGHT, each * slot * size)))
        self.tiles = GridTiles(Grouped(1), most, each)

    def _first(self, tile: Tile) -> tuple[Any, Any, Any]:
        """Of a tile: its first element in the run, perhaps before that; the first element that is read, counted from where the
        longest length begins that it is in; where in x that begins."""
        (place, before), first = self.start, tile.n * self.tile
        for name, (step, begins) in zip(self.names, self.steps, strict=True):
            place, before = place + getattr(tile, name) * step, before + getattr(tile, name) * begins
        if self.inside:
            first = first - before % self.word
        if not self.gaps:
            return first, 0, place + first
        longest, _ = self.gaps[-1]
        rows = first // longest
        span = longest + sum(longest // length * further for length, further in self.gaps)
        return first, first - rows * longest, place + rows * span

    def _begin(self, first: Any, place: Any) -> Any:
        """Where a tile's slot begins in x."""
        return (place + first + sum(first // length * more for length, more in self.gaps)) // self.unit * self.unit

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.produce() as slot:
            _, first, place = self._first(tile)
            slot.x.load_from(self._begin(first, place))

    @work.jit
    def copy(self, k: KernelContext, tile: Tile) -> None:
        begin, first, place = self._first(tile)
        at = (0, 0) if self.alike else (place - self._begin(first, place), first)
        with k.ring.consume() as slot:
            values = slot.x.read(tile=(self.tile,), at=at, gaps=self.gaps, width=self.width)
        k.y.store_from(*[getattr(tile, name) for name in self.names], begin, values=values)


def _slot(tile: int, gaps: tuple[tuple[int, int], ...], size: int, alone: bool) -> int:
    """Elements that are loaded for a tile of runs with gaps; *alone*: one that begins where its run does."""
    spans = ((tile - (1 if alone else 2 - n)) // n * further for n, further in gaps)
    return in_boxes(tile + ALIGNMENT // size - 1 + sum(spans), size)


def in_boxes(elements: int, size: int) -> int:
    """So many elements of *size* bytes or a few more, which are whole boxes of whole lines: few elements, in few boxes."""
    least, line = ceil_div(elements, BOX), LINE // size
    forms = ((ceil_div(elements, n * line) * n * line, n) for n in range(least, least + 4))
    return min(forms, key=lambda form: form[0] + form[1] * line // 2)[0]


def _by_engine(x: Any, y: Any) -> bool:
    """Whether the TMA engine takes both as words: rows, strides and addresses are multiples of 16 bytes."""
    return all(strides_of(each)[-1] == 1 for each in (x, y)) and _unit(x, y, ALIGNMENT) == ALIGNMENT


def meet(x: Any, y: Any) -> bool:
    """Whether the memory of two tensors, from first to last element, overlaps."""
    apart = address_of(x) - address_of(y)
    return -reach(x) * x.dtype.itemsize < apart < reach(y) * y.dtype.itemsize


def ways(x: Any, y: Any, box: int) -> list[tuple[str, int]]:
    """In what ways a tensor is copied, likely the fastest first, each by another kernel: (by the engine, runs, rows or
    elements; bytes of a tile, or that a thread stores at once).

    The model: a long copy is bound by the bytes that are loaded. Runs load the gaps between runs, too; elements load their
    sectors. A short copy is bound by latency, and elements wait for no slot. Boxes of the engine are filled to three quarters.
    """
    kernels: dict[Any, tuple[str, int]] = {}
    for kind, bytes_ in _likely(x, y, box):
        found = runs_of(x, y, bytes_, kind) if kind in ("runs", "alone") else None
        kernels.setdefault(found[0] if found else (kind, bytes_), (kind, bytes_))
    return [*kernels.values()]


def _likely(x: Any, y: Any, box: int) -> list[tuple[str, int]]:
    size, row = x.dtype.itemsize, x.shape[-1] * x.dtype.itemsize
    several, elements = x.ndim > 1 or {*strides_of(x), *strides_of(y)} != {1}, _elements(x, y)  # rows of one, too
    rows = [("rows", TILE), ("rows", MOST_TILE)][: several * (1 if elements else 2)]
    few = rows if row <= MOST_TILE and not elements else []  # whose tiles have several rows
    engine = [("engine", 0)] if box else []
    boxed = bool(box) and (x.ndim == 1 or ceil_div(row, box) * box * 3 <= row * 4)
    first = [*elements, *engine] if x.ndim > 1 and LEAST <= x.nbytes < LOOK else [*engine, *elements]  # if boxed
    if found := runs_of(x, y):
        (_, _, warps), *_ = found[0][4:]
        runs = [("alone", PIECE), ("runs", PIECE)] if warps == 4 else [("runs", PIECE), ("runs", 2 * PIECE)]
        if size == 1:  # threads lack registers for as many bytes
            runs = [(runs[0][0], PIECE // 2), ("runs", PIECE)][:: 1 if x.nbytes < LARGE else -1]
        vain = _loaded(*found) > WASTE * (row + SECTOR) / row
        if boxed:
            return [*first, *(runs[:1] if vain or elements else runs), *(few if vain else [])]
        if elements:
            return [*elements, *runs] if x.ndim > 1 and (size > 1 or x.nbytes < LARGE) else [*runs, *elements]
        if vain and x.shape[-1] <= BOX and x.nbytes >= LARGE:
            return [rows[0], runs[0], rows[1], *runs[1:]]
        return [*runs, *few[: size > 1]]  # threads store bytes of rows one by one
    return [*first, *rows] if boxed else [*elements, *rows, *engine]


def _elements(x: Any, y: Any) -> list[tuple[str, int]]:
    """How threads copy element by element, likely the fastest first; to a y with gaps, or of another type, they do not."""
    fits = x.dtype == y.dtype and not meet(x, y) and math.prod(x.shape) < MOST_ELEMENTS and gaps_of(x, y) is not None
    return [("elements", ALIGNMENT), ("elements", ALIGNMENT // 2)][: 1 + (x.dtype.itemsize == WORD)] if fits else []


def _loaded(key: tuple[Any, ...], x: Any, y: Any) -> float:
    """Of each element that `CopyRuns` stores, how many it loads."""
    _, gaps, _, (size, width, _), (vectors, _, warps), alike, *_ = key
    tile, n = vectors * width * warps * WARP, y.shape[-1]
    last = (n - 1) // tile * tile
    slot = tile if alike else _slot(tile, gaps, size, last == 0)
    return (last + sum(last // length * further for length, further in gaps) + slot) / n


def runs_of(x: Any, y: Any, bytes_: int = PIECE, kind: str = "runs") -> tuple[tuple[Any, ...], Any, Any] | None:
    """What `CopyRuns` is made of for two tensors with the same dimensions, y's in the order of its memory, and the two as it
    takes them; None if y has short runs, or x's lie far apart.

    Args:
        x, y: The two.
        bytes_: Of a tile, about.
        kind: "runs"; "alone": with one tile a CTA.

    The model: few of the bytes that are loaded are gaps. What lies between two short runs in the same sectors of DRAM costs
    nothing; a long gap would be loaded with each tile.
    """
    *dims, (n, step, one) = zip(x.shape, strides_of(x), strides_of(y), strict=True)
    size, other = x.dtype.itemsize, y.dtype.itemsize
    unit, piece = ALIGNMENT // size, PIECE // max(size, other)
    gaps = [(1, step - 1)] if step > 1 else []
    if one != 1 or step < 1 or (step - 1) * size > SECTOR:
        return None
    while dims and dims[-1][2] == n and len(gaps) < MOST_GAPS:
        further = dims[-1][1] - n - sum(n // length * more for length, more in gaps)
        few = n <= piece and further <= max(n if n * other < LEAST_RUN else n // 8, SECTOR // size)
        if further < 0 or not (few or further * 16 <= piece):
            break
        gaps.append((n, further))
        n *= dims.pop()[0]
    if len(dims) > 4 or (dims and n * other < LEAST_RUN):
        return None
    shape, steps, out = zip(*dims, strict=True) if dims else ((), (), ())
    start, begin = (address_of(each) % ALIGNMENT // each.dtype.itemsize for each in (x, y))
    apart = any((one - two) % unit for one, two in zip((start, *steps), (begin, *out), strict=True))
    if size != other:
        apart = any(each % WIDEST for each in (start, begin, *steps, *out))
    alike = not gaps and not apart
    width = min(WIDEST, ALIGNMENT // min(size, other)) if alike else max(1, WORD // other)
    word = max(width, ALIGNMENT // other) if alike else width
    begin, *begins = (each % word for each in (begin, *out))
    warps = next((few for few in (1, 2) if n + word <= few * piece // 4), 4)  # short runs have tiles of their own
    threads = width * warps * WARP
    elements = bytes_ // max(size, other) * warps // (4 * threads) * threads  # of a tile, about
    few = ceil_div(n + word - 1, elements)  # tiles of a run
    vectors = ceil_div(ceil_div(n + word - 1, few), threads)
    while any((begin, *begins)) and -n % (vectors * threads) < word - 1:
        vectors += 1  # until the last tile reaches the end, wherever it begins
    tile, resident = vectors * threads, RESIDENT // (WARP + WARP * warps)
    tiles, most = math.prod(shape) * ceil_div(n, tile), ceil_div(FLIGHT, resident * tile * size)
    resident *= MULTIPROCESSORS
    each = min(most, ceil_div(tiles, resident))
    if resident * most < tiles < FEW * resident * most:  # in how many such tiles' time all are done
        near = range(most - 1, 2 * most)
        each = min(near, key=lambda each: (ceil_div(tiles, each * resident) * each, abs(each - most)))
    if kind != "runs" or (gaps and warps == 4 and vectors * width <= FEW_VALUES and tiles <= SHORT * 2 * resident):
        each = 1  # as CTAs that have many tiles would end at different times
    vector = math.gcd(ALIGNMENT, width * other, n * other, address_of(y), *(step * other for step in out))
    hint = "evict_last" if n * math.prod(shape) * size >= MUCH else None
    pairs = tuple(zip(steps, begins, strict=True))
    length = n if any((begin, *begins)) or n <= tile else None
    key = pairs, tuple(gaps), (start, begin), (size, width, vector), (vectors, each, warps), alike, hint, length
    return key, seen_as(x, (start + reach(x),), (1,), start), seen_as(y, (*shape, n), (*out, 1))


def _unit(x: Any, y: Any, most: int) -> int:
    """The most bytes of which rows, strides and addresses of both are multiples."""
    size = x.dtype.itemsize
    steps = [step * size for each in (x, y) for step in strides_of(each)[:-1]]
    return math.gcd(most, x.shape[-1] * size, address_of(x), address_of(y), *steps)


def _units(x: Any, y: Any) -> tuple[Any, Any]:
    """Both as integers of 32, 16 or 8 bits, whose bits no conversion changes: the widest that their rows are made of."""
    apart = any(strides_of(each)[-1] != 1 for each in (x, y))
    size = x.dtype.itemsize if apart else _unit(x, y, 4)
    return in_integers(x, size), in_integers(y, size)
