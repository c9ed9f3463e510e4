"""Rotary: pairs of columns as vectors of the plane, each rotated by an angle of its own, as rotary position embeddings do.

load (1 warp)      whole rows as they lie in memory, and the angles' rows -> a slot
work (warps)       reads both parts of each pair, and the angle's cosine and sine; stores from registers

Rows that do not follow one another, or that are overwritten, are loaded as tiles (`RotaryTiles`). A table that is repeated,
such as over heads, is read once a tile, from L2.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from tmapipe import calling
from tmapipe import math as functions
from tmapipe.barrier import BarrierRing, Role
from tmapipe.base.arithmetic import Dim, ceil_div, dtype_of
from tmapipe.base.tma_rules import ALIGNMENT
from tmapipe.bind import check_kind
from tmapipe.bind.tensors import DIMS, along_of, as_rows, collapsed, fits_tma, made_like, seen_as, varying, vector_of
from tmapipe.calling import remember
from tmapipe.errors import InputError, check_bool, is_count, require
from tmapipe.kernel import KernelContext
from tmapipe.plan.model import WARP
from tmapipe.plan.thread_layout import VectorLayout
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.schedules.copy import Copy, in_boxes, meet, reach
from tmapipe.schedules.elementwise import ElementwiseTiles, tile_of, whole_rows
from tmapipe.schedules.rowform import BOX, address_of, begins_inside, copied, expanded, padded, strides_of
from tmapipe.schedules.rows import KINDS, MOST_ELEMENTS, MOST_LOOKS
from tmapipe.stage import TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage
from tmapipe.tiles.dynamic import GridTiles
from tmapipe.tiles.persistent import Grouped

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
        whole, self.over, self.relations = (tile[0], 2 * tile[1]), f"{dims[:-1]}{PAIRS}", (Dim("n", of=PAIRS, per=2),)
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
                first, second = functions.split_pairs(slot.x0.read())
                cos, sin = (self._read(slot, i, tile, first) for i in (1, 2))
                k.y.store(tile, functions.join_pairs(*self.function(first, second, cos, sin)))
            else:
                first, second = slot.x0.read(), slot.x1.read()
                cos, sin = (self._read(slot, i, tile, first) for i in (2, 3))
                for name, values in zip(self.results, self.function(first, second, cos, sin), strict=True):
                    getattr(k, name).store(tile, values)


# ---- rows as they lie ------------------------------------------------------------------------------------------------
#
# A tile has rows that follow one another, wherever they begin: all heads of a few positions, or a few heads of one position. A
# table's rows follow one another, too.


@attrs.frozen
class RotaryForm:
    """How rows are shared out.

    Args:
        rows: Of a tile: a multiple or a divisor of the rows that have the same angles.
        angles: Of a row that threads share out, at least as many as it has.
        warps: That share the tile evenly.
        width: Angles that a thread has side by side.
        ctas: That share a multiprocessor.
        each: Tiles that a CTA takes one after another.
    """

    rows: int
    angles: int
    warps: int
    width: int
    ctas: int
    each: int = 1


EIGHT, MOST_WARPS = 8, 16  # rows of which all begin at multiples of 16 bytes; warps that share a tile, at most
LEAST, SMALL, LARGEST = 2 << 10, 5 << 10, 40 << 10  # bytes of a tile of x: at least, with which CTAs do best, at most
FLIGHT, MOST_FLIGHT = 36 << 10, 64 << 10  # bytes of x on their way to a multiprocessor: enough for memory, and at most
THREADS, REGISTERS, CTAS = 2048, 1 << 16, 32  # of a multiprocessor
SHARED, OWN = 228 << 10, 2 << 10  # bytes of shared memory of a multiprocessor; and of a CTA beside its slots
VALUES, MOST = (8, 16), 32  # angles of a thread, from which to which there is no loss; and at most
VAIN = 1.15  # angles that are shared out for each one that is there, at most, but for those that fill warps


@functools.lru_cache(maxsize=4096)
def rotary_forms(columns: int, heads: int, sizes: tuple[int, int], pairs: bool) -> list[RotaryForm]:
    """The forms for these rows, the best one first, then one of fewer rows, one of more and one of another width. The model is
    that of `RowForm`.

    Args:
        columns, heads, sizes, pairs: As of `RotaryRows`.
    """
    angles, found = columns // 2, {}
    few, step = [n for n in range(1, heads) if heads % n == 0], math.lcm(heads, EIGHT)
    step = step if step * columns * sizes[0] * 2 <= LARGEST else heads
    for n, width in itertools.product([*few, *range(step, LARGEST // (columns * sizes[0]) + 1, step)], (8, 4, 2, 1)):
        tile, table = n * columns * sizes[0], ceil_div(n, heads) * angles * sizes[1]
        if tile < LEAST or angles % width or (1 + pairs) * width * sizes[0] > ALIGNMENT:
            continue
        near, whole = range(angles, int(angles * VAIN) + 1, width), ceil_div(angles, WARP * width) * WARP * width
        slots = sum(
            in_boxes(many // size + 2 * whole, size) * size
            for many, size in ((tile, sizes[0]), *2 * ((table, sizes[1]),))
        )
        for wide, warps in itertools.product({*near, whole}, range(1, MOST_WARPS + 1)):
            if n * wide % (width * WARP * warps) or (values := n * wide // (WARP * warps)) > MOST:
                continue
            threads = WARP * (warps + 1)
            registers = ceil_div(16 + values * (2 + sizes[0] // 2), 8) * 8
            room = THREADS // threads, REGISTERS // (threads * registers), SHARED // (slots + OWN)
            if ctas := min(CTAS, MOST_FLIGHT // tile + 1, *room):
                form = RotaryForm(n, wide, warps, width, ctas)
                apart = sum(each % ALIGNMENT > 0 for each in (tile, table)) if width > 1 else 0
                found[form] = _cost(form, angles, tile, (1 + pairs) * width) + 0.1 * apart
    forms, kinds = sorted(found, key=found.__getitem__), dict[Any, RotaryForm]()
    for form in forms:
        more = form.rows - forms[0].rows
        kinds.setdefault((more > 0, form.width if more == 0 else 0), form)
    return list(dict.fromkeys([*kinds.values(), *forms]))


def _cost(form: RotaryForm, angles: int, tile: int, width: int) -> float:
    """What a form loses, as a share of the time. *tile*: bytes of x; *width*: elements of x that lie side by side."""
    layout, values = VectorLayout((form.rows, form.angles), form.width, form.warps, 0), VALUES
    lost = 0.0 if layout.by_rows else (0.3 if layout.even else 0.6) / width  # places are found by divisions
    lost += 0.25 * (form.angles / angles - 1) + 0.02 * math.log2(EIGHT / width)
    lost += 0.1 * max(0.0, math.log2(tile / SMALL)) + 0.2 * max(0.0, SMALL / tile - 1)
    lost += 0.05 * max(0.0, values[0] / layout.values - 1) + 0.2 * max(0.0, layout.values / values[1] - 1)
    return lost + 0.6 * max(0.0, FLIGHT / (form.ctas * tile) - 1)


class RotaryRows(Schedule):
    """As `RotaryTiles`, of rows that follow one another in memory, of any length and alignment.

    Args:
        columns: Of a row: twice as many as there are angles.
        heads: Rows, one after another, that have the same angles.
        form: How rows are shared out.
        sizes: Bytes of an element of x and of a table.
        begins: (x, cos, sin): elements after a multiple of 16 bytes where the tensor begins, and -1 where each tile begins at
            such a multiple.
        vector: Bytes of which rows of the output, or halves of them, are whole multiples.
        pairs, inverse: As of `RotaryTiles`.

    Raises:
        InputError: An argument is not as above, such as a *form* of other rows.
    """

    load, work = Role(warps=1), Role(warps=4)

    def __init__(
        self,
        columns: int = 128,
        heads: int = 8,
        form: RotaryForm = RotaryForm(32, 64, 4, 8, 8),
        sizes: tuple[int, int] = (2, 2),
        begins: tuple[int, ...] = (-1, -1, -1),
        vector: int = ALIGNMENT,
        pairs: bool = False,
        inverse: bool = False,
    ):
        check_bool("RotaryRows(pairs)", pairs)
        check_bool("RotaryRows(inverse)", inverse)
        if not (is_count(columns) and is_count(heads)) or columns % 2:
            rule = "are an even number of columns, and rows of equal angles"
            raise InputError("RotaryRows(columns, heads)", (columns, heads), rule, "e.g. 128 and 8")
        known = isinstance(form, RotaryForm) and all(map(is_count, attrs.astuple(form))) and form.angles >= columns // 2
        if not known or (form.rows % heads and heads % form.rows):
            rule = f"has a multiple or a divisor of {heads} rows, and {columns // 2} angles or more"
            raise InputError("RotaryRows(form)", form, rule, "see rotary_forms()")
        counts = [isinstance(some, tuple) and len(some) for some in (sizes, begins)]
        if counts != [2, 3] or not {*sizes} <= {2, 4} or not all(type(n) is int and n >= -1 for n in begins):
            rule = "are bytes of an element of x and of a table, and three elements, or -1"
            raise InputError("RotaryRows(sizes, begins)", (sizes, begins), rule, "e.g. (2, 2) and (-1, -1, -1)")
        self.columns, self.angles, self.heads, self.form = columns, columns // 2, heads, form
        self.pairs, self.rotate, self.begins = pairs, _rotated_back if inverse else _rotated, begins
        self.units = ALIGNMENT // sizes[0], ALIGNMENT // sizes[1], ALIGNMENT // sizes[1]
        self.over, self.work = "b q", Role(warps=form.warps)
        self.relations = (Dim("n", size=columns),) if pairs else (Dim("n", size=columns // 2), Dim("h", size=2))
        self.ring = BarrierRing(2 if form.each > 1 else 1, producer=self.load, consumer=self.work)
        rows = form.rows, *2 * (ceil_div(form.rows, heads),)
        for name, dim, many, length, begin, unit in zip(
            ("x", "cos", "sin"), "wuv", rows, (columns, *2 * (self.angles,)), begins, self.units, strict=True
        ):
            beyond = (form.angles - self.angles) * length // self.angles + (0 if begin < 0 else unit - 1)
            slot = in_boxes(many * length + beyond, ALIGNMENT // unit)
            setattr(self, name, TmaLoadStage(dim, tile=(slot,), ring=self.ring, l2_hint="evict_last"))
        tile = form.rows, form.angles * (1 + pairs)
        self.y = ThreadStoreStage("b q n" if pairs else "b h q n", tile=tile, role=self.work, vector=vector)
        self.tiles = GridTiles(Grouped(1), form.ctas, form.each)

    def _places(self, k: KernelContext, tile: Tile) -> tuple[Any, Any, Any]:
        """Where a tile's rows begin in x, and those of its angles in the tables, counted from the last multiple of 16 bytes
        before the tensor."""
        first = tile.q * self.form.rows
        angles = first // self.heads * self.angles
        x, cos, sin = (max(0, begin) for begin in self.begins)
        return (tile.b * k.extent("q") + first) * self.columns + x, angles + cos, angles + sin

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        with k.ring.produce() as slot:
            x, cos, sin = self._places(k, tile)
            slot.x.load_from(x // self.units[0] * self.units[0])
            slot.cos.load_from(cos // self.units[1] * self.units[1])
            slot.sin.load_from(sin // self.units[2] * self.units[2])

    @work.jit
    def compute(self, k: KernelContext, tile: Tile) -> None:
        places = zip(self._places(k, tile), self.begins, self.units, strict=True)
        x, *tables = [0 if begin < 0 else place % unit for place, begin, unit in places]
        part, width, first = (self.form.rows, self.form.angles), self.form.width, tile.q * self.form.rows
        with k.ring.consume() as slot:
            cos, sin = [
                stage.read(tile=part, at=at, pitch=self.angles, each=min(self.heads, part[0]), width=width)
                for stage, at in zip((slot.cos, slot.sin), tables, strict=True)
            ]
            if self.pairs:
                whole = slot.x.read(tile=(part[0], 2 * part[1]), at=x, pitch=self.columns, width=2 * width)
                one, two = functions.split_pairs(whole)
            else:
                one = slot.x.read(tile=part, at=x, pitch=self.columns, width=width)
                two = slot.x.read(tile=part, at=x + self.angles, pitch=self.columns, width=width)
            both = self.rotate(one, two, cos, sin)
        sure = {"surely": (0, self.y.tile[1])} if part[1] == self.angles else {}
        if self.pairs:
            k.y.store_from(tile.b, first, 0, values=functions.join_pairs(*both), **sure)
        else:
            for half, values in enumerate(both):
                k.y.store_from(tile.b, half, first, 0, values=values, **sure)


class Rotary:
    """Rotary position embedding: pairs of columns of x, each rotated by its angle, in fp32. Calls that read much look at a few
    forms once, on the GPU (`tmapipe.tuning.looked`); look: at how many, as there.

    Args:
        pairs: Whether pair i is columns 2 i and 2 i + 1, as GPT-J has it; else columns i and i + r, as GPT-NeoX and Llama do,
            where r is the number of angles.
        inverse: Whether they are rotated the other way, by minus the angles: the gradient of the other is this one.

    Raises:
        InputError: *pairs* or *inverse* is neither True nor False.
    """

    look: int | None = None

    def __init__(self, pairs: bool = False, inverse: bool = False):
        check_bool("Rotary(pairs)", pairs)
        check_bool("Rotary(inverse)", inverse)
        self._given = pairs, inverse
        self.fitted: dict[Any, RotaryTiles | RotaryRows] = {}
        self.copy = Copy()

    @property
    def pairs(self) -> bool:
        """As given; the other convention is another object."""
        return self._given[0]

    @property
    def inverse(self) -> bool:
        """As given, likewise."""
        return self._given[1]

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
        for call in self.__dict__.get("_again", ()):  # of such tensors, by one kernel
            found = call((x, cos, sin), out, {})
            if found is not None:
                return found
        given = out
        for name, each in (("x", x), ("cos", cos), ("sin", sin), ("out", x if out is None else out)):
            check_kind(name, each)
            if (kind := dtype_of(each, name).name) not in KINDS:
                raise InputError(f"{name}.dtype", kind, f"is one of {', '.join(KINDS)}", "convert it")
        require(1 <= x.ndim <= len(DIMS), "x.shape", tuple(x.shape), "has one to five dimensions", "reshape it")
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
            rule = f"is of cos's shape, {tuple(cos.shape)}, which broadcasts to {shape}"
            require(fits, f"{name}.shape", tuple(table.shape), rule, "reshape it, such as cos[:, None]")
        if out is None:
            out = made_like(x, tuple(x.shape), (*strides_of(x)[:-1], 0))
        if tuple(out.shape) != tuple(x.shape):
            raise InputError("out.shape", tuple(out.shape), f"is that of x, {tuple(x.shape)}", "make it so")
        if 0 not in x.shape:
            if strides_of(out)[-1] != 1:
                rule = "is contiguous along the last dimension"
                raise InputError("out.stride", strides_of(out), rule, "pass a dense tensor, or leave it out")
            tables = [expanded(table, shape) for table in (cos, sin)]
            if strides_of(x)[-1] != 1 or any(
                n > 1 and not step for n, step in zip(x.shape, strides_of(x), strict=True)
            ):
                x = copied(x)
            one = 2 * angles == x.shape[-1] and all(map(fits_tma, (x, x[..., angles:], *tables)))
            few: list[Any] = [*self._forms(x, tables, out), *(["tiles"] if one else [])]
            if few:
                call = functools.partial(self._by, self._fastest(few, x, tables, out), x, tables, out)
                remember(self, call, (x, cos, sin), given, {}, out, parts=True)
            else:
                self._by_tiles(x, tables, out)  # more than a launch
        return out

    def _fastest(self, few: list[Any], x: Any, tables: list[Any], out: Any) -> Any:
        """The form that this call takes, or "tiles"."""
        places = [(str(x.dtype), *x.shape[1:], strides_of(x), address_of(x) % ALIGNMENT) for x in (x, *tables, out)]
        name, read = f"Rotary {self.pairs} {places}", [x, *map(varying, tables)]
        return calling.looked(name, few, lambda way: self._by(way, x, tables, out), read, [out], self.look)

    def _by(self, way: Any, x: Any, tables: list[Any], out: Any) -> None:
        """In a form of `RotaryRows`, or by "tiles"."""
        call = None if way == "tiles" else self.by_rows(x, tables, out, way)
        self._by_tiles(x, tables, out) if call is None else call()

    def _forms(self, x: Any, tables: list[Any], out: Any) -> list[RotaryForm]:
        """Of `RotaryRows`, a few that differ, the best one first; none for tensors that it does not take."""
        found, sizes = _dense(x, tables, out, self.pairs), (x.dtype.itemsize, tables[0].dtype.itemsize)
        return rotary_forms(x.shape[-1], found[2], sizes, self.pairs)[:MOST_LOOKS] if found else []

    def _by_tiles(self, x: Any, tables: list[Any], out: Any) -> None:
        """By `RotaryTiles`, which takes rows that lie apart, and then by `Copy` for other columns."""
        both = 2 * tables[0].shape[-1]
        (self._pairs if self.pairs else self._halves)(x[..., :both], out[..., :both], tables)
        if both < x.shape[-1]:
            self.copy(x[..., both:], out[..., both:])

    def by_rows(self, x: Any, tables: list[Any], out: Any, form: RotaryForm | None = None) -> Callable[[], Any] | None:
        """The call of `RotaryRows` for tensors whose rows follow one another; None for others.

        Args:
            x: What is rotated, all of its columns.
            tables: Cosines and sines, of x's shape with the number of angles last.
            out: Of x's shape.
            form: Of the kernel; None: the first of `rotary_forms`.
        """
        (columns, angles), pairs = (x.shape[-1], tables[0].shape[-1]), self.pairs
        found, sizes = _dense(x, tables, out, pairs), (x.dtype.itemsize, tables[0].dtype.itemsize)
        form = form or next(iter(self._forms(x, tables, out)), None)
        if found is None or form is None:
            return None
        batches, positions, heads, y = found
        table = ceil_div(form.rows, heads) * angles
        steps = (form.rows * columns, 0 if batches == 1 else positions * heads * columns), (table,), (table,)
        starts = [address_of(each) % ALIGNMENT // each.dtype.itemsize for each in (x, *tables)]
        begins = tuple(
            -1 if not any(step * each.dtype.itemsize % ALIGNMENT for step in (start, *some)) else start
            for each, start, some in zip((x, *tables), starts, steps, strict=True)
        )
        vector = min(vector_of(y), form.width * (1 + pairs) * out.dtype.itemsize)
        key: Any = columns, heads, form, sizes, begins, vector, pairs, self.inverse
        if key not in self.fitted:
            self.fitted[key] = RotaryRows(*key)
        each = zip((x, *tables), starts, strict=True)
        x, cos, sin = (seen_as(one, (start + reach(one),), (1,), start) for one, start in each)
        return functools.partial(self.fitted[key], x=x, cos=cos, sin=sin, y=y)

    def _halves(self, x: Any, out: Any, tables: list[Any]) -> None:
        half = x.shape[-1] // 2
        (*views, second), first = collapsed([x[..., :half], x[..., half:], *tables, out[..., half:]], out[..., :half])
        *views, second, first = map(_matrix, (*views, second, first))
        self._run(views, min(vector_of(first), vector_of(second)), {"y0": first, "y1": second})

    def _pairs(self, x: Any, out: Any, tables: list[Any]) -> None:
        (x, *tables), out = collapsed([x[..., ::2], *tables], out[..., ::2])
        whole = [
            seen_as(each, (*each.shape[:-1], 2 * each.shape[-1]), (*strides_of(each)[:-1], 1)) for each in (x, out)
        ]
        x, out = map(_matrix, whole)
        self._run([x, *map(_matrix, tables)], vector_of(out), {"y": out})

    def _run(self, views: list[Any], vector: int, outputs: dict[str, Any]) -> None:
        """Of (x0, x1, cos, sin), or (x, cos, sin) of pairs, of two dimensions or more, joined where they can be."""
        views = [x if fits_tma(x) else padded(x) for x in views]
        table, inputs = views[-1], tuple((along_of(x), x.dtype.itemsize) for x in views)
        dims = " ".join(DIMS[len(DIMS) - table.ndim :])
        beside, sizes = any(along != dims for along, _ in inputs), [size for _, size in inputs]
        shape, size, most = tuple(table.shape[-2:]), 2 * max(sizes), BOX // 2 if self.pairs else BOX
        tile = whole_rows(shape, tile_of(shape, size, beside, 1), size, ALIGNMENT // min(sizes), most)
        key = inputs, dims, tile, vector
        if key not in self.fitted:
            self.fitted[key] = RotaryTiles(inputs, dims, tile, vector, self.pairs, self.inverse)
        whole, first = [varying(x) for x in views], views[0]
        if self.pairs:  # of a single row, too, all dimensions
            whole[0] = seen_as(first, tuple(first.shape), tuple(step or ALIGNMENT for step in strides_of(first)))
        self.fitted[key](**{f"x{i}": x for i, x in enumerate(whole)}, **outputs)


def _dense(x: Any, tables: list[Any], out: Any, pairs: bool) -> tuple[int, int, int, Any] | None:
    """(batches, positions, heads, out as stored) of tensors that `RotaryRows` takes; else None."""
    columns, angles, (cos, sin) = x.shape[-1], tables[0].shape[-1], tables
    if columns > 2 * angles or cos.dtype != sin.dtype or strides_of(x)[-1] != 1 or meet(x, out):
        return None
    found, y = collapsed([x[..., :angles], *tables], out[..., :angles])
    *dims, last = zip(y.shape, *map(strides_of, (*found, y)), strict=True)
    dims = dims or [(1, columns, angles, angles, columns)]  # a single row
    own = [i for i, (_, _, *steps, _) in enumerate(dims) if any(steps)]
    if last != (angles, 1, 1, 1, 1) or len(own) != 1 or not len(dims) - 2 <= own[0] <= 1:
        return None
    positions, pitch, *steps, step = dims[own[0]]
    many, apart, _, _, batch = dims[0] if own[0] else (1, 0, 0, 0, 0)
    heads, row, _, _, next_row = dims[-1] if len(dims) > own[0] + 1 else (1, columns, 0, 0, step)
    rows = positions * heads
    dense = (pitch, row, *steps) == (heads * columns, columns, angles, angles)
    dense = dense and step == heads * next_row and (many == 1 or apart == rows * columns)
    if not dense or not all(map(begins_inside, (x, *tables))) or reach(x) >= MOST_ELEMENTS:
        return None
    batch = batch or rows * next_row
    if pairs:
        return many, positions, heads, seen_as(y, (many, rows, columns), (batch, next_row, 1))
    return many, positions, heads, seen_as(y, (many, 2, rows, angles), (batch, angles, next_row, 1))


def _matrix(x: Any) -> Any:
    """A tensor of two dimensions or more."""
    return as_rows(x, 1, x.shape[0]) if x.ndim == 1 else x
