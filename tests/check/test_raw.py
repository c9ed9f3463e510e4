"""Raw CuTe DSL in a role: run on the model by its counterpart, checked by its declared effects."""

import numpy as np
import pytest

import tmapipe as tp
from tests.raw_rows import Doubled, double_on_cpu, double_on_gpu
from tmapipe.check import Kind
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

    with pytest.raises(tp.ScopeError, match="outside its `with` block"):
        with_work(late).check()


def test_an_access_after_the_release_is_a_race():
    """The tile's place is kept by hand, so that no scope object can object."""

    def late(k, tile):
        with k.ring.consume() as slot:
            ref = slot.x.ref
        k.isa.raw(double_on_gpu, double_on_cpu, [(ref, "update")], k.role)

    report = with_work(late).check()
    assert not report.ok and Kind.RACE in report.kinds()


def test_a_write_without_a_fence_before_the_store_is_found():
    """By the instruction set itself, which derives no fence."""

    def unfenced(k, tile):
        with k.ring.consume() as slot:
            k.isa.raw(double_on_gpu, double_on_cpu, [(slot.x.ref, "update")], k.role)
            k.isa.warp_sync()

    assert Kind.PROXY in with_work(unfenced).check().kinds()


def test_a_write_that_other_lanes_have_not_released_is_a_race():
    def unsynchronized(k, tile):
        with k.ring.consume() as slot:
            k.isa.raw(double_on_gpu, double_on_cpu, [(slot.x.ref, "update")], k.role)

    assert Kind.RACE in with_work(unsynchronized).check().kinds()


def test_whole_tiles_read_while_others_write_their_rows_are_a_race():
    def both(k, tile):
        with k.ring.consume() as slot:
            k.raw(double_on_gpu, double_on_cpu, reads=(slot.x,))
            k.raw(double_on_gpu, double_on_cpu, updates=(slot.x,))

    assert Kind.RACE in with_work(both).check().kinds()


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
