"""Loads that start outside of their tensor for some shape only, which the problems that are always run do not show."""

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
