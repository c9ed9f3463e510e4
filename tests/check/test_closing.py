"""What the search for a closed set of states computes in few steps, held against its definition."""

from __future__ import annotations

import gc
import itertools
import random

import numpy as np
import pytest

import tmapipe as tp
from tests.check.deciding import Tiles
from tmapipe import base
from tmapipe.check.phases import knows
from tmapipe.program import trace
from tmapipe.prove.joint import Search
from tmapipe.prove.problem import value_of
from tmapipe.prove.recurrence import known_by
from tmapipe.prove.solver import Solver, arithmetic
from tmapipe.prove.symbols import at_least_0, both, either, is_0, leaf, negated

S = tp.schedules
MOST = 4  # of each number


def drawn(draw, numbers, depth=2):
    """A formula of these numbers."""
    if depth == 0 or draw.random() < 0.3:
        return draw.choice([*numbers, draw.randint(-3, 3)])
    a, b = drawn(draw, numbers, depth - 1), drawn(draw, numbers, depth - 1)
    op = draw.choice(["add", "sub", "times", "floordiv", "min", "max", "select"])
    if op == "times":
        return a * draw.randint(-3, 3)
    if op == "floordiv":
        return arithmetic(op, a, draw.randint(1, 4))
    return arithmetic(op, at_least_0(a - b), a, 2 * b) if op == "select" else arithmetic(op, a, b)


def condition(draw, numbers):
    number, also = drawn(draw, numbers), drawn(draw, numbers, 1)
    found = draw.choice([at_least_0, is_0])(number)
    found = negated(found) if draw.random() < 0.3 else found
    other = at_least_0(also)
    return draw.choice([found, found, both(found, other), either(found, other)])


def test_what_can_hold_together_is_never_said_to_be_impossible():
    draw, refused = random.Random(7), 0
    for _ in range(400):
        numbers = [leaf("extent", name) for name in "abc"]
        conditions = [condition(draw, numbers) for _ in range(draw.randint(1, 4))]
        every = (dict(zip(numbers, each, strict=True)) for each in itertools.product(range(MOST + 1), repeat=3))
        holds = any(all(value_of(x, values) for x in conditions) for values in every)
        said = Solver(lambda x: (0, MOST)).possible(conditions)
        assert said or not holds, conditions
        refused += not said
    assert refused > 40, "it finds out that much"


def test_who_knows_facts_is_found_for_all_at_once():
    draw = np.random.default_rng(3)
    for _ in range(50):
        clocks = draw.integers(0, 5, (6, 8)).astype(np.int32)
        facts = [
            tuple((int(draw.integers(8)), int(draw.integers(1, 6))) for _ in range(draw.integers(0, 4)))
            for _ in range(draw.integers(1, 20))
        ]
        assert known_by(clocks, facts).tolist() == [[knows(clock, fact) for clock in clocks] for fact in facts]


@pytest.mark.parametrize(
    "make",
    [
        lambda: S.PingPong((64, 64, 16), (1, 1), 3),
        lambda: S.Gemm((64, 64, 16), (2, 1), 3),
        lambda: Tiles(lambda s, k, tile: 1, cluster=2),
    ],
    ids=["teams", "multicast", "CTAs apart"],
)
def test_that_states_cover_each_other_is_a_preorder(monkeypatch, make):
    made, states = Search.to_go_on, {}

    def to_go_on(self, now, state):
        found = made(self, now, state)
        states.setdefault(now.key, []).append(state)
        return found

    monkeypatch.setattr(Search, "to_go_on", to_go_on)
    schedule = make()
    search = Search(
        trace(schedule), mixed=not isinstance(schedule, S.PingPong), cta=0 if isinstance(schedule, Tiles) else None
    )
    assert search.error() is None
    pairs = 0
    for own in states.values():
        assert all(state.covered_by(state) for state in own)
        for x, y, z in itertools.permutations(own[-6:], 3):
            if x.covered_by(y) and y.covered_by(z):
                assert x.covered_by(z)
                pairs += 1
    kept = {id(state) for each in search.known.values() for state in each}
    for key, own in states.items():
        assert all(id(state) in kept or any(state.covered_by(each) for each in search.known[key]) for state in own)
    assert pairs > 0 or isinstance(schedule, Tiles)


def test_checks_leave_little_behind(monkeypatch):
    """Each leaves cycles, and the collector rests meanwhile: they are collected once in 16 checks."""
    schedule = S.Copy()
    monkeypatch.setattr(base, "_frozen", False)
    monkeypatch.setattr(base, "_rests", itertools.count(1))

    def objects():
        for _ in range(16):
            schedule.check()
        return len(gc.get_objects())

    gc.unfreeze()
    try:
        first, second = objects(), objects()
    finally:
        gc.freeze()
    assert second < first + 16 * 100


def test_frozen_objects_stay_frozen():
    """Those of the user, such as of `tests/conftest.py`."""
    schedule, before = S.Copy(), gc.get_freeze_count()
    for _ in range(17):
        schedule.check()
    assert gc.get_freeze_count() > before // 2 > 0  # some may have gone meanwhile
