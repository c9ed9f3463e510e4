"""Teams whose tiles are fetched one by one: right ones are proved for every number of tiles, a word too few is not."""

import pytest

import tmapipe as tp
from tests.check.test_teams import Teams, one_less, one_more, steps, twice
from tests.sweeps import sample
from tmapipe.program import trace
from tmapipe.prove.joint import prove
from tmapipe.tiles.dynamic import FetchedTiles

S = tp.schedules


class ThreeTeams(Teams):
    load, work = tp.Role(warps=1), tp.Role(warps=3, teams=3)
    ring = tp.BarrierRing(2, producer=load, consumer=work)
    a = tp.TmaLoadStage("m k", tile=(8, 64), ring=ring)
    order = tp.Turnstile(work)

    @load.jit
    def fill_three(self, k, tile):
        for step in range(k.steps("a", "k")):
            with k.ring.produce() as slot:
                slot.a.load(tile, k=step)

    @work.jit
    def take_three(self, k, tile):
        with k.order.turn():
            self.take_all(k, tile)


def proof(of=Teams, fetched=2, **given):
    class Formed(of):
        load, work = of.load, of.work

    Formed.tiles = tp.tiles.DynamicTiles(stages=fetched)
    for name, slots in given.items():
        setattr(Formed, name, staticmethod(slots))
    return prove(trace(Formed()))


@pytest.mark.parametrize("fetched", [1, 2, 3])
@pytest.mark.parametrize("slots", [steps, twice])
def test_teams_are_proved(slots, fetched):
    found = proof(fetched=fetched, given=slots, taken=slots, skipped=slots)
    assert found.closed, found.why


def row(k, tile):
    return tile.m


def row_and_one(k, tile):
    return tile.m + 1


def half_a_row(k, tile):
    return (tile.m + 1) // 2


@pytest.mark.parametrize("slots", [row, row_and_one, half_a_row])
def test_teams_whose_slots_depend_on_the_tile_are_proved(slots):
    found = proof(given=slots, taken=slots, skipped=slots)
    assert found.closed, found.why


@pytest.mark.parametrize("role", ["given", "taken", "skipped"])
def test_slips_where_slots_depend_on_the_tile_are_not_proved(role):
    assert not proof(**{"given": row_and_one, "taken": row_and_one, "skipped": row_and_one, role: row}).closed


def test_three_teams_are_proved():
    found = proof(ThreeTeams)
    assert found.closed, found.why


@pytest.mark.parametrize(
    "slip",
    [
        {"skipped": one_less},
        {"skipped": one_more},
        {"taken": one_less},
        {"given": one_more},
        {"given": twice, "taken": twice},
    ],
    ids=lambda slip: ", ".join(f"{name} {each.__name__}" for name, each in slip.items()),
)
def test_slots_that_do_not_agree_are_not_proved(slip):
    assert not proof(**slip).closed


def turns(before, between, of_team=None):
    """`each_in_turn` by which a team passes over *before*(team, teams) tiles first, and over *between*(teams) later."""

    def each_in_turn(self, team, teams, body, skip):
        def pass_over():
            skip(self._tile())
            self._next()

        def one():
            body(self._tile())
            self._next()
            for i in range(teams):
                self.isa.when((between(team, teams) > i) & (self.words[0] != 0), pass_over)

        self._next()
        for i in range(teams):
            self.isa.when((before(team, teams) > i) & (self.words[0] != 0), pass_over)
        self.isa.loop_while(self.words, one, lambda: self._turns(team, teams))

    return each_in_turn


@pytest.mark.parametrize(
    ("name", "before", "between"),
    [
        ("right", lambda team, teams: team, lambda team, teams: teams - 1),
        ("one less first", lambda team, teams: 0, lambda team, teams: teams - 1),
        ("one more first", lambda team, teams: team + 1, lambda team, teams: teams - 1),
        ("one less between", lambda team, teams: team, lambda team, teams: teams - 2),
        ("one more between", lambda team, teams: team, lambda team, teams: teams),
        ("one less in one team", lambda team, teams: team, lambda team, teams: teams - 1 - team),
    ],
)
def test_a_team_that_passes_over_another_number_of_tiles_is_not_proved(monkeypatch, name, before, between):
    monkeypatch.setattr(FetchedTiles, "each_in_turn", turns(before, between))
    assert proof().closed == (name == "right")


def test_a_word_that_is_read_and_not_waited_for_is_not_proved(monkeypatch):
    def each_in_turn(self, team, teams, body, skip):
        def one():
            body(self._tile())
            self._next()
            self._next()

        self._next()
        self.isa.when(team > 0, self._next)
        self.isa.loop_while(self.words, one, lambda: self._turns(team, teams))

    monkeypatch.setattr(FetchedTiles, "each_in_turn", each_in_turn)
    assert not proof().closed, "it goes on beyond the last tile, and does not pass over slots"


def test_a_scheduler_that_fetches_one_tile_fewer_is_not_proved(monkeypatch):
    made = FetchedTiles.each

    def each(self, body):
        if not self.queue.leads:
            made(self, body)
            return
        self._next()
        self.isa.loop_while(self.words, lambda: self.isa.when(self.read[0] < 2, self._next), lambda: 0)

    monkeypatch.setattr(FetchedTiles, "each", each)
    assert not proof().closed


@pytest.mark.parametrize("fetched", sample([1, 3], 2, first=1))
def test_ping_pong_with_an_operand_is_proved(fetched):
    matrix = tp.epilogue.Epilogue(lambda acc, c: acc + c, operands={"c": tp.epilogue.Matrix()}, stages=1)
    found = prove(
        trace(S.PingPong((64, 64, 16), (1, 1), 3, tiles=tp.tiles.DynamicTiles(stages=fetched), epilogue=matrix))
    )
    assert found.closed, found.why
