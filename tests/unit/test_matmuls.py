"""What matmuls and their accumulators refuse, on the model and when compiled; and what is declared."""

import ml_dtypes
import numpy as np
import pytest

import tmapipe as tp
from tests.matmul_schedules import FORMS, FromRegisters, FromZero, OneRing, TwoRings
from tests.oracle.matmul_forms import InTurn
from tests.unit.errors import refused


class Base(OneRing):
    """What is started is waited for by wait() alone."""

    load, math = OneRing.load, OneRing.math
    mma = tp.Wgmma(OneRing.a, OneRing.b, in_flight=0)
    d = tp.TmaStoreStage("m n", source=mma)


class AwaitedAfterTheLoop(Base):
    @Base.math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            with k.ring.consume() as slot:
                product = acc.start(slot.a, slot.b)
            product.wait()
            for _ in range(k.steps("a", "k") - 1):
                with k.ring.consume() as slot:
                    product = acc.start(slot.a, slot.b)
            product.wait()
        k.d.store(tile, acc)


class AwaitedInTheLoop(Base):
    @Base.math.jit
    def multiply(self, k, tile):
        with k.mma.accumulate() as acc:
            with k.ring.consume() as slot:
                product = acc.start(slot.a, slot.b)
            for _ in range(k.steps("a", "k") - 1):
                product.wait()
                with k.ring.consume() as slot:
                    product = acc.start(slot.a, slot.b)
            product.wait()
        k.d.store(tile, acc)


class AwaitedInABranch(Base):
    @Base.math.jit
    def multiply(self, k, tile):
        for _ in range(k.steps("a", "k")):
            with k.ring.consume() as slot:
                product = k.mma.start(slot.a, slot.b)
                if k.steps("a", "k") > 0:
                    product.wait()
            k.d.store(tile, product.accumulator)


class NotAwaited(Base):
    @Base.math.jit
    def multiply(self, k, tile):
        for _ in range(k.steps("a", "k")):
            with k.ring.consume() as slot:
                k.mma.start(slot.a, slot.b)


class LeftBeforeTheWait(Base):
    @Base.math.jit
    def multiply(self, k, tile):
        for _ in range(k.steps("a", "k")):
            with k.ring.consume() as slot:
                with k.mma.accumulate() as acc:
                    acc.start(slot.a, slot.b)


class AwaitedTwice(Base):
    @Base.math.jit
    def multiply(self, k, tile):
        for _ in range(k.steps("a", "k")):
            with k.ring.consume() as slot:
                product = k.mma.start(slot.a, slot.b)
            product.wait()
            product.wait()


class ReadTooEarly(Base):
    @Base.math.jit
    def multiply(self, k, tile):
        for _ in range(k.steps("a", "k")):
            with k.ring.consume() as slot:
                product = k.mma.start(slot.a, slot.b)
            k.d.store(tile, product.accumulator)
            product.wait()


class StartedTwice(Base):
    @Base.math.jit
    def multiply(self, k, tile):
        for _ in range(k.steps("a", "k")):
            with k.ring.consume() as slot:
                one = k.mma.start(slot.a, slot.b)
                two = k.mma.start(slot.a, slot.b)
            one.wait()
            two.wait()


class StartedOutside(Base):
    @Base.math.jit
    def multiply(self, k, tile):
        for _ in range(k.steps("a", "k")):
            with k.ring.consume() as slot:
                with k.mma.accumulate() as acc:
                    acc.add(slot.a, slot.b)
                acc.start(slot.a, slot.b).wait()


class StartedBesideAnAccumulator(Base):
    @Base.math.jit
    def multiply(self, k, tile):
        for _ in range(k.steps("a", "k")):
            with k.ring.consume() as slot:
                with k.mma.accumulate():
                    k.mma.start(slot.a, slot.b).wait()


class ReleasedLater(Base):
    mma = tp.Wgmma(Base.a, Base.b)
    d = tp.TmaStoreStage("m n", source=mma)

    @Base.math.jit
    def multiply(self, k, tile):
        for _ in range(k.steps("a", "k")):
            with k.ring.consume() as slot:
                k.mma.start(slot.a, slot.b).wait()


class Exchanged(Base):
    @Base.math.jit
    def multiply(self, k, tile):
        for _ in range(k.steps("a", "k")):
            with k.ring.consume() as slot:
                k.mma.start(slot.b, slot.a).wait()


REFUSED = {
    AwaitedAfterTheLoop: r"`product` is Started before the loop at .*test_matmuls.py:28 and Started after an iter",
    AwaitedInTheLoop: "awaited in another block of code than it was started in|awaited twice",
    AwaitedInABranch: "awaited in another block of code than it was started in",
    NotAwaited: "was started, but not awaited where it was started|before its last start was awaited",
    LeftBeforeTheWait: "left before a matmul that was started in it was awaited",
    AwaitedTwice: "awaited twice",
    ReadTooEarly: "read before a matmul started on it was awaited",
    StartedTwice: "before its last start was awaited",
    StartedOutside: "outside `with",
    StartedBesideAnAccumulator: r"inside `with k.mma.accumulate\(\) as acc`",
    ReleasedLater: "released 1 later. Declare its matmuls with in_flight=0",
    Exchanged: r"start\(\) takes slot.a and slot.b, in this order",
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_refused_on_the_model(kind):
    a, b = np.ones((64, 192), ml_dtypes.bfloat16), np.ones((64, 192), ml_dtypes.bfloat16)
    with pytest.raises(tp.errors.ScopeError, match=REFUSED[kind]):
        kind().simulate(a, b)


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_refused_when_compiled(kind):
    with pytest.raises(tp.errors.ScopeError, match=REFUSED[kind]):
        kind().compile(arch="sm_90a")


def test_operands():
    for bad in (None, Base.ring, tp.TmaLoadStage("n", tile=(64,), ring=Base.ring)):
        with pytest.raises(tp.InputError, match=r"Wgmma\(a\)"):
            tp.Wgmma(bad, Base.b)
        with pytest.raises(tp.InputError, match=r"Wgmma\(b\)"):
            tp.Wgmma(Base.a, bad)
    with pytest.raises(tp.InputError, match=r"Wgmma\(b\)"):
        tp.Wgmma(Base.a, Base.mma)


def test_the_role_reads_both_rings():
    class Elsewhere(TwoRings):
        """Another role reads b."""

        math = TwoRings.math
        other = tp.Role(warpgroups=1)
        of_b = tp.BarrierRing(4, producer=TwoRings.load, consumer=other)
        b = tp.TmaLoadStage("n k", tile=(128, 64), ring=of_b)
        mma = tp.Wgmma(TwoRings.a, b)
        d = tp.TmaStoreStage("m n", source=mma)

    with pytest.raises(tp.InputError, match="one role of warpgroups that reads the slots of of_a and of_b"):
        Elsewhere().plan()


def test_a_writer_does_not_multiply_what_it_writes():
    class Own(FORMS["written by threads"].make):
        load, math = tp.Role(warps=1), tp.Role(warpgroups=1)
        ring = tp.BarrierRing(2, producer=load, consumer=math)
        x = tp.TmaLoadStage("m k", tile=(64, 64), ring=ring)
        a = tp.SharedStage("m k", tile=(64, 64), ring=ring, writer=math, dtype="bf16")
        mma = tp.Wgmma(a, x, k="k")
        b = None
        double = None
        d = tp.TmaStoreStage("m n", source=mma)

    with pytest.raises(tp.InputError, match="after whoever fills them"):
        Own().plan()


def test_names_of_the_sums():
    assert FromZero.mma.dims == ("m", "n") and FromZero.mma.transposed == (False, True)
    unnamed = tp.SharedStage(tile=(64, 64), ring=Base.ring, writer=Base.load, dtype="bf16")
    assert tp.Wgmma(unnamed, Base.b).dims is None and tp.Wgmma(unnamed, Base.b).transposed == (False, False)
    with pytest.raises(tp.InputError, match=r"SharedStage\(dims\)"):
        tp.SharedStage("l m k", tile=(64, 64), ring=Base.ring, writer=Base.load, dtype="bf16")


class Four(tp.Schedule):
    """Four warpgroups in all: threads are launched with 128 registers, so that n of one instruction is at most 200."""

    load, other, math = tp.Role(warps=1), tp.Role(warpgroups=1), tp.Role(warpgroups=2)
    ring = tp.BarrierRing(2, chain=(load, other, math))
    a = tp.TmaLoadStage("m k", tile=(128, 32), ring=ring)
    b = tp.TmaLoadStage("n k", tile=(256, 32), ring=ring)
    mma = tp.Wgmma(a, b)
    d = tp.TmaStoreStage("m n", source=mma)


def test_wide_tiles_take_two_instructions():
    assert Four().plan().matmul("mma").n_instructions == (128, 128)
    assert TwoRings().plan().matmul("mma").n_instructions == (128,)


def test_wide_tiles_that_cannot_be_cut():
    class Turned(Four):
        b = tp.TmaLoadStage("k n", tile=(32, 256), ring=Four.ring)
        mma = tp.Wgmma(Four.a, b)
        d = tp.TmaStoreStage("m n", source=mma)

    class TwoBlocks(Four):
        a = tp.TmaLoadStage("m k", tile=(256, 32), ring=Four.ring)
        b = tp.TmaLoadStage("n k", tile=(208, 32), ring=Four.ring)
        mma = tp.Wgmma(a, b)
        d = tp.TmaStoreStage("m n", source=mma)

    for kind, rule in ((Turned, "contiguous along n, are not cut"), (TwoBlocks, "one block of 64 rows")):
        with pytest.raises(tp.InputError, match=f"n is at most 200 with 128 registers a thread at launch.*{rule}"):
            kind().plan()


class Halves(tp.Schedule):
    """y = x with its halves exchanged, by parts of a slot that threads write."""

    load, work, store = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=1)
    ring = tp.BarrierRing(2, chain=(load, work, store))
    x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring)
    y = tp.SharedStage("m n", tile=(16, 64), ring=ring, writer=work, dtype="bf16")
    z = tp.TmaStoreStage("m n", source=y)

    @load.jit
    def fill(self, k, tile):
        with k.ring.produce() as slot:
            slot.x.load(tile)

    @work.jit
    def exchange(self, k, tile):
        with k.ring.consume() as slot:
            slot.y.write(slot.x.read(tile=(16, 32), at=(0, 32)), at=(0, 0))
            slot.y.write(slot.x.read(tile=(16, 32), at=(0, 0)), at=(0, 32))

    @store.jit
    def drain(self, k, tile):
        with k.ring.consume() as slot:
            slot.z.store(tile)


def test_parts_of_a_tile_are_written():
    x = np.arange(32 * 64).reshape(32, 64).astype(ml_dtypes.bfloat16)
    z = Halves()(x)
    assert (z[:, :32] == x[:, 32:]).all() and (z[:, 32:] == x[:, :32]).all()
    assert Halves().check().ok and Halves().compile(arch="sm_90a").resources.spill_bytes == 0


@pytest.mark.parametrize("at", [(0, 16), (0, 64), (1, 0), (0,), 3, (0.0, 0), (-16, 0)])
def test_parts_begin_at_multiples(at):
    class Elsewhere(Halves):
        @Halves.work.jit
        def exchange(self, k, tile):
            with k.ring.consume() as slot:
                slot.y.write(slot.x.read(tile=(16, 32), at=(0, 0)), at=at)

    with pytest.raises(tp.InputError, match=r"slot.y.write\(at\)"):
        Elsewhere().simulate(np.zeros((16, 64), ml_dtypes.bfloat16))


def test_warpgroups_in_turn():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (rows, 48)).astype(ml_dtypes.bfloat16) for rows in (300, 136))
    want = (a.astype(np.float32) @ b.astype(np.float32).T).astype(ml_dtypes.bfloat16)
    assert all((InTurn()(a, b) == want).all() for _ in range(2))
    assert "every trip count" in str(InTurn().check())
    barrier = next(each for each in InTurn().plan().named_barriers if each.name == "order.turn")
    assert (barrier.instances, barrier.threads) == (2, 256)
    d = tp.TmaStoreStage("m n", source=InTurn.mma)
    with pytest.raises(tp.InputError, match=r"Turnstile\(stores\)"):
        tp.Turnstile(InTurn.work, stores=(d,))


def test_a_matmul_with_an_operand_from_registers_is_started():
    pv = FromRegisters.pv
    assert pv.in_flight == 0 and repr(pv).count("in_flight") == repr(pv.a).count("in_flight")
    assert tp.Wgmma(pv.a, pv.b, in_flight=1).in_flight == 1
    refused(tp.Wgmma, pv.a, pv.b, in_flight=-1, argument="in_flight", rule="0 or more")
