"""Elementwise: a function of any number of tensors whose shapes broadcast, element by element, at the speed of memory.

load (1 warp)      a tile of each tensor of rows and columns, a piece of each that varies along one -> a slot
work (warps)       reads them, each where it is repeated, computes, stores from registers

Dimensions that follow one another alike in all tensors are joined first. Dimensions along which a tensor is repeated are left
out of it, so repeated elements are read once a tile, from L2. Where rows begin at no multiples of 16 bytes, and perhaps where
rows are short, rows are taken whole, by `ElementwiseRows`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math as numbers
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from tmapipe import calling, math
from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import DType, as_dtype, ceil_div, dtype_of, fp32
from tmapipe.base.tma_rules import ALIGNMENT, MOST_EXTENT
from tmapipe.bind import check_kind
from tmapipe.bind.tensors import (
    DIMS,
    along_of,
    as_rows,
    collapsed,
    fits_tma,
    made_like,
    strides_of,
    varying,
    vector_of,
)
from tmapipe.calling import remember
from tmapipe.errors import InputError, is_count, permit, require
from tmapipe.isa import where_is
from tmapipe.isa.fragment import Fragment
from tmapipe.kernel import KernelContext
from tmapipe.model import MachineFragments
from tmapipe.model.layout import line_of_errors
from tmapipe.plan.model import MOST_VALUES, WARP, warps_for, width_of
from tmapipe.program import ONE_AT_A_TIME, trace
from tmapipe.program.identity import identity, unchanged
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.schedules.norms import ElementwiseKernel, begin_inside
from tmapipe.schedules.rowform import BOX, LINE, expanded, padded
from tmapipe.schedules.rows import KINDS
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage
from tmapipe.tiles.dynamic import GridTiles
from tmapipe.tiles.persistent import Grouped

ROW = 2048  # elements of a contiguous tensor that are seen as a row
TILE = 8 << 10  # bytes of a tensor that a CTA loads
FLIGHT = 72 << 10  # bytes on their way to a multiprocessor, with which DRAM is busy
ROOM = 100 << 10  # bytes of slots of a CTA, up to which two have room on a multiprocessor
EACH = 4  # tiles that a CTA takes one after another, where it loads one while it computes another
WIDTHS = 2048, 1024, 512, 256, 128, 64, 32  # columns of a tile
WIDEST_BESIDE = 512  # columns of a tile beside which there are numbers of rows or columns: more rows share them
RESIDENT = 1280  # threads of a multiprocessor, at most
BEGIN = 64  # bytes, in whose time the TMA engine begins a row of a box
VAIN = 1.125  # columns computed for each column that exists, up to which a wider tile is taken
PIECES, MOST_WARPS, VALUES = 8, 14, 24  # of a row, at most; warps that share one such tile; elements of a thread
FEW = 8  # launches, up to which odd tensors are taken part by part where some are repeated, not copied first
LESS = 0.97  # of the other tile's cost, up to which it is taken


#: A tile, CTAs that share a multiprocessor and tiles of a CTA, as `ElementwiseTiles` takes them.
TileForm = tuple[tuple[int, ...], int | None, int | None]
ROWS: TileForm = (), None, None  # by `ElementwiseRows`


class ElementwiseTiles(Schedule):
    """``y[..., m, n] = function(x0, x1, ...)``, of tensors that lie at multiples of 16 bytes.

    Args:
        function: Of fragments, such as ``lambda x, y: tp.math.relu(x) + y``.
        inputs: Of each tensor the dimensions along which it varies, such as "m n", "n", "m" or "", and bytes of its elements.
        dims: Of the output, the last ones of "a b c m n"; "n": vectors.
        tile: (rows, columns) that a CTA takes, perhaps with the warps that share them; of vectors 1 row. Where a tensor ends
            with "m", rows are 16 bytes or more of that tensor.
        vector: Bytes of which the output's rows are whole multiples.
        ctas: CTAs that share a multiprocessor; None: as many as keep memory busy.
        each: Tiles that a CTA takes one after another; None: 4 where a tile is few bytes, so that threads keep registers.
        outputs: How many results the function returns, of one shape. One is called y, several y0, y1 and so on.

    Raises:
        InputError: *function* cannot be called, or an argument has another form than above.
    """

    load, work = Role(warps=1), Role(warps=4)

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: tuple[tuple[str, int], ...] = (("m n", 2),),
        dims: str = "m n",
        tile: tuple[int, ...] = (2, 2048),
        vector: int = ALIGNMENT,
        ctas: int | None = None,
        each: int | None = None,
        outputs: int = 1,
    ):
        if not callable(function):
            raise InputError("ElementwiseTiles(function)", function, "is a function of fragments", "pass a function")
        pairs = isinstance(inputs, tuple) and all(
            isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], str) and each[1] in (1, 2, 4, 8)
            for each in inputs
        )
        rule = "is, of each argument, its dimensions and the bytes of an element"
        require(pairs, "ElementwiseTiles(inputs)", inputs, rule, 'e.g. (("m n", 2),)')
        if not isinstance(tile, tuple) or len(tile) not in (2, 3) or not all(map(is_count, tile)):
            raise InputError("ElementwiseTiles(tile)", tile, "is (rows, columns), perhaps with warps", "e.g. (2, 2048)")
        if not isinstance(dims, str) or (dims.split()[-2:] != ["m", "n"] and (dims, tile[0]) != ("n", 1)):
            raise InputError(
                "ElementwiseTiles(dims)", dims, 'ends with "m n", or is "n" of tiles of 1 row', 'e.g. "m n"'
            )
        for name, value in (("ctas", ctas), ("each", each), ("outputs", outputs)):
            if (value is not None or name == "outputs") and not (
                isinstance(value, int) and is_count(value) and value <= 64
            ):
                raise InputError(f"ElementwiseTiles({name})", value, "is a positive number, at most 64", "leave it out")
        self.function, self.inputs, self.over = function, inputs, dims
        *_, warps = tile if len(tile) == 3 else (warps_for((tile[0], tile[1])),)
        self.work, tile, box = Role(warps=warps), tile[:2], tile[dims == "n" : 2]
        self.results = ("y",) if outputs == 1 else tuple(f"y{i}" for i in range(outputs))
        bytes_ = max(TILE // 8, sum(tile[0] * tile[1] * size for along, size in inputs if along == dims))
        each = each or (EACH if bytes_ <= TILE else 1)
        slots = 1 if each == 1 else 2
        least, most = 1 + (slots * bytes_ <= ROOM), min(most_ctas(self.work.warps), ceil_div(FLIGHT, slots * bytes_))
        self.tiles = GridTiles(Grouped(1), ctas or max(least, most), each)
        self.ring = BarrierRing(slots, producer=self.load, consumer=self.work)
        for i, (along, size) in enumerate(inputs):
            last, few = along[-1:], (ALIGNMENT // size,)
            shape = few if last not in ("m", "n") else tile[:1] if last == "m" else tile if "m" in along else tile[1:]
            named = along or f"z{i}"
            setattr(self, f"x{i}", TmaLoadStage(named, tile=shape, ring=self.ring, l2_hint="evict_last"))
        for name in self.results:
            setattr(self, name, ThreadStoreStage(dims, tile=box, role=self.work, vector=vector, wide=dims == "n"))
        whole = {f"x{i}": getattr(self, f"x{i}") for i, (along, _) in enumerate(inputs) if along == dims}
        for i, name in enumerate(self.results):  # one result may be any tensor, one of several the tensor of its number
            over = [x for other, x in whole.items() if outputs == 1 or other == f"x{i}"]
            if over:
                setattr(self, name, getattr(self, name).in_place(*over))

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.produce() as slot:
            for i, _ in enumerate(self.inputs):
                self._load(slot, i, tile)

    @work.jit
    def compute(self, k: KernelContext, tile: Tile) -> None:
        whole = k.full(self.results[0], 0.0)
        with k.ring.consume() as slot:
            found = self.function(*[self._read(slot, i, tile, whole) for i, _ in enumerate(self.inputs)])
            for name, values in zip(self.results, (found,) if len(self.results) == 1 else found, strict=True):
                getattr(k, name).store(tile, on_tile(values, whole))

    def _load(self, slot: Any, i: int, tile: Tile, **place: Any) -> None:
        """Starts the load of a tensor for a tile. *place*: other coordinates along its rows."""
        (along, size), stage = self.inputs[i], getattr(slot, f"x{i}")
        dims, unit = along.split(), ALIGNMENT // size
        if not dims:
            stage.load_from(0)
        elif dims[-1] == "n":
            stage.load(tile, **place)
        elif dims[-1] == "m":
            stage.load(tile)
        else:
            *others, last = (getattr(tile, dim) for dim in dims)
            stage.load_from(*others, last // unit * unit)

    def _read(self, slot: Any, i: int, tile: Tile, whole: Any) -> Any:
        """What a tensor has for the elements of a tile, which are distributed as *whole* is."""
        (along, size), stage = self.inputs[i], getattr(slot, f"x{i}")
        dims, unit = along.split(), ALIGNMENT // size
        if not dims:
            return stage.read(at=0)
        if dims[-1] == "n":
            several = "m" in dims or along == self.over
            return stage.read(like=whole) if several else self._read_columns(stage, whole)
        return stage.read(rows_of=whole) if dims[-1] == "m" else stage.read(at=getattr(tile, dims[-1]) % unit)

    def _read_columns(self, stage: Any, whole: Any) -> Any:
        """One number a column; as a tile of equal rows where threads do not share rows evenly."""
        layout: Any = whole.layout
        if layout.regular:
            return stage.read(columns_of=whole)
        return stage.read(tile=(layout.rows, layout.columns), pitch=0, width=layout.width)


def on_tile(result: Any, whole: Fragment) -> Any:
    """What a function has returned, as a fragment of a whole tile, as *whole* is."""
    if isinstance(result, Fragment) and result.along == "tile":
        return result
    here: Any = whole
    return math.where(here == 0.0, result, whole)


class Elementwise:
    """A function of tensors of bf16, fp16, fp32 and int32 whose shapes broadcast, element by element, in fp32. Calls that read
    much look at a few forms once, on the GPU (`tmapipe.tuning.looked`); look: at how many, as there.

    Args:
        function: Of as many fragments as there are tensors: arithmetic, comparisons and functions of `tmapipe.math`, such as
            ``lambda x, gate: x * tp.math.sigmoid(gate)``, but nothing about a tile: no columns, sums of rows or pairs. It may
            use captured numbers; a changed one makes another kernel. If it refers to tensors or to objects of packages, it is
            traced anew by each call.
        dtype: Of results: "bf16", "fp16" or "fp32"; None: that of all tensors, or of those of floats the wider, as in torch.

    Raises:
        InputError: *function* cannot be called, or *dtype* is no such type.
    """

    look: int | None = None

    def __init__(self, function: Callable[..., Any], dtype: Any = None):
        require(callable(function), "Elementwise(function)", function, "is called with fragments", "pass a function")
        self._given = function, None if dtype is None else as_dtype(dtype)
        fits = self.dtype is None or self.dtype.name in KINDS
        require(fits, "Elementwise(dtype)", dtype, f"is one of {', '.join(KINDS)}", "convert the result, x.to()")
        try:
            self.signature: Any = inspect.signature(function)
        except ValueError:  # a built-in function that does not say
            self.signature = None
        self.fitted: dict[Any, Any] = {}
        self.tried: set[tuple[str, ...]] = set()  # kinds of fragments of which the function was called of no data
        self.names: dict[Any, str | None] = {}  # of the function, by the types of its tensors
        self.same: Callable[[], bool] = bool  # whether the function is still what these were made of: never

    @property
    def function(self) -> Callable[..., Any]:
        """As given; another function is another object."""
        return self._given[0]

    @property
    def dtype(self) -> DType | None:
        """Of results; None: by the tensors."""
        return self._given[1]

    def __call__(self, *tensors: Any, out: Any = None) -> Any:
        """``function(*tensors)``.

        Args:
            tensors: Of shapes that broadcast. One of no dimensions is a number; Python numbers belong into the function.
            out: Where the result goes, of the shape that they broadcast to; None: made, with the largest tensor's order of
                dimensions.

        Raises:
            InputError: For shapes, types or counts that do not fit.
            ScopeError: The function asks about a tile, or returns no fragment and no number.
        """
        if not self.same():
            self.fitted, self.names, self.tried, self.same = {}, {}, set(), unchanged(self.function)
            self.__dict__.pop("_again", None)
        for call in self.__dict__.get("_again", ()):  # of such tensors by the same kernels
            found = call(tensors, out, {})
            if found is not None:
                return found
        self._check(tensors)
        given = out
        try:
            shape = np.broadcast_shapes(*(tuple(x.shape) for x in tensors))
        except ValueError:
            what = "tensors", [tuple(x.shape) for x in tensors]
            raise InputError(*what, "are of shapes that broadcast", "reshape them") from None
        views = [expanded(x, shape) for x in tensors]
        if out is None:
            out = self._made(tensors, views, shape)
        check_kind("out", out)
        if tuple(out.shape) != shape or dtype_of(out, "out").name not in KINDS:
            rule = f"is of {shape}, as the tensors broadcast, in {', '.join(KINDS)}"
            raise InputError("out", (tuple(out.shape), str(out.dtype)), rule, "make it so")
        if 0 not in shape:
            remember(self, functools.partial(self._run, views, out), tensors, given, {}, out, parts=True)
        return out

    def _check(self, tensors: tuple[Any, ...]) -> None:
        try:
            if self.signature is not None:
                self.signature.bind(*tensors)
        except TypeError as error:
            raise InputError("tensors", len(tensors), f"are what the function takes: {error}", "pass as many") from None
        require(tensors, "tensors", (), "are what the result is made of", "pass one or more")
        for i, x in enumerate(tensors):
            check_kind(f"tensors[{i}]", x)
            name, names = dtype_of(x, f"tensors[{i}]").name, (*KINDS, "int32")
            require(name in names, f"tensors[{i}].dtype", name, f"is one of {', '.join(names)}", "convert it")
        self._try(tuple(dtype_of(x, "x").kind for x in tensors))

    def _try(self, kinds: tuple[str, ...]) -> None:
        """Calls the function once without data, which refuses questions about a tile: each form has another tile."""
        if kinds not in self.tried:
            warp: Any = SimpleNamespace(memory=None, reduces=lambda *given: None)
            with line_of_errors():
                found = self.function(*[Fragment(MachineFragments(warp), None, "tile", kind, None) for kind in kinds])
            what = f"{where_is(self.function).removeprefix('epilogue ')} returned no fragment or number"
            permit(isinstance(found, (Fragment, int, float)), f"{what}. Is a `return` missing?")
            self.tried.add(kinds)

    def _made(self, tensors: tuple[Any, ...], views: list[Any], shape: tuple[int, ...]) -> Any:
        """A new output, whose dimensions lie in the order of those of the first tensor of its shape."""
        kinds = {kind.name: kind for x in tensors if (kind := dtype_of(x, "x")).name in KINDS}
        dtype = self.dtype or (fp32 if len(kinds) != 1 else next(iter(kinds.values())))
        whole = [strides_of(x) for x in views if all(strides_of(x)) or 1 in shape]
        return made_like(tensors[0], shape, whole[0] if whole else (0,) * len(shape), dtype)

    def _run(self, views: list[Any], out: Any) -> None:
        """Of tensors that have been broadcast."""
        views, out = collapsed(views, out)
        rule = "has a dimension along which it is contiguous"
        require(strides_of(out)[-1] == 1, "out.stride", strides_of(out), rule, "pass a dense tensor, or leave it out")
        views = [x if strides_of(x)[-1] in (0, 1) else padded(x) for x in views]
        if out.ndim > 1:
            return self._matrices(views, out)
        views = [x if any(strides_of(x)) or fits_tma(x) else padded(x) for x in views]
        if not all(map(fits_tma, views)):  # most of it by rows that begin anywhere
            rows = out.shape[0] // ROW
            if rows:
                self._rows([as_rows(x, rows, ROW) for x in views], as_rows(out, rows, ROW))
            views, out = [padded(x[rows * ROW :]) for x in views], out[rows * ROW :]
        for first in range(0, out.shape[0], MOST_EXTENT):
            some = slice(first, first + MOST_EXTENT)
            self._tiles([x[some] for x in views], out[some])

    def _matrices(self, views: list[Any], out: Any) -> None:
        """Of two dimensions or more."""
        full = [x for x in views if 0 not in strides_of(x)]
        if out.ndim <= len(DIMS) and all(map(fits_tma, (*full, out))):
            self._tiles([x if fits_tma(x) else padded(x) for x in views], out)
        elif out.ndim == 2:
            self._rows(views, out)
        else:  # one by one along all but the longest dimension
            outer = [int(n) for n in out.shape[:-1]]
            if len(full) < len(views) and numbers.prod(outer) > FEW * max(outer):
                return self._run([x if 0 not in strides_of(x) else padded(x, whole=True) for x in views], out)
            dim = outer.index(min(outer))
            for i in range(outer[dim]):
                place = (*[slice(None)] * dim, i)
                self._run([x[place] for x in views], out[place])

    def _tiles(self, views: list[Any], out: Any) -> None:
        """By TMA, of tensors that it takes."""
        over, along = " ".join(DIMS[len(DIMS) - out.ndim :]), list(map(along_of, views))
        sizes = [x.dtype.itemsize for x in views]
        beside = any(dims != over for dims in along)
        least = max((ALIGNMENT // size for dims, size in zip(along, sizes, strict=True) if dims[-1:] == "m"), default=1)
        loaded = sum(size for dims, size in zip(along, sizes, strict=True) if dims == over)
        narrow = min(*sizes, out.dtype.itemsize)
        if out.ndim == 1:
            few = vector_forms(max(sizes), loaded)
        else:
            few = tile_forms(tuple(out.shape[-2:]), max(sizes), beside, least, loaded, narrow)
            few = [form for form in few if form != ROWS or out.ndim == 2]
            whole = [x for x, dims in zip((*views, out), (*along, over), strict=True) if dims == over]
            if least == 1 and out.ndim == 2 and begin_inside(whole):
                few = list(dict.fromkeys([ROWS, *few]))
        inputs, vector = tuple(zip(along, sizes, strict=True)), vector_of(out)
        given = {f"x{i}": varying(x) for i, x in enumerate(views)}

        def made(form: TileForm) -> Any:
            if form == ROWS:
                return self._row_kernel(views)
            key = inputs, form, vector, out.ndim
            if key not in self.fitted:
                self.fitted[key] = ElementwiseTiles(self.function, inputs, over, form[0], vector, *form[1:])
            return self.fitted[key]

        def run(schedule: Any) -> None:
            if isinstance(schedule, ElementwiseKernel):
                schedule(views, out, name, 1)
            else:
                schedule(**given, y=out)

        def name() -> str | None:
            return (known := self._name(views, out)) and f"{known} {inputs} {vector} {out.shape[1:]}"

        run(calling.best_of(self, made, run, name, few, [*given.values()], [out]))

    def _rows(self, views: list[Any], out: Any) -> None:
        """By rows that begin anywhere."""
        if all(0 in strides_of(x) for x in views):  # of which no kernel of rows reads a row
            views = [padded(views[0], whole=True), *views[1:]]
        self._row_kernel(views)(views, out, lambda: self._name(views, out), self.look)

    def _row_kernel(self, views: list[Any]) -> ElementwiseKernel:
        kinds = tuple("mn"[not step[0]] if 0 in step else "x" for step in map(strides_of, views))
        return self.fitted.setdefault(kinds, ElementwiseKernel(self.function, kinds))

    def _name(self, views: list[Any], out: Any) -> str | None:
        """By which looks of the function are remembered, the same for functions that compute the same. None: it depends on
        more than canonical bytes say."""
        types = {f"x{i}": dtype_of(x, "x") for i, x in enumerate(views)} | {"y": dtype_of(out, "out")}
        key = tuple(types.values())
        if key not in self.names:
            plain = ElementwiseTiles(self.function, tuple(("m n", dtype.bytes) for dtype in key[:-1]), tile=(1, 512))
            with ONE_AT_A_TIME:
                self.names[key] = identity(trace(plain, plain.plan(types)))
        return self.names[key]


def tile_of(shape: tuple[int, int], size: int, beside: bool, least: int) -> tuple[int, int]:
    """The (rows, columns) that a CTA takes of a matrix of this shape.

    Args:
        size: Bytes of an element, the most of any tensor.
        beside: Whether there are tensors of one number a row or a column.
        least: Rows of a tile, at least.
    """
    many = TILE // size
    most = min(many // least, WIDEST_BESIDE if beside else WIDTHS[0])
    widths = [width for width in WIDTHS if width <= most]
    vain = [ceil_div(shape[1], width) * width / shape[1] for width in widths]
    fits = [width for width, part in zip(widths, vain, strict=True) if part <= max(VAIN, min(vain))]
    rows = 1 << (shape[0] - 1).bit_length()
    return max(least, min(rows, many // fits[0])), fits[0]


@functools.lru_cache(maxsize=4096)
def tile_forms(shape: tuple[int, int], size: int, beside: bool, least: int, loaded: int, narrow: int) -> list[TileForm]:
    """The forms of `ElementwiseTiles` for a matrix of this shape, likely the fastest first. loaded: bytes that are loaded for
    an element; narrow: bytes of an element, the fewest of any tensor and of the output. Other arguments as of `tile_of`."""
    rows, columns = tile = tile_of(shape, size, beside, least)
    half, unit = (rows // 2, columns) if rows >= 2 * least else (rows, max(WIDTHS[-1], columns // 2)), LINE // narrow
    even = ceil_div(ceil_div(shape[1], ceil_div(shape[1], columns)), unit) * unit  # of as many tiles, none in vain
    fits = even < columns and least == 1 and rows * even % (WARP * warps_for((rows, even))) == 0
    few: list[TileForm] = [((rows, even), None, None)] if fits else []
    if rows * columns * loaded > TILE:
        flat = (2 * rows, max(WIDTHS[-1], columns // 2)), None, 1
        few += [(half, None, 1), (half, None, 2), flat, (tile, None, None)]
    else:
        few = [(tile, None, None), *few, *(((2 * rows, columns), None, each) for each in (1, 2))]
    pieces, warps = even_pieces(shape, loaded, ALIGNMENT // narrow)
    if (
        least == 1
        and warps
        and tile_cost(shape, pieces, loaded, warps) < LESS * tile_cost(shape, tile, loaded, warps_for(tile))
    ):
        few = [((*pieces, warps), None, 1), ROWS, ((*pieces, warps), None, 2), *few]
    return list(dict.fromkeys(few))


def vector_forms(size: int, loaded: int) -> list[TileForm]:
    """The forms of `ElementwiseTiles` for vectors, likely the fastest first. Arguments as of `tile_forms`."""
    columns = TILE // size // (2 if loaded * TILE // size > TILE else 1)
    return [((1, columns), None, 1), ((1, 2 * columns), None, 1), ((1, columns), None, 2), ((1, columns), None, None)]


def even_pieces(shape: tuple[int, int], size: int, unit: int) -> tuple[tuple[int, int], int]:
    """The tile that costs least of those that are a whole row wide, or an even part of it, in one box, and the warps that
    share it evenly, though not each row; ((0, 0), 0) if there is none. Arguments as of `whole_rows`."""
    found = []
    for pieces, warps, vectors in itertools.product(range(1, PIECES + 1), range(3, MOST_WARPS + 1), (1, 2, 3)):
        columns = ceil_div(ceil_div(shape[1], pieces), unit) * unit
        values = vectors * min(width_of(columns), unit)
        rows, over = divmod(values * warps * WARP, columns)
        fits = not over and values <= VALUES and rows <= BOX and columns <= BOX
        if fits and TILE <= rows * columns * size <= 4 * TILE:
            tile = rows, columns
            found.append((tile_cost(shape, tile, size, warps), rows * columns, tile, warps))
    return min(found)[2:] if found else ((0, 0), 0)


def tile_cost(shape: tuple[int, int], tile: tuple[int, int], size: int, warps: int) -> float:
    """How much longer tiles of a matrix take than they would at the speed of memory. Little is computed in vain, boxes have
    long rows, and enough bytes are on their way, half of `FLIGHT`. size: bytes that are loaded for an element."""
    whole = numbers.prod(ceil_div(n, each) * each / n for n, each in zip(shape, tile, strict=True))
    flight = most_ctas(warps) * min(tile[0], shape[0]) * tile[1] * size
    return whole * (1 + BEGIN / (tile[1] * size)) * max(1.0, FLIGHT / 2 / flight)


def most_ctas(warps: int) -> int:
    """The most CTAs on a multiprocessor, of a warp that loads and *warps* that compute, with 48 registers a thread or more."""
    return min(8 if warps > 1 else 14, RESIDENT // (WARP * (warps + 1)))


def whole_rows(shape: tuple[int, int], tile: tuple[int, int], size: int, unit: int, most: int = BOX) -> tuple[int, int]:
    """A tile of whole rows of a matrix of this shape, if it costs less than *tile*: little is computed in vain.

    Args:
        size: Bytes that are loaded for an element of the tile.
        unit: Columns of which the tile has a multiple.
        most: Columns of a tile, at most.
    """
    columns = ceil_div(shape[1], unit) * unit
    if columns == tile[1] or columns > most:
        return tile
    least = WARP // numbers.gcd(WARP, columns // width_of(columns))
    rows = range(least, max(least, 2 * TILE // (columns * size)) + 1, least)
    fit = [(n, columns) for n in rows if n * columns <= MOST_VALUES * WARP * warps_for((n, columns))]
    cost = lambda tile: tile_cost(shape, tile, size, warps_for(tile))  # noqa: E731
    return max((each for each in fit if cost(each) < cost(tile)), key=lambda each: (-cost(each), each), default=tile)
