"""Rows longer than a tile, and loops that leave tiles out."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import tmapipe as tp
from tests.unit.errors import refused
from tmapipe.check import Kind

TYPES = {"x": "fp32", "y": "fp32"}


class Softmax(tp.Schedule):
    """y[m, n] = exp(x[m, n]) / sum over n of exp(x[m, n]), whose rows are longer than a tile."""

    load, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=work)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def normalize(self, k, tile):
        with k.ring.consume() as slot:
            powers = tp.math.exp(slot.x.read())
        k.y.store(tile, powers / tp.math.row_sum(powers, inside=k.extent("n")))  # <- here


class Bounded(Softmax):
    relations = (tp.Dim("n", at_most=64),)


class OfBlocks(Softmax):
    """Over each 64 columns, or so one might mean it."""

    @Softmax.work.jit
    def normalize(self, k, tile):
        with k.ring.consume() as slot:
            powers = tp.math.exp(slot.x.read())
        k.y.store(tile, powers / tp.math.row_sum(powers))  # <- here


class Sums(tp.Schedule):
    """y[m] = sum over n of x[m, n], with a loop."""

    over = "m"
    first, fewer = 0, 0
    load, work = tp.Role(warps=1), tp.Role(warps=2)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    y = tp.TmaStoreStage("m", tile=(4,), role=work)

    @load.jit
    def fill(self, k, tile):
        for step in range(self.first, k.steps("x", "n") - self.fewer):
            with k.ring.produce() as slot:
                slot.x.load(tile, n=step)  # <- here

    @work.jit
    def add(self, k, tile):
        total = k.full("x", 0.0, "rows")
        for _ in range(self.first, k.steps("x", "n") - self.fewer):
            with k.ring.consume() as slot:
                total = total + tp.math.row_sum(slot.x.read())
        k.y.store(tile, total)


class BySteps(Sums):
    """Goes through the steps that `steps` says, in both roles."""

    def __init__(self, steps):
        self.steps = steps

    @Sums.load.jit
    def fill(self, k, tile):
        for step in self.steps(k):
            with k.ring.produce() as slot:
                slot.x.load(tile, n=step)  # <- here

    @Sums.work.jit
    def add(self, k, tile):
        total = k.full("x", 0.0, "rows")
        for _ in self.steps(k):
            with k.ring.consume() as slot:
                total = total + tp.math.row_sum(slot.x.read())
        k.y.store(tile, total)


SHORT = {
    "half": (lambda k: range(k.steps("x", "n") // 2), "element 0 of 64"),
    "every second": (lambda k: range(0, k.steps("x", "n"), 2), "element 64 of 65"),
    "without the remainder": (lambda k: range(k.extent("n") // 64), "element 64 of 65"),
    "four at most": (lambda k: range(min(k.steps("x", "n"), 4)), "element 256 of 320"),
}


class FirstTile(Sums):
    @Sums.load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile, n=0)  # <- here

    @Sums.work.jit
    def add(self, k, tile):
        with k.ring.consume() as slot:
            k.y.store(tile, tp.math.row_sum(slot.x.read()))


def found(schedule, kind, dtypes=None):
    """The one finding of this kind, which begins with the marked line of the schedule's class."""
    report = schedule.check(dtypes)
    (finding,) = (each for each in report.findings if each.kind is kind)
    lines, first = inspect.getsourcelines(type(schedule))
    marked = [first + i for i, line in enumerate(lines) if line.rstrip().endswith("# <- here")]
    assert int(finding.where[0].rpartition(":")[2]) in marked, str(report)
    assert report.ok == kind.note, str(report)
    return finding


def test_a_row_that_is_reduced_as_a_whole_lies_in_one_tile():
    finding = found(Softmax(), Kind.ROW_IN_PARTS, TYPES)
    assert 'Dim("n", at_most=64)' in finding.fix and "of which a tile has 64" in finding.message
    x = np.random.default_rng(0).standard_normal((6, 128)).astype(np.float32)
    assert Bounded().check(TYPES).findings == ()
    assert Bounded()(x[:, :64]).sum() == pytest.approx(6)
    refused(Bounded(), x, argument="x.shape along n", value=128, rule="at most 64")


def test_a_reduction_of_a_block_is_noted():
    finding = found(OfBlocks(), Kind.PART_REDUCED, TYPES)
    assert finding.fix.endswith("else, none")

    class Declared(OfBlocks):
        relations = (tp.Dim("n", at_most=64),)

    assert Declared().check(TYPES).findings == ()


def test_a_loop_that_leaves_tiles_out_is_noted():
    assert Sums().check(TYPES).findings == ()
    for name, said in (("fewer", "((n + 63) // 64 - 1) times"), ("first", "from element 64 on")):
        schedule = Sums()
        setattr(schedule, name, 1)
        report = schedule.check(TYPES)
        (finding,) = report.findings
        assert (finding.kind, report.ok) == (Kind.UNREAD, True) and said in finding.message, str(report)


@pytest.mark.parametrize("name", SHORT)
def test_loops_that_leave_tiles_out_in_other_ways_are_noted(name):
    by, said = SHORT[name]
    finding = found(BySteps(by), Kind.UNREAD, TYPES)
    assert finding.message == f"x is loaded along n without {said}" and 'k.steps("x", "n")' in finding.fix


@pytest.mark.parametrize("by", [lambda k: range(k.steps("x", "n")), lambda k: range((k.extent("n") + 63) // 64)])
def test_loops_through_all_tiles_are_not(by):
    assert BySteps(by).check(TYPES).findings == ()


def test_a_load_of_the_first_tile_alone_is_noted():
    assert "at_most=64" in found(FirstTile(), Kind.UNREAD, TYPES).fix

    class Declared(FirstTile):
        relations = (tp.Dim("n", at_most=64),)

    assert Kind.UNREAD not in {each.kind for each in Declared().check(TYPES).findings}


def test_a_new_output_is_stored_as_a_whole():
    """Before a launch; the model says it in each run."""

    class Indented(Bounded):
        @Softmax.work.jit
        def normalize(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
            k.y.store_from(tile.m * 4 + 2, tile.n * 64, values=values)

    schedule, x = Indented(), np.ones((8, 64), np.float32)
    y = np.full_like(x, 7)
    schedule(x, out=y)
    assert (y[:2] == 7).all() and (y[2:] == 1).all()
    with pytest.raises(tp.errors.HazardError, match="128 of 512 elements of y are written by nobody"):
        schedule(x)
    partly = schedule.check(TYPES).partly
    assert partly == ("y",)
    schedule.bind(x, out=y).check_whole(partly)
    refused(schedule.bind(x).check_whole, partly, argument="y", value=None, rule="stored in part")
