"""A stage in the memory of another one: counted once, ordered by the ring and `k.sync()`, refused where it makes no sense."""

import functools

import numpy as np
import pytest

import tmapipe as tp
from tests.oracle.held_forms import Narrowed
from tests.unit.errors import refused
from tmapipe.check import Kind
from tmapipe.isa.copies import CopyInstructions


class OutputOverInput(tp.Schedule):
    """d = a b^T. The tile of a is held while k-tiles of b pass, and two warpgroups write what they found over it."""

    load, math, store = tp.Role(warps=1), tp.Role(warpgroups=2), tp.Role(warps=1)
    once = tp.BarrierRing(1, chain=(load, math, store))
    ring = tp.BarrierRing(2, producer=load, consumer=math)
    a = tp.TmaLoadStage("m k", tile=(128, 64), ring=once)
    b = tp.TmaLoadStage("n k", tile=(64, 64), ring=ring)
    mma = tp.Wgmma(a, b, in_flight=0)
    z = tp.SharedStage(tile=(128, 64), ring=once, writer=math, dtype="bf16", over=a)
    d = tp.TmaStoreStage("m n", source=z, stages=0)
    ordered = True

    @load.jit
    def fill(self, k, tile):
        with k.once.produce() as slot:
            slot.a.load(tile, k=0)
        with k.ring.produce() as slot:
            slot.b.load(tile, k=0)

    @math.jit
    def multiply(self, k, tile):
        with k.once.consume() as own:
            with k.ring.consume() as slot:
                sums = k.mma.start(own.a, slot.b).wait().values()
            if self.ordered:
                k.sync()
            own.z.write(sums)

    @store.jit
    def drain(self, k, tile):
        with k.once.consume() as slot:
            slot.d.store(tile)


def test_its_memory_is_counted_once():
    plan, own = Narrowed().plan(), Narrowed()
    own.z = tp.SharedStage(tile=(4, 64), ring=own.ring, writer=own.work, dtype="bf16")
    assert plan.buffer("z").offset == plan.buffer("x").offset and plan.buffer("z").pitch == plan.buffer("x").pitch
    assert own.plan().smem_bytes == plan.smem_bytes + 2 * 512
    assert "z: 2 x 512, in the slots of x" in Narrowed().explain()


def test_values_on_the_model():
    x = np.random.default_rng(0).standard_normal((50, 200)).astype(np.float32)
    y = Narrowed()(x)
    assert y.dtype == tp.dtypes.bf16.numpy and (y == x.astype(tp.dtypes.bf16.numpy)).all()
    a, b = (
        np.random.default_rng(i).integers(-3, 4, (rows, 64)).astype(tp.dtypes.bf16.numpy)
        for i, rows in enumerate((300, 200))
    )
    wanted = a.astype(np.float32) @ b.astype(np.float32).T
    assert (OutputOverInput()(a, b).astype(np.float32) == wanted.astype(tp.dtypes.bf16.numpy).astype(np.float32)).all()


@pytest.mark.parametrize("form", [Narrowed, OutputOverInput])
def test_proved_for_every_trip_count(form):
    report = form().check()
    assert report.ok and report.trips == "every trip count", str(report)


def test_warps_that_do_not_meet_before_they_write_are_found():
    class Unordered(Narrowed):
        @Narrowed.work.jit
        def narrow(self, k, tile):
            with k.ring.consume() as slot:
                slot.z.write(slot.x.read())

    class Early(OutputOverInput):
        ordered = False

    for form in (Unordered, Early):
        errors = form().check().errors
        assert {error.kind for error in errors} == {Kind.RACE}
        assert "which lies in the same bytes" in str(errors[0]) and "test_over.py" in str(errors[0])


def test_a_load_over_what_is_still_stored_is_found(monkeypatch):
    """Without the wait for the store's reads, the next tile of x comes over what is on its way."""
    wait = CopyInstructions.bulk_wait_group
    monkeypatch.setattr(CopyInstructions, "bulk_wait_group", lambda isa, pending, read: pending or wait(isa, 0, read))
    report = Narrowed().check()
    assert Kind.STORE_SOURCE_REUSED in report.kinds() and "x[0]" in str(report) and "z[0]" in str(report)


def test_what_was_overwritten_is_gone():
    class SameRole(Narrowed):
        @Narrowed.work.jit
        def narrow(self, k, tile):
            with k.ring.consume() as slot:
                values = slot.x.read()
                k.sync()
                slot.z.write(values)
                k.sync()
                slot.x.read()

    class LaterRole(Narrowed):
        u = tp.TmaStoreStage("m n", source=Narrowed.x)

        @Narrowed.store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.u.store(tile)

    for form in (SameRole, LaterRole):
        with pytest.raises(
            tp.errors.ScopeError, match=r"'x' used in role .* after a stage that lies over it was written"
        ):
            form().check()


def test_refused():
    load, work, other = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=1)
    ring, elsewhere = (tp.BarrierRing(2, chain=(load, work, other)) for _ in range(2))
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring)
    far = tp.TmaLoadStage("m n", tile=(4, 64), ring=elsewhere)
    z = tp.SharedStage(tile=(4, 64), ring=ring, writer=work, dtype="bf16", over=x)
    stage = functools.partial(tp.SharedStage, tile=(4, 64), ring=ring, dtype="bf16")
    for over in (far, z, "x"):
        refused(stage, writer=other, over=over, argument="over", rule="with memory of its own")
    refused(stage, writer=load, over=x, argument="over", rule="a phase before")


@pytest.mark.parametrize(
    ("tile", "swizzle", "rule"),
    [
        ((8, 64), None, "lies over x, whose slots have 1024 bytes: its own have 2048"),
        ((8, 32), 128, "swizzled slots must begin at multiples of 1024"),
    ],
)
def test_tiles_that_do_not_fit(tile, swizzle, rule):
    form = Narrowed()
    form.z = tp.SharedStage(tile=tile, ring=form.ring, writer=form.work, dtype="fp32", swizzle=swizzle, over=form.x)
    refused(form.plan, argument="z.tile", rule=rule)


class ReadByThreads(tp.Schedule):
    """y = x in bf16. No engine reads what was written over x, but one overwrites it: threads fence it all the same."""

    load, work, out = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=2)
    ring = tp.BarrierRing(2, chain=(load, work, out))
    x = tp.TmaLoadStage("m n", tile=(4, 64), ring=ring, dtype="fp32")
    z = tp.SharedStage(tile=(4, 64), ring=ring, writer=work, dtype="bf16", over=x)
    y = tp.TmaStoreStage("m n", tile=(4, 64), role=out, dtype="bf16")

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def narrow(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.x.read()
            k.sync()
            slot.z.write(values)

    @out.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            values = slot.z.read()
        k.y.store(tile, values)


def test_read_by_threads():
    x = np.random.default_rng(0).standard_normal((50, 200)).astype(np.float32)
    assert (ReadByThreads()(x) == x.astype(tp.dtypes.bf16.numpy)).all()
    assert ReadByThreads().check().ok
