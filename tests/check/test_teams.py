"""Teams that skip each other's slots by run-time numbers: right ones are proved for every trip count, each slip is not."""

from __future__ import annotations

from typing import Any

import pytest

import tmapipe as tp
from tests.sweeps import sample
from tmapipe.base.arithmetic import ceil_div
from tmapipe.program import trace
from tmapipe.protocol.matmuls import TeamsInTurn
from tmapipe.prove.joint import prove
from tmapipe.prove.recurrence import RunState
from tmapipe.tiles.persistent import NumberedTiles

S = tp.schedules


def steps(k, tile):
    return k.steps("a", "k")


def one_less(k, tile):
    return k.steps("a", "k") - 1


def one_more(k, tile):
    return k.steps("a", "k") + 1


def twice(k, tile):
    return 2 * k.steps("a", "k")


def half(k, tile):
    return k.steps("a", "k") // 2


def two(k, tile):
    return 2


def by_branch(k, tile):
    if k.extent("m") > 100:
        return k.steps("a", "k")
    return 2


class Teams(tp.Schedule):
    """Two teams of a warp take tiles in turn. given, taken, skipped: slots of a tile, as each role says; forgets: a team that
    does not wait for its turn."""

    load, work = tp.Role(warps=1), tp.Role(warps=2, teams=2)
    ring = tp.BarrierRing(3, producer=load, consumer=work)
    a = tp.TmaLoadStage("m k", tile=(8, 64), ring=ring)
    order = tp.Turnstile(work)

    given: Any = staticmethod(steps)
    taken: Any = staticmethod(steps)
    skipped: Any = staticmethod(steps)
    forgets: Any = None

    def tile_slots(self, k, tile):
        return self.skipped(k, tile)

    @load.jit
    def fill(self, k, tile):
        for step in range(self.given(k, tile)):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)

    @work.jit
    def take(self, k, tile):
        if self.forgets is None:
            with k.order.turn():
                self.take_all(k, tile)
        else:
            if k.isa.warp % 2 != self.forgets:
                k.order.wait()
            self.take_all(k, tile)
            k.order.__exit__(None, None, None)

    def take_all(self, k, tile):
        for _ in range(self.taken(k, tile)):
            with k.ring.consume() as slot:
                slot.a.read()


def proof(given=steps, taken=None, skipped=None, forgets=None):
    class Formed(Teams):
        load, work = Teams.load, Teams.work

    Formed.given, Formed.taken = staticmethod(given), staticmethod(taken or given)
    Formed.skipped, Formed.forgets = staticmethod(skipped or given), forgets
    return prove(trace(Formed()))


@pytest.mark.parametrize("slots", [steps, one_less, one_more, twice, half, two, by_branch])
def test_teams_that_skip_what_others_take_are_proved(slots):
    found = proof(slots)
    assert found.closed, found.why


@pytest.mark.parametrize(
    "slip",
    [
        {"skipped": one_less},
        {"skipped": one_more},
        {"skipped": two},
        {"skipped": half},
        {"taken": one_less},
        {"taken": one_more},
        {"given": one_more, "taken": steps},
        {"given": one_less, "taken": one_less, "skipped": steps},
        {"given": twice, "taken": twice, "skipped": steps},
        {"given": two, "taken": two, "skipped": one_more},
        {"forgets": 0},
        {"forgets": 1},
    ],
    ids=lambda slip: ", ".join(f"{name} {getattr(each, '__name__', each)}" for name, each in slip.items()),
)
def test_a_slip_in_what_is_skipped_or_in_turns_is_not_proved(slip):
    assert not proof(**slip).closed


def test_a_team_whose_turns_begin_with_the_other_parity_is_not_proved(monkeypatch):
    made = TeamsInTurn.__init__

    def begin(self, k, name):
        made(self, k, name)
        self.parity = k.isa.cells(0 * self.own)

    monkeypatch.setattr(TeamsInTurn, "__init__", begin)
    assert not proof().closed


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_team_that_begins_at_another_tiles_slots_is_not_proved(monkeypatch, first):
    def each_in_turn(self, team, teams, body, skip):
        def one(n):
            body(self.tile(n * teams + team))
            for other in range(1, teams):
                skip(self.tile(n * teams + team + other))

        self.isa.loop(first * team, lambda i: skip(self.tile(i)))
        self.isa.loop(ceil_div(self.count - team, teams), one)

    right = first == 1
    monkeypatch.setattr(NumberedTiles, "each_in_turn", each_in_turn)
    assert proof().closed == right


#: Of as many stages as one likes, with operands of the epilogue, and positions that a cluster claims.
FORMS = {
    "two stages": lambda: S.PingPong((64, 64, 16), (1, 1), 2),
    "five stages, epilogues that may overlap": lambda: S.PingPong((64, 64, 16), (1, 1), 5, in_turn=False),
    "a matrix": lambda: S.PingPong(
        *((64, 64, 16), (1, 1), 3),
        epilogue=tp.epilogue.Epilogue(lambda acc, c: acc + c, operands={"c": tp.epilogue.Matrix()}, stages=1),
    ),
    "by GPC": lambda: S.PingPong((64, 64, 16), (1, 1), 3, tiles=tp.tiles.GpcTiles()),
}


@pytest.mark.parametrize("name", sample(FORMS, 4, first=2))
def test_ping_pong_is_proved(name):
    found = prove(trace(FORMS[name]()))
    assert found.closed, found.why


def test_a_joined_state_covers_both_and_a_joined_one_that_goes_wrong_is_taken_back(monkeypatch):
    made, joined = RunState.knowing_less, []

    def knowing_less(self, other):
        found = made(self, other)
        if found is not None:
            joined.append((self.covered_by(found), other.covered_by(found), found.covered_by(other)))
        return found

    monkeypatch.setattr(RunState, "knowing_less", knowing_less)
    program = trace(FORMS["two stages"]())
    assert prove(program).closed
    assert joined and all(mine and theirs for mine, theirs, _ in joined)
    assert not all(same for *_, same in joined)

    def knowing_nothing(self, other):
        found = made(self, other)
        if found is not None:
            for clock in found.check.clocks.of:
                clock[:] = 0
        return found

    monkeypatch.setattr(RunState, "knowing_less", knowing_nothing)
    assert prove(program).closed, "the search begins again without joining"
