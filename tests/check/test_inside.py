"""Loads and stores that start outside of their tensor, and reads that leave their slot, for some shape only, which the
problems that are always run do not show."""

from __future__ import annotations

import pytest

import tmapipe as tp
from tests.oracle.registry import REGISTRY
from tmapipe.check import Kind


class Loads(tp.Schedule):
    """Loads x along n as often as *count* says, at the tiles that *place* says, in *parts* of a cluster."""

    over = "m"
    load, work = tp.Role(warps=1), tp.Role(warps=1)

    def __init__(self, count, place=lambda k, tile, i: {"n": i}, relations=()):
        self.count, self.place, self.relations = count, place, relations
        self.ring = tp.BarrierRing(2, producer=self.load, consumer=self.work)
        self.x = tp.TmaLoadStage("m n", tile=(4, 64), ring=self.ring, dtype="fp32")
        self.y = tp.TmaStoreStage("m w", tile=(4, 64), role=self.work, dtype="fp32")

    @load.jit
    def fill(self, k, tile):
        for i in range(self.count(k, tile)):
            with k.ring.produce() as slot:
                slot.x.load(tile, **self.place(k, tile, i))

    @work.jit
    def drain(self, k, tile):
        sums = k.full("x", 0.0)
        for _ in range(self.count(k, tile)):
            with k.ring.consume() as slot:
                sums = sums + slot.x.read()
        k.y.store_from(tile.m * 4, 0, values=sums)


def steps(k, tile):
    return k.steps("x", "n")


BESIDE = (tp.Dim("m", of="n", per=16),)  # as many tiles along m as along n
RIGHT = {
    "to the end": lambda: Loads(steps),
    "backwards": lambda: Loads(steps, lambda k, tile, i: {"n": k.steps("x", "n") - 1 - i}),
    "half of them": lambda: Loads(lambda k, tile: (k.steps("x", "n") + 1) // 2, lambda k, tile, i: {"n": 2 * i}),
    "to the diagonal": lambda: Loads(lambda k, tile: tile.m + 1, relations=BESIDE),
    "the rows of all": lambda: Loads(lambda k, tile: k.steps("x", "m"), lambda k, tile, i: {"m": i, "n": 0}),
}
WRONG = {
    "two at least": lambda: Loads(lambda k, tile: 2),
    "an even number": lambda: Loads(lambda k, tile: (k.steps("x", "n") + 1) // 2 * 2),
    "the second of two": lambda: Loads(
        lambda k, tile: (k.steps("x", "n") + 1) // 2, lambda k, tile, i: {"n": 2 * i + 1}
    ),
    "before the first": lambda: Loads(steps, lambda k, tile, i: {"n": k.steps("x", "n") - 2 - i}),
    "the row before": lambda: Loads(steps, lambda k, tile, i: {"m": tile.m - 1, "n": i}),
    "to the diagonal, of any shape": lambda: Loads(lambda k, tile: tile.m + 1),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_one_is_shown(name):
    report = RIGHT[name]().check()
    assert report.ok and report.trips == "every trip count", str(report)
    assert not report.outputs, str(report)


@pytest.mark.parametrize("name", WRONG)
def test_the_wrong_one_is_found(name):
    report = WRONG[name]().check()
    assert Kind.OUT_OF_RANGE in report.kinds(), str(report)
    assert report.problem is not None and report.trips == "no trip count"


@pytest.mark.parametrize("name", ["Attention", "SplitAttention", "DequantGemm, int4 in groups"])
def test_loads_of_shipped_schedules_are_shown(name):
    (make,) = (each.make_small for each in REGISTRY if each.name == name)
    report = make().check()
    assert report.ok and not report.outputs, str(report)


def test_what_is_not_shown_and_not_found_is_said():
    square = Loads(lambda k, tile: k.steps("x", "n") * k.steps("x", "n") // k.steps("x", "n"))
    report = square.check()
    assert report.ok and report.outputs == ("x is not shown to start inside of its tensor along n",), str(report)


class Reads(tp.Schedule):
    """Reads of the slots of x, (36, 72), and of w, (256,), as *read* says; stored where *start* says."""

    load, work = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(36, 72), ring=ring, dtype="fp32")
    w = tp.TmaLoadStage("p", tile=(256,), ring=ring, dtype="fp32")
    rows = tp.Table("r")
    y = tp.TmaStoreStage("m n", tile=(32, 64), role=work, dtype="fp32")

    def __init__(self, read, start=lambda k, tile: (tile.m * 32, tile.n * 64)):
        self.read, self.start = read, start

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load_from(tile.m * 32, tile.n * 64)
            slot.w.load(p=0)

    @work.jit
    def copy(self, k, tile):
        with k.ring.consume() as slot:
            values = self.read(k, tile, slot)
        k.y.store_from(*self.start(k, tile), values=values)


def summed(first):
    def read(k, tile, slot):
        total = k.full("y", 0.0)
        for i in range(k.steps("x", "m")):
            total = total + slot.x.read(tile=(32, 64), at=(first(i), 4))
        return total

    return read


def beside(k, values):
    return k.full("y", 1.0)


READ_INSIDE = {
    "a part": lambda k, tile, slot: slot.x.read(tile=(32, 64), at=(tile.m % 5, tile.n % 9)),
    "parts in a loop": summed(lambda i: min(i, 4)),
    "a number": lambda k, tile, slot: k.full("y", 1.0) * slot.w.read(at=tile.m % 256),
    "a line": lambda k, tile, slot: (
        (one := k.full("y", 1.0)) * slot.x.read(columns_of=one, at=(tile.m % 36, tile.n % 9))
    ),
    "rows side by side": lambda k, tile, slot: slot.w.read(tile=(32, 64), pitch=1, at=tile.m % 162),
    "without gaps": lambda k, tile, slot: beside(k, slot.w.read(tile=(128,), at=(tile.m % 9, 0), gaps=((8, 8),))),
    "by a table": lambda k, tile, slot: slot.x.read(tile=(32, 64), at=(k.rows.entry(tile.m), 0)),
}
READ_OUTSIDE = {
    "a part": lambda k, tile, slot: slot.x.read(tile=(32, 64), at=(tile.m, 0)),
    "parts in a loop": summed(lambda i: i),
    "before the first": lambda k, tile, slot: k.full("y", 1.0) * slot.w.read(at=tile.m % 64 - 1),
    "a number": lambda k, tile, slot: k.full("y", 1.0) * slot.w.read(at=tile.m),
    "a line": lambda k, tile, slot: (one := k.full("y", 1.0)) * slot.x.read(columns_of=one, at=tile.m),
    "rows side by side": lambda k, tile, slot: slot.w.read(tile=(32, 64), pitch=0, at=tile.m),
    "without gaps": lambda k, tile, slot: beside(k, slot.w.read(tile=(128,), at=(tile.m + 8, 0), gaps=((8, 8),))),
}


@pytest.mark.parametrize("name", READ_INSIDE)
def test_reads_that_stay_in_their_slot_are_shown(name):
    report = Reads(READ_INSIDE[name]).check()
    assert report.ok and report.trips == "every trip count" and not report.outputs, str(report)


@pytest.mark.parametrize("name", READ_OUTSIDE)
def test_a_read_that_leaves_its_slot_is_found(name):
    """What lies there is another slot, or nothing: on the CPU model an error, on a GPU any number."""
    report = Reads(READ_OUTSIDE[name]).check()
    assert report.kinds() == {Kind.OUT_OF_RANGE}, str(report)
    assert "reads" in report.findings[0].message and "in a slot of" in report.findings[0].message


@pytest.mark.parametrize("at", [lambda tile: (tile.m % 6, 0), lambda tile: (0, tile.n % 10)])
def test_a_read_that_is_not_shown_to_stay_and_not_found_to_leave_is_said(at):
    report = Reads(lambda k, tile, slot: slot.x.read(tile=(32, 64), at=at(tile))).check()
    assert len(report.outputs) == 1 and "slot.x.read at " in report.outputs[0], str(report)
    assert report.outputs[0].endswith("is not shown to stay inside of its tile")


def test_a_store_that_starts_before_its_tensor_for_later_tiles_is_found():
    """An illegal instruction; the tiles of the problems that are always run start at 0 or later."""

    def backwards(first):
        return Reads(READ_INSIDE["a part"], lambda k, tile: ((first(k) - tile.m) * 32, tile.n * 64)).check()

    report = backwards(lambda k: 10)
    assert report.kinds() == {Kind.OUT_OF_RANGE} and "stores y at (-32, " in report.findings[0].message, str(report)
    report = backwards(lambda k: k.steps("y", "m") - 1)
    assert report.ok and not any("start inside" in each for each in report.outputs), str(report)
