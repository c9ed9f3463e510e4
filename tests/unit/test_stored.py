"""StoredStage: results that the same kernel loads again."""

import numpy as np
import pytest

import tmapipe as tp
from tests.matmul_schedules import OneRing
from tests.oracle.result_forms import Centered, Chained, InPlace, Overlapped, TwoStages
from tests.unit.errors import refused
from tmapipe.check import Kind


@pytest.mark.parametrize("shape", [(1, 64), (10, 200), (23, 96)])
def test_results_come_back(shape):
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float16)
    for seed in range(3):
        y, z = np.empty(shape, np.float32), np.empty_like(x)
        Centered().simulate(x, y, z, seed=seed, clusters=2)
        assert (y == 2 * x).all() and (z == y - y.sum(1, keepdims=True)).all()
    y, z = Chained()(x)
    assert (y == x).all() and (z == x).all()


def test_tensors_are_those_of_the_call():
    plan = Chained().plan({"x": "fp16"})
    assert plan.arguments == ("x", "y", "z") and plan.load("w").argument == "y"
    assert plan.load("w").buffer.dtype.name == plan.store("z").buffer.dtype.name == "fp16"
    assert "of_result(TmaStoreStage(" in repr(Chained.w) and repr(Chained.written).startswith("StoredStage(")
    assert Chained() == Chained()


def test_proved():
    report = Chained().check()
    assert report.ok and not report.findings and report.trips == "every trip count"
    report = Centered().check()  # in two passes, the second of which has a loader of its own
    assert report.ok and not report.findings and report.trips == "every trip count"


class LateStores(Centered):
    """Of more than 12 steps, the last ones are not published."""

    load, work, again = Centered.load, Centered.work, Centered.again

    @work.jit
    def center(self, k, tile):
        total = k.full("w", 0.0, "rows")
        with k.done.produce() as done:
            for step in range(k.steps("x", "n")):
                with k.ring.consume() as slot:
                    values = slot.x.read() * 2
                total = total + tp.math.row_sum(values)
                k.y.store(tile.also(n=step), values)
                if step == 11:
                    done.written.publish()
            if k.steps("x", "n") <= 12:
                done.written.publish()
        for step in range(k.steps("x", "n")):
            with k.back.consume() as slot:
                rest = slot.w.read() - total
            k.z.store(tile.also(n=step), rest)


def test_what_no_small_problem_shows():
    """It takes thirteen steps, which the conditions of the body say."""
    report = LateStores().check()
    assert report.kinds() == {Kind.RESULT_TOO_EARLY} and "before that is known to be written" in report.runs[0]
    assert report.problem.shapes["x"][1] > 12 * 64


class Unpublished(Chained):
    """Nobody waits until the tile is written."""

    load, store, again = Chained.load, Chained.store, Chained.again

    @store.jit
    def drain(self, k, tile):
        with k.done.produce(), k.ring.consume() as slot:
            slot.y.store(tile)
        with k.back.consume() as slot:
            slot.z.store(tile)


class StoredTwice(Overlapped):
    """The tile is stored once more while it may be on its way back."""

    load, store, again, last = Overlapped.load, Overlapped.store, Overlapped.again, Overlapped.last

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            with k.done.produce() as done:
                slot.y.store(tile)
                done.written.publish()
            slot.y.store(tile)


class InSteps(Overlapped):
    """Steps of one output tile, each of which is stored while the one before is loaded. wrong: the same place each time."""

    over = "m"
    load, store, again, last = Overlapped.load, Overlapped.store, Overlapped.again, Overlapped.last
    wrong = False

    @load.jit
    def fill(self, k, tile):
        for step in range(k.steps("x", "n")):
            with k.ring.produce() as slot:
                slot.x.load(tile, n=step)

    @store.jit
    def drain(self, k, tile):
        for step in range(k.steps("x", "n")):
            with k.done.produce() as done:
                with k.ring.consume() as slot:
                    slot.y.store(tile, n=0 if self.wrong else step)
                done.written.publish()

    @again.jit
    def fetch(self, k, tile):
        for step in range(k.steps("x", "n")):
            with k.done.consume(), k.back.produce() as slot:
                slot.w.load(tile, n=0 if self.wrong else step)

    @last.jit
    def pass_on(self, k, tile):
        for step in range(k.steps("x", "n")):
            with k.back.consume() as slot:
                slot.z.store(tile, n=step)


def assert_races(report):
    """Of a load and a store: which of them comes too early depends on the run that is watched."""
    assert not report.ok and report.kinds() <= {Kind.RACE, Kind.RESULT_TOO_EARLY}


def test_what_is_missing_is_found():
    assert Kind.RESULT_TOO_EARLY in Unpublished().check().kinds()
    assert_races(StoredTwice().check())


def test_the_next_tile_is_stored_meanwhile():
    report = Overlapped().check()
    assert report.ok and not report.findings and report.trips == "every trip count"
    x = np.random.default_rng(0).integers(-9, 9, (70, 200)).astype(np.float16)
    for seed in range(3):
        y, z = np.empty_like(x), np.empty_like(x)
        Overlapped().simulate(x, y, z, seed=seed, clusters=2)
        assert (y == x).all() and (z == x).all()


def test_steps_of_a_tile_are_told_apart_in_problems_alone():
    """A proof has no coordinates: a tensor is one place."""
    report = InSteps().check()
    assert report.ok and report.trips.startswith("up to")
    wrong = InSteps()
    wrong.wrong = True
    assert_races(wrong.check())


def test_two_output_tiles_do_not_share_a_result():
    schedule = Chained()
    schedule.over = "s m n"
    schedule.x = tp.TmaLoadStage("s m n", tile=(8, 64), ring=schedule.ring)
    schedule.y = tp.TmaStoreStage("m n", source=schedule.x)
    schedule.written = tp.StoredStage(schedule.y, ring=schedule.done)
    schedule.w = tp.TmaLoadStage("m n", tile=(8, 64), ring=schedule.back).of_result(schedule.y)
    schedule.z = tp.TmaStoreStage("m n", source=schedule.w)
    refused(schedule.check, argument="w.of_result", rule="all dimensions of the grid")


def test_a_fence_is_needed(monkeypatch):
    monkeypatch.setattr("tmapipe.model.MachineIsa.fence_proxy_async_global", lambda isa: None)
    assert Kind.PROXY in Chained().check().kinds()


class Elsewhere(Chained):
    load, store, again = Chained.load, Chained.store, Chained.again

    def __init__(self, how):
        self.how = how

    @again.jit
    def fetch(self, k, tile):
        with k.done.consume(), k.back.produce() as slot:
            if self.how == "another":
                slot.w.load(tile, m=tile.m + 1)
            elif self.how == "also":
                slot.w.load(tile.also(m=tile.m + 1))
            elif self.how == "none":
                slot.w.load(m=tile.m, n=tile.n)
            else:
                slot.w.load_from(0, 0)


@pytest.mark.parametrize("how", ["another", "also", "none", "from"])
def test_only_own_tiles_are_loaded(how):
    refused(Elsewhere(how).check, argument="slot.w.load", rule="at the coordinates of its output tile")


class StoredElsewhere(Chained):
    load, store, again = Chained.load, Chained.store, Chained.again

    @store.jit
    def drain(self, k, tile):
        with k.done.produce() as done:
            with k.ring.consume() as slot:
                slot.y.store_from(0, 0)
            done.written.publish()
        with k.back.consume() as slot:
            slot.z.store(tile)


def test_only_own_tiles_are_stored():
    refused(StoredElsewhere().check, argument="slot.y.store", rule="at the coordinates of its output tile")


def test_refused():
    ring, other = Chained.done, tp.BarrierRing(1, producer=Chained.again, consumer=Chained.store)
    refused(tp.StoredStage, Chained.x, ring=ring, argument="StoredStage(store)", rule="stores tiles")
    refused(tp.StoredStage, Chained.y, ring="done", argument="StoredStage(ring)", rule="slots follow the tiles")
    refused(tp.StoredStage, Chained.y, ring=other, argument="StoredStage(ring)", rule="the role that stores")
    load, added = (
        tp.TmaLoadStage("m n", tile=(8, 64), ring=Chained.back),
        tp.TmaStoreStage(source=Chained.x, reduce="add"),
    )
    for w in (
        tp.TmaLoadStage("m n", tile=(4, 64), ring=Chained.back).of_result(Chained.y),
        tp.TmaLoadStage("m k", tile=(8, 64), ring=Chained.back).of_result(Chained.y),
        load.nan_outside().of_result(Chained.y),
    ):
        schedule = Chained()
        schedule.w = w
        schedule.z = tp.TmaStoreStage("m n", source=w)
        refused(schedule.plan, argument="w.of_result", rule="in the same tiles")
    schedule = Chained()
    schedule.y = added
    refused(schedule.plan, argument="w.of_result", rule="not reduced")


class Told(Chained):
    load, store, again = Chained.load, Chained.store, Chained.again

    @again.jit
    def fetch(self, k, tile):
        with k.done.consume() as done, k.back.produce() as slot:
            done.written.publish()
            slot.w.load(tile)


def test_only_the_producer_publishes():
    with pytest.raises(tp.errors.ScopeError, match="Only the ring's producer"):
        Told().check()


class AfterMatmul(OneRing):
    """d = a b^T, and e = 2 d."""

    load, math, again, last = OneRing.load, OneRing.math, tp.Role(warps=1), tp.Role(warps=1)
    mma = tp.Wgmma(OneRing.a, OneRing.b, in_flight=0)
    d = tp.TmaStoreStage("m n", source=mma)
    done = tp.BarrierRing(1, producer=math, consumer=(again, last))
    written = tp.StoredStage(d, ring=done)
    back = tp.BarrierRing(2, producer=again, consumer=last)
    w = tp.TmaLoadStage("m n", tile=(64, 64), ring=back).of_result(d)
    e = tp.TmaStoreStage("m n", tile=(64, 64), role=last)

    def store(self, k, tile, acc):
        with k.done.produce() as done:
            k.d.store(tile, acc)
            done.written.publish()

    @again.jit
    def fetch(self, k, tile):
        with k.done.consume(), k.back.produce() as slot:
            slot.w.load(tile)

    @last.jit
    def double(self, k, tile):
        with k.done.consume(), k.back.consume() as slot:
            values = slot.w.read() * 2
        k.e.store(tile, values)


def test_sums_come_back():
    a, b = (
        np.random.default_rng(i).integers(-2, 3, (rows, 128)).astype(np.float16) for i, rows in enumerate((100, 72))
    )
    d, e = AfterMatmul()(a, b)
    assert (d == a @ b.T).all() and (e == 2 * d).all()
    report = AfterMatmul().check()
    assert report.ok and not report.findings and report.trips == "every trip count"


def test_an_output_may_be_its_input():
    assert InPlace().check().trips == "every trip count"
    x = np.random.default_rng(0).standard_normal((10, 200)).astype(np.float32)
    expected = np.maximum(x, 0)
    assert InPlace()(x, out=x) is x and (x == expected).all()
    assert (InPlace()(expected, out=x) == expected).all()
    refused(InPlace(), x[:9], out=x[1:], argument="y", rule="must not overlap that of x")
    refused(InPlace(), x[:5], out=x[:5, :196], argument="y", rule="")


class Early(InPlace):
    """Stores before its load has ended, as how says."""

    load, work = InPlace.load, InPlace.work

    def __init__(self, how="before"):
        self.how = how

    @work.jit
    def compute(self, k, tile):
        if self.how == "before":
            k.y.store(tile, k.full("y", 1.0))
        with k.ring.consume() as slot:
            values = slot.x.read()
        if self.how == "elsewhere":
            k.y.store(tile.also(m=tile.m + 1), values)


def test_an_output_over_its_input_is_stored_after_its_load():
    report = Early().check()
    assert report.kinds() == {Kind.RACE} and "while a load of it may be on its way" in str(report)
    refused(Early("elsewhere").check, argument="y.store", rule="at the coordinates of its output tile")


def test_only_tiles_that_are_loaded_are_stored_in_place():
    def made(y, **parts):
        schedule = InPlace()
        schedule.__dict__.update(parts, y=y)
        return schedule

    x, work = InPlace.x, InPlace.work
    wide = tp.TmaStoreStage("m n", tile=(8, 64), role=work).in_place(x)
    added = tp.TmaStoreStage("m n", tile=(4, 64), role=work, reduce="add", dtype="fp32").in_place(x)
    for y in (wide, added):
        refused(made(y).plan, {"x": "fp32"}, argument="y.in_place", rule="same dims and tile")
    other = tp.TmaLoadStage("s n", tile=(4, 64), ring=InPlace.ring)
    refused(made(InPlace.y, over="s m n", z=other).check, argument="y.in_place", rule="all dimensions of the grid")
    refused(InPlace.y.in_place, argument="in_place", rule="names one or more stages")


def test_one_tensor_for_two_stages():
    schedule, x = TwoStages(), np.random.default_rng(0).integers(-9, 9, (10, 200)).astype(np.float32)
    assert schedule.plan().arguments == ("x", "y") and schedule.check().trips == "every trip count"
    assert schedule.plan({"x": "fp16"}).load("first").buffer.dtype.name == "fp16"
    assert (schedule(x) == x - x[:, :1]).all()
    assert "of_input(TmaLoadStage(" in repr(TwoStages.first)
    schedule.y = TwoStages.y.in_place(TwoStages.x)  # the first tile of a row, which others load
    refused(schedule.check, argument="first.load", rule="at the coordinates of its output tile")
    refused(
        TwoStages.x.of_input, tp.TmaLoadStage("m k", tile=(4, 64), ring=TwoStages.ring), argument="of_input", rule=""
    )
    refused(TwoStages.x.of_input, TwoStages.first, argument="of_input", rule="a tensor of its own")
    other = TwoStages()
    other.first = tp.TmaLoadStage("m n", tile=(4, 16), ring=TwoStages.ring, dtype="fp32").of_input(TwoStages.x)
    refused(other.plan, {"x": "fp16"}, argument="first.dtype", rule="loads the same tensor")
