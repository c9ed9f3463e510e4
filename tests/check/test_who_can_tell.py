"""The proof leaves out who knows what where that cannot matter, and takes first iterations for others: not where it does."""

from functools import cached_property

import numpy as np
import pytest

import tmapipe as tp
from tests.check.deciding import ByTurn, Tiles, entry, one_if, put, steps, take
from tests.oracle.result_forms import InPlace
from tmapipe.check.phases import Phase, knows
from tmapipe.isa import Kind, declared
from tmapipe.program import trace
from tmapipe.prove.joint import Search, are_apart, prove
from tmapipe.prove.places import Places
from tmapipe.prove.positions import everything
from tmapipe.prove.recurrence import Doing, RunState
from tmapipe.prove.shared import Shared
from tmapipe.prove.spread import Spread, Telling, Uses, Visits

S = tp.schedules


class Parts(S.ClusterSplitK):
    """A sum over four CTAs; *slip*: what one warp of one of them does."""

    load, math = S.ClusterSplitK.load, S.ClusterSplitK.math

    def __init__(self, slip=""):
        super().__init__(4, stages=3)
        self.slip = slip

    @load.jit
    def fill(self, k, tile):
        steps = self.tile_slots(k, tile)
        if self.slip == "a CTA leaves out its last step":
            steps = steps - one_if(k.isa.cta_rank == 3)
        for step in range(steps):
            with k.ring.produce() as slot:
                slot.a.load_from(tile.l, tile.m * 64, step * 64)
                slot.b.load_from(tile.l, tile.n // 4 * 64, step * 64)

    @math.jit
    def multiply(self, k, tile):
        k.total.start()
        with k.mma.accumulate(empty=False) as acc:
            for _ in range(self.tile_slots(k, tile)):
                with k.ring.consume() as slot:
                    acc.add(slot.a, slot.b)
                    if self.slip == "a warp arrives twice" and k.isa.warp == 6:
                        k.isa.mbarrier_arrive(k.plan.barrier("ring.free"), slot.index)
        if self.slip == "a warp arrives at its peers twice" and k.isa.warp + k.isa.cta_rank == 7:
            k.isa.mbarrier_arrive_cluster(k.plan.barrier("total.free"), 0, 15)
        if self.slip == "a warp waits for one step more" and k.isa.warp == 5:
            k.ring.wait()
        self.store_all(k, tile, (k.total.add(acc),))


def test_a_sum_over_ctas_is_proved():
    assert prove(trace(Parts())).closed


@pytest.mark.parametrize(
    "slip",
    [
        "a CTA leaves out its last step",
        "a warp arrives twice",
        "a warp arrives at its peers twice",
        "a warp waits for one step more",
    ],
)
def test_a_slip_of_one_warp_or_cta_is_not_closed(slip):
    assert not prove(trace(Parts(slip))).closed


def chain():
    """Warp 0 tells 1, and that one 2, by mbarriers of an own array each."""
    spread = Spread(Shared(trace(Parts())))
    first, second = list(spread.arrays.values())[:2]
    uses = [Uses(first), Uses(second, hears=first), Uses(hears=second)]
    return Telling(spread, (*uses, *[Uses()] * (spread.layout.agents - len(uses))))


@pytest.mark.parametrize(
    "knows, matter", [((), (True, True, True)), ((0,), (False, True, True)), ((1,), (False, False, True))]
)
def test_who_knows_is_of_no_matter_behind_one_that_knows(knows, matter):
    telling = chain()
    lacking, knowing = np.zeros((2, 1, telling.layout.agents), bool)
    lacking[0, 2], knowing[0, list(knows)] = True, True
    found = telling.matter([-1], lacking, knowing, [("warp", 0), ("warp", 1), ("warp", 2)])
    assert tuple(found[0]) == matter


class Flagged(ByTurn):
    """As many slots as the first turn, or all others, are given, told by a flag that the loop carries."""

    load, add = ByTurn.load, ByTurn.add

    @load.jit
    def fill(self, k, tile):
        put(k, tile)
        first = True
        for i in range(steps(k)):
            for _ in range(self.given(self, k, tile, i)):
                put(k, tile)
            if first:
                put(k, tile)
            first = False

    @add.jit
    def total(self, k, tile):
        values, first = take(k), True
        for i in range(steps(k)):
            if first:
                values = values + take(k)
            for _ in range(self.taken(self, k, tile, i)):
                values = values + take(k)
            first = False
        k.y.store(tile, values)


def after_the_first(s, k, tile, i):
    return one_if(i > 0)


FIRST = {
    "in the first turn": (lambda s, k, tile, i: one_if(i == 0), lambda s, k, tile, i: 0, ByTurn),
    "after the first turn": (after_the_first, lambda s, k, tile, i: 1, ByTurn),
    "a flag of the first turn": (lambda s, k, tile, i: 0, after_the_first, Flagged),
}


@pytest.mark.parametrize("name", FIRST)
def test_the_first_iteration_is_told_apart_where_a_body_does(name):
    right, wrong, kind = FIRST[name]
    assert prove(trace(kind(right))).closed
    assert not prove(trace(kind(right, wrong))).closed


class EverySecond(Tiles):
    """Takes a slot of another ring in each second turn, or one turn too early."""

    load, add = Tiles.load, Tiles.add
    side = tp.BarrierRing(stages=2, producer=load, consumer=add)
    w = tp.TmaLoadStage("l m k", tile=(4, 64), ring=side)

    def __init__(self, taken=1):
        super().__init__(lambda s, k, tile: 0)
        self.at = taken

    @load.jit
    def fill(self, k, tile):
        put(k, tile)
        turn = 0
        for _ in range(steps(k)):
            if turn == 1:
                with k.side.produce() as slot:
                    slot.w.load(tile, k=0)
            turn = turn ^ 1

    @add.jit
    def total(self, k, tile):
        values, turn = take(k), 0
        for _ in range(steps(k)):
            if turn == self.at:
                with k.side.consume() as slot:
                    values = values + slot.w.read()
            turn = turn ^ 1
        k.y.store(tile, values)


def test_operations_of_later_iterations_are_foreseen():
    assert prove(trace(EverySecond())).closed
    assert not prove(trace(EverySecond(0))).closed
    program = trace(EverySecond())
    shared = Shared(program)
    every, _ = everything(shared, Places(shared.layout, program.nodes).pinned)
    assert {"side.full", "side.free"} <= {array for _, _, array in every.touched}


def test_a_proof_without_foresight_stops(monkeypatch):
    monkeypatch.setattr("tmapipe.prove.positions._Everything._maybe", lambda self, nodes: None)
    proof = prove(trace(EverySecond()))
    assert not proof.closed and "foreseen" in proof.why


class InPairs(InPlace):
    """Two CTAs of a cluster, of which each loads what it stores."""

    def __init__(self):
        self.cluster = {"m": 2}


def test_ctas_that_do_nothing_to_each_other_are_shown_one_by_one():
    alike, by_rank = (
        trace(Tiles(lambda s, k, tile: 1, cluster=2)),
        trace(Tiles(lambda s, k, tile: k.isa.cta_rank, cluster=2)),
    )
    assert are_apart(alike) and are_apart(by_rank)
    assert prove(alike).closed and prove(by_rank).closed


def test_a_slip_in_the_second_cta_alone_is_seen():
    wrong = trace(Tiles(lambda s, k, tile: k.isa.cta_rank, lambda s, k, tile: 0, cluster=2))
    assert are_apart(wrong) and not prove(wrong).closed
    first, second = (Search(wrong, mixed=True, cta=cta).error() for cta in (0, 1))
    assert first is None and second is not None


def test_ctas_with_signals_or_tensors_in_common_are_not_apart():
    signalling = trace(Parts())
    assert not are_apart(signalling) and not are_apart(trace(InPairs()))
    assert "peers" in str(Search(signalling, mixed=True, cta=0).error()), "were it taken for one of these"


# ---- visits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [3, 12])
def test_the_number_of_slots_hardly_matters(slots):
    """Of two rings in step, whose slots of the last tiles are known in other ways than those of the same tile."""
    found = prove(trace(S.DequantGemm("int8", (16, 64, 32), (1, 1), slots)))
    assert found.closed and found.states < 12 + 2 * slots


def visits_of(schedule):
    search = Search(trace(schedule), mixed=True)
    assert search.error() is None
    return search.visits


def test_visits_are_found():
    visits = visits_of(Tiles(lambda s, k, tile: 1))
    assert {(agent, array) for agent, _, array in visits.keys} == {(0, "ring.free"), (1, "ring.full")}
    assert not visits.broken and visits.depth[0, "ring.free"] == 1


def test_what_is_not_as_said_counts_for_nothing():
    visits = visits_of(Tiles(lambda s, k, tile: 1))
    (load, add), phase = visits.keys, Phase(np.zeros(1))
    visits.watch(add, None, None)
    assert not visits.changed, "the first wait"
    visits.depth[1, "ring.full"] = 1
    visits.watch(add, 0, 1)
    assert visits.depth[1, "ring.full"] == 2 and not visits.broken
    visits.watch(load, None, 2)  # a wait for another slot than the next one
    visits.complete(0, 1, phase, {1: None})  # a phase to which nobody has contributed
    assert visits.changed and visits.broken == {(0, "ring.free"), (0, "ring.full", 0)}
    visits.complete(0, 1, phase, {})  # a phase before the last one has been seen
    assert (1, "ring.full") in visits.broken


class Relaxed(Tiles):
    """Holds each slot for two turns more. A turn may read its slot; another one gives the slot that is held longest back by a
    relaxed arrival, which says nothing of reads. Wrong only if that turn comes two after one that reads.
    """

    load, add = Tiles.load, tp.Role(warps=1)
    ring = tp.BarrierRing(stages=4, producer=load, consumer=add)
    x = tp.TmaLoadStage("l m k", tile=(4, 64), ring=ring)
    z = tp.TmaLoadStage("h j", tile=(4, 64), ring=ring)
    y = tp.TmaStoreStage("l m n", tile=(4, 64), role=add, stages=1)

    def __init__(self, slip: bool):
        super().__init__(lambda s, k, tile: steps(k) + 2)
        self.slip = slip

    @add.jit
    def total(self, k, tile):
        values = self.read(k, first := k.ring.wait())
        self.give(k, first, "cluster")
        older, held = k.ring.wait(), k.ring.wait()
        for i in range(steps(k)):
            slot = k.ring.wait()
            if entry(k, i) == 0:
                values = values + 1
            else:
                values = values + self.read(k, slot)
            if entry(k, steps(k) + i) == 5:
                self.give(k, older, "relaxed" if self.slip else "cluster")
            else:
                self.give(k, older, "cluster")
            older, held = held, slot
        self.give(k, older, "cluster")
        self.give(k, held, "cluster")
        k.y.store(tile, values)

    def read(self, k, slot):
        values = slot.x.read()
        k.isa.fence_proxy_async()
        k.isa.warp_sync()
        return values

    def give(self, k, slot, scope):
        k.isa.mbarrier_arrive_cluster(k.plan.barrier("ring.free"), slot.index, 1, scope=scope)


def test_a_slip_that_only_the_watched_contributions_show(monkeypatch):
    """The mutant of the proof that takes each phase to have the contributions of all warps calls it safe."""
    assert prove(trace(Relaxed(slip=False))).closed
    assert not prove(trace(Relaxed(slip=True))).closed
    monkeypatch.setattr(Visits, "complete", lambda *_: None)
    assert prove(trace(Relaxed(slip=True))).closed


# ---- turns -----------------------------------------------------------------------------------------------------------


def in_turns(turnstiles=2):
    search = Search(trace(S.PingPong((64, 64, 16), (1, 1), 2, in_turn=turnstiles == 2)), mixed=False)
    assert search.error() is None
    return search.visits


def test_turns_are_found():
    visits = in_turns()
    assert visits.turns.keys() == {"order.turn", "epilogue_order.turn"} and not visits.broken
    guards = dict.fromkeys(("ring.full", "slots of a", "slots of b"), "order.turn")
    assert visits.guards == {**guards, "slots of d": "epilogue_order.turn"}, "the last slot is left after the turn"
    assert {visits.layout.role(agent) for agent in visits.turns["order.turn"]} == {"math"}
    assert {first % 2 for first in visits.turns["order.turn"].values()} == {0, 1}
    assert "slots of d" not in in_turns(1).guards, "epilogues that overlap"


def test_what_a_team_does_outside_of_its_turn_counts_for_nothing():
    visits = in_turns()
    agent, first = next(iter(visits.turns["order.turn"].items()))
    (key, array, times) = visits.place(agent, "wait", "ring.full", 0)
    assert (key[2], array, times) == ("order.turn", "ring.full", {0}), "in its turn alone"
    visits.watch(key, array, 1)
    assert visits.changed and visits.broken == {("order.turn", "ring.full")}
    sort = next(key[1] for key in visits.keys if key[::2] == (agent, "order.turn"))
    (over, _, times), (wait, _, before) = visits.turn(agent, sort, "order.turn", first)
    assert times == {None, 1} and (first + 2) % 4 in before and first not in before, "each second phase"
    assert not visits.turn(agent, sort, "order.turn", first ^ 1)[1][2], "a wait for another team's mbarrier"
    visits.watch(over, None, 0)
    assert (agent, "order.turn") in visits.broken and over[::2] == wait[::2]


@pytest.mark.parametrize("kind", [S.PingPong, S.Gemm])
def test_whoever_is_going_to_know_a_fact_knows_it_in_time(monkeypatch, kind):
    """What `Visits.leave_out` says at each state is held against the operations that come then."""
    known, made, seen = RunState.known.func, Doing.__init__, [0, 0]

    def claims(self):
        future, agents, (knowers, clocks) = self.future, self.check.layout.agents, self.knowers
        facts = {key: ways for key, ways in self.facts.items() if key[0] == "slot" or key[2:3] in (("now",), ("done",))}
        every = np.array([[knows(clock, ways) for clock in clocks] for ways in facts.values()]).reshape(len(facts), -1)
        sets = np.array([future.checked_of[key] for key in facts], int)
        before = future.checked[sets] & ~every[:, :agents]
        left = before.copy()
        future.visits.leave_out(self, sets, every, knowers, left)
        of, keys = {}, list(facts)
        for row, agent in np.argwhere(before & ~left).tolist():
            of.setdefault((agent, *keys[row][:2]), []).append(facts[keys[row]])
            seen[0] += 1
        self.check.claims = of
        return known(self)

    def look(check, effect, step, facts):
        layout, op, cta = check.layout, step.op, check.layout.cta_of(step.agent)
        of = declared(type(op))
        for kind, each, here in (("slot", Kind.SLOT, layout.nslots), ("bar", Kind.BAR, layout.nbars)):
            for name in of.named(each) if not (of.named(Kind.PARITY) or of.named(Kind.MASK)) else ():
                place = step.agent, kind, cta * here + getattr(op, name)
                for ways in getattr(check, "claims", {}).get(place, ()):
                    assert knows(check.clocks.of[step.agent], ways)
                    seen[1] += 1

    def doing(self, agent, op, state):
        made(self, agent, op, state)
        self.rules = [(look, None), *self.rules]

    found = cached_property(claims)
    found.__set_name__(RunState, "known")
    monkeypatch.setattr(RunState, "known", found)
    monkeypatch.setattr(Doing, "__init__", doing)
    assert prove(trace(kind((64, 64, 16), (1, 1), 3))).closed and min(seen) > 0
