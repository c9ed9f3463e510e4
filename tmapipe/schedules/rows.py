"""Rows: the base of kernels that compute each row of a matrix by itself, and how a call fits a kernel to its tensors."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from tmapipe import calling, math
from tmapipe.barrier import BarrierRing, Role
from tmapipe.base import MulticastGroup
from tmapipe.base.arithmetic import Dim, ceil_div, fp32
from tmapipe.base.tma_rules import ALIGNMENT, MOST_EXTENT
from tmapipe.bind import check_kind
from tmapipe.bind.tensors import address_of, as_matrix, is_contiguous, new_like
from tmapipe.calling import remember_by_name
from tmapipe.errors import InputError
from tmapipe.kernel import KernelContext
from tmapipe.parts import ReductionScratch
from tmapipe.protocol.tile import Tile
from tmapipe.schedule import Schedule
from tmapipe.schedules.rowform import (
    BOX,
    LINE,
    MARGIN,
    RowForm,
    alignment_of,
    copied,
    different,
    loadable,
    place_of,
    row_forms,
    together,
)
from tmapipe.stage import BulkLoadStage, LoadStage, TmaLoadStage
from tmapipe.store_pipeline import ThreadStoreStage
from tmapipe.tiles.dynamic import GridTiles
from tmapipe.tiles.persistent import Grouped, PersistentTiles

# ---- rows ------------------------------------------------------------------------------------------------------------
#
# Rows: what kernels share that compute each row of a matrix by itself, of any length and alignment.
#
# load (1 warp)      a tile of rows -> the slot of the CTA, TMA
# work (warps)       reads the slot, reduces each row over lanes, warps and CTAs of the cluster, stores from registers
#
# Rows that begin at multiples of 16 bytes are tiles of a matrix. Short rows that begin anywhere are pieces of memory,
# one row after another (`RowForm.packed`). Long ones are loaded from the last such multiple before them: a matrix of
# n columns is seen as one row, or as one whose rows hold as many as begin alike. Threads then read each row where it
# lies in the slot. Each CTA takes one tile or a few; several share a multiprocessor.


BEFORE = 16  # elements before the first number of a column or a row: a multiple of 32 bytes of any type
LEAST_MARGIN = 64  # elements more than columns of a vector beside tiles of several rows
MOST_ELEMENTS = MOST_EXTENT  # of a tensor that is seen as a vector: places along it have 32 bits


class Rows(Schedule):
    """Base of schedules of rows. A subclass says what it loads and stores, and has the body of `work`.

    Where rows are stored, a cluster shares a long row. Where only numbers of rows are, a CTA takes a row's pieces in turn.

    Args:
        form: How rows are shared out.
        stored: Bytes of which the rows of results are whole multiples.
    """

    load, work = Role(warps=1), Role(warps=4)
    #: Stages that are loaded, by name: of rows, of one number a column, of one number a row, and which of these are integers.
    loaded: tuple[str, ...] = ("x",)
    columns: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    #: Stages that are stored: of rows, and of one number a row.
    stored: tuple[str, ...] = ("y",)
    numbers: tuple[str, ...] = ()
    #: Whether all rows that are loaded lie inside the tensor.
    bulk = True
    #: Whether rows that begin anywhere are taken in groups of as many as begin alike, by two launches if some remain.
    grouped = False
    #: Whether the first result may be the first tensor of rows, where tiles are whole rows of a matrix.
    in_place = True

    def __init__(self, form: RowForm, stored: int = ALIGNMENT):
        if not isinstance(form, RowForm):
            name = f"{type(self).__name__}(form)"
            raise InputError(name, form, "says how rows are shared out", "e.g. row_form(1024), of schedules.rowform")
        self.form = form
        self.over = "m" if form.apart == 1 else "a b"
        self.tiles = PersistentTiles(Grouped(1)) if form.slots else GridTiles(Grouped(1), form.share, form.each)
        if self.stored:
            self.over += " n"
            self.cluster = {} if form.several else {"n": form.ctas}
        if self.stored or (form.apart == 1 and not form.packed):
            self.relations = (Dim("n", size=form.length),)
        self.work = Role(warps=form.warps)
        pieces = not self.stored and form.ctas > 1
        self.ring = BarrierRing(2 if pieces else form.depth, producer=self.load, consumer=self.work)
        if self.columns and form.each > 1:  # loaded once for a cluster's tiles
            self.once = BarrierRing(producer=self.load, consumer=self.work, per="cta")
        if form.piece:
            self.beside = BarrierRing(form.ahead, producer=self.load, consumer=self.work)
        if not form.several or form.ctas == 1:
            group = MulticastGroup("n") if form.ctas > 1 and self.stored else None
            self.across = ReductionScratch(self.work, rows=form.rows, group=group)
        for name in self.loaded:
            setattr(self, name, self._rows_in())
        for name in self.columns:
            setattr(self, name, self._column_in())
        for name in self.stored:
            setattr(self, name, self._rows_out(stored))
        if self.in_place and self.bulk and self.stored and form.apart == 1 and not form.packed and not form.piece:
            setattr(self, self.stored[0], getattr(self, self.stored[0]).in_place(getattr(self, self.loaded[0])))
        for name in self.numbers:
            dims = "m" if form.apart == 1 else "a b"
            setattr(self, name, ThreadStoreStage(dims, tile=(form.rows,), role=self.work, vector=4, dtype=fp32))
        for name in self.given:
            tile, kind = (ceil_div(form.rows, BEFORE) * BEFORE,), None if name in self.integers else fp32
            setattr(self, name, TmaLoadStage("r", tile=tile, ring=self.ring, dtype=kind))

    def _rows_in(self) -> LoadStage:
        form = self.form
        alone = form.rows == 1 and not form.piece
        hint = "evict_last" if self.stored else "evict_first"  # what is only read leaves in L2 what was written before
        if self.bulk and form.apart == 1 and form.even and alone:  # one instruction, where boxes take many
            return BulkLoadStage("m n", tile=(form.columns,), ring=self.ring, l2_hint=hint)
        dims = "w" if form.packed else "m n" if form.apart == 1 else "a w"
        tile = (form.slot,) if form.packed or alone else (form.rows, form.columns)
        return TmaLoadStage(dims, tile=tile, ring=self.ring, l2_hint=hint)

    def _column_in(self) -> LoadStage:
        form = self.form
        ring = self.beside if form.piece else self.once if form.each > 1 else self.ring
        columns = form.piece or form.columns
        if form.apart == 1 and form.even:
            return BulkLoadStage("n", tile=(columns,), ring=ring)
        if form.apart > 1:
            more = LEAST_MARGIN if form.several else MARGIN  # boxes are whole lines of shared memory
            columns = BOX if columns + BEFORE <= BOX else columns + more
        return TmaLoadStage("n", tile=(columns,), ring=ring)

    def _rows_out(self, vector: int) -> ThreadStoreStage:
        form = self.form
        dims = "m n" if form.apart == 1 else "b a n"
        tile, wide = (form.rows, form.columns), form.apart > 1
        return ThreadStoreStage(dims, tile=tile, role=self.work, vector=vector, wide=wide)

    # ---- bodies ---------------------------------------------------------------------------------------------------

    @load.before.jit
    def fill_columns(self, k: KernelContext) -> None:
        """Loads what there is a column of, once for all tiles of a CTA. *k* is as in bodies."""
        if self.columns and self.form.each > 1:
            with k.once.produce() as slot:
                self._load_columns(slot, k.rank("n"))

    @load.jit
    def fill(self, k: KernelContext, tile: Tile) -> None:
        if self.stored:
            with k.ring.produce() as slot:
                self._load_rows(slot, tile)
                if self.form.several:
                    self._load_columns(slot, tile.n, BEFORE - (self.before(tile) + BEFORE - 1) // BEFORE * BEFORE)
                elif self.form.each == 1 and not self.form.piece:
                    self._load_columns(slot, tile.n)
            if self.form.piece:
                for first in self.form.pieces:
                    with k.beside.produce() as slot:
                        self._load_columns(slot, tile.n, first)
        else:
            for n in range(self.form.ctas):
                with k.ring.produce() as slot:
                    self._load_rows(slot, tile, n)

    def _load_rows(self, slot: Any, tile: Tile, n: Any = None) -> None:
        """Starts the loads of a CTA's tile of rows, or of its piece *n* of a row, and of numbers of these rows."""
        form, piece = self.form, {} if n is None else {"n": n}
        n = tile.get("n") if n is None else n
        for name in self.loaded:
            stage = getattr(slot, name)
            if form.packed:
                stage.load_from(tile.m * (form.rows * form.length))
            elif form.apart == 1 and self.bulk:
                stage.load(tile, **piece)
            elif form.apart == 1:
                stage.load_from(self.row(tile), n * form.columns)
            else:
                first = self._begin(tile) // form.unit * form.unit + n * form.columns
                stage.load_from(self._among(tile), first)
        for name in self.given:
            getattr(slot, name).load_from(self.row(tile) // BEFORE * BEFORE)

    def _load_columns(self, slot: Any, rank: Any, first: int = 0) -> None:
        """Starts the loads of what there is a column of, for the CTA of this rank along n, from its column *first* on."""
        form = self.form
        for name in self.columns:
            if form.apart > 1:
                getattr(slot, name).load_from(rank * form.columns + first - BEFORE)
            elif form.piece:
                getattr(slot, name).load(n=rank * len(form.pieces) + first // form.piece)
            else:
                getattr(slot, name).load(n=rank)

    # ---- in bodies ------------------------------------------------------------------------------------------------

    def before(self, tile: Tile) -> Any:
        """Elements that a CTA's tile of rows has before their first ones."""
        return self._begin(tile) % self.form.unit

    def _begin(self, tile: Tile) -> Any:
        """Where a row begins among those that are seen as one."""
        return tile.b * (self.form.pitch or self.form.length) + self.form.start

    def first(self, tile: Tile, n: Any = None) -> Any:
        """The column of a row, perhaps before its first one, with which a CTA's tile begins, or its piece *n* of a row."""
        before = 0 if self.form.apart == 1 else self.before(tile)
        return (tile.n if n is None else n) * self.form.columns - before

    def row(self, tile: Tile) -> Any:
        """The first row of a CTA's tile."""
        return tile.m * self.form.rows if self.form.apart == 1 else self._among(tile) * self.form.apart + tile.b

    def _among(self, tile: Tile) -> Any:
        """The first row of a CTA's tile, among those that begin alike."""
        return tile.a * self.form.rows if self.form.several else tile.a

    def read_rows(self, stage: Any) -> Any:
        """What lies in a stage of rows in an open slot."""
        form, width = self.form, self.form.width or self.form.unit
        if form.packed:
            return stage.read(tile=(form.rows, form.columns), pitch=form.length, width=width, lanes=form.lanes)
        return stage.read(width=width, lanes=form.lanes)

    def read_given(self, stage: Any, tile: Tile, like: Any) -> Any:
        """What lies in a stage of one number a row in an open slot, for the rows of the fragment *like*."""
        first = self.row(tile) % BEFORE if self.form.rows % BEFORE else None
        return stage.read(at=first) if self.form.rows == 1 else stage.read(rows_of=like, at=first)

    def reduced(self, k: KernelContext, tile: Tile, reduce: Any, join: Any) -> Any:
        """One number a row of x: what *reduce* makes of each piece of a row, joined by *join*."""
        with k.ring.consume() as slot:
            values = self.read_rows(slot.x)
        found = reduce(values, **self.inside(tile, 0))  # meanwhile, the slot is filled again
        for n in range(1, self.form.ctas):
            with k.ring.consume() as slot:
                values = self.read_rows(slot.x)
            found = join(found, reduce(values, **self.inside(tile, n)))
        return found

    def read_column(self, k: KernelContext, slot: Any, name: str, tile: Tile, values: Any) -> Any:
        """What lies in a stage of one number a column, for those of a fragment of rows."""
        stage = getattr(k.once if self.form.each > 1 else slot, name)  # of a piece, *slot* is one of `beside`
        if self.form.apart == 1:
            return stage.read(columns_of=values)
        before = self.before(tile)
        return stage.read(columns_of=values, at=(LINE - before) % BEFORE if self.form.several else BEFORE - before)

    def store_rows(self, stage: Any, tile: Tile, values: Any, first: int = 0) -> None:
        """Stores a fragment of rows, or of a row's piece that begins in the CTA's column *first*."""
        form = self.form
        surely = max(0, form.surely[0] - first), min(form.piece or form.columns, form.surely[1] - first)
        surely = surely if surely[0] < surely[1] and (form.alike or form.apart == 1) else (0, 0)
        if form.apart > 1:
            stage.store_from(tile.b, self._among(tile), self.first(tile) + first, values=values, surely=surely)
        elif form.piece:
            stage.store_from(tile.m, tile.n * form.columns + first, values=values, surely=surely)
        else:
            stage.store(tile, values, surely=surely)

    def read_piece(self, stage: Any, first: int) -> Any:
        """A piece of a row that lies in a stage in an open slot, which begins in the CTA's column *first*."""
        return stage.read(tile=(1, self.form.piece), at=(0, first), width=self.form.width or self.form.unit)

    def own(self, tile: Tile, values: Any, first: int, sure: bool = False) -> Any:
        """A fragment of a piece, with zeros for what lies beside the row; *sure*: where the engine fills with zeros too."""
        form = self.form
        if first >= form.surely[0] and first + form.piece <= form.surely[1]:
            return values
        if sure and self.zeros:
            return values
        begin = self.first(tile) + first
        place = values.columns + begin
        return math.where((place >= 0) & (place < form.length), values, 0.0)

    def store_numbers(self, stage: Any, tile: Tile, values: Any) -> None:
        """Stores one number a row. Of CTAs that share rows, the first one stores."""
        if not self.stored or self.form.ctas == 1 or tile.n == 0:
            stage.store(tile, values)

    @property
    def early(self) -> bool:
        """Whether a slot is free for other rows as soon as its rows have been read."""
        return self.form.held and (self.form.each > 1 or not self.columns)

    @property
    def zeros(self) -> bool:
        """Whether a tile has zeros where no row is, as sums take them."""
        return self.form.apart == 1 and not self.form.packed

    def inside(self, tile: Tile, n: Any = None) -> dict[str, Any]:
        """Which columns of a CTA's tile, or of its piece *n* of a row, are inside the row, as reductions take it."""
        form = self.form
        if form.apart == 1 and (form.even or form.ctas == 1):
            return {"inside": form.columns if form.even else form.length}
        first = -self.first(tile, n)
        inside = first + form.length if form.apart == 1 else (first, first + form.length)
        return {"inside": inside, "surely": form.surely}

    # ---- calls ----------------------------------------------------------------------------------------------------

    def run(self, given: dict[str, Any], others: dict[str, Any]) -> tuple[Any, ...]:
        """Runs the schedule on matrices of rows, on vectors and tables of a number a row, and on *others*, by stage;
        returns further results."""
        for part in self.parts(given):
            self(**part, **others)
        return ()

    def parts(self, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """These tensors of some rows, as stages take them."""
        form, height = self.form, given[self.loaded[0]].shape[0]
        unit, cuts = form.rows * form.apart, [0, height]
        if (self.grouped or form.several) and form.apart > 1:
            cuts = sorted({0, height - height % form.apart, height})
        elif form.packed or form.apart > 1:
            cuts = [*range(0, height, max(1, MOST_ELEMENTS // (form.pitch or form.length) // unit) * unit), height]
        for first, last in itertools.pairwise(cuts):
            yield {name: self._seen(name, x[first:last]) for name, x in given.items()}

    def _seen(self, name: str, x: Any) -> Any:
        """Rows, or numbers of them, as the stage takes them: all in one, as many in one as begin alike, or as a vector."""
        form, height = self.form, x.shape[0]
        if name in self.given:
            return x if is_contiguous(x) and address_of(x) % ALIGNMENT == 0 else copied(x)
        if name in self.loaded and form.packed:
            return x.reshape(-1)
        if form.apart == 1:
            return x
        several = min(height, form.apart) if self.grouped or form.several else height
        if name in self.loaded:
            return together(x, several, form.start)
        x = x.reshape(height // several, several, *x.shape[1:])
        return x if name in self.numbers else x.swapaxes(0, 1)


# ---- rowkernel -------------------------------------------------------------------------------------------------------
#
# Kernels of rows that a call fits to its tensors.


KINDS = ("bf16", "fp16", "fp32")
MULTIPROCESSORS = 132  # of an H200
MOST_LOOKS = 8  # forms of a shape that are kept, of which calls look at the first
KEPT = ("fitted", "best", "known", "_again", "look", "named")  # attributes of a `RowKernel` on which no kernel depends


class RowKernel:
    """Base of kernels of rows that a call fits to its tensors: a `Rows` for each length, type and alignment. Calls that read
    much look at a few forms once, on the GPU (`tmapipe.tuning.looked`); look: at how many, as there."""

    look: int | None = None
    hold = 64  # elements of a thread up to which rows are held in registers
    options: tuple[Any, ...] = ()  # what else a schedule is made of
    schedule: type[Rows]
    nothing = float("nan")  # the number of a row without elements
    named: Callable[[str], Any] = str  # a look, by what it depends on, as `tmapipe.tuning.looked` takes its name
    fitted: dict[Any, Rows]
    best: dict[Any, list[RowForm]]  # a few that differ, by what they are chosen by

    def __init__(self) -> None:
        self._forget()

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name not in KEPT:
            self._forget()

    def _forget(self) -> None:
        """Drops kernels, forms and remembered calls, which depend on the other attributes."""
        self.__dict__.update(fitted={}, best={}, known={}, _again=())

    def rows(self, form: RowForm, stored: int, loads: int, columns: int) -> Rows:
        """The schedule of this form, with so many tensors of rows and of one number a column loaded, for results at multiples
        of *stored* bytes."""
        return self.schedule(form, stored)

    def takes(self, form: RowForm) -> bool:
        """Whether such a form is one for this kernel."""
        return True

    def forms(
        self, length: int, size: int, vector: int, loads: int = 1, vectors: int = 0, dense: bool = True, width: int = 0
    ) -> list[RowForm]:
        """The forms for this kernel, the best one first. Arguments and errors as of `row_forms`."""
        reads = not self.schedule.stored
        how: dict[str, Any] = {"hold": self.hold, "dense": dense, "width": width, "reads": reads}
        forms = row_forms(length, size, vector, loads=loads, vectors=vectors, **how)
        return [form for form in forms if self.takes(form)]

    def fit(
        self, loaded: list[Any], stored: list[Any], others: list[Any], run: Callable[[Rows], object] | None = None
    ) -> Rows:
        """The schedule for these matrices, and *others* of one number a column; run: makes the call with a schedule, of which
        forms may be measured."""
        aligned, out = min(map(alignment_of, loaded)), min((alignment_of(x, True) for x in stored), default=ALIGNMENT)
        length, size = loaded[0].shape[1], max(x.dtype.itemsize for x in loaded)
        dense = all(is_contiguous(x) and address_of(x) % ALIGNMENT == 0 for x in loaded)
        place = (0, 0) if dense or aligned == ALIGNMENT else place_of(loaded[0])
        vectors = sum(x.dtype.itemsize for x in others)
        if aligned < ALIGNMENT and len({x.dtype.itemsize for x in loaded}) > 1:
            rule = "are of one size where their rows are no multiples of 16 bytes"
            raise InputError("element types", [str(x.dtype) for x in loaded], rule, "convert one")
        alike = dense and all(
            x.dtype.itemsize >= size and (place_of(x)[0] - length) * size % ALIGNMENT == place_of(x)[1] == 0
            for x in stored
        )
        per = min([aligned // size, *(out // x.dtype.itemsize for x in stored)])  # elements of results, at least
        shape = length, size, aligned, len(loaded), vectors, dense, 0 if alike else per
        if shape not in self.best:
            self.best[shape] = different(self.forms(*shape), MOST_LOOKS)

        def made(form: RowForm) -> Rows:
            key = *shape, out, len(others), place, self.options, form
            if key not in self.fitted:
                if form.apart > 1:  # results begin as many elements apart
                    form = attrs.evolve(form, pitch=place[0], start=place[1], alike=alike)
                at = min([out, *(per * x.dtype.itemsize for x in stored)]) if form.apart > 1 else out
                self.fitted[key] = self.rows(form, at, len(loaded), len(others))
            return self.fitted[key]

        if run is None:
            return made(self.best[shape][0])
        name = self.named(" ".join(map(str, (type(self).__name__, *self.options, *shape, out))))
        return calling.best_of(self, made, run, name, self.best[shape], loaded, stored)

    def apply(
        self, rows: dict[str, Any], stored: dict[str, Any], others: dict[str, Any], more: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Runs the schedule for matrices of rows, and *others* of one number a column, with *more* by stage."""
        several = len({place_of(x) for x in rows.values()}) > 1 and min(map(alignment_of, rows.values())) < ALIGNMENT
        if several or not all(map(loadable, rows.values())):
            rows = {name: copied(x) for name, x in rows.items()}

        def run(schedule: Rows) -> tuple[Any, ...]:
            return schedule.run({**rows, **stored, **more}, others)

        schedule = self.fit([*rows.values()], [*stored.values()], [*others.values()], run)
        places = {name: address_of(x) for name, x in (*rows.items(), *stored.items())}
        clash = {x for x in rows for y in stored if places[x] == places[y] and (y, x) not in schedule.declared.in_place}
        if clash:  # such a form loads more than it stores
            rows = {name: copied(x) if name in clash else x for name, x in rows.items()}
            schedule = self.fit([*rows.values()], [*stored.values()], [*others.values()], run)
        return run(schedule)

    def run(
        self,
        loaded: dict[str, Any],
        stored: dict[str, Any],
        others: dict[str, Any],
        numbers: dict[str, Any] | None = None,
        tables: dict[str, Any] | None = None,
    ) -> Any:
        """Computes the outputs, of which those that are None are made, from tensors of rows and from *others*.

        Args:
            numbers: Outputs of one number a row, in fp32.
            tables: Integers, one a row.
        """
        given = {**loaded, **others, **(tables or {}), **stored, **(numbers or {})}
        over = any(x is y for x in loaded.values() for y in stored.values())
        there = {name for name, x in given.items() if x is not None}
        for names, call, reads in () if over else self.__dict__.get("_again", ()):  # such calls of one kernel
            if there == {*names} and not (reads and reads.changed()):
                found = call(tuple(given[name] for name in names), None, {})
                if found is not None:
                    return found
        first, numbers = next(iter(loaded.values())), numbers or {}
        for name, x in (*loaded.items(), *others.items()):
            check_kind(name, x)
        rows = {name: as_matrix(name, x, KINDS) for name, x in loaded.items()}
        for name, x in (*loaded.items(), *stored.items(), *numbers.items()):
            if x is not None:
                check_kind(name, x)
            wanted = tuple(first.shape[:-1] if name in numbers else first.shape)
            if x is not None and tuple(x.shape) != wanted:
                raise InputError(f"{name}.shape", tuple(x.shape), f"is that of x, {wanted}", "make it so")
        made = {name: new_like(first) if x is None else x for name, x in stored.items()}
        made |= {n: new_like(first, tuple(first.shape[:-1]), fp32) if x is None else x for n, x in numbers.items()}
        more: tuple[Any, ...] = ()
        if 0 not in first.shape:
            outputs = {name: as_matrix(name, x, KINDS, name in numbers) for name, x in made.items()}
            of_rows = {name: outputs.pop(name) for name in stored}
            run = functools.partial(self.apply, rows, of_rows, others, {**outputs, **(tables or {})})
            more = remember_by_name(self, run, given, made)
        for name in numbers if first.shape[-1] == 0 else ():
            made[name][...] = self.nothing
        results = (*made.values(), *more)
        return results[0] if len(results) == 1 else results
