"""Raw CuTe DSL in a role: run on the model by its counterpart, checked by its declared effects."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tmapipe as tp
from tests.check.corpus.parts import HandRing, Parts, fill_all, program
from tests.machine.slots import write_slot
from tests.oracle.explore import explore_program
from tests.oracle.one_run import check_program
from tests.raw_rows import Doubled, double_on_cpu, double_on_gpu
from tests.sweeps import examples
from tmapipe.check import Kind
from tmapipe.check.deadlocks import check_operations
from tmapipe.isa.barriers import FenceProxyAsync
from tmapipe.model import Layout
from tmapipe.plan.thread_layout import vectors_of
from tmapipe.program import trace
from tmapipe.prove.problem import Problem, operations_of
from tmapipe.testing import assert_safe


def with_work(body):
    """`Doubled`, with another body for the role in the middle."""

    class Made(Doubled):
        load, work, store = Doubled.load, Doubled.work, Doubled.store

        @work.jit
        def double(self, k, tile):
            body(k, tile)

    return Made()


def test_the_model_runs_the_counterpart():
    x = np.random.default_rng(0).standard_normal((150, 200)).astype(np.float16)
    assert (Doubled()(x) == 2 * x).all()


def test_declared_effects_are_safe():
    assert_safe(Doubled(), {"x": "fp16"}, notes=False)


def test_the_check_needs_no_counterpart_but_the_model_does():
    opaque = with_work(lambda k, tile: _raw(k, None))
    assert opaque.check().ok
    with pytest.raises(tp.InputError, match=r"k\.raw\(cpu\)"):
        opaque(np.zeros((16, 64), np.float16))


def _raw(k, cpu):
    with k.ring.consume() as slot:
        k.raw(double_on_gpu, cpu, updates=(slot.x,))


def test_an_access_outside_the_slot_is_refused():
    def late(k, tile):
        with k.ring.consume() as slot:
            x = slot.x
        k.raw(double_on_gpu, double_on_cpu, updates=(x,))

    with pytest.raises(tp.errors.ScopeError, match="outside its `with` block"):
        with_work(late).check()


def test_an_access_after_the_release_is_a_race():
    """The tile's place is kept by hand, so that no scope object can object."""

    def late(k, tile):
        with k.ring.consume() as slot:
            ref = slot.x.ref
        k.isa.fragments.raw(double_on_gpu, double_on_cpu, [(ref, "update")], k.role)

    report = with_work(late).check()
    assert not report.ok and Kind.RACE in report.kinds()


def test_a_write_without_a_fence_before_the_store_is_found():
    """By the instruction set itself, which derives no fence."""

    def unfenced(k, tile):
        with k.ring.consume() as slot:
            k.isa.fragments.raw(double_on_gpu, double_on_cpu, [(slot.x.ref, "update")], k.role)
            k.isa.warp_sync()

    assert Kind.PROXY in with_work(unfenced).check().kinds()


def test_a_write_that_other_lanes_have_not_released_is_a_race():
    def unsynchronized(k, tile):
        with k.ring.consume() as slot:
            k.isa.fragments.raw(double_on_gpu, double_on_cpu, [(slot.x.ref, "update")], k.role)

    assert Kind.RACE in with_work(unsynchronized).check().kinds()


def test_whole_tiles_read_while_others_write_their_rows_are_a_race():
    def both(k, tile):
        with k.ring.consume() as slot:
            k.raw(double_on_gpu, double_on_cpu, reads=(slot.x,))
            k.raw(double_on_gpu, double_on_cpu, updates=(slot.x,))

    assert Kind.RACE in with_work(both).check().kinds()


def alone(*calls):
    """One warp loads, one makes *calls* on each slot and stores from it."""

    class Made(tp.Schedule):
        load, use = tp.Role(warps=1), tp.Role(warps=1)
        ring = tp.BarrierRing(2, producer=load, consumer=use)
        x = tp.TmaLoadStage(tile=(8, 64), ring=ring)
        y = tp.TmaStoreStage(source=x)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @use.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                for call in calls:
                    call(k, slot)
                slot.y.store(tile)

    return Made()


def other_on_gpu(rows):
    """Deals rows over lanes in another way than `double_on_gpu`, for all that anybody knows."""


def test_lanes_meet_around_raw_code():
    """What one lane writes, another may read next: the library's deal of elements is not the raw function's."""
    both = [
        lambda k, slot: slot.x.write(slot.x.read()),
        lambda k, slot: k.raw(double_on_gpu, updates=(slot.x,)),
        lambda k, slot: k.raw(other_on_gpu, updates=(slot.x,)),
        lambda k, slot: slot.x.write(slot.x.read()),
    ]
    assert alone(*both).check().ok


def test_a_fence_stands_only_before_raw_code_of_the_async_proxy():
    def write(k, slot):
        slot.x.write(slot.x.read())

    def raw(proxy):
        return lambda k, slot: k.raw(double_on_gpu, double_on_cpu, updates=(slot.x,), proxy=proxy)

    def fences(*calls):
        return alone(*calls).simulate(np.ones((8, 64), np.float16)).counts["FenceProxyAsync"]

    assert fences(write) == fences(write, raw("generic")) == fences(raw("generic")) > 0
    assert fences(write, raw("async")) == fences(write) + 1 and fences(raw("async")) == 0


BARE = {
    "double": lambda k, slot: k.isa.fragments.raw(double_on_gpu, None, [(slot.x.ref, "update")], k.role, "generic"),
    "other": lambda k, slot: k.isa.fragments.raw(other_on_gpu, None, [(slot.x.ref, "write")], k.role, "generic"),
    "look": lambda k, slot: k.isa.fragments.raw(double_on_gpu, None, [(slot.x.ref, "read")], k.role, "generic"),
    "async double": lambda k, slot: k.isa.fragments.raw(double_on_gpu, None, [(slot.x.ref, "update")], k.role, "async"),
    "async look": lambda k, slot: k.isa.fragments.raw(other_on_gpu, None, [(slot.x.ref, "read")], k.role, "async"),
    "read": lambda k, slot: k.isa.fragments.read(slot.x.ref, vectors_of("x", (8, 64), k.role)),
    "write": lambda k, slot: write_slot(k.isa, slot.x.ref, 0.0, k.role),
    "fence": lambda k, slot: k.isa.fence_proxy_async(),
    "warp sync": lambda k, slot: k.isa.warp_sync(),
}


@pytest.mark.parametrize("calls", [("double", "other"), ("write", "double"), ("double", "read"), ("other", "look")])
def test_lanes_that_do_not_meet_are_a_race(calls):
    """The report names both lines, the later first, and says what belongs between them."""
    end = ("fence", "warp sync")
    report = alone(*(BARE[name] for name in (*calls, *end))).check()
    assert Kind.RACE in report.kinds()
    race = next(finding for finding in report.errors if finding.kind is Kind.RACE)
    assert "lanes of one warp" in race.message and race.fix == "let use execute warp_sync between the two"
    assert alone(*(BARE[name] for name in (calls[0], "warp sync", calls[1], *end))).check().ok


def distributing(by):
    """A function that distributes elements over lanes in its own way."""

    def double_rows(rows):
        return by

    return double_rows


@pytest.mark.parametrize(
    ("first", "second"), [(1, 2), ("rows", "columns"), ((1, 8), (8, 1)), (distributing(1), distributing(2))]
)
def test_functions_of_one_factory_are_told_apart(first, second):
    def calls(first, second):
        both = [lambda k, slot, by=by: k.isa.fragments.raw(distributing(by), None, [(slot.x.ref, "update")], k.role)
                for by in (first, second)]  # fmt: skip
        return alone(*both, BARE["fence"], BARE["warp sync"]).check()

    assert calls(first, first).ok
    assert Kind.RACE in calls(first, second).kinds()


def test_a_fence_by_other_lanes_than_those_that_wrote():
    """Which lane has written is not known, so only a fence by all of them counts."""
    assert alone(BARE["write"], BARE["fence"], BARE["warp sync"]).check().ok
    schedule = alone(BARE["write"], BARE["fence"], BARE["warp sync"])
    program = trace(schedule)
    layout, shapes = Layout(program.plan), program.plan.shapes({"m": 8, "n": 64})
    operations = operations_of(program, layout, Problem(shapes))
    some = [[op._replace(lanes=1) if type(op) is FenceProxyAsync else op for op in own] for own in operations]
    assert {finding.kind for finding in check_operations(layout, operations)[0]} == set()
    assert {finding.kind for finding in check_operations(layout, some)[0]} == {Kind.PROXY}


def test_raw_code_that_issues_tma_or_wgmma():
    """It needs a fence after threads' accesses, as they are handed on or by the same warp, and none after its own."""
    threads, fence, meet = BARE["write"], BARE["fence"], BARE["warp sync"]
    assert alone(threads, fence, meet, BARE["async double"], meet).check().ok
    report = alone(threads, meet, BARE["async double"], meet).check()
    assert report.kinds() == {Kind.PROXY}
    assert "raw code of use (warp 1) reads x[0] through the async proxy" in report.errors[0].message
    assert report.errors[0].fix.startswith("let use execute fence_proxy_async after its access to x")

    def derived(k, slot):
        slot.x.write(slot.x.read())
        k.raw(double_on_gpu, updates=(slot.x,), proxy="async")
        k.raw(other_on_gpu, reads=(slot.x,), proxy="async")

    assert alone(derived).check().ok
    with pytest.raises(tp.InputError, match=r"k\.raw\(proxy\) = 'tma'.*test_raw\.py:\d+\.$"):
        alone(lambda k, slot: k.raw(double_on_gpu, updates=(slot.x,), proxy="tma")).check()


@settings(max_examples=examples(150))
@given(st.lists(st.sampled_from(sorted(BARE)), min_size=1, max_size=5), st.sampled_from([1, 2]))
def test_agrees_with_all_interleavings(names, warps):
    """Raw calls of one or two warps on slots that TMA fills, and everything around them, against the exhaustive oracle."""
    parts = Parts()
    parts.role("load", 1)
    use = parts.role("use", warps)
    ring = HandRing(parts, 2, free=warps)

    def body(isa):
        for turn in range(3):
            ring.wait_full(isa, turn)
            x = SimpleNamespace(ref=ring.slot(turn))
            for name in names:
                BARE[name](SimpleNamespace(isa=isa, role=use), SimpleNamespace(x=x))
            ring.release(isa, turn)

    made = program(parts.plan(), {"load": fill_all(ring, 3), "use": body}, 3)
    every = explore_program(made.plan, made.entry, made.shapes, limit=40_000, first_only=True)
    report = check_program(made.plan, made.entry, made.shapes)
    assert every.ok is None or every.ok == report.ok, f"{sorted(k.name for k in every.kinds)}\n{report}"


def test_bad_declarations():
    def whole(k, tile):
        with k.ring.consume() as slot:
            k.raw(double_on_gpu, updates=(slot,))

    with pytest.raises(tp.InputError, match=r"k\.raw\(updates\)"):
        with_work(whole).check()

    class Uneven(Doubled):
        load, work, store = Doubled.load, Doubled.work, Doubled.store
        ring = tp.BarrierRing(3, chain=(load, work, store))
        x = tp.TmaLoadStage(tile=(6, 64), ring=ring)
        y = tp.TmaStoreStage(source=x)
        fill, double, drain = Doubled.fill, Doubled.double, Doubled.drain

    with pytest.raises(tp.InputError, match="6 rows, which the 4 warps"):
        Uneven().check()
