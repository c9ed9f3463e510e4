"""Outputs that loops store: clusters that stride over tiles, stores before a loop, masks of columns, and tiles that begin
before their rows do. Each right form is shown for every shape; with one slip it is not, or the slip is found."""

from __future__ import annotations

import pytest

import tmapipe as tp
from tmapipe.check import Kind
from tmapipe.schedules.normgradients import NormBackwardRows, gradient_forms

EACH = 4  # rows that a cluster takes at once


class Base(tp.Schedule):
    """Loads x once for each store. A body says where it stores."""

    load, work = tp.Role(warps=1), tp.Role(warps=1)

    def __init__(self, rows=EACH):
        self.ring = tp.BarrierRing(2, producer=self.load, consumer=self.work)
        self.x = tp.TmaLoadStage("m n", tile=(rows, 64), ring=self.ring, dtype="fp32")

    def values(self, k):
        with k.ring.consume() as slot:
            return slot.x.read()


class Strided(Base):
    """Cluster c of C stores rows c, c + C, c + 2 C, ... of y, EACH at a time, and one number of z."""

    over = "c n"
    load, work = Base.load, Base.work
    relations = (tp.Dim("n", at_most=64),)

    def __init__(self, place=None, count=None):
        super().__init__()
        self.place, self.number = place or nth, count or of_all
        self.y = tp.ThreadStoreStage("m n", tile=(EACH, 64), role=self.work, vector=4, dtype="fp32")
        self.z = tp.ThreadStoreStage("c n", tile=(64,), role=self.work, vector=4, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        for i in range(self.number(k, tile)):
            with k.ring.produce() as slot:
                slot.x.load(tile.also(m=tile.c + i * k.steps("z", "c")))

    @work.jit
    def drain(self, k, tile):
        sums = k.full("x", 0.0)
        for i in range(self.number(k, tile)):
            values = self.values(k)
            k.y.store_from(self.place(k, tile, i), 0, values=values)
            sums = sums + values
        k.z.store_from(tile.c, 0, values=tp.math.column_sum(sums))


def nth(k, tile, i):
    return (tile.c + i * k.steps("z", "c")) * EACH


def of_all(k, tile):
    every, clusters = (k.extent("m") + EACH - 1) // EACH, k.steps("z", "c")
    return (every - tile.c + clusters - 1) // clusters


class InTurns(Base):
    """Tiles side by side take pieces of their rows in turn, and each stores a number of z. later: each piece is stored so many
    turns later."""

    over = "m c"
    load, work = Base.load, Base.work

    def __init__(self, mine, later=0):
        super().__init__()
        self.mine, self.later = mine, later
        self.y = tp.ThreadStoreStage("m n", tile=(EACH, 64), role=self.work, vector=4, dtype="fp32")
        self.z = tp.ThreadStoreStage("m c", tile=(EACH, 64), role=self.work, vector=4, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        for i in range(k.steps("x", "n") + self.later):
            with k.ring.produce() as slot:
                slot.x.load_from(tile.m * EACH, (i - self.later) * 64)

    @work.jit
    def drain(self, k, tile):
        for i in range(k.steps("x", "n") + self.later):
            values = self.values(k)
            if self.mine(i, tile.c, k.steps("z", "c")):
                k.y.store(tile.also(n=i - self.later), values)
        k.z.store(tile, k.full("x", 0.0))


class InTurn(Base):
    """Stores the first *before* pieces of its rows, then the others in a loop."""

    over = "m"
    load, work = Base.load, Base.work

    def __init__(self, before=1, first=None, last=0):
        super().__init__()
        self.before, self.begin, self.last = before, before if first is None else first, last
        self.y = tp.ThreadStoreStage("m n", tile=(EACH, 64), role=self.work, vector=4, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        for i in range(self.before):
            self.one(k, tile, i)
        for i in range(self.begin, k.steps("x", "n") + self.last):
            self.one(k, tile, i)

    def one(self, k, tile, i):
        with k.ring.produce() as slot:
            slot.x.load_from(tile.m * EACH, i * 64)  # perhaps beyond the end

    @work.jit
    def drain(self, k, tile):
        for i in range(self.before):
            k.y.store(tile.also(n=i), self.values(k))
        for i in range(self.begin, k.steps("x", "n") + self.last):
            k.y.store(tile.also(n=i), self.values(k))


class Narrow(Base):
    """Stores the columns that a mask leaves, of tiles that begin 24 columns apart."""

    over = "m b"
    load, work = Base.load, Base.work
    relations = (tp.Dim("n", of="b", times=24),)

    def __init__(self, mask):
        super().__init__()
        self.mask = mask
        self.x = tp.TmaLoadStage("m b w", tile=(EACH, 1, 64), ring=self.ring, dtype="fp32")
        self.y = tp.ThreadStoreStage("m n", tile=(EACH, 64), role=self.work, vector=4, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile, w=0)

    @work.jit
    def drain(self, k, tile):
        values = self.values(k)
        k.y.store_from(tile.m * EACH, tile.b * 24, values=values, when=self.mask(values))


class Begun(Base):
    """Row b of *length* elements is stored in tiles that begin up to 3 elements before its first one."""

    over = "b n"
    load, work = Base.load, Base.work

    def __init__(self, length, before=None):
        super().__init__(1)
        self.before = before or (lambda tile: tile.b % 4)
        self.relations = (tp.Dim("n", size=length),)
        self.x = tp.TmaLoadStage("b n", tile=(1, 64), ring=self.ring, dtype="fp32")
        self.y = tp.ThreadStoreStage("b n", tile=(64,), role=self.work, vector=4, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def drain(self, k, tile):
        k.y.store_from(tile.b, tile.n * 64 - self.before(tile), values=self.values(k))


class Chosen(Base):
    """Tiles store their rows in a loop of *count* turns, as `store(k, tile, i, values)` says."""

    over = "m"
    load, work = Base.load, Base.work

    def __init__(self, store, count=lambda k: k.steps("x", "n")):
        super().__init__()
        self.store, self.count = store, count
        self.y = tp.ThreadStoreStage("m n", tile=(EACH, 64), role=self.work, vector=4, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        for i in range(self.count(k)):
            with k.ring.produce() as slot:
                slot.x.load_from(tile.m * EACH, i * 64)  # perhaps beyond the end

    @work.jit
    def drain(self, k, tile):
        for i in range(self.count(k)):
            self.store(k, tile, i, self.values(k))


def later_by_even_tiles(k, tile, i, values):
    """The same place in both arms, but not at the same turns."""
    if tile.m % 2 == 0:
        if i >= tile.m:
            k.y.store(tile.also(n=i), values)
    else:
        k.y.store(tile.also(n=i), values)


def twice(k, tile, i, values):
    for _ in range(2):
        k.y.store(tile.also(n=i), values)


class Square(Base):
    """y has as many columns as rows, or *wide*. columns: of tile m, the number of the tile along n where it is stored."""

    over = "m"
    load, work = Base.load, Base.work

    def __init__(self, columns, wide=None):
        super().__init__()
        self.columns = columns
        self.relations = (tp.Dim("n", size=wide) if wide else tp.Dim("n", of="m"),)
        self.x = tp.TmaLoadStage("m k", tile=(EACH, 64), ring=self.ring, dtype="fp32")
        self.y = tp.ThreadStoreStage("m n", tile=(EACH, 64), role=self.work, vector=4, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile, k=0)

    @work.jit
    def drain(self, k, tile):
        k.y.store(tile.also(n=self.columns(tile)), self.values(k))


RIGHT = {
    "one column of tiles": lambda: Square(lambda tile: 0, 64),
    "strided": lambda: Strided(),
    "pieces in turn": lambda: InTurns(lambda i, c, tiles: i % tiles == c),
    "a turn before the loop": lambda: InTurn(),
    "three turns before the loop": lambda: InTurn(3),
    "a mask of columns": lambda: Narrow(lambda values: values.columns < 24),
    "rows that begin inside of a tile": lambda: Begun(60),
    "room for three elements": lambda: Begun(189),
}
WRONG = {
    "strides of one tile": (lambda: Strided(lambda k, tile, i: (tile.c + i) * EACH), Kind.OUTPUT_RACE),
    "strides of one row": (lambda: Strided(lambda k, tile, i: tile.c * EACH + i * k.steps("z", "c")), Kind.OUTPUT_RACE),
    "a tile less for each": (lambda: Strided(None, lambda k, tile: of_all(k, tile) - 1), Kind.UNWRITTEN),
    "rounded down": (
        lambda: Strided(None, lambda k, tile: k.extent("m") // EACH // k.steps("z", "c")),
        Kind.UNWRITTEN,
    ),
    "all pieces": (lambda: InTurns(lambda i, c, tiles: True), Kind.SAME_OUTPUT),
    "in turns of four": (lambda: InTurns(lambda i, c, tiles: i % 4 == c), Kind.UNWRITTEN),
    "in turns of one more": (lambda: InTurns(lambda i, c, tiles: i % (tiles + 1) == c), Kind.UNWRITTEN),
    "by the next one": (lambda: InTurns(lambda i, c, tiles: i % tiles == c + 1), Kind.UNWRITTEN),
    "by the next one, a turn later": (lambda: InTurns(lambda i, c, tiles: i % tiles == c + 1, 1), Kind.UNWRITTEN),
    "by the one before, a turn earlier": (lambda: InTurns(lambda i, c, tiles: i % tiles == c - 1, -1), Kind.UNWRITTEN),
    "pieces of two": (lambda: InTurns(lambda i, c, tiles: i % 3 == c % 3), Kind.SAME_OUTPUT),
    "later turns of some tiles": (lambda: Chosen(later_by_even_tiles), Kind.UNWRITTEN),
    "the diagonal alone": (lambda: Square(lambda tile: tile.m), Kind.UNWRITTEN),
    "the first turn again": (lambda: InTurn(1, 0), Kind.SAME_OUTPUT),
    "a turn left out": (lambda: InTurn(1, 2), Kind.UNWRITTEN),
    "no last turn": (lambda: InTurn(1, None, -1), Kind.UNWRITTEN),
    "a wide mask": (lambda: Narrow(lambda values: values.columns < 25), Kind.OUTPUT_RACE),
    "room for two elements": (lambda: Begun(190), Kind.UNWRITTEN),
    "whole tiles": (lambda: Begun(128), Kind.UNWRITTEN),
    "tiles that begin later": (lambda: Begun(60, lambda tile: -(tile.b % 4)), Kind.UNWRITTEN),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_form_is_shown_for_every_shape(name):
    report = RIGHT[name]().check()
    assert report.ok and report.trips == "every trip count" and not report.outputs, str(report)
    assert not {finding.kind for finding in report.findings} & {Kind.SAME_OUTPUT, Kind.UNWRITTEN}, str(report)


@pytest.mark.parametrize("name", WRONG)
def test_the_wrong_one_is_found(name):
    make, kind = WRONG[name]
    report = make().check()
    assert kind in {finding.kind for finding in report.findings}, str(report)


def test_a_mask_that_leaves_columns_out_is_not_shown():
    report = Narrow(lambda values: values.columns < 23).check()
    assert report.ok and any("stored as a whole" in said for said in report.outputs), str(report)


def test_what_is_stored_twice_may_leave_elements_out_too():
    report = Chosen(twice, lambda k: 20).check()
    assert Kind.SAME_OUTPUT in {finding.kind for finding in report.findings}
    assert any("not shown to be stored as a whole" in said for said in report.outputs), str(report)


@pytest.mark.parametrize("mask", [lambda v: (v.columns < 24) & (v > 0), lambda v: v.columns < v.rows])
def test_of_other_masks_all_columns_count(mask):
    report = Narrow(mask).check()
    assert {finding.kind for finding in report.findings} & {Kind.OUTPUT_RACE, Kind.SAME_OUTPUT}, str(report)


@pytest.mark.parametrize("length, vector", [(1024, 16), (185, 2), (4096, 16), (11784, 16), (5001, 2), (3000, 16)])
@pytest.mark.parametrize("centered", [False, True])
def test_gradients_of_norms_are_shown_for_every_shape(length, vector, centered):
    form = gradient_forms(length, 2, vector, 1 + centered)[0]
    report = NormBackwardRows(form, centered=centered, stored=vector).check()
    assert report.ok and report.trips == "every trip count" and not report.outputs and not report.partly, str(report)
