"""CpAsyncLoadStage: slots that threads copy, alone and beside TMA loads."""

import itertools

import ml_dtypes
import numpy as np
import pytest
import torch

import tmapipe as tp
from tests.oracle.copy_forms import Added, Ahead, CopiedGemm, Images
from tests.unit.errors import refused
from tmapipe.check import Kind
from tmapipe.plan.transfers import readers_of


def rows(pitch, columns, dtype=np.float32, first=0, count=70, seed=0):
    """A view of *columns* elements a row, from element *first* on, with rows *pitch* elements apart."""
    made = np.random.default_rng(seed).integers(-9, 9, count * pitch + 64).astype(dtype)
    base = (-made.ctypes.data // made.itemsize) % (16 // made.itemsize)  # a multiple of 16 bytes
    return made[base + first : base + first + count * pitch].reshape(count, pitch)[:, :columns]


@pytest.mark.parametrize("pitch, columns, first", [(72, 72, 0), (73, 72, 0), (75, 68, 1), (40, 4, 3)])
def test_rows_anywhere(pitch, columns, first):
    x, z = rows(pitch, columns, first=first), rows(76, columns, seed=1)
    for seed in range(3):
        y = np.zeros((70, columns), np.float32)
        Added().simulate(x, z, out=y, seed=seed)
        assert (y == x + z).all()


def test_a_matmul_of_copied_and_loaded_operands():
    a, b = rows(50, 46, ml_dtypes.bfloat16), rows(48, 46, ml_dtypes.bfloat16, count=72, seed=1)
    d = CopiedGemm()(a, b).astype(np.float32)
    assert (d == (a.astype(np.float32) @ b.astype(np.float32).T).astype(ml_dtypes.bfloat16).astype(np.float32)).all()


def test_boxes_of_three_extents():
    x = np.random.default_rng(0).standard_normal((2, 7, 13, 48)).astype(ml_dtypes.bfloat16)
    assert (Images()(x) == x).all()
    assert (Images()(x[0]) == x[0]).all()  # without the batch


def test_starts_outside_of_the_tensor():
    class Shifted(Added):
        copy, load, work = Added.copy, Added.load, Added.work

        @copy.jit
        def fill_x(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load_from(tile.m * 4 - 3, tile.n * 32 + self.by)

    x, z = rows(73, 72), np.zeros((70, 72), np.float32)
    wide = np.zeros((200, 400), np.float32)
    wide[50:120, 100:172] = x
    for by in (-33, -1, 5, 90):
        schedule = Shifted()
        schedule.by = by
        assert (schedule(x, z) == wide[47:117, 100 + by : 172 + by]).all()


@pytest.mark.parametrize("form", [Added, CopiedGemm, Images])
def test_checked(form):
    report = form().check()
    assert report.ok and not report.findings and "every trip count" in str(report)


def test_a_reader_through_the_async_proxy_needs_a_fence(monkeypatch):
    monkeypatch.setattr("tmapipe.plan.transfers.readers_of", lambda *given: (*readers_of(*given)[:2], ()))
    for form in (CopiedGemm, Images):
        report = form().check()
        assert report.kinds() == {Kind.PROXY}
        assert "after it has waited for ring.full" in report.findings[0].fix
    assert Added().check().ok  # threads read what threads have copied


@pytest.mark.parametrize("warps", [1, 2, 3])
def test_arrivals(warps):
    class Some(Images):
        load, store = tp.Role(warps=warps), tp.Role(warps=1)
        ring = tp.BarrierRing(2, producer=load, consumer=store)
        x = tp.CpAsyncLoadStage("b h w c", tile=(4, 6, 32), ring=ring, vector=8)
        y = tp.TmaStoreStage(source=x)

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @store.jit
        def drain(self, k, tile):
            with k.ring.consume() as slot:
                slot.y.store(tile)

    plan = Some().plan()
    assert plan.ring("ring").barriers[0].count == 32 * warps and not plan.ring("ring").armed
    assert f"{32 * warps} lanes of copies (load)" in Some().explain() and "8 bytes a thread" in Some().explain()
    assert Some().check().ok


def test_filled_once_a_cta():
    class Held(tp.Schedule):
        load, copy, work = tp.Role(warps=1), tp.Role(warps=2), tp.Role(warps=1)
        ring = tp.BarrierRing(2, producer=load, consumer=work)
        once = tp.BarrierRing(1, producer=copy, consumer=work, per="cta")
        x = tp.TmaLoadStage("m n", tile=(4, 32), ring=ring, dtype="fp32")
        w = tp.CpAsyncLoadStage("n", tile=(32,), ring=once, vector=4, dtype="fp32")
        y = tp.TmaStoreStage("m n", tile=(4, 32), role=work, dtype="fp32")

        @copy.before.jit
        def fill_w(self, k):
            with k.once.produce() as slot:
                slot.w.load_from(0)

        @copy.jit
        def nothing(self, k, tile):
            pass

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load(tile)

        @work.jit
        def add(self, k, tile):
            with k.ring.consume() as slot:
                x = slot.x.read()
            k.y.store(tile, x + k.once.w.read(columns_of=x))

    x, w = rows(32, 32), rows(35, 31, first=1)[0]
    w = np.concatenate([w, [0]]).astype(np.float32)
    assert (Held()(x, w) == x + w).all()
    assert Held().check().ok


def test_refused():
    ring = tp.BarrierRing(2, producer=tp.Role(warps=2), consumer=tp.Role(warps=1))
    stage = tp.CpAsyncLoadStage
    for vector in (0, 2, 32, True, "16", None, np.zeros(3)):
        refused(stage, "m n", tile=(4, 32), ring=ring, vector=vector, argument="vector", rule="is 4, 8 or 16 bytes")
    refused(stage, "m n", tile=(4, 32), ring=ring, dtype="tf32", argument="dtype", rule="TMA loads")
    with pytest.raises(TypeError, match="multicast"):
        stage("m n", tile=(4, 32), ring=ring, multicast=tp.MulticastGroup("m"))
    made = stage("m n", tile=(4, 32), ring=ring)
    for name in ("in_parts", "anything_outside", "nan_outside", "strided", "of_result"):
        assert hasattr(tp.TmaLoadStage, name) and not hasattr(made, name)  # these are of the TMA engine
    assert repr(made).startswith("CpAsyncLoadStage(tile=(4, 32), ") and "vector" not in repr(made)
    assert "vector=8" in repr(stage("m n", tile=(4, 32), ring=ring, vector=8))


def test_tensors_that_copies_do_not_take():
    odd = rows(46, 46, np.float16).reshape(1, 1, 70, 46)
    refused(
        Images(), odd, argument="x.stride", rule="46 x 2 bytes is no positive multiple of 8, as copies of 8 bytes need"
    )
    refused(Added(), rows(80, 72)[:, ::2], rows(36, 36), argument="x.stride", rule="contiguous")
    misplaced = torch.zeros(64, dtype=torch.bfloat16)[1:57].view(1, 1, 2, 28)
    refused(Images(), misplaced, argument="x.data_ptr()", rule="a multiple of 8 bytes")


def test_vectors_begin_at_multiples_of_their_size():
    class Off(Images):
        load, store = Images.load, Images.store

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.load_from(tile.b, tile.h * 4, tile.w * 6, tile.c * 32 + 2)

    with pytest.raises(tp.errors.HazardError, match="of fp16: not a multiple of 8"):
        Off()(np.zeros((1, 4, 6, 32), np.float16))
    assert Off().check().kinds() == {Kind.OUT_OF_RANGE}


def test_prefetches_change_nothing():
    x = rows(200, 200, ml_dtypes.bfloat16)
    run = Ahead().simulate(x)
    assert run.counts["TmaPrefetch"] == run.counts["TmaLoad"] == 20
    assert (Ahead()(x) == x).all()
    assert Ahead().check().ok and not Ahead().check().findings


def test_prefetches_that_are_refused():
    class Parts(Ahead):
        load, store = Ahead.load, Ahead.store
        ring = tp.BarrierRing(2, producer=load, consumer=store)
        x = tp.TmaLoadStage("m n", tile=(16, 64), ring=ring).in_parts(2)
        y = tp.TmaStoreStage(source=x)

    class Copies(Images):
        load, store = Images.load, Images.store

        @load.jit
        def fill(self, k, tile):
            with k.ring.produce() as slot:
                slot.x.prefetch(tile)

    for form in (Copies, Parts):
        refused(form().check, argument="slot.x", rule="loaded")


def test_each_vector_is_in_one_share():
    """As the instruction set says it: what the model copies, warp by warp, makes the whole."""
    for warps, vector in itertools.product((1, 3, 4), (4, 8, 16)):
        vectors = 4 * 6 * 32 * 2 // vector
        shares = [[i for i in range(vectors) if i // 32 % warps == share] for share in range(warps)]
        assert sorted(itertools.chain(*shares)) == list(range(vectors))
