"""Loops that go on for ever, with operations in them or without: errors of the check. Right ones are proved to end."""

from __future__ import annotations

import numpy as np
import pytest

import tmapipe as tp
from tmapipe.check import Kind


class Turns(tp.Schedule):
    """As many slots of a ring as iterations of a loop, in both roles.

    goes_on: (k, tile, i) -> condition; following: (tile, i) -> the next i.
    """

    load, work = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    rows = tp.Table("g")
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=work)

    def __init__(self, goes_on, following=None):
        self.goes_on, self.following = goes_on, following or (lambda tile, i: i)

    @load.jit
    def fill(self, k, tile):
        i = 0
        while self.goes_on(k, tile, i):  # <- here
            with k.ring.produce() as slot:
                slot.x.load(tile)
            i = self.following(tile, i)

    @work.jit
    def drain(self, k, tile):
        i, total = 0, k.full("y", 0.0)
        while self.goes_on(k, tile, i):
            with k.ring.consume() as slot:
                total = total + slot.x.read()
            i = self.following(tile, i)
        k.y.store(tile, total)


class Idle(tp.Schedule):
    """A copy, with a loop without operations before it."""

    load, work = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=work)

    def __init__(self, steps=1):
        self.steps = steps

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def drain(self, k, tile):
        i = 0
        while i < tile.m:
            i = i + self.steps
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile, values)


def halves(k, tile, i):
    return i < k.steps("x", "n")


class Bisection(Idle):
    """The place of a number among those from 0 to tile.m."""

    load, work = Idle.load, Idle.work

    @work.jit
    def drain(self, k, tile):
        low, high = 0, tile.m
        while low < high:
            middle = (low + high) // 2
            if middle < tile.n:
                low = middle + 1
            else:
                high = middle
        with k.ring.consume() as slot:
            values = slot.x.read()
        k.y.store(tile, values)


ENDING = {
    "up": lambda: Turns(lambda k, tile, i: i < tile.m + 1, lambda tile, i: i + 1),
    "by twos": lambda: Turns(lambda k, tile, i: i <= tile.m, lambda tile, i: i + 2),
    "down": lambda: Turns(lambda k, tile, i: i > -tile.m - 1, lambda tile, i: i - 1),
    "until equal": lambda: Turns(lambda k, tile, i: i != k.steps("x", "n"), lambda tile, i: i + 1),
    "twice and one": lambda: Turns(halves, lambda tile, i: 2 * i + 1),
    "one of two conditions": lambda: Turns(
        lambda k, tile, i: (i < k.steps("x", "n")) & (tile.m > 0), lambda tile, i: i + 1
    ),
    "without operations": Idle,
    "bisection": Bisection,
    "entries decide": lambda: Turns(lambda k, tile, i: k.rows.entry(i) >= 0, lambda tile, i: i + 1),
}
ENDLESS = {
    "nothing changes": lambda: Turns(lambda k, tile, i: tile.m > 0),
    "the number stays": lambda: Turns(lambda k, tile, i: i < tile.m),
    "without operations": lambda: Idle(0),
}
NOT_SHOWN = {
    "by as much as the row": lambda: Turns(lambda k, tile, i: i < tile.m + 1, lambda tile, i: i + tile.m),
    "twice of 0": lambda: Turns(halves, lambda tile, i: 2 * i),
    "past the end": lambda: Turns(lambda k, tile, i: i != 2 * tile.m + 1, lambda tile, i: i + 2),
}


@pytest.mark.parametrize("name", ENDING)
def test_loops_that_end_are_proved(name):
    report = ENDING[name]().check()
    assert report.ok and report.trips == "every trip count", str(report)


@pytest.mark.parametrize("name", ENDLESS)
def test_loops_that_never_end_are_errors(name):
    report = ENDLESS[name]().check()
    assert {each.kind for each in report.errors} == {Kind.ENDLESS}, str(report)
    assert __file__ in report.errors[0].where[0] and "no iteration of a loop changes" in report.errors[0].message


@pytest.mark.parametrize("name", NOT_SHOWN)
def test_loops_that_may_not_end_are_not_called_safe(name, monkeypatch):
    monkeypatch.setattr("tmapipe.prove.MAX_EVENTS", 2000)
    report = NOT_SHOWN[name]().check()
    assert report.trips != "every trip count", str(report)


def test_a_loop_without_operations_ends_the_call(monkeypatch):
    monkeypatch.setattr("tmapipe.program.python_text.MOST_TURNS", 1000)
    with pytest.raises(tp.PipelineError, match="stopped after 1000 iterations of the loop") as info:
        Idle(0)(np.ones((8, 64), np.float32))
    assert __file__ in str(info.value)


def test_a_loop_of_python_alone_ends_the_call(monkeypatch):
    class Waits(Idle):
        @Idle.work.jit
        def drain(self, k, tile):
            while True:
                pass

    monkeypatch.setattr("tmapipe.program.control.MOST_TURNS", 1000)
    for call in (lambda: Waits()(np.ones((8, 64), np.float32)), lambda: Waits().check()):
        try:
            said = str(call())
        except tp.PipelineError as error:
            said = str(error)
        assert "stopped after 1000 iterations" in said and "test_endless.py" in said
