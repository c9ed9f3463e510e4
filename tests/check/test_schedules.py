"""Shipped schedules are safe for every trip count, and quickly shown to be; broken ones are reported with their line."""

import time

import pytest

import tmapipe as tp
from tests.check.five_roles import FiveRoles, FiveRolesOneSilent
from tests.oracle.one_run import check_program
from tests.oracle.registry import REGISTRY
from tests.sweeps import ALL, sample
from tmapipe.check import Kind
from tmapipe.kernel import kernel_main
from tmapipe.prove import require_safe
from tmapipe.testing import assert_safe

S = tp.schedules

SHIPPED = {registered.name: registered.make for registered in REGISTRY}
FORMS = {
    "copy, stores waited for at once": lambda: S.Copy((4, 64), 4, 0),
    "gemm 1x1": lambda: S.Gemm((128, 128, 64), (1, 1), 4),
    "gemm 1x2": lambda: S.Gemm((128, 128, 64), (1, 2), 2),
    "gemm 4x1": lambda: S.Gemm((128, 128, 64), (4, 1), 3),
    "gemm, an odd number of pieces": lambda: S.Gemm((128, 192, 64), (2, 1)),
    "gemm, sums promoted": lambda: S.Gemm((128, 128, 64), (2, 1), mainloop=tp.mainloop.Cooperative(promote=True)),
    "ping-pong, sums promoted": lambda: S.PingPong((64, 128, 64), (1, 2), 3, promote=True),
    "gemm, three warpgroups, two instructions": lambda: S.Gemm(
        (192, 256, 64), (1, 2), epilogue=tp.epilogue.Epilogue(stages=1)
    ),
    "gemm, hilbert, a along m and b along n": lambda: S.Gemm(
        (128, 128, 64),
        (2, 2),
        3,
        a=tp.Operand("m"),
        b=tp.Operand("n"),
        tiles=tp.tiles.PersistentTiles(tp.tiles.Hilbert(4)),
    ),
    "gemm, snake, tf32": lambda: S.Gemm(
        *((128, 128, 32), (1, 2), 3),
        a=tp.Operand(dtype="tf32"),
        b=tp.Operand(dtype="tf32"),
        tiles=tp.tiles.PersistentTiles(tp.tiles.Snake(4)),
    ),
    "gemm, dynamic": lambda: S.Gemm(stages=3, tiles=tp.tiles.DynamicTiles()),
    "gemm 2x2, dynamic, three fetched ahead": lambda: S.Gemm(
        (64, 64, 64), (2, 2), 2, tiles=tp.tiles.DynamicTiles(stages=3)
    ),
    "gemm, parts of k by GPC": lambda: S.Gemm(
        (128, 64, 64), (1, 2), 3, tiles=tp.tiles.SplitKTiles(3, tp.tiles.GpcTiles())
    ),
    "gemm by GPC, 1x2": lambda: S.Gemm(cluster=(1, 2), stages=3, tiles=tp.tiles.GpcTiles()),
    "ping-pong 1x2 by GPC with a matrix": lambda: S.PingPong(
        cluster=(1, 2),
        stages=3,
        tiles=tp.tiles.GpcTiles(),
        epilogue=tp.epilogue.Epilogue(lambda acc, c: acc + c, operands={"c": tp.epilogue.Matrix()}),
    ),
    "ping-pong, dynamic": lambda: S.PingPong(stages=3, tiles=tp.tiles.DynamicTiles()),
    "ping-pong, an odd number of pieces": lambda: S.PingPong((64, 192, 64), stages=3),
    "ping-pong, epilogues that may overlap": lambda: S.PingPong((128, 128, 64), stages=3, in_turn=False),
    "ping-pong 2x2": lambda: S.PingPong((64, 128, 64), (2, 2), 3),
}

if not ALL:  # with fewer slots, and of fewer CTAs, than as they are shipped
    SHIPPED |= {
        "ClusterSplitK": lambda: S.ClusterSplitK(4, stages=3),
        "GroupedGemm": lambda: S.GroupedGemm(stages=2),
        "PingPong": lambda: S.PingPong(stages=3),
    }


@pytest.mark.parametrize("name", [*SHIPPED, *sample(FORMS, 18, first=6)])
def test_shipped_schedules_are_safe_for_every_trip_count(name):
    report = assert_safe((SHIPPED | FORMS)[name](), notes=False)
    assert report.trips == "every trip count"


@pytest.mark.parametrize(
    "make",
    [
        lambda: S.StreamK(66, (128, 64, 64), reduce="add"),
        *ALL
        * [
            lambda: S.SplitK(3, (128, 64, 64), stages=3, tiles=tp.tiles.DynamicTiles()),
            lambda: S.SplitK(3, reduce="add"),
            lambda: S.StreamK(5, (128, 128, 64), (2, 2), 3),
        ],
    ],
)
def test_parts_of_k_are_safe(make):
    """Tiles of different numbers of steps, and of none."""
    assert assert_safe(make(), notes=False).trips == "every trip count"


def sixteen_tiles(schedule):
    """One run of 16 tiles, by one cluster."""
    shapes = {"x": (8, 64 * 16), "y": (8, 64 * 16)}
    return check_program(schedule.plan(), lambda isa: kernel_main(isa, schedule), shapes)


def test_a_chain_of_five_roles():
    assert assert_safe(FiveRoles()).trips == "every trip count"
    assert sixteen_tiles(FiveRoles()).ok, "16 tiles in a ring of 3"


def test_a_chain_of_five_roles_one_of_which_does_not_hand_on():
    report = FiveRolesOneSilent().check()
    assert Kind.DEADLOCK in report.kinds() and report.trips != "every trip count"
    assert Kind.DEADLOCK in sixteen_tiles(FiveRolesOneSilent()).kinds()
    assert any("five_roles.py" in place for finding in report.errors for place in finding.where)


class CopyWithHelper(S.Copy):
    """The body's deed depends on a helper method, a dictionary and a function that it encloses."""

    load, store = S.Copy.load, S.Copy.store

    def __init__(self, releases=True, by=None):
        super().__init__((4, 128), 5)
        self.options, self.by = {"releases": releases}, by

    def keeps(self):
        return not self.options["releases"]

    @store.jit
    def drain(self, k, tile):
        slot = k.ring.wait()
        slot.y.store(tile)
        if not (self.keeps() or (self.by is not None and self.by())):
            k.ring.release(slot)


class CopyThatKeeps(CopyWithHelper):
    load, store = S.Copy.load, S.Copy.store

    def keeps(self):
        return True


def test_the_gate_takes_no_schedule_for_another_that_looks_alike():
    assert require_safe(CopyWithHelper()).ok
    assert require_safe(CopyWithHelper(by=lambda: False)).ok
    alike = type("CopyWithHelper", (CopyThatKeeps,), {"__qualname__": CopyWithHelper.__qualname__})
    for bad in (CopyWithHelper(releases=False), CopyWithHelper(by=lambda: True), alike()):
        with pytest.raises(tp.UnsafeError):
            require_safe(bad)


def test_the_gate_can_be_switched_off(monkeypatch):
    bad = NoRelease()
    with pytest.raises(tp.UnsafeError, match=r"test_schedules\.py:\d+"):
        require_safe(bad)
    monkeypatch.setenv("TMAPIPE_CHECK", "0")
    assert require_safe(bad) is None
    monkeypatch.delenv("TMAPIPE_CHECK")
    bad.checked = False
    assert require_safe(bad) is None


# ---- examples/stream_copy.py, broken in five ways ----------------------------------------------------------------------


class Base(tp.Schedule):
    load, store = tp.Role(warps=1), tp.Role(warps=1)
    ring = tp.BarrierRing(stages=4, producer=load, consumer=store)
    x = tp.TmaLoadStage(tile=(64, 128), ring=ring)
    y = tp.TmaStoreStage(source=x)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)


class NoRelease(Base):
    @Base.store.jit
    def drain(self, k, tile):
        slot = k.ring.wait()
        slot.y.store(tile)


class NoLoad(Base):
    @Base.load.jit
    def fill(self, k, tile):
        with k.ring.produce():
            pass


class LoadedTwice(Base):
    @Base.load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)
            slot.x.load(tile)


class SurplusArrival(Base):
    @Base.store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.store(tile)
            k.isa.mbarrier_arrive(k.plan.barrier("ring.free"), slot.index)


class UnevenTurns(Base):
    @Base.load.jit
    def fill(self, k, tile):
        for _ in range(2):
            with k.ring.produce() as slot:
                slot.x.load(tile)


BROKEN = {
    NoRelease: ({Kind.DEADLOCK, Kind.IN_FLIGHT_AT_EXIT}, "drain"),
    NoLoad: ({Kind.DEADLOCK}, "drain"),
    LoadedTwice: ({Kind.TX_MISMATCH, Kind.RACE}, "fill"),
    SurplusArrival: ({Kind.EARLY_ARRIVAL, Kind.SURPLUS_ARRIVAL, Kind.STORE_SOURCE_REUSED}, "drain"),
    UnevenTurns: ({Kind.DEADLOCK, Kind.IN_FLIGHT_AT_EXIT}, "fill"),
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda cls: cls.__name__)
def test_reports_lead_to_the_line(broken):
    wanted, body = BROKEN[broken]
    report = broken().check()
    assert report.kinds() & wanted, str(report)
    lines = range(*_span(getattr(broken, body)))
    places = [place for finding in report.errors for place in finding.where]
    assert any(
        place.split(":")[0].endswith("test_schedules.py") and int(place.split(":")[1]) in lines for place in places
    ), str(report)


def _span(function) -> tuple[int, int]:
    first = function.__code__.co_firstlineno
    return first, first + 12


def test_time_is_that_of_a_glance():
    """At production size. Not a timed test: a guard against an explosion, with room of a factor of ten."""
    started = time.process_time()
    assert assert_safe(S.Gemm((128, 128, 64), (2, 2), 5)).trips == "every trip count"
    assert time.process_time() - started < 10
