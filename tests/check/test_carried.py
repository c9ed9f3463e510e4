"""Numbers that loops carry and that are no formula of the turn: equal ones of several roles stay equal, others do not."""

from __future__ import annotations

import pytest

import tmapipe as tp
from tests.check.deciding import Tiles, put, take
from tmapipe.program import trace
from tmapipe.prove.joint import prove


class Squares(Tiles):
    """Each step of k takes another number of slots: the square of the last one, modulo 5. late: the role that adds takes as
    many as the step before had."""

    load, add = Tiles.load, Tiles.add

    def __init__(self, late=False):
        super().__init__(None)
        self.late = late

    @load.jit
    def fill(self, k, tile):
        put(k, tile)
        n = tile.m
        for _ in range(k.steps("x", "k")):
            n = (n * n + 1) % 5
            for _ in range(n):
                put(k, tile)

    @add.jit
    def total(self, k, tile):
        values = take(k)
        n = before = tile.m
        for _ in range(k.steps("x", "k")):
            before = n
            n = (n * n + 1) % 5
            for _ in range(before if self.late else n):
                values = values + take(k)
        k.y.store(tile, values)


class Flags(Tiles):
    """Some steps of k take a slot more. fixed: the role that adds decides by the first one for all."""

    load, add = Tiles.load, Tiles.add

    def __init__(self, fixed=False):
        super().__init__(None)
        self.fixed = fixed

    @load.jit
    def fill(self, k, tile):
        put(k, tile)
        n = tile.m
        for _ in range(k.steps("x", "k")):
            n = (n * n + 1) % 5
            if n > 2:
                put(k, tile)

    @add.jit
    def total(self, k, tile):
        values = take(k)
        n = tile.m
        first = (n * n + 1) % 5
        for _ in range(k.steps("x", "k")):
            n = (n * n + 1) % 5
            if (first if self.fixed else n) > 2:
                values = values + take(k)
        k.y.store(tile, values)


@pytest.mark.parametrize("make", [Squares, Flags])
def test_equal_numbers_stay_equal(make):
    found = prove(trace(make()))
    assert found.closed and found.free, found


@pytest.mark.parametrize("make", [lambda: Squares(late=True), lambda: Flags(fixed=True)])
def test_numbers_of_other_turns_are_others(make):
    assert not prove(trace(make())).closed


def test_stream_k_is_proved():
    found = prove(trace(tp.schedules.StreamK(5, (64, 64, 16), (1, 1), 2)))
    assert found.closed, found.why
