"""Programs that a proof would call safe if it took numbers for equal that are not: of other instances, turns or CTAs.

They are put to the proof alone, which must not close. Each has a right twin, for which it does.
"""

import pytest

import tmapipe as tp
from tests.check.deciding import CASES, ByTurn, CountsItself, Nested, Tiles, entry, one_if, steps, take
from tmapipe.program import trace
from tmapipe.prove.joint import prove
from tmapipe.prove.solver import Solver


def closed(schedule):
    return prove(trace(schedule)).closed


class HalfATable(ByTurn):
    """As many turns as half of the steps."""

    load, add = ByTurn.load, ByTurn.add

    def turns(self, k, tile):
        return steps(k) // 2


class SumsUp(CountsItself):
    """Keeps the slot of the turn after which 0 + 1 + 2 + ... is `at`."""

    load, add = CountsItself.load, CountsItself.add

    @add.jit
    def total(self, k, tile):
        values, n = take(k), 0
        for i in range(self.taken(self, k, tile)):
            n = n + i
            slot = k.ring.wait()
            values = values + slot.x.read()
            if n != self.at:
                k.ring.release(slot)
        k.y.store(tile, values)


class Shared(tp.Schedule):
    """A slot that two CTAs load together, one half each; `which` says which CTAs do so once more."""

    load, add = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(stages=2, producer=load, consumer=add)
    x = tp.TmaLoadStage("m k", tile=(4, 64), ring=ring, multicast=tp.MulticastGroup("n"))
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=add, stages=1)

    def __init__(self, which):
        self.which, self.cluster = which, {"m": 1, "n": 2}

    @load.jit
    def fill(self, k, tile):
        for _ in range(1 + one_if(self.which(k.isa.cta_rank))):
            with k.ring.produce() as slot:
                slot.x.load(tile, k=0)

    @add.jit
    def total(self, k, tile):
        values = self.one(k)
        for _ in range(one_if(self.which(k.isa.cta_rank))):
            values = values + self.one(k)
        k.y.store(tile, values)

    def one(self, k):
        with k.ring.consume() as slot:
            values = slot.x.read()
        return values


#: name -> (right, wrong)
TRAPS = {
    "one rank of a multicast ring, in both roles": (lambda: Shared(lambda r: r < 2), lambda: Shared(lambda r: r == 0)),
    "entries from both ends of half a table": (
        lambda: HalfATable(lambda s, k, tile, i: one_if(entry(k, i) != 0)),
        lambda: HalfATable(
            lambda s, k, tile, i: one_if(entry(k, i) != 0),
            lambda s, k, tile, i: one_if(entry(k, steps(k) - 1 - i) != 0),
        ),
    ),
    "a count by the index of the loop around": (
        lambda: ByTurn(lambda s, k, tile, i: i),
        lambda: ByTurn(lambda s, k, tile, i: i, lambda s, k, tile, i: steps(k) - i),
    ),
    "an entry that differs from -1, or is at least 1": (
        lambda: Tiles(lambda s, k, tile: one_if(entry(k, tile.l) != -1)),
        lambda: Tiles(
            lambda s, k, tile: one_if(entry(k, tile.l) != -1), lambda s, k, tile: one_if(entry(k, tile.l) >= 1)
        ),
    ),
    "a sum of indices that is 4950 once": (lambda: SumsUp(at=-1), lambda: SumsUp(at=4950)),
    "the same number of steps, of another tile's dimension": (
        lambda: Nested(lambda s, k, tile: steps(k)),
        lambda: Nested(lambda s, k, tile: steps(k), lambda s, k, tile: steps(k, "j")),
    ),
}


@pytest.mark.parametrize("name", [name for name in TRAPS if name != "a sum of indices that is 4950 once"])
def test_the_right_one_is_closed(name):
    assert closed(TRAPS[name][0]())


@pytest.mark.parametrize("name", TRAPS)
def test_the_wrong_one_is_not(name):
    assert not closed(TRAPS[name][1]())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_solver_that_answers_nothing_proves_nothing_wrong(case, monkeypatch):
    monkeypatch.setattr(Solver, "possible", lambda self, conditions: all(x is not False for x in conditions))
    assert not closed(case.broken())
