"""That all trip counts are safe is claimed only where it is so: bugs of one count, growing state, uneven tiles, none."""

import copy
import functools

import numpy as np
import pytest

import tmapipe as tp
from tests.oracle.mutations import Mutation
from tests.oracle.one_run import check_program
from tests.oracle.random_pipelines import draw
from tests.sweeps import ALL, sample
from tmapipe.check import Kind
from tmapipe.kernel import kernel_main
from tmapipe.program import replay, trace
from tmapipe.prove import joint, symbols
from tmapipe.prove.problem import Sizes

S = tp.schedules
EVERY = "every trip count"
STAGES = 3


class Tiles(tp.Schedule):
    """One slot a tile."""

    load, use = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(stages=STAGES, producer=load, consumer=use)
    x = tp.TmaLoadStage(tile=(8, 64), ring=ring)
    y = tp.TmaStoreStage(source=x)

    def __init__(self, at=0):
        self.at = at

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @use.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class KeepsOne(Tiles):
    """Does not release the slot of one tile."""

    @Tiles.use.jit
    def drain(self, k, tile):
        if tile.n == self.at:
            slot = k.ring.wait()
            slot.y.store(tile)
        else:
            with k.ring.consume() as slot:
                slot.y.store(tile)


class WrongInTheThirdLap(Tiles):
    """Waits once more, for the parity of lap 0, then of lap 1, and of lap 1 from then on."""

    @Tiles.use.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            k.isa.mbarrier_wait(k.plan.barrier("ring.full"), slot.index, 0 if tile.n < STAGES else 1)
            slot.y.store(tile)


class WrongInTheSecondLap(Tiles):
    """Waits once more, for the parity of lap 0. All tiles of a CTA lie along m."""

    relations = (tp.Dim("n", size=64),)

    @Tiles.use.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            k.isa.mbarrier_wait(k.plan.barrier("ring.full"), slot.index, 0)
            slot.y.store(tile)


class Grows(Tiles):
    """Commits an empty bulk group each time, and waits for none: not wrong, but no state is like another."""

    @Tiles.load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)
        k.isa.bulk_commit_group()


class Steps(tp.Schedule):
    """One slot a step along s, summed up."""

    load, add = tp.Role(warps=1), tp.Role(warps=4)
    ring = tp.BarrierRing(stages=STAGES, producer=load, consumer=add)
    x = tp.TmaLoadStage("s m n", tile=(4, 64), ring=ring)
    d = tp.TmaStoreStage("m n", tile=(4, 64), role=add, stages=1)

    def __init__(self, at=0):
        self.at = at

    def loaded(self, steps):
        return steps

    def added(self, steps):
        return steps

    @load.jit
    def fill(self, k, tile):
        for part in range(self.loaded(k.steps("x", "s"))):
            with k.ring.produce() as slot:
                slot.x.load(tile, s=part)

    @add.jit
    def total(self, k, tile):
        with k.ring.consume() as slot:
            total = slot.x.read()
        for _ in range(self.added(k.steps("x", "s")) - 1):
            with k.ring.consume() as slot:
                total = total + slot.x.read()
        k.d.store(tile, total)


class InPairs(Steps):
    """Two slots a segment, after one alone if the number of steps is odd. alone: how many then."""

    def alone(self, steps):
        return steps % 2

    @Steps.load.jit
    def fill(self, k, tile):
        steps = self.loaded(k.steps("x", "s"))
        for _ in range(self.alone(steps)):
            with k.ring.produce() as slot:
                slot.x.load(tile, s=0)
        for pair in range(steps // 2):
            first, second = k.ring.acquire(), k.ring.acquire()
            first.x.load(tile, s=steps % 2 + 2 * pair)
            second.x.load(tile, s=steps % 2 + 2 * pair + 1)
            k.ring.commit(first)
            k.ring.commit(second)


class PairsAlone(InPairs):
    def alone(self, steps):
        return 0


class OneAloneAlways(InPairs):
    def alone(self, steps):
        return 1


class PairsOneStepFewer(InPairs):
    def loaded(self, steps):
        return steps - 2 * (steps == self.at)


class GemmInPairs(S.Gemm):
    """As `InPairs`, with multicast."""

    load, math = S.Gemm.load, S.Gemm.math

    def load_some(self, k, tile, first, count):
        slots = [k.ring.acquire() for _ in range(count)]
        for i, slot in enumerate(slots):
            slot.a.load(tile, k=first + i)
            slot.b.load(tile, k=first + i)
        for slot in slots:
            k.ring.commit(slot)

    @load.jit
    def fill(self, k, tile):
        steps = self.tile_slots(k, tile)
        for _ in range(steps % 2):
            self.load_some(k, tile, 0, 1)
        for pair in range(steps // 2):
            self.load_some(k, tile, steps % 2 + 2 * pair, 2)


class OneStepFewer(Steps):
    def loaded(self, steps):
        return steps - (steps == self.at)


class AddsAFewAtMost(Steps):
    def added(self, steps):
        return min(steps, self.at)


class NeedsOneStep(S.SplitK):
    """Takes a slot before it looks how many there are: parts of a split k can have none."""

    load, math = S.SplitK.load, S.SplitK.math

    @math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            with k.ring.consume() as slot:
                acc.add(slot.a, slot.b)
            for _ in range(self.tile_slots(k, tile) - 1):
                with k.ring.consume() as slot:
                    acc.add(slot.a, slot.b)
        k.d.store(tile, acc, self.epilogue.function)


@pytest.mark.parametrize("make", [Tiles, Steps, InPairs, GemmInPairs], ids=lambda cls: cls.__name__)
def test_the_right_ones(make):
    report = make().check()
    assert report.ok and report.trips == EVERY, str(report)


@pytest.mark.parametrize("at", [0, 1, STAGES - 1, STAGES, STAGES + 1, 2 * STAGES + 1])
def test_a_bug_of_one_tile(at):
    report = KeepsOne(at).check()
    assert not report.ok and report.trips != EVERY


def test_a_bug_of_the_third_lap():
    report = WrongInTheThirdLap().check()
    assert Kind.DEADLOCK in report.kinds() and report.trips != EVERY


def test_a_bug_of_the_second_lap_where_the_last_dimension_is_fixed():
    report = WrongInTheSecondLap().check()
    assert not report.ok and report.trips != EVERY


@pytest.mark.parametrize("at", [1, STAGES - 1, STAGES, STAGES + 1, STAGES + 2, 2 * STAGES])
def test_a_bug_of_one_number_of_steps(at):
    report = OneStepFewer(at).check()
    assert not report.ok and report.trips != EVERY


@pytest.mark.parametrize("make", [PairsAlone, OneAloneAlways])
def test_a_bug_of_odd_or_even_numbers_of_steps(make):
    report = make().check()
    assert Kind.TRIP_COUNTS in report.kinds() and report.trips != EVERY


@pytest.mark.parametrize("at", sample([2, 3, STAGES + 1, 2 * STAGES, 2 * STAGES + 1, 2 * STAGES + 2], 4, first=1))
def test_a_bug_of_one_number_of_steps_in_pairs(at):
    report = PairsOneStepFewer(at).check()
    assert not report.ok and report.trips != EVERY


@pytest.mark.parametrize("at", [2, STAGES, STAGES + 1, 2 * STAGES + 1])
def test_roles_whose_trip_counts_differ_from_some_count_on(at):
    report = AddsAFewAtMost(at).check()
    assert not report.ok and report.trips != EVERY


class ArrivesTooOften(Steps):
    """Once more than counted, in every second tile."""

    @Steps.add.jit
    def total(self, k, tile):
        with k.ring.consume() as slot:
            total = slot.x.read()
        for _ in range(k.steps("x", "s") - 1):
            with k.ring.consume() as slot:
                total = total + slot.x.read()
        if tile.n % 2:
            k.isa.mbarrier_arrive(k.plan.barrier("ring.free"), 0)
        k.d.store(tile, total)


def test_what_stops_a_proof_is_reported_with_its_line():
    report = ArrivesTooOften().check()
    assert not report.ok and report.trips != EVERY
    assert any("test_trip_counts.py" in place for finding in report.errors for place in finding.where)


@functools.cache
def grown():
    """The report on `Grows`."""
    return Grows().check()


def test_state_that_grows_is_never_every():
    report = grown()
    assert report.ok and report.trips.startswith("up to")
    assert any("no state recurs" in run for run in report.runs)


def test_what_no_events_are_left_for_is_not_claimed(monkeypatch):
    everything = grown()
    monkeypatch.setattr("tmapipe.prove.MAX_EVENTS", 100)
    report = Grows().check()
    assert report.ok and report.trips.startswith("up to ") and report.trips != everything.trips


def test_iterations_that_never_come_show_nothing(monkeypatch):
    """If only forty tiles at once were gone through, a CTA that has fewer would come to the same loop again and again."""
    monkeypatch.setattr("tmapipe.prove.shared.Together.paces", lambda self, now, nodes, counts: [40] * len(nodes))
    proof = joint.prove(trace(Tiles()))
    assert not proof.closed and "several slots at a time, of which none fit" in proof.why


def test_tiles_of_different_steps():
    report = NeedsOneStep(3).check()
    assert Kind.DEADLOCK in report.kinds() and report.trips != EVERY


# ---- tiles of no steps ------------------------------------------------------------------------------------------------


def test_sums_of_nothing_never_reach_a_kernel():
    """The body adds up parts from the second one on: without parts it would not even begin."""
    assert S.AddParts(stages=2).check().trips == EVERY
    sums = S.AddParts()(np.zeros((0, 8, 256), np.float32))
    assert sums.shape == (8, 256) and not sums.any()


# ---- states -----------------------------------------------------------------------------------------------------------


def test_symbols_are_one_object_each_and_live_until_the_end_of_the_check():
    number = symbols.leaf("of the launch", "asked for by nobody")
    conditions = [symbols.is_0(number), symbols.at_least_0(number)]
    opposites = [symbols.negated(each) for each in conditions]
    assert [symbols.negated(each) for each in opposites] == conditions
    assert symbols.leaf("of the launch", "asked for by nobody") is number
    tp.schedules.Copy().check()
    assert not symbols.made


def states(schedule, monkeypatch):
    """Where states are compared: (location, state), in the order of the proof."""
    found = []
    to_go_on = joint.Search.to_go_on

    def noted(self, now, state):
        to = to_go_on(self, now, state)
        found.append((now.key, state))
        return to

    monkeypatch.setattr(joint.Search, "to_go_on", noted)
    monkeypatch.setattr(joint.Search, "forget", lambda self: None)  # states refer to what it would clear
    assert joint.prove(trace(schedule)).closed
    return found


@pytest.fixture
def run_state(monkeypatch):
    """The last one of `Steps`, whose rings are used."""
    return states(Steps(), monkeypatch)[-1][1]


@pytest.mark.parametrize("make", [Steps, lambda: S.Gemm((128, 128, 64), (2, 1), 3)], ids=["steps", "gemm"])
def test_a_fresh_ring_is_covered_by_a_used_one_and_not_the_other_way_round(make, monkeypatch):
    found = states(make(), monkeypatch)
    pairs = [(a, b) for i, (at, a) in enumerate(found) for other, b in found[i + 1 :] if at == other]
    assert any(a.covered_by(b) and not b.covered_by(a) for a, b in pairs)
    assert all(state.covered_by(state) for _, state in found)


def forgetful(run_state):
    """By warp and fact that it knows and can be checked against: the state where it does not know it."""
    future = run_state.future
    clocks = np.stack(run_state.check.clocks.of)
    for key, known in run_state.facts.items():
        who = future.checked_of[key]
        by = np.any([clocks[:, entry] >= least for entry, least in known], axis=0) if known else np.array(False)
        needed = np.flatnonzero(by & future.checked[who])
        for q in needed if not future.as_one[who] or len(needed) == 1 else ():
            forgets = again(run_state)
            for entry, least in known:
                forgets.check.clocks.of[q][entry] = min(forgets.check.clocks.of[q][entry], least - 1)
            yield q, key, forgets


def test_knowing_less_is_not_covered(run_state, monkeypatch):
    """Whatever a warp does not know any more, of what it knew and can be checked against: no cover."""
    monkeypatch.setattr(run_state.future.visits, "keys", [])  # nobody is going to know more
    found = list(forgetful(run_state))
    assert len({q for q, _, _ in found}) > 1
    for _, _, forgets in found:
        assert not forgets.covered_by(again(run_state))
        assert again(run_state).covered_by(forgets)


def test_knowing_less_is_covered_only_of_slots_that_are_visited_again(run_state):
    visits, layout = run_state.future.visits, run_state.check.layout
    covered = [(q, key) for q, key, forgets in forgetful(run_state) if forgets.covered_by(run_state)]
    assert covered and len(covered) < len(list(forgetful(run_state)))
    for q, (kind, place, *_) in covered:
        places = layout.slot_places if kind == "slot" else layout.bar_places
        array, stage, stages = places[place % len(places)]
        key = visits.keys[visits.visit[q, array]]
        assert (run_state.positions.at[key] - stage) % stages >= visits.depth[q, key[2]], "it has left the slot"


@pytest.mark.parametrize("name", ["count", "pending", "tx", "phase"])
def test_other_numbers_are_not_covered(name, run_state):
    for bar in range(len(run_state.state.count)):
        other = type(run_state)(
            run_state.state.copy(), run_state.check.copy(), run_state.positions.copy(), run_state.future
        )
        getattr(other.state, name)[bar] += 1
        assert not other.covered_by(run_state)


def again(run_state):
    """The same state, to change."""
    return type(run_state)(run_state.state.copy(), run_state.check.copy(), run_state.positions.copy(), run_state.future)


def test_parts_that_copies_have_begun_count(run_state):
    """What comes after the copies to its last part is not held against what was accessed before."""
    begun = again(run_state)
    begun.check.slots.covering[0] = {("shares", 0, 2)}
    assert again(run_state).covered_by(run_state)
    assert not begun.covered_by(run_state) and not run_state.covered_by(begun)


def test_parts_that_threads_have_written_count(run_state):
    """A slot of which a part is still to be written must not be read."""
    short = again(run_state)
    short.check.contents.note(0, {1: frozenset()})
    assert not short.covered_by(run_state)


def test_the_use_of_a_barrier_before_the_present_one_counts(run_state):
    """Whoever comes late to a named barrier must know that its last use is over."""
    known, unknown = again(run_state), again(run_state)
    for state, time in ((known, 0), (unknown, 10_000)):
        barriers = state.check.barriers
        which, number = max(barriers.generations)
        for at in (number - 1, number):  # what is complete is shared by copies
            barriers.generations[which, at] = copy.copy(barriers.generations[which, at])
        barriers.generations[which, number - 1].by = {**barriers.generations[which, number - 1].by, 1: time}
        barriers.generations[which, number].complete = False
    assert known.covered_by(unknown) and not unknown.covered_by(known)


# ---- beside single long runs ------------------------------------------------------------------------------------------

MUTATIONS = [
    Mutation("drop", "mbarrier_wait", "ring.free"),
    Mutation("flip parity", "mbarrier_wait", "ring.full"),
    Mutation("shift count", "mbarrier_init", "ring.free", 1),
    Mutation("double", "mbarrier_arrive", "ring.free"),
    Mutation("drop", "warp_sync"),
    Mutation("drop", "fence_proxy_async"),
    Mutation("drop", "wgmma_wait"),
    Mutation("drop", "bulk_wait_group"),
]


def _mutated(mutation, isa, schedule):
    kernel_main(mutation.on(isa), schedule)


def mutants(schedule, plan, monkeypatch):
    """(mutation, its program, whether a set is closed)."""
    for mutation in sample(MUTATIONS, 2):
        with monkeypatch.context() as patch:
            patch.setattr("tmapipe.program.kernel_main", functools.partial(_mutated, mutation))
            program = trace(schedule, plan)
        yield mutation, program, joint.prove(program).closed


@pytest.mark.parametrize(
    "make", [InPairs, *ALL * [lambda: GemmInPairs((64, 64, 16), (2, 1), 3)]], ids=["steps", *ALL * ["gemm, multicast"]]
)
def test_what_is_closed_in_pairs_goes_well_in_long_runs(make, monkeypatch):
    """Mutants of loops of two steps an iteration, beside runs of even and odd numbers of steps."""
    schedule = make()
    plan, open_sets = schedule.plan(), 0
    sizes = Sizes(schedule, plan)
    for mutation, program, closed in mutants(schedule, plan, monkeypatch):
        for tiles, steps in ((4, 12), (4, 13)) if closed else ():
            entry = functools.partial(replay, program)
            assert check_program(plan, entry, sizes.shapes(tiles, steps)).ok, f"{mutation}, {steps} steps"
        open_sets += not closed
    assert open_sets > 0


@pytest.mark.parametrize("seed", sample(range(6), 3, first=1))
def test_what_is_closed_goes_well_in_a_long_run(seed, monkeypatch):
    """Mutants of random pipelines: the closed set and one run of many laps must not contradict each other."""
    pipeline = draw(seed, "small")
    plan, shapes = pipeline.schedule.plan(pipeline.dtypes), draw(seed, "laps").plan_shapes()
    open_sets = 0
    for mutation, program, closed in mutants(pipeline.schedule, plan, monkeypatch):
        entry = functools.partial(replay, program)
        assert not closed or check_program(plan, entry, shapes).ok, f"{pipeline.text}: {mutation}"
        open_sets += not closed
    assert open_sets
